"""Tokens of an issuer: one that is accepted, and each way in which one is not."""

import base64
import hmac
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwk, jws, jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

from warmlog.broker.security.tokens import (
    ALGORITHMS,
    KeyRing,
    KeysError,
    TokenChecker,
    TokenError,
    TokenRules,
    UnknownKeyError,
    read_keys,
)

NOW = 1_700_000_000
RULES = TokenRules(issuer="https://i", audiences=("a", "b"), skew_s=30, name_claim="sub", scope_claim="scope")
CLAIMS: dict[str, Any] = {"iss": "https://i", "aud": "a", "sub": "alice", "iat": NOW, "exp": NOW + 60}
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
PRIVATE = {
    "RSA": RSA,
    "P-256": EC,
    "P-384": ECKey.generate_key("P-384", {"kid": "ec384"}),
    "P-521": ECKey.generate_key("P-521", {"kid": "ec521"}),
    "Ed25519": OKPKey.generate_key("Ed25519", {"kid": "ed"}),
}
CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519", "Ed25519": "Ed25519"}


def key_set(*keys: Any) -> bytes:
    return json.dumps(
        {"keys": [each if isinstance(each, dict) else each.as_dict(private=False) for each in keys]}
    ).encode()


def checker(data: bytes = key_set(*PRIVATE.values()), rules: TokenRules = RULES) -> TokenChecker:
    return TokenChecker(rules, KeyRing(read_keys(data)[0]), clock=lambda: NOW)


def encode(key: Any = EC, alg: str = "ES256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    found = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    registry = jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
    registry.get_alg = registry.algorithms.__getitem__  # type: ignore[method-assign]  # it warns of EdDSA
    given = {"alg": alg, "kid": key.kid, **(header or {})}
    return jwt.encode({k: v for k, v in given.items() if v is not None}, found, key, registry=registry)


def unsigned(header: object, claims: object = CLAIMS, signature: bytes = b"") -> str:
    def part(value: object) -> bytes:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    return b".".join([part(header), part(claims), base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


@pytest.mark.parametrize("alg", sorted(ALGORITHMS))
def test_each_algorithm_is_accepted(alg: str) -> None:
    key = PRIVATE[CURVES.get(alg, "RSA")]
    assert checker().check(encode(key, alg)) == ("alice", NOW + 60)


GOOD: list[dict[str, Any]] = [
    {"aud": ["x", "b"]},
    {"exp": NOW - 29, "iat": NOW - 100},
    {"nbf": NOW + 30, "iat": NOW + 30},
    {"scope": ["a", "b"]},
    {"scope": {"not": "scopes"}},
    {"exp": NOW + 0.5},
    {"groups": ["g" * 50] * 200},
]


@pytest.mark.parametrize("claims", GOOD)
def test_claims_within_the_rules_are_accepted(claims: dict[str, Any]) -> None:
    assert checker().check(encode(**claims)).name == "alice"


BAD: list[tuple[str, dict[str, Any]]] = [
    ("expired", {"exp": NOW - 30}),
    ("expired", {"exp": -1}),
    ("lacks claims: exp", {"exp": None}),
    ("invalid value: exp", {"exp": "tomorrow"}),
    ("invalid value: exp", {"exp": True}),
    ("lacks claims: iat", {"iat": None}),
    ("invalid value: iat", {"iat": NOW + 31}),
    ("invalid value: nbf", {"nbf": NOW + 31}),
    ("invalid value: nbf", {"nbf": "now"}),
    ("lacks claims: iss", {"iss": None}),
    ("invalid value: iss", {"iss": "https://i/"}),
    ("invalid value: iss", {"iss": ["https://i"]}),
    ("lacks claims: aud", {"aud": None}),
    ("invalid value: aud", {"aud": "c"}),
    ("invalid value: aud", {"aud": []}),
    ("invalid value: aud", {"aud": {"a": "a"}}),
    ("invalid value: aud", {"aud": ["c", 1]}),
    ("no name of a principal", {"sub": None}),
    ("no name of a principal", {"sub": ""}),
    ("no name of a principal", {"sub": "  "}),
    ("no name of a principal", {"sub": "al\nice"}),
    ("no name of a principal", {"sub": "a" * 1025}),
    ("invalid value: sub", {"sub": 7}),
    ("invalid scopes", {"scope": "  "}),
    ("invalid scopes", {"scope": ["a", ""]}),
    ("invalid scopes", {"scope": ["a", " a"]}),
    ("invalid scopes", {"scope": ["a", 1]}),
]


@pytest.mark.parametrize(("why", "claims"), BAD)
def test_claims_beside_the_rules_are_refused(why: str, claims: dict[str, Any]) -> None:
    with pytest.raises(TokenError, match=why):
        checker().check(encode(**claims))


def test_the_name_may_be_in_another_claim() -> None:
    rules = TokenRules(issuer="https://i", audiences=("a",), skew_s=0, name_claim="email", scope_claim="scp")
    assert checker(rules=rules).check(encode(email=" bob ")).name == "bob"
    with pytest.raises(TokenError, match="in its claim email"):
        checker(rules=rules).check(encode())
    with pytest.raises(TokenError, match="in its claim scp"):
        checker(rules=rules).check(encode(email="bob", scp=""))


def by_public_key() -> str:
    """Return a token with a MAC whose key is the public key, which careless checkers accept."""
    message = unsigned({"alg": "HS256", "kid": "ec"}).rpartition(".")[0]
    mac = hmac.digest(EC.as_pem(private=False), message.encode(), "sha256")
    return f"{message}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def signed(payload: bytes) -> str:
    return jws.serialize_compact({"alg": "ES256", "kid": "ec"}, payload, EC, algorithms=["ES256"])


def changed(token: str) -> str:
    header, _, signature = token.split(".")
    return ".".join([header, unsigned({}, {**CLAIMS, "sub": "admin"}).split(".")[1], signature])


OTHER_EC = ECKey.generate_key("P-256", {"kid": "ec"})
FORGED: list[tuple[str, Callable[[], str]]] = [
    ("algorithm is not accepted", lambda: unsigned({"alg": "none", "kid": "ec"})),
    ("algorithm is not accepted", lambda: unsigned({"alg": "NONE", "kid": "ec"})),
    ("algorithm is not accepted", by_public_key),
    ("algorithm is not accepted", lambda: unsigned({"alg": "ES256K", "kid": "ec"}, signature=bytes(64))),
    ("not valid", lambda: unsigned({"kid": "ec"}, signature=bytes(64))),
    ("not", lambda: unsigned({"alg": ["ES256"], "kid": "ec"}, signature=bytes(64))),
    ("not valid: bad signature", lambda: unsigned({"alg": "ES256", "kid": "ec"})),
    ("not valid: bad signature", lambda: unsigned({"alg": "ES256", "kid": "ec"}, signature=bytes(64))),
    ("not valid: bad signature", lambda: encode(OTHER_EC)),
    ("not valid: bad signature", lambda: changed(encode())),
    ("no such key", lambda: encode(header={"kid": "unknown"})),
    ("no such key", lambda: encode(RSA, "RS256", header={"kid": "ec"})),
    ("not", lambda: unsigned({"alg": "ES256", "kid": 7}, signature=bytes(64))),
    ("does not name its key", lambda: encode(header={"kid": None})),
    ("not valid", lambda: unsigned({"alg": "ES256", "kid": "ec", "crit": ["exp"]}, signature=bytes(64))),
    ("not valid", lambda: unsigned({"alg": "ES256", "kid": "k" * 5000}, signature=bytes(64))),
    ("not valid", lambda: unsigned({"alg": "ES256", "kid": "ec"}, signature=bytes(5000))),
    ("not", lambda: ""),
    ("not", lambda: "abc"),
    ("not", lambda: "a.b"),
    ("not", lambda: ".."),
    ("not", lambda: "a.b.c.d.e"),
    ("not", lambda: unsigned([], signature=bytes(64))),
    ("not", lambda: unsigned("alg", signature=bytes(64))),
    ("not", lambda: unsigned(b"[" * 3000, signature=bytes(64))),
    ("not a JSON object", lambda: signed(b"[]")),
    ("not a JSON object", lambda: signed(b"")),
    ("not", lambda: signed(b'{"a":' * 20_000)),
    ("not a JSON object", lambda: signed(b'{"exp": NaN}')),
    ("not a JSON object", lambda: signed(b"\xff")),
]


@pytest.mark.parametrize(("why", "make"), FORGED)
def test_forged_and_broken_tokens_are_refused(why: str, make: Callable[[], str]) -> None:
    with pytest.raises(TokenError, match=why):
        checker().check(make())


def test_a_token_without_a_key_id_fits_the_only_key_of_its_type() -> None:
    assert checker(key_set(EC, RSA)).check(encode(header={"kid": None})).name == "alice"


def test_a_key_of_one_algorithm_verifies_no_other() -> None:
    only_ps = {**RSA.as_dict(private=False), "alg": "PS256"}
    assert checker(key_set(only_ps)).check(encode(RSA, "PS256")).name == "alice"
    with pytest.raises(TokenError, match="for another algorithm"):
        checker(key_set(only_ps)).check(encode(RSA, "RS256"))


def test_an_unknown_key_is_an_error_of_its_own() -> None:
    with pytest.raises(UnknownKeyError):
        checker(key_set(RSA)).check(encode())


PUBLIC = EC.as_dict(private=False)
KEYS: list[tuple[bytes, str]] = [
    (b"", "not a JSON object"),
    (b"[]", "not a JSON object"),
    (b"[" * 100_000, "not a JSON object"),
    (b"{}", "expected an array"),
    (b'{"keys": {}}', "expected an array"),
    (b'{"keys": []}', "no key that verifies"),
    (b'{"keys": [1, null]}', "key 0: not a public key"),
    (key_set(*[PUBLIC] * 501), "at most 500"),
    (key_set({"kty": "oct", "k": "c2VjcmV0"}), "not a public key"),
    (key_set(EC.as_dict(private=True)), "a private key"),
    (key_set({**PUBLIC, "use": "enc"}), "not for signatures"),
    (key_set({**PUBLIC, "key_ops": ["sign"]}), "not for signatures"),
    (key_set({**PUBLIC, "key_ops": 7}), "not for signatures"),
    (key_set({**PUBLIC, "crv": "P-384"}), "invalid"),
    (key_set({**PUBLIC, "crv": 1}), "invalid"),
    (key_set({**PUBLIC, "x": "!"}), "invalid"),
    (key_set({**PUBLIC, "kid": 1}), "invalid"),
    (key_set({"kty": "RSA", "n": "AQAB", "e": "AQAB"}), "invalid|less than 2048"),
    (key_set({"kty": "RSA", "n": RSA.as_dict()["n"][:170], "e": "AQAB"}), "less than 2048 bits"),
]


@pytest.mark.parametrize(("data", "why"), KEYS)
def test_key_sets_without_a_usable_key_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(KeysError, match=why):
        read_keys(data)


def test_keys_of_other_kinds_are_left_out() -> None:
    found, left_out = read_keys(key_set({"kty": "oct", "k": "c2VjcmV0"}, EC, {**PUBLIC, "use": "enc", "kid": "e"}))
    assert list(found) == [("ec", "EC")]
    assert left_out == ["key 0: not a public key of type RSA, EC or OKP", "key 2: not for signatures"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["ES256", "ec", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["alg", "kid", "crit", "typ", "b64", "jwk", "x5c", "iss", "aud", "exp", "nbf", "iat", "sub", "scope"]
)


@given(
    header=st.dictionaries(NAMES, VALUES, max_size=4), claims=st.dictionaries(NAMES, VALUES), is_signed=st.booleans()
)
def test_any_token_is_refused_or_belongs_to_its_name(
    header: dict[str, Any], claims: dict[str, Any], is_signed: bool
) -> None:
    given = {**CLAIMS, **claims}
    with suppress(TokenError):
        token = (
            signed(json.dumps(given).encode())
            if is_signed
            else unsigned({"alg": "ES256", "kid": "ec", **header}, given, bytes(64))
        )
        found = checker().check(token)
        assert is_signed
        assert found.name == given["sub"].strip()


@given(st.dictionaries(st.sampled_from(["kty", "crv", "x", "y", "n", "e", "use", "alg", "kid", "key_ops"]), VALUES))
def test_any_key_set_is_read_or_refused(key: dict[str, Any]) -> None:
    with suppress(KeysError):
        found, _ = read_keys(key_set({**PUBLIC, **key}))
        assert all(isinstance(each, jwk.ECKey | jwk.RSAKey | jwk.OKPKey) for each in found.values())
