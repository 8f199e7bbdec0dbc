"""The first message of OAUTHBEARER: RFC 7628's grammar, and everything beside it."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.protocol.oauthbearer import MAX_MESSAGE_BYTES, MAX_PAIRS, ClientFirst, first_message, parse_first
from warmlog.protocol.scram import SaslError

GOOD: list[tuple[bytes, ClientFirst]] = [
    (b"n,,\1auth=Bearer abc\1\1", ClientFirst("abc", "", {})),
    (b"y,,\1auth=bearer  a.b-c_~+/==\1\1", ClientFirst("a.b-c_~+/==", "", {})),
    (b"n,a=user@example.com,\1host=h\1port=143\1auth=Bearer abc\1\1",
     ClientFirst("abc", "user@example.com", {"host": "h", "port": "143"})),
    (b"n,a==2Cx=3D,\1auth=BEARER abc\1\1", ClientFirst("abc", ",x=", {})),
    (b"n,,\1auth=Bearer abc\1traceId=a b=c\t!~\1\1", ClientFirst("abc", "", {"traceId": "a b=c\t!~"})),
]  # fmt: skip
BAD: list[tuple[bytes, str]] = [
    (b"", "invalid OAUTHBEARER message"),
    (b"\1", "invalid OAUTHBEARER message"),
    (b"\xff", "not UTF-8"),
    (b"n", "begins with n,,"),
    (b"n,,", "ends with two"),
    (b"n,,\1", "ends with two"),
    (b"n,,\1\1", "has no auth"),
    (b"n,,auth=Bearer abc\1\1", "begins with n,,"),
    (b"n,\1auth=Bearer abc\1\1", "begins with n,,"),
    (b"n,,x\1auth=Bearer abc\1\1", "begins with n,,"),
    (b"p=tls-unique,,\1auth=Bearer abc\1\1", "channel binding is not supported"),
    (b"x,,\1auth=Bearer abc\1\1", "invalid OAUTHBEARER message"),
    (b"n,b=alice,\1auth=Bearer abc\1\1", "begins with n,,"),
    (b"n,a=,\1auth=Bearer abc\1\1", "begins with n,,"),
    (b"n,a=al\0ice,\1auth=Bearer abc\1\1", "begins with n,,"),
    (b"n,a=al=ice,\1auth=Bearer abc\1\1", "invalid user name"),
    (b"n,,\1auth=Bearer abc\1", "ends with two"),
    (b"n,,\1auth=Bearer abc", "ends with two"),
    (b"n,,\1auth=Bearer abc\1\1\1", "invalid extension"),
    (b"n,,\1auth=Bearer abc\1\1rest", "ends with two"),
    (b"n,,\1auth=Bearer abc\1x=\1\1", "invalid extension"),
    (b"n,,\1auth=Bearer abc\1x1=y\1\1", "invalid extension"),
    (b"n,,\1auth=Bearer abc\1=y\1\1", "invalid extension"),
    (b"n,,\1auth=Bearer abc\1x\1\1", "invalid extension"),
    (b"n,,\1auth=Bearer abc\1x=\x7f\1\1", "invalid extension"),
    ("n,,\1auth=Bearer abc\1x=ä\1\1".encode(), "invalid extension"),
    (b"n,,\1auth=Bearer abc\1auth=Bearer abc\1\1", "occurs twice"),
    (b"n,,\1auth=Basic abc\1\1", "expected auth=Bearer"),
    (b"n,,\1auth=Bearer\1\1", "expected auth=Bearer"),
    (b"n,,\1auth=Bearer \1\1", "expected auth=Bearer"),
    (b"n,,\1auth=Bearer a b\1\1", "expected auth=Bearer"),
    (b"n,,\1auth=Bearer a=b\1\1", "expected auth=Bearer"),
    (b"n,,\1auth=Bearer\tabc\1\1", "expected auth=Bearer"),
    (b"n,,\1auth=abc\1\1", "expected auth=Bearer"),
    (b"n,,\1auth=Bearer a" + b"\1x=y" * (MAX_PAIRS + 1) + b"\1\1", "more than 64 extensions"),
    (b"n,,\1auth=Bearer " + b"a" * MAX_MESSAGE_BYTES + b"\1\1", "more than 65536 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "found"), GOOD)
def test_messages_of_the_grammar_are_read(message: bytes, found: ClientFirst) -> None:
    assert parse_first(message) == found


@pytest.mark.parametrize(("message", "why"), BAD)
def test_others_are_refused_without_repeating_them(message: bytes, why: str) -> None:
    with pytest.raises(SaslError, match=why) as error:
        parse_first(message)
    assert "abc" not in str(error.value)


def test_a_clients_message_is_read_back() -> None:
    assert parse_first(first_message("a.b.c==")) == ClientFirst("a.b.c==", "", {})
    for token in ("", "a b", "a\1b", "ä", "a=b"):
        with pytest.raises(SaslError):
            first_message(token)


def test_tokens_are_not_shown() -> None:
    assert "abc" not in repr(parse_first(b"n,,\1auth=Bearer abc\1\1"))


PIECES = st.sampled_from(
    [b"n,", b"a=", b",", b"\1", b"auth=", b"Bearer ", b"=", b"x", b"\0", b"\xc3", b"y", b"=2C", b" "]
)


@given(st.one_of(st.binary(max_size=100), st.lists(PIECES, max_size=20).map(b"".join)))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    with suppress(SaslError):
        found = parse_first(message)
        assert found.token
        assert "auth" not in found.extensions
