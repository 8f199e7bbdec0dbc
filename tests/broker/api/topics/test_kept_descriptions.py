"""Descriptions of topics that are kept between requests equal those of a handler that keeps nothing."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
import trio
from msgspec.structs import replace

from tests.broker.cluster.memory import MemoryCluster, MemoryStore
from tests.broker.kafka_client import BY_NAME
from tests.broker.rig import NO_QUOTAS, rig
from tests.protocol.kafka.messages import TABLES, body, frame, with_defaults
from warmlog.broker.api.addresses import Advertised
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.pacing import PIECE_S, Pacer
from warmlog.broker.api.topics import metadata
from warmlog.broker.api.topics.metadata import MetadataApi
from warmlog.broker.cluster.keys import broker_key, draining_key, encode, known_key, partition_key, topic_key
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.store import Changes, Deleted, KeyValue, Range
from warmlog.broker.cluster.values import (
    NO_EPOCH,
    Endpoint,
    Member,
    PartitionState,
    Registration,
    TopicState,
    TopicStatus,
)
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.metadata.topic import InvalidPartitionsError
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.net.wire import KafkaWire
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.storage import Storage
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.topics.errors import TopicExistsError, UnknownTopicError
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.loading import load_settings
from warmlog.protocol.kafka.api import Codec
from warmlog.protocol.kafka.codec.bounds import NO_LIMIT, NO_TOPIC_ID
from warmlog.protocol.partitions import TopicIdPartition

NAMES = ("a", "b", "c", "d")
VERSIONS = range(14)  # of Metadata
NO_CREATION = "auto.create.topics.enable=false"  # by the requests
STEPS = 60
SEEDS = range(4)


class Changing(ABC):
    """A broker that changes at random, a handler that keeps descriptions, and others that keep nothing."""

    def __init__(self, partitions: Partitions, random: Random) -> None:
        self.random = random
        self.partitions = partitions
        self._wire = KafkaWire(Codec(topic_names=partitions.topic_name))
        self._keeping = self._handler()
        self._now_s = 0.0
        self._is_interrupting = False  # whether each reading of the clock ends a piece of a request

    @abstractmethod
    async def change(self) -> None:
        """Change something that is described, or try to."""

    def _handler(self) -> MetadataApi:
        advertised = Advertised(lambda: self.partitions.settings, gateway=None)
        return MetadataApi(self.partitions, "cluster", advertised, NO_QUOTAS)

    def _clock(self) -> float:
        self._now_s += PIECE_S * self._is_interrupting
        return self._now_s

    async def _answer(self, handler: MetadataApi, name: str, version: int, **fields: Any) -> bytes:
        api = BY_NAME[name]
        data = body(f"{name}Request", api, version, with_defaults(TABLES[f"{name}Request"], version, fields))
        session = Session(listener="kafka", peer=("127.0.0.1", 40_000), local=("127.0.0.1", 9092))
        context = Context(session, Pacer(self._clock))
        call, request = self._wire.decode(frame(api, version, data), context, NO_LIMIT)
        context.start()
        try:
            response = await handler.handlers()[type(request).api](request, context)
        finally:
            context.end()
        pieces: list[Any] = [*self._wire.encode(call, response, limit=NO_LIMIT)]
        return b"".join(pieces)

    async def interrupt(self) -> None:
        """Begin requests for all topics, whose answers may show any of the states that they meet."""
        self._is_interrupting = True
        async with trio.open_nursery() as nursery:
            for version in self.random.sample(VERSIONS, 2):
                fields = {"topics": None if version else (), "allow_auto_topic_creation": False}
                nursery.start_soon(partial(self._answer, self._keeping, "Metadata", version, **fields))
        self._is_interrupting = False

    async def pause(self) -> None:
        """Take the place of `Pacer.pause`."""
        await trio.lowlevel.checkpoint()
        if self.random.random() < 0.2:
            await self.change()

    async def check(self) -> None:
        """Compare answers to a few requests. Nothing is kept of deleted topics."""
        assert self._keeping._cache.keys() <= self.partitions.by_name.keys()
        names = self.random.sample((*NAMES, "none"), self.random.randrange(5))
        topics = [{"name": name, "topic_id": NO_TOPIC_ID} for name in names]
        for version in self.random.sample(VERSIONS, 2):
            wanted = topics or (None if version else ())
            await self._compare("Metadata", version, topics=wanted, allow_auto_topic_creation=False)
        limit, topics = self.random.randint(1, 20), [{"name": name} for name in names]
        await self._compare("DescribeTopicPartitions", 0, topics=topics, response_partition_limit=limit, cursor=None)

    async def _compare(self, name: str, version: int, **fields: Any) -> None:
        kept = await self._answer(self._keeping, name, version, **fields)
        assert kept == await self._answer(self._handler(), name, version, **fields), (name, version, fields)


class ChangingAlone(Changing):
    """A standalone broker with two data directories."""

    def __init__(self, partitions: Partitions, random: Random, other: Path) -> None:
        super().__init__(partitions, random)
        self._other = str(other)

    async def change(self) -> None:
        """Change topics, leader epochs, or which partitions are online."""
        number = self.random.randint
        changes: Sequence[Callable[[str], Awaitable[object]]] = (
            lambda name: self.partitions.create(name, number(1, 5)),
            lambda name: self.partitions.create(name, number(1, 5)),
            self.partitions.delete,
            lambda name: self.partitions.alter(name, partitions=number(2, 7)),
            lambda name: self.partitions.alter(name, lambda _: {"retention.ms": f"{number(1, 9)}"}),
            self._begin_epochs,
            self._lose_directory,
        )
        with suppress(TopicExistsError, UnknownTopicError, InvalidPartitionsError):
            await self.random.choice(changes)(self.random.choice(NAMES))

    async def _begin_epochs(self, name: str) -> None:
        for index in range(self.random.randrange(7)):
            partition = self.partitions.get(name, index)
            if partition is not None:
                assign_epoch(partition.log, records_lost=True)

    async def _lose_directory(self, _: str) -> None:
        if self.random.random() < 0.05:
            self.partitions.availability.take_offline(self._other, "unplugged")


class ChangingCluster(Changing):
    """A broker that follows a store in which anything may be written, or be missed."""

    def __init__(self, partitions: Partitions, random: Random, node: ClusterNode) -> None:
        super().__init__(partitions, random)
        self._node = node
        self._items: dict[str, KeyValue] = {}
        self._topics: dict[str, TopicState] = {}
        self._revision = 1

    async def change(self) -> None:
        """Write some keys, each with a revision of its own or all with one; or be fenced."""
        if self.random.random() < 0.05:
            self._node.fence()
            return
        is_missed, events = self.random.random() < 0.2, list[KeyValue | Deleted]()
        for _ in range(self.random.randint(1, 4)):
            self._revision += 1
            events += self._written()
            if not is_missed and self.random.random() < 0.5:
                self._take(events)
                events = []
        if is_missed:
            self._node._take(self._node.image.replace(Range(self._revision, tuple(self._items.values()))))
        else:
            self._take(events)

    def _take(self, events: list[KeyValue | Deleted]) -> None:
        self._node._take(self._node.image.apply(Changes(self._revision, tuple(events))))

    def _written(self) -> Iterator[KeyValue | Deleted]:
        """Yield the events of a transaction."""
        kind, broker = self.random.randrange(5), self.random.randint(1, 3)
        if kind == 0:
            is_known = self.random.random() < 0.5
            yield self._put((known_key if is_known else broker_key)(broker), self._registration(broker))
        elif kind == 1:
            yield from self._delete(self.random.choice((broker_key, known_key, draining_key))(broker))
        elif kind == 2:
            yield self._put(draining_key(broker), b"")
        else:
            yield from self._change_topic(self.random.choice(NAMES))

    def _change_topic(self, name: str) -> Iterator[KeyValue | Deleted]:
        topic = self._topics.get(name)
        if topic is None:
            topic = TopicState(id=UUID(int=self.random.getrandbits(128)), partitions=self.random.randint(1, 4))
            yield from self._put_topic(name, topic, range(topic.partitions))
        elif self.random.random() < 0.15:
            del self._topics[name]
            for index in reversed(range(topic.partitions)):
                yield from self._delete(partition_key(TopicIdPartition(topic.id, index)))
            yield from self._delete(topic_key(name))
            if self.random.random() < 0.5:
                yield from self._change_topic(name)
        elif self.random.random() < 0.2:
            grown = replace(topic, partitions=topic.partitions + 1)
            yield from self._put_topic(name, grown, range(topic.partitions, grown.partitions))
        else:
            yield self._put_partition(TopicIdPartition(topic.id, self.random.randrange(topic.partitions)))

    def _put_topic(self, name: str, topic: TopicState, indexes: range) -> Iterator[KeyValue]:
        status = self.random.choice((TopicStatus.LIVE, TopicStatus.LIVE, TopicStatus.CREATING))
        self._topics[name] = topic = replace(topic, status=status)
        yield self._put(topic_key(name), encode(topic))
        for index in indexes:
            yield self._put_partition(TopicIdPartition(topic.id, index))

    def _put_partition(self, key: TopicIdPartition) -> KeyValue:
        members = [Member(broker, self.random.randint(1, self._revision)) for broker in (1, 2, 3)]
        state = PartitionState(
            replicas=tuple(self.random.sample((1, 2, 3), self.random.randint(1, 3))),
            leader=self.random.choice((None, *members)),
            leader_epoch=self.random.randrange(5),
            isr=tuple(members[: self.random.randrange(4)]),
            elr=tuple(members[3 - self.random.randrange(2) :]),
        )
        return self._put(partition_key(key), encode(state))

    def _registration(self, broker: int) -> bytes:
        endpoint = Endpoint(listener="kafka", host=f"host-{self.random.randrange(3)}", port=9092)
        since = self.random.choice((NO_EPOCH, 1, self._revision // 2))
        rack = self.random.choice((None, "a", "b"))
        return encode(Registration(broker=broker, since=since, endpoints=(endpoint,), rack=rack))

    def _put(self, key: str, value: bytes) -> KeyValue:
        self._items[key] = item = KeyValue(key, value, self._revision, self._revision)
        return item

    def _delete(self, key: str) -> Iterator[Deleted]:
        if self._items.pop(key, None) is not None:
            yield Deleted(key)


async def check_often(changing: Changing, monkeypatch: pytest.MonkeyPatch, steps: int = STEPS) -> None:
    """Change a broker, and compare answers after each change."""
    monkeypatch.setattr(metadata, "STATES_PER_PIECE", 1)  # so that requests are interrupted between partitions
    monkeypatch.setattr(Pacer, "pause", changing.pause)
    for step in range(steps):
        await changing.change()
        if step % 3 == 0:
            await changing.interrupt()
        await changing.check()


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_standalone_broker_describes_its_present_state(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, other = tmp_path / "first", tmp_path / "other"
    directory.mkdir()
    other.mkdir()
    async with rig(directory, NO_CREATION, others=[other]) as broker:
        await check_often(ChangingAlone(broker.partitions, Random(seed), other), monkeypatch)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_broker_of_a_cluster_describes_its_present_image(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(tmp_path) as (partitions, node):
        await check_often(ChangingCluster(partitions, Random(seed), node), monkeypatch, STEPS * 4)
        assert partitions.catalog._changes.keys() <= node.image.names.keys()
        assert node.image.counts.keys() <= node.image.names.keys()


@asynccontextmanager
async def following(directory: Path) -> AsyncIterator[tuple[Partitions, ClusterNode]]:
    """A broker of a cluster that only follows what the test gives to its node."""
    settings, metrics = load_settings(assignments=[NO_CREATION]), Metrics()
    node = ClusterNode(MemoryStore(MemoryCluster()), 1, lease_s=10.0, random=Random(1))
    with DataDirectories.open([directory], node_id=1, cluster_id="cluster", disk=Disk()) as data:
        data.join({}, [])
        async with trio.open_nursery() as nursery:
            writer = Writer(nursery=nursery, metrics=metrics, loop_write_max_bytes=1 << 16)
            storage = Storage(
                directories=data, files=OpenFiles(disk=Disk()), clock=lambda: 0, random=Random(1), is_in_cluster=True
            )
            partitions = Partitions(storage, LiveSettings(settings), writer, metrics, node)
            await partitions.open_all()
            yield partitions, node
            await partitions.close_all()
