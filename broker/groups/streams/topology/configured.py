"""A topology fitted to the existing topics.

    sources exist?                 no: MISSING_SOURCE_TOPICS
    numbers of partitions decided  contradictory: INCORRECTLY_PARTITIONED_TOPICS
    internal topics exist?         with another number: INCORRECTLY_PARTITIONED_TOPICS, no: MISSING_INTERNAL_TOPICS

Tasks are assigned only if there is no problem. If only internal topics are missing, they can be created.

Source: Kafka's InternalTopicManager, ConfiguredTopology (4.4.0).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from warmlog.broker.groups.modern.assignment import NamedTopics
from warmlog.broker.groups.streams.status import Status
from warmlog.broker.groups.streams.topology.partition_counts import (
    Copartitioning,
    changelog_counts,
    number_of_tasks,
    repartition_counts,
)
from warmlog.broker.groups.streams.topology.problems import (
    InvalidTopologyError,
    TopicProblem,
    TopicsError,
    incorrectly_partitioned,
)
from warmlog.protocol.kafka.messages.groups.streams import (
    InternalTopic,
    Subtopology,
    Topology,
)
from warmlog.protocol.kafka.messages.groups.streams_descriptions import (
    DescribedSubtopology,
)
from warmlog.protocol.request import NewTopic

DEFAULT_REPLICATION = -1
SHOWN_TOPICS = 3  # topics named in a status
MAX_TASKS = 20_000  # tasks of a topology: a single member that gets all of them holds the event loop for 7 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredSubtopology:
    """A subtopology with the number of its tasks, and the partitions of its internal topics."""

    number_of_tasks: int
    sources: frozenset[str]
    repartition_sources: Mapping[str, InternalTopic]
    repartition_sinks: frozenset[str]
    changelogs: Mapping[str, InternalTopic]

    @property
    def is_stateful(self) -> bool:
        """Whether its tasks have a state, which can be replicated."""
        return bool(self.changelogs)

    def described(self, subtopology_id: str) -> DescribedSubtopology:
        """Return it in the form of StreamsGroupDescribe, with the decided numbers of partitions."""
        return DescribedSubtopology(
            subtopology_id=subtopology_id,
            sources=tuple(sorted(self.sources)),
            repartition_sinks=tuple(sorted(self.repartition_sinks)),
            changelogs=_by_name(self.changelogs),
            repartition_sources=_by_name(self.repartition_sources),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredTopology:
    """The result of fitting a topology to the existing topics.

    metadata_hash: of the topics that it was configured with (`SubscribedTopics.hash`).
    subtopologies: by id, in order; empty if sources are missing or topics are incorrectly partitioned.
    missing: the internal topics to create, by name.
    """

    epoch: int
    metadata_hash: int
    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    missing: tuple[NewTopic, ...] = ()
    problem: TopicProblem | None = None

    @property
    def is_ready(self) -> bool:
        """Whether its tasks can be assigned."""
        return self.problem is None


def configure(topology: Topology, topics: NamedTopics, metadata_hash: int) -> ConfiguredTopology:
    """Fit a topology to the existing topics.

    Raises InvalidTopologyError for a topology that cannot fit any topics, also where Kafka fails with
    UNKNOWN_SERVER_ERROR (two subtopologies with one id, indexes beyond a list).
    """
    try:
        subtopologies = _configured(topology, topics)
        missing = _missing(subtopologies, topics)
    except TopicsError as error:
        return ConfiguredTopology(
            epoch=topology.epoch, metadata_hash=metadata_hash, subtopologies=None, problem=error.problem
        )
    problem = None
    if missing:
        detail = f"Internal topics are missing: {_summary([topic.name for topic in missing])}"
        problem = TopicProblem(Status.MISSING_INTERNAL_TOPICS, detail)
    return ConfiguredTopology(
        epoch=topology.epoch,
        metadata_hash=metadata_hash,
        subtopologies=subtopologies,
        missing=missing,
        problem=problem,
    )


def required_topics(topology: Topology) -> frozenset[str]:
    """Return the topics whose metadata a topology depends on: sources, repartition topics and changelogs."""
    return frozenset(
        name
        for subtopology in topology.subtopologies
        for name in (
            *subtopology.sources,
            *(topic.topic for topic in subtopology.repartition_sources),
            *(topic.topic for topic in subtopology.changelogs),
        )
    )


def _configured(topology: Topology, topics: NamedTopics) -> dict[str, ConfiguredSubtopology]:
    subtopologies = topology.subtopologies
    missing = {name for each in subtopologies for name in each.sources if topics.named(name) is None}
    if missing:
        raise TopicsError(Status.MISSING_SOURCE_TOPICS, f"Source topics {_summary(sorted(missing))} are missing.")
    decided: dict[str, int] = {}

    def partitions_of(name: str) -> int | None:
        topic = topics.named(name)
        return decided.get(name) if topic is None else topic.partitions

    decided.update(repartition_counts(subtopologies, partitions_of))
    repartition = [topic for each in subtopologies for topic in each.repartition_sources]
    copartitioning = Copartitioning(
        {topic.topic for topic in repartition if topic.partitions},
        {topic.topic for topic in repartition if not topic.partitions},
        partitions_of,
    )
    for each in subtopologies:
        for group in _copartition_groups(each):
            decided.update(copartitioning.enforced(group))
    decided.update(changelog_counts(subtopologies, partitions_of))
    configured = {
        each.subtopology_id: ConfiguredSubtopology(
            number_of_tasks=number_of_tasks(each, partitions_of),
            sources=frozenset(each.sources),
            repartition_sources=_decided(each.repartition_sources, decided),
            repartition_sinks=frozenset(each.repartition_sinks),
            changelogs=_decided(each.changelogs, decided),
        )
        for each in sorted(subtopologies, key=lambda each: each.subtopology_id)
    }
    if len(configured) < len(subtopologies):
        raise InvalidTopologyError("Subtopology IDs must be unique.")
    tasks = sum([each.number_of_tasks for each in configured.values()])
    if tasks > MAX_TASKS:
        raise incorrectly_partitioned(f"The topology has {tasks:,} tasks; at most {MAX_TASKS:,} are supported.")
    return configured


def _copartition_groups(subtopology: Subtopology) -> list[frozenset[str]]:
    repartition_sources = [topic.topic for topic in subtopology.repartition_sources]
    groups = []
    for group in subtopology.copartition_groups:
        pairs = ((subtopology.sources, group.sources), (repartition_sources, group.repartition_sources))
        if any(not 0 <= index < len(names) for names, indexes in pairs for index in indexes):
            raise InvalidTopologyError(
                f"Copartition groups of subtopology {subtopology.subtopology_id} refer to topics that it does not have."
            )
        groups.append(frozenset(names[index] for names, indexes in pairs for index in indexes))
    return groups


def _decided(topics: Iterable[InternalTopic], decided: Mapping[str, int]) -> dict[str, InternalTopic]:
    """Return internal topics by name; where the application fixed no number of partitions, the decided one is set."""
    named = {}
    for topic in topics:
        partitions = topic.partitions or decided[topic.topic]
        if partitions < 1:
            raise InvalidTopologyError(f"Number of partitions of topic {topic.topic} must be at least 1.")
        named[topic.topic] = InternalTopic(
            topic=topic.topic,
            partitions=partitions,
            replication_factor=topic.replication_factor,
            configs=topic.configs,
        )
    return named


def _missing(subtopologies: Mapping[str, ConfiguredSubtopology], topics: NamedTopics) -> tuple[NewTopic, ...]:
    """Return the internal topics to create. Raises TopicsError if one exists with another number of partitions."""
    internal: dict[str, InternalTopic] = {}
    for subtopology in subtopologies.values():
        internal.update(subtopology.repartition_sources)
        internal.update(subtopology.changelogs)
    missing = []
    for name in sorted(internal):
        expected, existing = internal[name], topics.named(name)
        if existing is None:
            missing.append(
                NewTopic(
                    name=name,
                    partitions=expected.partitions,
                    replication_factor=expected.replication_factor or DEFAULT_REPLICATION,
                    configs={each.key: each.value for each in expected.configs},
                )
            )
        elif existing.partitions != expected.partitions:
            raise incorrectly_partitioned(
                f"Existing topic {name} has different number of partitions: expected {expected.partitions}, "
                f"found {existing.partitions}"
            )
    return tuple(missing)


def _summary(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN_TOPICS])
    return f"{shown} and {len(names) - SHOWN_TOPICS} additional topics" if len(names) > SHOWN_TOPICS else shown


def _by_name(topics: Mapping[str, InternalTopic]) -> tuple[InternalTopic, ...]:
    return tuple(topics[name] for name in sorted(topics))
