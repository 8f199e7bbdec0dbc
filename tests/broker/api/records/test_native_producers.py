"""Idempotent producers on the native listener: what is stored twice, and how far one of them is."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import UNSET

from tests.broker.clients import RawClient, running
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.native.producers import DescribeProducerRequest, ProducerPosition
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.request import PartitionRecords, ProduceRequest
from warmlog.protocol.response import ProducedPartition

PRODUCER = (1 << 62) + 5


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("t", partitions=2)
        yield client


async def produce(client: RawClient, sequence: int, count: int = 2, epoch: int = 0) -> ProducedPartition:
    rows = [(5, None, b"%d" % at, ()) for at in range(count)]
    records = build_batch(rows, producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence)
    part = PartitionRecords(topic="t", partition=0, records=memoryview(records))
    produced: ProducedPartition = (await client.ask(ProduceRequest(partitions=(part,)))).partitions[0]
    return produced


async def position(client: RawClient, topic: str = "t", partition: int = 0) -> ProducerPosition:
    asked = PartitionEntry(topic=topic, partition=partition)
    found: ProducerPosition
    (found,) = (await client.ask(DescribeProducerRequest(producer_id=PRODUCER, partitions=(asked,)))).partitions
    return found


async def test_a_batch_that_comes_again_is_told_apart_from_one_that_is_stored(client: RawClient) -> None:
    first, again, following = [await produce(client, sequence) for sequence in (0, 0, 2)]
    assert (first.base_offset, first.duplicate) == (0, UNSET)
    assert (again.base_offset, again.duplicate) == (0, True)
    assert (following.base_offset, following.duplicate) == (2, UNSET)
    assert (await produce(client, 7)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_higher_epoch_begins_anew_and_fences_the_lower(client: RawClient) -> None:
    await produce(client, 0)
    assert (await produce(client, 0, epoch=4)).base_offset == 2
    assert (await produce(client, 2)).error is ErrorCode.INVALID_PRODUCER_EPOCH
    found = await position(client)
    assert (found.producer_epoch, found.last_sequence, found.last_offset) == (4, 1, 3)


async def test_how_far_a_producer_is(client: RawClient) -> None:
    for sequence in (0, 2, 4):
        await produce(client, sequence)
    found = await position(client)
    assert (found.producer_epoch, found.last_sequence, found.last_offset) == (0, 5, 5)
    unknown = await position(client, partition=1)
    assert (unknown.producer_epoch, unknown.last_sequence, unknown.last_offset) == (-1, -1, -1)
    assert (await position(client, topic="absent")).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
