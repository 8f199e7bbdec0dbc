"""One share-partition on the leader of its partition: loading, waiting fetches, expiring locks.

    LOADING ──state read──► ACTIVE ──leader resigns, topic deleted, state fenced, group gone──► CLOSED
       └──state cannot be read──► CLOSED

Waiting fetches are woken one after the other: a fetch that was served, or could not use the available records, wakes
the next one while records are left. So a record wakes one of a hundred members, not all.

Source: kafka.server.share.SharePartition (maybeInitialize, writeShareGroupState, releaseAcquisitionLockOnTimeout).
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Sequence
from enum import Enum
from typing import Final, Protocol, TypeVar

import trio

from warmlog.broker.partitions.partition import Partition
from warmlog.broker.settings.groups.deliveries import EARLIEST, LATEST, ShareRules
from warmlog.broker.share.partitions.counts import DeliveryCounts
from warmlog.broker.share.partitions.spans import NEVER_S
from warmlog.broker.share.partitions.state import DeliveryRules, SharePartition
from warmlog.broker.share.partitions.transitions import DeadLetter, Transition
from warmlog.broker.share.partitions.writes import Stored, Writes
from warmlog.broker.share.persister import Outcome, SharePersister
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.fetch import AcknowledgedRange, AcquiredRange
from warmlog.protocol.kafka.messages.share.state import UNKNOWN_OFFSET, StateBatch
from warmlog.protocol.kafka.share_state_records import SharePartitionKey

logger = logging.getLogger(__name__)

_UNAVAILABLE = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
_FENCED = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH})
_PASSED_ON = frozenset({ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
_CLOSING = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)

T = TypeVar("T")
STORED: Final = Stored(())  # nothing had to be stored
STORED.outcome = Outcome()


def outcome_for_members(outcome: Outcome) -> Outcome:
    """Translate an error of the share coordinator for members."""
    error = outcome.error
    if error in _UNAVAILABLE:
        return Outcome(ErrorCode.COORDINATOR_NOT_AVAILABLE, outcome.message)
    if error in _FENCED:
        return Outcome(ErrorCode.NOT_LEADER_OR_FOLLOWER, outcome.message)
    return outcome if error in _PASSED_ON else Outcome(ErrorCode.UNKNOWN_SERVER_ERROR, outcome.message)


async def in_steps(steps: Generator[None, None, T]) -> T:
    """Run all steps, with other tasks in between, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await trio.lowlevel.checkpoint()


class Status(Enum):
    """The states of a share-partition on a leader."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class WaitingShareFetch(Protocol):
    """A share-partition's view of a waiting fetch."""

    def wake(self) -> None:
        """Handle that records may have become available, or that the share-partition has failed."""


class Environment(Protocol):
    """The parts of the broker that a share-partition uses."""

    persister: SharePersister
    counts: DeliveryCounts

    def rules(self, group: str) -> ShareRules:
        """Return the rules of a group."""

    @property
    def writes_dead_letters(self) -> bool:
        """Whether groups may have dead-letter topics."""

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run an async function in the background."""

    def wake(self, fetch: WaitingShareFetch) -> None:
        """Wake a fetch, now or soon."""

    def schedule(self, delivery: "Delivery") -> None:
        """Call `expire` at `wake_at_s`."""

    def is_current(self, delivery: "Delivery") -> bool:
        """Return whether this broker leads the partition, in the same leader epoch."""

    def settled(self, delivery: "Delivery") -> None:
        """Handle that records were returned or acknowledged, so that the share-partition may be idle."""

    def closed(self, delivery: "Delivery") -> None:
        """Handle that a share-partition is no longer served."""

    async def offset_for_age(self, partition: Partition, age_ms: int) -> int:
        """Return the first offset whose record is no older than this age. Raises OSError, LogError, ProtocolError."""

    def write_dead_letters(self, delivery: "Delivery", letters: Sequence[DeadLetter]) -> None:
        """Write dead letters of records, and call `dead_letter_written`."""


class Delivery:
    """One share-partition. Belongs to the event loop."""

    def __init__(self, key: SharePartitionKey, partition: Partition, environment: Environment) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.status = Status.LOADING
        self.failure = Outcome()
        self._environment = environment
        self._state_epoch = 0
        self._state: SharePartition | None = None
        self._writes = Writes(self._write, environment.spawn, lambda: environment.settled(self))
        self._waiting: OrderedDict[WaitingShareFetch, int] = OrderedDict()  # and the notification that woke them
        self._news = 0
        self.is_committed = environment.rules(key.group).is_committed  # whether it is enlisted for committed records
        partition.enlist(self, committed=self.is_committed)

    def __repr__(self) -> str:
        return f"{self.key.group}: {self.partition.topic}-{self.partition.index}"

    @property
    def state(self) -> SharePartition:
        """The automaton of an active share-partition."""
        assert self._state is not None, "it is active"
        return self._state

    @property
    def rules(self) -> ShareRules:
        """The rules of its group."""
        return self._environment.rules(self.key.group)

    @property
    def wake_at_s(self) -> float:
        """The time at which `expire` has something to do."""
        return NEVER_S if self._state is None else self._state.wake_at_s

    @property
    def in_flight(self) -> int:
        """The number of offsets in flight."""
        return 0 if self._state is None else self._state.in_flight

    @property
    def is_idle(self) -> bool:
        """Whether no record is held by a member, nothing is being stored or written, and no fetch waits."""
        state = self._state
        is_free = state is None or not (state.has_locks or state.has_dead_letters)
        return self.status is not Status.LOADING and is_free and self._writes.is_idle and not self._waiting

    @property
    def readable_end(self) -> int:
        """The offset up to which members can read."""
        offsets = self.partition.log.offsets
        return offsets.last_stable_offset if self.is_committed else offsets.high_watermark

    @property
    def has_something(self) -> bool:
        """Whether a fetch may acquire records."""
        if self.status is not Status.ACTIVE:
            return False
        return self.state.can_acquire() and self.state.fetch_offset() < self.readable_end

    def follow_isolation(self) -> None:
        """Apply the isolation level of the group's current rules."""
        is_committed = self.rules.is_committed
        if is_committed is not self.is_committed and self.status is not Status.CLOSED:
            self.is_committed = is_committed
            self.partition.dismiss(self)
            self.partition.enlist(self, committed=is_committed)
            self.notify()

    # -- life --

    async def load(self) -> None:
        """Load the stored state, and become active or closed."""
        read = await self._environment.persister.read(self.key, self.leader_epoch)
        if read.error is not ErrorCode.NONE:
            self.close(outcome_for_members(Outcome(read.error, read.message)))
            return
        try:
            start_offset = read.start_offset
            if start_offset == UNKNOWN_OFFSET:
                start_offset = await self._first_offset()
            state = SharePartition(self._delivery_rules, start_offset)
            await in_steps(state.restore(read.batches))
        except Exception as error:
            logger.exception("%r: cannot begin from its stored state", self)
            self.close(Outcome(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
            return
        if self.status is Status.LOADING:  # it may have been closed in the meantime
            self._state, self._state_epoch = state, read.state_epoch
            self.status = Status.ACTIVE
            state.move_start(self.partition.log.offsets.log_start_offset)
            self._write_dead_letters(state.archiving())
            self.notify()

    async def _first_offset(self) -> int:
        """Return the start offset of a group without a stored one."""
        start, offsets = self.rules.start, self.partition.log.offsets
        if start == LATEST:
            return offsets.high_watermark
        if start == EARLIEST:
            return offsets.log_start_offset
        assert isinstance(start, int)
        return await self._environment.offset_for_age(self.partition, start)

    def _delivery_rules(self) -> DeliveryRules:
        rules = self.rules
        return DeliveryRules(
            rules.lock_ms / 1000,
            rules.max_deliveries,
            rules.max_locks,
            dead_letters=bool(rules.dead_letter_topic) and self._environment.writes_dead_letters,
            renews=rules.renews,
        )

    def close(self, failure: Outcome) -> None:
        """Stop serving; waiting fetches report the failure."""
        if self.status is not Status.CLOSED:
            self.status, self.failure = Status.CLOSED, failure
            self.partition.dismiss(self)
            self._environment.closed(self)
            waiting, self._waiting = self._waiting, OrderedDict()
            for fetch in waiting:
                fetch.wake()

    # -- notifications of the log --

    def grown(self, size: int) -> None:
        """Wake a fetch for new records."""
        del size
        if self._waiting:
            self.notify()

    def moved(self) -> None:
        """Follow the log start offset."""
        offsets = self.partition.log.offsets
        if self._state is not None and self._state.move_start(offsets.log_start_offset):
            self.notify()

    def wake(self) -> None:
        """Close if the partition has another leader or leader epoch; else check again."""
        if self._environment.is_current(self):
            self.moved()
            self.notify()
        else:
            message = f"{self.partition.topic}-{self.partition.index} has another leader, or leader epoch"
            self.close(Outcome(ErrorCode.NOT_LEADER_OR_FOLLOWER, message))

    # -- waiting fetches --

    def wait(self, fetch: WaitingShareFetch) -> None:
        """Wake a fetch once it may acquire records or at a failure, until `dismiss`."""
        self._waiting[fetch] = self._news

    def dismiss(self, fetch: WaitingShareFetch) -> None:
        """Remove a fetch, which has acquired records or cannot use the available ones: another one may."""
        if self._waiting.pop(fetch, None) is not None or self._waiting:
            self._wake_next()

    def notify(self) -> None:
        """Wake a fetch: records are available, or others may be acquired."""
        self._news += 1
        self._wake_next()

    def _wake_next(self) -> None:
        if not self._waiting or not (self.has_something or self.status is Status.CLOSED):
            return
        fetch = next(iter(self._waiting))
        if self._waiting[fetch] != self._news:
            self._waiting[fetch] = self._news
            self._waiting.move_to_end(fetch)
            self._environment.wake(fetch)

    def acquired(self, acquired: Sequence[AcquiredRange]) -> None:
        """Record that records were acquired, whose locks may expire."""
        self._environment.counts.count_acquired(acquired)
        self._environment.schedule(self)

    # -- acknowledgements --

    async def acknowledge(
        self, member: str, ranges: Sequence[AcknowledgedRange], checkpoint: Callable[[], Awaitable[None]]
    ) -> Stored:
        """Begin to store acknowledgements. Raises AcknowledgeError."""
        transition, state = Transition(), self.state
        try:
            for _ in state.acknowledge(member, ranges, trio.current_time(), transition):
                await checkpoint()
        except BaseException:
            state.complete(transition, trio.current_time(), is_stored=False)
            raise
        return self._store(transition, ranges)

    def release(self, member: str) -> None:
        """Release the records that a member holds, in the background."""
        if self.status is Status.ACTIVE:
            self._environment.spawn(lambda: self._release(member))

    async def _release(self, member: str) -> None:
        transition = Transition()
        for _ in self.state.release(member, transition):
            await trio.lowlevel.checkpoint()
        self._store(transition)

    def _store(self, transition: Transition, ranges: Sequence[AcknowledgedRange] = ()) -> Stored:
        if not transition:
            self._environment.counts.count_acknowledged(ranges, transition)
            return STORED

        async def done(outcome: Outcome) -> None:
            is_stored = outcome.error is ErrorCode.NONE
            has_news = await in_steps(self.state.completing(transition, trio.current_time(), is_stored=is_stored))
            self._environment.schedule(self)
            if is_stored:
                self._environment.counts.count_acknowledged(ranges, transition)
                self._write_dead_letters(transition.dead_letters)
            if has_news:
                self.notify()
            self._environment.settled(self)

        return self._writes.store(transition.changes, done, is_final=False)

    def expire(self) -> None:
        """Release the records whose locks have expired."""
        if self.status is Status.ACTIVE:
            self._environment.spawn(self._expire)

    async def _expire(self) -> None:
        expired = await in_steps(self.state.expiring(trio.current_time()))
        self._environment.schedule(self)
        if expired:
            self._environment.counts.count_expired(expired)
            self._store_final(expired.changes, expired.dead_letters)
            self.notify()

    def _store_final(self, changes: Sequence[StateBatch], letters: Sequence[DeadLetter] = ()) -> None:
        """Store changes that are already applied. If that fails, they remain, and are stored with the next ones."""

        async def done(outcome: Outcome) -> None:
            if outcome.error is not ErrorCode.NONE:
                logger.warning("%r: cannot store deliveries: %s %s", self, outcome.error.name, outcome.message)
            self._write_dead_letters(letters)
            if self.state.trim():
                self.notify()
            self._environment.settled(self)

        self._writes.store(changes, done, is_final=True)

    async def _write(self, changes: Sequence[StateBatch]) -> Outcome:
        """Store changes; close if this broker may no longer do so."""
        if self.status is Status.CLOSED:
            return self.failure
        state = self.state
        written = await self._environment.persister.write(
            self.key,
            state_epoch=self._state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.complete_count,
            batches=changes,
        )
        outcome = outcome_for_members(written)
        if outcome.error in _CLOSING:
            self.close(outcome)
        return outcome

    # -- dead letters --

    def _write_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        if letters and self.status is Status.ACTIVE:
            self._environment.write_dead_letters(self, letters)

    def dead_letter_written(self, letter: DeadLetter) -> None:
        """Archive records whose dead letters were written, or cannot be."""
        if self.status is Status.ACTIVE and (changes := self.state.written(letter.first, letter.last)):
            self._store_final(changes)
