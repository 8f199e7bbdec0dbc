"""The effects of a streams group's state machine."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from warmlog.broker.groups.automaton import Answer
from warmlog.broker.groups.modern.effects import StoreRows
from warmlog.broker.groups.streams.assignor.sticky import TaskMember
from warmlog.broker.groups.streams.topology.configured import ConfiguredSubtopology
from warmlog.protocol.kafka.streams_group_records import StreamsGroupKey, StreamsGroupValue

Row: TypeAlias = tuple[StreamsGroupKey, StreamsGroupValue | None]  # None: a tombstone
Store: TypeAlias = StoreRows[StreamsGroupKey, StreamsGroupValue]


class AssignTasks(NamedTuple):
    """Effect: run the assignor, then drive the generator `StreamsGroup.assigned(epoch, assignments, now)`.

    `instances`: the instance ids of static members. `subtopologies`: empty if the topology is not ready; then nothing
    is assigned.
    """

    epoch: int
    members: dict[str, TaskMember]
    instances: dict[str, str]
    subtopologies: Mapping[str, ConfiguredSubtopology]
    standby_replicas: int


Effect: TypeAlias = Answer | Store | AssignTasks
