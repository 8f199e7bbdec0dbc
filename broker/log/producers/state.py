"""The state of one idempotent producer in one log: its last batches, and whether a new batch may follow them.

    batch of                                            result
    an unknown producer, any sequence                   accepted, unless `VerificationGuards` knows of an earlier batch
    the current epoch, next sequence                    accepted
                       one of the last five batches     duplicate: already in the log, not written again
                       any other sequence               rejected as out of order
    a higher epoch, sequence 0                          accepted
                    any other sequence                  rejected as out of order
    a lower epoch                                       rejected: another instance of the producer has replaced it

Sequences count records and wrap from 2^31 - 1 to 0. `table` decides which producers a log remembers, and how long.

Invariants:
1. States are immutable.
2. A state has the producer's last five batches, or fewer: none from before its current epoch, and only one from before
   it was read from a snapshot.
3. A duplicate has the same epoch and the same first and last sequence as a batch of the state.

Source: org.apache.kafka.storage.internals.log.ProducerStateEntry, ProducerAppendInfo,
UnifiedLog.analyzeAndValidateProducerState; KIP-98, KIP-360 (unknown producers). As in current Kafka, batches older than
the last five are out of order; DUPLICATE_SEQUENCE_NUMBER is no longer used.
"""

from typing import NoReturn

from msgspec import Struct

from broker.log.errors import InvalidProducerEpochError, InvalidTransactionStateError, OutOfOrderSequenceError
from protocol.records.layout import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, TRANSACTIONAL_BIT, BatchHeader

MAX_SEQUENCE = (1 << 31) - 1
BATCHES_KEPT = 5  # the limit of max.in.flight.requests.per.connection for idempotent producers
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1


def advanced(sequence: int, count: int) -> int:
    """Return the sequence `count` records later, or earlier if negative."""
    return sequence + count & MAX_SEQUENCE


class ProducerBatch(Struct, frozen=True, gc=False):
    """A batch in a producer's state; `timestamp` is its largest, in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta

    @property
    def base_sequence(self) -> int:
        """The sequence of its first record."""
        return advanced(self.last_sequence, -self.offset_delta)


class ProducerState(Struct, frozen=True, gc=False):
    """One producer in one log. `batches` are its last ones in its current epoch, oldest first.

    `last_timestamp` (ms) is that of its last batch or of the marker that ended its last transaction, and
    `coordinator_epoch` that of the marker. `transaction_first_offset` is where its open transaction began, or -1.
    """

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    transaction_first_offset: int = NO_OFFSET
    batches: tuple[ProducerBatch, ...] = ()

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record; -1 if its epoch has none yet."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The offset of its last record; -1 if its epoch has none yet."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def expects(self, sequence: int) -> bool:
        """Return whether a batch in this epoch must begin with this sequence."""
        batches = self.batches
        return (batches[-1].last_sequence + 1 & MAX_SEQUENCE if batches else 0) == sequence

    def find(self, header: BatchHeader) -> ProducerBatch | None:
        """Return the earlier batch of which this one is a duplicate, or None."""
        if header.producer_epoch == self.epoch:
            last_sequence = advanced(header.base_sequence, header.last_offset_delta)
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta:
                    return batch
        return None

    def appended(self, header: BatchHeader, last_offset: int, timestamp: int) -> "ProducerState":
        """Return the state after a batch of records, without validation. `timestamp` is its largest, in ms."""
        delta, epoch = header.last_offset_delta, header.producer_epoch
        batch = ProducerBatch(advanced(header.base_sequence, delta), last_offset, delta, timestamp)
        first_offset = self.transaction_first_offset
        if first_offset < 0 and header.attributes & TRANSACTIONAL_BIT:
            first_offset = last_offset - delta
        batches = (*self.batches[1 - BATCHES_KEPT :], batch) if epoch == self.epoch else (batch,)
        return ProducerState(self.producer_id, epoch, self.coordinator_epoch, timestamp, first_offset, batches)

    def ended(self, epoch: int, coordinator_epoch: int, timestamp: int) -> "ProducerState":
        """Return the state after the marker that ends its transaction."""
        batches = self.batches if epoch == self.epoch else ()
        return ProducerState(self.producer_id, epoch, coordinator_epoch, timestamp, NO_OFFSET, batches)


def followed(
    current: ProducerState | None,
    header: BatchHeader,
    last_offset: int,
    timestamp: int,
    *,
    may_begin: bool = False,
    has_sequence: bool = True,
) -> ProducerState:
    """Validate a batch that is not a duplicate against the current state; return the state after it.

    `may_begin`: it may begin a transaction, as verified by the coordinator. `has_sequence`: check its sequence.
    Raises OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTransactionStateError.
    """
    if header.attributes & TRANSACTIONAL_BIT and not may_begin and not continues_transaction(current, header):
        raise InvalidTransactionStateError(
            f"{_of(header)} is in no open transaction, and the coordinator has not verified that it may begin one"
        )
    if current is None:
        return ProducerState(header.producer_id).appended(header, last_offset, timestamp)
    if header.producer_epoch != current.epoch:
        _check_new_epoch(current, header, has_sequence=has_sequence)
    elif has_sequence and not current.expects(header.base_sequence):
        _refuse_sequence(current, header)
    if current.transaction_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
        raise InvalidTransactionStateError(f"{_of(header)} is outside the open transaction")
    return current.appended(header, last_offset, timestamp)


def continues_transaction(current: ProducerState | None, header: BatchHeader) -> bool:
    """Return whether a transaction of the batch's producer and epoch is open (UnifiedLog.hasOngoingTransaction)."""
    return current is not None and current.transaction_first_offset >= 0 and current.epoch == header.producer_epoch


def _check_new_epoch(current: ProducerState, header: BatchHeader, *, has_sequence: bool) -> None:
    if header.producer_epoch < current.epoch:
        raise InvalidProducerEpochError(f"{_of(header)}: the producer's epoch is now {current.epoch}")
    if has_sequence and header.base_sequence:
        raise OutOfOrderSequenceError(f"{_of(header)}: a new epoch (after {current.epoch}) begins with sequence 0")


def _refuse_sequence(current: ProducerState, header: BatchHeader) -> NoReturn:
    expected = current.last_sequence + 1 & MAX_SEQUENCE
    raise OutOfOrderSequenceError(f"{_of(header)}: expected sequence {expected}")


def _of(header: BatchHeader) -> str:
    return f"batch of producer {header.producer_id}, epoch {header.producer_epoch}, sequence {header.base_sequence}"
