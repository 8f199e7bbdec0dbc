"""The groups of this broker by name: carry out their effects, serve their timers, load and unload them.

Invariants:
1. What a group asks to store is in the log before any client sees its effect.
2. One task serves the timers of all groups.
3. A group can be found by its name from when its log partition is loaded until it is dropped, or the term ends.

Source: org.apache.kafka.coordinator.group.GroupMetadataManager.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import TypeAlias, TypeVar

import trio

from warmlog.broker.coordinator.answers import PendingAnswer
from warmlog.broker.coordinator.appends import Rows
from warmlog.broker.coordinator.effects import EffectLoop
from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.coordinator.term import Term
from warmlog.broker.coordinator.timers import Timers
from warmlog.broker.groups.classic.effects import Effect, Instant, Limits, Purpose, Store
from warmlog.broker.groups.classic.state import Group
from warmlog.broker.groups.holdings import Holdings
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.group_records import MAX_TEXT_BYTES, StoredGroup, encode_group, encode_group_key
from warmlog.protocol.records.markers import Outcome

logger = logging.getLogger(__name__)

CLOSED_PER_STEP = 100  # groups, between two checkpoints
SETTLED_PER_STEP = 1000  # groups that are counted between two checkpoints: about 1 ms

R = TypeVar("R")

# Awaited between two steps of a request. Yields to other tasks once the request has held the event loop long enough.
Checkpoint: TypeAlias = Callable[[], Awaitable[None]]


class GroupRegistry:
    """The groups of this broker. Call methods on the event loop unless they say otherwise; `run` is the task.

    The `Coordinator` of the runtime: a group is served in a term of its log partition.
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        settings: Settings,
        clock: Callable[[], int],
        was_deleted: Callable[[bytes], bool],
    ) -> None:
        """Keep the groups of this runtime. `clock` returns ms since the epoch.

        `was_deleted` tells by its id whether a topic was deleted.
        """
        self.on_loaded: list[Callable[[GroupShard], Iterator[None]]] = []  # steps to take before a shard serves
        self.runtime = runtime
        self.settings = settings
        self.clock = clock
        self.completed_rebalances = 0
        self.holdings = Holdings(settings.warmlog_groups_memory_max_bytes, perf_counter)
        self._was_deleted = was_deleted
        self._limits = Limits(
            max_size=settings.group_max_size, initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms
        )
        self._timers: Timers[Group] = Timers(self._expire)
        self._effects: EffectLoop[tuple[Group, Effect]] = EffectLoop(self._carry_out)
        runtime.bind(self)

    async def run(self) -> None:
        """Serve timers, and load partitions of the log as this broker begins to lead them, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._timers.run)
            nursery.start_soon(self.runtime.run)

    # -- shards --

    def begin(self, term: Term) -> GroupShard:
        """Begin to serve a log partition, without groups."""
        return GroupShard(term, lambda name: Group(name, self._limits, self.now()), self._was_deleted)

    def loaded(self, shard: GroupShard) -> Iterator[None]:
        """Restore the groups of a log partition, once all its records have been replayed."""
        while shard.stored:
            self._restore(shard, *shard.stored.popitem())
            yield
        yield from shard.create_missing()
        shard.pending.finish_loading()
        for number, group in enumerate(list(shard.groups.values())):
            self.settle(shard, group)
            if number % SETTLED_PER_STEP == 0:
                yield
        for steps in self.on_loaded:
            yield from steps(shard)

    def _restore(self, shard: GroupShard, name: str, stored: StoredGroup) -> None:
        """Serve a group as its record describes it; one that contradicts itself loses its members."""
        try:
            group = Group.restore(name, stored, self._limits, self.now())
        except MalformedError as error:
            logger.warning(
                "group %.200r: its stored record is malformed, so its members have to join again: %s", name, error
            )
            return
        shard.groups[name] = group
        self.apply_effects(group)

    def close(self, shard: GroupShard) -> Iterator[None]:
        """Answer the clients that wait for groups of a shard with NOT_COORDINATOR."""
        while shard.groups:
            for _ in range(min(len(shard.groups), CLOSED_PER_STEP)):
                _, group = shard.groups.popitem()
                self.holdings.release(group)
                self._timers.forget(group)
                group.close(ErrorCode.NOT_COORDINATOR, self.now())
                self._effects.put([(group, effect) for effect in group.take_effects()])
            yield

    def shard_of(self, name: str) -> GroupShard | None:
        """Return the shard of a group's name; None while this broker does not lead its log partition."""
        return self.runtime.shard_of(name)

    def is_served(self, shard: GroupShard) -> bool:
        """Whether a shard's term goes on."""
        return self.runtime.shard_at(shard.term.index) is shard

    # -- queries --

    def available(self, name: str) -> ErrorCode:
        """Return NONE, or why a group cannot be served: its name, the state of its log, or shutdown."""
        if len(name.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:  # the limit of a record's key
            return ErrorCode.INVALID_GROUP_ID
        if self.runtime.is_stopped:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE if self.runtime.may_create else self.runtime.availability(name)

    def is_available(self, shard: GroupShard) -> bool:
        """Whether the groups of a shard can be served. Takes no time for their names, unlike `available`."""
        return not self.runtime.is_stopped and self.is_served(shard) and shard.term.error is ErrorCode.NONE

    def available_to_members(self, name: str) -> ErrorCode:
        """Return the same for a request that needs a non-empty name; old clients commit offsets without one."""
        return self.available(name) if name else ErrorCode.INVALID_GROUP_ID

    def available_all(self) -> ErrorCode:
        """Return NONE, or why the list of groups is incomplete."""
        if self.runtime.is_stopped:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self.runtime.is_loading else ErrorCode.NONE

    def get(self, name: str) -> Group | None:
        """Return a group, or None."""
        shard = self.shard_of(name)
        return None if shard is None else shard.get(name)

    def all(self) -> Iterator[Group]:
        """Yield all groups, in no order. May be called in a worker."""
        for shard in self.runtime.shards():
            yield from list(shard.groups.values())  # copied atomically

    @property
    def pending_count(self) -> int:
        """The number of offsets that open transactions commit."""
        return sum([len(shard.pending) for shard in self.runtime.shards()])

    def now(self) -> Instant:
        """Return the current time on both clocks."""
        return Instant(trio.current_time(), self.clock())

    # -- changes --

    def create(self, name: str, owner: str) -> Group:
        """Create a group, which must be `available`. `owner`: the holder that it counts for."""
        shard = self.shard_of(name)
        assert shard is not None, "a group is created in a term of its log partition"
        group = shard.create(name)
        group.owner = owner
        self.holdings.settle(group, 0)
        return group

    def max_record_bytes(self, name: str) -> int:
        """Return the size limit of a record that stores a group."""
        shard = self.shard_of(name)
        return 0 if shard is None else shard.term.partition.log.config.max_message_bytes

    def settle(self, shard: GroupShard, group: Group) -> None:
        """Count what a group holds, after a change of its members or offsets."""
        if shard.groups.get(group.group_id) is group:
            self.holdings.settle(group, shard.offset_bytes(group.group_id))

    def drop(self, shard: GroupShard, group: Group) -> None:
        """Stop serving a group. Its records stay in the log."""
        del shard.groups[group.group_id]
        self.holdings.release(group)
        self._timers.forget(group)

    def restore(self, shard: GroupShard, group: Group) -> None:
        """Serve a dropped group again, unless a new one with its name has been created since."""
        if shard.groups.setdefault(group.group_id, group) is group:
            self.settle(shard, group)
            self._timers.schedule(group)

    def end_transaction(self, index: int, producer_id: int, marker_offset: int, outcome: Outcome) -> None:
        """Apply a marker that was written to a log partition: commit or drop the transaction's offsets.

        Many of them are applied in steps by a background task.
        """
        shard = self.runtime.shard_at(index)
        transaction = None if shard is None else shard.end_transaction(producer_id, marker_offset, outcome)
        if shard is not None and transaction is not None:
            self.runtime.spawn(partial(shard.apply_in_steps, transaction, outcome))

    async def answer(self, group: Group, pending: PendingAnswer[R | None]) -> R | None:
        """Apply a group's effects after a request, and wait for the request's response."""
        try:
            self.apply_effects(group)
            return await pending.wait()
        finally:
            if not pending.is_settled:  # the client disconnected
                group.forget_waiter(pending, self.now())
                self._timers.schedule(group)

    def apply_effects(self, group: Group) -> None:
        """Send a group's responses and append its records, until it has no effects left; update its timer."""
        self._effects.put([(group, effect) for effect in group.take_effects()])
        shard = self.shard_of(group.group_id)
        if shard is not None:
            self.settle(shard, group)
        self._timers.schedule(group)

    def schedule(self, group: Group) -> None:
        """Update a group's timer after a call that changes its deadlines and has no effects."""
        self._timers.schedule(group)

    def _carry_out(self, decided: tuple[Group, Effect]) -> None:
        group, effect = decided
        if isinstance(effect, Store):
            self._store(group, effect)
        else:
            assert isinstance(effect.waiter, PendingAnswer)
            effect.waiter.settle(effect.response)

    def _store(self, group: Group, store: Store) -> None:
        name = group.group_id
        shard = self.shard_of(name)
        if shard is None or shard.get(name) is not group:
            return  # closed: its waiting clients are answered
        stored = partial(self._stored, shard, group, store.purpose)
        try:
            rows: Rows = [(encode_group_key(name), encode_group(store.value))]
        except MalformedError as error:
            logger.warning("group %.200r: cannot store its state, so its rebalance fails: %s", name, error)
            stored(ErrorCode.UNKNOWN_SERVER_ERROR, ())
            return
        limit_ms = self.settings.offsets_commit_timeout_ms
        self.runtime.append(shard.term, name, rows, stored, limit_ms=limit_ms)

    def _stored(self, shard: GroupShard, group: Group, purpose: Purpose, error: ErrorCode, _: Sequence[int]) -> None:
        if shard.get(group.group_id) is not group or not self.is_served(shard):
            return  # deleted during the write, or the term is over
        completed = group.completed_rebalances
        group.stored(purpose, error, self.now())
        self.completed_rebalances += group.completed_rebalances - completed
        self.apply_effects(group)

    def _expire(self, group: Group) -> None:
        if self.get(group.group_id) is group:
            group.expire(self.now())
            self.apply_effects(group)
