"""TLS of a broker as a client of another system: a context from the files in the settings.

A client's certificate may be valid for hours only: its renewal replaces the files, and new connections use them.
"""

import logging
import os
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import trio

_Versions: TypeAlias = tuple[tuple[int, int, int], ...]

logger = logging.getLogger(__name__)


class TlsFileError(Exception):
    """A file cannot be used. `str()` is one line that names its setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files, which the settings PREFIX.ca.file, PREFIX.certificate.file and PREFIX.key.file give.

    Without `ca`, the system's CAs are trusted; without `certificate` and `key`, the client presents none.
    """

    prefix: str
    ca: str = ""
    certificate: str = ""
    key: str = ""

    def load(self) -> ssl.SSLContext:
        """Return a client's context. Raises TlsFileError."""
        context = _trusting(f"{self.prefix}.ca.file", self.ca)
        if self.certificate:
            _trusting(f"{self.prefix}.certificate.file", self.certificate)  # a bad certificate is not a bad key
            self._add_certificate(context)
        return context

    def versions(self) -> _Versions:
        """Return a value that changes when a file is replaced."""
        versions = []
        for path in filter(None, (self.ca, self.certificate, self.key)):
            with suppress(OSError):
                status = os.stat(path)
                versions.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return tuple(versions)

    def _add_certificate(self, context: ssl.SSLContext) -> None:
        setting = f"{self.prefix}.key.file"
        try:
            os.close(os.open(self.key, os.O_RDONLY))
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except _EncryptedKeyError:
            raise TlsFileError(f"{setting}: {self.key} is encrypted: give a key without a password") from None
        except ssl.SSLError as error:
            if "MISMATCH" in (error.reason or ""):
                raise TlsFileError(f"{setting}: {self.key} does not belong to {self.certificate}") from None
            raise TlsFileError(f"{setting}: {self.key} is not a private key in PEM format") from None
        except OSError as error:
            raise TlsFileError(f"{setting}: {self.key}: {error.strerror}") from None


class ClientTls:
    """The context for new connections, reloaded after its files were replaced."""

    def __init__(self, files: TlsFiles) -> None:
        """Load the files. Raises TlsFileError."""
        self._files = files
        self._versions = files.versions()
        self._context = files.load()

    async def context(self) -> ssl.SSLContext:
        """Return the context for a connection."""
        files = self._files
        return await trio.to_thread.run_sync(self._current) if files.ca or files.certificate else self._context

    def _current(self) -> ssl.SSLContext:
        versions = self._files.versions()
        if versions != self._versions:
            self._versions = versions
            try:
                self._context = self._files.load()
            except TlsFileError as error:
                logger.warning("still using the previous certificates: %s", error)
            else:
                logger.info("%s: new connections use the replaced files", self._files.prefix)
        return self._context


class _EncryptedKeyError(Exception):
    """OpenSSL requested a password."""


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
