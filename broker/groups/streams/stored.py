"""The stored state of a streams group, with indexes. Only records change it, so loading and deciding agree.

Invariants:
1. Every index can be computed from the records.
2. Applying the value that a key had before restores the state.

Source: Kafka's GroupMetadataManager.replay, StreamsGroup (4.4).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from warmlog.broker.groups.modern.member_memory import MEMBER_BYTES, NAME_BYTES, PARTITION_BYTES, TOPIC_BYTES
from warmlog.broker.groups.modern.stored_members import KeyKinds, StoredMembers
from warmlog.broker.groups.modern.subscribed_topics import SubscribedTopics
from warmlog.broker.groups.streams.effects import Row
from warmlog.broker.groups.streams.holding import JOINED, NO_TARGET, CurrentTasks, Holding, TargetTasks
from warmlog.broker.groups.streams.topology.configured import required_topics
from warmlog.protocol.groups import StreamsGroupState
from warmlog.protocol.kafka.consumer_group_records import TargetEpoch
from warmlog.protocol.kafka.messages.groups.streams import Subtopology, TaskIds, Topology
from warmlog.protocol.kafka.streams_group_records import (
    HeldTasks,
    StreamsCurrentAssignment,
    StreamsCurrentKey,
    StreamsEpochKey,
    StreamsGroupEpoch,
    StreamsGroupKey,
    StreamsGroupValue,
    StreamsMemberKey,
    StreamsMemberMetadata,
    StreamsTarget,
    StreamsTargetEpochKey,
    StreamsTargetKey,
    TopologyKey,
)

#: Types of keys, in an order in which Kafka can read their tombstones.
DELETION = (
    StreamsCurrentKey,
    StreamsTargetKey,
    StreamsTargetEpochKey,
    StreamsMemberKey,
    StreamsEpochKey,
    TopologyKey,
)
FIRST = StreamsGroupEpoch(epoch=1)  # topology epoch of a group without records
_NO_MEMBERS: frozenset[str] = frozenset()
_NO_OWNERS: Mapping[int, str] = {}
_NO_REPLICAS: Mapping[int, frozenset[str]] = {}


class StoredTopology(NamedTuple):
    """The group's topology: the record, the subtopology that reads each topic, and the estimated bytes it holds."""

    value: Topology
    readers: Mapping[str, str]
    size: int

    @classmethod
    def of(cls, value: Topology) -> "StoredTopology":
        """Read a record."""
        readers = {}
        for each in value.subtopologies:
            readers.update(dict.fromkeys(each.sources, each.subtopology_id))
            readers.update(dict.fromkeys([topic.topic for topic in each.repartition_sources], each.subtopology_id))
        return cls(value, readers, topology_size(value))


class StoredStreamsGroup(StoredMembers[StreamsMemberMetadata, CurrentTasks, TargetTasks, StreamsGroupEpoch]):
    """The state described by a group's records."""

    keys = KeyKinds(StreamsEpochKey, StreamsTargetEpochKey, StreamsMemberKey, StreamsTargetKey, StreamsCurrentKey)

    def __init__(self, group_id: str) -> None:
        """Start without records."""
        super().__init__(group_id, FIRST, JOINED, NO_TARGET)
        self.topology: StoredTopology | None = None
        self.topics = SubscribedTopics()  # topics of the topology
        self._active: dict[str, dict[int, str]] = {}  # by subtopology and partition, the member that has the task
        self._standby: dict[str, dict[int, frozenset[str]]] = {}
        self._warmup: dict[str, dict[int, frozenset[str]]] = {}

    # -- queries --

    @property
    def state(self) -> StreamsGroupState:
        """The group's state."""
        target_epoch = self.target_epoch.epoch
        if not self.metadata:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.value.epoch != self.epoch.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch.epoch > target_epoch:
            return StreamsGroupState.ASSIGNING
        return StreamsGroupState.STABLE if self.is_stable(target_epoch) else StreamsGroupState.RECONCILING

    def owners(self, subtopology_id: str) -> Mapping[int, str]:
        """Return the members that have active tasks of a subtopology, or still have to give them up, by partition."""
        return self._active.get(subtopology_id, _NO_OWNERS)

    def standby_owners(self, subtopology_id: str) -> Mapping[int, Collection[str]]:
        """Return the same for standby tasks, which several members may have."""
        return self._standby.get(subtopology_id, _NO_REPLICAS)

    def warmup_owners(self, subtopology_id: str) -> Mapping[int, Collection[str]]:
        """Return the same for warm-up tasks."""
        return self._warmup.get(subtopology_id, _NO_REPLICAS)

    def process_of(self, member_id: str) -> str | None:
        """Return the process of a member."""
        metadata = self.metadata.get(member_id)
        return None if metadata is None else metadata.process_id

    def _first_rows(self) -> list[Row]:
        return [] if self.topology is None else [(TopologyKey(self.group_id), self.topology.value)]

    def _last_keys(self) -> list[StreamsGroupKey]:
        return [StreamsEpochKey(self.group_id), TopologyKey(self.group_id)]

    # -- changes --

    def apply(self, key: StreamsGroupKey, value: StreamsGroupValue | None) -> StreamsGroupValue | None:
        """Set, or with None delete, the value of a key. Returns the previous value.

        Raises TypeError if the value is not of the key's type.
        """
        before: StreamsGroupValue | None
        match key, value:
            case StreamsCurrentKey(), StreamsCurrentAssignment() | None:
                before = self._apply_current(key.member_id, value)
            case StreamsMemberKey(), StreamsMemberMetadata() | None:
                before = self._set_metadata(key.member_id, value)
            case StreamsTargetKey(), StreamsTarget() | None:
                target = self._set_target(key.member_id, None if value is None else TargetTasks.of(value))
                before = None if target is None else target.value
            case StreamsEpochKey(), StreamsGroupEpoch() | None:
                before, self._epoch = self._epoch, value
            case StreamsTargetEpochKey(), TargetEpoch() | None:
                before, self._target_epoch = self._target_epoch, value
            case TopologyKey(), Topology() | None:
                before = self._set_topology(value)
            case _:
                raise TypeError(f"{value!r} is no value of {key!r}")
        return before

    def reindex(self) -> None:
        """Rebuild the indexes of static members and owners, after all records were applied.

        In a log with undone changes, records may contradict each other until the last ones.
        """
        self._index_static()
        for index in (self._active, self._standby, self._warmup):
            index.clear()
        for member_id, current in self.currents.items():
            self._own(member_id, current)

    def _set_topology(self, value: Topology | None) -> Topology | None:
        before = None if self.topology is None else self.topology.value
        if before is not None:
            self.topics.count(required_topics(before), -1)
        self.topology = None if value is None else StoredTopology.of(value)
        if value is not None:
            self.topics.count(required_topics(value), 1)
        return before

    def _apply_current(self, member_id: str, value: StreamsCurrentAssignment | None) -> StreamsCurrentAssignment | None:
        before = self.currents.get(member_id)
        if before is not None:
            self._release(member_id, before)
        after = None if value is None else CurrentTasks.of(value)
        self._set_current(member_id, after)
        if after is not None:
            self._own(member_id, after)
        return None if before is None else before.value

    # -- indexes --

    def _own(self, member_id: str, current: CurrentTasks) -> None:
        for holding in (current.assigned, current.to_revoke):
            for subtopology_id, partitions in holding.active.items():
                self._active.setdefault(subtopology_id, {}).update(dict.fromkeys(partitions, member_id))
            for index, subtopology_id, partition in self._replicas(holding):
                owners = index.setdefault(subtopology_id, {})
                owners[partition] = owners.get(partition, _NO_MEMBERS) | {member_id}

    def _release(self, member_id: str, current: CurrentTasks) -> None:
        for holding in (current.assigned, current.to_revoke):
            for subtopology_id, partitions in holding.active.items():
                owners = self._active.get(subtopology_id, {})
                for partition in partitions:
                    if owners.get(partition) == member_id:
                        del owners[partition]
                if not owners:
                    self._active.pop(subtopology_id, None)
            for index, subtopology_id, partition in self._replicas(holding):
                members = index.get(subtopology_id, {})
                rest = members.get(partition, _NO_MEMBERS) - {member_id}
                if rest:
                    members[partition] = rest
                else:
                    members.pop(partition, None)
                if not members:
                    index.pop(subtopology_id, None)

    def _replicas(self, holding: Holding) -> Iterator[tuple[dict[str, dict[int, frozenset[str]]], str, int]]:
        for index, replicas in ((self._standby, holding.standby), (self._warmup, holding.warmup)):
            for subtopology_id, partitions in replicas.items():
                for partition in partitions:
                    yield index, subtopology_id, partition

    def _stable_epoch(self, current: CurrentTasks) -> int | None:
        return current.epoch if current.is_reconciled_to(current.epoch) else None

    def _instance(self, metadata: StreamsMemberMetadata) -> str | None:
        return metadata.instance_id

    def _size(self, member_id: str, metadata: StreamsMemberMetadata) -> int:
        current, target = self.current(member_id).value, self.target(member_id).value
        size = MEMBER_BYTES + len(member_id) + declared_size(metadata)
        size += sum([tasks_size(each) for each in (current.active, current.standby, current.warmup)])
        to_revoke = (current.active_to_revoke, current.standby_to_revoke, current.warmup_to_revoke)
        size += sum([tasks_size(each) for each in to_revoke])
        return size + sum([tasks_size(each) for each in (target.active, target.standby, target.warmup)])


def declared_size(metadata: StreamsMemberMetadata) -> int:
    """Estimate the bytes that a member's declaration holds."""
    texts = (metadata.instance_id, metadata.rack_id, metadata.client_id, metadata.process_id)
    endpoint = metadata.user_endpoint
    size = sum([len(text or "") for text in texts]) + (0 if endpoint is None else NAME_BYTES + len(endpoint.host))
    return size + sum([NAME_BYTES + len(tag.key) + len(tag.value) for tag in metadata.client_tags])


def tasks_size(tasks: Iterable[TaskIds | HeldTasks]) -> int:
    """Estimate the bytes that tasks hold, as a record and as a map."""
    return sum([TOPIC_BYTES + PARTITION_BYTES * len(each.partitions) for each in tasks])


def topology_size(topology: Topology) -> int:
    """Estimate the bytes that a topology holds, with its indexes and its configured form."""
    return sum([subtopology_size(each) for each in topology.subtopologies])


def subtopology_size(subtopology: Subtopology) -> int:
    """Estimate the bytes that a subtopology holds."""
    size = TOPIC_BYTES + len(subtopology.subtopology_id) + TOPIC_BYTES * len(subtopology.copartition_groups)
    size += sum([NAME_BYTES + len(name) for name in (*subtopology.sources, *subtopology.repartition_sinks)])
    for topic in (*subtopology.changelogs, *subtopology.repartition_sources):
        size += 2 * TOPIC_BYTES + len(topic.topic)
        size += sum([NAME_BYTES + len(config.key) + len(config.value) for config in topic.configs])
    return size
