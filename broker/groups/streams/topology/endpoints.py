"""List the partitions whose state is at a member, for interactive queries to its endpoint.

Source: Kafka's EndpointToPartitionsManager (4.4.0).
"""

from collections.abc import Iterable, Mapping

from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.streams.tasks import TaskMap, Tasks
from warmlog.broker.groups.streams.topology.configured import ConfiguredSubtopology
from warmlog.protocol.kafka.messages.groups.streams import Endpoint, EndpointPartitions, NamedTopicPartitions


def endpoint_partitions(
    endpoint: Endpoint, tasks: Tasks, subtopologies: Mapping[str, ConfiguredSubtopology], topics: Topics
) -> EndpointPartitions:
    """Return the source partitions of a member's active tasks, and those of its standby and warm-up tasks.

    Tasks of subtopologies that the topology no longer has, and topics that do not exist, are omitted.
    """
    replicas = {
        subtopology_id: sorted({*tasks.standby.get(subtopology_id, ()), *tasks.warmup.get(subtopology_id, ())})
        for subtopology_id in dict.fromkeys((*tasks.standby, *tasks.warmup))
    }
    return EndpointPartitions(
        endpoint=endpoint,
        active=tuple(_partitions(tasks.active, subtopologies, topics)),
        standby=tuple(_partitions({each: tuple(replicas[each]) for each in replicas}, subtopologies, topics)),
    )


def _partitions(
    tasks: TaskMap, subtopologies: Mapping[str, ConfiguredSubtopology], topics: Topics
) -> Iterable[NamedTopicPartitions]:
    for subtopology_id, numbers in tasks.items():
        subtopology = subtopologies.get(subtopology_id)
        if subtopology is None:
            continue
        for name in sorted(subtopology.sources.union(subtopology.repartition_sources)):
            topic = topics.named(name)
            partitions = () if topic is None else tuple(each for each in numbers if each < topic.partitions)
            if partitions:
                yield NamedTopicPartitions(topic=name, partitions=partitions)
