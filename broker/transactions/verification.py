"""Translate error codes of the transaction coordinator for Produce and TxnOffsetCommit (KIP-890).

A transactional batch of a producer without an open transaction in the partition is appended only after the coordinator
has agreed. Its errors are translated to codes that the client can handle.

Source: org.apache.kafka.server.transaction.AddPartitionsToTxnManager, kafka.server.ReplicaManager (Kafka 4.3.1).
"""

from enum import IntEnum

from warmlog.protocol.errors import ErrorCode


class TransactionSupport(IntEnum):
    """The part of KIP-890 that a client supports, by the version of its request."""

    VERIFIED = 0  # adds partitions beforehand
    ABORTABLE = 1  # the same, and handles TRANSACTION_ABORTABLE
    ADDING = 2  # never adds partitions: the first batch adds its partition


_FIRST_VERSIONS = {"produce": (11, 12), "txn_offset_commit": (4, 5)}

# The coordinator may soon answer differently. Old clients retry this code without refreshing metadata.
_PASSING = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def support_of(api: str, version: int) -> TransactionSupport:
    """Return the client's support, by its request. `api`: `produce` or `txn_offset_commit`."""
    abortable, adding = _FIRST_VERSIONS[api]
    if version >= adding:
        return TransactionSupport.ADDING
    return TransactionSupport.ABORTABLE if version >= abortable else TransactionSupport.VERIFIED


def produce_error(error: ErrorCode, support: TransactionSupport) -> ErrorCode:
    """Translate the coordinator's error for a partition to the code that rejects its batch."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and support is TransactionSupport.VERIFIED:
        return ErrorCode.INVALID_TXN_STATE
    is_busy = error is ErrorCode.CONCURRENT_TRANSACTIONS and support is not TransactionSupport.ADDING
    return ErrorCode.NOT_ENOUGH_REPLICAS if is_busy or error in _PASSING else error


def offset_commit_error(error: ErrorCode, support: TransactionSupport) -> ErrorCode:
    """Translate the coordinator's error to the code of TxnOffsetCommit (GroupCoordinatorService)."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and support is TransactionSupport.VERIFIED:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error is ErrorCode.NETWORK_EXCEPTION else error
