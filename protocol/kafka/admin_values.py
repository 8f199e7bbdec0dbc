"""What only Kafka's tools ask: for directories and producers.

Owns: values, like protocol/kafka/values.py. Must not know: layouts.
"""

from typing import ClassVar

from protocol.errors import ErrorCode
from protocol.groups import TopicPartition
from protocol.request import Value
from protocol.response import TopicMetadata


class DescribeLogDirsRequest(Value, frozen=True, kw_only=True, gc=False):
    """What lies in the data directories; `partitions`: of which, None: of all."""

    api: ClassVar[str] = "describe_log_dirs"
    partitions: tuple[TopicPartition, ...] | None = None


class LogDirPartition(Value, frozen=True, kw_only=True, gc=False):
    """A partition in a directory: bytes of its segments, and how far its log end is past the high watermark.

    `is_future`: a copy that will take the place of another directory's.
    """

    topic: str
    partition: int
    size: int
    offset_lag: int = 0
    is_future: bool = False


class DescribedLogDir(Value, frozen=True, kw_only=True, gc=False):
    """A data directory by its absolute path; bytes of its volume, -1: not known.

    `is_cordoned`: takes no new partitions.
    """

    path: str
    partitions: tuple[LogDirPartition, ...] = ()
    total_bytes: int = -1
    usable_bytes: int = -1
    is_cordoned: bool = False
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeLogDirsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per directory. Partitions that were asked for and are in none of them are left out, as in Kafka."""

    log_dirs: tuple[DescribedLogDir, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class LogDirTarget(Value, frozen=True, kw_only=True, gc=False):
    """The absolute path of a data directory, and the partitions that are to lie in it."""

    path: str
    partitions: tuple[TopicPartition, ...]


class AlterReplicaLogDirsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Move partitions to other data directories of this broker (KIP-113)."""

    api: ClassVar[str] = "alter_replica_log_dirs"
    targets: tuple[LogDirTarget, ...]


class BegunMove(Value, frozen=True, kw_only=True, gc=False):
    """Whether a partition is on its way."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE


class AlterReplicaLogDirsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per partition asked for, in that order."""

    partitions: tuple[BegunMove, ...]


class DescribeProducersRequest(Value, frozen=True, kw_only=True, gc=False):
    """Which idempotent and transactional producers partitions know."""

    api: ClassVar[str] = "describe_producers"
    partitions: tuple[TopicPartition, ...]


class ActiveProducer(Value, frozen=True, kw_only=True, gc=False):
    """A producer as a partition's log knows it; -1: none, or not known. `last_timestamp`: ms since the epoch."""

    producer_id: int
    producer_epoch: int
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    transaction_start_offset: int = -1


class DescribedProducers(Value, frozen=True, kw_only=True, gc=False):
    """One partition's producers."""

    topic: str
    partition: int
    producers: tuple[ActiveProducer, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeProducersResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per partition asked for, in that order."""

    partitions: tuple[DescribedProducers, ...]


class ListTransactionsRequest(Value, frozen=True, kw_only=True, gc=False):
    """List the transactional ids in one of these states; empty: in any (KIP-664)."""

    api: ClassVar[str] = "list_transactions"
    states: tuple[str, ...]


class ListTransactionsResponse(Value, frozen=True, kw_only=True, gc=False):
    """No transactional ids, and the names that are not of states."""

    error: ErrorCode = ErrorCode.NONE
    unknown_states: tuple[str, ...] = ()
    message: str | None = None


class DescribeTopicPartitionsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe partitions of topics, of all if none is named, at most `limit` in one reply (KIP-966).

    `cursor` is the topic and partition at which the reply begins, of the reply before.
    """

    api: ClassVar[str] = "describe_topic_partitions"
    topics: tuple[str, ...] = ()
    limit: int = 2000
    cursor: tuple[str, int] | None = None


class DescribeTopicPartitionsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Topics by name, and where the next reply begins if there is more."""

    topics: tuple[TopicMetadata, ...] = ()
    next_cursor: tuple[str, int] | None = None


class ListConfigResourcesRequest(Value, frozen=True, kw_only=True, gc=False):
    """List what has settings, of these types; empty: of all."""

    api: ClassVar[str] = "list_config_resources"
    types: tuple[int, ...] = ()


class ListConfigResourcesResponse(Value, frozen=True, kw_only=True, gc=False):
    """Resources as (type, name)."""

    resources: tuple[tuple[int, str], ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
