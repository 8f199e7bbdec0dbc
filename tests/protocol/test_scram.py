"""SCRAM's messages against the examples of the RFCs, and the client against a server that cheats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.protocol.scram import (
    MECHANISMS,
    SCRAM_SHA_256,
    Mechanism,
    SaslError,
    ScramClient,
    escape,
    unescape,
)

RFC_5802 = (
    Mechanism("SCRAM-SHA-1", 0, "sha1"),
    "fyko+d2lbbFgONRv9qkxdawL",
    "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)
RFC_7677 = (
    SCRAM_SHA_256,
    "rOprNGfwEbeRWgbNEkqO",
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)


@pytest.mark.parametrize("example", [RFC_5802, RFC_7677])
def test_a_client_speaks_as_in_the_examples(example: tuple[Mechanism, str, str, str, str]) -> None:
    mechanism, nonce, challenge, final, answer = example
    client = ScramClient(mechanism, "user", "pencil", nonce)
    assert client.first() == f"n,,n=user,r={nonce}".encode()
    assert client.final(challenge.encode()) == final.encode()
    client.verify(answer.encode())


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (b"r=abcdef,s=c2FsdA==,i=4095", "less than 4096"),
        (b"r=abcdef,s=c2FsdA==,i=1638401", "more than"),
        (b"r=abcdef,s=c2FsdA==,i=-1", "less than 4096"),
        (b"r=abcdef,s=c2FsdA==,i=99999999999999", "less than 4096"),
        (b"r=xabcdef,s=c2FsdA==,i=4096", "nonce"),
        (b"r=abc,s=c2FsdA==,i=4096", "nonce"),
        (b"r=abcdef,s=%,i=4096", "base64"),
        (b"s=c2FsdA==,r=abcdef,i=4096", "expected a SCRAM message"),
        (b"r=abcdef", "expected a SCRAM message"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_client_refuses_a_challenge(challenge: bytes, why: str) -> None:
    with pytest.raises(SaslError, match=why):
        ScramClient(SCRAM_SHA_256, "user", "pencil", "abc").final(challenge)


@pytest.mark.parametrize("answer", [b"v=AAAA", b"e=invalid-proof", b"", b"v=", b"v=%"])
def test_a_client_refuses_a_server_that_does_not_know_the_password(answer: bytes) -> None:
    client = ScramClient(SCRAM_SHA_256, "user", "pencil", "abc")
    client.final(b"r=abcdef,s=c2FsdA==,i=4096")
    with pytest.raises(SaslError):
        client.verify(answer)


@given(st.text())
def test_names_survive(user: str) -> None:
    assert unescape(escape(user)) == user
    assert "," not in escape(user)


@pytest.mark.parametrize("name", ["a=b", "=", "=2", "=2c", "=3d", "=3D="])
def test_malformed_names_are_refused(name: str) -> None:
    with pytest.raises(SaslError):
        unescape(name)


def test_mechanisms_have_kafkas_names_and_numbers() -> None:
    assert {name: (each.number, each.key_bytes) for name, each in MECHANISMS.items()} == {
        "SCRAM-SHA-256": (1, 32),
        "SCRAM-SHA-512": (2, 64),
    }
