"""Batches, partitions and acknowledgements of a producer, against an in-memory cluster."""

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.fake_broker import fake_cluster
from tests.warmlog.client.producing.results import refused, values
from warmlog import Message, connect
from warmlog.client.producing.partitioner import partition_of
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import ProduceRequest


@on_both_loops
async def test_a_record_is_stored_unchanged_and_its_offset_returned() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        time = datetime(2026, 1, 1, tzinfo=UTC)
        first = await client.produce("t", key=b"k", value=b"v", headers={"a": b"1", "b": None}, timestamp=time)
        second = await client.produce("t", value=None, key=b"k", headers=[("a", b"1"), ("a", b"2")], timestamp=5)
        assert first == ("t", 0, 0, 1767225600000)
        assert second == ("t", 0, 1, 5)
        one, two = cluster.topics["t"][0].records()
        assert (one.timestamp, one.key, one.value, one.headers) == (
            1767225600000,
            b"k",
            b"v",
            (("a", b"1"), ("b", None)),
        )
        assert (two.timestamp, two.key, two.value, two.headers) == (5, b"k", None, (("a", b"1"), ("a", b"2")))


@on_both_loops
async def test_concurrent_calls_share_batches() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        await client.topic("t")
        offsets = {}

        async def produce(number: int) -> None:
            offsets[number] = (await client.produce("t", value=b"%d" % number)).offset

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(produce, number)
        assert len(cluster.topics["t"][0].batches) <= 3
        stored = values(cluster, "t")
        assert [stored[offsets[number]] for number in range(100)] == [b"%d" % number for number in range(100)]


@on_both_loops
async def test_with_linger_a_batch_waits_until_it_is_full() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, linger_ms=3_600_000, batch_bytes=200) as client:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(lambda: client.produce("t", value=b"x" * 80))
            while "t" not in cluster.topics or not values(cluster, "t"):
                await anyio.lowlevel.checkpoint()
            assert values(cluster, "t") == [b"x" * 80] * 2
            await client.flush()
        assert [following - base for base, following, _ in cluster.topics["t"][0].batches] == [2, 1]


@on_both_loops
async def test_with_linger_a_batch_waits_no_longer_than_linger_ms() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, linger_ms=1) as client:
        for number in range(3):
            assert (await client.produce("t", value=b"x")).offset == number


@on_both_loops
async def test_flush_does_not_linger() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, linger_ms=3_600_000) as client:
        await client.topic("t")
        delivery = client.produce_nowait("t", value=b"x")
        assert not delivery.done
        with pytest.raises(RuntimeError, match="not acknowledged yet"):
            delivery.metadata()
        await client.flush()
        assert delivery.done
        assert delivery.metadata() == await delivery.wait()
        assert values(cluster, "t") == [b"x"]


@on_both_loops
async def test_keys_map_as_in_kafka_and_records_without_key_stick() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.num_partitions = 7
        keys = [b"%d" % number for number in range(50)]
        await client.produce_many("keyed", [(key, b"v") for key in keys])
        for partition, log in enumerate(cluster.topics["keyed"]):
            assert [record.key for record in log.records()] == [k for k in keys if partition_of(k, 7) == partition]
        summary = await client.produce_many("plain", [b"v"] * 50)
        assert len(summary.partitions) == 1


@on_both_loops
async def test_records_without_key_move_on_when_a_batch_is_full() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, batch_bytes=100) as client:
        cluster.num_partitions = 3
        summary = await client.produce_many("t", [b"x" * 30] * 60)
        assert len(summary.partitions) == 3
        assert sum(part.records for part in summary.partitions) == summary.records == 60


@on_both_loops
async def test_a_partition_can_be_chosen() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.num_partitions = 3
        assert (await client.produce("t", value=b"a", key=b"k", partition=2)).partition == 2
        summary = await client.produce_many("t", [b"b", Message(b"c", partition=0)], partition=1)
        assert summary.partitions == ((0, 1, 0, 0), (1, 1, 0, 0))
        with pytest.raises(ValueError, match="partitions 0 to 2, not 3"):
            await client.produce("t", value=b"a", partition=3)


@on_both_loops
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_compressed(compression: Any) -> None:
    async with fake_cluster() as cluster, connect(cluster.address, compression=compression) as client:
        await client.produce_many("t", [b"the same again " * 10] * 100)
        assert values(cluster, "t") == [b"the same again " * 10] * 100
        stored = sum(len(batch) for _, _, batch in cluster.topics["t"][0].batches)
        assert (stored < 5000) == (compression != "none")


@on_both_loops
@pytest.mark.parametrize(("acks", "sent"), [("all", -1), (1, 1), (0, 0)])
async def test_acks(acks: Any, sent: int) -> None:
    async with fake_cluster() as cluster, connect(cluster.address, acks=acks) as client:
        for number in range(5):
            metadata = await client.produce("t", value=b"%d" % number)
            assert metadata.offset == (-1 if acks == 0 else number)
        await client.metadata()  # on another connection; the last produce may still be in flight on its own
        while len(cluster.asked(ProduceRequest)) < 5:
            await anyio.lowlevel.checkpoint()
        assert values(cluster, "t") == [b"0", b"1", b"2", b"3", b"4"]
        assert {request.acks for request in cluster.asked(ProduceRequest)} == {sent}


@on_both_loops
async def test_with_acks_0_records_after_a_closed_connection_are_delivered() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, acks=0) as client:
        cluster.fail(ProduceRequest, refused(ErrorCode.CORRUPT_MESSAGE))
        await client.produce("t", value=b"lost")
        while cluster.connections < 3:  # control, produce, and produce again after it was closed
            await client.produce("t", value=b"x")
        await client.produce("t", value=b"last")
        while b"last" not in values(cluster, "t"):
            await anyio.lowlevel.checkpoint()
