"""Log in with tokens: clients that have one, and some that do not."""

import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import Running, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.sasl import LISTENERS
from tests.broker.net.test_sasl import has_answer, is_closed, works
from tests.issuer import Issuer, running_issuer
from warmlog.broker.security import sasl
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.types import SettingError
from warmlog.broker.start_errors import StartError, first_of
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.oauthbearer import ACKNOWLEDGED, REFUSAL, first_message

FAILED = 'warmlog_logins_total{listener="sasl",mechanism="OAUTHBEARER",result="failed"}'


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@asynccontextmanager
async def accepting(path: Path, issuer: Issuer, **others: str) -> AsyncIterator[Running]:
    listeners = {name: value for name, value in LISTENERS.items() if not name.startswith("listener.name")}
    given = {**listeners, **issuer.settings(connection_failed_authentication_delay_ms="0", **others)}
    async with running(path / "data", given, http="127.0.0.1:0") as broker:
        yield broker


async def log_in(client: KafkaClient, message: bytes | str) -> dict[str, Any]:
    """Log in with a message or a token, and return the first reply."""
    reply = await client.ask("SaslHandshake", 1, mechanism="OAUTHBEARER")
    assert reply["error_code"] == 0, reply
    data = first_message(message) if isinstance(message, str) else message
    return await client.ask("SaslAuthenticate", auth_bytes=data)


async def test_a_client_with_a_token_is_served_until_that_expires(tmp_path: Path, issuer: Issuer) -> None:
    async with accepting(tmp_path, issuer) as broker, kafka_client(broker.addresses.named["sasl"]) as client:
        reply = await log_in(client, issuer.token())
        assert (reply["error_code"], reply["auth_bytes"]) == (0, b"")
        assert 290_000 < reply["session_lifetime_ms"] <= 300_000
        assert await works(client)


async def test_a_session_is_no_longer_than_the_broker_allows(tmp_path: Path, issuer: Issuer) -> None:
    async with (
        accepting(tmp_path, issuer, connections_max_reauth_ms="7000") as broker,
        kafka_client(broker.addresses.named["sasl"]) as client,
    ):
        assert (await log_in(client, issuer.token()))["session_lifetime_ms"] == 7000


async def test_a_token_is_refused_with_json_and_then_the_login_fails(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    token = issuer.token(iss="https://other")
    async with accepting(tmp_path, issuer) as broker, kafka_client(broker.addresses.named["sasl"]) as client:
        with caplog.at_level(logging.DEBUG):
            reply = await log_in(client, token)
            assert (reply["error_code"], reply["auth_bytes"]) == (0, REFUSAL)
            assert (await broker.scrape())[FAILED] == 1
            reply = await client.ask("SaslAuthenticate", auth_bytes=ACKNOWLEDGED)
        assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert reply["error_message"] == f"login with OAUTHBEARER failed: {REFUSAL.decode()}"
        assert await is_closed(client)
        assert (await broker.scrape())[FAILED] == 1
    assert "login failed: OAUTHBEARER: the token has another or an invalid value: iss" in caplog.text
    assert token not in caplog.text
    assert token.split(".")[1] not in caplog.text


@pytest.mark.parametrize("after", [first_message("another"), b"", b"\2"])
async def test_nothing_follows_a_refusal_but_its_acknowledgement(tmp_path: Path, issuer: Issuer, after: bytes) -> None:
    async with accepting(tmp_path, issuer) as broker, kafka_client(broker.addresses.named["sasl"]) as client:
        await log_in(client, "abc")
        reply = await client.ask("SaslAuthenticate", auth_bytes=after)
        assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await is_closed(client)


async def test_a_refused_client_has_no_other_request_answered(tmp_path: Path, issuer: Issuer) -> None:
    async with accepting(tmp_path, issuer) as broker, kafka_client(broker.addresses.named["sasl"]) as client:
        await log_in(client, "abc")
        await client.send("Metadata", topics=None)
        assert await is_closed(client)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"n,a=bob,\1auth=Bearer %s\1\1", "a client cannot act for another user"),
        (b"n,,\1auth=Basic %s\1\1", "expected auth=Bearer"),
        (b"\1", "invalid OAUTHBEARER message"),
        (b"", "invalid OAUTHBEARER message"),
    ],
)
async def test_messages_beside_the_grammar_close(tmp_path: Path, issuer: Issuer, message: bytes, why: str) -> None:
    async with accepting(tmp_path, issuer) as broker, kafka_client(broker.addresses.named["sasl"]) as client:
        reply = await log_in(client, message.replace(b"%s", issuer.token().encode()))
        assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert why in reply["error_message"]
        assert await is_closed(client)


async def test_a_client_may_name_its_principal_and_send_extensions(tmp_path: Path, issuer: Issuer) -> None:
    async with accepting(tmp_path, issuer) as broker, kafka_client(broker.addresses.named["sasl"]) as client:
        message = b"n,a=alice,\1auth=Bearer " + issuer.token().encode() + b"\1trace=7\1\1"
        assert (await log_in(client, message))["auth_bytes"] == b""
        assert await works(client)


async def test_old_clients_send_tokens_without_headers(tmp_path: Path, issuer: Issuer) -> None:
    async with accepting(tmp_path, issuer) as broker, kafka_client(broker.addresses.named["sasl"]) as client:
        assert (await client.ask("SaslHandshake", 0, mechanism="OAUTHBEARER"))["error_code"] == 0
        message = first_message(issuer.token())
        await client.stream.send_all(len(message).to_bytes(4) + message)
        assert bytes(await client._frame() or b"x") in {b"", b"x"}
        assert await works(client)


async def test_a_login_is_renewed_by_a_token_of_the_same_principal(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl, "REAUTHENTICATION_PAUSE_S", 0.0)
    async with accepting(tmp_path, issuer) as broker, kafka_client(broker.addresses.named["sasl"]) as client:
        for _ in range(3):
            assert (await log_in(client, issuer.token()))["auth_bytes"] == b""
            assert await works(client)
        reply = await log_in(client, issuer.token("bob"))
        assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await is_closed(client)


async def test_a_session_ends_with_its_token(tmp_path: Path, issuer: Issuer) -> None:
    async with accepting(tmp_path, issuer) as broker, kafka_client(broker.addresses.named["sasl"]) as client:
        expired = issuer.token(exp=issuer.claims()["iat"] - 1)  # within the skew of the clocks
        assert (await log_in(client, expired))["session_lifetime_ms"] == 1
        with trio.fail_after(30):
            while await has_answer(client):
                pass


async def test_a_new_key_of_the_issuer_is_read_when_a_token_has_it(tmp_path: Path, issuer: Issuer) -> None:
    often = {
        "sasl_oauthbearer_jwks_endpoint_retry_backoff_ms": "1",
        "sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms": "2",
    }
    async with accepting(tmp_path, issuer, **often) as broker:
        issuer.rotate()
        with trio.fail_after(30):
            while True:
                async with kafka_client(broker.addresses.named["sasl"]) as client:
                    if (await log_in(client, issuer.token()))["auth_bytes"] == b"":
                        break


async def test_unknown_keys_ask_the_issuer_once(tmp_path: Path, issuer: Issuer) -> None:
    async with accepting(tmp_path, issuer) as broker:
        token = issuer.token()
        issuer.rotate()
        other = issuer.token()
        for _ in range(50):
            async with kafka_client(broker.addresses.named["sasl"]) as client:
                assert (await log_in(client, other))["auth_bytes"] == REFUSAL
        assert issuer.reads == 1
        async with kafka_client(broker.addresses.named["sasl"]) as client:
            assert (await log_in(client, token))["auth_bytes"] == b""


async def test_listeners_have_issuers_of_their_own(tmp_path: Path, issuer: Issuer) -> None:
    given = {
        "listeners": "ONE://127.0.0.1:0,TWO://127.0.0.1:0,NATIVE://127.0.0.1:0",
        "listener.security.protocol.map": "ONE:SASL_PLAINTEXT,TWO:SASL_PLAINTEXT",
        **issuer.settings(),
        "listener.name.two.sasl.oauthbearer.expected.audience": "two",
        "listener.name.two.sasl.oauthbearer.sub.claim.name": "email",
    }
    async with running(tmp_path / "data", given, http="127.0.0.1:0") as broker:
        token = issuer.token(aud="two", email="a@b")
        async with kafka_client(broker.addresses.named["two"]) as client:
            assert (await log_in(client, token))["auth_bytes"] == b""
        async with kafka_client(broker.addresses.named["one"]) as client:
            assert (await log_in(client, token))["auth_bytes"] == REFUSAL
    assert issuer.reads == 1


NEEDED = {
    "sasl.oauthbearer.jwks.endpoint.url": "https://h/jwks",
    "sasl.oauthbearer.expected.issuer": "i",
    "sasl.oauthbearer.expected.audience": "a",
}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": ""}, "jwks.endpoint.url: needed for OAUTHBEARER"),
        ({"sasl.oauthbearer.expected.issuer": " "}, "expected.issuer: needed for OAUTHBEARER"),
        ({"sasl.oauthbearer.expected.audience": ""}, "expected.audience: needed for OAUTHBEARER"),
        ({"sasl.oauthbearer.sub.claim.name": ""}, "sub.claim.name: needed"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "ftp://h/jwks"}, "expected https://HOST/PATH"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https:///jwks"}, "expected https://HOST/PATH"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file:jwks"}, "expected https://HOST/PATH"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https://h:x/jwks"}, "expected https://HOST/PATH"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https://me:secret@h/"}, "cannot contain a user"),
        ({"sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "20000"}, "expected at most"),
        (
            {"sasl.oauthbearer.jwks.endpoint.url": "http://h/", "warmlog.sasl.oauthbearer.ca.file": "ca"},
            "needs an https",
        ),
        ({"listener.name.kafka.sasl.oauthbearer.clock.skew.seconds": "x"}, "clock.skew.seconds: expected int"),
        ({"warmlog.sasl.plain.without.tls": "false"}, "OAUTHBEARER would send tokens in clear"),
    ],
)
def test_settings_that_lack_something_are_refused(changes: dict[str, str], why: str) -> None:
    given = {
        "listener.security.protocol.map": "kafka:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "warmlog.sasl.plain.without.tls": "true",
        **NEEDED,
        **changes,
    }
    with pytest.raises(SettingError, match=why) as error:
        load_settings(assignments=[f"{name}={value}" for name, value in given.items()])
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file"), ("{}", "expected an array"), ("x" * (1 << 20) + "x", "more than")]
)
async def test_a_file_without_keys_stops_the_start(
    tmp_path: Path, issuer: Issuer, content: str | None, why: str
) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    given = {**LISTENERS, **issuer.settings(), "sasl.oauthbearer.jwks.endpoint.url": f"file:{path}"}
    del given["listener.name.sasl.sasl.enabled.mechanisms"]
    with pytest.raises(ExceptionGroup) as group:
        async with running(tmp_path / "data", given):
            raise AssertionError("started")
    error = first_of(group.value)
    assert isinstance(error, StartError)
    assert str(error).startswith(f"sasl.oauthbearer.jwks.endpoint.url: file:{path}: ")
    assert why in str(error)


def test_a_missing_package_is_named(tmp_path: Path, issuer: Issuer) -> None:
    settings = {"listener.security.protocol.map": "kafka:SASL_PLAINTEXT", **issuer.settings()}
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    program = "import sys; sys.modules['joserfc'] = None; from warmlog.cli import main; sys.exit(main())"
    addresses = ["--kafka", "127.0.0.1:0", "--native", "none", "--http", "none"]
    command = [sys.executable, "-c", program, "serve", "--data-dir", str(tmp_path / "data"), *addresses, *options]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode != 0
    assert "tokens need the package joserfc: pip install 'warmlog[oauth]'" in found.stderr


async def test_a_file_of_keys_may_have_any_name(tmp_path: Path, issuer: Issuer) -> None:
    path = tmp_path / "keys of ä%.json"
    path.write_bytes(issuer.jwks)
    async with (
        accepting(tmp_path, issuer, sasl_oauthbearer_jwks_endpoint_url=path.as_uri()) as broker,
        kafka_client(broker.addresses.named["sasl"]) as client,
    ):
        assert (await log_in(client, issuer.token()))["auth_bytes"] == b""
