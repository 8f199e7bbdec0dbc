"""TLS of the commands that talk to a broker: the options of `warmlog` itself, and what they mean."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from warmlog.cli.failure import CannotStart

if TYPE_CHECKING:
    import ssl

CA, CERTIFICATE = "WARMLOG_TLS_CA", "WARMLOG_TLS_CERTIFICATE"
SYSTEM = "system"


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
    import ssl  # takes time that most commands need not spend

    try:
        context = ssl.create_default_context(cafile=None if ca == SYSTEM else ca)
    except ssl.SSLError:
        raise CannotStart(f"--tls-ca: {ca} has no certificate in PEM format") from None
    except OSError as error:
        raise CannotStart(f"--tls-ca: {ca}: {error.strerror}") from None
    if certificate:
        try:
            context.load_cert_chain(certificate, password=_no_password)
        except _EncryptedKeyError:
            raise CannotStart(f"--tls-certificate: the key in {certificate} is encrypted") from None
        except ssl.SSLError:
            raise CannotStart(
                f"--tls-certificate: {certificate} needs a private key and the certificate that belongs to it (PEM)"
            ) from None
        except OSError as error:
            raise CannotStart(f"--tls-certificate: {certificate}: {error.strerror}") from None
    return context


class _EncryptedKeyError(Exception):
    """A password was asked for."""


def _no_password() -> str:
    raise _EncryptedKeyError
