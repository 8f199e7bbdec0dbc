"""A data directory as a whole: whose it is, whether it was left cleanly, what lies in it.

Owns: the lock, `meta.properties`, the clean-shutdown marker, the checkpoints of all logs, and the list of what is
there. Must not know: topics' settings, or how a log opens.

    .lock                             held (fcntl) while a broker serves the directory
    .reserve                          room for when the disk is full (`room`)
    .probe                            written to see whether the disk still serves, and removed
    meta.properties                   version=1, cluster.id, node.id, directory.id
    .kafka_cleanshutdown              left by a clean stop, taken away by the next start
    recovery-point-offset-checkpoint  up to where each log was synced
    log-start-offset-checkpoint       where each log begins, if that is inside its first segment
    replication-offset-checkpoint     the high watermark of each log
    cleaner-offset-checkpoint         up to where each log was compacted
    recovery-receipt-*.json           what starts after unclean stops did
    <topic>-<partition>/              the logs

Invariants:
1. One broker at a time, within a process and among processes (Kafka takes the same lock).
2. The marker is gone, durably, before anything is written: a directory that has it was not written to since.
3. A checkpoint that cannot be read is as good as none; it is reported in `findings`.
4. A checkpoint is rewritten only if what it says has changed since it was last read or written.

Source: org.apache.kafka.metadata.properties.MetaProperties, kafka.log.LogManager.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Protocol, Self, TypeVar
from uuid import UUID, uuid4

from broker.log.arrival import Arrival, read_arrival, remove_arrival, write_arrival
from broker.log.directory.checkpoint import (
    CLEAN_MARKER,
    CLEANER_POINTS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    TopicPartition,
    is_own_marker,
    read_clean_marker,
    read_offsets,
    read_topic_id,
    write_clean_marker,
    write_offsets,
)
from broker.log.directory.disk_reserve import Reserve, Room, default_size
from broker.log.directory.receipt import RECEIPT_PREFIX
from broker.log.errors import CheckpointError, DataDirectoryError, DirectoryFailedError
from broker.log.io.directory_names import (
    PartitionName,
    deleted_directory,
    encode_topic_id,
    future_directory,
    parse_partition_directory,
    partition_directory,
)
from broker.log.io.disk import Disk, DiskSpace, is_out_of_room, read_file, replace_file

LOCK_FILE = ".lock"
META_PROPERTIES = "meta.properties"
META_VERSION = "1"
RESERVE = ".reserve"
PROBE = ".probe"  # written where a disk is in doubt
METADATA_TOPIC = "__cluster_metadata"  # a KRaft node's own log: a directory like a partition's, but none of a topic's

T = TypeVar("T")

_KNOWN_FILES = {
    LOCK_FILE,
    META_PROPERTIES,
    CLEAN_MARKER,
    RECOVERY_POINTS,
    LOG_STARTS,
    HIGH_WATERMARKS,
    CLEANER_POINTS,
    PROBE,
    RESERVE,
    "lost+found",  # the root of a file system has it
}
_KNOWN_PREFIXES = ("metadata.sqlite", RECEIPT_PREFIX)  # and the journals beside the first

# Locks of this kind belong to the process: a second one of the same process would be granted.
_locked: set[tuple[int, int]] = set()
_locked_guard = Lock()


class CheckpointedLog(Protocol):
    """What of a log goes into the checkpoints."""

    @property
    def topic(self) -> str:
        """Its topic."""

    @property
    def partition(self) -> int:
        """Its partition."""

    @property
    def recovery_point(self) -> int:
        """Up to where it was synced."""

    @property
    def high_watermark(self) -> int:
        """Up to where consumers may read."""

    @property
    def log_start_offset(self) -> int:
        """Where it begins."""

    @property
    def first_base_offset(self) -> int:
        """The base offset of its first segment."""

    def checkpoint_epochs(self) -> None:
        """Write the leader epochs if they have changed."""


class DataDirectory:
    """A locked data directory. A context manager; `close` lets go of it."""

    def __init__(self, path: str, disk: Disk, lock: "_DirectoryLock", reserve_bytes: int) -> None:
        self.path = path
        self.room = Room(path, is_guarded=reserve_bytes != 0)
        self.reserve = Reserve(disk, f"{path}/{RESERVE}", _reserve_size(disk, path, reserve_bytes), self.room)
        self.cluster_id = ""
        self.node_id = -1
        self.directory_id = ""
        self.was_clean = False
        self.is_foreign = False  # another broker has stopped here last
        self.recovery_points: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.cleaner_points: dict[TopicPartition, int] = {}  # up to where each log was compacted; kept up to date
        self.hinted: frozenset[TopicPartition] = frozenset()  # what the checkpoints told of at the start
        self.unserved: frozenset[TopicPartition] = frozenset()  # lie here, but belong to no topic
        self.findings: list[str] = []
        self._written: dict[str, dict[TopicPartition, int]] = {}  # what each checkpoint on the disk says, by name
        self._doubtful: dict[str, dict[TopicPartition, int]] = {}  # or says: a write of it has failed
        self._disk = disk
        self._lock = lock

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        node_id: int,
        cluster_id: str | None = None,
        reserve_bytes: int = 0,
        disk: Disk | None = None,
    ) -> Self:
        """Lock a directory, making it if it is not there, and take what the last broker left.

        `cluster_id`: None takes the one written there, or a new one. `reserve_bytes` are kept free once the reserve is
        settled, and none before: this start may need them; -1 takes what suits the file system.

        Raises DataDirectoryError, with one line for people, if it is in use, or belongs to another version, node or
        cluster, and DirectoryFailedError if it cannot be read or written.
        """
        disk = disk or Disk()
        text = os.fspath(path)
        try:
            disk.make_directory(text)
            lock = _DirectoryLock(disk, text)
            try:
                directory = cls(text, disk, lock, reserve_bytes)
                directory._identify(node_id, cluster_id)
                directory._take_checkpoints()
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise DirectoryFailedError(text, error.strerror or str(error)) from error
        return directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the lock. Idempotent."""
        self._lock.release()

    # -- what is there -------------------------------------------------------------------------------------------------

    def partitions(self) -> list[PartitionName]:
        """The partitions in service, by name."""
        found = [parse_partition_directory(name) for name in self._directories()]
        return sorted(name for name in found if name and not name.moved and name.topic != METADATA_TOPIC)

    def deleted_directories(self) -> list[str]:
        """Names of directories whose deletion was interrupted."""
        return sorted(
            name
            for name in self._directories()
            if (parsed := parse_partition_directory(name)) is not None and parsed.moved == "delete"
        )

    def future_directories(self) -> list[tuple[str, PartitionName]]:
        """Copies of partitions whose move to this directory has not ended: names of directories, and what of."""
        found = [(name, parse_partition_directory(name)) for name in sorted(self._directories())]
        return [(name, parsed) for name, parsed in found if parsed is not None and parsed.moved == "future"]

    def foreign_names(self) -> list[str]:
        """Names that neither this broker nor Kafka's log layer would have put here. They are left alone."""
        return sorted(
            entry.name
            for entry in self._disk.scan(self.path)
            if not is_known_name(entry.name)
            and (not entry.is_directory or _is_foreign_directory(parse_partition_directory(entry.name)))
        )

    @property
    def absolute_path(self) -> str:
        """Where it is, whatever the process's working directory."""
        return os.path.abspath(self.path)

    def look(self, *, probe: bool) -> DiskSpace:
        """See whether it is still there and can be written, and how much room there is. For a worker.

        With `probe`, something is written and synced. Raises OSError, and DirectoryFailedError if another directory is
        by its name, or it is read-only.
        """
        if not self._is_there():
            raise DirectoryFailedError(self.path, "it is not there any more (was its file system unmounted?)")
        space = self._disk.space(self.path)
        if space.is_read_only:
            raise DirectoryFailedError(self.path, "its file system is read-only")
        if probe:
            self.probe()
        return space

    def probe(self) -> None:
        """Write and sync something, to see whether the disk still does. For a worker. Raises OSError."""
        replace_file(self._disk, self.partition_path(PROBE), b"probe\n", sync=True)
        self._disk.unlink(self.partition_path(PROBE))

    def _is_there(self) -> bool:
        try:
            return self._disk.identity(self.path) == self._lock.identity
        except FileNotFoundError:
            return False

    def make_room(self) -> bool:
        """Give up what is kept for who must write; whether that made any room. Raises OSError."""
        return self.reserve.give_up()

    def keep_room(self) -> None:
        """Keep again what can be kept: for the next start. For a worker."""
        with suppress(OSError):  # its disk has failed: there is no next start over it
            self.reserve.settle(self.space().usable_bytes)

    def with_room(self, work: Callable[[], T]) -> T:
        """Do what must be done on a full disk, too: once more with what is kept for that. Raises OSError."""
        try:
            return work()
        except OSError as error:
            if not is_out_of_room(error) or not self.make_room():
                raise
            return work()

    def forget_hints(self, topic: str, partition: int) -> None:
        """What the checkpoints said at the start is of a partition that is gone."""
        for hints in (self.recovery_points, self.log_starts, self.high_watermarks, self.cleaner_points):
            hints.pop((topic, partition), None)

    def space(self) -> DiskSpace:
        """How much room there is. For a worker. Raises OSError."""
        return self._disk.space(self.path)

    def has(self, name: str) -> bool:
        """Whether something of this name lies in it, as far as can be seen."""
        try:
            self._disk.identity(self.partition_path(name))
        except OSError:
            return False
        return True

    def topic_id(self, topic: str, partition: int) -> UUID | None:
        """The topic id that a partition's directory bears; None if it tells none, or is not there."""
        try:
            return read_topic_id(self._disk, f"{self._path_of(topic, partition)}/{PARTITION_METADATA}")
        except (CheckpointError, OSError):
            return None

    def arrival(self, topic: str, partition: int) -> Arrival | None:
        """The note of the data directory that a partition came from, as long as there is one. Raises OSError."""
        return read_arrival(self._disk, self._path_of(topic, partition))

    def confirm_arrival(self, topic: str, partition: int, source_id: str) -> None:
        """Note that what the old data directory has of a partition is out of date. For a worker. Raises OSError."""
        write_arrival(self._disk, self._path_of(topic, partition), Arrival(source_id, is_confirmed=True))

    def forget_arrival(self, topic: str, partition: int) -> None:
        """Remove the note: the old data directory has nothing of the partition. For a worker. Raises OSError."""
        remove_arrival(self._disk, self._path_of(topic, partition))

    def take_back(self, topic: str, partition: int) -> None:
        """Let a partition's directory be the copy of a move that has not ended. For a worker. Raises OSError."""
        self._disk.rename(self._path_of(topic, partition), self.partition_path(future_directory(topic, partition)))
        self._disk.sync_directory(self.path)

    def put_aside(self, topic: str, partition: int) -> None:
        """Give a partition's directory a name that marks it as deleted. For a worker. Raises OSError."""
        self._disk.rename(self._path_of(topic, partition), self.partition_path(deleted_directory(topic, partition)))

    def _path_of(self, topic: str, partition: int) -> str:
        return self.partition_path(partition_directory(topic, partition))

    def partition_path(self, name: str) -> str:
        """The path of a directory in it."""
        return f"{self.path}/{name}"

    def _directories(self) -> list[str]:
        return [entry.name for entry in self._disk.scan(self.path) if entry.is_directory]

    # -- what is left for the next start -------------------------------------------------------------------------------

    def write_checkpoints(self, logs: Iterable[CheckpointedLog]) -> bool:
        """Replace the checkpoints by what is true of these logs, which must be all of them. For a worker.

        Entries of `unserved` partitions stay as they were found: a topic that is created later, or the broker that they
        came from, still needs them. What has not changed is not written; the result tells whether anything was. One
        call at a time. Raises OSError.
        """
        logs = list(logs)
        for log in logs:
            log.checkpoint_epochs()
        kept = self.unserved.difference((log.topic, log.partition) for log in logs)
        synced = {(log.topic, log.partition): log.recovery_point for log in logs}
        changed = self._replace(RECOVERY_POINTS, _found(self.recovery_points, kept) | synced)
        shown = {(log.topic, log.partition): log.high_watermark for log in logs}
        changed |= self._replace(HIGH_WATERMARKS, _found(self.high_watermarks, kept) | shown)
        changed |= self._write_log_starts(logs)
        points = dict(self.cleaner_points)
        if points or self._written.get(CLEANER_POINTS) or CLEANER_POINTS in self._doubtful:
            changed |= self._replace(CLEANER_POINTS, points)
        if changed:
            self.sync_names()  # else a power cut brings back the old ones, and with them what was deleted
        return changed

    def write_log_starts(self, logs: Iterable[CheckpointedLog]) -> None:
        """Replace the checkpoint of log starts alone, as `write_checkpoints`."""
        if self._write_log_starts(list(logs)):
            self.sync_names()

    def _write_log_starts(self, logs: Sequence[CheckpointedLog]) -> bool:
        kept = self.unserved.difference((log.topic, log.partition) for log in logs)
        begun = [log for log in logs if log.log_start_offset > log.first_base_offset]
        starts = {(log.topic, log.partition): log.log_start_offset for log in begun}
        return self._replace(LOG_STARTS, _found(self.log_starts, kept) | starts)

    def add_to_checkpoints(self, log: CheckpointedLog, cleaned: int | None) -> None:
        """Add a log that moves here, all of it synced and compacted up to `cleaned`. For a worker. Raises OSError.

        Else a start after a crash would scan all of it, and bring back what was deleted from its beginning.
        """
        key, end = (log.topic, log.partition), log.high_watermark
        if cleaned is None:
            self.cleaner_points.pop(key, None)
        else:
            self.cleaner_points[key] = cleaned
        for name, offset in ((RECOVERY_POINTS, end), (HIGH_WATERMARKS, end), (LOG_STARTS, log.log_start_offset)):
            self._replace(name, {**self._written.get(name, {}), key: offset})
        self.write_cleaner_points(self.cleaner_points)
        self.sync_names()

    def write_cleaner_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Replace the checkpoint that says up to where each log was compacted. For a worker. Raises OSError."""
        self._replace(CLEANER_POINTS, dict(points))

    def mentions(self, keys: Iterable[TopicPartition]) -> bool:
        """Tell whether a checkpoint on the disk may say anything about one of these partitions."""
        return any(
            not offsets.keys().isdisjoint(keys) for offsets in (*self._written.values(), *self._doubtful.values())
        )

    def mark_clean(self) -> None:
        """Leave the marker of a clean stop: every log is closed and the checkpoints are written. Raises OSError."""
        self.with_room(lambda: write_clean_marker(self._disk, self.partition_path(CLEAN_MARKER)))
        self.sync_names()

    def sync_names(self) -> None:
        """Wait until the names in it are on the disk: of partitions that were made or moved away. For a worker.

        Raises OSError.
        """
        self._disk.sync_directory(self.path)

    def _replace(self, name: str, offsets: dict[TopicPartition, int]) -> bool:
        """Write a checkpoint unless the file says the same; tell whether it was written."""
        if name not in self._doubtful and self._written.get(name) == offsets:
            return False
        self._doubtful[name] = offsets
        self.with_room(lambda: write_offsets(self._disk, self.partition_path(name), offsets))
        self._written[name] = offsets
        del self._doubtful[name]
        return True

    # -- opening -------------------------------------------------------------------------------------------------------

    def _identify(self, node_id: int, cluster_id: str | None) -> None:
        """Read whose directory it is, or write it down where nobody has yet."""
        properties = self._read_properties() or {
            "version": META_VERSION,
            "cluster.id": cluster_id or _random_id(),
            "node.id": str(node_id),
        }
        self._check_properties(properties, node_id, cluster_id)
        if "directory.id" not in properties:  # new, or of a Kafka before 3.7
            properties["directory.id"] = _random_id()
            text = "".join(f"{key}={value}\n" for key, value in properties.items())
            replace_file(self._disk, self.partition_path(META_PROPERTIES), text.encode(), sync=True)
        self.cluster_id = properties["cluster.id"]
        self.node_id = node_id
        self.directory_id = properties["directory.id"]

    def _read_properties(self) -> dict[str, str] | None:
        try:
            text = read_file(self._disk, self.partition_path(META_PROPERTIES)).decode("latin-1")
        except FileNotFoundError:
            return None
        return parse_properties(text)

    def _check_properties(self, properties: dict[str, str], node_id: int, cluster_id: str | None) -> None:
        version, found_node = properties.get("version", "0"), properties.get("node.id")
        found_cluster = properties.get("cluster.id")
        if version != META_VERSION:
            raise DataDirectoryError(f"data directory {self.path} is of version {version}, not {META_VERSION}")
        if found_node is None or not found_cluster:
            raise DataDirectoryError(f"data directory {self.path}: {META_PROPERTIES} lacks node.id or cluster.id")
        if found_node != str(node_id):
            raise DataDirectoryError(f"data directory {self.path} belongs to node {found_node}, this is node {node_id}")
        if cluster_id is not None and found_cluster != cluster_id:
            raise DataDirectoryError(f"data directory {self.path} belongs to cluster {found_cluster}, not {cluster_id}")

    def _take_checkpoints(self) -> None:
        marker = self.partition_path(CLEAN_MARKER)
        self.was_clean = read_clean_marker(self._disk, marker) is not None
        self.is_foreign = self.was_clean and not is_own_marker(self._disk, marker)
        if self.was_clean:
            self._disk.unlink(marker)
            self._disk.sync_directory(self.path)
        self.recovery_points = self._hint(RECOVERY_POINTS)
        self.log_starts = self._hint(LOG_STARTS)
        self.high_watermarks = self._hint(HIGH_WATERMARKS)
        self.cleaner_points = self._hint(CLEANER_POINTS)
        hints = (self.recovery_points, self.log_starts, self.high_watermarks, self.cleaner_points)
        self.hinted = frozenset(key for each in hints for key in each)

    def _hint(self, name: str) -> dict[TopicPartition, int]:
        try:
            offsets = read_offsets(self._disk, self.partition_path(name))
        except CheckpointError as error:
            self.findings.append(str(error))
            self._doubtful[name] = {}
            return {}
        if offsets:  # else there may be no file, or an empty one: it is written once
            self._written[name] = dict(offsets)
        return offsets


def _found(hints: Mapping[TopicPartition, int], keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the entries of these partitions. Others may be removed by another thread meanwhile."""
    return {key: offset for key in keys if (offset := hints.get(key)) is not None}


def _reserve_size(disk: Disk, path: str, reserve_bytes: int) -> int:
    return reserve_bytes if reserve_bytes >= 0 else default_size(disk.space(path).total_bytes)


def has_identity(disk: Disk, path: str) -> bool:
    """Whether a directory belongs to a broker already. Raises OSError if that cannot be seen."""
    try:
        return bool(read_file(disk, f"{path}/{META_PROPERTIES}"))
    except FileNotFoundError:
        return False


def parse_properties(text: str) -> dict[str, str]:
    """The pairs of a Java properties file, as far as Kafka's tools write them: `key=value`, comments, escaped marks."""
    properties = {}
    for line in text.splitlines():
        stripped = line.strip()
        key, separator, value = stripped.partition("=")
        if separator and not stripped.startswith(("#", "!")):
            properties[_unescaped(key.strip())] = _unescaped(value.strip())
    return properties


def _unescaped(text: str) -> str:
    for mark in ":=#!\\":
        text = text.replace(f"\\{mark}", mark)
    return text


class _DirectoryLock:
    """The lock on a data directory; whoever makes one has it. Raises DataDirectoryError if it is taken, OSError."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.identity = disk.identity(path)
        with _locked_guard:
            if self.identity in _locked:  # before opening the file: closing it again would give up the process's lock
                raise _in_use(path)
            self._fd: int | None = disk.open(f"{path}/{LOCK_FILE}", os.O_RDWR | os.O_CREAT)
            if not disk.try_lock(self._fd):
                disk.close(self._fd)
                raise _in_use(path)
            _locked.add(self.identity)

    def release(self) -> None:
        """Let go of it. Idempotent. The file stays: to remove it would let two brokers lock two files of one name."""
        with _locked_guard:
            if self._fd is not None:
                self._disk.close(self._fd)
                self._fd = None
                _locked.discard(self.identity)


def _in_use(path: str) -> DataDirectoryError:
    return DataDirectoryError(f"data directory {path} is in use by another broker")


def _random_id() -> str:
    """A new id in the form of Kafka's, which never begins with a dash.

    It would look like an option on a command line.
    """
    while (text := encode_topic_id(uuid4())).startswith("-"):
        pass
    return text


def is_known_name(name: str) -> bool:
    """Whether a broker, ours or Kafka's log layer, puts files of this name into a data directory."""
    return name.removesuffix(".tmp") in _KNOWN_FILES or name.startswith(_KNOWN_PREFIXES)


def _is_foreign_directory(parsed: PartitionName | None) -> bool:
    return parsed is None or parsed.topic == METADATA_TOPIC
