"""Neutral requests and responses of consumer groups, for both wire formats.

A response has exactly one entry per entry of the request, in the same order. Member metadata and assignments are opaque
bytes to the coordinator. Durations are milliseconds.
"""

from enum import IntEnum, StrEnum
from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import Entries, Int32, Int64, Value

NO_GENERATION = -1
NO_OFFSET = -1
NO_LEADER_EPOCH = -1
NO_MEMBER = ""  # member id of a client that has not joined yet, and of commits from outside the group
CONSUMER_PROTOCOL_TYPE = "consumer"  # Kafka's ConsumerProtocol.PROTOCOL_TYPE


class GroupState(StrEnum):
    """States of a classic group, named as Kafka's tools show them (source: ClassicGroupState)."""

    EMPTY = "Empty"  # no members, possibly committed offsets
    PREPARING_REBALANCE = "PreparingRebalance"  # waiting for members to rejoin
    COMPLETING_REBALANCE = "CompletingRebalance"  # waiting for the leader's assignment
    STABLE = "Stable"
    DEAD = "Dead"  # unknown, or deleted


class ConsumerGroupState(StrEnum):
    """States of a consumer group (KIP-848), named as Kafka's tools show them (source: ConsumerGroupState)."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # a target assignment for the group's epoch is being computed
    RECONCILING = "Reconciling"  # members are moving to the target assignment
    STABLE = "Stable"
    DEAD = "Dead"


class ShareGroupState(StrEnum):
    """States of a share group (KIP-932), named as Kafka's tools show them (source: ShareGroup.ShareGroupState)."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


class StreamsGroupState(StrEnum):
    """States of a streams group (KIP-1071), named as Kafka's tools show them (source: StreamsGroupState)."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"  # topics of its topology are missing, or have wrong numbers of partitions
    ASSIGNING = "Assigning"  # a target assignment for the group's epoch is being computed
    RECONCILING = "Reconciling"  # members are moving to the target assignment
    STABLE = "Stable"
    DEAD = "Dead"


class GroupType(StrEnum):
    """Group types that ListGroups can filter by."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class CoordinatorType(IntEnum):
    """Key types of FindCoordinator. Unknown types are decoded as plain numbers, which the handler rejects."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class FindCoordinatorRequest(Value, frozen=True, kw_only=True, gc=False):
    """Find the broker that coordinates each key: a group id or transactional id, depending on `key_type`."""

    api: ClassVar[str] = "find_coordinator"
    keys: Entries[str]
    key_type: int = CoordinatorType.GROUP


class CoordinatorLocation(Value, frozen=True, kw_only=True, gc=False):
    """The coordinator of one key."""

    key: str
    node_id: int = -1
    host: str = ""
    port: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class FindCoordinatorResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of FindCoordinatorRequest."""

    coordinators: tuple[CoordinatorLocation, ...]


class GroupProtocol(Value, frozen=True, kw_only=True, gc=False):
    """An assignor supported by a member, and the metadata passed to the leader if it is chosen."""

    name: str
    metadata: bytes


class JoinGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Join or rejoin a group. The response is sent when all members have joined.

    `member_id` is NO_MEMBER on the first request. `instance_id` identifies a static member (KIP-345).
    `requires_known_member`: a new dynamic member first receives its id and must rejoin with it (KIP-394, version 4).
    `can_skip_assignment`: the client understands `skip_assignment` in the response (KIP-814, version 9).
    """

    api: ClassVar[str] = "join_group"
    may_wait: ClassVar[bool] = True
    group: str
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    protocol_type: str
    protocols: Entries[GroupProtocol]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    reason: str | None = None
    requires_known_member: bool = True
    can_skip_assignment: bool = True


class JoinedMember(Value, frozen=True, kw_only=True, gc=False):
    """A member as listed for the leader; `metadata` belongs to the chosen protocol."""

    member_id: str
    instance_id: str | None = None
    metadata: bytes = b""


class JoinGroupResponse(Value, frozen=True, kw_only=True, gc=False):
    """The new generation and its protocol. Only the leader receives `members`.

    With MEMBER_ID_REQUIRED, `member_id` is the id to rejoin with.
    """

    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    member_id: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class MemberAssignment(Value, frozen=True, kw_only=True, gc=False):
    """The assignment the leader computed for one member."""

    member_id: str
    assignment: bytes


class SyncGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Get this member's assignment; the leader sends the assignments of all members.

    The response is sent once the leader's request has arrived. `protocol_type` and `protocol_name` are None before
    SyncGroup version 5.
    """

    api: ClassVar[str] = "sync_group"
    may_wait: ClassVar[bool] = True
    group: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Entries[MemberAssignment] = ()


class SyncGroupResponse(Value, frozen=True, kw_only=True, gc=False):
    """The assignment of the requesting member."""

    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class HeartbeatRequest(Value, frozen=True, kw_only=True, gc=False):
    """Keep a member's session alive."""

    api: ClassVar[str] = "heartbeat"
    group: str
    generation: Int32
    member_id: str
    instance_id: str | None = None


class HeartbeatResponse(Value, frozen=True, kw_only=True, gc=False):
    """The member must rejoin on REBALANCE_IN_PROGRESS; any other error ends its membership."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class LeavingMember(Value, frozen=True, kw_only=True, gc=False):
    """A member to remove: named by its member id, or a static member only by its instance id."""

    member_id: str = NO_MEMBER
    instance_id: str | None = None
    reason: str | None = None


class LeaveGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Remove members from a group, which triggers a rebalance."""

    api: ClassVar[str] = "leave_group"
    group: str
    members: Entries[LeavingMember]


class LeftMember(Value, frozen=True, kw_only=True, gc=False):
    """The result of removing one member."""

    member_id: str
    instance_id: str | None = None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class LeaveGroupResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of LeaveGroupRequest; `error` applies to the whole request (such as INVALID_GROUP_ID)."""

    members: tuple[LeftMember, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class OffsetToCommit(Value, frozen=True, kw_only=True, gc=False):
    """The offset of the next record to consume, and the leader epoch of the last one consumed."""

    topic: str
    partition: Int32
    offset: Int64
    leader_epoch: Int32 = NO_LEADER_EPOCH
    metadata: str = ""


class OffsetCommitRequest(Value, frozen=True, kw_only=True, gc=False):
    """Commit offsets, as a member of a generation or, while the group is empty, with NO_GENERATION and NO_MEMBER.

    `retention_ms` sets when these offsets expire (OffsetCommit versions 2 to 4); None uses the broker's setting.
    """

    api: ClassVar[str] = "offset_commit"
    group: str
    generation: Int32 = NO_GENERATION
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    retention_ms: Int64 | None = None
    partitions: Entries[OffsetToCommit]


class CommittedPartition(Value, frozen=True, kw_only=True, gc=False):
    """The result of committing or deleting one partition's offset."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class OffsetCommitResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of OffsetCommitRequest."""

    partitions: tuple[CommittedPartition, ...]


class PartitionEntry(Value, frozen=True, kw_only=True, gc=False):
    """A partition of a named topic, as messages list it."""

    topic: str
    partition: Int32


class OffsetFetchGroup(Value, frozen=True, kw_only=True, gc=False):
    """A group and the partitions to fetch its offsets of; None fetches all."""

    group: str
    partitions: Entries[PartitionEntry] | None = None


class OffsetFetchRequest(Value, frozen=True, kw_only=True, gc=False):
    """Fetch committed offsets. `require_stable` rejects those an open transaction may still change (KIP-447)."""

    api: ClassVar[str] = "offset_fetch"
    groups: Entries[OffsetFetchGroup]
    require_stable: bool = False


class FetchedOffset(Value, frozen=True, kw_only=True, gc=False):
    """The committed offset of one partition. NO_OFFSET without an error means that none is committed.

    `topic_id` (base64, as in TopicMetadata) is set if all offsets were requested and the topic exists: OffsetFetch
    identifies topics by id only from version 10.
    """

    topic: str
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    topic_id: str | None = None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class FetchedOffsets(Value, frozen=True, kw_only=True, gc=False):
    """One group's offsets, in the order of the request, or by topic and partition if all were requested."""

    group: str
    partitions: tuple[FetchedOffset, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class OffsetFetchResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of OffsetFetchRequest."""

    groups: tuple[FetchedOffsets, ...]


class OffsetDeleteRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete committed offsets of topics that no member is subscribed to."""

    api: ClassVar[str] = "offset_delete"
    group: str
    partitions: Entries[PartitionEntry]


class OffsetDeleteResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of OffsetDeleteRequest; `error` applies to the whole request (such as GROUP_ID_NOT_FOUND)."""

    partitions: tuple[CommittedPartition, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ListGroupsRequest(Value, frozen=True, kw_only=True, gc=False):
    """List groups, filtered by state and type (case-insensitive). An empty filter matches all."""

    api: ClassVar[str] = "list_groups"
    states: Entries[str] = ()
    types: Entries[str] = ()


class ListedGroup(Value, frozen=True, kw_only=True, gc=False):
    """A listed group. `protocol_type` is usually "consumer", and empty for a group that only has offsets."""

    group: str
    protocol_type: str
    state: str
    type: str = GroupType.CLASSIC


class ListGroupsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Groups sorted by name."""

    groups: tuple[ListedGroup, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeGroupsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe groups and their members."""

    api: ClassVar[str] = "describe_groups"
    groups: Entries[str]
    include_authorized_operations: bool = False


class DescribedMember(Value, frozen=True, kw_only=True, gc=False):
    """A group member. `metadata` and `assignment` are empty until the group is stable."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    metadata: bytes = b""
    assignment: bytes = b""


class DescribedGroup(Value, frozen=True, kw_only=True, gc=False):
    """A described group. An unknown group has the state DEAD and the error GROUP_ID_NOT_FOUND.

    `protocol` is the assignor in use, empty until the group is stable.
    """

    group: str
    state: str = GroupState.DEAD
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeGroupsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of DescribeGroupsRequest."""

    groups: tuple[DescribedGroup, ...]


class DeleteGroupsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete empty groups and their committed offsets."""

    api: ClassVar[str] = "delete_groups"
    groups: Entries[str]


class DeletedGroup(Value, frozen=True, kw_only=True, gc=False):
    """The result of deleting one group."""

    group: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DeleteGroupsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of DeleteGroupsRequest."""

    groups: tuple[DeletedGroup, ...]
