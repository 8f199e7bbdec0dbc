"""The share-partitions of a group, whose states are being created, exist, or are being deleted.

    not known ──begun──► initializing ──completed──► initialized ──deleting──► deleting ──deleted──► not known
                              │  ▲
                              └──┘ abandoned: the share coordinator failed, and the next heartbeat retries

Only initialized partitions are assigned to members. Values are replaced, never changed.

Source: Kafka's ShareGroup.ShareGroupStatePartitionMetadataInfo, GroupMetadataManager (4.4: combineInitMaps,
subscribedTopicsChangeMap, addInitializingTopicsRecords, initializeShareGroupState, uninitializeShareGroupState).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from warmlog.protocol.kafka.messages.groups.consumer import NamedPartitions
from warmlog.protocol.kafka.share_group_records import NamedTopic, SharePartitions

Numbers: TypeAlias = Mapping[bytes, frozenset[int]]  # topic id to partitions


class KnownTopic(NamedTuple):
    """A topic's name at the time its partitions became known, and the partitions."""

    name: str
    partitions: frozenset[int]


NOTHING: KnownTopic = KnownTopic("", frozenset())


class PartitionStates(NamedTuple):
    """A record, and its topics by id."""

    value: SharePartitions
    initializing: Mapping[bytes, KnownTopic]
    initialized: Mapping[bytes, KnownTopic]
    deleting: Mapping[bytes, str]

    @classmethod
    def of(cls, value: SharePartitions) -> "PartitionStates":
        """Read a record."""
        return cls(
            value,
            _known(value.initializing),
            _known(value.initialized),
            {each.topic_id: each.topic for each in value.deleting},
        )

    def begun(self, topics: Mapping[bytes, KnownTopic]) -> SharePartitions:
        """Return the record when the states of partitions are being created and no longer being deleted."""
        initializing = _combined(self.initializing, topics)
        deleting = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in initializing}
        return _record(initializing, self.initialized, deleting)

    def completed(self, partitions: Numbers) -> SharePartitions:
        """Return the record when partitions have a state."""
        names = {topic_id: self.initializing.get(topic_id, NOTHING).name for topic_id in partitions}
        added = {topic_id: KnownTopic(names[topic_id], numbers) for topic_id, numbers in partitions.items()}
        return _record(_without(self.initializing, partitions), _combined(self.initialized, added), self.deleting)

    def abandoned(self, partitions: Numbers) -> SharePartitions:
        """Return the record when the states of partitions are no longer being created."""
        return _record(_without(self.initializing, partitions), self.initialized, self.deleting)

    def deletion(self, topics: Mapping[bytes, str]) -> SharePartitions:
        """Return the record when the states of initialized topics, given with their names, are being deleted."""
        initialized = {topic_id: known for topic_id, known in self.initialized.items() if topic_id not in topics}
        return _record(self.initializing, initialized, {**self.deleting, **topics})

    def deletion_of_all(self, existing: Mapping[bytes, str]) -> SharePartitions:
        """Return the record when all states are being deleted. `existing`: topics being deleted that still exist."""
        known = {**self.initialized, **self.initializing}
        return _record({}, {}, {**existing, **{topic_id: each.name for topic_id, each in known.items()}})

    def without(self, topic_ids: Iterable[bytes]) -> SharePartitions:
        """Return the record without deleted topics."""
        gone = frozenset(topic_ids)
        return _record(
            {topic_id: known for topic_id, known in self.initializing.items() if topic_id not in gone},
            {topic_id: known for topic_id, known in self.initialized.items() if topic_id not in gone},
            {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in gone},
        )

    def deleted(self, topic_ids: Iterable[bytes]) -> SharePartitions:
        """Return the record when the states of topics are deleted."""
        gone = frozenset(topic_ids)
        deleting = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in gone}
        return _record(self.initializing, self.initialized, deleting)

    def topic_ids(self) -> frozenset[bytes]:
        """Return the ids of all topics."""
        return frozenset([*self.initializing, *self.initialized, *self.deleting])


def _known(topics: Iterable[NamedPartitions]) -> dict[bytes, KnownTopic]:
    return {each.topic_id: KnownTopic(each.topic, frozenset(each.partitions)) for each in topics}


def _combined(known: Mapping[bytes, KnownTopic], added: Mapping[bytes, KnownTopic]) -> dict[bytes, KnownTopic]:
    combined = dict(known)
    for topic_id, topic in added.items():
        before = combined.get(topic_id, NOTHING)
        combined[topic_id] = KnownTopic(topic.name or before.name, before.partitions | topic.partitions)
    return combined


def _without(known: Mapping[bytes, KnownTopic], partitions: Numbers) -> dict[bytes, KnownTopic]:
    left = {
        topic_id: topic._replace(partitions=topic.partitions - partitions.get(topic_id, frozenset()))
        for topic_id, topic in known.items()
    }
    return {topic_id: topic for topic_id, topic in left.items() if topic.partitions}


def _record(
    initializing: Mapping[bytes, KnownTopic], initialized: Mapping[bytes, KnownTopic], deleting: Mapping[bytes, str]
) -> SharePartitions:
    return SharePartitions(
        initializing=_named(initializing),
        initialized=_named(initialized),
        deleting=tuple([NamedTopic(topic_id=topic_id, topic=name) for topic_id, name in sorted(deleting.items())]),
    )


def _named(topics: Mapping[bytes, KnownTopic]) -> tuple[NamedPartitions, ...]:
    return tuple(
        [
            NamedPartitions(topic_id=topic_id, topic=topic.name, partitions=tuple(sorted(topic.partitions)))
            for topic_id, topic in sorted(topics.items())
        ]
    )


NO_STATES = PartitionStates.of(SharePartitions())
