"""The effects of a consumer group's state machine."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from warmlog.broker.groups.automaton import Answer
from warmlog.broker.groups.modern.assignment import Assignment, Subscriber, TopicInfo
from warmlog.broker.groups.modern.effects import StoreRows
from warmlog.protocol.kafka.consumer_group_records import ConsumerGroupKey, ConsumerGroupValue, MemberMetadata

Row: TypeAlias = tuple[ConsumerGroupKey, ConsumerGroupValue | None]  # None: a tombstone


class ClassicMember(NamedTuple):
    """A member of a group that changes its kind, and the partitions that the member keeps."""

    metadata: MemberMetadata
    assignment: Assignment


class Downgrade(NamedTuple):
    """The classic group that replaces a consumer group. `rebalances`: whether it rebalances once it is stored."""

    generation: int
    members: Mapping[str, ClassicMember]
    rebalances: bool


class Assign(NamedTuple):
    """Effect: run an assignor, then drive the generator `ConsumerGroup.assigned(epoch, assignments, now)`."""

    epoch: int
    assignor: str
    members: dict[str, Subscriber]
    topics: dict[bytes, TopicInfo]


class Resolve(NamedTuple):
    """Effect: match all topic names with regular expressions, then call `ConsumerGroup.resolved`."""

    regexes: frozenset[str]


Store: TypeAlias = StoreRows[ConsumerGroupKey, ConsumerGroupValue]  # `successor`: None, or a `Downgrade`
Effect: TypeAlias = Answer | Store | Assign | Resolve
