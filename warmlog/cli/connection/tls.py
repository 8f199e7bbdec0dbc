"""The TLS options of `warmlog`, for all commands that connect to a broker."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from warmlog.cli.failure import CannotStart

if TYPE_CHECKING:
    import ssl

CA, CERTIFICATE = "WARMLOG_TLS_CA", "WARMLOG_TLS_CERTIFICATE"
SYSTEM = "system"  # value of the CA option that selects the system's certificates


def use_file(_context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Set a file for every connection."""
    if path is not None:
        os.environ[CA if parameter.name == "tls_ca" else CERTIFICATE] = path


def context_from(environ: Mapping[str, str]) -> "ssl.SSLContext | None":
    """Return the context for connections, or None if they are not encrypted. Raises CannotStart."""
    ca, certificate = environ.get(CA, ""), environ.get(CERTIFICATE, "")
    if not ca:
        if certificate:
            raise CannotStart("--tls-certificate: needs --tls-ca")
        return None
    from warmlog.client.files import ClientFileError, tls_context  # imports ssl, which most commands do not need

    try:
        return tls_context(ca, certificate)
    except ClientFileError as error:
        raise CannotStart(f"--tls-{error.setting}: {error}") from None
