"""The broker's side of SCRAM and PLAIN, without a connection."""

import base64
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.security.scram import PlainServer, ScramCredential, ScramServer, Shape, UnknownUsers
from warmlog.protocol.scram import (
    DEFAULT_ITERATIONS,
    MECHANISMS,
    SALT_BYTES,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    Mechanism,
    SaslError,
    ScramClient,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
UNKNOWN = UnknownUsers(lambda: b"secret")
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def credential(mechanism: Mechanism, password: str) -> ScramCredential:
    salted = mechanism.salted_password(password, SALT, 4096)
    return ScramCredential.of_salted(mechanism, salted, SALT, 4096)


STORED = {("user", name): credential(mechanism, "pencil") for name, mechanism in MECHANISMS.items()}
STORED["=,comma=", "SCRAM-SHA-256"] = credential(SCRAM_SHA_256, "pencil")


def lookup(user: str, mechanism: str) -> ScramCredential | None:
    return STORED.get((user, mechanism))


def server(mechanism: Mechanism = SCRAM_SHA_256) -> ScramServer:
    return ScramServer(mechanism, lookup, UNKNOWN, NONCE)


def log_in(mechanism: Mechanism, user: str, password: str) -> ScramServer:
    side, client = server(mechanism), ScramClient(mechanism, user, password, "rOprNGfwEbeRWgbNEkqO")
    client.verify(side.respond(client.final(side.respond(client.first()))))
    return side


def test_the_example_of_rfc_7677() -> None:
    side = server()
    assert side.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert not side.is_complete
    assert side.respond(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ) == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert (side.is_complete, side.user) == (True, "user")


@pytest.mark.parametrize("mechanism", MECHANISMS.values())
def test_only_the_right_password_fits(mechanism: Mechanism) -> None:
    assert log_in(mechanism, "user", "pencil").is_complete
    for user, password in (("user", "pencil "), ("nobody", "pencil"), ("USER", "pencil")):
        with pytest.raises(SaslError, match="invalid credentials"):
            log_in(mechanism, user, password)


def test_names_with_separators() -> None:
    assert log_in(SCRAM_SHA_256, "=,comma=", "pencil").user == "=,comma="


def test_an_unknown_user_gets_the_same_salt_each_time_and_another_one_for_each_name_and_secret() -> None:
    def challenge(user: str, unknown: UnknownUsers = UNKNOWN, mechanism: Mechanism = SCRAM_SHA_256) -> bytes:
        side = ScramServer(mechanism, lookup, unknown, NONCE)
        return side.respond(f"n,,n={user},r=abc".encode())

    assert challenge("bob") == challenge("bob")
    other = UnknownUsers(lambda: b"other")
    sha_512 = challenge("bob", UNKNOWN, SCRAM_SHA_512)
    assert len({challenge("bob"), challenge("eve"), challenge("bob", other), sha_512}) == 4
    assert challenge("bob").endswith(b",i=8192")


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"p=tls-unique,,n=user,r=abc", "channel binding"),
        (b"n,a=bob,n=user,r=abc", "another user"),
        (b"n,x,n=user,r=abc", "another user"),
        (b"n,,m=must,n=user,r=abc", "expected a SCRAM message"),
        (b"n,,n=user,r=abc,tokenauth=true", "delegation tokens are not enabled"),
        (b"n,,n=user,r=abc,tokenauth=false", "extensions"),
        (b"n,,n=user,r=abc,tokenauth=true,x=y", "extensions"),
        (b"n,,n=,r=abc", "expected a SCRAM message"),
        (b"n,,n=user,r=", "expected a SCRAM message"),
        (b"n,,n=us=er,r=abc", "invalid user name"),
        (b"n,,n=us\0er,r=abc", "zero byte"),
        (b"n,,n=" + b"u" * 5000 + b",r=abc", "too long"),
        (b"n,,n=user,r=" + b"u" * 5000, "too long"),
        (b"", "invalid SCRAM message"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_first_message_is_refused(first: bytes, why: str) -> None:
    with pytest.raises(SaslError, match=why):
        server().respond(first)


def test_a_client_may_name_itself_and_support_channel_binding() -> None:
    for header in ("y,,", "n,a=user,"):
        side, client = server(), ScramClient(SCRAM_SHA_256, "user", "pencil", "abc")
        challenge = side.respond(header.encode() + client.first().removeprefix(b"n,,"))
        binding = base64.b64encode(header.encode()).decode()
        bare = f"c={binding},{challenge.decode().split(',')[0]}"
        message = b",".join((client.first().removeprefix(b"n,,"), challenge, bare.encode()))
        salted = SCRAM_SHA_256.salted_password("pencil", SALT, 4096)
        signature = SCRAM_SHA_256.mac(SCRAM_SHA_256.stored_key(salted), message)
        key = SCRAM_SHA_256.client_key(salted)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        side.respond(f"{bare},p={proof}".encode())
        assert side.is_complete


def test_a_client_may_repeat_its_part_of_the_nonce() -> None:
    """As older versions of librdkafka do; Kafka accepts it. The proof covers the nonce that is sent."""
    side, mine = server(), "rOprNGfwEbeRWgbNEkqO"
    bare = f"n=user,r={mine}"
    challenge = side.respond(f"n,,{bare}".encode())
    final = f"c=biws,r={mine}{mine}{NONCE}"
    salted = SCRAM_SHA_256.salted_password("pencil", SALT, 4096)
    signature = SCRAM_SHA_256.mac(
        SCRAM_SHA_256.stored_key(salted), b",".join((bare.encode(), challenge, final.encode()))
    )
    proof = bytes(a ^ b for a, b in zip(SCRAM_SHA_256.client_key(salted), signature, strict=True))
    side.respond(f"{final},p={base64.b64encode(proof).decode()}".encode())
    assert side.is_complete


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(b"r=abc", b"r=abd"),
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b",p=", b",q="),
        lambda final: final[:-4],
        lambda final: final.partition(b",p=")[0] + b",p=",
        lambda final: final.partition(b",p=")[0] + b",p=%%",
        lambda final: final.partition(b",p=")[0] + b",p=AAAA",
        lambda _: b"",
        lambda _: b"n,,n=user,r=abc",
    ],
)
def test_a_final_message_is_refused(change: Callable[[bytes], bytes]) -> None:
    side, client = server(), ScramClient(SCRAM_SHA_256, "user", "pencil", "abc")
    final = client.final(side.respond(client.first()))
    with pytest.raises(SaslError):
        side.respond(change(final))
    assert not side.is_complete


def test_a_final_message_counts_once() -> None:
    side, client = server(), ScramClient(SCRAM_SHA_256, "user", "pencil", "abc")
    final = client.final(side.respond(client.first()))
    side.respond(final)
    with pytest.raises(SaslError):
        side.respond(final)
    with pytest.raises(SaslError):  # nor in another exchange
        other = ScramServer(SCRAM_SHA_256, lookup, UNKNOWN, "another nonce")
        other.respond(client.first())
        other.respond(final)


@given(st.lists(st.binary(max_size=200), max_size=3))
def test_no_bytes_log_in_or_raise_anything_else(messages: list[bytes]) -> None:
    side = server()
    for message in messages:
        with suppress(SaslError):
            side.respond(message)
    assert not side.is_complete


def plain(message: bytes) -> PlainServer:
    side = PlainServer(lookup, UNKNOWN)
    side.begin(message)
    side.end(is_right=side.check())
    return side


def test_plain_checks_the_password_of_any_mechanism() -> None:
    assert plain(b"\0user\0pencil").user == "user"
    assert plain(b"user\0user\0pencil").is_complete
    for message in (b"\0user\0Pencil", b"\0nobody\0pencil"):
        with pytest.raises(SaslError, match="invalid credentials"):
            plain(message)


@pytest.mark.parametrize("password", [None, "another", "pencil"])
@pytest.mark.parametrize("is_plain", [False, True])
def test_a_credential_that_is_removed_or_replaced_during_a_login_completes_none(
    is_plain: bool, password: str | None
) -> None:
    salted = SCRAM_SHA_256.salted_password(password or "", b"another salt", 4096)
    replaced = ScramCredential.of_salted(SCRAM_SHA_256, salted, b"another salt", 4096) if password else None
    credentials = [STORED["user", "SCRAM-SHA-256"], replaced]  # at the first look-up and afterwards

    def changing(*_: str) -> ScramCredential | None:
        return credentials.pop(0)

    with pytest.raises(SaslError, match="invalid credentials"):
        if is_plain:
            plain_side = PlainServer(changing, UNKNOWN)
            plain_side.begin(b"\0user\0pencil")
            plain_side.end(is_right=plain_side.check())
        else:
            side, client = (
                ScramServer(SCRAM_SHA_256, changing, UNKNOWN, NONCE),
                ScramClient(SCRAM_SHA_256, "user", "pencil", "nonce"),
            )
            side.respond(client.final(side.respond(client.first())))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0",
        b"\0user\0",
        b"\0\0pencil",
        b"bob\0user\0pencil",
        b"\0user\0pencil\0",
        b"\xff\0user\0p",
        b"\0" + b"u" * 5000 + b"\0p",
    ],
)
def test_a_plain_message_is_refused(message: bytes) -> None:
    with pytest.raises(SaslError):
        plain(message)


def test_secrets_are_in_no_text() -> None:
    found = STORED["user", "SCRAM-SHA-256"]
    assert repr(found) == str(found) == "ScramCredential(iterations=4096, ...)"


def test_an_unknown_user_has_what_most_users_have() -> None:
    shapes = Counter({Shape(8192, 24): 2, Shape(4096, 40): 3})
    unknown = UnknownUsers(lambda: b"secret", lambda _: shapes)
    for mechanism in MECHANISMS.values():
        assert unknown.credential("eve", mechanism).shape == Shape(4096, 40)
        assert unknown.most_iterations(mechanism) == 8192
        assert UNKNOWN.credential("eve", mechanism).shape == Shape(DEFAULT_ITERATIONS, SALT_BYTES)
