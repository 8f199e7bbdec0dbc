"""The native listener over real sockets: what clients get, in which order, and within which limits."""

import struct
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.clients import Running, batch, fetch_request, produce_request, running
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.batch import headers
from warmlog.protocol.request import (
    CreateTopicsRequest,
    HelloRequest,
    ListOffsetsRequest,
    MetadataRequest,
    NewTopic,
    OffsetQuery,
)

pytestmark = pytest.mark.usefixtures("sends")


def values_of(records: memoryview) -> list[int]:
    return [header.base_offset for _, header in headers(records)]


async def test_what_is_produced_is_fetched_byte_for_byte_but_for_the_stamp(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders")
    sent = batch(b"one", b"two")
    assert (await client.produce("orders", sent)).base_offset == 0
    assert (await client.produce("orders", sent)).base_offset == 2
    fetched = await client.fetch("orders", 0)
    assert (fetched.error, fetched.high_watermark, fetched.log_start_offset) == (ErrorCode.NONE, 4, 0)
    first, second = bytes(fetched.records[: len(sent)]), bytes(fetched.records[len(sent) :])
    assert first[16:] == second[16:] == sent[16:]
    assert struct.unpack_from(">q", second) == (2,)


async def test_the_first_request_must_be_a_hello(broker: Running) -> None:
    client = await broker.connect(hello=False)
    reply = await client.ask(MetadataRequest())
    assert reply.error is ErrorCode.INVALID_REQUEST
    assert "hello" in reply.message
    assert (await client.hello()).version == 1


async def test_a_client_of_other_versions_is_told_which_ones_there_are(broker: Running) -> None:
    client = await broker.connect(hello=False)
    reply = await client.ask(HelloRequest(versions=(98, 99)))
    assert reply.error is ErrorCode.UNSUPPORTED_VERSION
    assert "1" in reply.message


async def test_pipelined_requests_are_answered_in_order(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders")
    frames = b"".join(
        client.frame(request)
        for i in range(50)
        for request in (produce_request("orders", batch(b"%d" % i)), fetch_request("orders", i))
    )
    await client.stream.send_all(frames)
    for i in range(50):
        assert (await client.reply()).partitions[0].base_offset == i
        assert values_of((await client.reply()).partitions[0].records) == [i]


async def test_many_produces_in_one_read_are_all_stored_in_order(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders")
    await client.send(*[produce_request("orders", batch(b"x" * 100)) for _ in range(300)])
    assert [(await client.reply()).partitions[0].base_offset for _ in range(300)] == list(range(300))


async def test_large_and_small_batches_from_several_connections_do_not_mix(broker: Running) -> None:
    setup = await broker.connect()
    await setup.create("orders")
    offsets: list[int] = []

    async def push(size: int, count: int) -> None:
        client = await broker.connect()
        await client.send(*[produce_request("orders", batch(b"x" * size)) for _ in range(count)])
        offsets.extend([(await client.reply()).partitions[0].base_offset for _ in range(count)])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(push, 900_000, 6)
        nursery.start_soon(push, 100, 50)
        nursery.start_soon(push, 70_000, 10)
    assert sorted(offsets) == list(range(66))
    position, seen = 0, []
    while position < 66:
        fetched = await setup.fetch("orders", position)
        seen += values_of(fetched.records)
        position = seen[-1] + 1
    assert seen == list(range(66))


async def test_a_request_may_come_byte_by_byte(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders")
    for byte in client.frame(produce_request("orders", batch(b"drip"))):
        await client.stream.send_all(bytes([byte]))
    assert (await client.reply()).partitions[0].base_offset == 0


async def test_a_produce_without_acks_is_stored_and_not_answered(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders")
    await client.send(produce_request("orders", batch(b"quiet"), acks=0))
    assert values_of((await client.fetch("orders", 0)).records) == [0]


async def test_a_failed_produce_without_acks_closes_the_connection(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders")
    await client.send(produce_request("orders", b"garbage", acks=0))
    assert await client.reply() is None


async def test_a_topic_is_created_by_the_first_produce(broker: Running) -> None:
    client = await broker.connect()
    assert (await client.produce("fresh", batch(b"x"))).base_offset == 0


async def test_no_topic_is_created_where_that_is_turned_off(tmp_path: Path) -> None:
    async with running(tmp_path, {"auto.create.topics.enable": "false"}) as broker:
        client = await broker.connect()
        assert (await client.produce("fresh", batch(b"x"))).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        reply = await client.ask(MetadataRequest(topics=("fresh",), auto_create=True))
        assert reply.topics[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- topics --


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic(name="../etc"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic(name="", partitions=1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic(name="there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (NewTopic(name="th_ere"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic(name="zero", partitions=0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic(name="odd", configs={"segment.byte": "5"}), ErrorCode.INVALID_CONFIG),
        (NewTopic(name="odd", configs={"segment.bytes": "-5"}), ErrorCode.INVALID_CONFIG),
        (NewTopic(name="odd", configs={"retention.ms": "-5"}), ErrorCode.INVALID_CONFIG),
    ],
)
async def test_a_topic_that_may_not_be_is_refused_with_the_reason(
    broker: Running, topic: NewTopic, error: ErrorCode
) -> None:
    client = await broker.connect()
    await client.create("there")
    await client.create("th.ere")
    (made,) = (await client.ask(CreateTopicsRequest(topics=(topic,)))).topics
    assert made.error is error
    assert made.message


async def test_validate_only_creates_nothing(broker: Running) -> None:
    client = await broker.connect()
    reply = await client.ask(CreateTopicsRequest(topics=(NewTopic(name="maybe"),), validate_only=True))
    assert reply.topics[0].error is ErrorCode.NONE
    assert (await client.ask(MetadataRequest())).topics == ()


async def test_metadata_names_the_address_at_which_the_client_arrived(broker: Running) -> None:
    client = await broker.connect()
    (found,) = (await client.ask(MetadataRequest())).brokers
    assert f"{found.host}:{found.port}" == broker.addresses.native


async def test_advertised_listeners_override_it(tmp_path: Path) -> None:
    async with running(tmp_path, {"advertised.listeners": "native://broker.example:777"}) as broker:
        client = await broker.connect()
        (found,) = (await client.ask(MetadataRequest())).brokers
        assert (found.host, found.port) == ("broker.example", 777)


async def test_offsets_are_found_at_the_ends_and_by_time(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders")
    await client.produce("orders", batch(b"a", b"b", b"c", timestamp=1000))
    wanted = {-2: (-1, 0), -1: (-1, 3), -3: (1002, 2), 0: (1000, 0), 1001: (1001, 1), 1003: (-1, -1)}
    asked = tuple(OffsetQuery(topic="orders", partition=0, timestamp=timestamp) for timestamp in wanted)
    found = (await client.ask(ListOffsetsRequest(partitions=asked))).partitions
    assert [(item.timestamp, item.offset) for item in found] == list(wanted.values())


# -- limits and the end --


async def test_connections_over_the_limit_are_closed_and_the_others_go_on(tmp_path: Path) -> None:
    async with running(tmp_path, {"max.connections": 2}) as broker:
        first, second = await broker.connect(), await broker.connect()
        third = await broker.connect(hello=False)
        with pytest.raises((trio.BrokenResourceError, AssertionError)):
            assert await third.hello() is not None
        assert (await first.ask(MetadataRequest())).topics == (await second.ask(MetadataRequest())).topics == ()


async def test_a_peer_that_stops_within_a_frame_is_dropped(tmp_path: Path) -> None:
    async with running(tmp_path, {"warmlog.slow.peer.timeout.ms": 50}) as broker:
        client = await broker.connect()
        await client.stream.send_all(b"\x00\x00")
        assert await client.reply() is None


async def test_a_peer_that_takes_no_replies_is_dropped_and_holds_up_nobody(tmp_path: Path) -> None:
    async with running(tmp_path, {"warmlog.slow.peer.timeout.ms": 200}) as broker:
        client, other = await broker.connect(), await broker.connect()
        await other.create("orders")
        await other.produce("orders", batch(b"x" * 900_000))
        frames = b"".join(client.frame(fetch_request("orders", 0)) for _ in range(100))
        await client.stream.send_all(frames)
        for _ in range(5):
            await other.produce("orders", batch(b"y"))
        with pytest.raises(trio.BrokenResourceError):
            while True:
                await client.stream.send_all(client.frame(MetadataRequest()) * 100)


async def test_a_silent_peer_is_dropped_after_its_time(tmp_path: Path) -> None:
    async with running(tmp_path, {"connections.max.idle.ms": 50}) as broker:
        client = await broker.connect()
        assert await client.reply() is None


async def test_bytes_in_flight_are_bounded_and_everyone_gets_his_turn(tmp_path: Path) -> None:
    async with running(tmp_path, {"queued.max.request.bytes": 1_000_000}) as broker:
        setup = await broker.connect()
        await setup.create("orders")
        offsets: list[int] = []

        async def push() -> None:
            client = await broker.connect()
            offsets.append((await client.produce("orders", batch(b"x" * 800_000))).base_offset)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(push)
        assert sorted(offsets) == list(range(8))


async def test_a_stop_answers_what_was_received_and_keeps_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("orders")
        await client.send(*[produce_request("orders", batch(b"x" * 50_000)) for _ in range(30)])
        first = await client.reply()
        broker.stop.set()
        answered = [first]
        with suppress(trio.BrokenResourceError):  # what it had not taken from the socket yet resets the connection
            while (reply := await client.reply()) is not None:
                answered.append(reply)
        await broker.ended.wait()
    async with running(tmp_path) as broker:
        client = await broker.connect()
        found = await client.ask(
            ListOffsetsRequest(partitions=(OffsetQuery(topic="orders", partition=0, timestamp=-1),))
        )
        assert found.partitions[0].offset >= len(answered)


async def test_a_stop_ends_waiting_fetches(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("orders")
        await client.send(fetch_request("orders", 0, max_wait_ms=2**31 - 1))
        await broker.connect()
        broker.stop.set()
        await broker.ended.wait()


@given(cuts=st.lists(st.integers(1, 400), max_size=8))
async def test_requests_may_be_cut_anywhere(cuts: list[int]) -> None:
    with TemporaryDirectory() as directory:
        async with running(Path(directory)) as broker:
            client = await broker.connect()
            stream = b"".join(client.frame(produce_request("orders", batch(b"%d" % i))) for i in range(5))
            for cut in cuts:
                await client.stream.send_all(stream[:cut])
                stream = stream[cut:]
            await client.stream.send_all(stream)
            assert [(await client.reply()).partitions[0].base_offset for _ in range(5)] == list(range(5))
