"""Requests and responses of transactions that only Kafka's protocol has.

A response has exactly one entry per entry of the request, in the same order. Durations are milliseconds.
"""

from typing import ClassVar

from protocol.errors import ErrorCode
from protocol.groups import NO_GENERATION, NO_MEMBER, CommittedPartition, OffsetToCommit, TopicPartition
from protocol.request import Value
from protocol.transactions import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class PartitionsOfTransaction(Value, frozen=True, kw_only=True, gc=False):
    """A producer and partitions to add to its transaction; with `verify_only`, to look up in it (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool = False
    partitions: tuple[TopicPartition, ...]


class AddPartitionsToTxnRequest(Value, frozen=True, kw_only=True, gc=False):
    """Add partitions to transactions. `is_batched`: sent by a broker (version 4 and later), for several producers."""

    api: ClassVar[str] = "add_partitions_to_txn"
    transactions: tuple[PartitionsOfTransaction, ...]
    is_batched: bool = True


class AddedPartition(Value, frozen=True, kw_only=True, gc=False):
    """The outcome for one partition."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE


class AddedPartitions(Value, frozen=True, kw_only=True, gc=False):
    """The outcomes for one transaction."""

    transactional_id: str
    partitions: tuple[AddedPartition, ...]


class AddPartitionsToTxnResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of AddPartitionsToTxnRequest."""

    transactions: tuple[AddedPartitions, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class AddOffsetsToTxnRequest(Value, frozen=True, kw_only=True, gc=False):
    """Add the partition in which a group's offsets are stored to a transaction."""

    api: ClassVar[str] = "add_offsets_to_txn"
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group: str


class AddOffsetsToTxnResponse(Value, frozen=True, kw_only=True, gc=False):
    """The outcome of AddOffsetsToTxnRequest."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class EndTxnRequest(Value, frozen=True, kw_only=True, gc=False):
    """Commit or abort a transaction."""

    api: ClassVar[str] = "end_txn"
    transactional_id: str
    producer_id: int
    producer_epoch: int
    commits: bool


class EndTxnResponse(Value, frozen=True, kw_only=True, gc=False):
    """The outcome of EndTxnRequest, and the producer id and epoch of the next transaction (version 5 and later)."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class MarkersOfTransaction(Value, frozen=True, kw_only=True, gc=False):
    """A marker and the partitions to write it to. `version`: level of `transaction.version` of the transaction."""

    producer_id: int
    producer_epoch: int
    commits: bool
    partitions: tuple[TopicPartition, ...]
    coordinator_epoch: int
    version: int = 0


class WriteTxnMarkersRequest(Value, frozen=True, kw_only=True, gc=False):
    """End transactions in partitions that this broker leads."""

    api: ClassVar[str] = "write_txn_markers"
    markers: tuple[MarkersOfTransaction, ...]


class WrittenMarkers(Value, frozen=True, kw_only=True, gc=False):
    """The outcome of one marker in each of its partitions."""

    producer_id: int
    partitions: tuple[AddedPartition, ...]


class WriteTxnMarkersResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of WriteTxnMarkersRequest."""

    markers: tuple[WrittenMarkers, ...]


class TxnOffsetCommitRequest(Value, frozen=True, kw_only=True, gc=False):
    """Commit a group's offsets as part of a transaction: they count once it is committed."""

    api: ClassVar[str] = "txn_offset_commit"
    transactional_id: str
    group: str
    producer_id: int
    producer_epoch: int
    generation: int = NO_GENERATION
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    partitions: tuple[OffsetToCommit, ...]


class TxnOffsetCommitResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of TxnOffsetCommitRequest."""

    partitions: tuple[CommittedPartition, ...]


class DescribeTransactionsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe transactional ids (KIP-664)."""

    api: ClassVar[str] = "describe_transactions"
    transactional_ids: tuple[str, ...]


class DescribedTransaction(Value, frozen=True, kw_only=True, gc=False):
    """The state of one transactional id. `started_ms`: ms since the epoch, -1 if no transaction has begun."""

    transactional_id: str
    error: ErrorCode = ErrorCode.NONE
    state: str = ""
    timeout_ms: int = 0
    started_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    partitions: tuple[TopicPartition, ...] = ()


class DescribeTransactionsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of DescribeTransactionsRequest."""

    transactions: tuple[DescribedTransaction, ...]


class ListTransactionsRequest(Value, frozen=True, kw_only=True, gc=False):
    """List transactional ids that every filter selects; empty filters select all.

    `min_duration_ms` selects transactions that have been open for longer; negative: all. `pattern` is a regular
    expression that the whole id has to match (KIP-994, KIP-1152).
    """

    api: ClassVar[str] = "list_transactions"
    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    min_duration_ms: int = -1
    pattern: str | None = None


class ListedTransaction(Value, frozen=True, kw_only=True, gc=False):
    """A transactional id, its producer and the name of its state."""

    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsResponse(Value, frozen=True, kw_only=True, gc=False):
    """The ids selected, and the state names of the request that do not exist."""

    error: ErrorCode = ErrorCode.NONE
    unknown_states: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()
    message: str | None = None
