"""Replies over a transport that is not plain: file slices are sent as bytes, and a part that does not fit is kept."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.broker.clients import Running, batch, running
from tests.broker.log.io.eviction import evict_files, needs_eviction
from warmlog.broker.net import listener
from warmlog.broker.net.sendfile import SlicePath
from warmlog.broker.net.transport.transport import PlainTransport
from warmlog.protocol.request import FetchPartition, FetchRequest

VALUES = 24
KEPT_BYTES = 8 << 10


class KeepingTransport:
    """Passes on the bytes of a socket as they are, but keeps some that the socket could have taken."""

    def __init__(self, sock: socket.socket) -> None:
        self._plain = PlainTransport(sock)
        self._kept = b""
        self.fd = sock.fileno()
        self.is_plain = False
        self.received_bytes = 0
        self.recv = self._plain.recv
        self.close = self._plain.close
        self.shutdown = self._plain.shutdown

    @property
    def unsent_bytes(self) -> int:
        return len(self._kept)

    def recv_into(self, _buffer: memoryview) -> int:
        raise AssertionError("it is not plain")

    def send(self, data: bytes | memoryview, _flags: int = 0) -> int:
        if not self.flush():
            raise BlockingIOError
        taken = bytes(data[: 100 << 10])
        self._kept = taken[-KEPT_BYTES:]
        rest = self._send(taken[:-KEPT_BYTES])
        self._kept = rest + self._kept
        return len(taken)

    def flush(self) -> bool:
        self._kept = self._send(self._kept)
        return not self._kept

    def _send(self, data: bytes) -> bytes:
        try:
            return data[self._plain.send(data) :]
        except BlockingIOError:
            return data


@pytest.fixture(autouse=True)
def not_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "PlainTransport", KeepingTransport)


async def produced(broker: Running) -> bytes:
    """Produce more than a socket accepts at once; return the batches, with the offsets that they got."""
    client, batches = await broker.connect(), b""
    await client.create("orders")
    for offset in range(VALUES):
        records = batch(os.urandom(200 << 10))
        await client.produce("orders", records)
        batches += offset.to_bytes(8, "big") + records[8:12] + bytes(4) + records[16:]
    return batches


async def fetched(broker: Running) -> bytes:
    client = await broker.connect()
    asked = FetchPartition(topic="orders", partition=0, offset=0, max_bytes=1 << 30)
    reply = await client.ask(FetchRequest(partitions=(asked,), max_wait_ms=0))
    return bytes(reply.partitions[0].records)


async def test_a_large_reply_arrives_complete(tmp_path: Path) -> None:
    async with running(tmp_path, http="127.0.0.1:0") as broker:
        batches = await produced(broker)
        assert await fetched(broker) == batches
        samples = await broker.scrape()
    assert samples['warmlog_bytes_out_total{path="sendfile"}'] == 0
    assert samples['warmlog_bytes_out_total{path="copy"}'] >= len(batches)


async def test_slices_that_are_not_resident_arrive_as_well(tmp_path: Path) -> None:
    needs_eviction(tmp_path)
    async with running(tmp_path) as broker:
        batches = await produced(broker)
        evict_files(tmp_path / "orders-0")
        assert await fetched(broker) == batches


async def test_slices_that_do_not_stay_resident_are_read_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def evicted_again(*_: Any) -> bool:
        return False

    async with running(tmp_path) as broker:
        batches = await produced(broker)
        monkeypatch.setattr(SlicePath, "_resident_bytes", lambda *_: 0)
        monkeypatch.setattr(SlicePath, "bring", evicted_again)
        assert await fetched(broker) == batches
