"""The source of a mirror in the simulation: a partition in memory, whose leader consumers fetch from."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio

from tests.broker.replication.simulated_brokers import Brokers
from tests.cluster.simulation.machine import Life
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.values import TopicState
from warmlog.broker.log.index.leader_epochs import UNDEFINED, LeaderEpochs
from warmlog.broker.metadata.topic import Mirror
from warmlog.broker.mirror.copies import Copies
from warmlog.broker.replication.following.follower import Follower
from warmlog.broker.replication.peers.cluster_view import Leader, Reaction, reaction_to
from warmlog.broker.replication.peers.leaders import Watcher
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.fetch import (
    CONSUMER,
    DivergedPartition,
    FetchingReplica,
    KafkaFetchedPartition,
    KafkaFetchPartition,
    KafkaFetchResponse,
)
from warmlog.protocol.kafka.peer_apis import FETCH
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.request import EARLIEST_TIMESTAMP

CLUSTER_ID = "source"
TOPIC = "t"
FETCH_WAIT_S = 0.1
FOLLOW_S = 0.2  # between two looks for partitions to follow
START_MS = 1_700_000_000_000


class SimulatedSource:
    """The `Leaders` of the source's only partition. `batches`: one record each, by offset."""

    def __init__(self) -> None:
        self.on_change: list[Watcher] = []
        self.epoch = 0
        self.start = 0
        self.batches: list[bytes] = []
        self.epochs = LeaderEpochs()
        self.view = self
        self.is_away = False
        self._values = 0

    # -- what happens there --

    @property
    def end(self) -> int:
        return len(self.batches)

    def content(self, start: int = 0) -> bytes:
        return b"".join(self.batches[start:])

    def produce(self, count: int = 1, **options: Any) -> None:
        for _ in range(count):
            self._values += 1
            row = (START_MS, None, b"v%d" % self._values, ())
            self.epochs.assign(self.epoch, self.end)
            self.batches.append(build_batch([row], base_offset=self.end, leader_epoch=self.epoch, **options))

    def elect(self, epochs: int = 1) -> None:
        self.epoch += epochs
        for changed in self.on_change:
            changed(None)

    def lose(self, keep: int) -> None:
        """Elect a leader that lacks records which consumers have read."""
        del self.batches[keep:]
        self.epochs.truncate_from_end(keep)
        self.elect()

    def delete_before(self, offset: int) -> None:
        self.start = offset

    # -- `Leaders` --

    def identity(self) -> FetchingReplica:
        return CONSUMER

    def leader_of(self, topic: str, partition: int) -> Leader:
        del topic, partition
        return Leader(1, self.epoch)

    def topic_id_of(self, _: str) -> bytes:
        return b"\0" * 16

    def report(self, _: str, error: ErrorCode) -> Reaction:
        return reaction_to(error)

    async def connection(self, node_id: int, number: int) -> "SimulatedSource":
        del node_id, number
        return self

    def supports(self, *_: object) -> bool:
        return True

    def give_up(self) -> None:
        """Close nothing."""

    async def ask(self, *arguments: Any, waits_s: float = 0.0) -> Any:
        """Answer a fetch over the connection, or the question of a replica for offsets."""
        del waits_s
        while self.is_away:  # noqa: ASYNC110  # of simulated time
            await trio.sleep(FETCH_WAIT_S)
        api, request = arguments[-2:]
        if api is not FETCH:
            (query,) = request.partitions
            offset = self.start if query.timestamp == EARLIEST_TIMESTAMP else self.end
            return SimpleNamespace(partitions=(SimpleNamespace(error=ErrorCode.NONE, offset=offset),))
        if all(asked.offset == self.end for asked in request.partitions):
            await trio.sleep(FETCH_WAIT_S)
        return KafkaFetchResponse(partitions=tuple([self._fetched(asked) for asked in request.partitions]))

    def _fetched(self, asked: KafkaFetchPartition) -> KafkaFetchedPartition:
        found: dict[str, Any] = {"topic": asked.topic, "topic_id": asked.topic_id, "partition": asked.partition}
        if asked.current_leader_epoch != self.epoch:
            return KafkaFetchedPartition(**found, error=ErrorCode.FENCED_LEADER_EPOCH)
        found |= {"high_watermark": self.end, "last_stable_offset": self.end, "log_start_offset": self.start}
        if asked.last_fetched_epoch != UNDEFINED:
            epoch, end = self.epochs.end_offset(asked.last_fetched_epoch, self.end)
            if epoch == UNDEFINED:
                return KafkaFetchedPartition(**found, error=ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch != asked.last_fetched_epoch or asked.offset > end:
                return DivergedPartition(**found, epoch=epoch, end_offset=end)
        if not self.start <= asked.offset <= self.end:
            return KafkaFetchedPartition(**found, error=ErrorCode.OFFSET_OUT_OF_RANGE)
        return KafkaFetchedPartition(**found, records=memoryview(b"".join(self.batches[asked.offset :][:3])))


class Mirrored:
    """A cluster whose topic `t` follows a source."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.source = SimulatedSource()
        for machine in brokers.machines.values():
            machine.beside = self._copying()

    def _copying(self) -> Callable[[Life], Awaitable[None]]:
        async def run(life: Life) -> None:
            copies = Copies(life.partitions, life.member.own_cluster())
            try:
                async with trio.open_nursery() as nursery:
                    source: Any = self.source
                    follower = Follower(source, random=life.member.node.random)
                    copies.begin(source, follower)
                    nursery.start_soon(follower.run)
                    while True:
                        await copies.follow(lambda _: True)
                        await trio.sleep(FOLLOW_S)
            finally:
                copies.end()
                self.source.on_change.remove(follower._note)  # the source outlives the broker

        return run

    async def create(self, replicas: list[int], **configs: str) -> None:
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        made = TopicState(
            id=UUID(int=7),
            partitions=1,
            configs=settings,
            mirror=Mirror(cluster_id=CLUSTER_ID, has_source_id=False),
        )
        await admin.create_topic(self.brokers.nodes[0], TOPIC, made, [replicas])

    async def equal(self, *numbers: int) -> None:
        """Wait until these brokers have exactly the records of the source, and show them."""
        await self.brokers.until(lambda: self._are_equal(numbers))

    def _are_equal(self, numbers: tuple[int, ...]) -> bool:
        source, brokers = self.source, self.brokers
        for number in numbers:
            found = brokers.local(number)
            if found is None or found.log.offsets.log_end_offset != source.end:
                return False
            if brokers.content(number) != source.content(found.log.offsets.log_start_offset):
                return False
        leader = brokers.leader()
        return leader is not None and leader.log.offsets.high_watermark == source.end

    async def promote(self) -> int:
        """Ask for the promotion, and return where it happened."""
        await admin.begin_promotion(self.brokers.nodes[0], TOPIC)
        return await self.promoted()

    async def promoted(self) -> int:
        """Wait until the topic is no mirror any more; return where its own records begin."""

        def ends() -> tuple[int, ...] | None:
            mirror = self.brokers.nodes[0].image.topics[TOPIC].mirror
            return None if mirror is None else mirror.promoted_at

        (end,) = await self.brokers.until(ends)
        return int(end)
