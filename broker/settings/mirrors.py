"""The settings of a mirror, converted: addresses of the source, and predicates for names."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from warmlog.broker.settings.patterns import PatternError, compile_pattern
from warmlog.broker.settings.types import SettingError, parts
from warmlog.protocol.oauthbearer import OAUTHBEARER

MAX_PORT = 65_535
_TLS = ("warmlog.mirror.ca.file", "warmlog.mirror.certificate.file", "warmlog.mirror.key.file")
_SASL = ("warmlog.mirror.user", "warmlog.mirror.password.file")
_OF_TOKEN = ("warmlog.mirror.token.file",)


def source_addresses(text: str) -> list[tuple[str, int]]:
    """Parse `HOST:PORT,...` of `warmlog.mirror.from`. Raises SettingError."""
    addresses = []
    for address in parts(text):
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
            raise SettingError(f"warmlog.mirror.from: expected HOST:PORT, separated by commas, not {address!r}")
        addresses.append((host.strip("[]"), int(port)))
    return addresses


@lru_cache(maxsize=8)
def chosen_by(name: str, pattern: str) -> Callable[[str], bool]:
    """Return whether a name matches the pattern of a setting, a regular expression of RE2, as a whole.

    Raises SettingError, which names the setting.
    """
    try:
        program = compile_pattern(pattern)
    except PatternError as error:
        raise SettingError(f"{name}: expected a regular expression (RE2), not {pattern[:100]!r}: {error}") from None
    return lambda text: program.fullmatch(text) is not None


def check_mirror(value: Callable[[str], Any]) -> None:
    """Raise SettingError for mirror settings that are invalid or require missing ones. `value` returns a value."""
    protocol, mechanism = value("warmlog.mirror.security.protocol"), value("warmlog.mirror.sasl.mechanism")
    of_tls, of_sasl = ([name for name in names if value(name)] for names in (_TLS, (*_SASL, *_OF_TOKEN)))
    if of_tls and not protocol.endswith("SSL"):
        raise SettingError(f"{of_tls[0]}: needs warmlog.mirror.security.protocol=SSL or SASL_SSL")
    if of_sasl and not protocol.startswith("SASL"):
        raise SettingError(f"{of_sasl[0]}: needs warmlog.mirror.security.protocol=SASL_SSL or SASL_PLAINTEXT")
    for first, second in (_TLS[1:], _SASL):
        if bool(value(first)) != bool(value(second)):
            raise SettingError(f"{first}: belongs together with {second}")
    needed, others = (_OF_TOKEN, _SASL) if mechanism == OAUTHBEARER else (_SASL, _OF_TOKEN)
    if wrong := [name for name in others if value(name)]:
        raise SettingError(f"{wrong[0]}: is not for warmlog.mirror.sasl.mechanism={mechanism}")
    if protocol.startswith("SASL") and not of_sasl:
        raise SettingError(f"warmlog.mirror.security.protocol: {protocol} needs {' and '.join(needed)}")
    if not source_addresses(value("warmlog.mirror.from")):
        return
    for name in ("warmlog.mirror.topics", "warmlog.mirror.groups"):
        chosen_by(name, value(name))
