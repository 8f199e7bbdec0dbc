"""The broker's side of an OAUTHBEARER exchange, alone and within a login."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey

from warmlog.broker.security.oauthbearer import OAuthServer, RefusedTokenError
from warmlog.broker.security.sasl import MIN_SESSION_S, Login, LoginRules, Stage, Users
from warmlog.broker.security.scram import UnknownUsers
from warmlog.broker.security.tokens import KeyRing, TokenChecker, TokenRules, read_keys
from warmlog.protocol.oauthbearer import ACKNOWLEDGED, REFUSAL, first_message
from warmlog.protocol.scram import SaslError

NOW = 1_700_000_000
KEY = ECKey.generate_key("P-256", {"kid": "1"})
RULES = TokenRules(issuer="i", audiences=("a",), skew_s=30, name_claim="sub", scope_claim="scope")
USERS = Users(lambda *_: None, UnknownUsers(lambda: b"secret"))


def token(key: ECKey = KEY, **claims: Any) -> str:
    found = {"iss": "i", "aud": "a", "sub": "alice", "iat": NOW, "exp": NOW + 60, **claims}
    return jwt.encode({"alg": "ES256", "kid": key.kid}, found, key, algorithms=["ES256"])


GOOD, EXPIRED, OTHER = token(), token(exp=NOW - 60), token(ECKey.generate_key("P-256", {"kid": "2"}))


def checker(wanted: list[str] | None = None) -> TokenChecker:
    keys, _ = read_keys(json.dumps({"keys": [KEY.as_dict(private=False)]}).encode())
    ring = KeyRing(keys, (lambda: None) if wanted is None else lambda: wanted.append("keys"))
    return TokenChecker(RULES, ring, clock=lambda: NOW)


def respond(server: OAuthServer, message: bytes) -> bytes:
    server.begin(message)
    return server.end(is_right=server.check())


def new_login(session_s: float = 0.0) -> Login:
    return Login(
        LoginRules(
            mechanisms=("OAUTHBEARER",),
            is_encrypted=True,
            max_frame_bytes=1024,
            timeout_s=10,
            failure_delay_s=0.1,
            session_s=session_s,
            clock=lambda: 100.0,
            tokens=checker(),
            wall_clock=lambda: NOW,
        )
    )


def test_a_token_completes_the_exchange() -> None:
    server = OAuthServer(checker())
    assert respond(server, first_message(GOOD)) == b""
    assert (server.is_complete, server.user, server.expires_at) == (True, "alice", NOW + 60)
    with pytest.raises(SaslError, match="the exchange is complete"):
        server.begin(first_message(GOOD))


def test_a_refusal_is_acknowledged_before_the_exchange_fails() -> None:
    server = OAuthServer(checker())
    assert respond(server, first_message(EXPIRED)) == REFUSAL
    assert server.refusal == "the token has expired"
    with pytest.raises(RefusedTokenError, match="invalid_token"):
        server.begin(ACKNOWLEDGED)
    with pytest.raises(SaslError, match="the token was refused"):
        server.begin(first_message(GOOD))
    assert not server.is_complete


def test_only_an_unknown_key_asks_for_others() -> None:
    wanted: list[str] = []
    for each in (EXPIRED, "abc", OTHER):
        respond(OAuthServer(checker(wanted)), first_message(each))
    assert wanted == ["keys"]


def test_a_token_that_was_not_checked_completes_nothing() -> None:
    server = OAuthServer(checker())
    server.begin(first_message(GOOD))
    with pytest.raises(SaslError, match="not checked in time"):
        server.end(is_right=False)


@pytest.mark.parametrize(
    ("expires_in_s", "session_s", "valid_s"),
    [(60, 0.0, 60), (60, 7.0, 7), (5, 7.0, 5), (-10, 0.0, MIN_SESSION_S), (-10, 7.0, MIN_SESSION_S)],
)
def test_a_session_ends_with_its_token_or_earlier(expires_in_s: int, session_s: float, valid_s: float) -> None:
    login = new_login(session_s)
    login.choose("OAUTHBEARER", USERS)
    exchange = login.exchange
    assert isinstance(exchange, OAuthServer)
    respond(exchange, first_message(token(exp=NOW + expires_in_s)))
    login.advanced()
    assert (login.stage, login.session_s, login.expires_at) == (Stage.COMPLETE, valid_s, 100.0 + valid_s)


MESSAGES = st.one_of(
    st.sampled_from([first_message(each) for each in (GOOD, EXPIRED, OTHER, "abc")]),
    st.sampled_from([ACKNOWLEDGED, b"", b"n,a=bob,\1auth=Bearer " + GOOD.encode() + b"\1\1"]),
    st.binary(max_size=20),
)


@given(st.lists(MESSAGES, max_size=4))
def test_whatever_comes_only_a_first_message_with_a_good_token_completes_it(messages: list[bytes]) -> None:
    server = OAuthServer(checker())
    try:
        for message in messages:
            respond(server, message)
    except SaslError:
        pass
    assert server.is_complete == (messages[:1] == [first_message(GOOD)])
