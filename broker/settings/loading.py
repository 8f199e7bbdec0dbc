"""Load the settings from their sources, and check them together.

Precedence, lowest first: defaults, TOML file, environment, `--set`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from warmlog.broker.settings.groups.checks import check_groups
from warmlog.broker.settings.groups.deliveries import check_share_deliveries
from warmlog.broker.settings.http import http_settings
from warmlog.broker.settings.kafka_settings import check_at_startup
from warmlog.broker.settings.listeners import (
    CONNECTION_RATE,
    MAX_CONNECTIONS,
    check_listeners,
    is_of_listener,
    parse_overrides,
)
from warmlog.broker.settings.mirrors import check_mirror
from warmlog.broker.settings.sasl import check_sasl
from warmlog.broker.settings.settings import FIELDS, Settings
from warmlog.broker.settings.types import SettingError, check_value, nearest

_TLS_FILES = (
    "warmlog.cluster.etcd.ca.file",
    "warmlog.cluster.etcd.certificate.file",
    "warmlog.cluster.etcd.key.file",
)
_PAIRS = (
    ("warmlog.cluster.etcd.certificate.file", "warmlog.cluster.etcd.key.file"),
    ("warmlog.cluster.etcd.user", "warmlog.cluster.etcd.password.file"),
)

ENVIRONMENT_PREFIX = "WARMLOG_"
# Variables with this prefix that are not settings: the client's default address and files, the choice of uncompiled
# codecs, the build, shell completion, and the variables that Kubernetes sets for a service named warmlog.
FOREIGN_VARIABLES = re.compile(
    r"WARMLOG_(NATIVE|KAFKA|PROFILE|TLS_CA|TLS_CERTIFICATE|USER|PASSWORD|PASSWORD_FILE|SASL_MECHANISM"
    r"|DELEGATION_TOKEN|TOKEN|TOKEN_(FILE|ENDPOINT_URL|SCOPE|CA)|CLIENT_(ID|SECRET|SECRET_FILE)"
    r"|PURE|COMPILED|CONFIG|SERVICE_(HOST|PORT)\w*|PORT|PORT_\d+_\w+)|_WARMLOG_COMPLETE"
)


def load_settings(
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    *,
    data_dir: Path | str | None = None,
) -> Settings:
    """Load the settings from a TOML file, the environment and `KEY=VALUE` assignments, later ones winning.

    `data_dir` replaces the first of `log.dirs`.

    Raises SettingError for an unreadable file, an unknown name, a value of the wrong type or out of range, values that
    conflict, or a broker of a cluster without an id.
    """
    values: dict[str, Any] = {}
    without_effect: dict[str, str] = {}
    of_listeners: dict[str, str] = {}
    for name, value, origin in _given(config_file, environ or {}, assignments):
        field = FIELDS.get(name)
        if field is not None:
            values[field.name] = check_value(name, value, field.type, origin=origin)
        elif is_of_listener(name):
            of_listeners[name] = check_of_listener(name, value, origin)
        elif (text := check_at_startup(name, value, origin=origin)) is not None:
            without_effect[name] = text
        else:
            raise SettingError(f"{origin}: unknown setting {name!r}{nearest(name, FIELDS)}")
    settings = Settings(**values, without_effect=without_effect, of_listeners=of_listeners)
    if settings.warmlog_cluster_etcd and "node_id" not in values:
        raise SettingError("node.id: a broker of a cluster (warmlog.cluster.etcd) needs an id of its own")
    if data_dir is not None:
        paths = data_dir, *settings.data_paths[1:]
        settings = msgspec.structs.replace(settings, log_dirs=",".join(map(str, paths)))
    check_together(settings)
    return settings


def check_of_listener(name: str, value: Any, origin: str) -> str:
    """Return the text of a listener's setting. Raises SettingError if a numeric setting has a wrong value."""
    for number in (CONNECTION_RATE, MAX_CONNECTIONS):
        if name.endswith(f".{number}"):
            return str(check_value(name, value, FIELDS[number].type, origin=origin))
    return str(check_value(name, value, str, origin=origin))


def _given(
    config_file: Path | None, environ: Mapping[str, str], assignments: Sequence[str]
) -> Iterator[tuple[str, Any, str]]:
    if config_file is not None:
        yield from ((name, value, str(config_file)) for name, value in _from_file(config_file))
    for variable, text in environ.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and not FOREIGN_VARIABLES.fullmatch(variable):
            yield _setting_of(variable), text, f"environment {variable}"
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise SettingError(f"--set {assignment}: expected KEY=VALUE")
        yield name.strip(), text.strip(), "--set"


def _from_file(path: Path) -> Iterator[tuple[str, Any]]:
    import tomllib  # not needed without a file

    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: not TOML: {error}") from None
    yield from _flatten(document, "")


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, ",".join(map(str, value)) if isinstance(value, list) else value


def _setting_of(variable: str) -> str:
    name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
    own = f"warmlog.{name}"
    return own if name not in FIELDS and own in FIELDS else name


def _check_etcd(settings: Settings) -> None:
    """Raise SettingError for settings of the connection to etcd that require missing ones."""
    for name, other in _PAIRS:
        for given, missing in ((name, other), (other, name)):
            if settings.effective(given) and not settings.effective(missing):
                raise SettingError(f"{given}: needs {missing} as well")
    if settings.warmlog_cluster_etcd_user and not settings.warmlog_cluster_etcd:
        raise SettingError("warmlog.cluster.etcd.user: needs endpoints in warmlog.cluster.etcd")
    for name in _TLS_FILES:
        if settings.effective(name) and "https://" not in settings.warmlog_cluster_etcd.lower():
            raise SettingError(f"{name}: needs https:// endpoints in warmlog.cluster.etcd")


def _check_super_users(text: str) -> None:
    for principal in text.split(";"):
        kind, _, name = principal.strip().partition(":")
        if principal.strip() and (kind != "User" or not name):
            raise SettingError(f"super.users: expected User:NAME;..., such as User:alice, not {principal.strip()!r}")
        if ",User:" in name.replace(" ", ""):
            raise SettingError(f"super.users: separate principals by semicolons, not as in {principal.strip()!r}")


def check_together(settings: Settings) -> None:
    """Raise SettingError for settings that are in range but conflict with each other."""
    if not settings.data_paths:
        raise SettingError(f"log.dirs: expected a directory, not {settings.data_dirs!r}")
    check_listeners(settings)
    _check_super_users(settings.super_users)
    check_sasl(settings)
    http_settings(settings)
    parse_overrides(settings.max_connections_per_ip_overrides)
    check_mirror(settings.effective)
    _check_etcd(settings)
    if settings.retention_ms == 0:
        raise SettingError("log.retention.ms: expected -1, for ever, or at least 1, not 0")
    if settings.group_min_session_timeout_ms > settings.group_max_session_timeout_ms:
        raise SettingError("group.min.session.timeout.ms: expected at most group.max.session.timeout.ms")
    check_groups(settings)
    check_share_deliveries(settings)
    jitter_ms, segment_ms = settings.segment_jitter_ms, settings.segment_ms
    if jitter_ms > segment_ms:
        raise SettingError(f"log.roll.jitter.ms: expected at most log.roll.ms ({segment_ms}), not {jitter_ms}")
