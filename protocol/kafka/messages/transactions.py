"""Idempotent and transactional producers.

InitProducerId (0 to 5), AddPartitionsToTxn (0 to 5), AddOffsetsToTxn (0 to 4), EndTxn (0 to 5),
WriteTxnMarkers (1 and 2), TxnOffsetCommit (0 to 6), DescribeTransactions (0), ListTransactions (0 to 2),
DescribeProducers (0).

Clients of AddPartitionsToTxn use versions up to 3, for one transaction; brokers use later ones, for several.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import CommittedPartition, PartitionEntry
from warmlog.protocol.kafka.codec.schema import (
    BOOLEAN,
    ERROR,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TOPIC_ID,
    Array,
    Field,
    Flat,
    Struct,
    array,
    flat,
)
from warmlog.protocol.kafka.messages.common import (
    ERROR_CODE,
    OPTIONAL_FAILURE,
    THROTTLE_TIME,
    Outcomes,
    refused,
    refused_each,
    refused_partitions,
    since,
)
from warmlog.protocol.kafka.messages.groups.offsets import IdentifiedOffset
from warmlog.protocol.request import Value
from warmlog.protocol.response import ErrorResponse
from warmlog.protocol.transactions import (
    AddedPartition,
    DescribedProducers,
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    MarkersOfTransaction,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarkers,
)


class PartitionsOfTransaction(Value, frozen=True, kw_only=True, gc=False):
    """A producer and partitions to add to its transaction; with `verify_only`, to look up in it (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool = False
    partitions: tuple[PartitionEntry, ...]


class AddPartitionsToTxnRequest(Value, frozen=True, kw_only=True, gc=False):
    """Add partitions to transactions. `is_batched`: sent by a broker (version 4 and later), for several producers."""

    api: ClassVar[str] = "add_partitions_to_txn"
    transactions: tuple[PartitionsOfTransaction, ...]
    is_batched: bool = True


class AddedPartitions(Value, frozen=True, kw_only=True, gc=False):
    """The results for the partitions of one transaction."""

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


_FIRST_BATCHED = 4
# Errors sent instead to clients older than a version.
_BEFORE_FENCED: Mapping[int, Mapping[int, int]] = {2: {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}}
_BEFORE_UNKNOWN_GROUP: Mapping[int, int] = {ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.ILLEGAL_GENERATION}
_BEFORE_LOADING: Mapping[int, Mapping[int, int]] = {
    2: {**_BEFORE_UNKNOWN_GROUP, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE},
    6: _BEFORE_UNKNOWN_GROUP,
}
_CLIENT_ERROR = Field("error_code", ERROR, attr="error", before=_BEFORE_FENCED)
_TRANSACTIONAL_ID = Field("transactional_id", STRING)
_PRODUCER = (Field("producer_id", INT64), Field("producer_epoch", INT16))
_REFUSED_PARTITIONS = Outcomes("partitions", AddedPartition, "topic", "partition")


def _partitions(name: str = "partitions") -> Flat:
    return flat(Field("name", STRING, attr="topic"), Field(name, Array(INT32), attr="partition"), into=PartitionEntry)


def _sorted(transaction: Any, *_: Any) -> list[PartitionEntry]:
    """Sort the partitions of a transaction by topic, so that each topic is named once."""
    return sorted(transaction.partitions, key=lambda partition: partition.topic)


# -- InitProducerId --

PRODUCER_REQUEST = Struct(
    Field("transactional_id", STRING, nullable=0),
    Field("transaction_timeout_ms", INT32),
    Field("producer_id", INT64, since=3, default=-1),
    Field("producer_epoch", INT16, since=3, default=-1),
    into=InitProducerIdRequest,
)
PRODUCER_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "error_code",
        ERROR,
        attr="error",
        # the error that older clients know for a fenced producer
        before={4: {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}},
    ),
    Field("producer_id", INT64, default=-1),
    Field("producer_epoch", INT16),
)
failed_producer = refused(InitProducerIdResponse)


# -- AddPartitionsToTxn --


def _add_request(*, version: int, transactions: Any = (), **single: Any) -> AddPartitionsToTxnRequest:
    if version >= _FIRST_BATCHED:
        return AddPartitionsToTxnRequest(transactions=transactions)
    return AddPartitionsToTxnRequest(transactions=(PartitionsOfTransaction(**single),), is_batched=False)


def _only(response: AddPartitionsToTxnResponse, *_: Any) -> tuple[AddedPartition, ...]:
    """Return the results of the only transaction."""
    return tuple([partition for transaction in response.transactions for partition in transaction.partitions])


_RESULTS = flat(
    Field("name", STRING, attr="topic"),
    Field(
        "results_by_partition",
        array(
            Field("partition_index", INT32, attr="partition"),
            Field("partition_error_code", ERROR, attr="error", before=_BEFORE_FENCED),
        ),
    ),
    into=AddedPartition,
)
ADD_REQUEST = Struct(
    Field(
        "transactions",
        array(
            _TRANSACTIONAL_ID,
            *_PRODUCER,
            Field("verify_only", BOOLEAN, default=False),
            Field("topics", _partitions(), attr="partitions", get=_sorted),
            into=PartitionsOfTransaction,
        ),
        since=4,
    ),
    Field("v3_and_below_transactional_id", STRING, until=3, attr="transactional_id"),
    Field("v3_and_below_producer_id", INT64, until=3, attr="producer_id"),
    Field("v3_and_below_producer_epoch", INT16, until=3, attr="producer_epoch"),
    Field("v3_and_below_topics", _partitions(), until=3, attr="partitions"),
    into=_add_request,
    given=lambda version: {"version": version},
)
ADD_RESPONSE = Struct(
    THROTTLE_TIME,
    since(4, ERROR_CODE),
    Field(
        "results_by_transaction",
        array(_TRANSACTIONAL_ID, Field("topic_results", _RESULTS, attr="partitions"), into=AddedPartitions),
        since=4,
        attr="transactions",
    ),
    Field("results_by_topic_v3_and_below", _RESULTS, until=3, attr=None, get=_only),
    into=AddPartitionsToTxnResponse,
)
# versions for a single transaction have no top-level error
_failed_add_each = refused_each(
    AddPartitionsToTxnResponse, "transactions", AddedPartitions, "transactional_id", partitions=_REFUSED_PARTITIONS
)
_failed_add_whole = refused(AddPartitionsToTxnResponse)


def failed_add(request: AddPartitionsToTxnRequest, error: ErrorResponse) -> AddPartitionsToTxnResponse:
    """Respond with a top-level error, or up to version 3, which has none, with an error for each partition."""
    return (_failed_add_whole if request.is_batched else _failed_add_each)(request, error)


# -- AddOffsetsToTxn --

ADD_OFFSETS_REQUEST = Struct(
    _TRANSACTIONAL_ID, *_PRODUCER, Field("group_id", STRING, attr="group"), into=AddOffsetsToTxnRequest
)
ADD_OFFSETS_RESPONSE = Struct(THROTTLE_TIME, _CLIENT_ERROR)
failed_add_offsets = refused(AddOffsetsToTxnResponse)

# -- EndTxn --

END_REQUEST = Struct(_TRANSACTIONAL_ID, *_PRODUCER, Field("committed", BOOLEAN, attr="commits"), into=EndTxnRequest)
END_RESPONSE = Struct(
    THROTTLE_TIME,
    _CLIENT_ERROR,
    Field("producer_id", INT64, since=5, default=-1),
    Field("producer_epoch", INT16, since=5, default=-1),
)
failed_end = refused(EndTxnResponse)

# -- WriteTxnMarkers --

MARKERS_REQUEST = Struct(
    Field(
        "markers",
        array(
            *_PRODUCER,
            Field("transaction_result", BOOLEAN, attr="commits"),
            Field("topics", _partitions("partition_indexes"), attr="partitions", get=_sorted),
            Field("coordinator_epoch", INT32),
            Field("transaction_version", INT8, since=2, default=0, attr="version"),
            into=MarkersOfTransaction,
        ),
    ),
    into=WriteTxnMarkersRequest,
)
MARKERS_RESPONSE = Struct(
    Field(
        "markers",
        array(
            Field("producer_id", INT64),
            Field(
                "topics",
                flat(
                    Field("name", STRING, attr="topic"),
                    Field("partitions", array(Field("partition_index", INT32, attr="partition"), ERROR_CODE)),
                    into=AddedPartition,
                ),
                attr="partitions",
            ),
            into=WrittenMarkers,
        ),
    ),
    into=WriteTxnMarkersResponse,
)
failed_markers = refused_each(
    WriteTxnMarkersResponse, "markers", WrittenMarkers, "producer_id", partitions=_REFUSED_PARTITIONS
)


# -- TxnOffsetCommit --


def _requested(_: TxnOffsetCommitResponse, request: TxnOffsetCommitRequest) -> Sequence[Any]:
    return request.partitions


OFFSETS_REQUEST = Struct(
    _TRANSACTIONAL_ID,
    Field("group_id", STRING, attr="group"),
    *_PRODUCER,
    Field("generation_id_or_member_epoch", INT32, since=3, default=-1, attr="generation"),
    Field("member_id", STRING, since=3),
    Field("group_instance_id", STRING, since=3, nullable=3, default=None, attr="instance_id"),
    Field(
        "topics",
        flat(
            Field("name", STRING, until=5, attr="topic"),
            Field("topic_id", TOPIC_ID, since=6),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32, attr="partition"),
                    Field("committed_offset", INT64, attr="offset"),
                    Field("committed_leader_epoch", INT32, since=2, default=-1, attr="leader_epoch"),
                    Field("committed_metadata", STRING, nullable=0, attr="metadata", null=""),
                ),
            ),
            into=IdentifiedOffset,
        ),
        attr="partitions",
    ),
    into=TxnOffsetCommitRequest,
)
OFFSETS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "topics",
        flat(
            Field("name", STRING, until=5, attr="topic"),
            Field("topic_id", TOPIC_ID, since=6),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32, attr="partition"),
                    Field("error_code", ERROR, attr="error", before=_BEFORE_LOADING),
                ),
            ),
            keys=_requested,
        ),
        attr="partitions",
    ),
)
failed_offsets = refused_partitions(TxnOffsetCommitResponse, CommittedPartition)


# -- DescribeTransactions --

DESCRIBE_REQUEST = Struct(Field("transactional_ids", Array(STRING)), into=DescribeTransactionsRequest)
DESCRIBE_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "transaction_states",
        array(
            ERROR_CODE,
            _TRANSACTIONAL_ID,
            Field("transaction_state", STRING, attr="state"),
            Field("transaction_timeout_ms", INT32, attr="timeout_ms"),
            Field("transaction_start_time_ms", INT64, attr="started_ms"),
            *_PRODUCER,
            Field(
                "topics",
                flat(Field("topic", STRING), Field("partitions", Array(INT32), attr="partition")),
                attr="partitions",
            ),
        ),
        attr="transactions",
    ),
)
failed_describe = refused_each(
    DescribeTransactionsResponse, "transactions", DescribedTransaction, "transactional_id", of="transactional_ids"
)


# -- ListTransactions --

LIST_REQUEST = Struct(
    Field("state_filters", Array(STRING), attr="states"),
    Field("producer_id_filters", Array(INT64), attr="producer_ids"),
    Field("duration_filter", INT64, since=1, default=-1, attr="min_duration_ms"),
    Field("transactional_id_pattern", STRING, since=2, nullable=2, default=None, attr="pattern"),
    into=ListTransactionsRequest,
)
LIST_RESPONSE = Struct(
    THROTTLE_TIME,
    ERROR_CODE,
    Field("unknown_state_filters", Array(STRING), attr="unknown_states"),
    Field(
        "transaction_states",
        array(_TRANSACTIONAL_ID, Field("producer_id", INT64), Field("transaction_state", STRING, attr="state")),
        attr="transactions",
    ),
)
failed_list = refused(ListTransactionsResponse)


# -- DescribeProducers --

PRODUCERS_REQUEST = Struct(
    Field(
        "topics",
        flat(
            Field("name", STRING, attr="topic"),
            Field("partition_indexes", Array(INT32), attr="partition"),
            into=PartitionEntry,
        ),
        attr="partitions",
    ),
    into=DescribeProducersRequest,
)
PRODUCERS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "topics",
        flat(
            Field("name", STRING, attr="topic"),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32, attr="partition"),
                    *OPTIONAL_FAILURE,
                    Field(
                        "active_producers",
                        array(
                            Field("producer_id", INT64),
                            Field("producer_epoch", INT32),
                            Field("last_sequence", INT32, default=-1),
                            Field("last_timestamp", INT64, default=-1),
                            Field("coordinator_epoch", INT32),
                            Field("current_txn_start_offset", INT64, default=-1, attr="transaction_start_offset"),
                        ),
                        attr="producers",
                    ),
                ),
            ),
        ),
        attr="partitions",
    ),
)
failed_producers = refused_partitions(DescribeProducersResponse, DescribedProducers)
