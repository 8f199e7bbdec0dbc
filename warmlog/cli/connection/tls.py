"""TLS of the commands that talk to a broker: the options of `warmlog` itself, and what they mean."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from warmlog.cli.failure import CannotStart

if TYPE_CHECKING:
    import ssl

CA, CERTIFICATE = "WARMLOG_TLS_CA", "WARMLOG_TLS_CERTIFICATE"
SYSTEM = "system"  # the value of CA for the system's certificates


def use_file(_context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Make a file what every connection uses."""
    if path is not None:
        os.environ[CA if parameter.name == "tls_ca" else CERTIFICATE] = path


def context_from(environ: Mapping[str, str]) -> "ssl.SSLContext | None":
    """Return the context for connections, None if they are not encrypted. Raises CannotStart."""
    ca, certificate = environ.get(CA, ""), environ.get(CERTIFICATE, "")
    if not ca:
        if certificate:
            raise CannotStart("--tls-certificate: needs --tls-ca")
        return None
    from warmlog.client.files import ClientFileError, tls_context  # imports ssl: time that most commands need not spend

    try:
        return tls_context(ca, certificate)
    except ClientFileError as error:
        raise CannotStart(f"--tls-{error.setting}: {error}") from None
