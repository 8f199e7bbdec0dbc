"""The native protocol's requests for share groups (KIP-932): queues whose records members accept one by one.

They are Kafka's ShareGroupHeartbeat, ShareFetch, ShareAcknowledge and AlterShareGroupOffsets, with names of topics
instead of ids. A member renews its membership at the group's coordinator. It acquires records from the brokers that
lead its partitions, on a connection to each: a session, which ends with the connection.
"""

from collections.abc import Sized
from enum import StrEnum
from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.request import DEFAULT_FETCH_BYTES, Entries, Int32, Int64, Size32, TextSettings, Value
from warmlog.protocol.response import TopicResult

DEFAULT_MAX_RECORDS = 500


class Acknowledgement(StrEnum):
    """A member's verdict on a record that it holds."""

    ACCEPT = "accept"  # processed
    RELEASE = "release"  # deliver again, to any member
    REJECT = "reject"  # do not deliver again
    RENEW = "renew"  # hold it for another lock duration


class HeartbeatShareGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Join a share group (epoch 0), keep the membership, or leave (epoch -1). None means "unchanged"."""

    api: ClassVar[str] = "heartbeat_share_group"
    group: str
    member_id: str
    member_epoch: Int32
    rack: str | None = None
    topics: Entries[str] | None = None


class HeartbeatShareGroupResponse(Value, frozen=True, kw_only=True, gc=False):
    """The member's epoch, and the partitions to acquire records from; None if unchanged."""

    member_epoch: int
    heartbeat_interval_ms: int
    partitions: tuple[PartitionEntry, ...] | None = None


class AcknowledgedOffsets(Value, frozen=True, kw_only=True, gc=False):
    """Offsets from `first_offset` to `last_offset`, inclusive."""

    first_offset: Int64
    last_offset: Int64
    acknowledgement: Acknowledgement


class AcknowledgedPartition(Value, frozen=True, kw_only=True, gc=False):
    """A partition with acknowledged offsets, or a partition only added to the session."""

    topic: str
    partition: Int32
    acknowledgements: Entries[AcknowledgedOffsets] = ()


class FetchShareGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Acquire records of a session's partitions, and acknowledge records that were acquired before.

    `session_epoch`: 0 opens the session, each later request increments it, -1 ends the session. `is_strict`: never
    acquire more than `max_records` records, even if that splits a batch.
    """

    api: ClassVar[str] = "fetch_share_group"
    may_wait: ClassVar[bool] = True
    group: str
    member_id: str
    session_epoch: Int32
    max_wait_ms: Size32 = 500
    min_bytes: Size32 = 1
    max_bytes: Size32 = DEFAULT_FETCH_BYTES
    max_records: Size32 = DEFAULT_MAX_RECORDS
    is_strict: bool = False
    partitions: Entries[AcknowledgedPartition] = ()
    forgotten: Entries[PartitionEntry] = ()


class AcquiredOffsets(Value, frozen=True, kw_only=True, gc=False):
    """A range of offsets (inclusive) that the member now holds, and their delivery count."""

    first_offset: int
    last_offset: int
    deliveries: int


class SharedPartition(Value, frozen=True, kw_only=True, gc=False):
    """Whole batches (the member holds only the records in `acquired`), and the result of acknowledgements."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    acknowledge_error: ErrorCode = ErrorCode.NONE
    acknowledge_message: str | None = None
    acquired: tuple[AcquiredOffsets, ...] = ()
    records: Sized = b""


class FetchShareGroupResponse(Value, frozen=True, kw_only=True, gc=False):
    """Acquired records, held for `lock_duration_ms`; partitions without any may be missing."""

    lock_duration_ms: int = 0
    partitions: tuple[SharedPartition, ...] = ()


class ReceivedSharedPartition(SharedPartition, frozen=True, kw_only=True):
    """A SharedPartition as decoded by a client; the records are a view of the response frame."""

    records: memoryview = memoryview(b"")


class ReceivedShareFetch(FetchShareGroupResponse, frozen=True, kw_only=True):
    """A FetchShareGroupResponse as decoded by a client."""

    partitions: tuple[ReceivedSharedPartition, ...] = ()


class AcknowledgeShareGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Acknowledge records acquired in a session; epoch -1 ends it and releases the records still held."""

    api: ClassVar[str] = "acknowledge_share_group"
    group: str
    member_id: str
    session_epoch: Int32
    partitions: Entries[AcknowledgedPartition] = ()


class ShareOutcome(Value, frozen=True, kw_only=True, gc=False):
    """The result for one partition; on an error, none of its acknowledgements was applied."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class AcknowledgeShareGroupResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of AcknowledgeShareGroupRequest. Renewed records are held for `lock_duration_ms`."""

    lock_duration_ms: int = 0
    partitions: tuple[ShareOutcome, ...] = ()


class ShareStart(Value, frozen=True, kw_only=True, gc=False):
    """The offset of the first record that a share group should deliver."""

    topic: str
    partition: Int32
    offset: Int64


class ResetShareGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Set the start offsets of a share group without members, and discard its delivery state from these offsets on."""

    api: ClassVar[str] = "reset_share_group"
    group: str
    starts: Entries[ShareStart]


class ResetShareGroupResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of ResetShareGroupRequest."""

    partitions: tuple[ShareOutcome, ...] = ()


class GroupAlteration(Value, frozen=True, kw_only=True, gc=False):
    """Changes of a group's settings, by Kafka's names; the value None resets a setting to the broker's default."""

    name: str
    configs: TextSettings[str | None]


class AlterGroupsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Change settings of groups of any type, which need not exist yet. Each succeeds or fails independently."""

    api: ClassVar[str] = "alter_groups"
    groups: Entries[GroupAlteration]


class AlterGroupsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of AlterGroupsRequest, in its order; each entry names its group."""

    groups: tuple[TopicResult, ...] = ()
