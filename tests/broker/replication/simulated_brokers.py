"""Brokers of a simulated cluster, and what tests ask of them."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid5

import trio

from broker.cluster import admin
from broker.cluster.image import PartitionKey
from broker.cluster.memory import Faults, MemoryCluster
from broker.cluster.values import PartitionState, TopicState
from broker.log.io.disk import Disk
from broker.partitions.appends.append import Append
from broker.partitions.partition import Partition
from protocol.records.batch import headers
from tests.broker.clients import batch
from tests.broker.replication.simulated_broker import SimulatedBroker
from tests.cluster.simulation import loop
from tests.cluster.simulation.network import Network

SPACE = UUID("11111111-2222-3333-4444-555555555555")
LIMIT_S = 300.0
STEP_S = 0.005  # of simulated time


class Held(Faults):
    """Holds up what a broker is told of changes in the store."""

    def __init__(self) -> None:
        self.released = trio.Event()
        self.released.set()

    async def before_changes(self) -> None:
        await self.released.wait()
        await super().before_changes()


class Brokers:
    """A cluster of brokers 1, 2, 3, and so on, and its topic `t`."""

    def __init__(self, root: Path, nursery: trio.Nursery, random: Random) -> None:
        self.root = root
        self.store = MemoryCluster()
        self.network = Network(nursery, random)
        self.all: dict[int, SimulatedBroker] = {}
        self.settings: Sequence[str] = ("replica.lag.time.max.ms=10000",)
        self.disks: dict[int, Disk] = {}
        self.faults: dict[int, Faults] = {}  # between a broker and the store
        self.nursery = nursery
        self._random = random
        self._topics = 0

    def __getitem__(self, number: int) -> SimulatedBroker:
        return self.all[number]

    @property
    def alive(self) -> list[SimulatedBroker]:
        return [broker for broker in self.all.values() if broker.is_running]

    async def start(self, *numbers: int, directories: int = 1) -> None:
        """Start brokers, each with its data directories, or start them again."""
        async with trio.open_nursery() as starting:
            for number in numbers:
                if number not in self.all:
                    paths = [self.root / f"broker-{number}-{index}" for index in range(directories)]
                    self.all[number] = SimulatedBroker(
                        self.store,
                        self.network,
                        number,
                        paths,
                        self._random,
                        disk=self.disks.get(number),
                        faults=self.faults.get(number),
                        settings=self.settings,
                    )
                starting.start_soon(self.nursery.start, self.all[number].run)

    async def create(self, replicas: Sequence[int], topic: str = "t", **configs: str) -> None:
        await self.create_all([replicas], topic, **configs)

    async def create_all(self, assignment: Sequence[Sequence[int]], topic: str = "t", **configs: str) -> None:
        self._topics += 1
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        made = TopicState(id=uuid5(SPACE, str(self._topics)), partitions=len(assignment), configs=settings)
        await admin.create_topic(self.alive[0].node, topic, made, assignment)

    async def delete(self, topic: str = "t") -> None:
        await admin.delete_topic(self.alive[0].node, topic)

    def key(self, topic: str = "t", index: int = 0) -> PartitionKey:
        return PartitionKey(self.alive[0].node.image.topics[topic].id, index)

    def state(self, topic: str = "t", index: int = 0) -> PartitionState:
        """Return the newest state that any broker knows."""
        image = max((broker.node.image for broker in self.alive), key=lambda image: image.revision)
        found = image.partition(topic, index)
        assert found is not None
        return found

    def in_sync(self, topic: str = "t", index: int = 0) -> set[int]:
        return {member.broker for member in self.state(topic, index).isr}

    def leader(self, topic: str = "t", index: int = 0) -> Partition | None:
        """Return the partition where it is led in the newest epoch."""
        state = self.state(topic, index)
        broker = self.all.get(state.leader_id)
        if broker is None or not broker.is_running:
            return None
        found = broker.partitions.get(topic, index)
        return found if found is not None and found.log.leader_epoch == state.leader_epoch else None

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Return what a condition gives once it is true."""
        with trio.fail_after(LIMIT_S):
            while not (found := condition()):  # noqa: ASYNC110  # of simulated time, which costs nothing
                await trio.sleep(STEP_S)
        return found

    async def append(self, *values: bytes, topic: str = "t", index: int = 0, replicas_ms: int = 60_000) -> Append:
        """Append records at the leader, and wait for all replicas that are in sync (-1: for none)."""
        leader = await self.until(lambda: self.leader(topic, index))
        append: Append = leader.append(batch(*values), replicas_ms=replicas_ms)
        self[self.state(topic, index).leader_id].writer.write_queued()
        with trio.fail_after(LIMIT_S):
            await append.wait()
        return append

    async def stored(self, *values: bytes, topic: str = "t", index: int = 0) -> None:
        """Append records until they are acknowledged."""
        append = await self.append(*values, topic=topic, index=index)
        assert append.error is None, append.error

    async def alike(self, *numbers: int, topic: str = "t", index: int = 0) -> bytes:
        """Wait until the logs of these brokers have the same end, and return their bytes, which must be the same."""

        def ends() -> set[int]:
            found = [self[number].local(topic, index) for number in numbers]
            return {-1 if each is None else each.log.log_end_offset for each in found}

        leader = await self.until(lambda: self.leader(topic, index))
        await self.until(lambda: ends() == {leader.log.log_end_offset})
        await self.until(lambda: self.in_sync(topic, index) >= set(numbers))
        contents = {self.content(number, topic, index) for number in numbers}
        assert len(contents) == 1
        return contents.pop()

    def content(self, number: int, topic: str = "t", index: int = 0) -> bytes:
        found = self[number].local(topic, index)
        assert found is not None
        return content_of(found)


def content_of(partition: Partition) -> bytes:
    """Return all batches of a log."""
    log = partition.log
    found, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20, min_one_message=True).slice
        assert piece is not None
        data = bytes(piece.read_all())
        found += data
        offset = [header for _, header in headers(data)][-1].next_offset
    return found


def simulate(main: Callable[[Brokers], Awaitable[None]], *, seed: int = 1) -> None:
    """Run a test with a cluster in the simulation."""

    async def begin(random: Random) -> None:
        with TemporaryDirectory() as root:
            async with trio.open_nursery() as nursery:
                brokers = Brokers(Path(root), nursery, random)
                with patch.object(trio, "open_tcp_stream", brokers.network.open_tcp_stream):
                    await main(brokers)
                    for broker in brokers.alive:
                        await broker.kill()
                nursery.cancel_scope.cancel()

    loop.run(seed, begin)
