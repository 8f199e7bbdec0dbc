"""Decide which share-partitions of a group need a state, and their start offsets.

Source: Kafka's GroupMetadataManager (4.4: subscribedTopicsChangeMap, maybeCreateInitializeShareGroupStateRequest).
"""

from collections.abc import Iterable, Mapping

from warmlog.broker.groups.automaton import NEVER, Instant
from warmlog.broker.groups.modern.assignment import TopicInfo, Topics
from warmlog.broker.groups.share.effects import Initialize, Start
from warmlog.broker.groups.share.partition_states import NOTHING, KnownTopic, PartitionStates
from warmlog.broker.groups.share.stored import StoredShareGroup

FIRST_OFFSET = 0
BY_RESET = -1  # the partition's leader decides by the group's share.auto.offset.reset


class Initialization:
    """The running initializations of one group, and whether there may be more to begin."""

    __slots__ = ("_begun_ms", "_group", "is_due")

    def __init__(self, group: StoredShareGroup) -> None:
        self._group = group
        self._begun_ms: dict[bytes, int] = {}  # start time by topic id of those being initialized
        self.is_due = True  # whether topics or subscriptions may have changed since the last `missing`

    def loaded(self, now: Instant) -> None:
        """Restart the time limit of initializations that another coordinator began."""
        self._begun_ms = dict.fromkeys(self._group.states.initializing, now.wall_ms)

    def missing(self, topics: Topics, retry_ms: int, now: Instant) -> dict[bytes, KnownTopic]:
        """Return the partitions to initialize now. Initializations without an outcome are repeated after `retry_ms`.

        Computed only if `is_due`, or if an initialization has to be repeated.
        """
        self._begun_ms = {
            topic_id: begun_ms
            for topic_id, begun_ms in self._begun_ms.items()
            if topic_id in self._group.states.initializing
        }
        retry_at_ms = min(self._begun_ms.values(), default=NEVER) + retry_ms
        if not self.is_due and now.wall_ms < retry_at_ms:
            return {}
        self.is_due = False
        states, missing = self._group.states, {}
        for name in self._group.topics:
            topic = topics.named(name)
            if topic is not None:
                known = self._known(states, topic, retry_ms, now)
                if len(known) < topic.partitions:
                    missing[topic.id] = KnownTopic(name, frozenset(range(topic.partitions)) - known)
        return missing

    def _known(self, states: PartitionStates, topic: TopicInfo, retry_ms: int, now: Instant) -> frozenset[int]:
        known = states.initialized.get(topic.id, NOTHING).partitions
        begun_ms = self._begun_ms.get(topic.id)
        if begun_ms is None or now.wall_ms - begun_ms >= retry_ms:
            return known
        return known | states.initializing.get(topic.id, NOTHING).partitions

    def begin_at(self, topic_ids: Iterable[bytes], wall_ms: int) -> None:
        """Record when the initialization of topics began."""
        self._begun_ms |= dict.fromkeys(topic_ids, wall_ms)

    def begin(self, missing: Mapping[bytes, KnownTopic], epoch: int, now: Instant) -> Initialize:
        """Return what to initialize, before the group's record says so.

        Partitions added to a topic start at their first offset, so that no record is skipped. Unlike in Kafka, a
        repeated first initialization leaves the start offset to the leader.
        """
        states, starts = self._group.states, []
        for topic_id, topic in missing.items():
            begun = states.initializing.get(topic_id, NOTHING).partitions
            first = frozenset[int]() if topic_id in states.initialized else topic.partitions
            repeated = first & begun if begun else first
            added = topic.partitions - repeated
            starts += [Start(topic_id, repeated, BY_RESET)] if repeated else []
            starts += [Start(topic_id, added, FIRST_OFFSET)] if added else []
        self.begin_at(missing, now.wall_ms)
        return Initialize(epoch, tuple(starts))
