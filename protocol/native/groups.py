"""Group requests of the native protocol only: assignment by the broker, and groups with their lag.

A member of a classic group joins with `join_consumer_group`, a member of a consumer group (KIP-848) with
`heartbeat_consumer_group`, which is Kafka's ConsumerGroupHeartbeat with names instead of ids of topics.

The other group operations use the values of `protocol.groups`.
"""

from typing import ClassVar

from msgspec import UNSET, UnsetType

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import NO_LEADER_EPOCH, NO_MEMBER, NO_OFFSET, PartitionEntry
from warmlog.protocol.request import Entries, Int32, Size32, Value

DEFAULT_SESSION_TIMEOUT_MS = 45_000  # Kafka's session.timeout.ms
DEFAULT_REBALANCE_TIMEOUT_MS = 300_000  # Kafka's max.poll.interval.ms


class JoinConsumerGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Join or rejoin a group; the response with this member's partitions is sent when all members have joined.

    `instance_id` identifies a static member (KIP-345).
    """

    api: ClassVar[str] = "join_consumer_group"
    may_wait: ClassVar[bool] = True
    group: str
    topics: Entries[str]
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    session_timeout_ms: Size32 = DEFAULT_SESSION_TIMEOUT_MS
    rebalance_timeout_ms: Size32 = DEFAULT_REBALANCE_TIMEOUT_MS


class JoinConsumerGroupResponse(Value, frozen=True, kw_only=True, gc=False):
    """The new generation, and the partitions assigned to the member in it.

    `is_leader`: the broker assigned partitions on behalf of this member, which must rejoin when its topics change.
    """

    generation: int
    member_id: str
    is_leader: bool
    partitions: tuple[PartitionEntry, ...]


class HeartbeatConsumerGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Join a consumer group (epoch 0), keep the membership, or leave (epoch -1, a static member for a restart -2).

    The client chooses the member id. None means "unchanged". `pattern`: a regular expression that must match whole
    topic names, "" for none. `partitions`: the partitions the member holds now.
    """

    api: ClassVar[str] = "heartbeat_consumer_group"
    group: str
    member_id: str
    member_epoch: Int32
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: Size32 | None = None
    topics: Entries[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    partitions: Entries[PartitionEntry] | None = None


class HeartbeatConsumerGroupResponse(Value, frozen=True, kw_only=True, gc=False):
    """The member's epoch, and the partitions it may hold; None if unchanged."""

    member_epoch: int
    heartbeat_interval_ms: int
    partitions: tuple[PartitionEntry, ...] | None = None


class DescribeConsumerGroupsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe groups with their members, assignments, committed offsets and lag."""

    api: ClassVar[str] = "describe_consumer_groups"
    groups: Entries[str]


class ConsumerGroupMember(Value, frozen=True, kw_only=True, gc=False):
    """A group member. `topics` and `partitions` are empty until the group is stable."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    partitions: tuple[PartitionEntry, ...] = ()


class GroupPosition(Value, frozen=True, kw_only=True, gc=False):
    """A group's progress in a partition with a committed offset or an assignment.

    The partition holds offsets [log_start_offset, high_watermark); both are NO_OFFSET if it no longer exists. For a
    share group, `offset` is the first offset in flight, and `unfinished` the number of records from that offset on that
    are neither accepted nor rejected, -1 if unknown. Replies before version 12 omit `unfinished`.
    """

    topic: str
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    log_start_offset: int = NO_OFFSET
    high_watermark: int = NO_OFFSET
    member_id: str | None = None
    unfinished: int | UnsetType = UNSET

    @property
    def lag(self) -> int | None:
        """Number of offsets still to be consumed; None if unknown."""
        if self.unfinished is not UNSET:
            return None if self.unfinished < 0 else self.unfinished
        if NO_OFFSET in {self.offset, self.high_watermark}:
            return None
        return max(self.high_watermark - self.offset, 0)


class DescribedConsumerGroup(Value, frozen=True, kw_only=True, gc=False):
    """A described group. `protocol` is the assignor, empty until the group is stable; `positions` are sorted."""

    group: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[ConsumerGroupMember, ...] = ()
    positions: tuple[GroupPosition, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeConsumerGroupsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of DescribeConsumerGroupsRequest, in its order."""

    groups: tuple[DescribedConsumerGroup, ...]
