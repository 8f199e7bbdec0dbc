"""What groups have committed, in memory, and when it is forgotten.

Owns: the committed offsets by group, topic and partition, and the rule of their expiry (KIP-211). Must not know: how
they are kept on the disk, or who asks.

Invariant: of two values for one partition the one whose record lies later in the log is held, in whatever order they
arrive here.

Source: org.apache.kafka.coordinator.group.OffsetMetadataManager, OffsetExpirationConditionImpl.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from broker.groups.state import Group
from protocol.groups import GroupState
from protocol.kafka.group_records import NO_TIME, OffsetAndMetadata


class Committed(NamedTuple):
    """A committed offset, and the offset of the record that says so."""

    value: OffsetAndMetadata
    record_offset: int


class Offsets:
    """All groups' committed offsets."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, Committed]]] = {}

    def get(self, group: str, topic: str, partition: int) -> OffsetAndMetadata | None:
        """What a group has committed for a partition, or None."""
        found = self._groups.get(group, {}).get(topic, {}).get(partition)
        return None if found is None else found.value

    def of(self, group: str) -> Iterator[tuple[str, int, OffsetAndMetadata]]:
        """All that a group has committed, by topic and partition."""
        for topic, partitions in sorted(self._groups.get(group, {}).items()):
            for partition, committed in sorted(partitions.items()):
                yield topic, partition, committed.value

    def has_any(self, group: str) -> bool:
        """Whether a group has committed anything."""
        return group in self._groups

    def groups(self) -> list[str]:
        """The groups that have."""
        return list(self._groups)

    def by_topic(self) -> Iterator[tuple[str, str, Mapping[int, Committed]]]:
        """(group, topic, partitions), over copies: metrics are collected in a worker."""
        for group, topics in list(self._groups.items()):
            for topic, partitions in list(topics.items()):
                yield group, topic, dict(partitions)

    def put(self, group: str, topic: str, partition: int, value: OffsetAndMetadata, record_offset: int) -> None:
        """Hold what a record says, unless a later one has spoken."""
        partitions = self._groups.setdefault(group, {}).setdefault(topic, {})
        known = partitions.get(partition)
        if known is None or known.record_offset < record_offset:
            partitions[partition] = Committed(value, record_offset)

    def remove(self, group: str, topic: str, partition: int, record_offset: int) -> None:
        """Forget what was said before a record without value."""
        topics = self._groups.get(group, {})
        partitions = topics.get(topic, {})
        known = partitions.get(partition)
        if known is None or known.record_offset > record_offset:
            return
        del partitions[partition]
        if not partitions:
            del topics[topic]
        if not topics:
            del self._groups[group]

    def remove_topic(self, topic: str) -> dict[str, Iterable[int]]:
        """Forget a topic that is deleted; returns the partitions that each group had committed."""
        removed: dict[str, Iterable[int]] = {}
        for group, topics in list(self._groups.items()):
            partitions = topics.pop(topic, None)
            if partitions is not None:
                removed[group] = partitions
            if not topics:
                del self._groups[group]
        return removed

    def clear(self) -> None:
        """Forget everything."""
        self._groups.clear()

    def expired(self, group: Group, now_ms: int, retention_ms: int) -> list[tuple[str, int, OffsetAndMetadata]]:
        """What a group has held for too long.

        For a group that had members: since it is empty, or, if its members do not subscribe to the topic, since the
        commit. For one that only has offsets: since the commit.
        """
        since_ms = _expiry_base(group)
        if since_ms is None:
            return []
        return [
            (topic, partition, value)
            for topic, partition, value in self.of(group.group_id)
            if not group.generation.is_subscribed(topic) and _is_expired(value, since_ms, now_ms, retention_ms)
        ]


def _expiry_base(group: Group) -> int | None:
    """From when on the time counts: ms since the epoch, NO_TIME for each offset's own commit; None: not at all."""
    if group.generation.protocol_type is None:
        return NO_TIME
    if group.state is GroupState.EMPTY:
        return group.state_since_ms
    knows_topics = group.generation.is_consumer_group and group.generation.subscribed_topics is not None
    return NO_TIME if group.state is GroupState.STABLE and knows_topics else None


def _is_expired(value: OffsetAndMetadata, since_ms: int, now_ms: int, retention_ms: int) -> bool:
    if value.expire_ms != NO_TIME:
        return now_ms >= value.expire_ms
    return now_ms - (value.commit_ms if since_ms == NO_TIME else since_ms) >= retention_ms
