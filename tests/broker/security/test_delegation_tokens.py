"""Delegation tokens without a broker: how they are derived, found and expire, and SCRAM with them."""

from base64 import b64encode
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from warmlog.broker.security.delegation_tokens import DelegationToken, TokenSecret, fingerprint, token_lookup
from warmlog.broker.security.scram import ScramServer, TokenLookup, UnknownUsers
from warmlog.protocol.scram import MECHANISMS, Mechanism, SaslError, ScramClient

SECRET = TokenSecret("a secret")
TOKEN = DelegationToken(
    owner="User:a:b", requester="User:r", renewers=("User:n",), issued_at=0, expires_at=100, max_at=200,
    fingerprint=fingerprint(SECRET.hmac("id")), credentials=SECRET.credentials("id"),
)  # fmt: skip
UNKNOWN = UnknownUsers(lambda: b"shared")


def exchange(mechanism: Mechanism, token: DelegationToken, name: str, password: str, now_ms: int = 100) -> ScramServer:
    return _log_in(token_lookup(SECRET, lambda: {"id": token}, lambda: now_ms), mechanism, name, password)


def _log_in(
    lookup: TokenLookup, mechanism: Mechanism = MECHANISMS["SCRAM-SHA-256"], name: str = "id", password: str = ""
) -> ScramServer:
    password = password or PASSWORD
    server = ScramServer(mechanism, lambda *_: None, UNKNOWN, "server", lookup)
    client = ScramClient(mechanism, name, password, "client")
    client._bare += ",tokenauth=true"
    client.verify(server.respond(client.final(server.respond(client.first()))))
    return server


PASSWORD = b64encode(SECRET.hmac("id")).decode()


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=str)
def test_a_token_logs_its_owner_in(mechanism: Mechanism) -> None:
    server = exchange(mechanism, TOKEN, "id", PASSWORD)
    assert (server.is_complete, server.user) == (True, "a:b")
    assert server.token is not None
    assert server.token.expires_at == 0.1


@pytest.mark.parametrize(
    ("token", "name", "password", "now_ms"),
    [
        (TOKEN, "id", PASSWORD, 101),
        (replace(TOKEN, max_at=50), "id", PASSWORD, 51),
        (TOKEN, "other", PASSWORD, 100),
        (TOKEN, "id", "wrong", 100),
        (replace(TOKEN, fingerprint=fingerprint(TokenSecret("another").hmac("id"))), "id", PASSWORD, 100),
        (replace(TOKEN, credentials={}), "id", PASSWORD, 100),
    ],
)
def test_others_do_not(token: DelegationToken, name: str, password: str, now_ms: int) -> None:
    with pytest.raises(SaslError, match="invalid credentials"):
        exchange(MECHANISMS["SCRAM-SHA-256"], token, name, password, now_ms)


@pytest.mark.parametrize("ended", [None, replace(TOKEN, expires_at=50), replace(TOKEN, credentials={})])
def test_a_token_that_ends_during_a_login_completes_none(ended: DelegationToken | None) -> None:
    tokens = [{"id": TOKEN}, {} if ended is None else {"id": ended}]  # at the first look-up and afterwards
    lookup = token_lookup(SECRET, lambda: tokens.pop(0), lambda: 60)
    with pytest.raises(SaslError, match="invalid credentials"):
        _log_in(lookup)


def test_a_login_is_valid_until_its_token_ends_by_then() -> None:
    tokens = [{"id": TOKEN}, {"id": replace(TOKEN, expires_at=70)}]
    token = _log_in(token_lookup(SECRET, lambda: tokens.pop(0), lambda: 60)).token
    assert token is not None
    assert token.expires_at == 0.07


def test_an_unknown_token_looks_like_a_known_one() -> None:
    lookup = token_lookup(SECRET, lambda: {"id": TOKEN}, lambda: 0)
    answers = []
    for name in ("id", "other", "other"):
        server = ScramServer(MECHANISMS["SCRAM-SHA-256"], lambda *_: None, UNKNOWN, "server", lookup)
        answers.append(server.respond(f"n,,n={name},r=client,tokenauth=true".encode()))
    known, first, second = answers
    assert first == second
    assert len(known) == len(first)
    assert known.rpartition(b",i=")[2] == first.rpartition(b",i=")[2] == b"4096"


def test_owners_and_renewers_hold_it_and_nothing_secret_is_shown() -> None:
    assert [TOKEN.is_of(name) for name in ("User:a:b", "User:n", "User:r", "User:a")] == [True, True, False, False]
    assert "fingerprint" not in repr(TOKEN)
    assert not TokenSecret("another").has_made("id", TOKEN)


class Uniterable(frozenset[str]):
    """A set in which names are looked up only."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a request may name very many principals")


def test_a_token_is_looked_for_among_very_many_principals_by_its_own_names() -> None:
    for names, is_of in (
        (("User:a:b", "User:x"), True),
        (("User:n",), True),
        (("User:r", "User:a"), False),
        ((), False),
    ):
        assert TOKEN.is_of_any(Uniterable(names)) is is_of
