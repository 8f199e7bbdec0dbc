"""Retries, timeouts and limits of a producer, against an in-memory cluster with injected faults."""

from typing import Any

import anyio
import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.fake_broker import fake_cluster
from tests.warmlog.client.producing.results import refused, values
from warmlog import BrokerError, BufferFullError, RequestTimeoutError, connect
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import MetadataRequest, ProduceRequest
from warmlog.protocol.response import ErrorResponse


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
