"""A cluster of simulated machines with clients, from a seed: faults, then peace, then what must hold.

faults    brokers, links and the store fail, clients produce and consume
peace     everything is healed; every ISR must fill up, and every producer get its answer
checks    histories without anomalies; replicas byte by byte alike; one writer per leader epoch; no exceptions
"""

import logging
import math
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import trio

from tests.cluster.history import Read
from tests.cluster.simulation import loop
from tests.cluster.simulation.clients import Client, Consumer, Producer, Recorder
from tests.cluster.simulation.faults import Injector
from tests.cluster.simulation.groups.population import NONE, SETTINGS, SHARE, Nobody, Population, Readers, Workers
from tests.cluster.simulation.machine import Machine, batches_of, rack_of
from tests.cluster.simulation.network import MACHINE, Network
from tests.cluster.simulation.noted_store import NotedStore
from tests.cluster.simulation.store import StoreFaults, connected
from tests.cluster.simulation.tempo import SHORT, Tempo
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.values import PartitionState, TopicState, TopicStatus
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.replication.local_replica import LocalReplica
from warmlog.protocol.partitions import TopicIdPartition
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.reader import records_in

BROKERS = 3
PARTITIONS = 3
PRODUCERS = 2
RACKS = ("", rack_of(2))  # of consumers
MAX_PROBLEMS = 10  # the run ends
TOPIC = "t"


@dataclass
class Report:
    """What a run has shown."""

    seed: int
    problems: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    simulated_s: float = 0.0
    faults: int = 0
    changes: int = 0  # by operators
    elections: int = 0  # changes of a partition's leader to another broker
    stored: int = 0  # records
    delivered: int = 0  # records to members of share groups, or partitions to those of consumer groups
    processor_s: float = 0.0


class World:
    """Everything that is simulated."""

    topic = TOPIC

    def __init__(
        self, nursery: trio.Nursery, random: Random, root: Path, report: Report, tempo: Tempo, members: str
    ) -> None:
        self.tempo = tempo
        self.random = random
        self._root = str(root)
        self.report = report
        self.store = NotedStore(self.note)
        self.network = Network(nursery, Random(random.random()))
        has_groups = members != NONE
        settings = [*tempo.settings, *(SETTINGS if has_groups else ())]
        self.machines = [
            Machine(
                number,
                root,
                self.network,
                nursery,
                Random(random.random()),
                self.failed,
                settings,
                directories=2,
                has_groups=has_groups,
            )
            for number in range(1, BROKERS + 1)
        ]
        self.store_faults = {machine.name: StoreFaults(Random(random.random())) for machine in self.machines}
        self.is_synced = random.random() < 0.25  # acknowledged means on the disks of all in-sync replicas
        self.min_isr = random.choice([1, 2, 2])
        self.is_retained = random.random() < 0.75  # else old segments are deleted
        if has_groups:  # the model of groups does without what replication allows to be lost
            self.is_synced, self.min_isr, self.is_retained = False, 2, True
        self._configs = {"min.insync.replicas": str(self.min_isr)}
        if self.is_synced:
            self._configs["flush.messages"] = "1"
        if not self.is_retained:
            self._configs["retention.bytes"] = "20000"
        self.recorder = Recorder(TOPIC, PARTITIONS, self.note, self.problem)
        if not self.is_retained:
            for index in range(PARTITIONS):
                self.recorder.may_delete(index, math.inf)
        self.clients = [
            Client(f"client{number}", BROKERS, nursery, Random(random.random()), tempo)
            for number in range(PRODUCERS + len(RACKS))
        ]
        self.population: Population = Nobody()
        if has_groups:
            kind = Workers if members == SHARE else Readers
            self.population = kind(self, nursery, Random(random.random()), BROKERS, PARTITIONS)
        self.kept_topics = (TOPIC, *self.population.topics)  # whose records must not be lost
        clients = (*self.clients, *self.population.clients)
        self.hosts = [*[machine.name for machine in self.machines], *[client.name for client in clients]]
        self.producers = [
            Producer(client, 1000 + number, self.recorder, index)
            for number, client in enumerate(self.clients[:PRODUCERS])
            for index in range(PARTITIONS)
        ]
        self.consumers = [
            Consumer(client, self.recorder, index, rack)
            for client, rack in zip(self.clients[PRODUCERS:], RACKS, strict=True)
            for index in range(PARTITIONS)
        ]
        self.scope = trio.CancelScope()
        self.writers: dict[
            tuple[TopicIdPartition, int], int
        ] = {}  # the broker that leads, by partition and leader epoch

    def note(self, text: str) -> None:
        """Add a line to the trace. It is the same wherever the run has its files."""
        self.report.trace.append(f"{trio.current_time():.6f} {text.replace(self._root, 'root')}")

    def problem(self, text: str) -> None:
        """Note what must not happen."""
        self.note(f"PROBLEM {text}")
        self.report.problems.append(text)
        if len(self.report.problems) == MAX_PROBLEMS:
            self.scope.cancel()

    def failed(self, who: str, error: BaseException) -> None:
        """Note that a task has failed."""
        self.problem(f"{who} failed: {''.join(traceback.format_exception(error))}")

    def image(self) -> ClusterImage:
        """Return the store's content."""
        return self.store.image

    def wrote(self, replica: LocalReplica, state: PartitionState) -> None:
        """Record that a broker leads."""
        broker = int(MACHINE.get()[1:])
        self.note(f"broker {broker} leads {replica.partition.topic}-{replica.partition.index} in {state.leader_epoch}")
        if self.writers.setdefault((replica.key, state.leader_epoch), broker) != broker:
            self.problem(f"two writers in epoch {state.leader_epoch} of {replica.key}")

    # -- the run -------------------------------------------------------------------------------------------------------

    async def run(self, faults_s: float, script: str | None) -> None:
        """Run faults, wait for peace, and check."""
        for machine in self.machines:
            machine.start()
        await self._create_topic()
        async with trio.open_nursery() as consuming:
            for consumer in self.consumers:
                consuming.start_soon(consumer.run)
            consuming.start_soon(self.population.run)
            async with trio.open_nursery() as producing:
                for producer in self.producers:
                    producing.start_soon(producer.run)
                await Injector(self, Random(self.random.random()), script).run(faults_s)
                self.note("peace")
                if not await self._until("every ISR is full", self._is_whole):
                    producing.cancel_scope.cancel()
                self.population.calm()
                for producer in self.producers:
                    producer.is_ending = True
                producing.cancel_scope.deadline = trio.current_time() + self.tempo.peace_s
            if producing.cancel_scope.cancelled_caught:
                self.problem("producers have no answer")
            elif await self._until("all is read", self._is_read) and await self._until(
                "groups are done", self.population.is_done
            ):
                self.population.end()
                await trio.sleep(self.tempo.max_wait_s * 4)  # until replicas have what was committed last
                self._check()
            consuming.cancel_scope.cancel()

    async def _create_topic(self) -> None:
        await self._until("brokers run", lambda: all(machine.life for machine in self.machines))
        life = self.machines[0].life
        assert life is not None
        made = TopicState(id=uuid4(), partitions=PARTITIONS, configs=self._configs)
        self.note(f"create topic {TOPIC} with {self._configs}")
        assignment = admin.place(life.member.node.image, PARTITIONS, BROKERS, self.random)
        await admin.create_topic(life.member.node, TOPIC, made, assignment)
        await self.population.begin(life)

    async def _until(self, what: str, holds: Any) -> bool:
        with trio.move_on_after(self.tempo.peace_s):
            while not holds():  # noqa: ASYNC110  # simulated time
                await trio.sleep(0.5)
            return True
        groups = self.population.describe()
        self.problem(f"not within {self.tempo.peace_s} s: {what}; {groups}; {self._state()}")
        return False

    def _state(self) -> str:
        image = self.image()
        up = {machine.id: (machine.is_up, machine.life is not None) for machine in self.machines}
        return f"{up} {image.brokers} {image.draining} {image.topics} {image.partitions}"

    def _is_whole(self) -> bool:
        image = self.image()
        return (
            all(machine.life is not None for machine in self.machines)
            and all(topic.status is TopicStatus.LIVE for topic in image.topics.values())
            and all(
                state.leader is not None
                and image.is_good(state.leader)
                and not state.adding
                and not state.removing
                and {member.broker for member in state.isr if image.is_good(member)} == set(state.replicas)
                for state in image.partitions.values()
            )
        )

    def _is_read(self) -> bool:
        for consumer in self.consumers:
            leader = self._leader(consumer.partition)
            if leader is None or consumer.offset < leader.log.offsets.log_end_offset:
                return False
        return self._is_whole()

    def _leader(self, index: int) -> Partition | None:
        for machine in self.machines:
            if machine.life is not None:
                found = machine.life.partitions.get(TOPIC, index)
                if found is not None:
                    return found
        return None

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        image = self.image()
        for key, state in sorted(image.partitions.items()):
            name = image.names[key.topic_id]
            replicas: dict[int, PartitionLog] = {}
            for machine in self.machines:
                if machine.id in state.replicas and machine.life is not None:
                    local = machine.life.partitions.local(name, key.partition)
                    if local is None:
                        self.problem(f"broker {machine.id} has no replica of {name}-{key.partition}")
                    else:
                        replicas[machine.id] = local.log
            log_start = max([log.offsets.log_start_offset for log in replicas.values()], default=0)
            logs = {broker: batches_of(log, log_start) for broker, log in replicas.items()}
            if len(set(logs.values())) > 1:
                self.problem(f"replicas of {name}-{key.partition} differ: {_differences(logs)}")
            if name == TOPIC and logs:
                history = self.recorder.histories[key.partition]
                data = next(iter(logs.values()))
                records = [record for record in records_in(data) if record.offset >= log_start]
                history.log = [Read(record.offset, bytes(record.value or b"")) for record in records]
                history.log_start = log_start
                self.recorder.begins(key.partition, log_start)
        for index, history in enumerate(self.recorder.histories):
            for anomaly in history.anomalies():
                self.problem(f"{TOPIC}-{index}: {anomaly.kind}: {anomaly.detail}")
        self.population.check()


def _differences(logs: dict[int, bytes]) -> str:
    found = []
    for number, data in logs.items():
        batches = [(header.base_offset, header.leader_epoch, header.crc) for _, header in headers(data)]
        found.append(f"broker {number}: {len(data)} bytes, {batches}")
    return "; ".join(found)


def _described(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_described(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"


class _Exceptions(logging.Handler):
    """Takes exceptions that were logged for problems."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{MACHINE.get()} {record.name}: {record.getMessage()}"
        self._world.note(text)
        if record.exc_info:
            self._world.problem(f"{text}: {logging.Formatter().formatException(record.exc_info)}")


def simulate(
    seed: int,
    *,
    faults_s: float | None = None,
    script: str | None = None,
    tempo: Tempo = SHORT,
    members: str = NONE,
) -> Report:
    """Run a cluster from a seed, with random faults or one script of faults, and return what it has shown.

    `members`: of which kind of group.
    """
    report = Report(seed)
    faults_s = tempo.faults_s if faults_s is None else faults_s
    root = Path(tempfile.mkdtemp(prefix="simulated-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        loop.run(seed, lambda random: _main(random, root, report, faults_s, script, tempo, members))
    except Exception as error:  # a defect of the simulation, or of what it runs
        report.problems.append(f"the simulation failed: {_described(error)}")
        logging.getLogger(__name__).exception("seed %d", seed)
    finally:
        shutil.rmtree(root)
    return report


async def _main(
    random: Random, root: Path, report: Report, faults_s: float, script: str | None, tempo: Tempo, members: str
) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery, random, root, report, tempo, members)
        try:
            with connected(world.store, world.store_faults, world.network, Random(random.random())), _watched(world):
                with world.scope:
                    await world.run(faults_s, script)
                for machine in world.machines:
                    if machine.is_up:
                        await machine.kill(is_power_cut=False)
        finally:
            report.elections = world.store.elections
            report.stored = world.recorder.stored
            report.simulated_s = trio.current_time()
        nursery.cancel_scope.cancel()


@contextmanager
def _watched(world: World) -> Iterator[None]:
    """Report to the world which brokers lead, and what they log."""
    lead = LocalReplica._lead

    def noted(self: LocalReplica, state: PartitionState) -> None:
        world.wrote(self, state)
        lead(self, state)

    handler = _Exceptions(world)
    logger = logging.getLogger("warmlog.broker")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        with patch.object(LocalReplica, "_lead", noted), world.population.watched():
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
