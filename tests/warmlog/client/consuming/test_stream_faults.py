"""Lost connections, errors and damaged batches while consuming, against an in-memory cluster."""

import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.consuming.reading import fill, read, take
from tests.warmlog.client.fake_broker import fake_cluster
from warmlog import BrokerError, OffsetOutOfRangeError, UnknownTopicError, WarmlogError, connect
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import FetchRequest
from warmlog.protocol.response import FetchedPartition, FetchResponse


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
