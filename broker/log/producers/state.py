"""One idempotent producer in one log: what it has appended last, and whether what it sends follows from that.

    a batch of a producer that is not known             begins its state, at any sequence
    with the epoch of its state, the next sequence      goes on
      one of the last five again                        is a duplicate: its records are in the log, it is not written
      any other sequence                                is out of order
    with a higher epoch, sequence 0                     begins anew; another sequence is out of order
    with a lower epoch                                  is refused: a newer producer has taken over

Sequences count records; after 2^31 - 1 comes 0. Which producers a log knows, and for how long, is in `producers`.

Invariants:
1. A state is never changed, only replaced.
2. Of a producer the last five batches are known, or as many as there were since its epoch began or it was read from a
   snapshot (which has the last one only).
3. A batch that is already there was appended with the same epoch and the same first and last sequence.

Source: org.apache.kafka.storage.internals.log.ProducerStateEntry, ProducerAppendInfo,
UnifiedLog.analyzeAndValidateProducerState; KIP-98, KIP-360 (a producer that is not known). Kafka does not answer
DUPLICATE_SEQUENCE_NUMBER any more: what is older than the last five batches is out of order.
"""

from typing import NoReturn

from msgspec import Struct

from broker.log.errors import InvalidProducerEpochError, InvalidTransactionStateError, OutOfOrderSequenceError
from protocol.records.layout import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, TRANSACTIONAL_BIT, BatchHeader

MAX_SEQUENCE = (1 << 31) - 1
BATCHES_KEPT = 5  # what a producer may have in flight while it keeps its order: max.in.flight.requests.per.connection
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1


def advanced(sequence: int, count: int) -> int:
    """The sequence so many records later (or earlier, with a negative count)."""
    return sequence + count & MAX_SEQUENCE


class ProducerBatch(Struct, frozen=True, gc=False):
    """A batch as its producer's state remembers it; `timestamp` is its largest, in ms."""

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
    """One producer in one log. `batches`: its last ones, oldest first, none older than its epoch.

    `last_timestamp`: of its last batch or of the marker that ended its transaction, ms. `coordinator_epoch`: of that
    marker. `transaction_first_offset`: where the transaction that is open began; -1 if none is.
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
        """Whether a batch that begins with this sequence comes next in this epoch."""
        batches = self.batches
        return (batches[-1].last_sequence + 1 & MAX_SEQUENCE if batches else 0) == sequence

    def find(self, header: BatchHeader) -> ProducerBatch | None:
        """The batch that is there already, if this one is a duplicate."""
        if header.producer_epoch == self.epoch:
            last_sequence = advanced(header.base_sequence, header.last_offset_delta)
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta:
                    return batch
        return None

    def appended(self, header: BatchHeader, last_offset: int, timestamp: int) -> "ProducerState":
        """The state after a batch of records, unchecked. `timestamp`: its largest, in ms."""
        delta, epoch = header.last_offset_delta, header.producer_epoch
        batch = ProducerBatch(advanced(header.base_sequence, delta), last_offset, delta, timestamp)
        first_offset = self.transaction_first_offset
        if first_offset < 0 and header.attributes & TRANSACTIONAL_BIT:
            first_offset = last_offset - delta
        batches = (*self.batches[1 - BATCHES_KEPT :], batch) if epoch == self.epoch else (batch,)
        return ProducerState(self.producer_id, epoch, self.coordinator_epoch, timestamp, first_offset, batches)

    def ended(self, epoch: int, coordinator_epoch: int, timestamp: int) -> "ProducerState":
        """The state after the marker that ends its transaction."""
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
    """Return the state after a batch, which must not be a duplicate.

    `may_begin`: it may be the first of a transaction, as the coordinator has agreed. `has_sequence`: its sequence is
    checked. Raises OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTransactionStateError unless it may be
    appended.
    """
    if header.attributes & TRANSACTIONAL_BIT and not may_begin and not continues_transaction(current, header):
        raise InvalidTransactionStateError(
            f"{_of(header)} belongs to no open transaction, and the coordinator has not agreed that it begins one"
        )
    if current is None:
        return ProducerState(header.producer_id).appended(header, last_offset, timestamp)
    if header.producer_epoch != current.epoch:
        _check_new_epoch(current, header, has_sequence=has_sequence)
    elif has_sequence and not current.expects(header.base_sequence):
        _refuse_sequence(current, header)
    if current.transaction_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
        raise InvalidTransactionStateError(f"{_of(header)} is outside the transaction that is open")
    return current.appended(header, last_offset, timestamp)


def continues_transaction(current: ProducerState | None, header: BatchHeader) -> bool:
    """Return whether a transaction of the batch's producer and epoch is open (UnifiedLog.hasOngoingTransaction)."""
    return current is not None and current.transaction_first_offset >= 0 and current.epoch == header.producer_epoch


def _check_new_epoch(current: ProducerState, header: BatchHeader, *, has_sequence: bool) -> None:
    if header.producer_epoch < current.epoch:
        raise InvalidProducerEpochError(f"{_of(header)}: the producer's epoch is {current.epoch} by now")
    if has_sequence and header.base_sequence:
        raise OutOfOrderSequenceError(f"{_of(header)}: after epoch {current.epoch} a new one begins with sequence 0")


def _refuse_sequence(current: ProducerState, header: BatchHeader) -> NoReturn:
    expected = current.last_sequence + 1 & MAX_SEQUENCE
    raise OutOfOrderSequenceError(f"{_of(header)}: the next sequence is {expected}")


def _of(header: BatchHeader) -> str:
    return f"a batch of producer {header.producer_id}, epoch {header.producer_epoch}, sequence {header.base_sequence}"
