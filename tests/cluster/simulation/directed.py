"""Scripts of faults that random ones hardly ever come to: each leads to the situation that one rule is for.

a join that the leader does not see       its high watermark must wait for the follower all the same
a shrink that takes effect late           it must not leave only members that have lost records since
a fetch of an earlier life                what it says of the follower's log is not true any more
a follower that answers come to late      it must not join before it has what is acknowledged
a leader that is left alone in the ISR    the others stay eligible, since it may lose its records
a leader that does not know of the next   its records that nobody else has must go
an old copy of a data directory           the last broker in sync must not lead without what it lacks
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import trio

from tests.cluster.simulation.machine import Machine
from warmlog.broker.cluster.rules.states import in_order
from warmlog.protocol.partitions import TopicIdPartition

if TYPE_CHECKING:
    from tests.cluster.simulation.faults import Injector
    from tests.cluster.simulation.world import World

SCRIPTS = ("join-unseen", "shrink-late", "fetch-late", "join-behind", "in-sync-alone", "lead-late", "old-directory")
JOIN_UNSEEN, SHRINK_LATE, FETCH_LATE, JOIN_BEHIND, IN_SYNC_ALONE, LEAD_LATE, OLD_DIRECTORY = SCRIPTS
# In simulated seconds, at the pace of the run.
STEP_S = 0.01
LIMIT_S = 8.0  # for a situation to come about: more than `replica.lag.time.max.ms` and a lease together


class _Cast(NamedTuple):
    """A partition whose replicas are all in sync; the followers in the order in which they would be elected."""

    key: TopicIdPartition
    leader: Machine
    first: Machine
    second: Machine


class Scripts:
    """Runs one script at a time."""

    def __init__(self, world: "World", injector: "Injector", random: Random) -> None:
        self._world = world
        self._injector = injector
        self._random = random
        self._pace = world.tempo.script_pace
        self._is_running = False

    async def run_one(self, name: str | None = None) -> None:
        """Run one of the scripts, or this one, on one of the partitions."""
        cast = self._cast()
        if cast is None or self._is_running:
            return
        name = self._random.choice(SCRIPTS) if name is None else name
        script = {
            JOIN_UNSEEN: self._join_unseen,
            SHRINK_LATE: self._shrink_late,
            FETCH_LATE: self._fetch_late,
            JOIN_BEHIND: self._join_behind,
            IN_SYNC_ALONE: self._in_sync_alone,
            LEAD_LATE: self._lead_late,
            OLD_DIRECTORY: self._old_directory,
        }[name]
        self._injector.fault(f"script: {name} of {cast.key.partition}, led by broker {cast.leader.id}")
        self._is_running = True
        try:
            await script(cast)
        finally:
            self._is_running = False
            for producer in self._world.producers:
                producer.is_paused = False
            for faults in self._world.store_faults.values():
                faults.heal()
            self._world.network.heal()

    def _cast(self) -> _Cast | None:
        """Choose a partition."""
        machines = {machine.id: machine for machine in self._world.machines if machine.life is not None}
        image = self._world.image()
        topic = image.topics.get(self._world.topic)
        found = []
        for key in () if topic is None else sorted(image.keys_of(topic)):
            state = image.partitions[key]
            good = [member.broker for member in state.isr if image.is_good(member) and member.broker in machines]
            if len(good) == len(machines) == len(self._world.machines) and state.leader_id in good:
                followers = [machines[broker] for broker in in_order(state, good) if broker != state.leader_id]
                found.append(_Cast(key, machines[state.leader_id], *followers))
        return self._random.choice(found) if found else None

    # -- scripts -------------------------------------------------------------------------------------------------------

    async def _join_unseen(self, cast: _Cast) -> None:
        """The first follower leaves the ISR, joins again, which its leader does not see, and lags until that dies."""
        leader, follower = cast.leader, cast.first
        self._cut(leader, follower)
        if not await self._until(lambda: not self._is_in_sync(cast, follower) and self._sees_state(cast)):
            return
        self._world.store_faults[leader.name].is_blind = True
        self._mend(leader, follower)
        if not await self._until(lambda: self._is_in_sync(cast, follower)):
            return
        self._cut(leader, follower)
        await self._pause(6.0)
        await self._injector.end(leader, is_power_cut=False, pause_s=7.0 * self._pace)

    async def _shrink_late(self, cast: _Cast) -> None:
        """The leader removes a follower, late; meanwhile the other one, and then the leader, lose their records."""
        leader, kept, removed = cast.leader, cast.first, cast.second
        faults = self._world.store_faults[leader.name]
        faults.holds_transactions = True
        self._cut(leader, removed)
        if not await self._until(lambda: faults.held > 0) or not self._injector.may_lose(kept):
            return
        await self._lose_power(kept)
        if leader.is_up and self._injector.may_lose(leader):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: self._injector.end(leader, is_power_cut=True, pause_s=2.0 * self._pace))
                await self._pause(STEP_S)
                faults.holds_transactions = False

    async def _fetch_late(self, cast: _Cast) -> None:
        """A fetch of a follower arrives after it has lost records and started again; then its leader is killed."""
        leader, follower = cast.leader, cast.first
        network = self._world.network
        network.cut(follower.name, leader.name)
        await self._pause(0.3)
        for producer in self._world.producers:
            producer.is_paused = True
        await self._pause(0.2)
        network.cut(leader.name, follower.name)
        if not self._injector.may_lose(follower):
            return
        await self._lose_power(follower)
        await self._until(lambda: not self._is_in_sync(cast, follower) and self._sees_state(cast))
        network.mend(follower.name, leader.name)
        await self._pause(1.0)
        if leader.is_up:
            await self._injector.end(leader, is_power_cut=False, pause_s=7.0 * self._pace)

    async def _join_behind(self, cast: _Cast) -> None:
        """A follower gets answers of its leader late, after it has left the ISR; the leader dies when it joins."""
        leader, follower = cast.leader, cast.first
        self._cut(leader, follower)
        if not await self._until(lambda: not self._is_in_sync(cast, follower)):
            return
        await self._pause(0.5)  # records are acknowledged without it
        self._mend(leader, follower)
        self._world.network.slow(leader.name, follower.name)
        if await self._until(lambda: self._is_in_sync(cast, follower)) and leader.life is not None:
            await self._injector.end(leader, is_power_cut=False, pause_s=7.0 * self._pace)

    async def _in_sync_alone(self, cast: _Cast) -> None:
        """The leader loses its followers, and then its records: those are with the followers."""
        leader = cast.leader
        if self._world.min_isr == 1 or not self._injector.may_lose(leader):
            return
        followers = (cast.first, cast.second)
        for follower in followers:
            self._cut(leader, follower)
        is_alone = await self._until(lambda: not any(self._is_in_sync(cast, each) for each in followers))
        if is_alone and leader.life is not None and not leader.is_stopping:
            await self._injector.end(leader, is_power_cut=True, pause_s=2.0 * self._pace)

    async def _lead_late(self, cast: _Cast) -> None:
        """A leader that other brokers and the store cannot reach goes on after another one was elected."""
        leader = cast.leader
        for follower in (cast.first, cast.second):
            self._cut(leader, follower)
        self._world.store_faults[leader.name].is_away = True
        if await self._until(lambda: self._leader_of(cast) not in {None, leader.id}):
            await self._pause(0.5)

    async def _old_directory(self, cast: _Cast) -> None:
        """The last broker in sync comes back first, with an old copy of one of its data directories."""
        last = cast.first
        name = f"{self._world.topic}-{cast.key.partition}"
        index = next((number for number, each in enumerate(last.directories) if (each / name).is_dir()), None)
        if self._world.min_isr == 1 or index is None:
            return
        await last.stop()
        last.copy_directory(index)
        last.start()
        if not await self._until(lambda: self._is_in_sync(cast, last)):
            return
        await self._pause(2.0)
        for machine in (cast.leader, cast.second, last):
            await machine.stop()
        self._injector.restore_directory(last, index)
        for machine in (last, cast.leader, cast.second):
            machine.start()
            await self._pause(1.0)

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _lose_power(self, machine: Machine) -> None:
        """Cut the power of a machine for a moment; return when its broker is registered again."""
        world, cut_at = self._world, self._world.store.revision
        await self._injector.end(machine, is_power_cut=True, pause_s=0.01)
        await self._until(lambda: (found := world.image().current(machine.id)) is not None and found.epoch > cut_at)

    async def _until(self, holds: Callable[[], bool]) -> bool:
        with trio.move_on_after(LIMIT_S * self._pace):
            while not holds():  # simulated time
                await self._pause(STEP_S)
            return True
        return False

    async def _pause(self, seconds: float) -> None:
        await trio.sleep(seconds * self._pace)

    def _cut(self, one: Machine, other: Machine) -> None:
        self._world.network.cut(one.name, other.name)
        self._world.network.cut(other.name, one.name)

    def _mend(self, one: Machine, other: Machine) -> None:
        self._world.network.mend(one.name, other.name)
        self._world.network.mend(other.name, one.name)

    def _is_in_sync(self, cast: _Cast, machine: Machine) -> bool:
        state = self._world.image().partitions.get(cast.key)
        return state is not None and any(member.broker == machine.id for member in state.isr)

    def _leader_of(self, cast: _Cast) -> int | None:
        state = self._world.image().partitions.get(cast.key)
        return None if state is None or state.leader is None else state.leader_id

    def _sees_state(self, cast: _Cast) -> bool:
        """Whether the leader knows the present state of the partition."""
        life = cast.leader.life
        known = None if life is None else life.member.node.image.partitions.get(cast.key)
        return known is not None and known == self._world.image().partitions.get(cast.key)
