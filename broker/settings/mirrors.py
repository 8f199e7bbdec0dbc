"""The settings of a mirror, converted: addresses of the source, and what is chosen by name."""

from collections.abc import Callable
from functools import lru_cache

from warmlog.broker.settings.patterns import PatternError, compile_pattern
from warmlog.broker.settings.types import SettingError, parts

MAX_PORT = 65_535


def source_addresses(text: str) -> list[tuple[str, int]]:
    """Parse `HOST:PORT,...` of `warmlog.mirror.from`. Raises SettingError."""
    found = []
    for one in parts(text):
        host, colon, port = one.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
            raise SettingError(f"warmlog.mirror.from: expected HOST:PORT, separated by commas, not {one!r}")
        found.append((host.strip("[]"), int(port)))
    return found


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
