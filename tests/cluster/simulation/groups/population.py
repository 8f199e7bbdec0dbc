"""The members of a simulated cluster's group, and the checks of what they see: `Workers` share, `Readers` own.

A world begins them after its topic, runs them while brokers fail, calms them with the peace, waits until they are done,
and checks what must hold at the end.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from random import Random
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import trio

from tests.cluster.simulation.clients import Client
from tests.cluster.simulation.groups import share_model
from tests.cluster.simulation.groups.consumer_member import ConsumerMember
from tests.cluster.simulation.groups.consumer_model import ConsumerModel
from tests.cluster.simulation.groups.member import HEARTBEAT_S, SESSION_S
from tests.cluster.simulation.groups.share_member import ShareMember
from tests.cluster.simulation.groups.share_model import GROUP, LIMIT, LOCK_S, ShareModel
from tests.cluster.simulation.machine import Life, batches_of
from tests.cluster.simulation.network import MACHINE
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.values import TopicState
from warmlog.broker.groups.topic import TOPIC as OFFSETS_TOPIC
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.share.partitions.delivery import Delivery, Status
from warmlog.broker.share.state.topic import TOPIC as STATE_TOPIC
from warmlog.protocol.kafka.share_state_records import SharePartitionKey
from warmlog.protocol.records.reader import records_in

if TYPE_CHECKING:
    from tests.cluster.simulation.world import World

NONE, SHARE, CONSUMER = "none", "share", "consumer"
KINDS = (NONE, SHARE, CONSUMER)
WORKERS = 5  # some of which share a partition
READERS = 3
DEAD_LETTERS = "dlq.workers"
_ms = 1000
_TIMES = ("session.timeout.ms", "heartbeat.interval.ms")
SETTINGS = (
    "offsets.topic.num.partitions=2",
    "offsets.topic.segment.bytes=16384",
    "min.insync.replicas=2",
    "share.coordinator.state.topic.num.partitions=2",
    "share.coordinator.state.topic.segment.bytes=16384",
    "share.coordinator.state.topic.prune.interval.ms=4000",
    "share.coordinator.snapshot.update.records.per.snapshot=20",
    "share.coordinator.cold.partition.snapshot.interval.ms=7000",
    f"group.share.record.lock.duration.ms={LOCK_S * _ms:.0f}",
    "group.share.min.record.lock.duration.ms=1000",
    f"group.share.delivery.count.limit={LIMIT}",
    "group.share.partition.max.record.locks=100",
    "group.share.initialize.retry.interval.ms=3000",
    *[
        f"group.{kind}.{prefix}{name}={value * _ms:.0f}"
        for kind in ("share", "consumer")
        for name, value in zip(_TIMES, (SESSION_S, HEARTBEAT_S), strict=True)
        for prefix in ("", "min.")
    ],
    "group.share.assignment.interval.ms=100",
    "group.consumer.assignment.interval.ms=100",
)


class Population(Protocol):
    """The clients of a group."""

    settings: Sequence[str]  # of the brokers
    clients: Sequence[Client]
    topics: Sequence[str]  # that must not lose records, besides the world's

    async def begin(self, life: Life) -> None:
        """Create what the group needs, with a broker."""

    async def run(self) -> None:
        """Live until told to end."""

    def calm(self) -> None:
        """Do nothing any more but what leads to the end."""

    def end(self) -> None:
        """Ask nothing any more."""

    def is_done(self) -> bool:
        """Whether everything has come to its end."""

    def describe(self) -> str:
        """Return what keeps it from being done."""

    def check(self) -> None:
        """Note what does not hold at the end."""

    def watched(self) -> AbstractContextManager[None]:
        """Watch the brokers."""


class Nobody:
    """No group at all, and brokers without coordinators."""

    settings: Sequence[str] = ()
    clients: Sequence[Client] = ()
    topics: Sequence[str] = ()

    async def begin(self, life: Life) -> None:
        """Do nothing."""

    async def run(self) -> None:
        """Do nothing."""

    def calm(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def is_done(self) -> bool:
        """Return True."""
        return True

    def describe(self) -> str:
        """Return nothing."""
        return ""

    def check(self) -> None:
        """Do nothing."""

    def watched(self) -> AbstractContextManager[None]:
        """Watch nothing."""
        return nullcontext()


class Workers:
    """Members of a share group."""

    settings = SETTINGS
    topics = (OFFSETS_TOPIC, STATE_TOPIC, DEAD_LETTERS)

    def __init__(self, world: "World", nursery: trio.Nursery, random: Random, brokers: int, partitions: int) -> None:
        self._world = world
        self._partitions = partitions
        self._model = ShareModel(partitions, world.problem, self._is_stale, world.topic)
        self._has_dead_letters = random.random() < 0.5
        pairs = []
        for number in range(WORKERS):
            name = f"client-s{number}"
            one, other = (Client(name, brokers, nursery, Random(random.random()), world.tempo) for _ in range(2))
            pairs.append((one, other))
        self.clients = [pair[0] for pair in pairs]
        self._members = [ShareMember(pair, world.recorder, self._model, brokers) for pair in pairs]

    async def begin(self, life: Life) -> None:
        """Let the group begin at the earliest record, half of the time with dead letters."""
        configs = {"share.auto.offset.reset": "earliest"}
        node = life.member.node
        if self._has_dead_letters:
            configs["errors.deadletterqueue.topic.name"] = DEAD_LETTERS
            own = {"errors.deadletterqueue.group.enable": "true", "min.insync.replicas": "2"}
            made = TopicState(id=uuid4(), partitions=self._partitions, configs=own)
            assignment = admin.place(node.image, self._partitions, 3, self._world.random)
            await admin.create_topic(node, DEAD_LETTERS, made, assignment)
        self._world.note(f"group {GROUP} with {configs}")
        await admin.set_configs(node, f"group:{GROUP}", lambda _: configs)

    async def run(self) -> None:
        """Live until told to end."""
        async with trio.open_nursery() as nursery:
            for member in self._members:
                nursery.start_soon(member.run)

    def calm(self) -> None:
        """Accept all records."""
        for member in self._members:
            member.is_calm = True

    def end(self) -> None:
        """Ask nothing any more."""
        for member in self._members:
            member.is_ending = True

    def is_done(self) -> bool:
        """Whether all records are accepted, rejected or given up, according to the leaders."""
        return not self.describe()

    def describe(self) -> str:
        """Return what is in flight."""
        left = []
        for index in range(self._partitions):
            delivery = self._delivery(index)
            end = None if delivery is None else delivery.partition.log.offsets.high_watermark
            if delivery is None or delivery.status is not Status.ACTIVE:
                left.append(f"{index}: no leader delivers; {delivery}")
            elif delivery.state.start_offset != end:
                spans = [
                    (each.first, each.last, each.state.name, each.deliveries, each.member, each.pending is not None)
                    for each in list(delivery.state.spans)[:4]
                ]
                left.append(f"{index}: {delivery.state.start_offset} of {end}: {spans}")
        return "; ".join(left)

    def _delivery(self, index: int) -> Delivery | None:
        world = self._world
        image = world.image()
        topic = image.topics[world.topic]
        key = SharePartitionKey(GROUP, topic.id.bytes, index)
        for machine in world.machines:
            life = machine.life
            if life is not None and life.coordinators is not None and life.partitions.get(world.topic, index):
                return life.coordinators.share.deliveries.find(key)
        return None

    def _is_stale(self, delivery: Delivery) -> bool:
        image = self._world.image()
        for key in image.keys_of(image.topics[delivery.partition.topic]):
            if key.partition == delivery.partition.index:
                return image.partitions[key].leader_epoch != delivery.leader_epoch
        return True

    def check(self) -> None:
        """Check all records in the log."""
        world = self._world
        letters = self._letters() if self._has_dead_letters else None
        for index, history in enumerate(world.recorder.histories):
            for read in history.log:
                if world.recorder.may_be_deleted(index, read.offset):
                    continue
                problem = self._model.missing(index, read.offset)
                if problem is None and letters is not None and self._model.has_dead_letter(index, read.offset):
                    problem = None if (index, read.offset) in letters else "has no dead letter"
                if problem is not None:
                    world.problem(f"{world.topic}-{index} offset {read.offset} {problem}")
        world.note(f"{self._model.delivered} deliveries, {self._model.accepted} acknowledged")
        world.report.delivered += self._model.delivered

    def _letters(self) -> set[tuple[int, int]]:
        """Return the partitions and offsets that have dead letters, or got none for a reason that was logged."""
        letters = set()
        for log in self._logs_of(DEAD_LETTERS):
            for record in records_in(batches_of(log)):
                headers = dict(record.headers)
                index, offset = (int(headers[f"__dlq.errors.{name}"]) for name in ("partition", "offset"))
                letters.add((index, offset))
        for line in self._world.report.trace:
            found = re.search(r"-(\d+): offsets (\d+) to (\d+) are archived without dead letters", line)
            if found is not None:
                index, first, last = map(int, found.groups())
                letters |= {(index, offset) for offset in range(first, last + 1)}
        return letters

    def _logs_of(self, topic: str) -> Iterator[PartitionLog]:
        for index in range(self._partitions):
            for machine in self._world.machines:
                if machine.life is not None and (partition := machine.life.partitions.get(topic, index)):
                    yield partition.log

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Report deliveries to the model."""
        with share_model.watched(self._model, lambda: int(MACHINE.get()[1:])):
            yield


class Readers:
    """Members of a consumer group (KIP-848)."""

    settings = SETTINGS
    topics = (OFFSETS_TOPIC,)

    def __init__(self, world: "World", nursery: trio.Nursery, random: Random, brokers: int, partitions: int) -> None:
        self._world = world
        self._model = ConsumerModel(world.problem, self._is_coordinator)
        self.clients = [
            Client(f"client-c{number}", brokers, nursery, Random(random.random()), world.tempo)
            for number in range(READERS + 1)
        ]
        self._members = [ConsumerMember(client, world.recorder, self._model, brokers) for client in self.clients]
        self._members[-1].only_watches = True

    async def begin(self, life: Life) -> None:
        """Do nothing: members create the group."""

    async def run(self) -> None:
        """Live until told to end."""
        async with trio.open_nursery() as nursery:
            for member in self._members:
                nursery.start_soon(member.run)

    def calm(self) -> None:
        """Stay, and subscribe to everything."""
        self._model.is_calm = True

    def end(self) -> None:
        """Ask nothing any more."""
        for member in self._members:
            member.is_ending = True

    def is_done(self) -> bool:
        """Whether each partition of all topics is owned by one member."""
        return not self.describe()

    def describe(self) -> str:
        """Return what differs from the target."""
        image = self._world.image()
        wanted = {(topic.id.bytes, index) for topic in image.topics.values() for index in range(topic.partitions)}
        names = [name for name in image.topics if name.startswith("__")]
        wanted -= {key for key in wanted if any(image.topics[name].id.bytes == key[0] for name in names)}
        owned = self._model.owners
        if owned.keys() != wanted or not all(member.is_settled for member in self._members):
            members = [(member.id, member.is_settled, len(member.owned)) for member in self._members]
            return f"{len(wanted - owned.keys())} without owner, {len(owned.keys() - wanted)} gone; {members}"
        return ""

    def _is_coordinator(self, broker: int) -> bool:
        image = self._world.image()
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return False
        index = self._model.partition_of_group(topic.partitions)
        for key in image.keys_of(topic):
            if key.partition == index:
                state = image.partitions[key]
                return state.leader is not None and state.leader_id == broker
        return False

    def check(self) -> None:
        """Do nothing: all is checked at each step."""
        self._world.note(f"{self._model.gains} partitions gained, {self._model.commits} commits")
        self._world.report.delivered += self._model.gains

    def watched(self) -> AbstractContextManager[None]:
        """Watch nothing: members see all."""
        return nullcontext()
