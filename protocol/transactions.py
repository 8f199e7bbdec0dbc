"""Values of transactions shared by both wire formats, the coordinator and its log.

A response has exactly one entry per entry of the request, in the same order. Durations are milliseconds.
Source: org.apache.kafka.coordinator.transaction.TransactionState, org.apache.kafka.server.common.TransactionVersion.
"""

from enum import IntEnum
from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import NO_GENERATION, NO_MEMBER, CommittedPartition, OffsetToCommit, PartitionEntry
from warmlog.protocol.request import Entries, Int16, Int32, Int64, Value

DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000  # transaction.timeout.ms of Kafka's producer
TRANSACTION_FEATURE = "transaction.version"  # its levels are `TransactionVersion`
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
MAX_PRODUCER_EPOCH = (1 << 15) - 1
NO_TIMEOUT_MS = (1 << 31) - 1  # timeout of a two-phase transaction (KIP-939), which only the client may end


class TransactionState(IntEnum):
    """States of a transactional id, numbered as in stored records."""

    EMPTY = 0  # no transaction since the last InitProducerId
    ONGOING = 1
    PREPARE_COMMIT = 2  # the outcome is decided; its markers are being written
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4  # every partition has its marker
    COMPLETE_ABORT = 5
    DEAD = 6  # the id has expired and its tombstone is being written; never stored
    PREPARE_EPOCH_FENCE = 7  # Kafka's name for fencing in progress; never stored

    @property
    def label(self) -> str:
        """The name that tools display and filter by, such as `PrepareCommit`."""
        return self.name.title().replace("_", "")


class TransactionVersion(IntEnum):
    """Levels of the feature `transaction.version` (KIP-890)."""

    TV_0 = 0
    TV_1 = 1  # flexible records in `__transaction_state`
    TV_2 = 2  # every end of a transaction increments the producer epoch; Produce adds partitions

    @property
    def bumps_epochs(self) -> bool:
        """Whether every end of a transaction increments the producer epoch."""
        return self >= TransactionVersion.TV_2

    @property
    def record_version(self) -> int:
        """Version of the values in `__transaction_state`."""
        return 1 if self >= TransactionVersion.TV_1 else 0


class InitProducerIdRequest(Value, frozen=True, kw_only=True, gc=False):
    """Get a producer id: the one of a transactional id with its next epoch, otherwise a new one.

    A client that continues with an id sends it with its epoch; if the epoch has changed, another client has fenced it.
    """

    api: ClassVar[str] = "init_producer_id"
    transactional_id: str | None = None
    transaction_timeout_ms: Int32 = DEFAULT_TRANSACTION_TIMEOUT_MS
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int16 = NO_PRODUCER_EPOCH


class InitProducerIdResponse(Value, frozen=True, kw_only=True, gc=False):
    """The producer id and epoch to use."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class EndTxnRequest(Value, frozen=True, kw_only=True, gc=False):
    """Commit or abort a transaction."""

    api: ClassVar[str] = "end_txn"
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    commits: bool


class EndTxnResponse(Value, frozen=True, kw_only=True, gc=False):
    """The result of EndTxnRequest, and the producer id and epoch of the next transaction (version 5 and later)."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class TxnOffsetCommitRequest(Value, frozen=True, kw_only=True, gc=False):
    """Commit a group's offsets as part of a transaction; they take effect when it is committed."""

    api: ClassVar[str] = "txn_offset_commit"
    transactional_id: str
    group: str
    producer_id: Int64
    producer_epoch: Int16
    generation: Int32 = NO_GENERATION
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    partitions: Entries[OffsetToCommit]


class TxnOffsetCommitResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of TxnOffsetCommitRequest."""

    partitions: tuple[CommittedPartition, ...]


class DescribeTransactionsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe transactional ids (KIP-664)."""

    api: ClassVar[str] = "describe_transactions"
    transactional_ids: Entries[str]


class DescribedTransaction(Value, frozen=True, kw_only=True, gc=False):
    """The state of one transactional id. `started_ms`: ms since the epoch, -1 if no transaction has begun."""

    transactional_id: str
    error: ErrorCode = ErrorCode.NONE
    state: str = ""
    timeout_ms: int = 0
    started_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    partitions: tuple[PartitionEntry, ...] = ()


class DescribeTransactionsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of DescribeTransactionsRequest."""

    transactions: tuple[DescribedTransaction, ...]


class ListTransactionsRequest(Value, frozen=True, kw_only=True, gc=False):
    """List transactional ids that every filter selects; empty filters select all.

    `min_duration_ms` selects transactions that have been open for longer; negative: all. `pattern` is a regular
    expression that the whole id has to match (KIP-994, KIP-1152).
    """

    api: ClassVar[str] = "list_transactions"
    states: Entries[str] = ()
    producer_ids: Entries[Int64] = ()
    min_duration_ms: Int64 = -1
    pattern: str | None = None


class ListedTransaction(Value, frozen=True, kw_only=True, gc=False):
    """A transactional id, its producer and the name of its state."""

    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsResponse(Value, frozen=True, kw_only=True, gc=False):
    """The selected ids, and the state names of the request that do not exist."""

    error: ErrorCode = ErrorCode.NONE
    unknown_states: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()
    message: str | None = None


class DescribeProducersRequest(Value, frozen=True, kw_only=True, gc=False):
    """List the active idempotent and transactional producers of partitions."""

    api: ClassVar[str] = "describe_producers"
    partitions: Entries[PartitionEntry]


class ActiveProducer(Value, frozen=True, kw_only=True, gc=False):
    """A producer's state in a partition; -1 for unset or unknown values. `last_timestamp`: ms since the epoch."""

    producer_id: int
    producer_epoch: int
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    transaction_start_offset: int = -1


class DescribedProducers(Value, frozen=True, kw_only=True, gc=False):
    """The producers of one partition."""

    topic: str
    partition: int
    producers: tuple[ActiveProducer, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeProducersResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of DescribeProducersRequest, in its order."""

    partitions: tuple[DescribedProducers, ...]


class AddedPartition(Value, frozen=True, kw_only=True, gc=False):
    """The outcome for one partition."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE


class MarkersOfTransaction(Value, frozen=True, kw_only=True, gc=False):
    """A marker and the partitions to write it to. `version`: the transaction's level of `transaction.version`."""

    producer_id: Int64
    producer_epoch: Int16
    commits: bool
    partitions: Entries[PartitionEntry]
    coordinator_epoch: Int32
    version: Int32 = 0


class WriteTxnMarkersRequest(Value, frozen=True, kw_only=True, gc=False):
    """End transactions in partitions that this broker leads."""

    api: ClassVar[str] = "write_txn_markers"
    markers: Entries[MarkersOfTransaction]


class WrittenMarkers(Value, frozen=True, kw_only=True, gc=False):
    """The outcome of one marker in each of its partitions."""

    producer_id: int
    partitions: tuple[AddedPartition, ...]


class WriteTxnMarkersResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of WriteTxnMarkersRequest."""

    markers: tuple[WrittenMarkers, ...]
