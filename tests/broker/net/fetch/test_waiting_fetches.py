"""Fetches of the native protocol over real sockets: how long they wait, and how much they return."""

from tests.broker.clients import Running, batch, fetch_request
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.batch import headers
from warmlog.protocol.request import (
    DeleteTopicsRequest,
    FetchPartition,
    FetchRequest,
    MetadataRequest,
)


def values_of(records: memoryview) -> list[int]:
    return [header.base_offset for _, header in headers(records)]


async def test_a_waiting_fetch_is_woken_by_an_append(broker: Running) -> None:
    reader, writer = await broker.connect(), await broker.connect()
    await writer.create("orders")
    await reader.send(fetch_request("orders", 0, max_wait_ms=60_000))
    await writer.produce("orders", batch(b"now"))
    assert values_of((await reader.reply()).partitions[0].records) == [0]


async def test_a_waiting_fetch_gathers_min_bytes(broker: Running) -> None:
    reader, writer = await broker.connect(), await broker.connect()
    await writer.create("orders")
    one = batch(b"x" * 100)
    await reader.send(fetch_request("orders", 0, max_wait_ms=60_000, min_bytes=len(one) * 3))
    for _ in range(3):
        await writer.produce("orders", one)
    assert values_of((await reader.reply()).partitions[0].records) == [0, 1, 2]


async def test_a_fetch_that_gets_too_little_ends_with_what_there_is(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders")
    await client.produce("orders", batch(b"x"))
    assert values_of((await client.fetch("orders", 0, max_wait_ms=50, min_bytes=1 << 20)).records) == [0]
    assert len((await client.fetch("orders", 1, max_wait_ms=10)).records) == 0


async def test_a_waiting_fetch_does_not_hold_up_other_connections(broker: Running) -> None:
    waiting, working = await broker.connect(), await broker.connect()
    await working.create("orders")
    await waiting.send(fetch_request("orders", 0, max_wait_ms=60_000))
    for i in range(20):
        await working.create(f"other-{i}")
    assert (await working.ask(MetadataRequest())).topics[0].name == "orders"


async def test_a_fetch_waits_on_several_partitions(broker: Running) -> None:
    reader, writer = await broker.connect(), await broker.connect()
    await writer.create("orders", partitions=3)
    asked = tuple(FetchPartition(topic="orders", partition=i, offset=0) for i in range(3))
    await reader.send(FetchRequest(partitions=asked, max_wait_ms=60_000))
    await writer.produce("orders", batch(b"x"), partition=2)
    assert [len(found.records) > 0 for found in (await reader.reply()).partitions] == [False, False, True]


async def test_a_client_that_goes_while_its_fetch_waits_is_forgotten(broker: Running) -> None:
    reader, writer = await broker.connect(), await broker.connect()
    await writer.create("orders")
    await reader.send(fetch_request("orders", 0, max_wait_ms=2**31 - 1))
    await reader.stream.aclose()
    await writer.produce("orders", batch(b"x"))  # and the broker stops at the end of the test, not in 24 days


async def test_deleting_a_topic_answers_its_waiting_fetches(broker: Running) -> None:
    reader, writer = await broker.connect(), await broker.connect()
    await writer.create("orders")
    await reader.send(fetch_request("orders", 0, max_wait_ms=60_000))
    await writer.ask(DeleteTopicsRequest(topics=("orders",)))
    assert (await reader.reply()).partitions[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_an_error_in_one_partition_answers_at_once_and_leaves_the_others_alone(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders")
    await client.produce("orders", batch(b"x"))
    asked = (
        FetchPartition(topic="orders", partition=0, offset=99),
        FetchPartition(topic="nowhere", partition=0, offset=0),
        FetchPartition(topic="orders", partition=0, offset=0),
    )
    found = (await client.ask(FetchRequest(partitions=asked, max_wait_ms=60_000))).partitions
    assert [item.error for item in found] == [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ]
    assert found[0].message == "offset 99 is outside the log, which holds 0 to 1"
    assert values_of(found[2].records) == [0]


# -- sizes --


async def test_the_first_batch_is_whole_even_over_every_limit_and_the_rest_is_bounded(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders", partitions=2)
    large = batch(b"x" * 5000)
    for partition in (0, 1):
        await client.produce("orders", large, partition)
    asked = tuple(FetchPartition(topic="orders", partition=i, offset=0, max_bytes=100) for i in (0, 1))
    first, second = (await client.ask(FetchRequest(partitions=asked, max_bytes=200))).partitions
    assert (len(first.records), len(second.records)) == (len(large), 0)


async def test_a_partition_is_bounded_by_its_own_max_bytes(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders")
    one = batch(b"x" * 100)
    for _ in range(10):
        await client.produce("orders", one)
    asked = (FetchPartition(topic="orders", partition=0, offset=0, max_bytes=len(one) * 2 + 5),)
    (found,) = (await client.ask(FetchRequest(partitions=asked))).partitions
    assert len(found.records) == len(one) * 2 + 5  # cut inside the third batch, as Kafka's may be
    assert values_of(found.records) == [0, 1]
