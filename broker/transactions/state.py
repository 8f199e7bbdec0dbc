"""The sans-IO automaton of one transactional id.

    Empty ───────────► Ongoing ─────────► PrepareCommit ──► CompleteCommit
      ▲   partitions    ▲    │   commit     markers written        │
      │   are added     │    │                                     │
      │                 │    └──────────► PrepareAbort ───► CompleteAbort
      │                 │        abort, timeout,                   │
      │                 │        a new producer                    │
      │                 └──────── partitions are added ────────────┤
      └────────────────────────── InitProducerId ──────────────────┘
    Empty, Complete… ──► removed: not used for transactional.id.expiration.ms

    With KIP-890 Empty and Complete… lead to PrepareAbort, too: an abort is always possible.

A transition takes effect when it is appended to the log. Until then it is pending, and all further requests are
answered with CONCURRENT_TRANSACTIONS. An outcome is final once it is in the log: the client is answered, the markers
are written, and then the completion is appended, which is pending from the decision on.

`take_effects` returns the effects of a call. Each `Append` must be followed by `appended`, each `WriteMarkers`
by `markers_written` for all its partitions, each `RetryLater` by `retry`.

Invariants:
1. One transition is pending at most, hence one append per transactional id.
2. Each request is answered exactly once.
3. `metadata` equals the log, except for `last_producer_epoch`, for partitions that already have their marker, and for
   an epoch raised by a fencing (before KIP-890) whose append failed: no producer gets it.
4. A request with a stale producer id or epoch appends nothing.
5. Once an outcome is in the log no other one can be decided before its completion is in the log.

Source: kafka.coordinator.transaction.TransactionCoordinator, TransactionStateManager, TransactionMarkerChannelManager,
TransactionMarkerRequestCompletionHandler (Kafka 4.3.1); KIP-98, KIP-360, KIP-588, KIP-890.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple

from warmlog.broker.transactions.effects import (
    Answer,
    Append,
    Effect,
    EffectSource,
    Producer,
    ProducerIdSource,
    RetryLater,
    Stuck,
    Waiter,
    WriteMarkers,
)
from warmlog.broker.transactions.ending import DECIDE, check_end_v0, check_end_v5
from warmlog.broker.transactions.metadata import EXPIRABLE, PREPARED, Metadata, State, is_exhausted
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionVersion

# A partition without records of the producer may refuse a marker because of its format; it needs none.
_NEEDS_NO_MARKER = frozenset({ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})
# Permanent refusals: the producer or the coordinator has a successor.
_SUPERSEDED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


class _Purpose(Enum):
    INITIALIZE = auto()
    ADD = auto()
    END = auto()  # requested by the client
    FENCE = auto()  # an abort on behalf of a new producer, or for a timeout
    COMPLETE = auto()
    EXPIRE = auto()


class _Pending(NamedTuple):
    """A transition that is not in the log yet. `target`: None for the tombstone of an expired id."""

    purpose: _Purpose
    target: Metadata | None
    waiter: Waiter | None = None


class Transaction:
    """One transactional id. Calls must not be concurrent."""

    __slots__ = (
        "_effects",
        "_has_failed_fence",
        "_in_flight",
        "_is_stuck",
        "_must_retry",
        "_pending",
        "counted_partitions",
        "is_expired",
        "metadata",
        "source",
    )

    def __init__(self, source: EffectSource, metadata: Metadata) -> None:
        """Start from a state in the log, or from that of a new id (`begin`)."""
        self.source = source
        self.metadata = metadata
        self.is_expired = False  # its tombstone is in the log
        self.counted_partitions = 0  # the part of `partition_count` that the coordinator has counted
        self._pending: _Pending | None = None
        self._in_flight: frozenset[TopicPartition] = frozenset()  # markers being written
        self._must_retry = False
        self._is_stuck = False
        self._has_failed_fence = False
        self._effects: list[Effect] = []

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def partition_count(self) -> int:
        """The number of partitions of the transaction, including those being added."""
        pending = self._pending
        target = self.metadata if pending is None or pending.target is None else pending.target
        return max(len(self.metadata.partitions), len(target.partitions))

    @property
    def has_waiter(self) -> bool:
        """Whether a request waits for the pending transition to be in the log."""
        return self._pending is not None and self._pending.waiter is not None

    @property
    def is_changing(self) -> bool:
        """Whether a transition is pending."""
        return self._pending is not None

    # -- requests --

    def initialize(
        self,
        expected: Producer | None,
        timeout_ms: int,
        waiter: Waiter,
        *,
        ids: ProducerIdSource,
        level: TransactionVersion,
        now_ms: int,
    ) -> None:
        """Assign the id to a producer (InitProducerId) and fence earlier ones. An open transaction is aborted first.

        `expected`: the producer that continues after an error (KIP-360). `level`: the broker's `transaction.version`.
        """
        metadata = self.metadata
        if self._pending is not None:
            self._answer(waiter, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif expected is not None and not self._may_continue(expected):
            self._answer(waiter, ErrorCode.PRODUCER_FENCED)
        elif metadata.state in PREPARED:
            self._answer(waiter, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif metadata.state is State.ONGOING:
            self._fence(waiter, ids, level, now_ms)
        else:
            self._reinitialize(expected, timeout_ms, waiter, ids, now_ms)

    def _may_continue(self, expected: Producer) -> bool:
        """Return whether a producer with this id and epoch may be the current one; the epoch is checked later."""
        metadata = self.metadata
        has_moved_on = metadata.previous_producer_id == expected.id and is_exhausted(expected.epoch)
        is_new = metadata.producer_epoch == NO_PRODUCER_EPOCH
        return is_new or metadata.producer_id == expected.id or has_moved_on

    def _reinitialize(
        self, expected: Producer | None, timeout_ms: int, waiter: Waiter, ids: ProducerIdSource, now_ms: int
    ) -> None:
        metadata = self.metadata
        expected_epoch = None if expected is None else expected.epoch
        target: Metadata | None
        if metadata.is_exhausted:
            if expected_epoch not in {None, metadata.producer_epoch}:
                self._answer(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)  # Kafka's answer to a stale epoch here
                return
            producer_id = ids.take()
            if producer_id is None:
                self._answer(waiter, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                return
            target = metadata.with_producer_id(
                producer_id, timeout_ms=timeout_ms, keeps_last_epoch=expected is not None, now_ms=now_ms
            )
        else:
            target = metadata.with_next_epoch(expected_epoch, timeout_ms=timeout_ms, now_ms=now_ms)
        if target is None:
            self._answer(waiter, ErrorCode.PRODUCER_FENCED)
        else:
            self._append(_Pending(_Purpose.INITIALIZE, target, waiter))

    def add_partitions(
        self,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        waiter: Waiter,
        *,
        version: TransactionVersion,
        max_partitions: int,
        now_ms: int,
    ) -> None:
        """Handle AddPartitionsToTxn or AddOffsetsToTxn: add partitions to the transaction, beginning one if needed.

        Answered with POLICY_VIOLATION if the transaction would have more than `max_partitions`.
        """
        metadata = self.metadata
        if self._pending is not None:
            # With KIP-890 the producer may be the one that the pending transition creates, so it is not checked yet.
            self._answer(waiter, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif metadata.producer_id != producer.id:
            self._answer(waiter, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif metadata.producer_epoch != producer.epoch:
            self._answer(waiter, ErrorCode.PRODUCER_FENCED)
        elif metadata.state in PREPARED:
            self._answer(waiter, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif metadata.state is State.ONGOING and partitions <= metadata.partitions:
            self._answer(waiter, ErrorCode.NONE)
        else:
            target = metadata.with_partitions(partitions, version=version, now_ms=now_ms)
            if len(target.partitions) > max_partitions:
                self._answer(waiter, ErrorCode.POLICY_VIOLATION)
            else:
                self._append(_Pending(_Purpose.ADD, target, waiter))

    def verify_partitions(
        self, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Report which partitions are part of the open transaction, for clients that add them beforehand.

        Pending transitions are ignored: the partition checks the epoch again when it appends.
        """
        metadata = self.metadata
        error = ErrorCode.NONE
        if metadata.producer_id != producer.id:
            error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        elif metadata.producer_epoch != producer.epoch:
            error = ErrorCode.PRODUCER_FENCED
        elif metadata.state in PREPARED:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        if error is not ErrorCode.NONE:
            return dict.fromkeys(partitions, error)
        return {
            each: ErrorCode.NONE if each in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for each in partitions
        }

    def end(
        self,
        producer: Producer,
        outcome: Outcome,
        waiter: Waiter,
        *,
        version: TransactionVersion,
        ids: ProducerIdSource,
        now_ms: int,
    ) -> None:
        """Decide the outcome (EndTxn). Answered when the outcome is in the log, before the markers are written.

        `version`: the client's; with TV_2 the answer has the producer of the next transaction.
        """
        metadata = self.metadata
        check = check_end_v5 if version.bumps_epochs else check_end_v0
        error = check(metadata, is_changing=self._pending is not None, producer=producer, outcome=outcome)
        next_id: int | None = NO_PRODUCER_ID
        if error is DECIDE and version.bumps_epochs and metadata.is_exhausted:
            next_id = ids.take()
        if error is ErrorCode.NONE and version.bumps_epochs:
            self._answer(waiter, ErrorCode.NONE, metadata)
        elif error is not DECIDE:
            self._answer(waiter, error)
        elif next_id is None:
            self._answer(waiter, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        else:
            target = metadata.ended(
                outcome,
                version=version if version.bumps_epochs else TransactionVersion.TV_0,
                next_producer_id=next_id,
                now_ms=now_ms,
            )
            self._append(_Pending(_Purpose.END, target, waiter))

    # -- time --

    def abort_timed_out(self, *, ids: ProducerIdSource, level: TransactionVersion, now_ms: int) -> None:
        """Abort the transaction and fence its producer, if it has been open for too long."""
        if self._pending is None and self.metadata.is_timed_out(now_ms):
            self._fence(None, ids, level, now_ms)

    def expire(self, unused_since_ms: int) -> None:
        """Remove the transactional id if it was not used since then and no transaction is open."""
        metadata = self.metadata
        if self._pending is None and metadata.state in EXPIRABLE and metadata.updated_ms <= unused_since_ms:
            self._append(_Pending(_Purpose.EXPIRE, None))

    def _fence(self, waiter: Waiter | None, ids: ProducerIdSource, level: TransactionVersion, now_ms: int) -> None:
        """Abort the open transaction and fence its producer."""
        next_id: int | None = NO_PRODUCER_ID
        version = TransactionVersion.TV_0
        if level.bumps_epochs:
            version = level
            if self.metadata.is_exhausted:
                next_id = ids.take()
        elif not self._has_failed_fence:
            self.metadata = self.metadata.fenced()
        if next_id is None:
            self._answer(waiter, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return
        target = self.metadata.ended(Outcome.ABORT, version=version, next_producer_id=next_id, now_ms=now_ms)
        self._append(_Pending(_Purpose.FENCE, target, waiter))

    # -- reports --

    def appended(self, error: ErrorCode, now_ms: int) -> None:
        """Process the outcome of an `Append` effect."""
        pending = self._pending
        assert pending is not None, "an append belongs to a pending transition"
        if error is not ErrorCode.NONE:
            self._not_appended(pending, error)
            return
        self._pending = None
        if pending.target is None:
            self.is_expired = True
            return
        self.metadata = pending.target
        match pending.purpose:
            case _Purpose.INITIALIZE:
                self._answer(pending.waiter, ErrorCode.NONE, self.metadata)
            case _Purpose.ADD:
                self._answer(pending.waiter, ErrorCode.NONE)
            case _Purpose.END | _Purpose.FENCE:
                completed = self._begin_completion(now_ms)
                if pending.purpose is _Purpose.FENCE:
                    # The client retries until the abort is complete, and then gets a producer of its own.
                    self._answer(pending.waiter, ErrorCode.CONCURRENT_TRANSACTIONS)
                elif completed.client_version.bumps_epochs:
                    self._answer(pending.waiter, ErrorCode.NONE, completed)
                else:
                    self._answer(pending.waiter, ErrorCode.NONE)
                self._go_on()
            case _Purpose.COMPLETE | _Purpose.EXPIRE:
                pass

    def _not_appended(self, pending: _Pending, error: ErrorCode) -> None:
        if pending.purpose is _Purpose.COMPLETE:
            if error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                self._effects.append(RetryLater(self.source))
            else:
                self._get_stuck(error)
            return
        self._pending = None
        if pending.purpose is _Purpose.FENCE and pending.target is not None:
            # No producer got the raised epoch, so the next attempt reuses it. With KIP-890 it was not raised.
            self._has_failed_fence = not pending.target.client_version.bumps_epochs
        self._answer(pending.waiter, error)

    def resume(self, now_ms: int) -> None:
        """Complete a transaction that had been decided but not completed when the log was loaded."""
        if self.metadata.state in PREPARED and self._pending is None:
            self._begin_completion(now_ms)
            self._go_on()

    def retry(self) -> None:
        """Retry the failed markers, or the append of the completion."""
        pending = self._pending
        if pending is not None and pending.purpose is _Purpose.COMPLETE and not self._in_flight:
            self._must_retry = False
            self._go_on()

    def markers_written(self, results: Mapping[TopicPartition, ErrorCode]) -> None:
        """Process the outcome of some markers of a `WriteMarkers` effect; others may follow."""
        reported = self._in_flight & results.keys()
        self._in_flight -= reported
        self.metadata = self.metadata.without_partitions(
            frozenset(each for each in reported if results[each] in _NEEDS_NO_MARKER)
        )
        for error in {results[each] for each in reported} - _NEEDS_NO_MARKER:
            if error in _SUPERSEDED:
                self._get_stuck(error)
            else:
                self._must_retry = True
        if self._in_flight or self._is_stuck or not reported:
            return
        if self._must_retry:
            self._effects.append(RetryLater(self.source))
        else:
            self._go_on()

    def give_up(self, error: ErrorCode) -> None:
        """Answer the waiting request because the log partition is unloaded; the automaton must not be used again."""
        if self._pending is not None and self._pending.waiter is not None:
            self._answer(self._pending.waiter, error)

    # -- inside --

    def _begin_completion(self, now_ms: int) -> Metadata:
        completed = self.metadata.completed(now_ms)
        self._has_failed_fence = False
        self._pending = _Pending(_Purpose.COMPLETE, completed)
        return completed

    def _go_on(self) -> None:
        """Write the missing markers; once all are written, append the completion."""
        pending, metadata = self._pending, self.metadata
        assert pending is not None
        if self._is_stuck:
            return
        if not metadata.partitions:
            self._append(pending)
            return
        self._in_flight = metadata.partitions
        self._effects.append(
            WriteMarkers(
                self.source,
                Producer(metadata.producer_id, metadata.producer_epoch),
                metadata.outcome,
                metadata.partitions,
                metadata.client_version,
            )
        )

    def _get_stuck(self, error: ErrorCode) -> None:
        if not self._is_stuck:
            self._is_stuck = True
            self._effects.append(Stuck(self.source, error))

    def _append(self, pending: _Pending) -> None:
        self._pending = pending
        self._effects.append(Append(self.source, None if pending.target is None else pending.target.stored()))

    def _answer(self, waiter: Waiter | None, error: ErrorCode, producer: Metadata | None = None) -> None:
        if waiter is None:
            return
        if producer is None:
            self._effects.append(Answer(waiter, error))
        else:
            self._effects.append(Answer(waiter, error, producer.producer_id, producer.producer_epoch))
