"""The neutral responses: what handlers return and both wire formats encode.

Owns: one value type per response. Must not know: sockets or files. The records of a fetch are a sequence of things of
which an encoder uses nothing but `len()`: bytes, or slices of files that the sender passes to the kernel (that is the
seam for sendfile).

Every item carries `error` (an ErrorCode; 0 is fine) and `message`, a sentence for people, None where there is nothing
to say. Times are milliseconds since the epoch, sizes bytes.
"""

from collections.abc import Sized
from typing import TypeAlias

from msgspec import UNSET, UnsetType

from protocol.errors import ErrorCode
from protocol.request import Value


class ErrorResponse(Value, frozen=True, kw_only=True, gc=False):
    """A request that failed as a whole: it could not be understood, or the broker could not answer it."""

    error: ErrorCode
    message: str | None = None


class HelloResponse(Value, frozen=True, kw_only=True, gc=False):
    """The version of the native protocol that this connection speaks from here on, and the limits to keep."""

    version: int
    broker: str  # name and version, as "warmlog/0.1.0"
    cluster_id: str
    node_id: int
    max_frame_bytes: int  # the longest request frame accepted


class PartitionMetadata(Value, frozen=True, kw_only=True, gc=False):
    """Where a partition lives; its leader is -1 while no replica can be served."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class TopicMetadata(Value, frozen=True, kw_only=True, gc=False):
    """A topic and its partitions. `topic_id` is the url-safe base64 form of the id, as in `partition.metadata`."""

    name: str
    topic_id: str | None = None
    partitions: tuple[PartitionMetadata, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class BrokerMetadata(Value, frozen=True, kw_only=True, gc=False):
    """A broker and the address at which clients of the asking listener reach it."""

    node_id: int
    host: str
    port: int


class MetadataResponse(Value, frozen=True, kw_only=True, gc=False):
    """The answer to a MetadataRequest, topics in the order asked for (all: by name)."""

    cluster_id: str
    controller: int
    brokers: tuple[BrokerMetadata, ...]
    topics: tuple[TopicMetadata, ...]


class CreatedTopic(Value, frozen=True, kw_only=True, gc=False):
    """What became of one topic to create; partitions is its count."""

    name: str
    topic_id: str | None = None
    partitions: int = 0
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class CreateTopicsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per topic asked for, in that order."""

    topics: tuple[CreatedTopic, ...]


class TopicResult(Value, frozen=True, kw_only=True, gc=False):
    """What became of one topic to delete or alter."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DeleteTopicsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per topic asked for, in that order."""

    topics: tuple[TopicResult, ...]


class AlterTopicsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per topic asked for, in that order."""

    topics: tuple[TopicResult, ...]


class SegmentDescription(Value, frozen=True, kw_only=True, gc=False):
    """One segment.

    Offsets [base_offset, next_offset), bytes, index entries in use, and its times (None where it has no record).
    """

    base_offset: int
    next_offset: int
    size: int
    offset_index_entries: int
    time_index_entries: int
    max_timestamp: int | None
    modified_ms: int
    active: bool


class PartitionDescription(Value, frozen=True, kw_only=True, gc=False):
    """One partition's offsets and segments, oldest first. `flushed_offset`: what lies below it has been fsynced.

    With an error and offsets of -1 it cannot be served; with an error and its offsets it only takes no appends for now.
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
    """A topic setting as it is in force.

    Its value, and whether it was set on the topic ("topic"), on the broker ("broker") or nowhere ("default").
    """

    name: str
    value: str
    source: str


class TopicDescription(Value, frozen=True, kw_only=True, gc=False):
    """A topic in detail."""

    name: str
    topic_id: str | None = None
    configs: tuple[ConfigDescription, ...] = ()
    partitions: tuple[PartitionDescription, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeTopicsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per topic asked for, in that order."""

    topics: tuple[TopicDescription, ...]


class RecordError(Value, frozen=True, kw_only=True, gc=False):
    """A record that its topic does not take: its index in the batch, from 0, and why (KIP-467)."""

    index: int
    message: str


class ProducedPartition(Value, frozen=True, kw_only=True, gc=False):
    """What became of the batches for one partition.

    `base_offset`: the first record's; `log_append_time`: -1 unless the topic stamps it. `record_errors`: the records
    for whose sake all were refused (the first hundred); not there, on the wire neither, where it is for other reasons.
    `duplicate`: an idempotent producer had stored all of it before, at `base_offset`; not there where it had not.
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
    """One entry per partition asked for, in that order."""

    partitions: tuple[ProducedPartition, ...]


class FetchedPartition(Value, frozen=True, kw_only=True, gc=False):
    """A slice of one partition: batches end to end; the last one may be cut (ask again from its first offset)."""

    topic: str
    partition: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    records: Sized = b""


class FetchResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per partition asked for, in that order."""

    partitions: tuple[FetchedPartition, ...]


class FoundOffset(Value, frozen=True, kw_only=True, gc=False):
    """The first record at or past the time asked for, with its own timestamp; both -1 where there is none."""

    topic: str
    partition: int
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ListOffsetsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per partition asked for, in that order."""

    partitions: tuple[FoundOffset, ...]


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
