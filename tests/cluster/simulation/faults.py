"""Faults of a simulated cluster, drawn from a seed: of processes, power, links, the store; and changes by operators.

Each run draws how likely each kind of fault is, none for some of them, so that seeds differ in kind. Some runs follow
the scripts of `directed` instead.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING
from uuid import uuid4

import trio

from tests.cluster.simulation.clients import DELETE_RECORDS
from tests.cluster.simulation.directed import Scripts
from tests.cluster.simulation.machine import Machine
from tests.cluster.simulation.network import MACHINE
from warmlog.broker.cluster import admin, partition_admin
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.store import StoreError
from warmlog.broker.cluster.values import Member, TopicState
from warmlog.broker.metadata.topic import RefusedError
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.protocol.kafka.messages.records.offsets import DeleteRecordsRequest, RecordsToDelete
from warmlog.protocol.partitions import TopicIdPartition

if TYPE_CHECKING:
    from tests.cluster.simulation.world import World

SCRIPTED_RUNS = 0.25  # share of the seeds


class Injector:
    """Injects faults into a world until it is told to heal it."""

    def __init__(self, world: "World", random: Random, script: str | None = None) -> None:
        """`script`: the only one of `directed` to run, again and again."""
        self._world = world
        self._random = random
        self._lost_at: dict[int, int] = {}  # the store's revision when a broker last lost its power
        self._topics = 0
        self._kinds: list[Callable[[], Awaitable[None]]] = [
            self._kill,
            self._cut_power,
            self._restart,
            self._cut_links,
            self._slow_links,
            self._reset_links,
            self._isolate,
            self._freeze,
            self._lose_store,
            self._disturb_store,
            self._expire_leases,
            self._compact,
            self._reassign,
            self._elect,
            self._change_topics,
            self._delete_records,
        ]
        self._weights = [random.choice([0, 1, 1, 3]) for _ in self._kinds]
        if not any(self._weights):
            self._weights[0] = 1
        self._pause_s = random.choice(world.tempo.pauses_s)
        scripts = Scripts(world, self, random)
        if script is not None or random.random() < SCRIPTED_RUNS:
            self._kinds, self._weights, self._pause_s = [partial(scripts.run_one, script)], [1], world.tempo.script_pace

    async def run(self, duration_s: float) -> None:
        """Begin faults one after the other; return when all of them have ended and everything is healed."""
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(duration_s):
                while True:
                    await trio.sleep(self._random.expovariate(1 / self._pause_s))
                    [kind] = self._random.choices(self._kinds, self._weights)
                    nursery.start_soon(kind)
            for faults in self._world.store_faults.values():
                faults.heal()
            self._world.network.heal()
        self._world.network.heal()

    def _duration_s(self) -> float:
        return self._random.choice(self._world.tempo.durations_s)

    def fault(self, text: str) -> None:
        """Note and count a fault."""
        self._world.note(text)
        self._world.report.faults += 1

    # -- brokers --

    def _running(self) -> Machine | None:
        """Return a machine whose broker serves."""
        found = [machine for machine in self._world.machines if machine.life is not None]
        return self._random.choice(found) if found else None

    async def _kill(self) -> None:
        found = [machine for machine in self._world.machines if machine.is_up and not machine.is_stopping]
        if found:
            await self.end(self._random.choice(found), is_power_cut=False)

    async def _cut_power(self) -> None:
        found = [machine for machine in self._world.machines if machine.is_up and self.may_lose(machine)]
        if found:
            await self.end(self._random.choice(found), is_power_cut=True)

    async def end(self, machine: Machine, *, is_power_cut: bool, pause_s: float | None = None) -> None:
        """Kill a broker, or cut its machine's power, and start it again after a pause."""
        self.fault(f"{'cut the power of' if is_power_cut else 'kill'} broker {machine.id}")
        if is_power_cut:
            self._lost_at[machine.id] = self._world.store.revision
        await machine.kill(is_power_cut=is_power_cut)
        await trio.sleep(self._random.choice((0.01, *self._world.tempo.durations_s)) if pause_s is None else pause_s)
        self._world.note(f"start broker {machine.id}")
        machine.start()

    def may_lose(self, machine: Machine) -> bool:
        """Whether the power of a machine may be cut, so that what it acknowledged without a sync is lost."""
        return not machine.is_stopping and (self._world.is_synced or self._is_dispensable(machine))

    def _is_dispensable(self, machine: Machine) -> bool:
        """Whether a machine may lose records.

        One loss at a time that the store does not know of, and none with `min.insync.replicas=1`: until then, changes
        may leave only those in the ISR that have lost their records. An intact member of ISR or ELR must remain.
        """
        image = self._world.image()
        is_any_unknown = any(not self._is_intact(each) for broker in self._lost_at if (each := image.current(broker)))
        topics = [topic for name in self._world.kept_topics if (topic := image.topics.get(name)) is not None]
        for key in [key for topic in topics for key in image.keys_of(topic)]:
            state = image.partitions[key]
            members = [member for member in (*state.isr, *state.elr) if member.broker != machine.id]
            if len(members) == len(state.isr) + len(state.elr):
                continue
            if is_any_unknown or self._world.min_isr == 1 or not any(map(self._is_intact, members)):
                return False
        return True

    def _is_intact(self, member: Member) -> bool:
        return member.epoch > self._lost_at.get(member.broker, 0)

    def restore_directory(self, machine: Machine, index: int) -> None:
        """Put an old copy of a data directory back, if there is one and its records are elsewhere."""
        if self._is_dispensable(machine) and machine.restore_directory(index):
            self.fault(f"restore an old copy of directory {index} of broker {machine.id}")
            self._lost_at[machine.id] = self._world.store.revision

    async def _restart(self) -> None:
        machine = self._running()
        if machine is not None and not machine.is_stopping:
            self.fault(f"stop broker {machine.id}")
            await machine.stop()
            self._world.note(f"broker {machine.id} has stopped")
            if not machine.is_up:
                await trio.sleep(self._duration_s())
                index = self._random.randrange(len(machine.directories))
                if self._random.random() < 0.3:
                    machine.copy_directory(index)
                elif self._random.random() < 0.5:
                    self.restore_directory(machine, index)
                self._world.note(f"start broker {machine.id}")
                machine.start()

    # -- links --

    async def _cut_links(self) -> None:
        one, other = self._random.sample(self._world.hosts, 2)
        pairs = self._random.choice([[(one, other)], [(one, other), (other, one)]])
        self.fault(f"cut {pairs}")
        await self._disturb(pairs, self._world.network.cut)

    async def _slow_links(self) -> None:
        one = self._random.choice(self._world.hosts)
        pairs = [(one, other) for other in self._world.hosts if self._random.random() < 0.5]
        self.fault(f"slow {pairs}")
        await self._disturb(pairs, self._world.network.slow)

    async def _isolate(self) -> None:
        one = self._random.choice(self._world.machines).name
        pairs = [pair for other in self._world.hosts for pair in ((one, other), (other, one)) if other != one]
        if self._random.random() < 0.5:
            pairs = [pair for pair in pairs if not any(host.startswith("client") for host in pair)]
        self.fault(f"isolate {one}: {len(pairs)}")
        await self._disturb(pairs, self._world.network.cut)

    async def _freeze(self) -> None:
        """Let a machine hear nothing, as if its broker stood still."""
        machine = self._random.choice(self._world.machines)
        others = [host for host in self._world.hosts if host != machine.name]
        self.fault(f"freeze {machine.name}")
        self._world.store_faults[machine.name].is_away = True
        await self._disturb(
            [pair for host in others for pair in ((machine.name, host), (host, machine.name))], self._world.network.cut
        )
        self._world.store_faults[machine.name].is_away = False

    async def _disturb(self, pairs: list[tuple[str, str]], how: Callable[[str, str], None]) -> None:
        for pair in pairs:
            how(*pair)
        await trio.sleep(self._duration_s())
        for pair in pairs:
            self._world.network.mend(*pair)

    async def _reset_links(self) -> None:
        one, other = self._random.sample(self._world.hosts, 2)
        self.fault(f"reset {one} {other}")
        self._world.network.reset_between(one, other)

    # -- the store --

    async def _lose_store(self) -> None:
        machines = self._world.machines
        found = machines if self._random.random() < 0.3 else [self._random.choice(machines)]
        self.fault(f"no store for {[machine.id for machine in found]}")
        for machine in found:
            self._world.store_faults[machine.name].is_away = True
        await trio.sleep(self._duration_s())
        for machine in found:
            self._world.store_faults[machine.name].is_away = False

    async def _disturb_store(self) -> None:
        faults = self._world.store_faults[self._random.choice(self._world.machines).name]
        faults.rate, faults.lag_s = self._random.choice([0.0, 0.1, 0.4]), self._random.choice([0.002, 0.1, 1.0])
        self.fault(f"disturb the store: {faults.rate} {faults.lag_s}")
        await trio.sleep(self._duration_s())
        faults.heal()

    async def _expire_leases(self) -> None:
        self.fault("expire all leases")
        self._world.store.expire_all()

    async def _compact(self) -> None:
        self.fault("compact the store")
        self._world.store.compact(self._world.store.revision)

    # -- operators --

    def _node(self) -> ClusterNode | None:
        machine = self._running()
        return None if machine is None or machine.life is None else machine.life.member.node

    async def _reassign(self) -> None:
        node = self._node()
        if node is None or not node.image.partitions:
            return
        key = self._random.choice(sorted(node.image.partitions))
        brokers = [machine.id for machine in self._world.machines]
        target = self._random.choice([None, self._random.sample(brokers, 3), self._random.sample(brokers, 2)])
        self._change(f"reassign {self._name(node.image, key)} to {target}")
        with suppress(StoreError, RefusedError), trio.move_on_after(5):
            await partition_admin.reassign_partitions(node, {key: target})

    async def _elect(self) -> None:
        node = self._node()
        if node is None or not node.image.partitions:
            return
        key = self._random.choice(sorted(node.image.partitions))
        self._change(f"elect the preferred leader of {self._name(node.image, key)}")
        with suppress(StoreError, RefusedError), trio.move_on_after(5):
            await partition_admin.elect_leaders(node, [key], is_unclean=False)

    async def _delete_records(self) -> None:
        """Delete what one of the consumers has read, or a part of it."""
        world = self._world
        consumer = self._random.choice(world.consumers)
        topic, partition, offset = world.topic, consumer.partition, self._random.randint(0, consumer.offset)
        client = self._random.choice(world.clients)
        MACHINE.set(client.name)
        self._change(f"{client.name} deletes records of {topic}-{partition} below {offset}")
        asked = RecordsToDelete(topic=topic, partition=partition, offset=offset)
        leader = await client.leader_of(topic, partition)
        if leader is not None:
            world.recorder.may_delete(partition, offset)
            with suppress(PeerError):
                request = DeleteRecordsRequest(partitions=(asked,), timeout_ms=2000)
                response = await client.ask(leader.leader, DELETE_RECORDS, request)
                world.note(f"deleted below {offset}: {response.partitions[0].error.name}")

    def _change(self, text: str) -> None:
        """Note and count what an operator does."""
        self._world.note(text)
        self._world.report.changes += 1

    def _name(self, image: ClusterImage, key: TopicIdPartition) -> str:
        return f"{image.names.get(key.topic_id)}-{key.partition}"

    async def _change_topics(self) -> None:
        node = self._node()
        if node is None:
            return
        others = sorted(name for name in node.image.topics if name not in self._world.kept_topics)
        with suppress(StoreError, RefusedError), trio.move_on_after(10):
            if others and self._random.random() < 0.5:
                name = self._random.choice(others)
                self._change(f"delete topic {name}")
                await admin.delete_topic(node, name)
            else:
                self._topics += 1
                name = f"other{self._topics % 3}"
                self._change(f"create topic {name}")
                made = TopicState(id=uuid4(), partitions=2)
                assignment = admin.place(node.image, 2, self._random.choice([1, 2, 3]), self._random)
                await admin.create_topic(node, name, made, assignment)
