"""Moving, pausing and measuring a stream while it reads, against an in-memory cluster."""

import anyio
import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.consuming.reading import fill, take
from tests.warmlog.client.fake_broker import fake_cluster
from warmlog import connect
from warmlog.protocol.request import FetchRequest


@on_both_loops
async def test_a_stream_continues_where_it_is_told_to() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_partition_bytes=200) as client:
        fill(cluster.create("t")[0], *[5] * 10)
        async with client.consume("t", until_end=True) as stream:
            assert [record.offset for record in await take(7, stream)] == list(range(7))
            stream.seek(2)
            assert [record.offset for record in await take(3, stream)] == [2, 3, 4]
            stream.seek(48)
            assert [record.offset async for record in stream] == [48, 49]
            with pytest.raises(ValueError, match="does not read partition 1"):
                stream.seek(0, partition=1)
            with pytest.raises(ValueError, match="offset must be"):
                stream.seek(-1)


@on_both_loops
async def test_batches_are_read_from_another_offset() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        fill(cluster.create("t")[0], 5, 5)
        async with client.consume_batches("t", until_end=True) as stream:
            await anext(stream)
            stream.seek(7)
            assert [record.offset for batch in [batch async for batch in stream] for record in batch] == [7, 8, 9]


@on_both_loops
async def test_a_paused_partition_is_not_read_until_it_is_resumed() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_partition_bytes=100) as client:
        for log in cluster.create("t", 2):
            fill(log, *[5] * 4)
        async with client.consume("t", until_end=True) as stream:
            first = await anext(stream)
            stream.pause(first.partition)
            others = await take(20, stream)
            assert {record.partition for record in others} == {1 - first.partition}
            assert len(others) == 20
            stream.resume()
            rest = [record async for record in stream]
            assert [(record.partition, record.offset) for record in rest] == [
                (first.partition, offset) for offset in range(1, 20)
            ]


@on_both_loops
async def test_a_stream_that_is_paused_waits_without_asking() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        log = cluster.create("t")[0]
        fill(log, 5)
        async with client.consume("t") as stream, anyio.create_task_group() as tasks:
            assert len(await take(5, stream)) == 5
            stream.pause()
            taken: list[int] = []

            async def read() -> None:
                taken.append((await anext(stream)).offset)

            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            asked = len(cluster.asked(FetchRequest))
            fill(log, 1)
            await anyio.wait_all_tasks_blocked()
            assert len(cluster.asked(FetchRequest)) <= asked + 1  # one may have been in flight
            assert taken == []
            stream.resume()
        assert taken == [5]


@on_both_loops
async def test_the_lag_counts_records_that_were_not_taken() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        fill(cluster.create("t")[0], 5, 5)
        async with client.consume("t") as stream:
            assert stream.lag == {("t", 0): 10}
            await take(3, stream)
            assert stream.lag == {("t", 0): 7}
            await take(7, stream)
            assert stream.lag == {("t", 0): 0}


@on_both_loops
async def test_partitions_are_exchanged_while_the_others_are_read() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_partition_bytes=100) as client:
        for log in cluster.create("t", 3):
            fill(log, *[5] * 4)
        async with client.consume_batches("t", partitions=[0, 1], until_end=True) as stream:
            first = await anext(stream)
            before = stream.positions
            await stream.assign({("t", 1): 0, ("t", 2): 15})
            assert stream.positions == {("t", 1): before["t", 1], ("t", 2): 15}
            records = [*first, *[record for batch in [batch async for batch in stream] for record in batch]]
        read = {partition: [each.offset for each in records if each.partition == partition] for partition in range(3)}
        assert read[0] == list(range(before["t", 0]))
        assert read[1] == list(range(20))
        assert read[2] == list(range(15, 20))
