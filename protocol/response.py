"""Neutral responses: handlers return these values, and both wire formats encode them.

Entries have an `error` code and an optional human-readable `message`, and come in the order of the request's entries.
Timestamps are milliseconds since the epoch, sizes bytes. Encoders only take the `len()` of fetched records: they are
bytes, or file slices that the sender hands to sendfile.
"""

from collections.abc import Sized
from typing import TypeAlias

from msgspec import UNSET, UnsetType

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import Value


class ErrorResponse(Value, frozen=True, kw_only=True, gc=False):
    """The whole request failed: it could not be decoded or handled."""

    error: ErrorCode
    message: str | None = None


class HelloResponse(Value, frozen=True, kw_only=True, gc=False):
    """The native protocol version chosen for this connection, and the broker's limits."""

    version: int
    broker: str  # name and version, such as "warmlog/0.2.0"
    cluster_id: str
    node_id: int
    max_frame_bytes: int  # size limit of request frames


class PartitionMetadata(Value, frozen=True, kw_only=True, gc=False):
    """The leader and replicas of a partition; the leader is -1 if there is none.

    `eligible`: brokers that have all committed records without being in sync (KIP-966), unset if omitted.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    eligible: tuple[int, ...] | UnsetType = UNSET
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class TopicMetadata(Value, frozen=True, kw_only=True, gc=False):
    """A topic and its partitions. `topic_id` is in URL-safe base64, as in `partition.metadata`."""

    name: str
    topic_id: str | None = None
    partitions: tuple[PartitionMetadata, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class BrokerMetadata(Value, frozen=True, kw_only=True, gc=False):
    """A broker, its advertised address on the listener of the request, and its rack, unset if omitted."""

    node_id: int
    host: str
    port: int
    rack: str | UnsetType | None = UNSET


class MetadataResponse(Value, frozen=True, kw_only=True, gc=False):
    """Brokers and topics; topics in the order of the request, or by name if all were requested."""

    cluster_id: str
    controller: int
    brokers: tuple[BrokerMetadata, ...]
    topics: tuple[TopicMetadata, ...]


class CreatedTopic(Value, frozen=True, kw_only=True, gc=False):
    """The result of creating a topic; `partitions` is the number of its partitions."""

    name: str
    topic_id: str | None = None
    partitions: int = 0
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class CreateTopicsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of CreateTopicsRequest."""

    topics: tuple[CreatedTopic, ...]


class TopicResult(Value, frozen=True, kw_only=True, gc=False):
    """The result of deleting or altering a topic."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DeleteTopicsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of DeleteTopicsRequest."""

    topics: tuple[TopicResult, ...]


class AlterTopicsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of AlterTopicsRequest."""

    topics: tuple[TopicResult, ...]


class SegmentDescription(Value, frozen=True, kw_only=True, gc=False):
    """A segment holding offsets [base_offset, next_offset); `max_timestamp` is None if it has no records."""

    base_offset: int
    next_offset: int
    size: int
    offset_index_entries: int
    time_index_entries: int
    max_timestamp: int | None
    modified_ms: int
    active: bool


class PartitionDescription(Value, frozen=True, kw_only=True, gc=False):
    """One partition's offsets and segments, oldest first. Records below `flushed_offset` have been fsynced.

    An error with offsets of -1 means the partition is offline; an error with valid offsets means it rejects appends.
    """

    partition: int
    leader: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    flushed_offset: int
    size: int
    segments: tuple[SegmentDescription, ...]
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ConfigDescription(Value, frozen=True, kw_only=True, gc=False):
    """The effective value of a topic setting; `source` is "topic", "broker" or "default"."""

    name: str
    value: str
    source: str


class TopicDescription(Value, frozen=True, kw_only=True, gc=False):
    """The settings and partitions of a topic."""

    name: str
    topic_id: str | None = None
    configs: tuple[ConfigDescription, ...] = ()
    partitions: tuple[PartitionDescription, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeTopicsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of DescribeTopicsRequest."""

    topics: tuple[TopicDescription, ...]


class RecordError(Value, frozen=True, kw_only=True, gc=False):
    """A record rejected by its topic: its index in the batch, from 0, and the reason (KIP-467)."""

    index: int
    message: str


class ProducedPartition(Value, frozen=True, kw_only=True, gc=False):
    """The result of appending to one partition.

    `base_offset` is the first record's offset; `log_append_time` is -1 unless the topic uses LogAppendTime.
    `record_errors` lists the records (at most 100) that caused the rejection. `duplicate` is true if an idempotent
    producer already stored these batches at `base_offset`. Both are omitted from the encoded response when unset.
    """

    topic: str
    partition: int
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    record_errors: tuple[RecordError, ...] | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET


class ProduceResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of ProduceRequest."""

    partitions: tuple[ProducedPartition, ...]


class AbortedTransaction(Value, frozen=True, kw_only=True, gc=False):
    """An aborted transaction: a reader of committed records skips what its producer wrote from the offset on.

    It ends with the producer's next control batch.
    """

    producer_id: int
    first_offset: int


class FetchedPartition(Value, frozen=True, kw_only=True, gc=False):
    """Batches of one partition, back to back. The last may be incomplete: fetch it again from its base offset.

    `aborted_transactions`: for readers of committed records, the aborted transactions that overlap the batches; None
    for others.
    """

    topic: str
    partition: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    records: Sized = b""


class FetchResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of FetchRequest."""

    partitions: tuple[FetchedPartition, ...]


class ListedOffset(Value, frozen=True, kw_only=True, gc=False):
    """The offset and timestamp of the first matching record; both are -1 if there is none."""

    topic: str
    partition: int
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ListOffsetsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of ListOffsetsRequest."""

    partitions: tuple[ListedOffset, ...]


Response: TypeAlias = (
    ErrorResponse
    | HelloResponse
    | MetadataResponse
    | CreateTopicsResponse
    | DeleteTopicsResponse
    | DescribeTopicsResponse
    | AlterTopicsResponse
    | ProduceResponse
    | FetchResponse
    | ListOffsetsResponse
)
