"""Peers that send or read slowly to make the broker hold memory or files: others are served, and they are closed."""

import logging
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from tests.broker.clients import RawClient, Running, batch, fetch_request, running
from warmlog.broker.net import listener
from warmlog.protocol.request import MetadataRequest

MIB = 1 << 20
EVICTED = 'warmlog_connections_evicted_total{reason="memory"}'
SLOW = 'warmlog_connections_evicted_total{reason="slow"}'


async def begin_upload(broker: Running, announced: int, sent: int) -> RawClient:
    """Send the beginning of a frame."""
    peer = await broker.connect()
    with suppress(trio.BrokenResourceError):
        await peer.stream.send_all(struct.pack(">i", announced) + bytes(sent))
    return peer


async def is_closed(peer: RawClient) -> bool:
    """Whether the broker has closed the connection, with a reset if it had not read everything."""
    with trio.move_on_after(0.05):
        try:
            return not await peer.stream.receive_some(1)
        except trio.BrokenResourceError:
            return True
    return False


async def served_until(broker: Running, holds: Callable[[dict[str, float]], bool]) -> None:
    with trio.fail_after(20):
        while not holds(await broker.scrape()):
            pass


async def test_slow_uploads_of_many_connections_delay_no_produce(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warmlog.broker.net.services")
    settings = {"queued.max.request.bytes": 8 * MIB, "message.max.bytes": 2 * MIB}
    async with running(tmp_path, settings, http="127.0.0.1:0") as broker:
        client = await broker.connect()
        await client.create("orders")
        uploads = [await begin_upload(broker, 3 * MIB, 100_000) for _ in range(20)]
        with trio.fail_after(20):
            for size in (150_000, 900_000, 1_500_000):
                assert (await client.produce("orders", batch(b"x" * size))).base_offset >= 0
        evicted = (await broker.scrape())[EVICTED]
        assert evicted >= 1
        assert sum([await is_closed(upload) for upload in uploads]) >= evicted
    assert any("closed: holds 2097152 bytes for a message that moves at" in line for line in caplog.messages)


async def test_incomplete_small_frames_count_and_give_way(tmp_path: Path) -> None:
    async with running(tmp_path, {"queued.max.request.bytes": MIB}, http="127.0.0.1:0") as broker:
        client = await broker.connect()
        await client.create("orders")
        uploads = [await begin_upload(broker, 65_000, 60_000) for _ in range(40)]
        await served_until(broker, lambda metrics: metrics["warmlog_inflight_bytes"] <= MIB)
        with trio.fail_after(20):
            assert (await client.produce("orders", batch(b"x" * 500_000))).base_offset == 0
        assert sum([await is_closed(upload) for upload in uploads]) >= 40 - MIB // 60_000


async def test_a_slow_reader_of_a_large_reply_gives_way_to_others(tmp_path: Path) -> None:
    settings = {"warmlog.queued.max.reply.bytes": 9 * MIB}
    async with running(tmp_path, settings, http="127.0.0.1:0") as broker:
        names = tuple(f"{number:06d}" + "n" * 100 for number in range(9_000))
        readers = []
        for _ in range(4):
            reader = await broker.connect()
            reader.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await reader.send(MetadataRequest(topics=names))
            readers.append(reader)
        client = await broker.connect()
        with trio.fail_after(30):
            answer = await client.ask(MetadataRequest(topics=names))
            assert len(answer.topics) == 9_000, answer
        assert (await broker.scrape())[EVICTED] >= 1


async def test_a_slow_reader_does_not_keep_a_deleted_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "OVERDUE_CHECK_S", 0.02)
    settings = {
        "warmlog.slow.peer.timeout.ms": 100,
        "warmlog.slow.peer.bytes": 1,
    }
    async with running(tmp_path, settings, http="127.0.0.1:0") as broker:
        client = await broker.connect()
        await client.create("orders")
        for _ in range(8):
            await client.produce("orders", batch(b"x" * 900_000))
        reader = await broker.connect()
        reader.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await reader.send(fetch_request("orders", 0, max_bytes=8 * MIB))
        assert await reader.stream.receive_some(1)
        (tmp_path / "orders-0" / f"{0:020}.log").unlink()
        await served_until(broker, lambda metrics: metrics[SLOW] == 1)
