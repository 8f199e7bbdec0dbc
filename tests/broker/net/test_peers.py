"""Peers that go, stall or push at bad moments: what becomes of their own requests, and that nobody else notices."""

import socket
import struct
from pathlib import Path

import pytest
import trio

from tests.broker.clients import RawClient, Running, batch, fetch_request, produce_request, running
from warmlog.broker.api.context import Context
from warmlog.broker.api.topics.metadata import MetadataApi
from warmlog.broker.net import listener
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import MetadataRequest
from warmlog.protocol.response import MetadataResponse

FOREVER_MS = 2**31 - 1

pytestmark = pytest.mark.usefixtures("sends")


async def reset(client: RawClient) -> None:
    """Close so that the other end gets a reset."""
    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await client.stream.aclose()


async def served(broker: Running) -> None:
    """Some round trips: whatever was to happen in the broker's loop has happened."""
    client = await broker.connect()
    for _ in range(20):
        await client.ask(MetadataRequest())


@pytest.fixture
def eager_silence_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "OVERDUE_CHECK_S", 0.02)


async def test_a_reset_while_a_fetch_waits_is_no_defect(broker: Running, caplog: pytest.LogCaptureFixture) -> None:
    client = await broker.connect()
    await client.create("orders")
    await client.send(fetch_request("orders", 0, max_wait_ms=FOREVER_MS))
    await served(broker)
    await reset(client)
    await served(broker)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.usefixtures("eager_silence_check")
async def test_what_is_sent_behind_a_waiting_fetch_is_not_held_against_the_peer(tmp_path: Path) -> None:
    """The broker does not read on while the fetch waits, so half a frame lies there however fast the peer is."""
    settings = {"warmlog.slow.peer.timeout.ms": 500, "connections.max.idle.ms": 500}
    async with running(tmp_path, settings) as broker:
        client = await broker.connect()
        await client.create("orders")
        behind = client.frame(produce_request("orders", batch(b"x" * 100_000)))
        fetch = client.frame(fetch_request("orders", 0, max_wait_ms=1500))
        await client.stream.send_all(fetch + behind[:1000])
        assert await client.reply() is not None  # the fetch, with nothing
        await client.stream.send_all(behind[1000:])
        assert await client.reply() is not None


@pytest.mark.usefixtures("eager_silence_check")
async def test_a_peer_that_does_not_close_behind_a_bad_length_is_dropped(tmp_path: Path) -> None:
    async with running(tmp_path, {"warmlog.slow.peer.timeout.ms": 100}) as broker:
        client = await broker.connect()
        await client.stream.send_all(struct.pack(">i", -1))
        assert (await client.reply()).error is ErrorCode.INVALID_REQUEST
        assert await client.reply() is None
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            while True:
                await client.stream.socket.send(b"x")
                await trio.sleep(0.01)


@pytest.mark.usefixtures("eager_silence_check")
async def test_who_waits_for_room_is_not_dropped_with_the_one_who_holds_it(tmp_path: Path) -> None:
    settings = {"warmlog.slow.peer.timeout.ms": 300, "queued.max.request.bytes": 150_000}
    async with running(tmp_path, settings) as broker:
        holder, client, clock = [await broker.connect() for _ in range(3)]
        await client.create("orders")
        await holder.stream.send_all(struct.pack(">i", 100_000))  # announced, and never sent in full
        await served(broker)
        await client.send(produce_request("orders", batch(b"x" * 80_000)))
        await clock.fetch("orders", 0, max_wait_ms=200)
        await holder.stream.send_all(b"y")  # so its time begins anew, and the other one's would be over first
        assert (await client.reply()).partitions[0].base_offset == 0
        assert await holder.reply() is None


async def test_a_stop_ends_a_waiting_fetch_that_has_requests_behind_it(tmp_path: Path) -> None:
    async with running(tmp_path, {"warmlog.stop.timeout.ms": 10**9}) as broker:
        client = await broker.connect()
        await client.create("orders")
        await client.send(fetch_request("orders", 0, max_wait_ms=FOREVER_MS), MetadataRequest())
        await served(broker)
        broker.stop.set()
        await broker.ended.wait()


@pytest.mark.parametrize("is_reset", [True, False])
async def test_a_peer_that_goes_with_requests_behind_its_waiting_fetch_is_noticed(
    tmp_path: Path, is_reset: bool
) -> None:
    settings = {} if is_reset else {"warmlog.slow.peer.timeout.ms": 100}
    async with running(tmp_path, settings, http="127.0.0.1:0") as broker:
        client, other = await broker.connect(), await broker.connect()
        await client.create("orders")
        await client.send(fetch_request("orders", 0, max_wait_ms=FOREVER_MS), MetadataRequest())
        await served(broker)
        if is_reset:
            await reset(client)
        else:
            await client.stream.send_eof()
            assert len((await client.reply()).partitions[0].records) == 0
            assert (await client.reply()).topics[0].name == "orders"
            assert await client.reply() is None
        while (await broker.scrape())['warmlog_connections{listener="native"}'] > 2:  # the other, and of `served`
            await other.ask(MetadataRequest())


@pytest.mark.parametrize("closes_later", [True, False])
async def test_a_half_closed_peer_gets_the_replies_to_all_it_has_sent(broker: Running, closes_later: bool) -> None:
    client, writer = await broker.connect(), await broker.connect()
    await client.create("orders")
    await client.send(fetch_request("orders", 0, max_wait_ms=FOREVER_MS), MetadataRequest())
    await client.send(fetch_request("orders", 1, max_wait_ms=10), produce_request("orders", batch(b"last")))
    if closes_later:
        await served(broker)
    await client.stream.send_eof()
    await served(broker)
    await writer.produce("orders", batch(b"first"))
    assert len((await client.reply()).partitions[0].records) > 0
    assert (await client.reply()).topics[0].name == "orders"
    assert len((await client.reply()).partitions[0].records) == 0
    assert (await client.reply()).partitions[0].base_offset == 1
    assert await client.reply() is None


async def test_what_was_stored_before_a_failed_produce_without_acks_is_acknowledged(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders")
    await client.send(
        produce_request("orders", batch(b"kept")),
        produce_request("orders", b"no batch", acks=0),
        produce_request("orders", batch(b"behind")),
    )
    reply = await client.reply()
    assert (reply.partitions[0].error, reply.partitions[0].base_offset) == (ErrorCode.NONE, 0)
    with pytest.raises((trio.BrokenResourceError, AssertionError)):
        assert await client.reply() is not None


async def test_who_connects_without_end_does_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, {"max.connections": 1}) as broker:
        client = await broker.connect()
        for _ in range(20):
            refused = await broker.connect(hello=False)
            assert await refused.reply() is None
        assert (await client.ask(MetadataRequest())).topics == ()
    (warning,) = [record.message for record in caplog.records]
    assert warning.startswith("native: refused 127.0.0.1:")
    assert warning.endswith(": 1 connections are open, the maximum")


async def test_a_burst_of_small_requests_leaves_others_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read brings thousands; answered without a pause, they took a third of a second of everybody else's."""
    turn = 0
    handled_in = set()
    metadata = MetadataApi.metadata

    async def noted(api: MetadataApi, request: MetadataRequest, context: Context) -> MetadataResponse:
        handled_in.add(turn)
        return await metadata(api, request, context)

    monkeypatch.setattr(MetadataApi, "metadata", noted)
    async with running(tmp_path) as broker, trio.open_nursery() as nursery:
        client = await broker.connect()

        async def ask() -> None:
            await client.stream.send_all(b"".join(client.frame(MetadataRequest()) for _ in range(300)))
            for _ in range(300):
                await client.reply()
            nursery.cancel_scope.cancel()

        nursery.start_soon(ask)
        while True:
            turn += 1
            await trio.lowlevel.checkpoint()
    assert len(handled_in) > 200
