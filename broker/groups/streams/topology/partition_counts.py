"""Decide the numbers of partitions of a topology's internal topics.

1.  A repartition topic has the number of partitions that the application fixed, otherwise that of its largest source:
    the largest number of partitions of any topic read by a subtopology that writes to it.
2.  Topics of a copartition group have the same number: that of the topics from outside, or, if there are only
    repartition topics, the one that is fixed or the largest.
3.  A changelog has as many partitions as its subtopology has tasks.

If a number is derived before everything it depends on is known, the order of subtopologies matters, as in Kafka.

Source: Kafka's RepartitionTopics, CopartitionedTopicsEnforcer, ChangelogTopics (4.4.0).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from warmlog.broker.groups.streams.topology.problems import InvalidTopologyError, incorrectly_partitioned
from warmlog.protocol.kafka.messages.groups.streams import Subtopology

#: Returns the existing or decided number of partitions of a topic; None if there is neither.
PartitionsOf: TypeAlias = Callable[[str], int | None]


def repartition_counts(subtopologies: Sequence[Subtopology], partitions_of: PartitionsOf) -> dict[str, int]:
    """Return the number of partitions of each repartition topic.

    `partitions_of` knows all external topics. Raises InvalidTopologyError for topics that are written only by tasks
    that read them, and for topics that are read and never written.
    """
    counts = {
        topic.topic: topic.partitions
        for subtopology in subtopologies
        for topic in subtopology.repartition_sources
        if topic.partitions
    }
    readers: dict[str, list[int]] = {}
    for position, subtopology in enumerate(subtopologies):
        for topic in subtopology.repartition_sources:
            readers.setdefault(topic.topic, []).append(position)
    # Subtopologies are visited in order and in rounds; later rounds visit those whose sources have changed.
    visits = [(0, position) for position in range(len(subtopologies))]
    heapify(visits)
    while visits:
        round_number, position = heappop(visits)
        decided = _decide_sinks(subtopologies[position], counts, partitions_of)
        for topic_name in decided:
            for reader in readers.get(topic_name, ()):
                if round_number or reader <= position:  # later ones are still visited in the first round
                    heappush(visits, (round_number + (reader <= position), reader))
    if any(sink not in counts for subtopology in subtopologies for sink in subtopology.repartition_sinks):
        raise InvalidTopologyError(
            "Failed to compute number of partitions for all repartition topics. "
            "There may be loops in the topology that cannot be resolved."
        )
    if not counts.keys() >= readers.keys():
        raise InvalidTopologyError(
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic is "
            "never used as a sink topic."
        )
    return counts


def _decide_sinks(subtopology: Subtopology, counts: dict[str, int], partitions_of: PartitionsOf) -> list[str]:
    """Set the numbers of the topics that a subtopology writes to, if a source is known; return these topics."""
    undecided = [sink for sink in dict.fromkeys(subtopology.repartition_sinks) if sink not in counts]
    if not undecided:
        return []
    known = [counts.get(topic.topic) for topic in subtopology.repartition_sources]
    known += map(partitions_of, subtopology.sources)
    most = max((each for each in known if each is not None), default=None)
    if most is None:
        return []
    counts.update(dict.fromkeys(undecided, most))
    return undecided


class Copartitioning:
    """The rule that topics of a copartition group have the same number of partitions."""

    def __init__(self, fixed: Collection[str], flexible: Collection[str], partitions_of: PartitionsOf) -> None:
        """Begin with repartition topics whose numbers the application fixed, and with the others."""
        self._fixed = frozenset(fixed)
        self._repartition = self._fixed.union(flexible)
        self._partitions_of = partitions_of
        self._fixed_counts = {self._count(topic) for topic in fixed}

    def enforced(self, group: Collection[str]) -> dict[str, int]:
        """Return the number of partitions for each repartition topic of a group.

        Raises TopicsError if topics of the group cannot have the same number. If the group has only repartition topics,
        all topics with a fixed number count, including those of other groups.
        """
        counts = {topic: self._count(topic) for topic in group}
        repartition = {topic: count for topic, count in counts.items() if topic in self._repartition}
        external = {topic: count for topic, count in counts.items() if topic not in self._repartition}
        if external:
            decided = _only(set(external.values()), external)
        elif self._fixed and repartition:
            decided = _only(self._fixed_counts, repartition)
        else:
            decided = max(repartition.values(), default=0)
        for topic, count in repartition.items():
            if topic in self._fixed and count != decided:
                raise incorrectly_partitioned(
                    f"Number of partitions [{count}] of repartition topic [{topic}] doesn't match number of partitions "
                    f"[{decided}] of the source topic."
                )
        return dict.fromkeys(repartition, decided)

    def _count(self, topic: str) -> int:
        count = self._partitions_of(topic)
        if count is None:
            raise InvalidTopologyError(f"Number of partitions is not set for topic: {topic}")
        return count


def _only(counts: Collection[int], topics: Mapping[str, int]) -> int:
    if len(counts) > 1:
        listed = ", ".join(f"{topic}={topics[topic]}" for topic in sorted(topics))
        raise incorrectly_partitioned(f"Following topics do not have the same number of partitions: [{{{listed}}}]")
    return next(iter(counts))


def changelog_counts(subtopologies: Iterable[Subtopology], partitions_of: PartitionsOf) -> dict[str, int]:
    """Return the number of partitions of each changelog, given those of all sources.

    Raises InvalidTopologyError for a subtopology without a source.
    """
    return {
        changelog.topic: tasks
        for subtopology in subtopologies
        for tasks in (number_of_tasks(subtopology, partitions_of),)
        for changelog in subtopology.changelogs
    }


def number_of_tasks(subtopology: Subtopology, partitions_of: PartitionsOf) -> int:
    """Return the number of tasks of a subtopology: the largest number of partitions of any of its sources.

    Raises InvalidTopologyError without a source.
    """
    names = [*subtopology.sources, *(topic.topic for topic in subtopology.repartition_sources)]
    counts = [count for count in map(partitions_of, names) if count is not None]
    if not counts:
        raise InvalidTopologyError(f"No source topics found for subtopology {subtopology.subtopology_id}")
    return max(counts)
