"""Committed offsets in memory, and the rule of their expiry (KIP-211).

Invariant: of two values for one partition, the one whose record is later in the log is kept, whichever arrives first.

Source: org.apache.kafka.coordinator.group.OffsetMetadataManager, OffsetExpirationConditionImpl.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Final

from warmlog.broker.groups.group import Group
from warmlog.broker.metadata.topic import Topic
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import CommittedPartition, OffsetToCommit
from warmlog.protocol.kafka.group_records import NO_TIME, OffsetAndMetadata

ENTRY_BYTES: Final = 300  # bytes of an offset in memory, without its metadata
_NONE: Final = ErrorCode.NONE


class Committed:
    """A committed offset, and the offset of its record in `__consumer_offsets`."""

    __slots__ = ("record_offset", "value")

    def __init__(self, value: OffsetAndMetadata, record_offset: int) -> None:
        self.value = value
        self.record_offset = record_offset


class Offsets:
    """The committed offsets of the groups of a shard, by group, topic and partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, Committed]]] = {}
        self._committed_for: dict[str, dict[str, None]] = {}  # groups that have offsets of a topic
        self._bytes: dict[str, int] = {}  # bytes held by each group's offsets

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, group: str, topic: str, partition: int) -> OffsetAndMetadata | None:
        """Return a group's committed offset for a partition, or None."""
        offset = self._groups.get(group, {}).get(topic, {}).get(partition)
        return None if offset is None else offset.value

    def of(self, group: str) -> Iterator[tuple[str, int, OffsetAndMetadata]]:
        """Yield (topic, partition, offset) of all offsets that a group has committed, in order."""
        for topic, partitions in sorted(self._groups.get(group, {}).items()):
            for partition, committed in sorted(partitions.items()):
                yield topic, partition, committed.value

    def has_any(self, group: str) -> bool:
        """Return whether a group has committed offsets."""
        return group in self._groups

    def groups(self) -> list[str]:
        """Return the groups that have committed offsets."""
        return list(self._groups)

    def committed_at_ms(self, group: str) -> int:
        """Return the latest commit time of a group's present offsets. May be called in a worker."""
        topics = list(self._groups.get(group, {}).values())
        return max((each.value.commit_ms for topic in topics for each in list(topic.values())), default=NO_TIME)

    def by_topic(self, group: str) -> Iterator[tuple[str, Mapping[int, Committed]]]:
        """Yield (topic, offsets by partition) of a group. Iterates over copies: metrics are collected in a worker."""
        for topic, partitions in list(self._groups.get(group, {}).items()):
            yield topic, dict(partitions)

    def put(self, group: str, topic: str, partition: int, value: OffsetAndMetadata, record_offset: int) -> None:
        """Set an offset, unless a later record has set it."""
        growth = _put(self._partitions_of(group, topic), partition, value, record_offset)
        self._bytes[group] = self._bytes.get(group, 0) + growth

    def put_all(
        self,
        group: str,
        requested: Sequence[OffsetToCommit],
        values: Sequence[OffsetAndMetadata],
        record_offsets: Sequence[int],
        without: Container[str],
    ) -> None:
        """Set the offsets of the partitions requested, as many as have record offsets, without those of some topics."""
        partitions: dict[int, Committed] = {}
        last: str | None = None
        is_left_out, growth = False, 0
        for each, value, record_offset in zip(requested, values, record_offsets, strict=False):
            topic = each.topic
            if topic != last:
                last, is_left_out = topic, topic in without
                if not is_left_out:
                    partitions = self._partitions_of(group, topic)
            if not is_left_out:
                growth += _put(partitions, each.partition, value, record_offset)
        if growth:
            self._bytes[group] = self._bytes.get(group, 0) + growth

    def _partitions_of(self, group: str, topic: str) -> dict[int, Committed]:
        """Return the offsets of a topic, to which one will be added if there are none."""
        topics = self._groups.get(group)
        if topics is None:
            topics = self._groups[group] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
            self._committed_for.setdefault(topic, {})[group] = None
        return partitions

    def growth(self, group: str, requested: Sequence[OffsetToCommit]) -> int:
        """Return how many more bytes a group would hold at most with these offsets.

        A smaller value does not count against larger ones, because several may be of the same partition.
        """
        topics = self._groups.get(group, {})
        partitions: dict[int, Committed] = {}
        last: str | None = None
        growth = 0
        for each in requested:
            topic = each.topic
            if topic != last:
                partitions, last = topics.get(topic, {}), topic
            known = partitions.get(each.partition)
            growth += max(0, ENTRY_BYTES + len(each.metadata) - (0 if known is None else held_bytes(known.value)))
        return growth

    def remove(self, group: str, topic: str, partition: int, record_offset: int) -> None:
        """Remove an offset, unless it was committed after the tombstone at `record_offset`."""
        topics = self._groups.get(group, {})
        partitions = topics.get(topic, {})
        known = partitions.get(partition)
        if known is None or known.record_offset > record_offset:
            return
        del partitions[partition]
        self._bytes[group] -= held_bytes(known.value)
        if not partitions:
            self._drop(group, topics, topic)

    def bytes_of(self, group: str) -> int:
        """Estimate the bytes that a group's offsets hold."""
        return self._bytes.get(group, 0)

    def remove_topic(self, topic: str, end: int) -> Iterator[tuple[str, list[int]]]:
        """Remove a deleted topic's offsets with records before `end`, one group per step.

        Yield each group and its partitions that had an offset. Offsets may change between steps.
        """
        for group in list(self._committed_for.get(topic, ())):
            topics = self._groups.get(group, {})
            partitions = topics.get(topic, {})
            removed = [partition for partition, committed in partitions.items() if committed.record_offset < end]
            for partition in removed:
                self._bytes[group] -= held_bytes(partitions.pop(partition).value)
            if removed and not partitions:
                self._drop(group, topics, topic)
            yield group, removed

    def _drop(self, group: str, topics: dict[str, dict[int, Committed]], topic: str) -> None:
        """Remove a topic from a group that has no offset of it left."""
        del topics[topic]
        if not topics:
            del self._groups[group], self._bytes[group]
        self._unlink(group, topic)

    def _unlink(self, group: str, topic: str) -> None:
        groups = self._committed_for[topic]
        del groups[group]
        if not groups:
            del self._committed_for[topic]

    def forget(self, count: int) -> bool:
        """Drop at least `count` offsets, of whole topics; return whether others are left."""
        while self._groups and count > 0:
            name, topics = self._groups.popitem()
            while topics and count > 0:
                topic, partitions = topics.popitem()
                self._unlink(name, topic)
                count -= len(partitions)
            if topics:
                self._groups[name] = topics
            else:
                del self._bytes[name]
        return bool(self._groups)

    def expired(self, group: Group, now_ms: int, retention_ms: int) -> list[tuple[str, int, OffsetAndMetadata]]:
        """Return a group's offsets whose retention time has passed.

        It counts from when the group became empty or, if the group has never had members or its members do not
        subscribe to the topic, from the commit.
        """
        since_ms = group.offsets_expire_since_ms
        if since_ms is None:
            return []
        return [
            (topic, partition, value)
            for topic, partition, value in self.of(group.group_id)
            if not group.is_subscribed(topic) and _is_expired(value, since_ms, now_ms, retention_ms)
        ]


def check_offsets(
    requested: Sequence[OffsetToCommit], topics: Mapping[str, Topic], max_metadata_size: int
) -> list[ErrorCode]:
    """Return an error code for each offset to commit: its partition must exist, and its metadata must not be large."""
    errors: list[ErrorCode] = []
    last: str | None = None
    partitions = 0
    for each in requested:
        topic = each.topic
        if topic != last:
            known, last = topics.get(topic), topic
            partitions = 0 if known is None else known.partitions
        if not 0 <= each.partition < partitions:
            errors.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif len(each.metadata) > max_metadata_size:
            errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
        else:
            errors.append(_NONE)
    return errors


def values_of(
    requested: Sequence[OffsetToCommit], topic_id_of: Callable[[str], bytes], commit_ms: int, expire_ms: int
) -> tuple[list[OffsetAndMetadata], dict[str, bytes]]:
    """Return the values to store, and the ids of their topics by name."""
    values: list[OffsetAndMetadata] = []
    topic_ids: dict[str, bytes] = {}
    last: str | None = None
    topic_id = b""
    for each in requested:
        topic = each.topic
        if topic != last:
            topic_id, last = topic_id_of(topic), topic
            topic_ids[topic] = topic_id
        values.append(
            OffsetAndMetadata(
                offset=each.offset,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
                commit_ms=commit_ms,
                expire_ms=expire_ms,
                topic_id=topic_id,
            )
        )
    return values, topic_ids


def results_of(requested: Sequence[OffsetToCommit], errors: Sequence[ErrorCode]) -> list[CommittedPartition]:
    """Return the result of a commit for each offset."""
    return [
        CommittedPartition(topic=each.topic, partition=each.partition, error=error)
        for each, error in zip(requested, errors, strict=True)
    ]


def _put(partitions: dict[int, Committed], partition: int, value: OffsetAndMetadata, record_offset: int) -> int:
    """Set an offset unless a later record has set it; return by how many bytes this grows."""
    known = partitions.get(partition)
    if known is None:
        partitions[partition] = Committed(value, record_offset)
        return held_bytes(value)
    growth = 0
    if known.record_offset < record_offset:
        growth = len(value.metadata) - len(known.value.metadata)
        known.value, known.record_offset = value, record_offset
    return growth


def held_bytes(value: OffsetAndMetadata | None) -> int:
    """Estimate the bytes that a committed offset holds; 0 for none."""
    return 0 if value is None else ENTRY_BYTES + len(value.metadata)


def _is_expired(value: OffsetAndMetadata, since_ms: int, now_ms: int, retention_ms: int) -> bool:
    if value.expire_ms != NO_TIME:
        return now_ms >= value.expire_ms
    return now_ms - (value.commit_ms if since_ms == NO_TIME else since_ms) >= retention_ms
