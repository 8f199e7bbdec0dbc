"""The state of one share-partition: acquired, acknowledged and archived records between two offsets.

    AVAILABLE ──acquire──► ACQUIRED ──accept──► ACKNOWLEDGED
        ▲                     │ │
        │  release, lock over │ └──reject, too many deliveries──► ARCHIVED, or ARCHIVING ──dead letter──► ARCHIVED
        └─────────────────────┘

Everything before the start offset is final. From the next offset on nothing was delivered yet. An acknowledgement is a
`Transition`: the caller stores its changes, and completes it with the outcome. Until then the records have the state
after the change, and cannot be changed again.

Invariants:
1. A record is held by one member at most.
2. A record in a final state is never acquired again, even after a restart from stored state.
3. Deliveries of a record never decrease.
4. After a transition that is not stored, its member still holds each record, unless the lock has expired.

There are two differences from Kafka. State is kept by span, where Kafka keeps it by batch until a record of the batch
is acknowledged, and by record from then on. Gaps in stored state, records that were acquired at the time, become
available immediately, where Kafka acquires them as new ones, with the same result: their deliveries are not stored.

Source: kafka.server.share.SharePartition, org.apache.kafka.server.share.fetch.InFlightState.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from warmlog.broker.share.partitions.spans import NEVER_S, NO_MEMBER, Before, RecordState, Span, Spans, Unit
from warmlog.broker.share.partitions.transitions import EXCEEDED, REJECTED, DeadLetter, Transition, extend
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.kafka.messages.share.fetch import ACCEPT, GAP, REJECT, RELEASE, RENEW, AcknowledgedRange
from warmlog.protocol.kafka.messages.share.state import StateBatch

RANGES_PER_STEP = 100
STEP = 500  # spans or runs of types per step of an acknowledgement: well below a millisecond
TYPES_OF_SPAN = 100  # offsets compared in the time of a span
_STATES = {
    GAP: RecordState.ARCHIVED,
    ACCEPT: RecordState.ACKNOWLEDGED,
    RELEASE: RecordState.AVAILABLE,
    REJECT: RecordState.ARCHIVED,
}


T = TypeVar("T")


def drained(steps: Generator[None, None, T]) -> T:
    """Run all steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class AcknowledgeError(ProtocolError):
    """Records cannot be acknowledged: the member does not hold them, or they are unknown."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class DeliveryRules(NamedTuple):
    """A group's settings about deliveries. `dead_letters`: whether the group has a dead-letter topic."""

    lock_s: float = 30.0
    max_deliveries: int = 5
    max_locks: int = 2_000
    dead_letters: bool = False
    renews: bool = True


class SharePartition:
    """The automaton. Belongs to the event loop."""

    def __init__(self, rules: Callable[[], DeliveryRules], start_offset: int) -> None:
        """Begin at an offset; `rules` returns the current rules."""
        self._rules = rules
        self.spans = Spans()
        self.start_offset = start_offset
        self.next_offset = start_offset
        self.wake_at_s = NEVER_S  # a lower bound of the deadlines of locks
        self.complete_count = 0  # number of acknowledged or archived offsets from the start offset on
        self._available_from = start_offset  # no record before it is available

    def restore(self, batches: Iterable[StateBatch]) -> Generator[None, None, None]:
        """Continue from stored state; yields after every STEP batches. Raises ValueError for impossible state."""
        for number, batch in enumerate(batches, 1):
            self._restore(batch)
            if number % STEP == 0:
                yield
        self.trim()

    def _restore(self, batch: StateBatch) -> None:
        first, last, state, deliveries = batch
        if not self.next_offset <= first <= last or state == RecordState.ACQUIRED:
            raise ValueError(f"stored state {batch} cannot follow offset {self.next_offset - 1}")
        if first > self.next_offset:
            gap = Unit(self.next_offset, first - 1)
            self.spans.add(Span(gap.first, gap.last, RecordState.AVAILABLE, 0, gap))
        span = Span(first, last, RecordState(state), deliveries, Unit(first, last))
        self.spans.add(span)
        if span.state.is_final:
            self.complete_count += span.size
        self.next_offset = last + 1

    @property
    def rules(self) -> DeliveryRules:
        """The current rules."""
        return self._rules()

    @property
    def in_flight(self) -> int:
        """The number of offsets from the start offset to the last delivered one."""
        return self.next_offset - self.start_offset if self.spans else 0

    @property
    def has_locks(self) -> bool:
        """Whether records are acquired or about to change."""
        return any(span.state is RecordState.ACQUIRED or span.pending is not None for span in self.spans)

    @property
    def has_dead_letters(self) -> bool:
        """Whether there are unwritten dead letters."""
        return any(span.state is RecordState.ARCHIVING for span in self.spans)

    def archiving(self) -> list[DeadLetter]:
        """Return the offsets with unwritten dead letters; after a restart their causes are unknown."""
        return [
            DeadLetter(span.first, span.last, span.deliveries, None)
            for span in self.spans
            if span.state is RecordState.ARCHIVING and span.pending is None
        ]

    def fetch_offset(self) -> int:
        """Return the first available offset, or the next one that was never delivered."""
        for span in self.spans.seen_from(self._available_from):
            if span.is_available:
                self._available_from = span.first
                return span.first
        self._available_from = self.next_offset
        return self.next_offset

    def can_acquire(self) -> bool:
        """Return whether `acquire` may return records: some are available, or more may be in flight."""
        return self.fetch_offset() != self.next_offset or self.in_flight < self.rules.max_locks

    # -- changes of single spans --

    def change(self, span: Span, state: RecordState, *, member: str = NO_MEMBER, deadline_s: float = NEVER_S) -> None:
        """Set the state and the holder of a span."""
        if span.state.is_final is not state.is_final:
            self.complete_count += span.size if state.is_final else -span.size
        span.state, span.member, span.deadline_s = state, member, deadline_s
        if state is RecordState.AVAILABLE:
            self._available_from = min(self._available_from, span.first)
        elif deadline_s < self.wake_at_s:
            self.wake_at_s = deadline_s

    def released(self, span: Span, rules: DeliveryRules) -> RecordState:
        """Return the state of released records: available, or archived after too many deliveries."""
        if span.deliveries < rules.max_deliveries:
            return RecordState.AVAILABLE
        return RecordState.ARCHIVING if rules.dead_letters else RecordState.ARCHIVED

    def archive(self, first: int, last: int, of: RecordState) -> bool:
        """Archive offsets of a range that are in a state without a pending transition; return whether there are any."""
        has_changed = False
        for span in self.spans.within(first, last):
            if span.state is of and span.pending is None:
                self.change(self.spans.cut(span, first, last), RecordState.ARCHIVED)
                has_changed = True
        return has_changed

    # -- acknowledgements --

    def acknowledge(
        self, member: str, ranges: Iterable[AcknowledgedRange], now_s: float, transition: Transition
    ) -> Iterator[None]:
        """Apply a member's acknowledgements to records that it holds; yields after every STEP spans.

        On success, `transition` has the changes to store. Raises AcknowledgeError, after which nothing has changed
        except that locks may have been renewed.
        """
        try:
            for number, acknowledged in enumerate(ranges, 1):
                if acknowledged.last_offset >= self.start_offset:
                    self._check_delivered(acknowledged)
                    yield from self._acknowledge(member, acknowledged, now_s, transition)
                if number % RANGES_PER_STEP == 0:
                    yield
        except AcknowledgeError:
            yield from self.completing(transition, now_s, is_stored=False)
            raise

    def _check_delivered(self, acknowledged: AcknowledgedRange) -> None:
        """Raise AcknowledgeError for offsets that were not delivered."""
        if not self.spans or acknowledged.last_offset < self.spans.first.first:
            raise AcknowledgeError(ErrorCode.INVALID_RECORD_STATE, "no record of the batch is in flight")
        if acknowledged.last_offset > self.spans.last.last:
            raise AcknowledgeError(
                ErrorCode.INVALID_REQUEST,
                f"offset {acknowledged.last_offset} has not been acquired by a member of the group",
            )

    def _acknowledge(
        self, member: str, acknowledged: AcknowledgedRange, now_s: float, transition: Transition
    ) -> Iterator[None]:
        steps = 0
        for first, last, kind in self._runs(acknowledged):
            steps += 1 + (last - first) // TYPES_OF_SPAN
            for span in self.spans.within(max(first, self.start_offset), last):
                steps += 1
                self._check_held(span, member)
                part = self.spans.cut(span, max(first, self.start_offset), last)
                self._take(part, kind, now_s, transition)
                if steps >= STEP:
                    steps = 0
                    yield
            if steps >= STEP:
                steps = 0
                yield

    def _runs(self, acknowledged: AcknowledgedRange) -> Iterator[tuple[int, int, int]]:
        """Yield (first offset, last offset, type) of consecutive offsets with the same acknowledgement."""
        types = acknowledged.types
        if len(types) == 1:
            yield acknowledged.first_offset, acknowledged.last_offset, types[0]
            return
        offset = max(acknowledged.first_offset, self.start_offset)
        skipped = offset - acknowledged.first_offset
        for begin in range(skipped, len(types), STEP * TYPES_OF_SPAN // 4):
            for kind, run in groupby(types[begin : begin + STEP * TYPES_OF_SPAN // 4]):
                size = sum(1 for _ in run)
                yield offset, offset + size - 1, kind
                offset += size

    def _check_held(self, span: Span, member: str) -> None:
        """Raise AcknowledgeError unless a member holds a span."""
        if span.state is not RecordState.ACQUIRED and span.pending is None:
            raise AcknowledgeError(ErrorCode.INVALID_RECORD_STATE, f"offset {span.first} is not acquired")
        if span.pending is not None:
            message = f"offset {span.first} is being acknowledged or released"
            raise AcknowledgeError(ErrorCode.INVALID_RECORD_STATE, message)
        if span.member != member:
            message = f"offset {span.first} is acquired by another member"
            raise AcknowledgeError(ErrorCode.INVALID_RECORD_STATE, message)

    def _take(self, span: Span, kind: int, now_s: float, transition: Transition) -> None:
        """Apply an acknowledgement to a span that its sender holds."""
        rules = self.rules
        if kind == RENEW:
            if not rules.renews:
                message = "Renewing acquisition locks is not enabled for the group."
                raise AcknowledgeError(ErrorCode.INVALID_RECORD_STATE, message)
            span.deadline_s = now_s + rules.lock_s
            return
        transition.locked_s += span.size * max(now_s - (span.deadline_s - rules.lock_s), 0.0)
        state = _STATES[kind]
        if kind == RELEASE:
            state = self.released(span, rules)
        elif kind == REJECT and rules.dead_letters:
            self._begin(span, RecordState.ARCHIVING, transition, REJECTED)
            return
        self._begin(span, state, transition)

    def release(self, member: str, transition: Transition) -> Iterator[None]:
        """Release all records that a member holds; yields after every STEP spans."""
        rules = self.rules
        for steps, span in enumerate(self.spans.from_offset(self.start_offset), 1):
            if span.state is RecordState.ACQUIRED and span.member == member and span.pending is None:
                self._begin(span, self.released(span, rules), transition)
            if steps % STEP == 0:
                yield

    def _begin(self, span: Span, state: RecordState, transition: Transition, cause: str = EXCEEDED) -> None:
        span.undo, deadline_s = Before(span.state, span.member), span.deadline_s
        span.pending = transition
        self.change(span, state)
        span.deadline_s = deadline_s  # the lock's deadline if this fails
        transition.add(span.first, span.last, state, span.deliveries, cause)

    def complete(self, transition: Transition, now_s: float, *, is_stored: bool) -> bool:
        """Run `completing` in one step."""
        return drained(self.completing(transition, now_s, is_stored=is_stored))

    def completing(self, transition: Transition, now_s: float, *, is_stored: bool) -> Generator[None, None, bool]:
        """End a transition; yields after every STEP changes.

        Returns whether records have become available, or the start offset has moved.
        """
        has_news = False
        rules = self.rules
        for number, (first, last, _, _) in enumerate(transition.changes, 1):
            if number % STEP == 0:
                yield
            for span in self.spans.within(first, last):
                if span.pending is not transition:
                    continue
                assert span.undo is not None, "it is pending"
                before, span.undo, span.pending = span.undo, None, None
                if is_stored:
                    span.deadline_s = NEVER_S
                elif span.deadline_s <= now_s:
                    self.change(span, self.released(span, rules))
                else:
                    self.change(span, before.state, member=before.member, deadline_s=span.deadline_s)
                if span.state is RecordState.AVAILABLE:
                    self._available_from = min(self._available_from, span.first)
                    has_news = True
                self.spans.join(span)
        return self.trim() or has_news

    # -- time and the log --

    def expire(self, now_s: float) -> Transition:
        """Run `expiring` in one step."""
        return drained(self.expiring(now_s))

    def expiring(self, now_s: float) -> Generator[None, None, Transition]:
        """Release records whose locks have expired; yields after every STEP spans. Sets `wake_at_s`.

        Returns the changes to store, which are already applied.
        """
        expired = Transition()
        rules, self.wake_at_s = self.rules, NEVER_S
        for number, span in enumerate(self.spans.from_offset(self.start_offset), 1):
            if number % STEP == 0:
                yield
            if span.state is not RecordState.ACQUIRED or span.pending is not None:
                continue
            if span.deadline_s > now_s:
                self.wake_at_s = min(self.wake_at_s, span.deadline_s)
                continue
            self.change(span, self.released(span, rules))
            expired.add(span.first, span.last, span.state, span.deliveries)
        return expired

    def written(self, first: int, last: int) -> Sequence[StateBatch]:
        """Archive offsets whose dead letters were written or cannot be; return the changes to store."""
        changes: list[StateBatch] = []
        for span in self.spans.within(first, last):
            if span.state is RecordState.ARCHIVING and span.pending is None:
                self.change(span, RecordState.ARCHIVED)
                extend(changes, StateBatch(span.first, span.last, span.state, span.deliveries))
        return changes

    def move_start(self, log_start_offset: int) -> bool:
        """Drop offsets before the log start offset, even if they are held; return whether the start has moved."""
        if log_start_offset <= self.start_offset:
            return False
        while self.spans and self.spans.first.first < log_start_offset:
            span = self.spans.pop_first()
            if span.last >= log_start_offset:
                self.spans.add(span.split(log_start_offset))
            if span.state.is_final:
                self.complete_count -= span.size
        self.start_offset = log_start_offset
        self.next_offset = max(self.next_offset, log_start_offset)
        self.trim()
        return True

    def trim(self) -> bool:
        """Advance the start offset past records in final states; return whether it has moved."""
        start_offset = self.start_offset
        spans = self.spans
        while spans and (first := spans.first).state.is_final and first.pending is None:
            self.complete_count -= spans.pop_first().size
            self.start_offset = spans.first.first if spans else self.next_offset
        return self.start_offset > start_offset
