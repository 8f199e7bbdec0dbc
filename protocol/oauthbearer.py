"""The messages of OAUTHBEARER, for both sides. Sources: RFC 7628, KIP-255, OAuthBearerSaslServer.

client   n,[a=NAME],%x01 auth=Bearer TOKEN %x01 [EXTENSION=VALUE %x01]... %x01
server   nothing, or {"status":"invalid_token"}, to which the client answers %x01 before the login fails
"""

import re
from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

from warmlog.protocol.scram import SaslError, unescape

OAUTHBEARER: Final = "OAUTHBEARER"
ACKNOWLEDGED: Final = b"\x01"  # a client's answer to a rejection
REFUSAL: Final = b'{"status":"invalid_token"}'
MAX_MESSAGE_BYTES: Final = 64 << 10
MAX_PAIRS: Final = 64

_SEPARATOR: Final = "\x01"
_KEY: Final = re.compile(r"[A-Za-z]+")
_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_AUTH: Final = re.compile(r"([A-Za-z0-9_]+) +([-._~+/A-Za-z0-9]+=*)")
_AUTHORIZED: Final = re.compile(r"a=[^\x00,]+")


class ClientFirst(NamedTuple):
    """A client's first message. `authorized` is the requested principal, empty for the token's."""

    token: str
    authorized: str
    extensions: Mapping[str, str]

    def __repr__(self) -> str:
        return "ClientFirst(...)"


def parse_first(message: bytes) -> ClientFirst:
    """Parse a client's first message. Raises SaslError, which never quotes the message."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise SaslError(f"an OAUTHBEARER message has more than {MAX_MESSAGE_BYTES} bytes")
    try:
        header, separator, rest = message.decode().partition(_SEPARATOR)
    except UnicodeDecodeError:
        raise SaslError("a SASL message is not UTF-8") from None
    authorized = _authorized(header)
    if not separator or not rest.endswith(_SEPARATOR):
        raise SaslError("an OAUTHBEARER message ends with two %x01")
    pairs = _pairs(rest[:-1])
    auth = pairs.pop("auth", None)
    if auth is None:
        raise SaslError("an OAUTHBEARER message has no auth")
    match = _AUTH.fullmatch(auth)
    if match is None or match[1].lower() != "bearer":
        raise SaslError("expected auth=Bearer TOKEN in an OAUTHBEARER message")
    return ClientFirst(match[2], authorized, pairs)


def first_message(token: str) -> bytes:
    """Return a client's first message. Raises SaslError for a token that cannot be sent."""
    if _AUTH.fullmatch(f"Bearer {token}") is None:
        raise SaslError("a token may contain only letters, digits and -._~+/, and = at its end")
    return f"n,,{_SEPARATOR}auth=Bearer {token}{_SEPARATOR}{_SEPARATOR}".encode()


def log_in_with(token: str) -> Generator[bytes, bytes, None]:
    """Yield the messages of a client; send the server's answer to each. Raises SaslError."""
    if (yield first_message(token)):  # a rejection; the server answers the client's acknowledgement with an error
        yield ACKNOWLEDGED


def _authorized(header: str) -> str:
    """Read `n,[a=NAME],`."""
    flag, *rest = header.split(",")
    if flag not in {"n", "y"}:
        raise SaslError("channel binding is not supported" if flag.startswith("p=") else "invalid OAUTHBEARER message")
    if len(rest) != 2 or rest[1] or (rest[0] and _AUTHORIZED.fullmatch(rest[0]) is None):
        raise SaslError("an OAUTHBEARER message begins with n,, or n,a=NAME,")
    return unescape(rest[0][2:])


def _pairs(text: str) -> dict[str, str]:
    """Read `NAME=VALUE %x01` pairs."""
    *pairs, end = text.split(_SEPARATOR, MAX_PAIRS + 1)
    if len(pairs) > MAX_PAIRS:
        raise SaslError(f"an OAUTHBEARER message has more than {MAX_PAIRS} extensions")
    values: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if _KEY.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise SaslError("invalid extension in an OAUTHBEARER message")
        if name in values:
            raise SaslError("an extension occurs twice in an OAUTHBEARER message")
        values[name] = value
    if end:
        raise SaslError("an OAUTHBEARER message ends with two %x01")
    return values
