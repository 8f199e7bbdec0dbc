"""Explain failures of TLS connections to etcd, and name the settings that fix them."""

import ssl
from typing import Final

PREFIX: Final = "warmlog.cluster.etcd"
# OpenSSL's X509_V_ERR_: a certificate that is self-signed, or whose issuer is not known.
_UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21})


def failure_in_words(error: ssl.SSLError) -> str:
    """Return why a handshake failed, or what ended a connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = f"; is its CA in {PREFIX}.ca.file?" if error.verify_code in _UNKNOWN_ISSUER else ""
        return f"its certificate is not valid: {error.verify_message}{hint}"
    reason = error.reason or ""
    if "ALERT" in reason:
        alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
        hint = f"; see {PREFIX}.certificate.file" if "certificate" in alert or alert == "unknown ca" else ""
        return f"it refuses the TLS connection: {alert}{hint}"
    return f"TLS failed: {reason.replace('_', ' ').lower() or error}"


def is_permanent(error: BaseException) -> bool:
    """Return whether another attempt would fail in the same way, because one side rejects the other."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLSyscallError)
