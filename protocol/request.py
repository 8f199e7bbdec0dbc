"""Neutral requests: both wire formats decode into these values, and the handlers take them.

Values are immutable, keyword-only `msgspec.Struct`s, so msgspec validates a decoded map in one C call and its error
names the field. Timestamps are milliseconds since the epoch, durations milliseconds, sizes bytes.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

# Kafka's max.partition.fetch.bytes; a consumer may hold this much per partition
DEFAULT_PARTITION_FETCH_BYTES = 1 << 20
DEFAULT_FETCH_BYTES = 50 << 20  # Kafka's fetch.max.bytes
LATEST_TIMESTAMP: Final = -1  # ListOffsets: the offset of the next record
EARLIEST_TIMESTAMP: Final = -2  # ListOffsets: the log start offset
MAX_TIMESTAMP: Final = -3  # ListOffsets: the record with the greatest timestamp (KIP-734)

Int16 = Annotated[int, Meta(ge=-(1 << 15), lt=1 << 15)]
Int32 = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Size32 = Annotated[int, Meta(ge=0, lt=1 << 31)]

# Limits on the memory and time for decoding one request, checked before an array is decoded: decoded elements take 20
# times the memory of their bytes, and up to 1 us each on the event loop.
MAX_ENTRIES = 10_000
MAX_SETTINGS = 100  # per topic; more than the number of settings

T = TypeVar("T")
Entries = Annotated[tuple[T, ...], Meta(max_length=MAX_ENTRIES)]
TextSettings = Annotated[dict[str, T], Meta(max_length=MAX_SETTINGS)]


class Value(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base class of all requests and responses.

    Subclasses repeat the options because msgspec or mypy would not inherit them. Values never form reference cycles, so
    the garbage collector does not track them (gc=False).
    """

    may_wait: ClassVar[bool] = False  # whether the response may depend on other clients (JoinGroup, SyncGroup)


class Isolation(StrEnum):
    """Isolation level of a fetch (Kafka's IsolationLevel)."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class HelloRequest(Value, frozen=True, kw_only=True, gc=False):
    """Open a native connection: the protocol versions the client supports, and its name for the logs.

    Must be the first request on the connection.
    """

    api: ClassVar[str] = "hello"
    versions: Entries[Int32]
    client: str = ""


class MetadataRequest(Value, frozen=True, kw_only=True, gc=False):
    """List topics, their partitions and leaders. `topics=None` lists all."""

    api: ClassVar[str] = "metadata"
    topics: Entries[str] | None = None
    auto_create: bool = False


class NewTopic(Value, frozen=True, kw_only=True, gc=False):
    """A topic to create; `partitions=-1` uses the broker's `num.partitions`.

    `replication_factor` -1, or unset: the broker's `default.replication.factor`.
    """

    name: str
    partitions: Int32 = -1
    replication_factor: Int32 | UnsetType = UNSET
    configs: TextSettings[str] = {}


class CreateTopicsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Create topics. Each succeeds or fails independently."""

    api: ClassVar[str] = "create_topics"
    topics: Entries[NewTopic]
    validate_only: bool = False


class DeleteTopicsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete topics and their data."""

    api: ClassVar[str] = "delete_topics"
    topics: Entries[str]


class DescribeTopicsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe topics: their settings, and the offsets and segments of each partition."""

    api: ClassVar[str] = "describe_topics"
    topics: Entries[str]


class TopicAlteration(Value, frozen=True, kw_only=True, gc=False):
    """Changes to a topic: settings (None resets a setting to the broker's default), and a higher partition count."""

    name: str
    configs: TextSettings[str | None] = {}
    partitions: Int32 | None = None


class AlterTopicsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Alter topics. Each succeeds or fails independently."""

    api: ClassVar[str] = "alter_topics"
    topics: Entries[TopicAlteration]


class PartitionRecords(Value, frozen=True, kw_only=True, gc=False):
    """Record batches for one partition: one or more complete batches of format version 2, back to back."""

    topic: str
    partition: Int32
    records: memoryview


class ProduceRequest(Value, frozen=True, kw_only=True, gc=False):
    """Append batches. acks 0: no response; 1: respond after the leader's append; -1: after all in-sync replicas'.

    With a `transactional_id`, the batches belong to its transaction, one for each partition. Native clients omit it
    otherwise, since older brokers do not know it.
    """

    api: ClassVar[str] = "produce"
    transactional_id: str | UnsetType | None = UNSET
    acks: Literal[-1, 0, 1] = -1
    timeout_ms: Size32 = 30_000
    partitions: Entries[PartitionRecords]

    @property
    def knows_zstd(self) -> bool:
        """Whether zstd batches are accepted (Kafka rejects them before Produce version 7, KIP-110)."""
        return True

    @property
    def is_transactional(self) -> bool:
        """Whether the request may hold batches of a transaction."""
        return isinstance(self.transactional_id, str)

    @property
    def is_one_batch_each(self) -> bool:
        """Whether a request may hold only one batch per partition."""
        return self.is_transactional


class FetchPartition(Value, frozen=True, kw_only=True, gc=False):
    """The offset to read one partition from, and the maximum size."""

    topic: str
    partition: Int32
    offset: Int64
    max_bytes: Int32 = DEFAULT_PARTITION_FETCH_BYTES


class FetchRequest(Value, frozen=True, kw_only=True, gc=False):
    """Read batches, waiting up to `max_wait_ms` for `min_bytes` to be available.

    The first batch of the first non-empty partition is returned complete even if it exceeds `max_bytes` (KIP-74).
    """

    api: ClassVar[str] = "fetch"
    partitions: Entries[FetchPartition]
    max_wait_ms: Size32 = 500
    min_bytes: Size32 = 1
    max_bytes: Size32 = DEFAULT_FETCH_BYTES
    isolation: Isolation = Isolation.READ_UNCOMMITTED


class OffsetQuery(Value, frozen=True, kw_only=True, gc=False):
    """A timestamp to look up in one partition, or one of the negative constants above."""

    topic: str
    partition: Int32
    timestamp: Int64


class ListOffsetsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Look up the first offset whose record has at least the given timestamp, per partition."""

    api: ClassVar[str] = "list_offsets"
    partitions: Entries[OffsetQuery]
    isolation: Isolation = Isolation.READ_UNCOMMITTED


Request: TypeAlias = (
    HelloRequest
    | MetadataRequest
    | CreateTopicsRequest
    | DeleteTopicsRequest
    | DescribeTopicsRequest
    | AlterTopicsRequest
    | ProduceRequest
    | FetchRequest
    | ListOffsetsRequest
)
