"""Merge the brokers' descriptions of mirrored topics: each broker describes the partitions it leads."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from warmlog.protocol.native.mirrors import (
    DescribeMirrorResponse,
    MirroredPartition,
    MirroredTopic,
    MirrorState,
)

# The state of a topic is the first of these that a broker reports.
_ORDER = (MirrorState.REFUSED, MirrorState.STOPPED, MirrorState.FOLLOWING, MirrorState.PROMOTED)


def merged_mirrors(responses: Sequence[DescribeMirrorResponse]) -> DescribeMirrorResponse:
    """Merge the descriptions of several brokers into one."""
    if len(responses) == 1:
        return responses[0]
    topics: dict[str, list[MirroredTopic]] = {}
    for topic in (topic for response in responses for topic in response.topics):
        topics.setdefault(topic.name, []).append(topic)
    return DescribeMirrorResponse(
        source=next((response.source for response in responses if response.source), ""),
        problem=next((response.problem for response in responses if response.problem), None),
        topics=tuple([_merged(topics[name]) for name in sorted(topics)]),
    )


def _merged(topics: Sequence[MirroredTopic]) -> MirroredTopic:
    first = min(topics, key=lambda topic: _ORDER.index(topic.state))
    cluster_id = next((topic.cluster_id for topic in topics if topic.cluster_id), "")
    partitions = _best([partition for topic in topics for partition in topic.partitions])
    return replace(first, cluster_id=cluster_id, partitions=partitions)


def _best(partitions: Iterable[MirroredPartition]) -> tuple[MirroredPartition, ...]:
    """Return one description of each partition: the latest, preferably from brokers that have its log."""
    best: dict[int, MirroredPartition] = {}
    for partition in partitions:
        known = best.get(partition.partition)
        if known is None or (partition.source_end, partition.end) > (known.source_end, known.end):
            best[partition.partition] = partition
    return tuple([best[index] for index in sorted(best)])
