"""Records of `__transaction_state`, in Kafka's format.

    key     int16 type, always 0
            string transactional id
    value   int16 version, 0 or 1, of which 1 is flexible; no value at all: the transactional id has expired
            int64 producer id
            int16 producer epoch
            int32 transaction timeout in ms
            int8  state (`TransactionState`)
            array, null in state Empty, of
                string topic, array of int32 partitions
            int64 time of the last change in ms
            int64 start of the transaction in ms, -1 before the first one
            tagged, since version 1:
                0  int64 previous producer id
                1  int64 next producer id, while the epochs of the current one are exhausted
                2  int16 transaction version of the client
                3  int16 epoch of the next producer id (KIP-939); skipped, never written

The last epoch, by which a retried InitProducerId is recognized, is not stored: after a change of coordinator the retry
is fenced, unless the end of a transaction increased the epoch.

Source: Kafka's TransactionLogKey.json and TransactionLogValue.json,
org.apache.kafka.coordinator.transaction.TransactionLog.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from warmlog.protocol.kafka.codec.bounds import MalformedError, UnwritableError
from warmlog.protocol.kafka.codec.engine import ENGINE
from warmlog.protocol.kafka.codec.schema import INT8, INT16, INT32, INT64, STRING, Array, Field, Struct, array
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.request import Value
from warmlog.protocol.transactions import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionState, TransactionVersion

NO_TIME = -1  # unset time in ms

_KEY_TYPE = 0
_FIRST_FLEXIBLE = 1
_LAST_VERSION = 1
_VERSION = struct.Struct(">h")
_UNREADABLE = (MalformedError, UnicodeDecodeError, struct.error, ValueError)
_NEVER_STORED = frozenset({TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE})


class TransactionKey(NamedTuple):
    """The key of a transactional id."""

    transactional_id: str


class UnknownKey(NamedTuple):
    """A key of a type that this release does not know."""

    type: int


class UnknownValue(NamedTuple):
    """A value of a version that this release does not know."""

    version: int


Key: TypeAlias = TransactionKey | UnknownKey


class StoredTransaction(Value, frozen=True, kw_only=True, gc=False):
    """State of a transactional id. Times in ms since the epoch."""

    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int
    started_ms: int = NO_TIME
    client_version: TransactionVersion = TransactionVersion.TV_0


class _Topic(NamedTuple):
    topic: str
    partition_ids: Sequence[int]


def _state(number: int) -> TransactionState:
    state = TransactionState(number)
    if state in _NEVER_STORED:
        raise MalformedError(f"state {state.label} is never stored")
    return state


def _pairs(topics: Iterable[_Topic]) -> frozenset[TopicPartition]:
    return frozenset((each.topic, index) for each in topics for index in each.partition_ids)


def _topics(stored: StoredTransaction, _: object, __: int) -> Sequence[_Topic] | None:
    if stored.state is TransactionState.EMPTY:
        return None
    return [
        _Topic(topic, [index for _, index in pairs])
        for topic, pairs in groupby(sorted(stored.partitions), key=lambda pair: pair[0])
    ]


_KEY = Struct(Field("transactional_id", STRING), into=TransactionKey)
_VALUE = Struct(
    Field("producer_id", INT64),
    Field("previous_producer_id", INT64, since=1, tag=0, default=NO_PRODUCER_ID),
    Field("next_producer_id", INT64, since=1, tag=1, default=NO_PRODUCER_ID),
    Field("producer_epoch", INT16),
    Field("next_producer_epoch", INT16, since=1, tag=3, default=NO_PRODUCER_EPOCH, attr=None),
    Field("transaction_timeout_ms", INT32, attr="timeout_ms"),
    Field("transaction_status", INT8, attr="state", convert=_state),
    Field(
        "transaction_partitions",
        array(Field("topic", STRING), Field("partition_ids", Array(INT32)), into=_Topic),
        nullable=0,
        null=frozenset(),
        attr="partitions",
        convert=_pairs,
        get=_topics,
    ),
    Field("transaction_last_update_timestamp_ms", INT64, attr="updated_ms"),
    Field("transaction_start_timestamp_ms", INT64, attr="started_ms"),
    Field(
        "client_transaction_version",
        INT16,
        since=1,
        tag=2,
        default=0,
        attr="client_version",
        convert=TransactionVersion,
    ),
    into=StoredTransaction,
)


def decode_transaction_key(data: bytes) -> Key:
    """Decode the key of a record. Raises MalformedError."""
    try:
        (kind,) = _VERSION.unpack_from(data)
        if kind != _KEY_TYPE:
            return UnknownKey(kind)
        key: TransactionKey = _read(_KEY, kind, data)
    except _UNREADABLE as error:
        raise MalformedError(f"not a key of a transaction record: {error}") from None
    return key


def encode_transaction_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id. Raises MalformedError for an id longer than 32,767 bytes."""
    return _encode(_KEY, _KEY_TYPE, TransactionKey(transactional_id))


def decode_transaction(data: bytes) -> StoredTransaction | UnknownValue:
    """Decode the state of a transactional id, of any version. Raises MalformedError."""
    try:
        (version,) = _VERSION.unpack_from(data)
        if not 0 <= version <= _LAST_VERSION:
            return UnknownValue(version)
        stored: StoredTransaction = _read(_VALUE, version, data)
    except _UNREADABLE as error:
        raise MalformedError(f"not a value of a transaction record: {error}") from None
    return stored


def encode_transaction(stored: StoredTransaction, level: TransactionVersion) -> bytes:
    """Encode a state in the record version of the broker's `transaction.version` level.

    Raises MalformedError for a topic name longer than 32,767 bytes.
    """
    return _encode(_VALUE, level.record_version, stored)


def _read(table: Struct, version: int, data: bytes) -> Any:
    reader = ENGINE.reader(table, version, flexible=table is _VALUE and version >= _FIRST_FLEXIBLE, bound=True)
    return reader.read(memoryview(data), _VERSION.size)[0]


def _encode(table: Struct, version: int, value: Any) -> bytes:
    writer = ENGINE.writer(table, version, flexible=table is _VALUE and version >= _FIRST_FLEXIBLE, bound=True)
    try:
        return writer.write(value, _VERSION.pack(version))
    except UnwritableError as error:
        raise MalformedError(f"cannot encode a transaction record: {error}") from None
