"""The groups of this broker: by name, with what they want done and when, and how they come back after a start.

Owns: the groups, their offsets, and the order of steps between a group, the log and memory. Must not know: who asks for
what; `coordinator` and `commits` do.

Invariants:
1. What a group wants stored is in the log before anybody is told of it.
2. One task serves the timers of all groups, none belongs to a member.
3. A group is found only while its partition of the log has been read, and until it is dropped.

Source: org.apache.kafka.coordinator.group.GroupMetadataManager.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import trio

from broker.config import Settings
from broker.groups.effects import Answer, Instant, Limits, Purpose, Store
from broker.groups.group_log import PIECE, TOPIC, GroupLog, Rows
from broker.groups.members import Waiter
from broker.groups.offsets import Offsets
from broker.groups.replay import Latest, Replay
from broker.groups.state import Group
from broker.groups.timers import Timers
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

logger = logging.getLogger(__name__)

# Awaited between two pieces of work on a request: lets others run when the request has held the loop for long enough.
Checkpoint: TypeAlias = Callable[[], Awaitable[None]]


class Waiting:
    """One answer that is to come."""

    __slots__ = ("_event", "response")

    def __init__(self) -> None:
        self._event = trio.Event()
        self.response: JoinGroupResponse | SyncGroupResponse | None = None

    def settle(self, response: JoinGroupResponse | SyncGroupResponse) -> None:
        """It has come."""
        self.response = response
        self._event.set()

    async def wait(self) -> None:
        """Return when it has."""
        await self._event.wait()


@dataclass(slots=True)
class _Found:
    """What a partition holds, while it is read. `groups`: names and values, still to be decoded."""

    groups: dict[str, bytes] = field(default_factory=dict)
    committers: set[str] = field(default_factory=set)
    strange: int = 0
    misplaced: int = 0


class GroupRegistry:
    """All groups of this broker. All methods belong to the loop, but those that say otherwise; `run` is its task."""

    def __init__(self, log: GroupLog, settings: Settings, clock: Callable[[], int]) -> None:
        """`clock` gives ms since the epoch."""
        self.log = log
        self.settings = settings
        self.clock = clock
        self.offsets = Offsets()
        self.completed_rebalances = 0
        self._limits = Limits(
            max_size=settings.group_max_size, initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms
        )
        self._groups: dict[str, Group] = {}
        self._timers = Timers(self._expire)
        self._is_stopped = False

    async def run(self) -> None:
        """Read what is kept, then serve time, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._timers.run)
            while True:
                await self._load_all()
                await self.log.wait_unread()

    def stop(self) -> None:
        """Answer all who wait, and refuse what comes: the broker stops."""
        self._is_stopped = True
        self.close_all()

    # -- what is true --

    def available(self, name: str) -> ErrorCode:
        """NONE, or why a group cannot be served now: its name, its log, or the broker's end."""
        if len(name.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:  # what a record's key can hold
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if self._is_stopped else self.log.state_of(name)

    def available_to_members(self, name: str) -> ErrorCode:
        """The same, for those who need a group with a name. Old clients commit offsets without."""
        return self.available(name) if name else ErrorCode.INVALID_GROUP_ID

    def available_all(self) -> ErrorCode:
        """NONE, or why not everything about groups is known now."""
        if self._is_stopped:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self.log.unread else ErrorCode.NONE

    def get(self, name: str) -> Group | None:
        """A group, or None."""
        return self._groups.get(name)

    def all(self) -> list[Group]:
        """All groups, by name; may be asked in a worker."""
        return [group for _, group in sorted(self._groups.items())]  # sorted() copies in one step

    def now(self) -> Instant:
        """By both clocks."""
        return Instant(trio.current_time(), self.clock())

    # -- changing --

    def create(self, name: str) -> Group:
        """A new group."""
        group = self._groups[name] = Group(name, self._limits, self.now())
        return group

    def drop(self, group: Group) -> None:
        """Take a group out of service: nobody finds it any more."""
        del self._groups[group.group_id]
        self._timers.forget(group)

    def restore(self, group: Group) -> None:
        """Put a dropped group back that could not be deleted, unless there is another one by its name now."""
        if self._groups.setdefault(group.group_id, group) is group:
            self._timers.schedule(group)

    def lose(self, index: int) -> None:
        """A partition of the log is out of service: its groups are not served until it is read again."""
        self.log.lose(index)
        self._close([group for name, group in self._groups.items() if self.log.partition_of(name) == index])

    def close_all(self) -> None:
        """Drop all groups; who waits is sent to look for another coordinator."""
        self._close(list(self._groups.values()))

    def _close(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self.drop(group)
            group.close(ErrorCode.NOT_COORDINATOR, self.now())
            for effect in group.take_effects():
                if isinstance(effect, Answer):
                    _settle(effect.waiter, effect.response)

    async def answer(self, group: Group, waiting: Waiting) -> JoinGroupResponse | SyncGroupResponse | None:
        """Carry out what a request has made of a group, and wait for its answer."""
        try:
            self.carry_out(group)
            await waiting.wait()
        finally:
            if waiting.response is None:  # the client went away
                group.forget_waiter(waiting, self.now())
                self._timers.schedule(group)
        return waiting.response

    def carry_out(self, group: Group) -> None:
        """Do what a group wants done, until it wants nothing more."""
        while effects := group.take_effects():
            for effect in effects:
                if isinstance(effect, Answer):
                    _settle(effect.waiter, effect.response)
                else:
                    self._store(group, effect)
        self._timers.schedule(group)

    def schedule(self, group: Group) -> None:
        """Look at a group when it says: after what only moves its deadlines."""
        self._timers.schedule(group)

    def _store(self, group: Group, store: Store) -> None:
        name = group.group_id
        try:
            rows: Rows = [(encode_group_key(name), encode_group(store.value))]
        except MalformedError as error:
            logger.warning("group %.200r: not stored: %s", name, error)
            self._stored(group, store.purpose, ErrorCode.UNKNOWN_SERVER_ERROR, ())
            return
        self.log.append(name, rows, partial(self._stored, group, store.purpose))

    def _stored(self, group: Group, purpose: Purpose, error: ErrorCode, _: Sequence[int]) -> None:
        if self._groups.get(group.group_id) is not group:
            return  # deleted meanwhile
        completed = group.completed_rebalances
        group.stored(purpose, error, self.now())
        self.completed_rebalances += group.completed_rebalances - completed
        self.carry_out(group)

    def _expire(self, group: Group) -> None:
        if self._groups.get(group.group_id) is group:
            group.expire(self.now())
            self.carry_out(group)

    # -- loading --

    async def _load_all(self) -> None:
        """Partition by partition: what is read is served."""
        for index in self.log.unread:
            replay = await self.log.read(index)
            if replay is not None:
                await self._take(replay, index)
            self.log.finish_reading(index, good=replay is not None)

    async def _take(self, replay: Replay, index: int) -> None:
        found = _Found()
        for number, (data, latest) in enumerate(replay.latest.items()):
            try:
                self._take_row(decode_key(data), latest, index, found)
            except MalformedError as error:
                logger.warning("%s-%d: record %d left alone: %s", TOPIC, index, latest.offset, error)
            if number % PIECE == 0:
                await trio.lowlevel.checkpoint()
        if found.misplaced:
            logger.warning(
                "%s-%d: %d records are not used, their groups belong elsewhere: they were written where the topic had "
                "another number of partitions than its %d here (offsets.topic.num.partitions)",
                TOPIC,
                index,
                found.misplaced,
                self.log.partition_count,
            )
        if found.strange:
            logger.info("%s-%d: %d records of newer group protocols are kept and not used", TOPIC, index, found.strange)
        if replay.open_transactions:
            logger.warning(
                "%s-%d: offsets of %d open transactions do not count", TOPIC, index, replay.open_transactions
            )
        await self._restore(found.groups)
        for name in found.committers:
            if name not in self._groups:
                self.create(name)

    def _take_row(self, key: Key, latest: Latest, index: int, found: "_Found") -> None:
        """What a partition says last of a key. Raises MalformedError."""
        if not isinstance(key, OffsetKey | GroupKey):
            found.strange += 1
        elif self.log.partition_of(key.group) != index:
            found.misplaced += 1
        elif isinstance(key, OffsetKey):
            self.offsets.put(*key, decode_offset(latest.value), latest.offset)
            found.committers.add(key.group)
        else:
            found.groups[key.group] = latest.value

    async def _restore(self, groups: dict[str, bytes]) -> None:
        """Groups as they were stored."""
        for name, value in groups.items():
            try:
                group = Group.restore(name, decode_group(value), self._limits, self.now())
            except MalformedError as error:
                logger.warning("group %.200r: its members are forgotten: %s", name, error)
                continue
            self._groups[name] = group
            self.carry_out(group)
            await trio.lowlevel.checkpoint()


def _settle(waiter: Waiter, response: JoinGroupResponse | SyncGroupResponse) -> None:
    assert isinstance(waiter, Waiting)
    waiter.settle(response)
