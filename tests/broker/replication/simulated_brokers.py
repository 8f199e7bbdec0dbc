"""Brokers of a simulated cluster, and what tests ask of them."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID, uuid5

import trio

from tests.broker.clients import batch
from tests.broker.cluster.memory import MemoryCluster
from tests.cluster.simulation import loop
from tests.cluster.simulation.machine import Life, Machine, batches_of, host_of
from tests.cluster.simulation.network import Network
from tests.cluster.simulation.store import StoreFaults, connected
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.values import PartitionState, TopicState
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.appends.append import Append
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.partitions import TopicIdPartition

BROKERS = (1, 2, 3)
SETTINGS = ("replica.lag.time.max.ms=10000",)
SPACE = UUID("11111111-2222-3333-4444-555555555555")
LIMIT_S = 300.0
STEP_S = 0.005  # of simulated time


class Brokers:
    """A cluster of up to three brokers, and its topic `t`."""

    def __init__(
        self, root: Path, nursery: trio.Nursery, random: Random, settings: Sequence[str], directories: int
    ) -> None:
        self.store = MemoryCluster()
        self.store_faults = {host_of(number): StoreFaults(Random(random.random())) for number in BROKERS}
        self.network = Network(nursery, random)
        self.machines = {
            number: Machine(
                number, root, self.network, nursery, Random(random.random()), _fail, settings, directories=directories
            )
            for number in BROKERS
        }
        self._topics = 0

    def __getitem__(self, number: int) -> Life:
        """Return a broker that runs."""
        life = self.machines[number].life
        assert life is not None
        return life

    def node(self, number: int) -> ClusterNode:
        return self[number].member.node

    @property
    def nodes(self) -> list[ClusterNode]:
        """Of all brokers that run."""
        return [machine.life.member.node for machine in self.machines.values() if machine.life is not None]

    def local(self, number: int, topic: str = "t", index: int = 0) -> Partition | None:
        """Return the partition that has a log at this broker."""
        return self[number].partitions.local(topic, index)

    def log(self, number: int, topic: str = "t", index: int = 0) -> PartitionLog:
        """Return the log of a partition, which must be at this broker."""
        found = self.local(number, topic, index)
        assert found is not None
        return found.log

    # -- life --

    async def start(self, *numbers: int) -> None:
        """Start brokers, and return when they serve and all brokers know each other."""
        for number in numbers:
            self.machines[number].start()
        await self.until(lambda: all(self.machines[number].life for number in numbers))
        await self.until(self._know_each_other)

    def _know_each_other(self) -> bool:
        return all(node.image.current(other.id) == other.me for node in self.nodes for other in self.nodes)

    async def stop(self, number: int) -> None:
        """Stop a broker in good order."""
        await self.machines[number].stop()

    async def kill(self, number: int) -> None:
        """End a broker at once."""
        await self.machines[number].kill(is_power_cut=False)

    def cut(self, here: int, there: int) -> None:
        """Deliver nothing from one broker to another any more."""
        self.network.cut(host_of(here), host_of(there))

    # -- topics --

    async def create(self, replicas: Sequence[int], topic: str = "t", **configs: str) -> None:
        await self.create_all([replicas], topic, **configs)

    async def create_all(self, assignment: Sequence[Sequence[int]], topic: str = "t", **configs: str) -> None:
        self._topics += 1
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        made = TopicState(id=uuid5(SPACE, str(self._topics)), partitions=len(assignment), configs=settings)
        await admin.create_topic(self.nodes[0], topic, made, assignment)

    async def delete(self, topic: str = "t") -> None:
        await admin.delete_topic(self.nodes[0], topic)

    def key(self, topic: str = "t", index: int = 0) -> TopicIdPartition:
        return TopicIdPartition(self.nodes[0].image.topics[topic].id, index)

    def state(self, topic: str = "t", index: int = 0) -> PartitionState:
        """Return the newest state that any broker knows."""
        image = max((node.image for node in self.nodes), key=lambda image: image.revision)
        found = image.partition(topic, index)
        assert found is not None
        return found

    def in_sync(self, topic: str = "t", index: int = 0) -> set[int]:
        return {member.broker for member in self.state(topic, index).isr}

    def leader(self, topic: str = "t", index: int = 0) -> Partition | None:
        """Return the partition where it is led in the newest epoch."""
        state = self.state(topic, index)
        life = self.machines[state.leader_id].life if state.leader else None
        found = life.partitions.get(topic, index) if life else None
        return found if found is not None and found.log.epochs.current == state.leader_epoch else None

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Return what a condition gives once it is true."""
        with trio.fail_after(LIMIT_S):
            while not (found := condition()):  # noqa: ASYNC110  # of simulated time, which costs nothing
                await trio.sleep(STEP_S)
        return found

    # -- records --

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
            found = [self.local(number, topic, index) for number in numbers]
            return {-1 if each is None else each.log.offsets.log_end_offset for each in found}

        leader = await self.until(lambda: self.leader(topic, index))
        await self.until(lambda: ends() == {leader.log.offsets.log_end_offset})
        await self.until(lambda: self.in_sync(topic, index) >= set(numbers))
        contents = {self.content(number, topic, index) for number in numbers}
        assert len(contents) == 1
        return contents.pop()

    def content(self, number: int, topic: str = "t", index: int = 0) -> bytes:
        """Return all batches of a log."""
        return batches_of(self.log(number, topic, index))


def _fail(who: str, error: BaseException) -> None:
    raise AssertionError(f"{who} failed") from error


def simulate(
    main: Callable[[Brokers], Awaitable[None]], *, settings: Sequence[str] = SETTINGS, directories: int = 1
) -> None:
    """Run a test with a cluster in the simulation; each broker has so many data directories."""

    async def begin(random: Random) -> None:
        with TemporaryDirectory() as root:
            async with trio.open_nursery() as nursery:
                brokers = Brokers(Path(root), nursery, random, settings, directories)
                with connected(brokers.store, brokers.store_faults, brokers.network, random):
                    await main(brokers)
                    for number, machine in brokers.machines.items():
                        if machine.is_up:
                            await brokers.kill(number)
                nursery.cancel_scope.cancel()

    loop.run(1, begin)
