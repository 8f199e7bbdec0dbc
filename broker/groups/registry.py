"""The groups of this broker by name: carry out their effects, run their timers, load and unload them.

Invariants:
1. A group's changes are in the log before any client sees their effect.
2. One task serves the timers of all groups.
3. A group can be looked up from the time its log partition is loaded until it is dropped or the term ends.

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
from warmlog.broker.groups.automaton import Answer, Instant
from warmlog.broker.groups.classic.effects import Effect, Limits, Purpose, Store
from warmlog.broker.groups.classic.state import ClassicGroup
from warmlog.broker.groups.consumer.effects import Effect as ConsumerEffect
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.broker.groups.effects.consumer import ConsumerEffects
from warmlog.broker.groups.effects.limits import GroupLimits
from warmlog.broker.groups.effects.restoring import Restorer
from warmlog.broker.groups.effects.share import ShareEffects
from warmlog.broker.groups.effects.streams import StreamsEffects
from warmlog.broker.groups.group import Group
from warmlog.broker.groups.holdings import Holdings
from warmlog.broker.groups.migration.live import Migrations
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.groups.share.effects import Effect as ShareEffect
from warmlog.broker.groups.share.state import ShareGroup
from warmlog.broker.groups.streams.effects import Effect as StreamsEffect
from warmlog.broker.groups.streams.state import StreamsGroup
from warmlog.broker.groups.topics import GroupTopics
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.share.persister import SharePersister
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.group_records import MAX_TEXT_BYTES, encode_group, encode_group_key
from warmlog.protocol.records.markers import Outcome

logger = logging.getLogger(__name__)

CLOSED_PER_STEP = 100  # groups between two checkpoints
SETTLED_PER_STEP = 1000  # groups counted between two checkpoints: about 1 ms

R = TypeVar("R")
AnyEffect: TypeAlias = Effect | ConsumerEffect | ShareEffect | StreamsEffect

# Awaited between steps of a request; a checkpoint if the request has held the event loop for long enough.
Checkpoint: TypeAlias = Callable[[], Awaitable[None]]


class GroupRegistry:
    """The groups of this broker. Call methods on the event loop unless they say otherwise; `run` is the task.

    The `Coordinator` of the runtime: a group is served in a term of its log partition.
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        live: LiveSettings,
        clock: Callable[[], int],
        was_deleted: Callable[[bytes], bool],
        topics: GroupTopics,
        *,
        persister: SharePersister,
    ) -> None:
        """Keep the groups of this runtime. `clock` returns ms since the epoch.

        `was_deleted` returns whether the topic with an id was deleted. `persister` reaches the share coordinators.
        """
        self.on_loaded: list[Callable[[GroupShard], Iterator[None]]] = []  # steps to take before a shard serves
        self.runtime = runtime
        self.settings = settings = live.static
        self.limits = GroupLimits(live)
        self.clock = clock
        self.completed_rebalances = 0
        self.topics = topics
        self.holdings = Holdings(settings.warmlog_groups_memory_max_bytes, perf_counter)
        self._was_deleted = was_deleted
        self._classic_limits = Limits(
            max_size=settings.group_max_size, initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms
        )
        self._timers: Timers[Group] = Timers(self._expire)
        self._effects: EffectLoop[tuple[Group, AnyEffect]] = EffectLoop(self._carry_out)
        self.migrations = Migrations(
            runtime,
            topics,
            self._classic_limits,
            replace=self._replace,
            apply_effects=self.apply_effects,
            now=self.now,
            limit_ms=settings.offsets_commit_timeout_ms,
        )
        self._consumer_effects = ConsumerEffects(
            runtime,
            topics,
            serving=self._serving,
            apply_effects=self.apply_effects,
            migrations=self.migrations,
            now=self.now,
            limit_ms=settings.offsets_commit_timeout_ms,
        )
        self._share_effects = ShareEffects(
            runtime,
            persister,
            serving=self._serving,
            apply_effects=self.apply_effects,
            now=self.now,
            limit_ms=settings.offsets_commit_timeout_ms,
        )
        self._streams_effects = StreamsEffects(
            runtime,
            serving=self._serving,
            apply_effects=self.apply_effects,
            now=self.now,
            limit_ms=settings.offsets_commit_timeout_ms,
        )
        self._restorer = Restorer(
            self.limits,
            self._classic_limits,
            topics,
            apply_effects=self.apply_effects,
            forget=self._timers.forget,
            now=self.now,
        )
        runtime.bind(self)

    async def run(self) -> None:
        """Run timers, and load partitions of the log when this broker begins to lead them, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._timers.run)
            nursery.start_soon(self.runtime.run)
            nursery.start_soon(self._follow_topics)
            nursery.start_soon(self._share_effects.run)

    async def _follow_topics(self) -> None:
        """Report changed topics to groups whose assignments the broker computes."""
        while True:
            names = await self.topics.changed()
            for number, group in enumerate(self.all()):
                if isinstance(group, ConsumerGroup | StreamsGroup):
                    group.topics_changed(names)
                    await trio.lowlevel.checkpoint()
                elif isinstance(group, ShareGroup):
                    group.topics_changed(names, self.topics)
                    self.apply_effects(group)
                    await trio.lowlevel.checkpoint()
                elif number % SETTLED_PER_STEP == 0:
                    await trio.lowlevel.checkpoint()

    # -- shards --

    def begin(self, term: Term) -> GroupShard:
        """Begin a term of a log partition, without groups."""
        return GroupShard(term, lambda name: ClassicGroup(name, self._classic_limits, self.now()), self._was_deleted)

    def loaded(self, shard: GroupShard) -> Iterator[None]:
        """Restore the groups of a log partition, once all its records have been replayed."""
        yield from self._restorer.restored(shard)
        yield from shard.create_missing()
        shard.pending.finish_loading()
        for number, group in enumerate(list(shard.groups.values())):
            self.settle(shard, group)
            if number % SETTLED_PER_STEP == 0:
                yield
        for steps in self.on_loaded:
            yield from steps(shard)

    def close(self, shard: GroupShard) -> Iterator[None]:
        """Answer clients waiting for groups of a shard with NOT_COORDINATOR."""
        while shard.groups:
            for _ in range(min(len(shard.groups), CLOSED_PER_STEP)):
                _, group = shard.groups.popitem()
                self.holdings.release(group)
                self._timers.forget(group)
                group.close(ErrorCode.NOT_COORDINATOR, self.now())
                self._put_effects(group)
            yield

    def shard_of(self, name: str) -> GroupShard | None:
        """Return the shard of a group's name; None while this broker does not lead its log partition."""
        return self.runtime.shard_of(name)

    def is_served(self, shard: GroupShard) -> bool:
        """Return whether a shard's term continues."""
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
        """Return whether the groups of a shard can be served. Takes no time for their names, unlike `available`."""
        return not self.runtime.is_stopped and self.is_served(shard) and shard.term.error is ErrorCode.NONE

    def available_to_members(self, name: str) -> ErrorCode:
        """Return the same as `available`, for requests that need a name; old clients commit offsets without a name."""
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
        """The number of pending offsets of open transactions."""
        return sum([len(shard.pending) for shard in self.runtime.shards()])

    def now(self) -> Instant:
        """Return the current time on both clocks."""
        return Instant(trio.current_time(), self.clock())

    # -- changes --

    def create(self, name: str, owner: str) -> ClassicGroup:
        """Create a group, which must be `available`. `owner`: the holder that it counts for."""
        shard = self.shard_for(name)
        group = shard.create(name)
        group.owner = owner
        self.holdings.settle(group, 0)
        return group

    def create_consumer_group(self, name: str, owner: str) -> ConsumerGroup:
        """Create a consumer group, which must be `available`, in place of a classic group without members."""
        shard = self.shard_for(name)
        group = ConsumerGroup(name, self.limits.consumer(name), self.now())
        self._take_over(shard, group, owner)
        return group

    def create_share_group(self, name: str, owner: str) -> ShareGroup:
        """Create a share group, which must be `available`, and whose name must be unused."""
        shard = self.shard_for(name)
        group = ShareGroup(name, self.limits.share(name), self.now())
        self._take_over(shard, group, owner)
        return group

    def create_streams_group(self, name: str, owner: str) -> StreamsGroup:
        """Create a streams group, which must be `available`, in place of a classic group without members."""
        shard = self.shard_for(name)
        group = StreamsGroup(name, self.limits.streams(name), self.now())
        self._take_over(shard, group, owner)
        return group

    def create_classic_group(self, name: str, owner: str) -> ClassicGroup:
        """Create a classic group, which must be `available`, in place of another group without members."""
        shard = self.shard_for(name)
        group = ClassicGroup(name, self._classic_limits, self.now())
        self._take_over(shard, group, owner)
        return group

    def shard_for(self, name: str) -> GroupShard:
        """Return the shard of a group that is `available`."""
        shard = self.shard_of(name)
        assert shard is not None, "a group is created in a term of its log partition"
        return shard

    def _take_over(self, shard: GroupShard, group: Group, owner: str) -> None:
        """Serve a group in place of another kind with its name, whose records are deleted with its next record."""
        former = shard.groups.get(group.group_id)
        group.owner = owner
        if former is None:
            shard.groups[group.group_id] = group
            self.settle(shard, group)
        else:
            group.replaced = [*former.replaced, *former.tombstones()]
            self._replace(shard, former, group)

    def _replace(self, shard: GroupShard, former: Group, group: Group) -> None:
        """Serve a group in place of another one of the same name."""
        group.owner = former.owner or group.owner
        self.drop(shard, former)
        shard.groups[group.group_id] = group
        self.apply_effects(group)

    def max_record_bytes(self, name: str) -> int:
        """Return the size limit of a record that stores a group."""
        shard = self.shard_of(name)
        return 0 if shard is None else shard.term.partition.log.config.max_message_bytes

    def settle(self, shard: GroupShard, group: Group) -> None:
        """Count the memory of a group after a change of its members or offsets."""
        if shard.groups.get(group.group_id) is group:
            self.holdings.settle(group, shard.offset_bytes(group.group_id))

    def drop(self, shard: GroupShard, group: Group) -> None:
        """Stop serving a group. Its records stay in the log."""
        del shard.groups[group.group_id]
        self.holdings.release(group)
        self._timers.forget(group)

    def restore(self, shard: GroupShard, group: Group) -> None:
        """Serve a dropped group again, unless a new one of its name was created since."""
        if shard.groups.setdefault(group.group_id, group) is group:
            self.settle(shard, group)
            self._timers.schedule(group)

    def end_transaction(self, index: int, producer_id: int, marker_offset: int, outcome: Outcome) -> None:
        """Apply a marker that was written to a log partition: commit or drop the transaction's offsets.

        A background task applies large numbers of them in steps.
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
        """Send a group's responses and append its records until no effects are left; update its timer."""
        self._put_effects(group)
        shard = self.shard_of(group.group_id)
        if shard is not None:
            self.settle(shard, group)
        self._timers.schedule(group)

    def _put_effects(self, group: Group) -> None:
        self._effects.put([(group, effect) for effect in group.take_effects()])

    def schedule(self, group: Group) -> None:
        """Update a group's timer after a call that changes its deadlines without effects."""
        self._timers.schedule(group)

    def _carry_out(self, decided: tuple[Group, AnyEffect]) -> None:
        group, effect = decided
        if isinstance(effect, Answer):
            assert isinstance(effect.waiter, PendingAnswer)
            effect.waiter.settle(effect.response)
        elif isinstance(effect, Store):
            assert isinstance(group, ClassicGroup)
            self._store(group, effect)
        elif isinstance(group, ShareGroup):
            self._share_effects.carry_out(group, effect)  # type: ignore[arg-type]  # a group's effects are its kind's
        elif isinstance(group, StreamsGroup):
            self._streams_effects.carry_out(group, effect)  # type: ignore[arg-type]
        else:
            assert isinstance(group, ConsumerGroup)
            self._consumer_effects.carry_out(group, effect)  # type: ignore[arg-type]

    def _serving(self, group: Group) -> GroupShard | None:
        """Return the shard that serves a group; None if it was deleted or replaced, or the term has ended."""
        shard = self.shard_of(group.group_id)
        return None if shard is None or shard.get(group.group_id) is not group else shard

    def _store(self, group: ClassicGroup, store: Store) -> None:
        name = group.group_id
        shard = self._serving(group)
        if shard is None:
            return  # closed: its waiting clients were answered
        stored = partial(self._stored, shard, group, store.purpose)
        try:
            rows: Rows = [*group.replaced, (encode_group_key(name), encode_group(store.value))]
        except MalformedError as error:
            logger.warning("group %.200r: cannot store its state, so its rebalance fails: %s", name, error)
            stored(ErrorCode.UNKNOWN_SERVER_ERROR, ())
            return
        limit_ms = self.settings.offsets_commit_timeout_ms
        self.runtime.append(shard.term, name, rows, stored, limit_ms=limit_ms)

    def _stored(
        self, shard: GroupShard, group: ClassicGroup, purpose: Purpose, error: ErrorCode, _: Sequence[int]
    ) -> None:
        if shard.get(group.group_id) is not group or not self.is_served(shard):
            return  # deleted during the write, or the term has ended
        if error is ErrorCode.NONE:
            group.replaced = []
        completed = group.completed_rebalances
        group.stored(purpose, error, self.now())
        self.completed_rebalances += group.completed_rebalances - completed
        self.apply_effects(group)

    def _expire(self, group: Group) -> None:
        if self.get(group.group_id) is group:
            group.expire(self.now())
            self.apply_effects(group)
