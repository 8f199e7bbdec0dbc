"""Producing, against an in-memory cluster with injected faults."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from protocol.errors import ErrorCode
from protocol.request import MetadataRequest, ProduceRequest
from protocol.response import ErrorResponse, ProducedPartition, ProduceResponse
from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.fake_broker import FakeCluster, fake_cluster
from warmlog import BrokerError, BufferFullError, ClosedError, Message, RequestTimeoutError, UnknownTopicError, connect
from warmlog.client.producing.partitioner import partition_of


def values(cluster: FakeCluster, topic: str, partition: int = 0) -> list[bytes]:
    return [record.value for record in cluster.topics[topic][partition].records()]


def refused(code: ErrorCode, topic: str = "t", partition: int = 0) -> ProduceResponse:
    return ProduceResponse(partitions=(ProducedPartition(topic=topic, partition=partition, error=code, message="no"),))


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


@on_both_loops
@pytest.mark.parametrize("cut", [0, 3, 20])
async def test_a_batch_is_retried_after_a_lost_reply_and_may_be_stored_twice(cut: int) -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.fail(ProduceRequest, cut=cut)
        metadata = await client.produce("t", value=b"x")
        assert metadata.offset == 1
        assert values(cluster, "t") == [b"x", b"x"]


@on_both_loops
async def test_a_lost_request_is_retried() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.fail(ProduceRequest, times=3)
        assert (await client.produce("t", value=b"x")).offset == 0
        assert values(cluster, "t") == [b"x"]


@on_both_loops
async def test_batches_in_flight_on_a_lost_connection_keep_their_order() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, batch_bytes=50, max_in_flight=5) as client:
        cluster.fail(ProduceRequest, times=2)
        wanted = [b"%030d" % number for number in range(40)]
        await client.produce_many("t", wanted)
        assert values(cluster, "t") == wanted


@on_both_loops
@pytest.mark.parametrize("code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER])
async def test_a_retriable_error_is_retried(code: ErrorCode) -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.fail(ProduceRequest, refused(code), times=2)
        assert (await client.produce("t", value=b"x")).offset == 0
        moved = code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert len(cluster.asked(MetadataRequest)) == (3 if moved else 1)


@on_both_loops
async def test_a_final_error_is_raised_at_once() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.fail(ProduceRequest, refused(ErrorCode.INVALID_RECORD))
        with pytest.raises(BrokerError, match="t-0: no") as caught:
            await client.produce("t", value=b"x")
        assert caught.value.code is ErrorCode.INVALID_RECORD
        cluster.fail(ProduceRequest, ErrorResponse(error=ErrorCode.INVALID_REQUEST, message="what?"))
        with pytest.raises(BrokerError, match="what"):
            await client.produce("t", value=b"x")
        assert (await client.produce("t", value=b"y")).offset == 0


@on_both_loops
async def test_a_record_fails_at_the_delivery_timeout() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, delivery_timeout_s=0.01) as client:
        cluster.fail(ProduceRequest, refused(ErrorCode.KAFKA_STORAGE_ERROR), times=1000)
        with pytest.raises(BrokerError) as caught:
            await client.produce("t", value=b"x")
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@on_both_loops
async def test_a_record_fails_if_its_broker_stays_unreachable() -> None:
    async with fake_cluster(brokers=2) as cluster, connect(cluster.address, delivery_timeout_s=0.2) as client:
        cluster.create("t")[0].leader = 2
        cluster.ports[2] = cluster.ports[1] - 1 if cluster.ports[1] > 2000 else 1999  # no listener there
        with pytest.raises(RequestTimeoutError, match=r"t-0: not delivered within 0\.2 s: cannot connect"):
            await client.produce("t", value=b"x")


@on_both_loops
async def test_records_follow_a_leader_that_moves() -> None:
    async with fake_cluster(brokers=2) as cluster, connect(cluster.address) as client:
        cluster.create("t", 2)
        await client.produce("t", value=b"a", partition=1)
        cluster.topics["t"][1].leader = 2
        assert (await client.produce("t", value=b"b", partition=1)).offset == 1
        assert (await client.produce("t", value=b"c", partition=0)).offset == 0
        assert values(cluster, "t", 1) == [b"a", b"b"]


@on_both_loops
async def test_a_batch_too_large_for_the_topic_is_split_until_it_fits() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.max_message_bytes = 300
        await client.topic("t")
        wanted = [b"%050d" % number for number in range(20)]
        deliveries = [client.produce_nowait("t", value=value) for value in wanted]
        await client.flush()
        assert values(cluster, "t") == wanted
        assert [delivery.metadata().offset for delivery in deliveries] == list(range(20))
        with pytest.raises(BrokerError, match="too large") as caught:
            await client.produce("t", value=b"x" * 400)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@on_both_loops
async def test_in_a_split_batch_only_the_oversized_record_fails() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, linger_ms=10) as client:
        cluster.max_message_bytes = 300
        await client.topic("t")
        sizes = [10, 20, 400, 30]
        deliveries = [client.produce_nowait("t", value=b"x" * size) for size in sizes]
        with pytest.raises(BrokerError, match="too large"):
            await client.flush()
        assert [len(value) for value in values(cluster, "t")] == [10, 20, 30]
        assert [deliveries[place].metadata().offset for place in (0, 1, 3)] == [0, 1, 2]


@on_both_loops
async def test_producing_waits_at_buffer_bytes() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, buffer_bytes=1000, batch_bytes=400) as client:
        await client.topic("t")
        answer = anyio.Event()
        cluster.hold(ProduceRequest, answer)
        taken = 0

        def source() -> Any:
            nonlocal taken
            for _ in range(100):
                taken += 1
                yield b"x" * 100

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.produce_many, "t", source())
            while not cluster.asked(ProduceRequest):
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            assert 10 <= taken <= 12
            with pytest.raises(BufferFullError):
                client.produce_nowait("t", value=b"y")
            with anyio.move_on_after(0.01) as waiting:
                await client.produce("t", value=b"y")
            assert waiting.cancelled_caught
            answer.set()
        assert taken == 100
        assert values(cluster, "t") == [b"x" * 100] * 100


@on_both_loops
async def test_at_most_max_in_flight_requests_are_unanswered() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, max_in_flight=2, batch_bytes=50) as client:
        await client.produce("t", value=b"first")
        answer = anyio.Event()
        cluster.hold(ProduceRequest, answer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.produce_many, "t", [b"x" * 40] * 10)
            await anyio.wait_all_tasks_blocked()
            assert len(client._producer._dispatcher._broker_senders) == 1
            assert client._producer._dispatcher._broker_senders[1].in_flight == 2
            answer.set()
        assert len(values(cluster, "t")) == 11


@on_both_loops
async def test_a_request_holds_batches_of_several_partitions() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, linger_ms=10) as client:
        cluster.num_partitions = 20
        await client.topic("t")
        for partition in range(20):
            client.produce_nowait("t", value=b"x", partition=partition)
        await client.flush()
        assert len(cluster.asked(ProduceRequest)) == 1


@on_both_loops
async def test_produce_many_returns_a_summary() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        await client.produce("t", value=b"before")
        summary = await client.produce_many("t", [b"a", (b"k", b"b"), (None, None), Message(b"c", headers={"h": b"1"})])
        assert summary == ("t", 4, ((0, 4, 1, 4),))
        assert values(cluster, "t") == [b"before", b"a", b"b", None, b"c"]
        assert await client.produce_many("t", []) == ("t", 0, ())


@on_both_loops
async def test_produce_many_takes_async_iterables_and_lists() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, batch_bytes=100) as client:

        async def source() -> AsyncIterator[Any]:
            yield b"first"
            while not values(cluster, "t"):  # sent although the source may yield more
                await anyio.lowlevel.checkpoint()
            yield [b"x" * 60] * 5
            yield (b"k", b"last")

        summary = await client.produce_many("t", source())
        assert summary.records == 7
        assert values(cluster, "t") == [b"first", *[b"x" * 60] * 5, b"last"]


@on_both_loops
async def test_produce_many_raises_the_first_error_and_stops_iterating() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, batch_bytes=50, max_in_flight=1) as client:
        cluster.fail(ProduceRequest, refused(ErrorCode.INVALID_RECORD))
        taken = 0

        def source() -> Any:
            nonlocal taken
            for _ in range(100_000):
                taken += 1
                yield b"x" * 40

        with pytest.raises(BrokerError):
            await client.produce_many("t", source())
        assert taken < 100_000


@on_both_loops
@pytest.mark.parametrize(
    "item", ["text", 5, None, (b"k", "text"), ("text", b"v"), Message("text"), Message(b"v", headers=[("h", "text")])]
)
async def test_an_invalid_record_is_rejected_and_leaves_no_batch(item: Any) -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        with pytest.raises(TypeError):
            await client.produce_many("t", [item])
        await client.flush()
        assert values(cluster, "t") == []
        await client.produce("t", value=b"fine")


@on_both_loops
async def test_flush_raises_only_errors_that_no_delivery_reported() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        await client.topic("t")
        cluster.fail(ProduceRequest, refused(ErrorCode.INVALID_RECORD))
        client.produce_nowait("t", value=b"x")
        with pytest.raises(BrokerError):
            await client.flush()
        await client.flush()
        cluster.fail(ProduceRequest, refused(ErrorCode.INVALID_RECORD))
        delivery = client.produce_nowait("t", value=b"x")
        with pytest.raises(BrokerError):
            await delivery.wait()
        await client.flush()


@on_both_loops
async def test_produce_nowait_needs_a_cached_topic() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        with pytest.raises(UnknownTopicError, match="not in the metadata cache"):
            client.produce_nowait("t", value=b"x")


@on_both_loops
async def test_a_topic_that_must_not_be_created_is_an_error_at_once() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.auto_create = False
        with pytest.raises(UnknownTopicError, match="no such topic"):
            await client.produce("t", value=b"x")


@on_both_loops
async def test_records_for_a_deleted_topic_fail() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        await client.produce("t", value=b"x")
        cluster.topics.clear()
        cluster.auto_create = False
        with pytest.raises(UnknownTopicError):
            await client.produce("t", value=b"x")


@on_both_loops
async def test_leaving_the_client_flushes() -> None:
    async with fake_cluster() as cluster:
        async with connect(cluster.address, linger_ms=3_600_000) as client:
            await client.topic("t")
            client.produce_nowait("t", value=b"x")
        assert values(cluster, "t") == [b"x"]


@on_both_loops
async def test_leaving_by_an_exception_raises_it_unchanged_and_drops_unsent_records() -> None:
    left = []

    async def leave(address: str) -> None:
        async with connect(address, linger_ms=3_600_000) as client:
            await client.topic("t")
            left.extend([client, client.produce_nowait("t", value=b"x")])
            raise ZeroDivisionError

    async with fake_cluster() as cluster:
        with pytest.raises(ZeroDivisionError):
            await leave(cluster.address)
        client, delivery = left
        with pytest.raises(ClosedError):
            delivery.metadata()
        with pytest.raises(ClosedError):
            await client.produce("t", value=b"x")


@on_both_loops
async def test_a_cancelled_produce_affects_no_other() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        await client.topic("t")
        answer = anyio.Event()
        cluster.hold(ProduceRequest, answer)
        with anyio.move_on_after(0.01):
            await client.produce("t", value=b"abandoned")
        answer.set()
        assert (await client.produce("t", value=b"kept")).offset == 1
        assert values(cluster, "t") == [b"abandoned", b"kept"]


@on_both_loops
async def test_the_client_recovers_after_all_connections_were_closed() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        for number in range(3):
            assert (await client.produce("t", value=b"x")).offset == number
            await cluster.hang_up()
        assert len(await client.list_topics()) == 1
