"""The groups of this broker by name: carry out their effects, serve their timers, load them at startup.

Invariants:
1. What a group asks to store is in the log before any client sees its effect.
2. One task serves the timers of all groups.
3. A group can be found from when its partition of the log has been read until it is dropped.

Source: org.apache.kafka.coordinator.group.GroupMetadataManager.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import trio

from broker.coordinator_log.log import PIECE, CoordinatorLog, Rows
from broker.coordinator_log.replay import Latest, Replay
from broker.groups.effects import Answer, Instant, Limits, Purpose, Store
from broker.groups.members import Waiter
from broker.groups.offsets import Offsets
from broker.groups.pending_offsets import PendingOffset, PendingOffsets, Transaction
from broker.groups.state import Group
from broker.groups.timers import Timers
from broker.groups.topic import TOPIC
from broker.settings.settings import Settings
from protocol.errors import ErrorCode
from protocol.groups import JoinGroupResponse, SyncGroupResponse
from protocol.kafka.codec.bounds import MalformedError
from protocol.kafka.group_records import (
    MAX_TEXT_BYTES,
    GroupKey,
    Key,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
)
from protocol.records.markers import Outcome

logger = logging.getLogger(__name__)

ENDED_PER_STEP = 500  # offsets of a transaction, applied between two checkpoints: about 1 ms

# Awaited between two steps of a request. Yields to other tasks once the request has held the event loop long enough.
Checkpoint: TypeAlias = Callable[[], Awaitable[None]]


class PendingAnswer:
    """A response to a JoinGroup or SyncGroup that a client waits for."""

    __slots__ = ("_event", "response")

    def __init__(self) -> None:
        self._event = trio.Event()
        self.response: JoinGroupResponse | SyncGroupResponse | None = None

    def settle(self, response: JoinGroupResponse | SyncGroupResponse) -> None:
        """Set the response, and wake the client's task."""
        self.response = response
        self._event.set()

    async def wait(self) -> None:
        """Wait for the response."""
        await self._event.wait()


@dataclass(slots=True)
class _Contents:
    """The latest records of a partition while it is loaded. `groups` are names and values that are not decoded yet."""

    groups: dict[str, bytes] = field(default_factory=dict)
    groups_with_offsets: set[str] = field(default_factory=set)
    unsupported: int = 0
    misplaced: int = 0


class GroupRegistry:
    """All groups of this broker. Call methods on the event loop unless they say otherwise; `run` is the task."""

    def __init__(self, log: CoordinatorLog, settings: Settings, clock: Callable[[], int]) -> None:
        """Keep the groups of this log. `clock` returns ms since the epoch."""
        self.log = log
        self.settings = settings
        self.clock = clock
        self.offsets = Offsets()
        self.pending = PendingOffsets()
        self.completed_rebalances = 0
        self._limits = Limits(
            max_size=settings.group_max_size, initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms
        )
        self._groups: dict[str, Group] = {}
        self._timers = Timers(self._expire)
        self._is_stopped = False

    async def run(self) -> None:
        """Serve timers, and load partitions of the log as they turn up, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._timers.run)
            while True:
                await self._load_all()
                await self.log.wait_unread()

    def stop(self) -> None:
        """Answer every waiting client with an error, and refuse further requests: the broker stops."""
        self._is_stopped = True
        self.close_all()

    # -- queries --

    def available(self, name: str) -> ErrorCode:
        """Return NONE, or why a group cannot be served: its name, the state of its log, or shutdown."""
        if len(name.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:  # the limit of a record's key
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if self._is_stopped else self.log.state_of(name)

    def available_to_members(self, name: str) -> ErrorCode:
        """Return the same for a request that needs a non-empty name; old clients commit offsets without one."""
        return self.available(name) if name else ErrorCode.INVALID_GROUP_ID

    def available_all(self) -> ErrorCode:
        """Return NONE, or why the list of groups is incomplete."""
        if self._is_stopped:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self.log.unread else ErrorCode.NONE

    def get(self, name: str) -> Group | None:
        """Return a group, or None."""
        return self._groups.get(name)

    def all(self) -> list[Group]:
        """Return all groups by name. May be called in a worker."""
        return [group for _, group in sorted(self._groups.items())]  # sorted() copies atomically

    def now(self) -> Instant:
        """Return the current time on both clocks."""
        return Instant(trio.current_time(), self.clock())

    # -- changes --

    def create(self, name: str) -> Group:
        """Create a group."""
        group = self._groups[name] = Group(name, self._limits, self.now())
        return group

    def drop(self, group: Group) -> None:
        """Stop serving a group. Its records stay in the log."""
        del self._groups[group.group_id]
        self._timers.forget(group)

    def restore(self, group: Group) -> None:
        """Serve a dropped group again, unless a new one with its name has been created since."""
        if self._groups.setdefault(group.group_id, group) is group:
            self._timers.schedule(group)

    def put_pending(self, index: int, producer_id: int, pending: PendingOffset) -> None:
        """Add an offset of a transaction that was written to a log partition, or apply the transaction's outcome."""
        outcome = self.pending.outcome_of(index, producer_id, pending.record_offset)
        if outcome is None:
            self.pending.put(index, producer_id, pending)
        elif outcome is Outcome.COMMIT:
            self._commit(pending)

    def end_transaction(self, index: int, producer_id: int, marker_offset: int, outcome: Outcome) -> None:
        """Apply a marker that was written to a log partition: commit or drop the transaction's offsets.

        Many of them are applied in steps by a background task.
        """
        transaction = self.pending.end(index, producer_id, marker_offset, outcome)
        if transaction is not None:
            self._apply(transaction, outcome)
            if len(transaction):
                self.log.spawn(partial(self._apply_in_steps, transaction, outcome))

    async def _apply_in_steps(self, transaction: Transaction, outcome: Outcome) -> None:
        while len(transaction):
            await trio.lowlevel.checkpoint()
            self._apply(transaction, outcome)

    def _apply(self, transaction: Transaction, outcome: Outcome) -> None:
        for pending in self.pending.take(transaction, ENDED_PER_STEP):
            if outcome is Outcome.COMMIT:
                self._commit(pending)

    def _commit(self, pending: PendingOffset) -> None:
        if pending.group not in self._groups:
            self.create(pending.group)
        self.offsets.put(*pending)

    def lose(self, index: int) -> None:
        """Stop serving the groups of a log partition that has gone offline, or that another broker leads."""
        self.log.lose(index)
        self._drop_partition(index)

    def _drop_partition(self, index: int) -> None:
        self.pending.remove_partition(index)
        self._close([group for name, group in self._groups.items() if self.log.partition_of(name) == index])
        self.offsets.remove_groups(lambda name: self.log.partition_of(name) == index)

    def close_all(self) -> None:
        """Drop all groups, and answer waiting clients with NOT_COORDINATOR, so that they look up the coordinator."""
        self._close(list(self._groups.values()))

    def _close(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self.drop(group)
            group.close(ErrorCode.NOT_COORDINATOR, self.now())
            for effect in group.take_effects():
                if isinstance(effect, Answer):
                    _settle(effect.waiter, effect.response)

    async def answer(self, group: Group, pending: PendingAnswer) -> JoinGroupResponse | SyncGroupResponse | None:
        """Apply a group's effects after a request, and wait for the request's response."""
        try:
            self.apply_effects(group)
            await pending.wait()
        finally:
            if pending.response is None:  # the client disconnected
                group.forget_waiter(pending, self.now())
                self._timers.schedule(group)
        return pending.response

    def apply_effects(self, group: Group) -> None:
        """Send a group's responses and append its records, until it has no effects left; update its timer."""
        while effects := group.take_effects():
            for effect in effects:
                if isinstance(effect, Answer):
                    _settle(effect.waiter, effect.response)
                else:
                    self._store(group, effect)
        self._timers.schedule(group)

    def schedule(self, group: Group) -> None:
        """Update a group's timer after a call that changes its deadlines and has no effects."""
        self._timers.schedule(group)

    def _store(self, group: Group, store: Store) -> None:
        name = group.group_id
        try:
            rows: Rows = [(encode_group_key(name), encode_group(store.value))]
        except MalformedError as error:
            logger.warning("group %.200r: encoding its record failed: %s", name, error)
            self._stored(group, store.purpose, ErrorCode.UNKNOWN_SERVER_ERROR, ())
            return
        self.log.append(name, rows, partial(self._stored, group, store.purpose))

    def _stored(self, group: Group, purpose: Purpose, error: ErrorCode, _: Sequence[int]) -> None:
        if self._groups.get(group.group_id) is not group:
            return  # deleted during the write
        completed = group.completed_rebalances
        group.stored(purpose, error, self.now())
        self.completed_rebalances += group.completed_rebalances - completed
        self.apply_effects(group)

    def _expire(self, group: Group) -> None:
        if self._groups.get(group.group_id) is group:
            group.expire(self.now())
            self.apply_effects(group)

    # -- loading --

    async def _load_all(self) -> None:
        """Load the unread partitions one by one; each one's groups are served as soon as it is loaded."""
        for index in self.log.unread:
            turn = self.log.turn_of(index)
            self.pending.begin_loading(index)
            replay = await self.log.read(index)
            if replay is not None:
                await self._load(replay, index)
            self.pending.finish_loading(index)
            if self.log.turn_of(index) == turn:
                self.log.finish_reading(index, good=replay is not None)
            else:
                self._drop_partition(index)  # another broker has led it meanwhile; it is read again if it is led again

    async def _load(self, replay: Replay, index: int) -> None:
        contents = _Contents()
        for number, (data, latest) in enumerate(replay.latest.items()):
            try:
                self._load_row(decode_key(data), latest, index, contents)
            except MalformedError as error:
                logger.warning("%s-%d: ignored malformed record at offset %d: %s", TOPIC, index, latest.offset, error)
            if number % PIECE == 0:
                await trio.lowlevel.checkpoint()
        if contents.misplaced:
            logger.warning(
                "%s-%d: ignored %d records of groups that belong to another partition: they were written to a topic "
                "whose partition count (offsets.topic.num.partitions) was not %d as it is here",
                TOPIC,
                index,
                contents.misplaced,
                self.log.partition_count,
            )
        if contents.unsupported:
            logger.info("%s-%d: ignored %d records of newer group protocols", TOPIC, index, contents.unsupported)
        for producer_id, pending in replay.open_transactions.items():
            await self._load_pending(producer_id, pending, index, contents)
        await self._restore(contents.groups)
        for name in contents.groups_with_offsets:
            if name not in self._groups:
                self.create(name)

    async def _load_pending(
        self, producer_id: int, pending: Mapping[bytes, Latest], index: int, contents: _Contents
    ) -> None:
        """Load the offsets of a transaction that is still open."""
        for number, (data, latest) in enumerate(pending.items()):
            try:
                key = decode_key(data)
                if isinstance(key, OffsetKey) and self.log.partition_of(key.group) == index:
                    value = decode_offset(latest.value)
                    self.put_pending(index, producer_id, PendingOffset(*key, value, latest.offset))
                    contents.groups_with_offsets.add(key.group)
            except MalformedError as error:
                logger.warning("%s-%d: ignored malformed record at offset %d: %s", TOPIC, index, latest.offset, error)
            if number % PIECE == 0:
                await trio.lowlevel.checkpoint()

    def _load_row(self, key: Key, latest: Latest, index: int, contents: _Contents) -> None:
        """Load the latest record of a key. Raises MalformedError."""
        if not isinstance(key, OffsetKey | GroupKey):
            contents.unsupported += 1
        elif self.log.partition_of(key.group) != index:
            contents.misplaced += 1
        elif isinstance(key, OffsetKey):
            self.offsets.put(*key, decode_offset(latest.value), latest.offset)
            contents.groups_with_offsets.add(key.group)
        else:
            contents.groups[key.group] = latest.value

    async def _restore(self, groups: dict[str, bytes]) -> None:
        """Serve groups as their records describe them; one that cannot be decoded loses its members."""
        for name, value in groups.items():
            try:
                group = Group.restore(name, decode_group(value), self._limits, self.now())
            except MalformedError as error:
                logger.warning("group %.200r: dropped its members, its record is malformed: %s", name, error)
                continue
            self._groups[name] = group
            self.apply_effects(group)
            await trio.lowlevel.checkpoint()


def _settle(waiter: Waiter, response: JoinGroupResponse | SyncGroupResponse) -> None:
    assert isinstance(waiter, PendingAnswer)
    waiter.settle(response)
