"""EndTxn: the result of a commit or abort request in each state.

Before KIP-890 (versions 0 to 4 of the request) the epoch must be the current one, and a retry is recognized by the
state:

                    commit                    abort
    Ongoing         decide                    decide
    PrepareCommit   CONCURRENT_TRANSACTIONS   INVALID_TXN_STATE
    PrepareAbort    INVALID_TXN_STATE         CONCURRENT_TRANSACTIONS
    CompleteCommit  done                      INVALID_TXN_STATE
    CompleteAbort   INVALID_TXN_STATE         done
    Empty           INVALID_TXN_STATE         INVALID_TXN_STATE

With KIP-890 (version 5) every end raises the epoch, so a retry is recognized by its epoch, one below the current one
(or the last one of the previous producer id), and an abort is always possible:

                    commit, retry      commit, current    abort, retry       abort, current
    Ongoing         PRODUCER_FENCED    decide             PRODUCER_FENCED    decide
    PrepareCommit   CONCURRENT_...     PRODUCER_FENCED    INVALID_TXN_STATE  PRODUCER_FENCED
    PrepareAbort    INVALID_TXN_STATE  PRODUCER_FENCED    CONCURRENT_...     PRODUCER_FENCED
    CompleteCommit  done               INVALID_TXN_STATE  INVALID_TXN_STATE  decide
    CompleteAbort   INVALID_TXN_STATE  INVALID_TXN_STATE  done               decide
    Empty           PRODUCER_FENCED    INVALID_TXN_STATE  PRODUCER_FENCED    decide

While a transition is being written every request is answered with CONCURRENT_TRANSACTIONS: with KIP-890 before the
producer is checked (it may be the one of the transition), else after it.

Source: kafka.coordinator.transaction.TransactionCoordinator.endTransaction, endTransactionWithTV1.
"""

from typing import Final

from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.metadata import LAST_CLIENT_EPOCH, PREPARED, Metadata, State
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.markers import Outcome

DECIDE: Final = None  # a result besides error codes; NONE: already done

_DONE = {State.COMPLETE_COMMIT: Outcome.COMMIT, State.COMPLETE_ABORT: Outcome.ABORT}
_DECIDED = {State.PREPARE_COMMIT: Outcome.COMMIT, State.PREPARE_ABORT: Outcome.ABORT}


def check_end_v0(metadata: Metadata, *, is_changing: bool, producer: Producer, outcome: Outcome) -> ErrorCode | None:
    """Return DECIDE, or the code that answers an EndTxn of versions 0 to 4.

    `is_changing`: a transition is being written.
    """
    if metadata.producer_id != producer.id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if metadata.producer_epoch != producer.epoch:
        return ErrorCode.PRODUCER_FENCED
    if is_changing:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if metadata.state is State.ONGOING:
        return DECIDE
    if _DONE.get(metadata.state) is outcome:
        return ErrorCode.NONE
    return _in_preparation(metadata, outcome)


def check_end_v5(metadata: Metadata, *, is_changing: bool, producer: Producer, outcome: Outcome) -> ErrorCode | None:
    """Return DECIDE, or the code that answers an EndTxn of version 5."""
    if is_changing:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    state = metadata.state
    is_first_of_next_id = metadata.producer_epoch == 0 and metadata.previous_producer_id == producer.id
    has_moved_on = is_first_of_next_id and producer.epoch == LAST_CLIENT_EPOCH
    is_retry = has_moved_on or metadata.producer_epoch == producer.epoch + 1
    if metadata.producer_id != producer.id and not has_moved_on:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if not _is_valid(metadata, producer, is_retry=is_retry):
        return ErrorCode.PRODUCER_FENCED
    if state in PREPARED:
        return _in_preparation(metadata, outcome)
    if is_retry:
        return ErrorCode.NONE if _DONE.get(state) is outcome else ErrorCode.INVALID_TXN_STATE
    return DECIDE if state is State.ONGOING or outcome is Outcome.ABORT else ErrorCode.INVALID_TXN_STATE


def _is_valid(metadata: Metadata, producer: Producer, *, is_retry: bool) -> bool:
    """Return whether a client may have this epoch in this state."""
    is_present = metadata.producer_epoch == producer.epoch
    if metadata.state in PREPARED:
        return metadata.producer_epoch == producer.epoch + 1
    return is_present or (is_retry and metadata.state in _DONE)


def _in_preparation(metadata: Metadata, outcome: Outcome) -> ErrorCode:
    is_same = _DECIDED.get(metadata.state) is outcome
    return ErrorCode.CONCURRENT_TRANSACTIONS if is_same else ErrorCode.INVALID_TXN_STATE
