"""TLS contexts from PEM text and files, replaced when the files change.

A context is tested with a handshake in memory before it is used. So an expired certificate, a key that does not belong
to it, and incompatible suites are detected at startup, and a bad replacement never replaces a good one.
"""

import logging
import os
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeAlias

import trio

from warmlog.broker.security.ssl_principals import PrincipalMapper
from warmlog.broker.settings.tls import CONVERT, TLS_1_2, TLS_1_3, TlsSettings

CHECK_S: Final = 5.0  # interval between checks for replaced files
MAX_FILE_BYTES: Final = 1 << 20

_EXPIRED, _NOT_YET_VALID, _BAD_PURPOSE = 10, 9, 26  # codes of OpenSSL's X509_V_ERR_
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_JKS, _PKCS12 = b"\xfe\xed\xfe\xed", b"\x30\x82"
_VERSIONS: Final = {TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

_FileVersions: TypeAlias = tuple[tuple[int, int, int], ...]

logger = logging.getLogger(__name__)


class TlsError(Exception):
    """A certificate, key or setting cannot be used. `str()` is one line that names the setting."""


class ServerTls:
    """The context of a listener for new connections. Open connections keep theirs."""

    def __init__(self, listener: str, settings: TlsSettings) -> None:
        """Load and test the certificate and key. Raises TlsError."""
        self._listener = listener
        self._settings = settings
        self._versions = _versions(settings)
        try:
            self.principals = PrincipalMapper(settings.principal_mapping_rules)
        except ValueError as error:
            raise TlsError(f"{settings.names['ssl.principal.mapping.rules']}: {error}") from None
        self.context, self.expires_at = load_context(settings)  # seconds since the epoch
        self.client_context = load_client_context(settings)  # for connections to other brokers

    async def run(self) -> None:
        """Load replaced files until cancelled."""
        while True:
            await trio.sleep(CHECK_S)
            await trio.to_thread.run_sync(self.refresh)

    def refresh(self) -> None:
        """Load the files again if they were replaced. Call it in a worker thread."""
        versions = _versions(self._settings)
        if versions == self._versions:
            return
        self._versions = versions
        try:
            self.context, self.expires_at = load_context(self._settings)
            self.client_context = load_client_context(self._settings)
        except TlsError as error:
            logger.warning("%s listener: still using the previous certificate: %s", self._listener, error)
        else:
            expiry = time.strftime("%Y-%m-%d", time.gmtime(self.expires_at))
            logger.info("%s listener: using the new certificate, which expires on %s", self._listener, expiry)


def load_context(settings: TlsSettings) -> tuple[ssl.SSLContext, float]:
    """Return a server's context, and the expiry time of its certificate. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    versions = sorted(_VERSIONS[name] for name in settings.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    if settings.ciphers:
        try:
            context.set_ciphers(settings.ciphers)
        except ssl.SSLError:
            raise TlsError(f"{settings.names['ssl.cipher.suites']}: OpenSSL does not know this suite") from None
    certificates = _load_key(context, settings)
    expires_at = _try(context, certificates[0], settings)
    context.verify_mode = _VERIFY[settings.client_auth]
    if settings.client_auth != "none":
        _load_trusted(context, settings)
    return context, expires_at


def load_client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context with which a broker connects to the same listener of another one. Raises TlsError.

    It trusts the same CAs, or the system's if none are set, verifies the host name, and presents the certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load_key(context, settings)
    if settings.truststore_location or settings.truststore_certificates:
        _load_trusted(context, settings)
    else:
        context.load_default_certs()
    return context


def _load_key(context: ssl.SSLContext, settings: TlsSettings) -> list[str]:
    """Load the certificate, its chain and the key; return the certificates."""
    if settings.keystore_location:
        where = f"{settings.names['ssl.keystore.location']}: {settings.keystore_location}"
        chain = key = _blocks(_read(settings.keystore_location, where), where)
        at_key = where
    else:
        where, at_key = settings.names["ssl.keystore.certificate.chain"], settings.names["ssl.keystore.key"]
        chain, key = _blocks(settings.certificate_chain, where), _blocks(settings.key, at_key)
    certificates = [text for kind, text in chain if kind == "CERTIFICATE"]
    keys = [text for kind, text in key if kind.endswith("PRIVATE KEY")]
    if not certificates:
        raise TlsError(f"{where}: has no certificate")
    if not keys:
        raise TlsError(f"{at_key}: has no private key")
    if not settings.key_password and ("ENCRYPTED" in keys[0]):
        raise TlsError(f"{at_key}: the key is encrypted: set {settings.names['ssl.key.password']}")
    _load_certificates(where, certificates)
    with _as_file(f"{keys[0]}\n" + "\n".join(certificates)) as path:
        try:
            context.load_cert_chain(path, password=settings.key_password)
        except ssl.SSLError as error:
            reason = error.reason or ""
            if "MISMATCH" in reason:
                raise TlsError(f"{at_key}: the key does not belong to the first certificate of {where}") from None
            if settings.key_password and "ENCRYPTED" in keys[0]:
                raise TlsError(f"{settings.names['ssl.key.password']}: does not decrypt the key") from None
            words = reason.replace("_", " ").lower() or "not a private key"
            raise TlsError(f"{at_key}: cannot use the key: {words}") from None
    return certificates


def _load_certificates(where: str, certificates: list[str]) -> ssl.SSLContext:
    """Return a client's context that trusts these certificates, of CAs or not. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata="\n".join(certificates))
    except (ssl.SSLError, ValueError):
        raise TlsError(f"{where}: has a certificate that cannot be read") from None
    return context


def _load_trusted(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Load the CAs that client certificates are verified with."""
    where, text = settings.names["ssl.truststore.certificates"], settings.truststore_certificates
    if settings.truststore_location:
        where = f"{settings.names['ssl.truststore.location']}: {settings.truststore_location}"
        text = _read(settings.truststore_location, where)
    certificates = [text for kind, text in _blocks(text, where) if kind == "CERTIFICATE"]
    if not certificates:
        raise TlsError(f"{where}: has no certificate")
    _load_certificates(where, certificates)
    context.load_verify_locations(cadata="\n".join(certificates))


def _try(context: ssl.SSLContext, certificate: str, settings: TlsSettings) -> float:
    """Perform a handshake in memory; return the certificate's expiry time. Raises TlsError."""
    names = settings.names
    where = names["ssl.keystore.certificate.chain"]
    if settings.keystore_location:
        where = f"{names['ssl.keystore.location']}: {settings.keystore_location}"
    trusting = _load_certificates(where, [certificate])
    trusting.set_ciphers("ALL:@SECLEVEL=0")
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(here, there, server_side=True)
    client = trusting.wrap_bio(there, here)
    try:
        for _ in range(4):
            for end in (client, server):
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            raise TlsError(f"{where}: the certificate has expired") from None
        if error.verify_code == _NOT_YET_VALID:
            raise TlsError(f"{where}: the certificate is not valid yet") from None
        if error.verify_code == _BAD_PURPOSE:
            raise TlsError(f"{where}: the certificate is not for servers (extendedKeyUsage)") from None
        raise TlsError(f"{where}: the certificate is not valid: {error.verify_message}") from None
    except ssl.SSLError as error:
        if "NO_SHARED_CIPHER" in (error.reason or ""):
            suites = names["ssl.cipher.suites"]
            raise TlsError(f"{suites}: none of them works with this certificate and these protocols") from None
        raise TlsError(f"{where}: TLS does not work with it: {(error.reason or str(error)).lower()}") from None
    presented = client.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(presented["notAfter"]))


def _read(path: str, where: str) -> str:
    """Return the text of a file. Raises TlsError."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise TlsError(f"{where}: {error.strerror}") from None
    for mark, name in ((_JKS, "JKS"), (_PKCS12, "PKCS12")):
        if data.startswith(mark):
            raise TlsError(f"{where}: is not in PEM format but {name}{CONVERT[name]}")
    return data.decode("utf-8", "replace")


def _blocks(text: str, where: str) -> list[tuple[str, str]]:
    """Return the PEM blocks of a text with their kinds. Line breaks may be spaces, as in Kafka. Raises TlsError."""
    blocks = []
    for match in _BLOCK.finditer(text):
        kind, body = match[1], match[2].strip()
        if ":" not in body:  # otherwise it has headers on separate lines
            body = "\n".join(_lines("".join(body.split())))
        blocks.append((kind, f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----"))
    if not blocks:
        raise TlsError(f"{where}: is not in PEM format")
    return blocks


def _lines(encoded: str) -> Iterator[str]:
    for start in range(0, len(encoded), 64):
        yield encoded[start : start + 64]


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Pass a text to OpenSSL as a file in memory."""
    fd = os.memfd_create("key")
    try:
        os.write(fd, text.encode())
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _versions(settings: TlsSettings) -> _FileVersions:
    """Return a value that changes when a file is replaced."""
    versions = []
    for path in filter(None, (settings.keystore_location, settings.truststore_location)):
        with suppress(OSError):
            status = os.stat(path)
            versions.append((status.st_mtime_ns, status.st_ino, status.st_size))
    return tuple(versions)
