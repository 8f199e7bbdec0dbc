"""Describe assignments of partitions for ConsumerGroupDescribe and ShareGroupDescribe."""

from collections.abc import Collection, Mapping

from warmlog.broker.groups.modern.assignment import Topics
from warmlog.protocol.kafka.messages.groups.consumer import DescribedAssignment, NamedPartitions


def described_assignment(partitions: Mapping[bytes, Collection[int]], topics: Topics) -> DescribedAssignment:
    """Describe an assignment, without topics that no longer exist."""
    return DescribedAssignment(
        partitions=tuple(
            NamedPartitions(topic_id=topic_id, topic=topic.name, partitions=tuple(sorted(numbers)))
            for topic_id, numbers in sorted(partitions.items())
            if (topic := topics.identified(topic_id)) is not None
        )
    )
