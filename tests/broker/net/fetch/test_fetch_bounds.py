"""Fetches at their bounds: sizes that cannot be, more than a reply can hold, more partitions than files may be open."""

from pathlib import Path

import pytest

from tests.broker.clients import RawClient, Running, batch, fetch_request, running
from warmlog.broker.api.fetch import reader
from warmlog.broker.net.sender import COPIED_BYTES, SMALL_SLICE_BYTES
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import FetchPartition, FetchRequest, PartitionRecords, ProduceRequest

FOREVER_MS = 2**31 - 1


def partitions_of(topic: str, count: int, **options: int) -> tuple[FetchPartition, ...]:
    return tuple(FetchPartition(topic=topic, partition=index, offset=0, **options) for index in range(count))


async def filled(client: RawClient, topic: str, partitions: int, record_bytes: int = 100) -> None:
    await client.create(topic, partitions=partitions)
    records = memoryview(batch(b"x" * record_bytes))
    asked = tuple(PartitionRecords(topic=topic, partition=index, records=records) for index in range(partitions))
    await client.ask(ProduceRequest(partitions=asked))


async def test_a_negative_size_is_refused_for_its_partition_alone(broker: Running) -> None:
    client = await broker.connect()
    await filled(client, "orders", 2)
    bad = FetchPartition(topic="orders", partition=0, offset=0, max_bytes=-1)
    good = FetchPartition(topic="orders", partition=1, offset=0)
    first, second = (await client.ask(FetchRequest(partitions=(bad, good)))).partitions
    assert first.error is ErrorCode.INVALID_FETCH_SIZE
    assert "negative" in first.message
    assert second.records


@pytest.mark.parametrize("max_bytes", [0, 10, 150])
async def test_more_than_a_reply_can_hold_is_not_waited_for(broker: Running, max_bytes: int) -> None:
    client = await broker.connect()
    await filled(client, "orders", 1)
    found = await client.fetch("orders", 0, max_wait_ms=FOREVER_MS, min_bytes=FOREVER_MS, max_bytes=max_bytes)
    assert len(found.records) == len(batch(b"x" * 100))


async def test_a_reply_stays_below_what_a_frame_can_say_whatever_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_REPLY_BYTES", 400)
    async with running(tmp_path, {"fetch.max.bytes": 2**31 - 1}) as broker:
        client = await broker.connect()
        await filled(client, "orders", 8)
        asked = FetchRequest(partitions=partitions_of("orders", 8), max_bytes=2**31 - 1)
        assert 0 < sum(len(found.records) for found in (await client.ask(asked)).partitions) <= 400


async def test_who_reads_a_sealed_segment_is_not_made_to_wait_for_what_goes_into_another_one(broker: Running) -> None:
    """kafka-go read compacted logs of small segments so slowly that it took the end of each for the end of its time."""
    client = await broker.connect()
    await client.create("orders", segment_bytes="300")
    one = batch(b"x" * 100)
    for _ in range(3):
        await client.produce("orders", one)
    for offset in range(2):
        found = await client.fetch("orders", offset, max_wait_ms=FOREVER_MS, min_bytes=FOREVER_MS)
        assert len(found.records) == len(one)
    assert not (await client.fetch("orders", 2, max_wait_ms=20, min_bytes=len(one) + 1)).error


async def test_a_reply_of_no_bytes_still_waits_for_a_first_batch(broker: Running) -> None:
    client, other = await broker.connect(), await broker.connect()
    await client.create("orders")
    await client.send(fetch_request("orders", 0, max_wait_ms=FOREVER_MS, max_bytes=0))
    await other.produce("orders", batch(b"x"))
    assert (await client.reply()).partitions[0].records


async def test_a_reply_keeps_few_files_open_and_every_partition_has_its_turn(
    broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch of thousands of partitions took every descriptor there was, and appends of others failed for it."""
    monkeypatch.setattr(reader, "MAX_SLICES", 3)
    client = await broker.connect()
    await filled(client, "orders", 8)
    left = partitions_of("orders", 8)
    turns = []
    while len(left) >= 3:
        reply = await client.ask(FetchRequest(partitions=left, max_wait_ms=FOREVER_MS, min_bytes=FOREVER_MS))
        assert {found.error for found in reply.partitions} == {ErrorCode.NONE}
        served = {found.partition for found in reply.partitions if found.records}
        left = tuple(asked for asked in left if asked.partition not in served)
        turns.append(len(served))
    assert turns == [3, 3]


async def test_a_reply_copies_few_of_its_small_slices_and_sends_the_rest_from_their_files(tmp_path: Path) -> None:
    size, count = SMALL_SLICE_BYTES - 1000, 2 * COPIED_BYTES // SMALL_SLICE_BYTES
    async with running(tmp_path, http="127.0.0.1:0") as broker:
        client = await broker.connect()
        await filled(client, "orders", count, size)
        before = await broker.scrape()
        reply = await client.ask(FetchRequest(partitions=partitions_of("orders", count)))
        after = await broker.scrape()
    assert [bytes(found.records) for found in reply.partitions] == [bytes(reply.partitions[0].records)] * count
    copied, sent = (
        after[name] - before[name]
        for name in (f'warmlog_bytes_out_total{{path="{way}"}}' for way in ("copy", "sendfile"))
    )
    assert 0 < copied <= COPIED_BYTES + SMALL_SLICE_BYTES  # with the fields of the reply
    assert copied + sent >= count * size
