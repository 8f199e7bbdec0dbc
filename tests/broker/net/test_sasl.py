"""Log in to a listener with SASL: clients that behave, and some that do not."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest
import trio

from tests.broker.clients import Running, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.sasl import FAST, LISTENERS, PASSWORD, create_users, log_in
from warmlog.broker.security import sasl
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.api import APIS
from warmlog.protocol.scram import SCRAM_SHA_256, ScramClient

LIMIT_S = 30
MANY = 500
BEFORE_LOGIN = {"SaslHandshake", "SaslAuthenticate", "ApiVersions"}


@asynccontextmanager
async def secured(path: Path, **others: str) -> AsyncIterator[Running]:
    given = {**FAST, **{name.replace("_", "."): value for name, value in others.items()}}
    async with running(path / "data", given, http="127.0.0.1:0") as broker:
        await create_users(broker, "alice", "bob", "=,comma=")
        yield broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Running]:
    async with secured(tmp_path) as broker:
        yield broker


@pytest.fixture
async def client(broker: Running) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.named["sasl"]) as client:
        yield client


async def is_closed(client: KafkaClient) -> bool:
    """Whether the broker closes the connection without another byte."""
    with trio.fail_after(LIMIT_S):
        try:
            return await client.stream.receive_some() == b""
        except trio.BrokenResourceError:
            return True


async def works(client: KafkaClient) -> bool:
    return (await client.ask("Metadata", topics=None))["cluster_id"] is not None


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
async def test_a_client_with_the_password_is_served(broker: Running, client: KafkaClient, mechanism: str) -> None:
    assert (await client.ask("ApiVersions", 2))["error_code"] == 0
    reply = await log_in(client, mechanism=mechanism)
    assert (reply["error_code"], reply["session_lifetime_ms"]) == (ErrorCode.NONE, 0)
    assert await works(client)
    assert (await client.ask("ApiVersions", 2))["error_code"] == 0
    samples = await broker.scrape()
    assert samples[f'warmlog_logins_total{{listener="sasl",mechanism="{mechanism}",result="ok"}}'] == 1


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", PASSWORD), ("alice", PASSWORD + " ")])
async def test_others_are_refused_with_one_answer_and_no_trace_of_what_they_sent(
    broker: Running, client: KafkaClient, mechanism: str, user: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        reply = await log_in(client, user, password, mechanism)
    assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert reply["error_message"] == f"login with {mechanism} failed: invalid credentials"
    assert await is_closed(client)
    assert f"login failed: {mechanism}: invalid credentials" in caplog.text
    assert "127.0.0.1" in caplog.text
    assert password not in caplog.text
    assert user not in caplog.text
    samples = await broker.scrape()
    assert samples[f'warmlog_logins_total{{listener="sasl",mechanism="{mechanism}",result="failed"}}'] == 1


async def test_names_with_separators_log_in(client: KafkaClient) -> None:
    assert (await log_in(client, "=,comma="))["error_code"] == 0
    assert await works(client)


@pytest.mark.parametrize("api", [api for api in APIS if api.name not in BEFORE_LOGIN], ids=lambda api: api.name)
async def test_no_other_request_is_answered_before_a_login(client: KafkaClient, api: object) -> None:
    header = int(api.key).to_bytes(2) + int(api.last).to_bytes(2) + bytes(4) + b"\xff\xff" + bytes(40)  # type: ignore[attr-defined]
    await client.stream.send_all(len(header).to_bytes(4) + header)
    assert await is_closed(client)


async def test_nor_during_one(client: KafkaClient) -> None:
    await client.ask("SaslHandshake", 1, mechanism="SCRAM-SHA-256")
    await client.send("Metadata", topics=None)
    assert await is_closed(client)


@pytest.mark.parametrize("frame", [b"", b"\0", b"\0\x12", b"\xff\xff\xff\xff", b"\0\x24\0\2garbage" * 9])
async def test_half_a_header_closes(client: KafkaClient, frame: bytes) -> None:
    await client.stream.send_all(len(frame).to_bytes(4) + frame)
    assert await is_closed(client)


async def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(client: KafkaClient) -> None:
    reply = await client.ask("SaslHandshake", 1, mechanism="GSSAPI")
    assert reply["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert set(reply["mechanisms"]) == {"SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"}
    assert await is_closed(client)


async def test_tokens_without_a_mechanism_close(client: KafkaClient) -> None:
    reply = await client.ask("SaslAuthenticate", auth_bytes=b"n,,n=alice,r=abc")
    assert reply["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
    assert await is_closed(client)


async def test_a_second_handshake_closes(client: KafkaClient) -> None:
    await client.ask("SaslHandshake", 1, mechanism="PLAIN")
    reply = await client.ask("SaslHandshake", 1, mechanism="SCRAM-SHA-256")
    assert reply["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
    assert await is_closed(client)


async def test_a_final_message_sent_again_changes_nothing_and_logs_in_nowhere_else(
    broker: Running, client: KafkaClient
) -> None:
    scram = ScramClient(SCRAM_SHA_256, "alice", PASSWORD, "nonce")
    await client.ask("SaslHandshake", 1, mechanism="SCRAM-SHA-256")
    reply = await client.ask("SaslAuthenticate", auth_bytes=scram.first())
    final = scram.final(bytes(reply["auth_bytes"]))
    assert (await client.ask("SaslAuthenticate", auth_bytes=final))["error_code"] == 0
    assert (await client.ask("SaslAuthenticate", auth_bytes=final))["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
    assert await works(client)
    async with kafka_client(broker.addresses.named["sasl"]) as other:
        await other.ask("SaslHandshake", 1, mechanism="SCRAM-SHA-256")
        await other.ask("SaslAuthenticate", auth_bytes=scram.first())
        reply = await other.ask("SaslAuthenticate", auth_bytes=final)
        assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await is_closed(other)


async def test_frames_are_limited_until_the_login(broker: Running, client: KafkaClient) -> None:
    for size in (-1, (512 << 10) + 1, 1 << 30):
        async with kafka_client(broker.addresses.named["sasl"]) as other:
            await other.stream.send_all(size.to_bytes(4, signed=True))
            assert await is_closed(other)
    await client.ask("SaslHandshake", 1, mechanism="SCRAM-SHA-256")
    reply = await client.ask("SaslAuthenticate", auth_bytes=b"n,,n=" + bytes(400_000))
    assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
    async with kafka_client(broker.addresses.named["sasl"], client_id="x") as other:
        await log_in(other)
        reply = await other.ask("DescribeUserScramCredentials", users=[{"name": "u" * 32_000} for _ in range(30)])
        assert len(reply["results"]) == 1


async def test_old_clients_send_tokens_without_headers(broker: Running, client: KafkaClient) -> None:
    async def exchange(client: KafkaClient, token: bytes) -> bytes:
        await client.stream.send_all(len(token).to_bytes(4) + token)
        found = await client._frame()
        return b"" if found is None else bytes(found)

    assert (await client.ask("SaslHandshake", 0, mechanism="SCRAM-SHA-256"))["error_code"] == 0
    scram = ScramClient(SCRAM_SHA_256, "alice", PASSWORD, "nonce")
    scram.verify(await exchange(client, scram.final(await exchange(client, scram.first()))))
    assert await works(client)
    async with kafka_client(broker.addresses.named["sasl"]) as other:
        await other.ask("SaslHandshake", 0, mechanism="PLAIN")
        assert await exchange(other, b"\0alice\0wrong") == b""


async def test_logins_are_renewed_on_the_same_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl, "REAUTHENTICATION_PAUSE_S", 0.0)
    async with (
        secured(tmp_path, connections_max_reauth_ms="3600000") as broker,
        kafka_client(broker.addresses.named["sasl"]) as client,
    ):
        for _ in range(3):
            assert (await log_in(client))["error_code"] == 0
            assert await works(client)
        assert (await log_in(client, "bob"))["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await is_closed(client)


async def test_a_login_that_does_not_expire_or_was_just_renewed_stays_without_another_one(
    tmp_path: Path, broker: Running, client: KafkaClient
) -> None:
    async with (
        secured(tmp_path / "other", connections_max_reauth_ms="3600000") as expiring,
        kafka_client(expiring.addresses.named["sasl"]) as renewed,
    ):
        for each, logins in ((client, 1), (renewed, 2)):
            for _ in range(logins):
                assert (await log_in(each))["error_code"] == 0
            handshake = await each.ask("SaslHandshake", 1, mechanism="SCRAM-SHA-256")
            assert handshake["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
            assert await works(each)


async def test_an_expired_login_is_good_for_another_login_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl, "REAUTHENTICATION_PAUSE_S", 0.0)
    async with (
        secured(tmp_path, connections_max_reauth_ms="1") as broker,
        kafka_client(broker.addresses.named["sasl"]) as client,
    ):
        for _ in range(3):
            assert (await log_in(client))["session_lifetime_ms"] == 1
        with trio.fail_after(LIMIT_S):
            while await has_answer(client):
                pass


async def has_answer(client: KafkaClient) -> bool:
    try:
        return await works(client)
    except (AssertionError, trio.BrokenResourceError):
        return False


async def test_clients_that_stop_in_the_middle_are_closed_and_delay_no_other(tmp_path: Path) -> None:
    async with secured(tmp_path, warmlog_sasl_timeout_ms="2000") as broker:
        address = broker.addresses.named["sasl"]
        closed: list[bool] = []

        async def stop_in_the_middle(number: int) -> None:
            async with kafka_client(address) as client:
                if number % 3:
                    await client.ask("SaslHandshake", 1, mechanism="SCRAM-SHA-256")
                if number % 3 == 2:
                    await client.stream.send_all((400_000).to_bytes(4) + bytes(40_000))
                closed.append(await is_closed(client))

        async with trio.open_nursery() as others:
            for number in range(MANY):
                others.start_soon(stop_in_the_middle, number)
            async with kafka_client(address) as client:
                await log_in(client)
                with trio.fail_after(LIMIT_S):
                    for _ in range(100):
                        assert await works(client)
        assert closed == [True] * MANY


async def test_a_failed_login_is_answered_late_and_delays_no_other(tmp_path: Path) -> None:
    given = {**LISTENERS, "connection.failed.authentication.delay.ms": str(1000 * LIMIT_S)}
    async with running(tmp_path / "data", given) as broker, trio.open_nursery() as nursery:
        await create_users(broker, "alice")

        async def fail() -> None:
            async with kafka_client(broker.addresses.named["sasl"]) as client:
                await log_in(client, password="wrong")
                raise AssertionError("answered")

        for _ in range(20):
            nursery.start_soon(fail)
        async with kafka_client(broker.addresses.named["sasl"]) as client:
            assert (await log_in(client))["error_code"] == 0
        nursery.cancel_scope.cancel()


async def test_garbage_in_place_of_a_login_closes_its_connection_only(broker: Running) -> None:
    random = Random(7)
    scram = ScramClient(SCRAM_SHA_256, "alice", PASSWORD, "nonce")
    address = broker.addresses.named["sasl"]

    async def send(data: bytes) -> None:
        async with kafka_client(address) as client:
            with suppress(trio.BrokenResourceError):
                await client.stream.send_all(data)
                await client.stream.send_eof()
                with trio.fail_after(LIMIT_S):
                    while await client.stream.receive_some():
                        pass

    handshake = bytes.fromhex("0011 0001 00000001 ffff") + b"\0\x0dSCRAM-SHA-256"
    first = bytes.fromhex("0024 0000 00000002 ffff") + len(scram.first()).to_bytes(4) + scram.first()
    whole = b"".join(len(each).to_bytes(4) + each for each in (handshake, first))
    async with trio.open_nursery() as nursery:
        for _ in range(MANY):
            data = bytearray(whole)
            for _ in range(random.randrange(1, 8)):
                data[random.randrange(len(data))] = random.randrange(256)
            nursery.start_soon(send, bytes(data[: random.randrange(len(data))]))
    async with kafka_client(address) as client:
        assert (await log_in(client))["error_code"] == 0


async def test_a_listener_without_sasl_says_so(broker: Running) -> None:
    async with kafka_client(broker.addresses.named["open"]) as client:
        reply = await client.ask("SaslHandshake", 1, mechanism="SCRAM-SHA-256")
        assert (reply["error_code"], reply["mechanisms"]) == (ErrorCode.ILLEGAL_SASL_STATE, ())
        assert await works(client)
