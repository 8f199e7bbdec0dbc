"""Connection profiles: names for the addresses of clusters, in `~/.config/warmlog/profiles.toml`.

[production]
native = "broker1:9091,broker2:9091"
kafka = "broker1:9092,broker2:9092"
tls_ca = "ca.pem"
tls_certificate = "client.pem"
user = "alice"
password_file = "/home/alice/.config/warmlog/password"
mechanism = "SCRAM-SHA-512"

[tokens]
token_endpoint_url = "https://issuer/token"
client_id = "alice"
client_secret_file = "/home/alice/.config/warmlog/secret"
token_scope = "kafka"
"""

import os
from collections.abc import Mapping
from pathlib import Path

import click

from warmlog.cli.failure import CannotStart

VARIABLES = {
    "native": "WARMLOG_NATIVE",
    "kafka": "WARMLOG_KAFKA",
    "tls_ca": "WARMLOG_TLS_CA",
    "tls_certificate": "WARMLOG_TLS_CERTIFICATE",
    "user": "WARMLOG_USER",
    "password_file": "WARMLOG_PASSWORD_FILE",
    "mechanism": "WARMLOG_SASL_MECHANISM",
    "delegation_token": "WARMLOG_DELEGATION_TOKEN",
    "token_file": "WARMLOG_TOKEN_FILE",
    "token_endpoint_url": "WARMLOG_TOKEN_ENDPOINT_URL",
    "token_scope": "WARMLOG_TOKEN_SCOPE",
    "token_ca": "WARMLOG_TOKEN_CA",
    "client_id": "WARMLOG_CLIENT_ID",
    "client_secret_file": "WARMLOG_CLIENT_SECRET_FILE",
}


def profiles_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the file, which may not exist."""
    folder = environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "warmlog" / "profiles.toml"


def read_profile(path: Path, name: str) -> dict[str, str]:
    """Return the addresses of a profile. Raises CannotStart."""
    import tomllib  # imported only if a profile is used

    try:
        profiles = tomllib.loads(path.read_text())
    except OSError as error:
        raise CannotStart(f"profile {name!r}: {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CannotStart(f"{path}: {error}") from error
    profile = profiles.get(name)
    if not isinstance(profile, dict):
        known = ", ".join(sorted(profiles)) or "none"
        raise CannotStart(f"no profile {name!r} in {path}, which has: {known}")
    for key, address in profile.items():
        if key not in VARIABLES or not isinstance(address, str):
            raise CannotStart(f"{path}: profile {name!r}: {key} is not one of {', '.join(VARIABLES)} with a text")
    return profile


def use_profile(_context: click.Context, _parameter: click.Parameter, name: str | None) -> None:
    """Make the addresses of a profile the defaults of `--native` and `--kafka`. Raises CannotStart."""
    if name is not None:
        for key, address in read_profile(profiles_file(os.environ), name).items():
            os.environ[VARIABLES[key]] = address
