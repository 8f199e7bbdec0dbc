"""Peers of the Kafka listener that stall, go or come in crowds: what becomes of them, and that nobody else notices.

The same is held of the native listener in test_peers.py and test_serving.py.
"""

import logging
import socket
import struct
from pathlib import Path

import pytest
import trio

from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.kafka.fetcher import Fetcher, served
from warmlog.broker.net import listener
from warmlog.protocol.errors import ErrorCode

FOREVER_MS = 2**31 - 1


@pytest.fixture
def eager_silence_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "OVERDUE_CHECK_S", 0.02)


async def opened(broker: Running) -> trio.SocketStream:
    host, port = broker.addresses.kafka.rsplit(":", 1)
    return await trio.open_tcp_stream(host, int(port))


async def large_fetcher(native: RawClient, kafka: KafkaClient) -> Fetcher:
    await native.create("orders")
    await native.produce("orders", batch(b"x" * 900_000))
    return await Fetcher.of(kafka, native, 12)


async def test_five_hundred_at_once_are_all_answered(broker: Running) -> None:
    answered = []

    async def client() -> None:
        async with kafka_client(broker.addresses.kafka) as kafka:
            answered.append((await kafka.ask("ApiVersions", 0))["error_code"])
            while len(answered) < 500:  # all of them are connected together
                await kafka.ask("ApiVersions", 0)

    async with trio.open_nursery() as nursery:
        for _ in range(500):
            nursery.start_soon(client)
    assert set(answered) == {ErrorCode.NONE}


async def test_a_consumer_that_takes_nothing_is_dropped_and_holds_up_nobody(tmp_path: Path) -> None:
    async with running(tmp_path, {"warmlog.slow.peer.timeout.ms": 200}) as broker:
        native = await broker.connect()
        async with kafka_client(broker.addresses.kafka) as slow, kafka_client(broker.addresses.kafka) as other:
            fetcher = await large_fetcher(native, slow)
            for _ in range(30):
                await fetcher.send({("orders", 0): 0}, session_epoch=-1)
            quick = Fetcher(other, 12, fetcher.names)
            for offset in range(1, 6):
                await native.produce("orders", batch(b"y"))
                assert (await quick.fetch({("orders", 0): offset}, session_epoch=-1, session_id=0))["orders", 0][
                    "records"
                ]
            with pytest.raises(trio.BrokenResourceError):
                while True:
                    await fetcher.send({("orders", 0): 0}, session_epoch=-1)


@pytest.mark.usefixtures("eager_silence_check")
async def test_a_peer_that_stops_within_a_frame_is_dropped(tmp_path: Path) -> None:
    async with running(tmp_path, {"warmlog.slow.peer.timeout.ms": 50}) as broker, await opened(broker) as stream:
        await stream.send_all(b"\x00\x00\x01")
        assert await stream.receive_some() == b""


@pytest.mark.usefixtures("eager_silence_check")
async def test_a_silent_peer_is_dropped_after_its_time(tmp_path: Path) -> None:
    async with running(tmp_path, {"connections.max.idle.ms": 50}) as broker, await opened(broker) as stream:
        assert await stream.receive_some() == b""


async def test_a_peer_that_closes_its_side_while_its_fetch_waits_is_answered_after_some_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(tmp_path, {"warmlog.slow.peer.timeout.ms": 100}) as broker,
        kafka_client(broker.addresses.kafka) as kafka,
    ):
        native = await broker.connect()
        fetcher = await large_fetcher(native, kafka)
        await fetcher.fetch({("orders", 0): 1})
        await fetcher.send({}, max_wait_ms=FOREVER_MS)
        await served(broker)
        await kafka.stream.send_eof()
        assert (await kafka.reply())["error_code"] == ErrorCode.NONE
        assert await kafka.stream.receive_some() == b""
    assert caplog.records == []


async def test_a_reset_while_a_fetch_of_a_session_waits_is_no_defect(
    broker: Running, caplog: pytest.LogCaptureFixture
) -> None:
    native = await broker.connect()
    async with kafka_client(broker.addresses.kafka) as kafka:
        fetcher = await large_fetcher(native, kafka)
        await fetcher.fetch({("orders", 0): 1})
        await fetcher.send({}, max_wait_ms=FOREVER_MS)
        await served(broker)
        kafka.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await served(broker)
    await native.produce("orders", batch(b"y"))
    assert caplog.records == []


async def test_who_sends_nonsense_without_end_does_not_fill_the_log(
    broker: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(20):
        async with await opened(broker) as stream:
            await stream.send_all(struct.pack(">ihh", 4, -1, 0))
            assert await stream.receive_some() == b""
    assert caplog.text.count("closed") == len(caplog.records) == 1
