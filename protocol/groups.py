"""The neutral values of consumer groups: requests and responses of both wires.

Owns: one value type per request and per response, and the names of a group's states. Must not know: layouts, who leads
a group, or what a member's metadata and assignment mean: to the coordinator both are bytes.

A response has exactly one entry per entry asked for, in that order. Every entry carries `error`; durations are
milliseconds.
"""

from enum import IntEnum, StrEnum
from typing import ClassVar, TypeAlias

from protocol.errors import ErrorCode
from protocol.request import Entries, Int32, Int64, Value

NO_GENERATION = -1
NO_OFFSET = -1
NO_LEADER_EPOCH = -1
NO_MEMBER = ""  # the member id of one that has none yet, and of a commit from outside of the group's membership
CONSUMER_PROTOCOL_TYPE = "consumer"  # Kafka's ConsumerProtocol.PROTOCOL_TYPE


class GroupState(StrEnum):
    """A classic group's states by the names that tools show (Kafka's ClassicGroupState)."""

    EMPTY = "Empty"  # no members; offsets may be left
    PREPARING_REBALANCE = "PreparingRebalance"  # members are to join again
    COMPLETING_REBALANCE = "CompletingRebalance"  # all joined; the leader's assignment is awaited
    STABLE = "Stable"
    DEAD = "Dead"  # unknown, or deleted


class GroupType(StrEnum):
    """The kinds of groups that ListGroups can filter by; a broker here has classic ones only."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class CoordinatorType(IntEnum):
    """What is coordinated. The wire may name others; those stay numbers, for a handler to refuse."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class FindCoordinatorRequest(Value, frozen=True, kw_only=True, gc=False):
    """Which broker coordinates each of these groups (or transactional ids: `key_type`, of CoordinatorType)."""

    api: ClassVar[str] = "find_coordinator"
    keys: Entries[str]
    key_type: int = CoordinatorType.GROUP


class FoundCoordinator(Value, frozen=True, kw_only=True, gc=False):
    """A key's coordinator."""

    key: str
    node_id: int = -1
    host: str = ""
    port: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class FindCoordinatorResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per key asked for, in that order."""

    coordinators: tuple[FoundCoordinator, ...]


class GroupProtocol(Value, frozen=True, kw_only=True, gc=False):
    """An assignor that a member can work with, and what the leader shall know of the member if that one is chosen."""

    name: str
    metadata: bytes


class JoinGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Join a group, or join it again; the answer comes when the rebalance that this makes is over.

    `member_id`: NO_MEMBER at first. `instance_id`: of a static member (KIP-345), None for a dynamic one.
    `requires_known_member`: a new dynamic member is told its id and asks again (KIP-394; JoinGroup from version 4).
    `can_skip_assignment`: the leader understands that it is not to assign (JoinGroup from version 9, KIP-814).
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
    """A member as the leader sees it: `metadata` is the one for the protocol that was chosen."""

    member_id: str
    instance_id: str | None = None
    metadata: bytes = b""


class JoinGroupResponse(Value, frozen=True, kw_only=True, gc=False):
    """The generation that a member is in now. Only the leader is told the `members`.

    With MEMBER_ID_REQUIRED, `member_id` is the one to ask again with.
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
    """What a leader gives to a member."""

    member_id: str
    assignment: bytes


class SyncGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Ask for one's assignment; the leader brings those of all. The answer comes when the leader has spoken.

    `protocol_type` and `protocol_name`: None where the client does not say (SyncGroup before version 5).
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
    """A member's assignment."""

    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class HeartbeatRequest(Value, frozen=True, kw_only=True, gc=False):
    """A member is still there."""

    api: ClassVar[str] = "heartbeat"
    group: str
    generation: Int32
    member_id: str
    instance_id: str | None = None


class HeartbeatResponse(Value, frozen=True, kw_only=True, gc=False):
    """NONE; REBALANCE_IN_PROGRESS: join again; any other error: the member is none any more."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class LeavingMember(Value, frozen=True, kw_only=True, gc=False):
    """A member that goes, or is removed: by its id, or a static one by its instance id alone."""

    member_id: str = NO_MEMBER
    instance_id: str | None = None
    reason: str | None = None


class LeaveGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Members leave; those that stay divide the partitions anew."""

    api: ClassVar[str] = "leave_group"
    group: str
    members: Entries[LeavingMember]


class LeftMember(Value, frozen=True, kw_only=True, gc=False):
    """What became of one of them."""

    member_id: str
    instance_id: str | None = None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class LeaveGroupResponse(Value, frozen=True, kw_only=True, gc=False):
    """`error`: of the request as a whole (no such coordinator, an invalid group); one entry per member asked for."""

    members: tuple[LeftMember, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class OffsetToCommit(Value, frozen=True, kw_only=True, gc=False):
    """The offset of the next record to consume, and the epoch of the last one consumed."""

    topic: str
    partition: Int32
    offset: Int64
    leader_epoch: Int32 = NO_LEADER_EPOCH
    metadata: str = ""


class OffsetCommitRequest(Value, frozen=True, kw_only=True, gc=False):
    """Commit offsets: as a member of a generation, or from outside (NO_GENERATION, NO_MEMBER) while there are none.

    `retention_ms`: after which these offsets expire, None: as the broker is set (OffsetCommit 2 to 4 could say).
    """

    api: ClassVar[str] = "offset_commit"
    group: str
    generation: Int32 = NO_GENERATION
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    retention_ms: Int64 | None = None
    partitions: Entries[OffsetToCommit]


class CommittedPartition(Value, frozen=True, kw_only=True, gc=False):
    """What became of one partition's offset: stored, deleted, or why not."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class OffsetCommitResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per partition asked for, in that order."""

    partitions: tuple[CommittedPartition, ...]


class TopicPartition(Value, frozen=True, kw_only=True, gc=False):
    """One partition."""

    topic: str
    partition: Int32


class OffsetFetchGroup(Value, frozen=True, kw_only=True, gc=False):
    """The partitions of which a group's offsets are asked for; None: all that it has."""

    group: str
    partitions: Entries[TopicPartition] | None = None


class OffsetFetchRequest(Value, frozen=True, kw_only=True, gc=False):
    """Committed offsets. `require_stable`: refuse those that an open transaction may still change (KIP-447)."""

    api: ClassVar[str] = "offset_fetch"
    groups: Entries[OffsetFetchGroup]
    require_stable: bool = False


class FetchedOffset(Value, frozen=True, kw_only=True, gc=False):
    """What is committed for one partition; NO_OFFSET where nothing is, and that is no error.

    `topic_id` (text, as in TopicMetadata) is told where all of a group's offsets were asked for and the topic exists:
    OffsetFetch from version 10 on names topics by nothing else.
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
    """One group's offsets, partitions in the order asked for (all: by topic and partition)."""

    group: str
    partitions: tuple[FetchedOffset, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class OffsetFetchResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per group asked for, in that order."""

    groups: tuple[FetchedOffsets, ...]


class OffsetDeleteRequest(Value, frozen=True, kw_only=True, gc=False):
    """Forget committed offsets of topics that no member is subscribed to."""

    api: ClassVar[str] = "offset_delete"
    group: str
    partitions: Entries[TopicPartition]


class OffsetDeleteResponse(Value, frozen=True, kw_only=True, gc=False):
    """`error`: of the request as a whole (no such group); one entry per partition asked for."""

    partitions: tuple[CommittedPartition, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ListGroupsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Which groups there are, of these states and types (compared without regard to case); empty: of all."""

    api: ClassVar[str] = "list_groups"
    states: Entries[str] = ()
    types: Entries[str] = ()


class ListedGroup(Value, frozen=True, kw_only=True, gc=False):
    """A group in short. `protocol_type`: "consumer", empty for one that only has offsets."""

    group: str
    protocol_type: str
    state: str
    type: str = GroupType.CLASSIC


class ListGroupsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Groups by name."""

    groups: tuple[ListedGroup, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeGroupsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Groups and their members."""

    api: ClassVar[str] = "describe_groups"
    groups: Entries[str]
    include_authorized_operations: bool = False


class DescribedMember(Value, frozen=True, kw_only=True, gc=False):
    """A member. `metadata` and `assignment` are empty until the group is stable."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    metadata: bytes = b""
    assignment: bytes = b""


class DescribedGroup(Value, frozen=True, kw_only=True, gc=False):
    """A group. One that is not known has state DEAD and the error GROUP_ID_NOT_FOUND.

    `protocol`: the assignor in use, empty until the group is stable.
    """

    group: str
    state: str = GroupState.DEAD
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeGroupsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per group asked for, in that order."""

    groups: tuple[DescribedGroup, ...]


class DeleteGroupsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete groups without members, and their offsets."""

    api: ClassVar[str] = "delete_groups"
    groups: Entries[str]


class DeletedGroup(Value, frozen=True, kw_only=True, gc=False):
    """What became of one group."""

    group: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DeleteGroupsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per group asked for, in that order."""

    groups: tuple[DeletedGroup, ...]


GroupRequest: TypeAlias = (
    FindCoordinatorRequest
    | JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | OffsetFetchRequest
    | OffsetDeleteRequest
    | ListGroupsRequest
    | DescribeGroupsRequest
    | DeleteGroupsRequest
)
