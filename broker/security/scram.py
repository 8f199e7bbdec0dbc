"""The broker's side of SCRAM, and of PLAIN with the credentials of SCRAM. No clock, no I/O.

Invariants:
1. An unknown user gets the same answers as a known one with a wrong password. Its salt is a function of its name;
   number of iterations and length of the salt are those of most users. Checking its password takes as long.
2. The text of an error never contains data of the client.
3. A login completes only while its credential is the current one: not if the user, the password or the token was
   removed or changed since the exchange began. Kafka does not check this.
"""

import hmac
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import Struct

from warmlog.protocol.scram import (
    DEFAULT_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    OF_TOKEN,
    SALT_BYTES,
    Mechanism,
    SaslError,
    decode,
    encode,
    fields_of,
    text_of,
    unescape,
    xor,
)

MAX_NAME: Final = 1024  # characters of a user name or a nonce
WRONG: Final = "invalid credentials"


class Shape(NamedTuple):
    """The properties of a credential that an answer of SCRAM reveals."""

    iterations: int
    salt_bytes: int


class ScramCredential(Struct, frozen=True, kw_only=True, gc=False):
    """The stored credential of a user for a mechanism. A reader of it can try passwords, and impersonate the broker."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def of_salted(cls, mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int) -> "ScramCredential":
        """Derive the credential from a salted password."""
        return cls(
            salt=salt,
            stored_key=mechanism.stored_key(salted),
            server_key=mechanism.server_key(salted),
            iterations=iterations,
        )

    def fits(self, mechanism: Mechanism, password: str) -> bool:
        """Return whether a password is right. Intentionally slow (PBKDF2), without the GIL."""
        salted = mechanism.salted_password(password, self.salt, self.iterations)
        return hmac.compare_digest(mechanism.stored_key(salted), self.stored_key)

    @property
    def shape(self) -> Shape:
        """The properties that clients can see."""
        return Shape(self.iterations, len(self.salt))

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations}, ...)"


class TokenLogin(NamedTuple):
    """The data for a login with a delegation token. `expires_at`: seconds since 1970."""

    credential: ScramCredential
    owner: str
    expires_at: float


Lookup = Callable[[str, str], ScramCredential | None]  # (user, mechanism)
TokenLookup = Callable[[str, str], TokenLogin | None]  # (token id, mechanism)


USUAL: Final = Shape(DEFAULT_ITERATIONS, SALT_BYTES)


class UnknownUsers:
    """Credentials of users that do not exist, in the shape of most credentials. No password fits them."""

    __slots__ = ("_secret", "_shapes")

    def __init__(self, secret: Callable[[], bytes], shapes: Callable[[str], Counter[Shape]] | None = None) -> None:
        """`shapes` returns the number of credentials of a mechanism by shape."""
        self._secret = secret
        self._shapes = shapes

    def of_tokens(self, token_id: str, mechanism: Mechanism) -> ScramCredential:
        """Return the credential that a delegation token appears to have."""
        return self._credential(token_id, mechanism, Shape(MIN_ITERATIONS, SALT_BYTES))

    def credential(self, user: str, mechanism: Mechanism) -> ScramCredential:
        """Return the credential that a user appears to have."""
        shapes = Counter[Shape]() if self._shapes is None else self._shapes(mechanism.name)
        usual = max(shapes, key=lambda each: (shapes[each], each), default=USUAL)
        return self._credential(user, mechanism, usual)

    def _credential(self, user: str, mechanism: Mechanism, usual: Shape) -> ScramCredential:
        seed = mechanism.mac(self._secret(), f"{mechanism.name} {user}".encode())
        blocks = -(-usual.salt_bytes // mechanism.key_bytes)
        salt = b"".join([mechanism.mac(seed, b"salt %d" % number) for number in range(blocks)])
        return ScramCredential(
            salt=salt[: usual.salt_bytes],
            stored_key=mechanism.mac(seed, b"stored key"),
            server_key=mechanism.mac(seed, b"server key"),
            iterations=usual.iterations,
        )

    def most_iterations(self, mechanism: Mechanism) -> int:
        """Return the highest number of iterations that a credential of a mechanism has."""
        shapes = Counter[Shape]() if self._shapes is None else self._shapes(mechanism.name)
        return max([each.iterations for each in shapes], default=DEFAULT_ITERATIONS)


class ScramServer:
    """One exchange: call `respond` with each message of the client. `user` is known when `is_complete`.

    `token` is set for a login with a delegation token; `user` is then its owner.
    """

    __slots__ = ("_bare", "_binding", "_challenge", "_credential", "_lookup", "_mechanism", "_name", "_nonce",
                 "_tokens", "_unknown", "is_complete", "token", "user")  # fmt: skip

    def __init__(
        self, mechanism: Mechanism, lookup: Lookup, unknown: UnknownUsers, nonce: str,
        tokens: TokenLookup | None = None,
    ) -> None:  # fmt: skip
        """`tokens` looks up delegation tokens, if enabled."""
        self._tokens = tokens
        self.token: TokenLogin | None = None
        self._mechanism = mechanism
        self._lookup = lookup
        self._unknown = unknown
        self._nonce = nonce  # the server's part, then the whole nonce
        self._credential: ScramCredential | None = None
        self._bare = self._binding = self._challenge = self._name = ""
        self.user = ""
        self.is_complete = False

    def respond(self, message: bytes) -> bytes:
        """Return the answer to a message. Raises SaslError, which ends the exchange."""
        if self.is_complete:
            raise SaslError("the exchange is complete")
        return self._first(text_of(message)) if self._credential is None else self._final(text_of(message))

    def _first(self, message: str) -> bytes:
        """Answer `n,[a=NAME],n=USER,r=NONCE[,EXTENSIONS]` with the salt."""
        flag, _, rest = message.partition(",")
        authorized, _, bare = rest.partition(",")
        if flag not in {"n", "y"}:
            raise SaslError("channel binding is not supported" if flag.startswith("p=") else "invalid SCRAM message")
        fields = fields_of(bare, "n", "r")
        user = unescape(fields["n"])
        if authorized and (not authorized.startswith("a=") or unescape(authorized[2:]) != user):
            raise SaslError("a client cannot act for another user")
        _, _, extensions = bare.partition(",")[2].partition(",")
        if extensions not in {"", OF_TOKEN}:
            raise SaslError("extensions of SCRAM are not supported, except for tokenauth=true")
        if extensions and self._tokens is None:
            raise SaslError("delegation tokens are not enabled")
        if len(user) > MAX_NAME or len(fields["r"]) > MAX_NAME:
            raise SaslError("a user name or a nonce is too long")
        self.user = self._name = user
        self._bare = bare
        self._binding = encode(f"{flag},{authorized},".encode())
        self._nonce = fields["r"] + self._nonce
        credential = self._of_token(user) if extensions else _known(self._lookup, self._unknown, user, self._mechanism)
        self._credential = credential
        self._challenge = f"r={self._nonce},s={encode(credential.salt)},i={credential.iterations}"
        return self._challenge.encode()

    def _of_token(self, token_id: str) -> ScramCredential:
        """Return the credential of a token, a fake one for an unknown id."""
        assert self._tokens is not None
        self.token = self._tokens(token_id, self._mechanism.name)
        fake = self._unknown.of_tokens(token_id, self._mechanism)
        if self.token is None:
            return fake
        self.user = self.token.owner
        return self.token.credential

    def _current(self) -> ScramCredential | None:
        """Return the present credential of the user or token, which may have changed since the first message."""
        if self.token is None:
            return self._lookup(self._name, self._mechanism.name)
        assert self._tokens is not None
        self.token = self._tokens(self._name, self._mechanism.name)
        return None if self.token is None else self.token.credential

    def _final(self, message: str) -> bytes:
        """Check `c=HEADER,r=NONCE,p=PROOF`."""
        assert self._credential is not None
        credential, mechanism = self._credential, self._mechanism
        bare, comma, proof_text = message.rpartition(",p=")
        fields = fields_of(bare, "c", "r")
        if not comma or fields["c"] != self._binding:
            raise SaslError("invalid SCRAM message")
        if not fields["r"].endswith(self._nonce):  # as Kafka, because older versions of librdkafka repeat their part
            raise SaslError("the nonce is not the one of this exchange")
        proof = decode(proof_text)
        if len(proof) != mechanism.key_bytes:
            raise SaslError(WRONG)
        signed = f"{self._bare},{self._challenge},{bare}".encode()
        client_key = xor(proof, mechanism.mac(credential.stored_key, signed))
        if not hmac.compare_digest(mechanism.hash(client_key), credential.stored_key):
            raise SaslError(WRONG)
        if self._current() != credential:
            raise SaslError(WRONG)
        self.is_complete = True
        return f"v={encode(mechanism.mac(credential.server_key, signed))}".encode()


class PlainServer:
    """PLAIN (RFC 4616): `begin` with the message, `check` in a worker thread, then `end` with its result."""

    __slots__ = ("_credential", "_lookup", "_mechanism", "_most_iterations", "_password", "_unknown", "is_complete",
                 "user")  # fmt: skip

    def __init__(self, lookup: Lookup, unknown: UnknownUsers) -> None:
        self._lookup = lookup
        self._unknown = unknown
        self._credential: ScramCredential | None = None
        self._mechanism = next(iter(MECHANISMS.values()))
        self._most_iterations = 0
        self._password = ""
        self.user = ""
        self.is_complete = False

    def begin(self, message: bytes) -> None:
        """Parse `[NAME] NUL USER NUL PASSWORD`. Raises SaslError."""
        if self.is_complete or self._credential is not None:
            raise SaslError("the exchange is complete")
        try:
            authorized, user, password = message.decode().split("\0")
        except ValueError:  # also UnicodeDecodeError
            raise SaslError("invalid PLAIN message") from None
        if not user or not password:
            raise SaslError("a PLAIN message needs a user name and a password")
        if authorized not in {"", user}:
            raise SaslError("a client cannot act for another user")
        if max(len(user), len(password)) > MAX_NAME:
            raise SaslError("a user name or a password is too long")
        self.user, self._password = user, password
        for mechanism in MECHANISMS.values():
            credential = self._lookup(user, mechanism.name)
            if credential is not None:
                self._mechanism, self._credential = mechanism, credential
                break
        else:
            self._credential = self._unknown.credential(user, self._mechanism)
        self._most_iterations = self._unknown.most_iterations(self._mechanism)

    def check(self) -> bool:
        """Return whether the password is right. Intentionally slow (PBKDF2), without the GIL."""
        credential, mechanism = self._credential, self._mechanism
        assert credential is not None
        is_right = credential.fits(mechanism, self._password)
        if (rest := self._most_iterations - credential.iterations) > 0:  # the time does not reveal whose it is
            mechanism.salted_password(self._password, credential.salt, rest)
        return is_right

    def end(self, *, is_right: bool) -> bytes:
        """Complete the exchange, and return the empty answer. Raises SaslError for a wrong password."""
        self._password = ""
        if not is_right or self._lookup(self.user, self._mechanism.name) != self._credential:
            raise SaslError(WRONG)
        self.is_complete = True
        return b""


def _known(lookup: Lookup, unknown: UnknownUsers, user: str, mechanism: Mechanism) -> ScramCredential:
    """Return a user's credential, with the same work whether it exists or not."""
    credential, fake = lookup(user, mechanism.name), unknown.credential(user, mechanism)
    return fake if credential is None else credential
