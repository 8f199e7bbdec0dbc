"""SCRAM: derived keys, messages, and the client's side. Sources: RFC 5802, RFC 7677.

    client   n,,n=USER,r=CLIENT_NONCE
    server   r=CLIENT_NONCE SERVER_NONCE,s=SALT,i=ITERATIONS
    client   c=biws,r=CLIENT_NONCE SERVER_NONCE,p=PROOF
    server   v=SIGNATURE

    SaltedPassword  PBKDF2(password, salt, iterations)
    ClientKey       HMAC(SaltedPassword, "Client Key")       StoredKey  H(ClientKey), which the server stores
    ServerKey       HMAC(SaltedPassword, "Server Key")
    AuthMessage     the first three messages without the client's header and the proof
    Proof           ClientKey XOR HMAC(StoredKey, AuthMessage)

As in Kafka, passwords and names are used as UTF-8 without SASLprep, and there is no channel binding.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from warmlog.protocol.errors import ErrorCode, ProtocolError

MIN_ITERATIONS: Final = 4096
DEFAULT_ITERATIONS: Final = 8192  # for new credentials
MAX_ITERATIONS: Final = 16_384  # Kafka's limit for credentials
SALT_BYTES: Final = 24  # for new credentials
PLAIN: Final = "PLAIN"
GS2_HEADER: Final = "n,,"
OF_TOKEN: Final = "tokenauth=true"  # noqa: S105  # the extension of a client that logs in with a delegation token


class SaslError(ProtocolError):
    """A SASL exchange failed. The text gives the reason and contains no secret."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A variant of SCRAM. `number`: Kafka's number in requests about credentials."""

    name: str
    number: int
    algorithm: str

    @property
    def key_bytes(self) -> int:
        """Length of keys and proofs."""
        return hashlib.new(self.algorithm).digest_size

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Return the salted password. Takes 1 ms per 4,096 iterations or more, without the GIL."""
        return hashlib.pbkdf2_hmac(self.algorithm, password.encode(), salt, iterations)

    def mac(self, key: bytes, message: bytes) -> bytes:
        """Return HMAC(key, message)."""
        return hmac.digest(key, message, self.algorithm)

    def hash(self, message: bytes) -> bytes:
        """Return H(message)."""
        return hashlib.new(self.algorithm, message).digest()

    def client_key(self, salted_password: bytes) -> bytes:
        """Return ClientKey."""
        return self.mac(salted_password, b"Client Key")

    def stored_key(self, salted_password: bytes) -> bytes:
        """Return StoredKey."""
        return self.hash(self.client_key(salted_password))

    def server_key(self, salted_password: bytes) -> bytes:
        """Return ServerKey."""
        return self.mac(salted_password, b"Server Key")


SCRAM_SHA_256: Final = Mechanism("SCRAM-SHA-256", 1, "sha256")
SCRAM_SHA_512: Final = Mechanism("SCRAM-SHA-512", 2, "sha512")
MECHANISMS: Final[Mapping[str, Mechanism]] = MappingProxyType({
    each.name: each for each in (SCRAM_SHA_256, SCRAM_SHA_512)
})  # fmt: skip


class ScramClient:
    """The client's side of one exchange: `first`, then `final` with the server's first message, then `verify`."""

    def __init__(self, mechanism: Mechanism, user: str, password: str, nonce: str, *, is_token: bool = False) -> None:
        """`nonce`: printable ASCII without commas, never used before.

        `is_token`: the user and the password are the id and the HMAC of a delegation token.
        """
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={escape(user)},r={nonce}" + (f",{OF_TOKEN}" if is_token else "")
        self._signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return f"{GS2_HEADER}{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """Return the final message. Raises SaslError for an invalid challenge."""
        fields = parse_fields(challenge, "r", "s", "i")
        nonce, salt = fields["r"], decode(fields["s"])
        iterations = int(fields["i"]) if fields["i"].isdecimal() and len(fields["i"]) < 10 else 0
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslError("the server's nonce does not continue the client's")
        if iterations < MIN_ITERATIONS:  # fewer iterations would let a server guess the password more cheaply
            raise SaslError(f"the server requests {fields['i']:.20} iterations, less than {MIN_ITERATIONS}")
        if iterations > 100 * MAX_ITERATIONS:
            raise SaslError(f"the server requests {iterations} iterations, more than {100 * MAX_ITERATIONS}")
        mechanism = self._mechanism
        salted = mechanism.salted_password(self._password, salt, iterations)
        bare = f"c={encode(GS2_HEADER.encode())},r={nonce}"
        message = b",".join((self._bare.encode(), challenge, bare.encode()))
        self._signature = mechanism.mac(mechanism.server_key(salted), message)
        proof = xor(mechanism.client_key(salted), mechanism.mac(mechanism.stored_key(salted), message))
        return f"{bare},p={encode(proof)}".encode()

    def verify(self, answer: bytes) -> None:
        """Raise SaslError unless the server also knows the password."""
        if answer.startswith(b"e="):
            raise SaslError(f"the server refused: {answer[2:102].decode(errors='replace')}")
        signature = decode(parse_fields(answer, "v")["v"])
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise SaslError("the server does not know the password: it may be an impostor")


def escape(user: str) -> str:
    """Encode a user name for a message."""
    return user.replace("=", "=3D").replace(",", "=2C")


def unescape(text: str) -> str:
    """Decode a user name of a message. Raises SaslError."""
    if "=" in text.replace("=2C", "").replace("=3D", ""):
        raise SaslError("invalid user name in a SCRAM message")
    return text.replace("=2C", ",").replace("=3D", "=")


def parse_fields(message: bytes, *names: str) -> dict[str, str]:
    """Parse `NAME=VALUE` pairs: these names in this order; others may follow. Raises SaslError."""
    return fields_of(text_of(message), *names)


def fields_of(text: str, *names: str) -> dict[str, str]:
    """Parse the pairs of a message already decoded to text. Raises SaslError."""
    fields = text.split(",", len(names))[: len(names)]
    pairs = [each.partition("=") for each in fields]
    if [name for name, _, _ in pairs] != list(names) or not all(value for _, _, value in pairs):
        raise SaslError(f"expected a SCRAM message with {', '.join(names)}")
    return {name: value for name, _, value in pairs}


def text_of(message: bytes) -> str:
    """Decode UTF-8. Raises SaslError."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise SaslError("a SASL message is not UTF-8") from None
    if "\0" in text:
        raise SaslError("a SCRAM message contains a zero byte")
    return text


def encode(data: bytes) -> str:
    """Return base64."""
    return b64encode(data).decode("ascii")


def decode(text: str) -> bytes:
    """Decode base64. Raises SaslError."""
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise SaslError("invalid base64 in a SCRAM message") from None


def xor(left: bytes, right: bytes) -> bytes:
    """Return the exclusive or of two byte strings of equal length."""
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).to_bytes(len(left), "big")


def log_in(
    mechanism: str, user: str, password: str, nonce: str, *, is_token: bool = False
) -> Generator[bytes, bytes, None]:
    """Yield the messages of a client, SCRAM's or PLAIN's; send the server's answer to each. Raises SaslError.

    `is_token`: user and password are the id and the HMAC of a delegation token, which PLAIN does not support. Sending
    an answer takes milliseconds (PBKDF2).
    """
    if mechanism == PLAIN and is_token:
        raise SaslError("delegation tokens log in by SCRAM-SHA-256 or SCRAM-SHA-512, not by PLAIN")
    if mechanism == PLAIN:
        yield b"\0".join((b"", user.encode(), password.encode()))
        return
    if mechanism not in MECHANISMS:
        raise SaslError(f"unknown SASL mechanism {mechanism!r}; choose one of {', '.join((*MECHANISMS, PLAIN))}")
    client = ScramClient(MECHANISMS[mechanism], user, password, nonce, is_token=is_token)
    client.verify((yield client.final((yield client.first()))))
