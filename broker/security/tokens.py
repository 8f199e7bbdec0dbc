"""Check access tokens (JSON Web Tokens) by an issuer's public keys. No I/O. Source: BrokerJwtValidator.

Imports joserfc, so import this module only where tokens are accepted.

Invariants:
1. Only asymmetric algorithms of `ALGORITHMS` are accepted, and each with keys of its own type.
2. Nothing in a token is used before its signature is verified, except the id of its key.
3. The text of a TokenError contains no part of the token.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any, Final, NamedTuple

import msgspec
from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jwk import ECKey, GuestProtocol, JWKRegistry, OKPKey, RSAKey

from warmlog.broker.security.scram import MAX_NAME

ALGORITHMS: Final = frozenset({
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
})  # fmt: skip
MIN_RSA_BITS: Final = 2048
MAX_HEADER_BYTES: Final = 4096
MAX_KEYS: Final = 500
FAR_S: Final = 100.0 * 365 * 24 * 3600
_TYPES: Final[Mapping[str, str]] = {
    "RS": "RSA",
    "PS": "RSA",
    "ES": "EC",
}  # by the prefix of an algorithm

PublicKey = RSAKey | ECKey | OKPKey
Keys = Mapping[tuple[str, str], PublicKey]  # by id and type


class TokenError(Exception):
    """A token is rejected. `str()` is the reason, for the broker's log."""


class UnknownKeyError(TokenError):
    """The token's key is not among the issuer's."""


class KeysError(Exception):
    """A key set cannot be read."""


class Identity(NamedTuple):
    """The user of a token, and its expiry in seconds since 1970."""

    name: str
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """A listener's requirements for tokens."""

    issuer: str
    audiences: tuple[str, ...]
    skew_s: int
    name_claim: str
    scope_claim: str


@dataclass(slots=True)
class KeyRing:
    """The keys of an issuer, replaced as a whole; `wanted` is called when a token has an unknown key."""

    keys: Keys = field(default_factory=dict)
    wanted: Callable[[], None] = lambda: None


class _Registry(jws.JWSRegistry):
    max_header_length = MAX_HEADER_BYTES
    max_signature_length = 2048  # of RSA with 12,288 bits

    def get_alg(self, name: str) -> Any:
        """Return an algorithm. Raises TokenError."""
        if name not in ALGORITHMS:
            raise TokenError("the token's algorithm is not accepted")
        return self.algorithms[name]


class TokenChecker:
    """Checks tokens of one issuer. Thread-safe."""

    def __init__(self, rules: TokenRules, ring: KeyRing, clock: Callable[[], float] = time) -> None:
        self._rules = rules
        self.ring = ring
        self._clock = clock
        self._registry = _Registry(algorithms=ALGORITHMS, strict_check_header=False)
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: int(clock()),
            leeway=rules.skew_s,
            iss={"essential": True, "value": rules.issuer},
            aud={"essential": True, "values": list(rules.audiences)},
            exp={"essential": True},
            iat={"essential": True},
        )

    def check(self, token: str) -> Identity:
        """Validate a token and return its identity. Takes 0.1 ms: call it in a worker thread. Raises TokenError."""
        try:
            verified = jws.deserialize_compact(token.encode(), self._key, registry=self._registry)
            claims = msgspec.json.decode(verified.payload or b"", type=dict[str, Any])
            self._claims.validate(claims)
        except ExpiredTokenError:
            raise TokenError("the token has expired") from None
        except (InvalidClaimError, MissingClaimError) as error:
            what = "lacks claims" if isinstance(error, MissingClaimError) else "has another or an invalid value"
            raise TokenError(f"the token {what}: {_known(error.claim)}") from None
        except msgspec.DecodeError:
            raise TokenError("the token's claims are not a JSON object") from None
        except JoseError as error:
            raise TokenError(f"the token is not valid: {error.error.replace('_', ' ')}") from None
        except (ValueError, TypeError, RecursionError):
            raise TokenError("the token is not a signed JSON Web Token") from None
        self._check_scopes(claims.get(self._rules.scope_claim))
        expires_at = float(min(claims["exp"], self._clock() + FAR_S))
        return Identity(self._name(claims.get(self._rules.name_claim)), expires_at)

    def _key(self, token: GuestProtocol) -> PublicKey:
        """Return the key that a token names. Raises TokenError."""
        header = token.headers()
        algorithm, key_id = header["alg"], header.get("kid")
        kind = _TYPES.get(algorithm[:2], "OKP")
        keys = self.ring.keys
        if key_id is None:
            fitting = [key for (_, of), key in keys.items() if of == kind]
            fit = fitting[0] if len(fitting) == 1 else None
        else:
            fit = keys.get((key_id, kind)) if isinstance(key_id, str) else None
        if fit is None:
            raise UnknownKeyError("the issuer has no such key" if key_id else "the token does not name its key")
        if fit.alg is not None and fit.alg != algorithm:
            raise TokenError("the token's key is for another algorithm")
        return fit

    def _name(self, value: object) -> str:
        name = value.strip() if isinstance(value, str) else ""
        if not name or len(name) > MAX_NAME or not name.isprintable():
            raise TokenError(f"the token has no name of a principal in its claim {self._rules.name_claim}")
        return name

    def _check_scopes(self, value: object) -> None:
        """Raise TokenError for scopes that are empty or occur twice, as Kafka does."""
        scopes = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        texts = [each.strip() for each in scopes if isinstance(each, str)]
        if len(texts) < len(scopes) or not all(texts) or len(set(texts)) < len(texts):
            raise TokenError(f"the token has invalid scopes in its claim {self._rules.scope_claim}")


def read_keys(data: bytes) -> tuple[Keys, list[str]]:
    """Read a JSON Web Key Set. Return the keys that verify signatures, and why others are not used.

    For a worker thread. Raises KeysError.
    """
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise KeysError("not a JSON Web Key Set: not a JSON object") from None
    given = document.get("keys")
    if not isinstance(given, list) or len(given) > MAX_KEYS:
        raise KeysError(f"not a JSON Web Key Set: expected an array `keys` of at most {MAX_KEYS}")
    keys: dict[tuple[str, str], PublicKey] = {}
    left_out: list[str] = []
    for number, each in enumerate(given):
        try:
            key = _public_key(each)
        except KeysError as error:
            left_out.append(f"key {number}: {error}")
            continue
        keys[key.kid or "", key.key_type] = key
    if not keys:
        raise KeysError("has no key that verifies signatures" + "".join([f"; {each}" for each in left_out[:3]]))
    return keys, left_out


def _public_key(value: object) -> PublicKey:
    """Return a key of a set. Raises KeysError."""
    if not isinstance(value, dict) or value.get("kty") not in ("RSA", "EC", "OKP"):  # may be a list
        raise KeysError("not a public key of type RSA, EC or OKP")
    if "d" in value:
        raise KeysError("a private key, which no broker should have")
    operations = value.get("key_ops", ["verify"])
    if value.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        raise KeysError("not for signatures")
    if value["kty"] == "RSA" and len(str(value.get("n"))) * 6 < MIN_RSA_BITS:  # base64
        raise KeysError(f"RSA with less than {MIN_RSA_BITS} bits")
    try:
        key = JWKRegistry.import_key(value)
        key.ensure_kid()
        _ = key.public_key  # decodes it
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise KeysError(f"invalid: {type(error).__name__}") from None
    assert isinstance(key, PublicKey)
    return key


def _known(names: Iterable[str] | str | None) -> str:
    """Return names of claims that the rules name, and none that a token does."""
    text = names if isinstance(names, str) else ""
    return text if set(text.split(",")) <= {"iss", "aud", "exp", "iat", "nbf", "sub", "jti"} else "a claim"
