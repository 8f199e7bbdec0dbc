"""Changes of a share group's offsets by administrators, while the group has no members.

Each change has two parts: the intention is stored and answered like a heartbeat, then the caller has the share
coordinator carry it out, and then its completion is stored.

Source: Kafka's GroupMetadataManager (4.4: alterShareGroupOffsets, sharePartitionsEligibleForOffsetDeletion,
completeDeleteShareGroupOffsets, shareGroupBuildPartitionDeleteRequest).
"""

from collections.abc import Iterable
from typing import NamedTuple

from warmlog.broker.groups.automaton import Answer, Waiter
from warmlog.broker.groups.modern.assignment import TopicInfo, Topics
from warmlog.broker.groups.share.partition_states import KnownTopic
from warmlog.broker.groups.share.progress import ShareProgress
from warmlog.broker.groups.share.stored import StoredShareGroup
from warmlog.broker.share.persister import InitialState, PartitionById
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.offsets import (
    AlteredTopic,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponse,
    NewStartOffset,
    PartitionOutcome,
    TopicOutcome,
    TopicOutcomes,
)

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NOT_HOSTED = "This server does not host this topic-partition."


class Deletion(NamedTuple):
    """The states to delete, and the topics that they belong to, by id."""

    partitions: list[PartitionById]
    topics: dict[bytes, str]


class ShareOffsets:
    """Changes the offsets of one group."""

    def __init__(self, group: StoredShareGroup, progress: ShareProgress) -> None:
        self._group = group
        self._progress = progress

    def alter(
        self, altered: Iterable[AlteredTopic], topics: Topics, waiter: Waiter, wall_ms: int
    ) -> list[InitialState]:
        """Set the start offsets of partitions; return their new states, and answer with an outcome for each."""
        outcomes, states, begun = [], [], {}
        for each in altered:
            topic = topics.named(each.topic)
            valid = [] if topic is None else [new for new in each.partitions if _problem(new, topic.partitions) is None]
            if topic is not None and valid:
                begun[topic.id] = KnownTopic(topic.name, frozenset([new.partition for new in valid]))
                epoch = self._group.epoch.epoch
                states += [InitialState(topic.id, new.partition, epoch, new.start_offset) for new in valid]
            outcomes.append(_outcomes(each, topic))
        if begun:
            self._progress.initialization.begin_at(begun, wall_ms)
            self._progress.put_states(self._group.states.begun(begun))
        self._progress.journal.commit(Answer(waiter, AlterShareGroupOffsetsResponse(topics=tuple(outcomes))))
        return states

    def delete(self, names: Iterable[str], topics: Topics, waiter: Waiter) -> Deletion:
        """Delete the states of topics; return them, and answer with an outcome for each topic without states."""
        states, refused = self._group.states, []
        deletion = Deletion([], {})
        partitions: list[PartitionById] = []
        for name in dict.fromkeys(names):
            topic = topics.named(name)
            if topic is None:
                refused.append(TopicOutcome(topic=name, error=UNKNOWN, message=NOT_HOSTED))
            elif topic.id in states.initialized:
                partitions += [(topic.id, each) for each in sorted(states.initialized[topic.id].partitions)]
                deletion.topics[topic.id] = name
            elif topic.id in states.deleting:
                partitions += [(topic.id, each) for each in range(topic.partitions)]
                deletion.topics[topic.id] = name
            else:
                message = "There is no offset information to delete."
                refused.append(TopicOutcome(topic=name, error=UNKNOWN, message=message))
        self._progress.put_states(states.deletion(deletion.topics))
        self._progress.journal.commit(Answer(waiter, DeleteShareGroupOffsetsResponse(topics=tuple(refused))))
        return deletion._replace(partitions=partitions)

    def delete_all(self, topics: Topics, waiter: Waiter) -> Deletion:
        """Delete all states of a group that is about to be deleted; return them."""
        states = self._group.states
        existing = {each: topic for each in states.deleting if (topic := topics.identified(each)) is not None}
        partitions = {
            (topic_id, partition)
            for known in (states.initialized, states.initializing)
            for topic_id, topic in known.items()
            for partition in topic.partitions
        }
        partitions |= {(each, partition) for each, topic in existing.items() for partition in range(topic.partitions)}
        self._progress.put_states(states.deletion_of_all({each: topic.name for each, topic in existing.items()}))
        self._progress.journal.commit(Answer(waiter, DeleteShareGroupOffsetsResponse()))
        return Deletion(sorted(partitions), dict(self._group.states.deleting))

    def deleted(self, topic_ids: Iterable[bytes], waiter: Waiter) -> None:
        """Store that the states of topics were deleted."""
        self._progress.put_states(self._group.states.deleted(topic_ids))
        self._progress.journal.commit(Answer(waiter, DeleteShareGroupOffsetsResponse()))


def _outcomes(altered: AlteredTopic, topic: TopicInfo | None) -> TopicOutcomes:
    count = 0 if topic is None else topic.partitions
    outcomes = [_problem(each, count) or PartitionOutcome(partition=each.partition) for each in altered.partitions]
    if topic is None:
        return TopicOutcomes(topic=altered.topic, partitions=tuple(outcomes))
    return TopicOutcomes(topic=altered.topic, topic_id=topic.id, partitions=tuple(outcomes))


def _problem(new: NewStartOffset, count: int) -> PartitionOutcome | None:
    """Return why a partition cannot start at an offset, None if it can. `partitions`: the topic's number of them."""
    if not 0 <= new.partition < count:
        return PartitionOutcome(partition=new.partition, error=UNKNOWN, message=NOT_HOSTED)
    if new.start_offset < 0:
        message = f"{new.start_offset} is no offset"
        return PartitionOutcome(partition=new.partition, error=ErrorCode.INVALID_REQUEST, message=message)
    return None
