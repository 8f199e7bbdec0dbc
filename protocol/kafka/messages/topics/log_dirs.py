"""Log directories: DescribeLogDirs (1 to 5), AlterReplicaLogDirs (1 and 2)."""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.kafka.codec.schema import BOOLEAN, INT32, INT64, STRING, Array, Field, Struct, array, flat
from warmlog.protocol.kafka.messages.common import (
    ERROR_CODE,
    THROTTLE_TIME,
    refused,
    refused_partitions,
    since,
)
from warmlog.protocol.request import Value


class DescribeLogDirsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe the log directories and their partitions, or only the given ones."""

    api: ClassVar[str] = "describe_log_dirs"
    partitions: tuple[PartitionEntry, ...] | None = None


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
    partitions: tuple[PartitionEntry, ...]


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


LOG_DIRS_REQUEST = Struct(
    Field(
        "topics",
        flat(
            Field("topic", STRING),
            Field("partitions", Array(INT32), attr="partition"),
            into=PartitionEntry,
        ),
        nullable=0,
        attr="partitions",
    ),
    into=DescribeLogDirsRequest,
)
LOG_DIRS_RESPONSE = Struct(
    THROTTLE_TIME,
    since(3, ERROR_CODE),
    Field(
        "results",
        array(
            ERROR_CODE,
            Field("log_dir", STRING, attr="path"),
            Field(
                "topics",
                flat(
                    Field("name", STRING, attr="topic"),
                    Field(
                        "partitions",
                        array(
                            Field("partition_index", INT32, attr="partition"),
                            Field("partition_size", INT64, attr="size"),
                            Field("offset_lag", INT64),
                            Field("is_future_key", BOOLEAN, attr="is_future"),
                        ),
                    ),
                ),
                attr="partitions",
            ),
            Field("total_bytes", INT64, since=4, default=-1),
            Field("usable_bytes", INT64, since=4, default=-1),
            Field("is_cordoned", BOOLEAN, since=5),
        ),
        attr="log_dirs",
    ),
)
failed_log_dirs = refused(DescribeLogDirsResponse)  # before version 3 it can only be empty

ALTER_DIRS_REQUEST = Struct(
    Field(
        "dirs",
        array(
            Field("path", STRING),
            Field(
                "topics",
                flat(
                    Field("name", STRING, attr="topic"),
                    Field("partitions", Array(INT32), attr="partition"),
                    into=PartitionEntry,
                ),
                attr="partitions",
            ),
            into=LogDirTarget,
        ),
        attr="targets",
    ),
    into=AlterReplicaLogDirsRequest,
)
ALTER_DIRS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "results",
        flat(
            Field("topic_name", STRING, attr="topic"),
            Field("partitions", array(Field("partition_index", INT32, attr="partition"), ERROR_CODE)),
        ),
        attr="partitions",
    ),
)
failed_alter_dirs = refused_partitions(AlterReplicaLogDirsResponse, BegunMove, of="targets.partitions")
