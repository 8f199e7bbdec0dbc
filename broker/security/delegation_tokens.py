"""Delegation tokens: secrets with an expiry, by which programs log in as the user that created them (KIP-48).

    id      random; the name with which a client logs in by SCRAM, with the extension tokenauth=true
    hmac    HMAC-SHA-512 of the id with `delegation.token.secret.key`; in base64 it is the password

The store has neither the secret nor the hmac, only a fingerprint of the latter and SCRAM credentials. A token that was
created with another secret is unknown.

Source: org.apache.kafka.controller.DelegationTokenControlManager, org.apache.kafka.common.security.token.delegation.
"""

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from secrets import token_bytes
from typing import Final

from msgspec import Struct

from warmlog.broker.security.scram import ScramCredential, TokenLogin, TokenLookup
from warmlog.protocol.scram import MECHANISMS, MIN_ITERATIONS, SALT_BYTES

MAX_OF_OWNER: Final = 1_000
MAX_RENEWERS: Final = 20


class DelegationToken(Struct, frozen=True, kw_only=True, gc=False):
    """A token. Principals are written `User:NAME`, times are in milliseconds since 1970."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at: int
    expires_at: int
    max_at: int
    fingerprint: bytes
    credentials: dict[str, ScramCredential]  # by mechanism

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the token has expired."""
        return min(self.expires_at, self.max_at) < now_ms

    def is_of(self, principal: str) -> bool:
        """Return whether a principal owns the token or may renew it."""
        return principal == self.owner or principal in self.renewers

    def is_of_any(self, principals: AbstractSet[str]) -> bool:
        """Return whether any of the principals owns the token or may renew it. Takes no longer for more of them."""
        return self.owner in principals or any(renewer in principals for renewer in self.renewers)

    def __repr__(self) -> str:
        return f"DelegationToken(owner={self.owner!r}, ...)"


class TokenSecret:
    """Derives a token's hmac and credentials from its id."""

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def hmac(self, token_id: str) -> bytes:
        """Return the hmac of a token."""
        return hmac.digest(self._key, token_id.encode(), "sha512")

    def has_made(self, token_id: str, token: DelegationToken) -> bool:
        """Return whether a token was created with this secret."""
        return hmac.compare_digest(fingerprint(self.hmac(token_id)), token.fingerprint)

    def credentials(self, token_id: str) -> dict[str, ScramCredential]:
        """Return new credentials of a token. Takes milliseconds (PBKDF2): call it in a worker thread."""
        password = b64encode(self.hmac(token_id)).decode()
        credentials = {}
        for name, mechanism in MECHANISMS.items():
            salt = token_bytes(SALT_BYTES)
            salted = mechanism.salted_password(password, salt, MIN_ITERATIONS)
            credentials[name] = ScramCredential.of_salted(mechanism, salted, salt, MIN_ITERATIONS)
        return credentials


Tokens = Callable[[], Mapping[str, DelegationToken]]  # current tokens by id


def token_lookup(secret: TokenSecret, tokens: Tokens, clock_ms: Callable[[], int]) -> TokenLookup:
    """Return a function that looks up a token for a login, by id and mechanism."""

    def lookup(token_id: str, mechanism: str) -> TokenLogin | None:
        token = tokens().get(token_id)
        if token is None or token.has_expired(clock_ms()) or not secret.has_made(token_id, token):
            return None
        credential = token.credentials.get(mechanism)
        if credential is None:
            return None
        return TokenLogin(credential, token.owner.partition(":")[2], min(token.expires_at, token.max_at) / 1000)

    return lookup


def fingerprint(token_hmac: bytes) -> bytes:
    """Return the fingerprint by which a token is looked up from its hmac."""
    return hashlib.sha256(token_hmac).digest()
