"""Data directories that belong to a Kafka node in KRaft mode.

Such a node keeps its topics and their settings in the log `__cluster_metadata-0`, which this broker does not read. Its
partitions could only be served with guessed settings, and a guessed retention would delete records.
"""

from warmlog.broker.log.directory.names import METADATA_TOPIC
from warmlog.broker.log.errors import DataDirectoryError
from warmlog.broker.log.io.directory_names import PartitionName, parse_partition_directory
from warmlog.broker.log.io.disk import Disk

SHOWN_TOPICS = 5


def refuse_kafka_node(disk: Disk, path: str, metadata_file: str) -> None:
    """Raise DataDirectoryError if a Kafka node has used a directory, and this broker (`metadata_file`) has not.

    The directory is not changed. If it cannot be read, the caller reports that.
    """
    try:
        entries = list(disk.scan(path))
    except OSError:
        return
    names = [name for entry in entries if entry.is_directory and (name := parse_partition_directory(entry.name))]
    if all(name.topic != METADATA_TOPIC for name in names) or any(entry.name == metadata_file for entry in entries):
        return
    raise DataDirectoryError(
        f"data directory {path} belongs to a Kafka node ({METADATA_TOPIC}-0), whose topics and settings are not"
        f" read{_listed(names)}. Serve another directory, and move the topics to it; see the operations guide, 'How do"
        " I move a topic from Kafka to warmlog?'"
    )


def _listed(names: list[PartitionName]) -> str:
    """Describe the topics of partition directories: the first ones with their number of partitions."""
    partitions: dict[str, int] = {}
    for name in sorted(name for name in names if name.moved is None and name.topic != METADATA_TOPIC):
        partitions[name.topic] = partitions.get(name.topic, 0) + 1
    if not partitions:
        return ""
    shown = [f"{topic} (partitions: {count})" for topic, count in list(partitions.items())[:SHOWN_TOPICS]]
    more = [f"{len(partitions) - SHOWN_TOPICS} more topics"] if len(partitions) > SHOWN_TOPICS else []
    return f": {', '.join(shown + more)}"
