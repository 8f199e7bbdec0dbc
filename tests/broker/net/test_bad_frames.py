"""Frames and batches over the native protocol that are invalid: each is answered, and the broker goes on."""

import struct
from random import Random
from typing import Any

import msgpack
import pytest

from tests.broker.clients import Running, batch, damaged, produce_request
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import MetadataRequest, PartitionRecords, ProduceRequest


def frame_of(value: object) -> bytes:
    body = value if isinstance(value, bytes) else msgpack.packb(value)
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 100 * 2**20 + 1])
async def test_a_frame_length_out_of_range_is_answered_and_the_connection_closed(broker: Running, length: int) -> None:
    client = await broker.connect()
    await client.stream.send_all(struct.pack(">i", length) + b"x" * 20)
    reply = await client.reply()
    assert reply.error is ErrorCode.INVALID_REQUEST
    assert str(length) in reply.message
    assert await client.reply() is None


async def test_a_peer_that_sends_on_behind_a_bad_length_can_read_the_answer(broker: Running) -> None:
    client = await broker.connect()
    await client.stream.send_all(struct.pack(">i", -1) + bytes(8 << 20))
    reply = await client.reply()
    assert reply.error is ErrorCode.INVALID_REQUEST
    assert await client.reply() is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not a valid request"),
        (b"\xc1", "not a valid request"),
        (b"\xff" * 10, "not a valid request"),
        (b"\xdd\xff\xff\xff\xff", "not a valid request"),
        (b"\xdf\xff\xff\xff\xff", "not a valid request"),
        (b"\xc6\xff\xff\xff\xff", "not a valid request"),
        (b"\x91" * 100_000, "not a valid request"),
        ([1, 2, 3], "not a valid request"),
        ({"op": "dance", "id": 5}, "unknown op 'dance'"),
        ({"op": "fetch", "id": 5}, "partitions"),
        ({"op": "metadata", "id": 5, "topics": 7}, "topics"),
        ({"op": "metadata", "id": 5, "colour": 7}, "colour"),
        ({"op": "metadata", "id": -5}, "id"),
        ({"op": "produce", "id": 5, "acks": 7, "partitions": []}, "acks"),
        ({"op": "fetch", "id": 5, "partitions": [], "max_bytes": -1}, "max_bytes"),
    ],
)
async def test_a_frame_that_is_no_request_is_answered_and_the_connection_goes_on(
    broker: Running, body: Any, words: str
) -> None:
    client = await broker.connect()
    await client.stream.send_all(frame_of(body))
    reply = await client.reply()
    assert reply.error in {ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUIRED_ACKS}
    assert words in reply.message
    assert (await client.ask(MetadataRequest())).topics == ()


async def test_a_cut_off_frame_is_dropped_with_its_connection(broker: Running) -> None:
    client, other = await broker.connect(), await broker.connect()
    await other.create("orders")
    whole = client.frame(produce_request("orders", batch(b"x" * 1000)))
    await client.stream.send_all(whole[:-10])
    await client.stream.send_eof()
    assert await client.reply() is None
    assert len((await other.fetch("orders", 0)).records) == 0


@pytest.mark.parametrize("name", ["crc", "magic", "length too long", "length too short", "cut", "trailing", "empty"])
async def test_a_damaged_batch_is_refused_and_nothing_is_stored(broker: Running, name: str) -> None:
    client = await broker.connect()
    await client.create("orders")
    refused = await client.produce("orders", damaged(name))
    assert refused.error in {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
    }
    assert refused.message
    assert refused.base_offset == -1
    assert (await client.produce("orders", batch(b"good"))).base_offset == 0


async def test_one_bad_partition_of_a_produce_does_not_touch_the_others(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders", partitions=2)
    good, bad = memoryview(batch(b"good")), memoryview(damaged("crc"))
    asked = (
        PartitionRecords(topic="orders", partition=0, records=bad),
        PartitionRecords(topic="orders", partition=1, records=good),
        PartitionRecords(topic="orders", partition=7, records=good),
    )
    reply = await client.ask(ProduceRequest(partitions=asked))
    assert [item.error for item in reply.partitions] == [
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


async def test_a_batch_over_the_topics_limit_is_refused(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders", max_message_bytes="1000")
    assert (await client.produce("orders", batch(b"x" * 1000))).error is ErrorCode.MESSAGE_TOO_LARGE


async def test_garbage_never_stops_the_broker(broker: Running) -> None:
    """Random frames beside a client that works."""
    steady = await broker.connect()
    await steady.create("orders")
    generator = Random(4)
    for i in range(200):
        client = await broker.connect(hello=i % 2 == 0)
        await client.stream.send_all(frame_of(generator.randbytes(generator.randrange(60))))
        assert await client.reply() is not None
        await client.stream.aclose()
        assert (await steady.produce("orders", batch(b"x"))).base_offset == i
