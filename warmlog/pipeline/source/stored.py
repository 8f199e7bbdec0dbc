"""Select the partitions of a read from its directories: whole topics, and one replica of each partition.

Invariants:
1. A part of a topic is never mistaken for the whole topic: the number of partitions comes from the metadata store of
   its
broker or cluster, or from a broker. If it is unknown, the read is refused, unless the options name the partitions.
2. If a partition has several replicas, only records known to be committed are read: those that all replicas have, or
those below the high watermark in one replica's checkpoint. Other records may be truncated.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from warmlog.broker.log.io.directory_names import parse_partition_directory
from warmlog.inspect.catalog import KnownTopic, data_directories, known_topics, missing_partitions
from warmlog.inspect.partition import StoredPartition, find_partitions
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.ranges import key_of
from warmlog.protocol.partitions import TopicPartition

T = TypeVar("T")

TRIES = 10  # while a topic is created or extended: its metadata is stored before its directories exist
PAUSE_S = 0.1


class PartOfTopicError(PipelineError):
    """The directories lack partitions of a topic."""


def selected_partitions(options: ReadOptions, *, is_part_allowed: bool = False) -> list[StoredPartition]:
    """Return the partitions that the options select, in order.

    `is_part_allowed`: whether a broker has the partitions that the directories lack. Raises PipelineError,
    InspectError, OSError.
    """
    if is_part_allowed:
        return _selected(options, is_part_allowed=True)
    return _patiently(lambda: _selected(options, is_part_allowed=False))


def _patiently(act: Callable[[], T]) -> T:
    for _ in range(TRIES):
        try:
            return act()
        except PartOfTopicError:
            time.sleep(PAUSE_S)
    return act()


def _selected(options: ReadOptions, *, is_part_allowed: bool) -> list[StoredPartition]:
    assert options.path is not None, "a read of directories has a path"
    directories = data_directories(options.path)
    partitions = [
        partition
        for directory in directories
        for partition in find_partitions(str(directory))
        if options.topics.wants(partition.topic, partition.partition)
    ]
    parents = [each for each in directories if not _is_partition(each, partitions)]
    known = known_topics(dict.fromkeys(Path(stored.directory).parent for stored in partitions) | dict.fromkeys(parents))
    topics = {stored.topic for stored in partitions}
    if options.topics.assigned is None and parents and not is_part_allowed:
        known = {**_known_to_broker(options, topics - known.keys()), **known}
        for topic in sorted(topics):
            _check_whole(topic, known.get(topic), partitions, options.path)
    return _one_replica_of_each(partitions, known)


def _is_partition(directory: Path, partitions: Iterable[StoredPartition]) -> bool:
    """Return whether a path is the directory of a single partition."""
    return parse_partition_directory(directory.name) is not None and any(
        partition.directory == str(directory) for partition in partitions
    )


def _check_whole(topic: str, known: KnownTopic | None, partitions: Iterable[StoredPartition], path: str) -> None:
    """Raise PipelineError unless all partitions of a topic are present."""
    there = sorted({partition.partition for partition in partitions if partition.topic == topic})
    listed = f"{'partition' if len(there) == 1 else 'partitions'} {', '.join(map(str, there))}"
    if known is None:
        raise PipelineError(
            f"{path} has {listed} of topic {topic}, whose number of partitions is unknown there: name those to read"
            " with assign, or give bootstrap, the address of a broker with the topic"
        )
    if missing_partitions(known, there):
        raise PartOfTopicError(
            f"{path} has {listed} of topic {topic}, which has {known.partitions}: give all of its data directories,"
            " separated by commas, or name the partitions to read with assign"
        )


def _one_replica_of_each(
    partitions: Iterable[StoredPartition], known: Mapping[str, KnownTopic]
) -> list[StoredPartition]:
    """Return one replica of each partition, the one with the most records known to be committed."""
    replicas: dict[TopicPartition, list[StoredPartition]] = defaultdict(list)
    for partition in partitions:
        topic = known.get(partition.topic)
        if topic is None or partition.topic_id in {
            None,
            topic.topic_id,
        }:  # otherwise left over from a deleted topic of the same name
            replicas[key_of(partition)].append(partition)
    return [_chosen(replicas[key], known.get(key[0])) for key in sorted(replicas)]


def _chosen(replicas: Sequence[StoredPartition], topic: KnownTopic | None) -> StoredPartition:
    """Return the replica to read, up to the end of the records known to be committed."""
    if topic is not None:
        count = topic.replicas.get(replicas[0].partition, 1)
        on_all = _on_all(replicas) if len(replicas) == count else 0
        replicas = [
            replace(replica, high_watermark=max(replica.high_watermark or 0, on_all) if count > 1 else None)
            for replica in replicas
        ]
    return max(replicas, key=lambda replica: replica.end_offset())


def _on_all(replicas: Sequence[StoredPartition]) -> int:
    """Return an offset before which all replicas have the same records, or 0 if their logs may have diverged.

    Logs with a batch of the same leader epoch at an offset are identical before it.
    """
    end = min(replica.log_end_offset for replica in replicas)
    epochs = {replica.epoch_before(end) for replica in replicas}
    return end if len(epochs) == 1 else 0


def _known_to_broker(options: ReadOptions, topics: Iterable[str]) -> dict[str, KnownTopic]:
    names = sorted(topics)
    if options.brokers is None or not names:
        return {}
    from warmlog.pipeline.cluster import ClusterConnection  # imports the client
    from warmlog.pipeline.retry import Retry

    with ClusterConnection(options.brokers, Retry()) as cluster:
        cluster.start()
        described = cluster.call(lambda client: client.metadata(names)).topics
    return {
        topic.name: KnownTopic(
            topic_id=topic.topic_id or "",
            partitions=len(topic.partitions),
            replicas={
                partition.partition: len(partition.replicas)
                for partition in topic.partitions
                if len(partition.replicas) > 1
            },
        )
        for topic in described
        if not topic.error
    }
