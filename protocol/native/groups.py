"""What only the native protocol has about groups: the broker assigns, and tells a group with its lag.

Owns: values. Beside them the operations take those of protocol/groups.py, the same as Kafka's clients use. Must not
know: how partitions are assigned.
"""

from typing import ClassVar

from protocol.errors import ErrorCode
from protocol.groups import NO_LEADER_EPOCH, NO_MEMBER, NO_OFFSET, TopicPartition
from protocol.request import Entries, Size32, Value

DEFAULT_SESSION_TIMEOUT_MS = 45_000  # Kafka's session.timeout.ms
DEFAULT_REBALANCE_TIMEOUT_MS = 300_000  # Kafka's max.poll.interval.ms


class JoinConsumerGroupRequest(Value, frozen=True, kw_only=True, gc=False):
    """Join a group that reads topics, or join it again, and get one's partitions when everybody has joined.

    `instance_id`: of a static member (KIP-345), None for a dynamic one.
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
    """The generation that the member is in, and the partitions that are its own until the next one.

    `is_leader`: the broker assigns on behalf of this member; if it sees that topics have changed, it joins again.
    """

    generation: int
    member_id: str
    is_leader: bool
    partitions: tuple[TopicPartition, ...]


class DescribeConsumerGroupsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Groups with their members, what is assigned to these, and how far they are."""

    api: ClassVar[str] = "describe_consumer_groups"
    groups: Entries[str]


class ConsumerGroupMember(Value, frozen=True, kw_only=True, gc=False):
    """A member. `topics` and `partitions` are empty until the group is stable."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()


class GroupPosition(Value, frozen=True, kw_only=True, gc=False):
    """How far a group is in a partition that has an offset committed or is assigned.

    The partition holds the offsets from `log_start_offset` up to, and without, `high_watermark`; both NO_OFFSET where
    it is gone.
    """

    topic: str
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    log_start_offset: int = NO_OFFSET
    high_watermark: int = NO_OFFSET
    member_id: str | None = None

    @property
    def lag(self) -> int | None:
        """How many offsets are still to be read; None where that cannot be said."""
        if NO_OFFSET in {self.offset, self.high_watermark}:
            return None
        return max(self.high_watermark - self.offset, 0)


class DescribedConsumerGroup(Value, frozen=True, kw_only=True, gc=False):
    """A group. `protocol`: the assignor, empty until the group is stable; positions by topic and partition."""

    group: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[ConsumerGroupMember, ...] = ()
    positions: tuple[GroupPosition, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeConsumerGroupsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per group asked for, in that order."""

    groups: tuple[DescribedConsumerGroup, ...]
