"""Describe the mirrored topics of a broker, and promote them (native protocol only)."""

from enum import StrEnum
from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import Entries, Value


class MirrorState(StrEnum):
    """State of a mirrored topic: following its source, failing to follow it, not followed, or writable."""

    FOLLOWING = "following"
    REFUSED = "refused"
    STOPPED = "stopped"
    PROMOTED = "promoted"


class DescribeMirrorRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe the mirrored topics and the progress of their copies."""

    api: ClassVar[str] = "describe_mirror"


class MirroredPartition(Value, frozen=True, kw_only=True, gc=False):
    """A copy of a partition and its lag; all numbers are -1 if unknown.

    `source_end`: end of the records that consumers at the source can read. `lag_bytes`: an estimate, from the size of
    the records copied last. `lag_ms`: time since the copy was last known to be complete. `promoted_at`: the end of the
    copy when it became writable, or -1 before.
    """

    partition: int
    end: int
    source_end: int = -1
    lag_records: int = -1
    lag_bytes: int = -1
    lag_ms: int = -1
    promoted_at: int = -1
    problem: str | None = None


class MirroredTopic(Value, frozen=True, kw_only=True, gc=False):
    """A topic that is, was or should be a mirror. `cluster_id`: cluster of its source, empty if it is not a mirror."""

    name: str
    state: MirrorState
    cluster_id: str = ""
    problem: str | None = None
    partitions: tuple[MirroredPartition, ...] = ()


class DescribeMirrorResponse(Value, frozen=True, kw_only=True, gc=False):
    """The source's brokers ("" if nothing is mirrored), the error of the source as a whole, and the topics."""

    source: str
    problem: str | None
    topics: tuple[MirroredTopic, ...]


class PromoteTopicsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Stop mirroring topics, and make them writable."""

    api: ClassVar[str] = "promote_topics"
    topics: Entries[str]


class PromotedTopic(Value, frozen=True, kw_only=True, gc=False):
    """The result for one topic: `offsets` are the ends of its partitions when they became writable."""

    name: str
    offsets: tuple[int, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class PromoteTopicsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of PromoteTopicsRequest, in its order."""

    topics: tuple[PromotedTopic, ...]
