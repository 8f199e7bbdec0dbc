from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.broker.clients import RawClient, Running, batch
from tests.broker.replication.copies import Copy, followed
from tests.broker.replication.peers.scripted_cluster import Cluster, scripted_cluster
from warmlog.broker.replication.following.fetcher import Step
from warmlog.broker.replication.following.follower import Follower
from warmlog.broker.replication.peers.peer import PeerCluster, open_cluster
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.api import Call
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.records.fetch import KafkaFetchedPartition, KafkaFetchPartition, KafkaFetchResponse
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.request import DeleteTopicsRequest
from warmlog.protocol.response import FetchedPartition


@asynccontextmanager
async def following(broker: Running, *copies: Copy, **limits: int) -> AsyncIterator[tuple[Follower, PeerCluster]]:
    host, port = broker.addresses.kafka.rsplit(":", 1)
    async with followed([(host, int(port))], *copies, **limits) as both:
        yield both


async def topic_id(broker: Running, name: str) -> bytes:
    host, port = broker.addresses.kafka.rsplit(":", 1)
    async with open_cluster([(host, int(port))]) as cluster:
        return cluster.view.topics[name].topic_id


async def stored(native: RawClient, name: str, partition: int = 0) -> bytes:
    """The bytes of a partition, as another reader gets them."""
    return bytes((await native.fetch(name, 0, partition)).records)


@pytest.fixture
async def native(broker: Running) -> RawClient:
    return await broker.connect()


async def test_partitions_are_copied_byte_for_byte_and_then_followed(broker: Running, native: RawClient) -> None:
    await native.create("orders", 3)
    for index in range(3):
        for _ in range(5):
            await native.produce("orders", batch(b"early", b"x" * index), partition=index)
    known = await topic_id(broker, "orders")
    copies = [Copy("orders", known, index) for index in range(3)]
    async with following(broker, *copies, max_bytes=500):
        for one in copies:
            await one.until(lambda one=one: one.offset == 10)
        for index in range(3):
            await native.produce("orders", batch(b"late"), partition=index)
        for index, one in enumerate(copies):
            await one.until(lambda one=one: one.offset == 11)
            assert one.found[-1].high_watermark == 11
            assert one.data == await stored(native, "orders", index)


async def test_topics_without_ids_are_named(broker: Running, native: RawClient) -> None:
    await native.create("orders", 1)
    await native.produce("orders", batch(b"a", b"b"))
    copy = Copy("orders", NO_TOPIC_ID)
    async with following(broker, copy):
        await copy.until(lambda: copy.offset == 2)


async def test_an_offset_out_of_range_is_for_the_replica_to_decide(broker: Running, native: RawClient) -> None:
    await native.create("orders", 1)
    await native.produce("orders", batch(b"a", b"b"))
    copy = Copy("orders", await topic_id(broker, "orders"), offset=99)

    def truncate_fully(found: KafkaFetchedPartition) -> Step:
        if found.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            copy.offset = 0
        return Step.GO_ON

    copy.decide = truncate_fully
    async with following(broker, copy):
        await copy.until(lambda: copy.offset == 2)
    assert copy.found[0].error is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_an_error_that_its_replica_ignores_is_not_fetched_without_end(broker: Running, native: RawClient) -> None:
    await native.create("orders", 1)
    copy = Copy("orders", await topic_id(broker, "orders"), offset=2)
    async with following(broker, copy, max_wait_ms=0) as (follower, _):
        for times in range(1, 4):
            await copy.until(lambda times=times: len(copy.found) == times)
            (fetcher,) = follower._fetchers.values()
            assert fetcher._paused == {("orders", 0)}
        await native.produce("orders", batch(b"a", b"b", b"c"))
        copy.offset = 0
        await copy.until(lambda: copy.offset == 3)


async def test_a_partition_that_stops_leaves_the_others(broker: Running, native: RawClient) -> None:
    await native.create("orders", 2)
    known = await topic_id(broker, "orders")
    stopped, other = Copy("orders", known, 0), Copy("orders", known, 1)
    stopped.decide = lambda _: Step.STOP
    async with following(broker, stopped, other):
        await stopped.until(lambda: stopped.found)
        for index in range(2):
            await native.produce("orders", batch(b"a"), partition=index)
        await other.until(lambda: other.offset == 1)
        await native.produce("orders", batch(b"b"), partition=1)
        await other.until(lambda: other.offset == 2)
    assert len(stopped.found) == 1


async def test_a_paused_partition_is_fetched_again(broker: Running, native: RawClient) -> None:
    await native.create("orders", 1)
    await native.produce("orders", batch(b"a"))
    copy = Copy("orders", await topic_id(broker, "orders"))
    copy.decide = lambda _: Step.PAUSE if len(copy.found) < 3 else Step.GO_ON
    async with following(broker, copy):
        await copy.until(lambda: len(copy.found) == 3)
        await native.produce("orders", batch(b"b"))
        await copy.until(lambda: copy.offset == 2)


async def test_an_unfollowed_partition_is_followed_again(broker: Running, native: RawClient) -> None:
    await native.create("orders", 1)
    await native.produce("orders", batch(b"a"))
    known = await topic_id(broker, "orders")
    first, second = Copy("orders", known), Copy("orders", known)
    async with following(broker, first) as (follower, _):
        await first.until(lambda: first.offset == 1)
        follower.unfollow("orders", 0)
        follower.follow(second)
        await native.produce("orders", batch(b"b"))
        await second.until(lambda: second.offset == 2)
    assert first.offset == 1


async def test_a_partition_waits_for_its_topic_to_exist(broker: Running, native: RawClient) -> None:
    copy = Copy("orders", NO_TOPIC_ID)
    async with following(broker, copy) as (_, cluster):
        await native.create("orders", 1)
        await native.produce("orders", batch(b"a"))
        await cluster.refresh()
        await copy.until(lambda: copy.offset == 1)


async def test_a_recreated_topic_is_not_followed(broker: Running, native: RawClient) -> None:
    await native.create("orders", 1)
    await native.produce("orders", batch(b"a"))
    copy = Copy("orders", await topic_id(broker, "orders"))
    async with following(broker, copy):
        await copy.until(lambda: copy.offset == 1)
        await native.ask(DeleteTopicsRequest(topics=("orders",)))
        await native.create("orders", 1)
        await native.produce("orders", batch(b"other"))
        await copy.until(lambda: copy.found[-1].error is ErrorCode.INCONSISTENT_TOPIC_ID)
    assert copy.offset == 1


class Leaders(Cluster):
    """Scripted brokers with one batch for each leader epoch. A broker that leads waits at the end of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches: list[tuple[int, int]] = []  # broker and current leader epoch of each
        self.moved = trio.Event()

    def move(self, leader: int, epoch: int) -> None:
        self.leader, self.epoch = leader, epoch
        self.moved.set()
        self.moved = trio.Event()

    async def answer(self, node: int, call: Call) -> object:
        if call.api.name != "Fetch":
            return await super().answer(node, call)
        (asked,) = call.request.partitions
        self.fetches.append((node, asked.current_leader_epoch))
        if node == self.leader and asked.current_leader_epoch == self.epoch and asked.offset == self.epoch:
            await self.moved.wait()
        error = ErrorCode.NONE
        if node != self.leader:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif asked.current_leader_epoch != self.epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        data = b"" if error else build_batch([(0, None, b"x", ())], base_offset=asked.offset)
        found = FetchedPartition(topic="orders", partition=0, error=error, records=data)
        return KafkaFetchResponse(partitions=(found,))


@pytest.mark.parametrize("leader", [1, 2])
async def test_a_partition_is_fetched_from_its_new_leader_with_its_epoch(leader: int) -> None:
    """After an election elsewhere, and after one that the same broker won again."""
    async with scripted_cluster(1, 2, make=Leaders) as cluster:
        assert isinstance(cluster, Leaders)
        copy = Copy("orders", NO_TOPIC_ID)
        copy.offset = 4
        async with followed(cluster.bootstrap(1, 2), copy):
            await copy.until(lambda: copy.offset == 5)
            cluster.move(leader, 6)
            await copy.until(lambda: copy.offset == 6)
    assert cluster.fetches[0] == (1, 5)
    assert (leader, 6) in cluster.fetches
    assert all(found.error is ErrorCode.NONE for found in copy.found)


async def test_a_partition_is_fetched_elsewhere_when_its_leader_is_lost() -> None:
    async with scripted_cluster(1, 2, make=Leaders) as cluster:
        assert isinstance(cluster, Leaders)
        copy = Copy("orders", NO_TOPIC_ID, offset=4)
        async with followed(cluster.bootstrap(1, 2), copy):
            await copy.until(lambda: copy.offset == 5)
            cluster.dropped.add(1)
            cluster.move(2, 6)
            await copy.until(lambda: copy.offset == 6)


class Late(Cluster):
    """A scripted leader that answers a fetch at offset 5 of epoch 5 only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.answers = trio.Event(), trio.Event()
        self.fetches: list[tuple[int, int]] = []  # offset and leader epoch

    async def answer(self, node: int, call: Call) -> object:
        if call.api.name != "Fetch":
            return await super().answer(node, call)
        (asked,) = call.request.partitions
        self.fetches.append((asked.offset, asked.current_leader_epoch))
        if (asked.offset, asked.current_leader_epoch) == (5, 5):
            self.waits.set()
            await self.answers.wait()
        data = build_batch([(0, None, b"%d" % asked.current_leader_epoch, ())], base_offset=asked.offset)
        return KafkaFetchResponse(partitions=(FetchedPartition(topic="orders", partition=0, records=data),))


async def test_what_a_leader_sent_in_an_earlier_epoch_is_dropped() -> None:
    """Its broker leads again, and the copy may have followed somebody else in between."""
    async with scripted_cluster(1, 2, make=Late) as cluster:
        assert isinstance(cluster, Late)
        copy = Copy("orders", NO_TOPIC_ID, offset=4)
        async with followed(cluster.bootstrap(1, 2), copy) as (_, peer):
            await cluster.waits.wait()
            cluster.epoch = 7
            await peer.refresh()
            await wait_all_tasks_blocked()
            cluster.answers.set()
            await copy.until(lambda: copy.offset >= 6)
        assert (5, 7) in cluster.fetches
        assert [bytes(found.records)[-2:-1] for found in copy.found[:2]] == [b"5", b"7"]


FAULTS: dict[str, KafkaFetchResponse] = {
    "an error of the whole": KafkaFetchResponse(partitions=(), requested=(), error=ErrorCode.UNKNOWN_SERVER_ERROR),
    "a session that is gone": KafkaFetchResponse(
        partitions=(), requested=(), error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    ),
    "no partition": KafkaFetchResponse(partitions=(), requested=()),
    "another partition": KafkaFetchResponse(partitions=(FetchedPartition(topic="orders", partition=7),)),
    "a partition twice": KafkaFetchResponse(
        partitions=(FetchedPartition(topic="orders", partition=0),) * 2,
        requested=(KafkaFetchPartition(topic="orders", partition=0, offset=0),) * 2,
    ),
    "an error that time cures": KafkaFetchResponse(
        partitions=(FetchedPartition(topic="orders", partition=0, error=ErrorCode.OFFSET_NOT_AVAILABLE),)
    ),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_fetching_goes_on_after_a_fault_of_the_leader(name: str) -> None:
    class Faulty(Leaders):
        async def answer(self, node: int, call: Call) -> object:
            if call.api.name == "Fetch" and len(self.fetches) < 3:
                self.fetches.append((node, -1))
                return FAULTS[name]
            return await super().answer(node, call)

    async with scripted_cluster(1, 2, make=Faulty) as cluster:
        copy = Copy("orders", NO_TOPIC_ID, offset=4)
        async with followed(cluster.bootstrap(1, 2), copy):
            await copy.until(lambda: copy.offset == 5)
        assert isinstance(cluster, Faulty)
        assert cluster.fetches[:4] == [(1, -1)] * 3 + [(1, 5)]
        assert len(copy.found) == 1
