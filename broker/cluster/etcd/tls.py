"""TLS to etcd: a context made of files, and what the failures of a handshake mean.

A client's certificate may be issued for hours only: whoever renews it replaces the files, and new connections use them.
"""

import logging
import os
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import trio

CA_FILE: Final = "warmlog.cluster.etcd.ca.file"
CERTIFICATE_FILE: Final = "warmlog.cluster.etcd.certificate.file"
KEY_FILE: Final = "warmlog.cluster.etcd.key.file"

# OpenSSL's X509_V_ERR_: a certificate that is self-signed, or whose issuer is not known.
_UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21})

_Versions: TypeAlias = tuple[tuple[int, int, int], ...]

logger = logging.getLogger(__name__)


class TlsFileError(Exception):
    """A file cannot be used. `str()` is one line that names its setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files. No `ca`: the system's; no `certificate` and `key`: the client shows none."""

    ca: str = ""
    certificate: str = ""
    key: str = ""

    def load(self) -> ssl.SSLContext:
        """Return a client's context. Raises TlsFileError."""
        context = _trusting(CA_FILE, self.ca)
        if self.certificate:
            _trusting(CERTIFICATE_FILE, self.certificate)  # tells a bad certificate from a bad key
            self._add_certificate(context)
        return context

    def versions(self) -> _Versions:
        """Return a value that changes when a file is replaced."""
        found = []
        for path in filter(None, (self.ca, self.certificate, self.key)):
            with suppress(OSError):
                status = os.stat(path)
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return tuple(found)

    def _add_certificate(self, context: ssl.SSLContext) -> None:
        try:
            os.close(os.open(self.key, os.O_RDONLY))
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except _EncryptedKeyError:
            raise TlsFileError(f"{KEY_FILE}: {self.key} is encrypted: give a key without a password") from None
        except ssl.SSLError as error:
            if "MISMATCH" in (error.reason or ""):
                raise TlsFileError(f"{KEY_FILE}: {self.key} does not belong to {self.certificate}") from None
            raise TlsFileError(f"{KEY_FILE}: {self.key} is not a private key in PEM format") from None
        except OSError as error:
            raise TlsFileError(f"{KEY_FILE}: {self.key}: {error.strerror}") from None


NO_FILES: Final = TlsFiles()


class ClientTls:
    """The context for new connections, loaded again when its files were replaced."""

    def __init__(self, files: TlsFiles) -> None:
        """Load the files. Raises TlsFileError."""
        self._files = files
        self._versions = files.versions()
        self._context = files.load()

    async def context(self) -> ssl.SSLContext:
        """Return the context for a connection."""
        return self._context if self._files == NO_FILES else await trio.to_thread.run_sync(self._current)

    def _current(self) -> ssl.SSLContext:
        versions = self._files.versions()
        if versions != self._versions:
            self._versions = versions
            try:
                self._context = self._files.load()
            except TlsFileError as error:
                logger.warning("still using the previous certificates: %s", error)
            else:
                logger.info("TLS to etcd uses the new certificates")
        return self._context


class _EncryptedKeyError(Exception):
    """A password was asked for."""


def _no_password() -> str:
    raise _EncryptedKeyError


def _trusting(setting: str, path: str) -> ssl.SSLContext:
    """Return a context that trusts the certificates in a file, or the system's. Raises TlsFileError."""
    try:
        return ssl.create_default_context(cafile=path or None)
    except ssl.SSLError:
        raise TlsFileError(f"{setting}: {path} has no certificate in PEM format") from None
    except OSError as error:
        raise TlsFileError(f"{setting}: {path}: {error.strerror}") from None


def failure_in_words(error: ssl.SSLError) -> str:
    """Return why a handshake failed, or what ended a connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = f"; is its CA in {CA_FILE}?" if error.verify_code in _UNKNOWN_ISSUER else ""
        return f"its certificate is not valid: {error.verify_message}{hint}"
    reason = error.reason or ""
    if "ALERT" in reason:
        alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
        hint = f"; see {CERTIFICATE_FILE}" if "certificate" in alert or alert == "unknown ca" else ""
        return f"it refuses the TLS connection: {alert}{hint}"
    return f"TLS failed: {reason.replace('_', ' ').lower() or error}"


def is_permanent(error: BaseException) -> bool:
    """Whether another attempt would fail alike, since one side does not accept the other."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLSyscallError)
