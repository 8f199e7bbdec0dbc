"""Topics that exist, by name and number of partitions, and topologies that need few words."""

from collections.abc import Iterable, Mapping

from warmlog.broker.groups.modern.assignment import TopicInfo
from warmlog.broker.groups.modern.topic_hash import topic_hash
from warmlog.protocol.kafka.messages.groups.streams import CopartitionGroup, InternalTopic, KeyValue, Subtopology

ID_SIZE = 16


class ExistingTopics:
    """The topics of a cluster; `counts` may change."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)

    def named(self, name: str) -> TopicInfo | None:
        if name not in self.counts:
            return None
        return TopicInfo(name.encode()[:ID_SIZE].ljust(ID_SIZE), name, self.counts[name])

    def identified(self, topic_id: bytes) -> TopicInfo | None:
        return next((topic for topic in map(self.named, self.counts) if topic and topic.id == topic_id), None)

    def hash_of(self, name: str) -> int | None:
        topic = self.named(name)
        return None if topic is None else topic_hash(topic)


def internal(text: str) -> InternalTopic:
    """Read "name", "name:partitions" or "name key=value", each as often as needed."""
    name, *configs = text.split()
    name, _, partitions = name.partition(":")
    pairs = (config.partition("=") for config in configs)
    return InternalTopic(
        topic=name,
        partitions=int(partitions or 0),
        configs=tuple(KeyValue(key=key, value=value) for key, _, value in pairs),
    )


def subtopology(
    subtopology_id: str,
    sources: str = "",
    *,
    reads: str = "",
    writes: str = "",
    changelogs: Iterable[str] = (),
    copartitioned: Iterable[tuple[tuple[int, ...], tuple[int, ...]]] = (),
) -> Subtopology:
    """Return a subtopology. `reads`, `writes`: its repartition topics; `copartitioned`: indexes of its topics."""
    return Subtopology(
        subtopology_id=subtopology_id,
        sources=tuple(sources.split()),
        changelogs=tuple(map(internal, changelogs)),
        repartition_sinks=tuple(writes.split()),
        repartition_sources=tuple(map(internal, reads.split())),
        copartition_groups=tuple(
            CopartitionGroup(sources=external, repartition_sources=repartition)
            for external, repartition in copartitioned
        ),
    )
