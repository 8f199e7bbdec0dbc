"""State of one transactional id as a value, and its transitions.

A transition returns the next state, which takes effect once it is in the log. `state.py` and `ending.py` decide which
transition a request causes.

Source: org.apache.kafka.coordinator.transaction.TransactionMetadata (Kafka 4.3), KIP-360 (epochs raised by
InitProducerId), KIP-890 (epochs raised by every end).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from warmlog.protocol.kafka.transaction_records import NO_TIME, StoredTransaction
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import (
    MAX_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    TransactionState,
    TransactionVersion,
)

State = TransactionState

PREVIOUS_STATES: Mapping[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.ONGOING: frozenset({State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    # Since KIP-890 a client that does not know its state may abort a transaction that has no partitions.
    State.PREPARE_ABORT: frozenset({State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
}
PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
COMPLETE = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
EXPIRABLE = COMPLETE | {State.EMPTY}
# The largest epoch that a client gets: the coordinator needs the next one to fence it.
LAST_CLIENT_EPOCH = MAX_PRODUCER_EPOCH - 1


def is_exhausted(epoch: int) -> bool:
    """Return whether a producer id has no epoch left for a client."""
    return epoch >= LAST_CLIENT_EPOCH


def _last_epoch(stored: StoredTransaction) -> int:
    """Return the epoch before the last increment if it can be derived: it is not stored, but an end adds one.

    So a producer that got no answer to its end may continue. Kafka fences it if the coordinator has changed since.
    """
    if not stored.client_version.bumps_epochs or stored.state not in PREPARED | COMPLETE:
        return NO_PRODUCER_EPOCH
    if stored.previous_producer_id != stored.producer_id and stored.producer_epoch == 0:
        return LAST_CLIENT_EPOCH
    return stored.producer_epoch - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """State of a transactional id. Times in ms since the epoch."""

    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID  # becomes the producer id when the markers of the last epoch are written
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH  # identifies a retry of the last increment; see `_last_epoch`
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    updated_ms: int
    client_version: TransactionVersion = TransactionVersion.TV_0

    @classmethod
    def restore(cls, stored: StoredTransaction) -> Self:
        """Return the state that a record holds."""
        return cls(
            producer_id=stored.producer_id,
            previous_producer_id=stored.previous_producer_id,
            next_producer_id=stored.next_producer_id,
            producer_epoch=stored.producer_epoch,
            last_producer_epoch=_last_epoch(stored),
            timeout_ms=stored.timeout_ms,
            state=stored.state,
            partitions=stored.partitions,
            started_ms=stored.started_ms,
            updated_ms=stored.updated_ms,
            client_version=stored.client_version,
        )

    def stored(self) -> StoredTransaction:
        """Return the stored form of this state."""
        return StoredTransaction(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.producer_epoch,
            timeout_ms=self.timeout_ms,
            state=self.state,
            partitions=self.partitions,
            started_ms=self.started_ms,
            updated_ms=self.updated_ms,
            client_version=self.client_version,
        )

    @property
    def outcome(self) -> Outcome:
        """Outcome that was decided, in a prepared state."""
        assert self.state in PREPARED
        return Outcome.COMMIT if self.state is State.PREPARE_COMMIT else Outcome.ABORT

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for a client."""
        return is_exhausted(self.producer_epoch)

    def is_timed_out(self, now_ms: int) -> bool:
        """Return whether the transaction has been open for longer than its client allowed."""
        is_open = self.state is State.ONGOING and self.timeout_ms != NO_TIMEOUT_MS
        return is_open and self.started_ms + self.timeout_ms < now_ms

    # -- transitions --

    def with_producer_id(self, producer_id: int, *, timeout_ms: int, keeps_last_epoch: bool, now_ms: int) -> Self:
        """Begin at epoch 0 of a new producer id: all epochs of the current one are used up."""
        return self._moved(
            State.EMPTY,
            producer_id=producer_id,
            producer_epoch=0,
            last_producer_epoch=self.producer_epoch if keeps_last_epoch else NO_PRODUCER_EPOCH,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            started_ms=NO_TIME,
            updated_ms=now_ms,
        )

    def with_next_epoch(self, expected_epoch: int | None, *, timeout_ms: int, now_ms: int) -> Self | None:
        """Raise the epoch for a producer that initializes; None if `expected_epoch` belongs to a fenced one.

        A producer that sends the epoch before the current one is retrying a request that succeeded, and gets the same
        epoch again.
        """
        assert not self.is_exhausted
        epoch, last = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        if expected_epoch is not None and self.producer_epoch != NO_PRODUCER_EPOCH:
            if expected_epoch == self.producer_epoch:
                last = self.producer_epoch
            elif expected_epoch == self.last_producer_epoch:
                epoch, last = self.producer_epoch, self.last_producer_epoch
            else:
                return None
        return self._moved(
            State.EMPTY,
            producer_epoch=epoch,
            last_producer_epoch=last,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            started_ms=NO_TIME,
            updated_ms=now_ms,
        )

    def with_partitions(self, added: frozenset[TopicPartition], *, version: TransactionVersion, now_ms: int) -> Self:
        """Add partitions to the transaction, and begin one if none is open."""
        return self._moved(
            State.ONGOING,
            partitions=self.partitions | added,
            started_ms=self.started_ms if self.state is State.ONGOING else now_ms,
            updated_ms=now_ms,
            client_version=version,
        )

    def fenced(self) -> Self:
        """Raise the epoch within the open transaction, which fences its producer (before KIP-890)."""
        epoch = min(self.producer_epoch + 1, MAX_PRODUCER_EPOCH)
        return replace(self, producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH)

    def ended(self, outcome: Outcome, *, version: TransactionVersion, next_producer_id: int, now_ms: int) -> Self:
        """Decide the outcome. With KIP-890 the epoch is raised, which fences batches in flight.

        `next_producer_id`: the successor if this uses up the epochs, else NO_PRODUCER_ID.
        """
        epoch, last = self.producer_epoch, self.last_producer_epoch
        if version.bumps_epochs:
            epoch, last = min(self.producer_epoch + 1, MAX_PRODUCER_EPOCH), self.producer_epoch
        return self._moved(
            State.PREPARE_COMMIT if outcome is Outcome.COMMIT else State.PREPARE_ABORT,
            next_producer_id=next_producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last,
            started_ms=self.started_ms if self.state is State.ONGOING else now_ms,
            updated_ms=now_ms,
            client_version=version,
        )

    def completed(self, now_ms: int) -> Self:
        """Complete a transaction whose markers are in all its partitions."""
        moves_on = self.client_version.bumps_epochs and self.next_producer_id != NO_PRODUCER_ID
        return self._moved(
            State.COMPLETE_COMMIT if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
            producer_id=self.next_producer_id if moves_on else self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=0 if moves_on else self.producer_epoch,
            partitions=frozenset(),
            updated_ms=now_ms,
        )

    def without_partitions(self, marked: frozenset[TopicPartition]) -> Self:
        """Remove partitions that have their marker. Not stored, since markers may be written twice."""
        return replace(self, partitions=self.partitions - marked)

    def _moved(self, state: State, **changes: Any) -> Self:
        assert self.state in PREVIOUS_STATES[state], f"{self.state.label} does not lead to {state.label}"
        return replace(self, state=state, previous_producer_id=self.producer_id, **changes)
