"""Which records a stream yields, against an in-memory cluster."""

from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.consuming.reading import NEW_YEAR, fill, read, take
from tests.warmlog.client.fake_broker import fake_cluster
from warmlog import connect
from warmlog.protocol.records.builder import Codec, build_batch
from warmlog.protocol.request import MAX_ENTRIES, FetchRequest, ListOffsetsRequest


@on_both_loops
async def test_a_record_is_returned_as_stored() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        await client.produce("t", key=b"k", value=b"v", headers={"a": b"1", "b": None}, timestamp=7)
        await client.produce("t", key=b"k", value=None, timestamp=8)
        first, second = await take(2, client.consume("t"))
        assert (first.topic, first.partition, first.offset, first.timestamp) == ("t", 0, 0, 7)
        assert (first.key, first.value, first.headers) == (b"k", b"v", (("a", b"1"), ("b", None)))
        assert (second.offset, second.value, second.headers) == (1, None, ())


@on_both_loops
@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("beginning", 0),
        ("end", 30),
        (0, 0),
        (15, 15),
        ("15", 15),
        (30, 30),
        ({0: 12}, 12),
        (datetime.fromtimestamp(NEW_YEAR / 1000, UTC), 0),
        ("2026-01-01T00:00:17Z", 17),
        ("2026-01-01T01:00:16.5+01:00", 17),
        ("2020-01-01T00:00:00Z", 0),
        ("2030-01-01T00:00:00Z", 30),
    ],
)
async def test_a_stream_begins_at_its_start(start: Any, first: int) -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        fill(cluster.create("t")[0], 10, 10, 10)
        assert await read(client, "t", start) == list(range(first, 30))
        assert await client.offsets("t", start) == {0: first}


@on_both_loops
async def test_until_end_stops_at_the_end_as_of_opening_even_within_a_batch() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        (log,) = cluster.create("t")
        fill(log, 5)
        async with client.consume("t", until_end=True) as stream:
            fill(log, 5)
            assert [record.offset async for record in stream] == [0, 1, 2, 3, 4]
            assert stream.positions == {("t", 0): 5}
        first, following, batch = log.batches.pop()
        log.batches[-1] = (0, following, build_batch([(0, None, b"%d" % n, ()) for n in range(following)]))
        async with client.consume("t", until_end=True) as stream:
            pass
        assert await read(client, "t") == list(range(10))
        assert (first, len(batch) > 0) == (5, True)


@on_both_loops
async def test_until_end_of_an_empty_topic_yields_nothing() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.create("t", 3)
        assert await read(client, "t") == []
        assert await read(client, "t", "end") == []
        assert await read(client, []) == []
        assert not cluster.asked(FetchRequest)


@on_both_loops
async def test_a_stream_waits_for_new_records() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_max_wait_ms=10) as client:
        seen = []

        async def follow() -> None:
            seen.extend(await take(3, client.consume("t")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            for number in range(3):
                while len(cluster.asked(FetchRequest)) < 2 * number:
                    await anyio.lowlevel.checkpoint()
                await client.produce("t", value=b"%d" % number)
        assert [record.value for record in seen] == [b"0", b"1", b"2"]


@on_both_loops
async def test_several_topics_and_partitions_are_complete_and_ordered() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_partition_bytes=500) as client:
        for name, count in (("a", 3), ("b", 2)):
            for log in cluster.create(name, count):
                fill(log, *[7] * 10)
        seen: dict[tuple[str, int], list[int]] = {}
        async for record in client.consume(["a", "b"], until_end=True):
            seen.setdefault((record.topic, record.partition), []).append(record.offset)
        assert seen == {(name, n): list(range(70)) for name, count in (("a", 3), ("b", 2)) for n in range(count)}


@on_both_loops
async def test_duplicate_topics_are_read_once() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        fill(cluster.create("t", 2)[1], 5)
        assert await read(client, ["t", "t"], partitions=[1, 1]) == list(range(5))


@on_both_loops
async def test_all_partitions_are_served() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_bytes=1000) as client:
        for log in cluster.create("t", 4):
            fill(log, *[5] * 100)
        partitions = []
        async for batch in client.consume_batches("t", until_end=True):
            partitions += [record.partition for record in batch]
            if len(partitions) > 400:
                break
        assert {partitions.count(n) > 50 for n in range(4)} == {True}


@on_both_loops
async def test_a_stream_of_more_partitions_than_a_request_may_name_comes_complete() -> None:
    count = MAX_ENTRIES + 50
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        logs = cluster.create("t", count)
        for log in logs:
            fill(log, 1)
        seen = [record.partition async for record in client.consume("t", until_end=True)]
        assert sorted(seen) == list(range(count))
        queries = cluster.asked(ListOffsetsRequest)
        assert max(len(request.partitions) for request in queries) <= MAX_ENTRIES
        fetches = cluster.asked(FetchRequest)
        assert max(len(request.partitions) for request in fetches) <= MAX_ENTRIES
        first_two = [one.partition for request in fetches[:2] for one in request.partitions]
        assert set(first_two) == set(range(count)), "those that were left out come first in the next request"


@on_both_loops
async def test_only_the_given_partitions_are_read() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        for log in cluster.create("t", 4):
            fill(log, 10)
        async with client.consume("t", partitions=[1, 3], until_end=True) as stream:
            assert {record.partition async for record in stream} == {1, 3}
        async with client.consume("t", {2: 8}, until_end=True) as stream:
            assert [(record.partition, record.offset) async for record in stream] == [(2, 8), (2, 9)]
            assert stream.positions == {("t", 2): 10}
            assert stream.high_watermarks == {("t", 2): 10}
        with pytest.raises(ValueError, match="partitions 0 to 3, not 4"):
            await take(1, client.consume("t", partitions=[4]))


@on_both_loops
@pytest.mark.parametrize("codec", list(Codec))
async def test_compressed_batches_are_decoded(codec: Codec) -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        fill(cluster.create("t")[0], 100, 100, codec=codec)
        assert await read(client, "t", 50) == list(range(50, 200))


@settings(max_examples=25)
@given(
    batches=st.lists(st.integers(1, 20), min_size=1, max_size=10),
    partition_bytes=st.integers(1, 2000),
    start=st.integers(0, 10),
)
def test_a_truncated_last_batch_is_refetched_and_a_large_one_is_complete(
    batches: list[int], partition_bytes: int, start: int
) -> None:
    async def scenario() -> None:
        async with fake_cluster() as cluster, connect(cluster.address, fetch_partition_bytes=partition_bytes) as client:
            (log,) = cluster.create("t")
            fill(log, *batches)
            first = min(start, log.end)
            assert await read(client, "t", first) == list(range(first, log.end))

    anyio.run(scenario)


@on_both_loops
async def test_a_large_batch_behind_a_busy_partition_is_delivered() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_partition_bytes=400) as client:
        busy, large = cluster.create("t", 2)
        fill(busy, *[2] * 20)
        fill(large, 100)
        assert len(await read(client, "t")) == 140


@on_both_loops
async def test_the_next_fetch_is_in_flight_while_the_last_is_processed() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_partition_bytes=200) as client:
        fill(cluster.create("t")[0], *[5] * 10)
        async with client.consume_batches("t") as stream:
            await anext(stream)
            while len(cluster.asked(FetchRequest)) < 2:
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            offsets = [request.partitions[0].offset for request in cluster.asked(FetchRequest)]
            assert offsets[0] == 0
            assert offsets[1] > 0
            assert len(offsets) == 2
