"""Requests and responses of Kafka's admin tools: log directories, producers, transactions, topic pages, resources."""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import TopicPartition
from warmlog.protocol.request import Value
from warmlog.protocol.response import TopicMetadata


class DescribeLogDirsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe the log directories and their partitions, or only the given ones."""

    api: ClassVar[str] = "describe_log_dirs"
    partitions: tuple[TopicPartition, ...] | None = None


class LogDirPartition(Value, frozen=True, kw_only=True, gc=False):
    """A partition in a directory: the bytes of its segments, and its log end offset minus the high watermark.

    `is_future`: a copy that will replace the partition in another directory.
    """

    topic: str
    partition: int
    size: int
    offset_lag: int = 0
    is_future: bool = False


class DescribedLogDir(Value, frozen=True, kw_only=True, gc=False):
    """A log directory by its absolute path; the bytes of its volume are -1 if unknown.

    A cordoned directory gets no new partitions.
    """

    path: str
    partitions: tuple[LogDirPartition, ...] = ()
    total_bytes: int = -1
    usable_bytes: int = -1
    is_cordoned: bool = False
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeLogDirsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per directory. Requested partitions that are in none of them are omitted, as in Kafka."""

    log_dirs: tuple[DescribedLogDir, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class LogDirTarget(Value, frozen=True, kw_only=True, gc=False):
    """The absolute path of a log directory, and the partitions to move to it."""

    path: str
    partitions: tuple[TopicPartition, ...]


class AlterReplicaLogDirsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Move partitions to other log directories of this broker (KIP-113)."""

    api: ClassVar[str] = "alter_replica_log_dirs"
    targets: tuple[LogDirTarget, ...]


class BegunMove(Value, frozen=True, kw_only=True, gc=False):
    """The result of starting to move a partition."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE


class AlterReplicaLogDirsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of AlterReplicaLogDirsRequest, in its order."""

    partitions: tuple[BegunMove, ...]


class DescribeTopicPartitionsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe up to `limit` partitions of these topics, or of all topics if empty (KIP-966).

    `cursor`, the topic and partition to start at, comes from the previous response.
    """

    api: ClassVar[str] = "describe_topic_partitions"
    topics: tuple[str, ...] = ()
    limit: int = 2000
    cursor: tuple[str, int] | None = None


class DescribeTopicPartitionsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Topics sorted by name, and the cursor for the next request if there are more."""

    topics: tuple[TopicMetadata, ...] = ()
    next_cursor: tuple[str, int] | None = None


class ListConfigResourcesRequest(Value, frozen=True, kw_only=True, gc=False):
    """List resources that have settings, of these types, or of all types if empty."""

    api: ClassVar[str] = "list_config_resources"
    types: tuple[int, ...] = ()


class ListConfigResourcesResponse(Value, frozen=True, kw_only=True, gc=False):
    """Resources as (type, name)."""

    resources: tuple[tuple[int, str], ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
