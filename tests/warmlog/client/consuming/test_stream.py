"""Consuming, against an in-memory cluster with injected faults."""

import gc
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.records.builder import Codec, build_batch
from protocol.request import MAX_ENTRIES, FetchRequest, HelloRequest, ListOffsetsRequest, MetadataRequest
from protocol.response import FetchedPartition, FetchResponse
from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.fake_broker import Log, fake_cluster
from warmlog import (
    BrokerError,
    ClosedError,
    ConnectError,
    OffsetOutOfRangeError,
    UnknownTopicError,
    WarmlogError,
    connect,
)
from warmlog.client import AsyncClient

NEW_YEAR = 1767225600000


def fill(log: Log, *batches: int, size: int = 10, codec: Codec = Codec.NONE) -> None:
    """Append batches with these record counts; the record at offset n has value n and time NEW_YEAR + n seconds."""
    for count in batches:
        rows = [(NEW_YEAR + 1000 * n, None, b"%0*d" % (size, n), ()) for n in range(log.end, log.end + count)]
        log.append(memoryview(build_batch(rows, compression=codec)))


async def read(client: AsyncClient, *args: Any, **options: Any) -> list[int]:
    """Return the offsets until the end; the values must match them."""
    offsets = []
    async for record in client.consume(*args, until_end=True, **options):
        assert record.value is not None
        assert int(record.value) == record.offset
        offsets.append(record.offset)
    return offsets


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Disable the cycle collector, so that a stream is closed by reference counting or leaks."""
    gc.disable()
    yield
    gc.enable()


async def take(count: int, stream: Any) -> list[Any]:
    taken = []
    async for item in stream:
        taken.append(item)
        if len(taken) == count:
            break
    return taken


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


@on_both_loops
@pytest.mark.parametrize("cut", [None, 0, 3, 100])
async def test_reading_continues_after_a_lost_connection_without_gap_or_duplicate(cut: int | None) -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_partition_bytes=300) as client:
        fill(cluster.create("t")[0], *[5] * 20)
        seen = []
        async for record in client.consume("t", until_end=True):
            seen.append(record.offset)
            if record.offset % 25 == 0:
                cluster.fail(FetchRequest, cut=cut)
        assert seen == list(range(100))
        assert cluster.connections > 3


@on_both_loops
@pytest.mark.parametrize(
    "code",
    [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
)
async def test_a_retriable_error_is_retried(code: ErrorCode) -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        fill(cluster.create("t")[0], 5)
        failed = FetchResponse(partitions=(FetchedPartition(topic="t", partition=0, error=code, message="no"),))
        cluster.fail(FetchRequest, failed, times=2)
        assert await read(client, "t") == list(range(5))


@on_both_loops
async def test_a_final_error_is_raised_and_ends_the_stream() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        fill(cluster.create("t")[0], 5)
        failed = FetchedPartition(topic="t", partition=0, error=ErrorCode.INVALID_FETCH_SIZE, message="odd")
        cluster.fail(FetchRequest, FetchResponse(partitions=(failed,)))
        stream = client.consume("t")
        with pytest.raises(BrokerError, match="t-0: odd"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@on_both_loops
async def test_a_retriable_error_is_raised_after_the_delivery_timeout() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, delivery_timeout_s=0.01) as client:
        fill(cluster.create("t")[0], 5)
        code = ErrorCode.KAFKA_STORAGE_ERROR
        failed = FetchResponse(partitions=(FetchedPartition(topic="t", partition=0, error=code, message="no"),))
        cluster.fail(FetchRequest, failed, times=1000)
        with pytest.raises(BrokerError, match="t-0: no"):
            await read(client, "t")


@on_both_loops
async def test_an_error_is_raised_after_the_records_fetched_with_it() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        good, bad = cluster.create("t", 2)
        fill(good, 5)
        fill(bad, 5)
        async with client.consume("t") as stream:
            bad.start = 3
            bad.batches = []
            assert [(r.partition, r.offset) for r in await take(5, stream)] == [(0, n) for n in range(5)]
            with pytest.raises(OffsetOutOfRangeError, match="t-1: offset 0 is out of range: valid offsets are 3 to 3"):
                await anext(stream)


@on_both_loops
@pytest.mark.parametrize("until_end", [False, True])
async def test_an_offset_out_of_range_is_an_error_with_the_valid_range(until_end: bool) -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        (log,) = cluster.create("t")
        log.start = 5
        fill(log, 10)
        for offset in (4, 16):
            with pytest.raises(OffsetOutOfRangeError) as caught:
                await take(1, client.consume("t", offset, until_end=until_end))
            assert (caught.value.log_start_offset, caught.value.high_watermark) == (5, 15)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


@on_both_loops
async def test_out_of_range_may_continue_at_an_end() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        (log,) = cluster.create("t")
        log.start = 5
        fill(log, 10)
        assert await read(client, "t", 0, out_of_range="beginning") == list(range(5, 15))
        assert await read(client, "t", 0, out_of_range="end") == []


@on_both_loops
async def test_a_reader_overtaken_by_retention_may_continue_at_the_beginning() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_partition_bytes=1) as client:
        (log,) = cluster.create("t")
        fill(log, *[5] * 10)
        async with client.consume("t", until_end=True, out_of_range="beginning") as stream:
            seen = [(await anext(stream)).offset]
            log.batches = [batch for batch in log.batches if batch[0] >= 30]
            log.start = 30
            seen += [record.offset async for record in stream]
        assert seen in ([*range(5), *range(30, 50)], [*range(10), *range(30, 50)])


@on_both_loops
async def test_a_corrupt_batch_is_an_error_after_the_records_before_it() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        (log,) = cluster.create("t")
        fill(log, 5, 5)
        first, following, batch = log.batches[1]
        log.batches[1] = (first, following, batch[:-1] + b"x")
        stream = client.consume("t")
        assert [record.offset for record in await take(5, stream)] == list(range(5))
        with pytest.raises(WarmlogError, match="t-0: corrupt batch at offset 5") as caught:
            await anext(stream)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@on_both_loops
async def test_invalid_batches_are_an_error() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        (log,) = cluster.create("t")
        log.batches = [(0, 5, b"no batch " * 20)]
        with pytest.raises(WarmlogError, match="sent invalid record batches"):
            await take(1, client.consume("t"))


@on_both_loops
async def test_a_stream_follows_a_leader_that_moves() -> None:
    async with fake_cluster(brokers=2) as cluster, connect(cluster.address, fetch_partition_bytes=300) as client:
        logs = cluster.create("t", 2)
        for log in logs:
            fill(log, *[5] * 20)
        seen: dict[int, list[int]] = {0: [], 1: []}
        async for record in client.consume("t", until_end=True):
            seen[record.partition].append(record.offset)
            if len(seen[1]) == 20:
                logs[1].leader = 2
        assert seen == {0: list(range(100)), 1: list(range(100))}
        assert {node for node, request in cluster.requests if isinstance(request, FetchRequest)} == {1, 2}


@on_both_loops
async def test_a_missing_topic_is_created_or_an_error() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        with pytest.raises(UnknownTopicError):
            await read(client, "missing")
        with pytest.raises(UnknownTopicError):
            await client.offsets("missing")
        with pytest.raises(UnknownTopicError):
            await take(1, client.consume("missing", auto_create=False))
        async with client.consume("created"):
            assert list(cluster.topics) == ["created"]


@on_both_loops
async def test_a_topic_deleted_while_it_is_read_is_an_error() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_max_wait_ms=10) as client:
        fill(cluster.create("t")[0], 5)
        stream = client.consume("t")
        await take(5, stream)
        await client.delete_topic("t")
        with pytest.raises(UnknownTopicError):
            await anext(stream)


@on_both_loops
async def test_leaving_the_loop_closes_the_connections(no_collection: None) -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_max_wait_ms=1) as client:
        fill(cluster.create("t")[0], 10)
        for _ in range(3):
            async for _record in client.consume("t"):
                break
            while len(cluster._streams) > 1:
                await anyio.lowlevel.checkpoint()


@on_both_loops
async def test_a_stream_may_be_closed_explicitly() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        fill(cluster.create("t")[0], 10)
        async with aclosing(client.consume("t")) as stream:
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        async with client.consume_batches("t") as batches:
            await anext(batches)
        assert [batch async for batch in batches] == []


@on_both_loops
async def test_closing_a_stream_ends_a_waiting_reader() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        stream = client.consume("t")
        seen = []

        async def follow() -> None:
            seen.extend([record async for record in stream])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            while not cluster.asked(FetchRequest):
                await anyio.lowlevel.checkpoint()
            stream.close()
        assert seen == []


@on_both_loops
async def test_a_cancelled_step_consumes_nothing() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_partition_bytes=200) as client:
        fill(cluster.create("t")[0], *[5] * 10)
        seen: list[int] = []
        stream = client.consume_batches("t", until_end=True)
        while True:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await anext(stream)
            try:
                seen += [record.offset for record in await anext(stream)]
            except StopAsyncIteration:
                break
        assert seen == list(range(50))


@on_both_loops
async def test_a_waiting_reader_can_be_cancelled() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        with anyio.move_on_after(0.02):
            async for _ in client.consume("t"):
                pass
        await client.produce("t", value=b"still works")


@on_both_loops
async def test_a_second_task_may_not_read_the_stream() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        stream = client.consume("t")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, stream, None)
            while not cluster.asked(FetchRequest):
                await anyio.lowlevel.checkpoint()
            with pytest.raises(RuntimeError, match="one task at a time"):
                await anext(stream)
            stream.close()


@on_both_loops
async def test_a_stream_raises_after_its_client_was_closed() -> None:
    async with fake_cluster() as cluster:
        fill(cluster.create("t")[0], 10)
        async with connect(cluster.address) as client:
            stream = client.consume("t")
            await take(10, stream)
        with pytest.raises(ClosedError):
            await anext(stream)


@on_both_loops
async def test_arguments_are_validated_at_once() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        for wrong in ("soon", -1, "2026-13-01"):
            with pytest.raises(ValueError, match=r"start must be|offset must be"):
                client.consume("t", wrong)
        for wrong_type in (1.5, None, True):
            with pytest.raises(TypeError, match="start"):
                client.consume("t", wrong_type)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="out_of_range"):
            client.consume("t", out_of_range="sometimes")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="Isolation"):
            client.consume("t", isolation="none")
        assert not cluster.asked(MetadataRequest)


@on_both_loops
async def test_isolation_is_sent_in_requests() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        fill(cluster.create("t")[0], 5)
        await read(client, "t", isolation="read_committed")
        asked = [*cluster.asked(FetchRequest), *cluster.asked(ListOffsetsRequest)]
        assert {request.isolation for request in asked} == {"read_committed"}


@on_both_loops
async def test_a_stream_needs_the_broker_only_while_it_is_read() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        stream = client.consume("t")
        del stream
        assert len(cluster.asked(HelloRequest)) == 1


@on_both_loops
async def test_a_broker_that_stays_unreachable_is_an_error() -> None:
    async with fake_cluster(brokers=2) as cluster, connect(cluster.address, delivery_timeout_s=0.1) as client:
        cluster.create("t")[0].leader = 2
        cluster.ports[2] = 1  # no listener there
        with pytest.raises(ConnectError, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused"):
            await take(1, client.consume("t"))
