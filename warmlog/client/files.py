"""Files for connections: certificates and passwords."""

import ssl
from pathlib import Path
from stat import S_IMODE, S_IROTH

SYSTEM = "system"


class ClientFileError(ValueError):
    """A file cannot be used. `setting`: the parameter that names it; the text describes the problem."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting


def tls_context(ca: str, certificate: str | None = None) -> ssl.SSLContext:
    """Return a context that verifies brokers with the certificates in the file `ca`, or with the system's.

    `certificate`: a file with the client's private key and certificate. Both are PEM. Raises ClientFileError.
    """
    try:
        context = ssl.create_default_context(cafile=None if ca == SYSTEM else ca)
    except ssl.SSLError:
        raise ClientFileError("ca", f"{ca} has no certificate in PEM format") from None
    except OSError as error:
        raise ClientFileError("ca", f"{ca}: {error.strerror}") from None
    if certificate:
        try:
            context.load_cert_chain(certificate, password=_no_password)
        except _EncryptedKeyError:
            raise ClientFileError("certificate", f"the key in {certificate} is encrypted") from None
        except ssl.SSLError:
            message = f"{certificate} needs a private key and the certificate that belongs to it (PEM)"
            raise ClientFileError("certificate", message) from None
        except OSError as error:
            raise ClientFileError("certificate", f"{certificate}: {error.strerror}") from None
    return context


class _EncryptedKeyError(Exception):
    """The key is encrypted: a password was requested."""


def _no_password() -> str:
    raise _EncryptedKeyError


def read_password(path: Path) -> str:
    """Return the first line of a file; reject a file that everyone may read. Raises ClientFileError."""
    try:
        if S_IMODE(path.stat().st_mode) & S_IROTH:
            message = f"{path}: every user of this machine may read it: chmod 600 {path}"
            raise ClientFileError("password_file", message)
        text = path.read_text()
    except OSError as error:
        raise ClientFileError("password_file", f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ClientFileError("password_file", f"{path}: not UTF-8") from None
    password = text.partition("\n")[0]
    if not password:
        raise ClientFileError("password_file", f"{path}: the first line is empty; it must be a password")
    return password
