"""The neutral requests: what both wire formats decode into and what the handlers are given.

Owns: one value type per request. A value is immutable, keyword-only and slotted (`msgspec.Struct`), so that a decoded
map is checked against it in one call in C, with an error that names the field. Must not know: how a request is laid out
on a wire, who sent it, or who answers it.

Times are milliseconds since the epoch (int), durations milliseconds, sizes bytes, offsets record numbers.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct

# Kafka's max.partition.fetch.bytes: a consumer's memory is partitions times this
DEFAULT_PARTITION_FETCH_BYTES = 1 << 20
DEFAULT_FETCH_BYTES = 50 << 20  # Kafka's fetch.max.bytes
LATEST_TIMESTAMP = -1  # ListOffsets: the end of the log (what the next record gets)
EARLIEST_TIMESTAMP = -2  # ListOffsets: the first offset still there
MAX_TIMESTAMP = -3  # ListOffsets: the record with the greatest timestamp (KIP-734)

Int32 = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Size32 = Annotated[int, Meta(ge=0, lt=1 << 31)]

# Bounds on what one request can make a broker hold and do, checked before an array is decoded: its elements take 20
# times their bytes, and are decoded in one go, at up to 1 us each.
MAX_ENTRIES = 10_000
MAX_SETTINGS = 100  # of one topic in a request; there are not so many names

T = TypeVar("T")
Entries = Annotated[tuple[T, ...], Meta(max_length=MAX_ENTRIES)]
TextSettings = Annotated[dict[str, T], Meta(max_length=MAX_SETTINGS)]


class Value(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Root of all request and response values; each repeats its options, which msgspec or mypy would not inherit.

    A value cannot be part of a cycle, so the garbage collector need not know of it (gc=False).
    """

    may_wait: ClassVar[bool] = False  # whether a request's answer may take as long as others let it


class Isolation(StrEnum):
    """How far a reader may see."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class HelloRequest(Value, frozen=True, kw_only=True, gc=False):
    """First on each native connection.

    Which versions of the native protocol the client speaks, and its name for the logs.
    """

    api: ClassVar[str] = "hello"
    versions: Entries[Int32]
    client: str = ""


class MetadataRequest(Value, frozen=True, kw_only=True, gc=False):
    """Which topics there are, and where. `topics=None` asks for all."""

    api: ClassVar[str] = "metadata"
    topics: Entries[str] | None = None
    auto_create: bool = False


class NewTopic(Value, frozen=True, kw_only=True, gc=False):
    """A topic to create; `partitions=-1` takes the broker's `num.partitions`."""

    name: str
    partitions: Int32 = -1
    configs: TextSettings[str] = {}


class CreateTopicsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Create topics, each on its own: one that fails does not stop the others."""

    api: ClassVar[str] = "create_topics"
    topics: Entries[NewTopic]
    validate_only: bool = False


class DeleteTopicsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete topics and their data."""

    api: ClassVar[str] = "delete_topics"
    topics: Entries[str]


class DescribeTopicsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Settings of topics, and for each partition its offsets, and its segments with sizes and times."""

    api: ClassVar[str] = "describe_topics"
    topics: Entries[str]


class TopicAlteration(Value, frozen=True, kw_only=True, gc=False):
    """Changes to a topic: settings to set (None resets one to the broker's default), and a larger partition count."""

    name: str
    configs: TextSettings[str | None] = {}
    partitions: Int32 | None = None


class AlterTopicsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Change topics, each on its own."""

    api: ClassVar[str] = "alter_topics"
    topics: Entries[TopicAlteration]


class PartitionRecords(Value, frozen=True, kw_only=True, gc=False):
    """Record batches for one partition: one or more whole batches of format 2, end to end."""

    topic: str
    partition: Int32
    records: memoryview


class ProduceRequest(Value, frozen=True, kw_only=True, gc=False):
    """Append batches. acks 0: no reply; 1: after the leader's append; -1 (all): after every in-sync replica's."""

    api: ClassVar[str] = "produce"
    acks: Literal[-1, 0, 1] = -1
    timeout_ms: Size32 = 30_000
    partitions: Entries[PartitionRecords]

    @property
    def knows_zstd(self) -> bool:
        """Whether the client can read that codec; else batches in it are refused."""
        return True


class FetchPartition(Value, frozen=True, kw_only=True, gc=False):
    """From where to read one partition, and how much at most."""

    topic: str
    partition: Int32
    offset: Int64
    max_bytes: Int32 = DEFAULT_PARTITION_FETCH_BYTES


class FetchRequest(Value, frozen=True, kw_only=True, gc=False):
    """Read batches. Waits until `min_bytes` are there or `max_wait_ms` is over; 0 answers at once.

    The first batch of the first partition that has data is always whole, even over `max_bytes` (KIP-74).
    """

    api: ClassVar[str] = "fetch"
    partitions: Entries[FetchPartition]
    max_wait_ms: Size32 = 500
    min_bytes: Size32 = 1
    max_bytes: Size32 = DEFAULT_FETCH_BYTES
    isolation: Isolation = Isolation.READ_UNCOMMITTED


class OffsetQuery(Value, frozen=True, kw_only=True, gc=False):
    """A question for an offset by time; LATEST_TIMESTAMP, EARLIEST_TIMESTAMP and MAX_TIMESTAMP ask for the ends."""

    topic: str
    partition: Int32
    timestamp: Int64


class ListOffsetsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Offsets by time: the first record at or past each timestamp."""

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
