"""Connecting, topics, retries and brokers that restart."""

from functools import partial

import anyio
import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.fake_broker import Fault, fake_cluster
from warmlog import (
    BrokerError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    TopicExistsError,
    UnknownTopicError,
    WarmlogError,
    connect,
)
from warmlog.client import AsyncClient
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import CreateTopicsRequest, FetchRequest, HelloRequest, MetadataRequest, ProduceRequest


@on_both_loops
async def test_connecting_without_a_broker_fails_at_once() -> None:
    with pytest.raises(ConnectError, match=r"cannot connect to 127\.0\.0\.1:1"):
        async with connect("127.0.0.1:1"):
            pass


@on_both_loops
async def test_any_bootstrap_address_suffices() -> None:
    async with fake_cluster() as cluster, connect(["127.0.0.1:1", cluster.address]) as client:
        assert await client.list_topics() == ()
    with pytest.raises(ValueError, match="host:port"):
        async with connect(""):
            pass


@on_both_loops
async def test_invalid_settings_are_rejected_before_connecting() -> None:
    with pytest.raises(ValueError, match="acks"):
        async with connect("127.0.0.1:1", acks=7):  # type: ignore[arg-type]
            pass
    with pytest.raises(TypeError, match="ack"):
        async with connect("127.0.0.1:1", ack=1):  # type: ignore[call-arg]
            pass


@on_both_loops
async def test_the_hello_carries_the_clients_name() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, client="billing"):
        assert [request.client for request in cluster.asked(HelloRequest)] == ["billing"]


@on_both_loops
async def test_a_replication_factor_is_not_sent_to_a_broker_that_does_not_know_it() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        with pytest.raises(BrokerError, match="needs version 8 of the native protocol here, and the broker has 1"):
            await client.create_topic("t", replication_factor=2)
        assert cluster.asked(CreateTopicsRequest) == []


@on_both_loops
async def test_a_topic_is_created_altered_described_and_deleted() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        made = await client.create_topic("t", partitions=3, configs={"retention.ms": "5"})
        assert made is not None
        assert (made.name, made.partitions) == ("t", 3)
        assert dict(cluster.asked(CreateTopicsRequest)[0].topics[0].configs) == {"retention.ms": "5"}
        with pytest.raises(TopicExistsError, match="there is one already") as caught:
            await client.create_topic("t")
        assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert await client.create_topic("t", if_not_exists=True) is None
        assert [topic.name for topic in await client.list_topics()] == ["t"]
        assert (await client.topic("t")).partitions == 3
        await client.alter_topic("t", partitions=5)
        assert (await client.topic("t")).partitions == 5
        (described,) = await client.describe_topics("t")
        assert described.name == "t"
        await client.delete_topic("t")
        for doing in (client.delete_topic("t"), client.alter_topic("t"), client.describe_topics("t")):
            with pytest.raises(UnknownTopicError):
                await doing
        with pytest.raises(UnknownTopicError):
            await client.topic("t", auto_create=False)
        assert (await client.metadata(["t"])).topics[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@on_both_loops
async def test_a_query_is_retried_after_a_lost_reply() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.create("t")
        cluster.fail(MetadataRequest, cut=10, times=2)
        assert [topic.name for topic in await client.list_topics()] == ["t"]


@on_both_loops
async def test_a_change_is_not_retried_after_a_lost_reply() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.fail(CreateTopicsRequest, cut=10)
        with pytest.raises(ConnectionLostError):
            await client.create_topic("t")
        assert list(cluster.topics) == ["t"]
        await client.create_topic("u")


@on_both_loops
async def test_retries_of_a_query_end_at_the_request_timeout() -> None:
    async with fake_cluster() as cluster:
        port = cluster.ports[1]
    async with fake_cluster() as cluster, connect(cluster.address, request_timeout_s=0.3) as client:
        await client.list_topics()
        client._cluster._bootstrap = (("127.0.0.1", port),)
        client._cluster._brokers = {}
        await cluster.hang_up()
        with pytest.raises(WarmlogError):
            await client.list_topics()


@on_both_loops
async def test_refresh_waits_for_a_leader() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        (log,) = cluster.create("t")
        log.leader = -1

        async def elect(_: object) -> None:
            log.leader = 1 if len(cluster.asked(MetadataRequest)) == 3 else -1

        cluster.faults.append(Fault(MetadataRequest, elect, times=3))
        assert (await client.topic("t")).leaders == (1,)
        assert (await client.produce("t", value=b"x")).offset == 0


async def produce_at_once(client: AsyncClient, count: int) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(partial(client.produce, "t", value=b"x"))


@on_both_loops
async def test_concurrent_calls_share_one_metadata_request() -> None:
    async with fake_cluster(brokers=2) as cluster, connect(cluster.address) as client:
        await produce_at_once(client, 100)
        assert len(cluster.asked(MetadataRequest)) == 1
        cluster.topics["t"][0].leader = 2
        await produce_at_once(client, 100)  # one after the refusal of each request at most
        assert len(cluster.asked(MetadataRequest)) <= 1 + len(cluster.asked(ProduceRequest))


@on_both_loops
async def test_a_caller_that_is_cancelled_leaves_the_shared_request_to_others() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client, anyio.create_task_group() as tasks:
        arrived, answer = anyio.Event(), anyio.Event()

        async def wait(_: object) -> None:
            arrived.set()
            await answer.wait()

        cluster.faults.append(Fault(MetadataRequest, wait))
        first = anyio.CancelScope()

        async def ask_first() -> None:
            with first:
                await client.topic("t")

        tasks.start_soon(ask_first)
        await arrived.wait()
        first.cancel()
        answer.set()
        assert (await client.topic("t")).leaders == (1,)
        assert len(cluster.asked(MetadataRequest)) == 1


@on_both_loops
async def test_concurrent_calls_share_the_error_of_a_request() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.auto_create = False
        errors = []

        async def produce() -> None:
            with pytest.raises(UnknownTopicError) as caught:
                await client.produce("t", value=b"x")
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(produce)
        assert len(errors) == 10
        assert len(cluster.asked(MetadataRequest)) == 1


@on_both_loops
async def test_a_long_poll_delays_no_other_request() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_max_wait_ms=60_000) as client:
        stream = client.consume("t")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, stream)
            while not cluster.asked(FetchRequest):
                await anyio.lowlevel.checkpoint()
            assert [topic.name for topic in await client.list_topics()] == ["t"]
            await client.produce("t", value=b"x")


@on_both_loops
async def test_a_client_is_closed_after_its_block() -> None:
    async with fake_cluster() as cluster:
        async with connect(cluster.address) as client:
            pass
        with pytest.raises(ClosedError):
            await client.produce("t", value=b"x")
        with pytest.raises(ClosedError):
            await client.list_topics()
        with pytest.raises(ClosedError):
            await anext(client.consume("t"))


@on_both_loops
async def test_a_client_can_be_cancelled() -> None:
    async with fake_cluster() as cluster:
        with anyio.move_on_after(0.02) as scope:
            async with connect(cluster.address) as client:
                async for _ in client.consume("t"):
                    pass
        assert scope.cancelled_caught
        while cluster._streams:
            await anyio.lowlevel.checkpoint()


@on_both_loops
async def test_a_cancelled_request_raises_no_closed_error() -> None:
    async def cancel(scope: anyio.CancelScope) -> None:
        scope.cancel()

    async with fake_cluster() as cluster, anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with connect(cluster.address) as client:
                tasks.start_soon(
                    cancel, scope
                )  # runs while the request takes its lock, which no cancellation interrupts
                await client.list_topics()
        assert scope.cancelled_caught


@on_both_loops
async def test_two_clients_are_independent() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as one, connect(cluster.address) as other:
        await one.produce("t", value=b"1")
        assert (await other.produce("t", value=b"2")).offset == 1
