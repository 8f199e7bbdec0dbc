"""Check the files of a data directory: names, `meta.properties`, and the checkpoints against the partitions."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from warmlog.broker.log.directory.checkpoint import (
    CLEANER_POINTS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    read_offsets,
)
from warmlog.broker.log.directory.identity import META_PROPERTIES, META_VERSION, parse_properties
from warmlog.broker.log.directory.names import METADATA_TOPIC, is_known_name
from warmlog.broker.log.errors import CheckpointError
from warmlog.broker.log.io.directory_names import decode_topic_id, parse_partition_directory
from warmlog.broker.log.io.disk import Disk
from warmlog.inspect.checks.partition import TEMPORARY_SUFFIX, checkpoint_fault, without_path
from warmlog.inspect.findings import Finding
from warmlog.protocol.partitions import TopicPartition

CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_POINTS)
AFTER_CLEAN_STOP = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS)
MAX_SHOWN = 80  # maximum characters shown of an invalid line
KAFKA_FILES = frozenset({"bootstrap.checkpoint"})  # file name as written by KRaft


class LogEnd(NamedTuple):
    """A log end offset; unless `is_whole`, the end of the readable part."""

    offset: int
    is_whole: bool


def name_findings(directory: Path, *, running: bool) -> Iterator[Finding]:
    """Report files that do not belong in a data directory, or that an interrupted change has left."""
    for path in sorted(directory.iterdir()):
        partition = parse_partition_directory(path.name) if path.is_dir() else None
        known = is_known_name(path.name) or path.name in KAFKA_FILES
        if partition is None and not known:
            yield Finding(path, "does not belong here")
        elif partition and partition.moved in {"delete", "future"}:
            continue  # directories removed after file.delete.delay.ms or by the next start, or being moved here
        elif partition and partition.moved:
            yield Finding(path, "data of another topic of this name, which is not served")
        elif not running and path.name.endswith(TEMPORARY_SUFFIX):
            yield Finding(path, "left over from an interrupted change")


def property_findings(directory: Path) -> Iterator[Finding]:
    """Check `meta.properties`: version, cluster id, node id and directory id."""
    path = directory / META_PROPERTIES
    try:
        text = path.read_text(encoding="latin-1")
    except FileNotFoundError:
        yield Finding(path, "missing")
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.startswith(("#", "!")) and "=" not in line:
            yield Finding(path, f"line {number} is not a property: {line[:MAX_SHOWN]!r}")
    properties = parse_properties(text)
    if properties.get("version") != META_VERSION:
        yield Finding(path, f"version is {properties.get('version')}, expected {META_VERSION}")
    for name in ("cluster.id", "node.id"):
        if not properties.get(name):
            yield Finding(path, f"{name} is missing")
    node_id, directory_id = properties.get("node.id", "0"), properties.get("directory.id")
    if node_id and not node_id.isdecimal():
        yield Finding(path, f"node.id {node_id!r} is not a number")
    if directory_id is not None and not is_uuid(directory_id):
        yield Finding(path, f"directory.id {directory_id!r} is not a UUID in base64")


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID as Kafka writes it: 16 bytes in URL-safe base64."""
    try:
        decode_topic_id(text)
    except ValueError:
        return False
    return True


class CheckpointCheck:
    """Checks the checkpoints. They are read before the logs, which a running broker only extends."""

    def __init__(self, directory: Path) -> None:
        """Read the checkpoints. Raises OSError."""
        self._directory = directory
        self._offsets: dict[str, Mapping[TopicPartition, int]] = {}
        self._unreadable: list[Finding] = []
        self._missing = [name for name in AFTER_CLEAN_STOP if is_empty(directory / name)]
        for name in CHECKPOINTS:
            path = directory / name
            try:
                self._offsets[name] = read_offsets(Disk(), os.fspath(path))
                fault = checkpoint_fault(path)
            except CheckpointError as error:
                fault = without_path(error, path)
            if fault is not None:
                self._unreadable.append(Finding(path, fault))

    def was_cleaned(self, topic: str, partition: int) -> bool:
        """Return whether a log was ever compacted; True if unknown."""
        cleaned = self._offsets.get(CLEANER_POINTS)
        return cleaned is None or (topic, partition) in cleaned

    def findings(self, logs: Mapping[TopicPartition, LogEnd], *, running: bool, clean: bool) -> Iterator[Finding]:
        """Validate the offsets against the ends of the logs.

        Nothing is validated beside a running broker: until it rewrites the checkpoints, they may name offsets that its
        recovery has truncated.
        """
        yield from self._unreadable
        if running:
            return
        if clean:  # only a clean stop writes all checkpoints
            for name in self._missing:
                yield Finding(self._directory / name, "missing or empty after a clean stop")
        for name, offsets in self._offsets.items():
            for (topic, partition), offset in sorted(offsets.items()):
                what = None if topic == METADATA_TOPIC else offset_fault(logs.get((topic, partition)), offset)
                if what is not None:
                    yield Finding(self._directory / name, f"{topic} {partition} {what}")


def is_empty(path: Path) -> bool:
    """Return whether a file is missing or empty."""
    return not path.exists() or not path.stat().st_size


def offset_fault(log: LogEnd | None, offset: int) -> str | None:
    """Return the fault of an offset in a checkpoint, or None."""
    if log is None:
        return "has no directory here"
    if offset >= 0 and (offset <= log.offset or not log.is_whole):
        return None
    return f"at offset {offset}, but its log ends at {log.offset}"
