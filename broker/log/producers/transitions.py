"""Transitions of a producer's state: validate a batch or a marker, and return the state after it.

    batch of                                            result
    an unknown producer, any sequence                   accepted, unless `VerificationGuards` knows of an earlier batch
    the current epoch, next sequence                    accepted
                       one of the last five batches     duplicate: already in the log, not written again
                       any other sequence               rejected as out of order
    a higher epoch, sequence 0                          accepted
                    any other sequence                  rejected as out of order
    a lower epoch                                       rejected: another instance of the producer has replaced it

A duplicate has the same epoch and the same first and last sequence as a batch of the state.

Source: org.apache.kafka.storage.internals.log.ProducerAppendInfo, UnifiedLog.analyzeAndValidateProducerState; KIP-98,
KIP-360 (unknown producers). As in current Kafka, batches older than the last five are out of order;
DUPLICATE_SEQUENCE_NUMBER is no longer used.
"""

from typing import NoReturn

from warmlog.broker.log.errors import InvalidProducerEpochError, InvalidTransactionStateError, OutOfOrderSequenceError
from warmlog.broker.log.producers.state import BATCHES_KEPT, MAX_SEQUENCE, NO_OFFSET, ProducerBatch, ProducerState
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT, BatchHeader


def expected_sequence(state: ProducerState) -> int:
    """Return the sequence with which the next batch in this epoch must begin."""
    batches = state.batches
    return batches[-1].last_sequence + 1 & MAX_SEQUENCE if batches else 0


def find_duplicate(state: ProducerState, header: BatchHeader) -> ProducerBatch | None:
    """Return the earlier batch of which this one is a duplicate, or None."""
    if header.producer_epoch == state.epoch:
        delta = header.last_offset_delta
        last_sequence = header.base_sequence + delta & MAX_SEQUENCE
        for batch in state.batches:
            if batch.last_sequence == last_sequence and batch.offset_delta == delta:
                return batch
    return None


def after_batch(state: ProducerState, header: BatchHeader, last_offset: int, timestamp: int) -> ProducerState:
    """Return the state after a batch of records, without validation. `timestamp` is its largest, in ms."""
    delta, epoch = header.last_offset_delta, header.producer_epoch
    batch = ProducerBatch(header.base_sequence + delta & MAX_SEQUENCE, last_offset, delta, timestamp)
    first_offset = state.transaction_first_offset
    if first_offset < 0 and header.attributes & TRANSACTIONAL_BIT:
        first_offset = last_offset - delta
    batches: tuple[ProducerBatch, ...] = (batch,)
    if epoch == state.epoch:
        batches = state.batches[1 - BATCHES_KEPT :] + batches
    return ProducerState(state.producer_id, epoch, state.coordinator_epoch, timestamp, first_offset, batches)


def with_earlier(state: ProducerState, earlier: ProducerState) -> ProducerState:
    """Return the state with the batches that an earlier state has before the first one of this state.

    The same state if they are of different epochs, if the earlier one does not have that batch, or has none before it.
    """
    known = [each.last_offset for each in earlier.batches]
    if not state.batches or earlier.epoch != state.epoch or state.batches[0].last_offset not in known[1:]:
        return state
    batches = (*earlier.batches[: known.index(state.batches[0].last_offset)], *state.batches)
    return ProducerState(
        state.producer_id,
        state.epoch,
        state.coordinator_epoch,
        state.last_timestamp,
        state.transaction_first_offset,
        batches[-BATCHES_KEPT:],
    )


def after_marker(state: ProducerState, epoch: int, coordinator_epoch: int, timestamp: int) -> ProducerState:
    """Return the state after the marker that ends its transaction, without validation."""
    batches = state.batches if epoch == state.epoch else ()
    return ProducerState(state.producer_id, epoch, coordinator_epoch, timestamp, NO_OFFSET, batches)


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
    is_transactional = header.attributes & TRANSACTIONAL_BIT != 0
    if is_transactional and not may_begin and not continues_transaction(current, header.producer_epoch):
        raise InvalidTransactionStateError(
            f"{_of(header)} is in no open transaction, and the coordinator has not verified that it may begin one"
        )
    if current is None:
        return after_batch(ProducerState(header.producer_id), header, last_offset, timestamp)
    if header.producer_epoch != current.epoch:
        _check_new_epoch(current, header, has_sequence=has_sequence)
    elif has_sequence and header.base_sequence != expected_sequence(current):
        _refuse_sequence(current, header)
    if current.transaction_first_offset >= 0 and not is_transactional:
        raise InvalidTransactionStateError(f"{_of(header)} is outside the open transaction")
    return after_batch(current, header, last_offset, timestamp)


def continues_transaction(current: ProducerState | None, epoch: int) -> bool:
    """Return whether a producer has an open transaction in this epoch (UnifiedLog.hasOngoingTransaction)."""
    return current is not None and current.transaction_first_offset >= 0 and current.epoch == epoch


def _check_new_epoch(current: ProducerState, header: BatchHeader, *, has_sequence: bool) -> None:
    if header.producer_epoch < current.epoch:
        raise InvalidProducerEpochError(f"{_of(header)}: the producer's epoch is now {current.epoch}")
    if has_sequence and header.base_sequence:
        raise OutOfOrderSequenceError(f"{_of(header)}: a new epoch (after {current.epoch}) begins with sequence 0")


def _refuse_sequence(current: ProducerState, header: BatchHeader) -> NoReturn:
    raise OutOfOrderSequenceError(f"{_of(header)}: expected sequence {expected_sequence(current)}")


def _of(header: BatchHeader) -> str:
    return f"batch of producer {header.producer_id}, epoch {header.producer_epoch}, sequence {header.base_sequence}"
