"""A data directory: its lock and identity, the clean shutdown marker, the checkpoints, and the partitions in it.

    .lock                             locked (fcntl) while a broker serves the directory
    .reserve                          disk space for when the disk is full (`disk_reserve`)
    .probe                            written to test whether the disk works, and removed
    meta.properties                   version=1, cluster.id, node.id, directory.id
    .kafka_cleanshutdown              written by a clean shutdown, removed when the next startup opens the logs
    recovery-point-offset-checkpoint  the offset up to which each log was flushed
    log-start-offset-checkpoint       the log start offset of each log, if inside its first segment
    replication-offset-checkpoint     the high watermark of each log
    cleaner-offset-checkpoint         the offset up to which each log was compacted
    warmlog-runs.json                 the latest run that used each data directory (`runs`)
    recovery-receipt-*.json           reports of startups after unclean shutdowns
    <topic>-<partition>/              the logs

Invariants:
1. One broker at a time uses a directory, within a process and among processes (Kafka takes the same lock).
2. The marker is removed durably before the first write: a directory with a marker was not changed since.
3. An unreadable checkpoint is treated as missing, and reported in `findings`.
4. A checkpoint is rewritten only if its content has changed since it was last read or written.

Source: kafka.log.LogManager.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar
from uuid import UUID

from warmlog.broker.log.directory.arrival import Arrival, read_arrival, remove_arrival, write_arrival
from warmlog.broker.log.directory.checkpoint import (
    CLEAN_MARKER,
    CLEANER_POINTS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    UNKNOWN_BROKER_EPOCH,
    is_own_marker,
    read_clean_marker,
    read_topic_id,
    write_clean_marker,
)
from warmlog.broker.log.directory.checkpoint_files import CheckpointFiles
from warmlog.broker.log.directory.checkpointed_log import CheckpointedLog
from warmlog.broker.log.directory.disk_reserve import Reserve, SpaceStatus, default_size
from warmlog.broker.log.directory.identity import DirectoryLock, read_or_create_identity
from warmlog.broker.log.directory.names import (
    METADATA_TOPIC,
    PROBE,
    RESERVE,
    is_foreign_directory,
    is_known_name,
    reason_of,
)
from warmlog.broker.log.errors import CheckpointError, DirectoryFailedError
from warmlog.broker.log.io.directory_names import (
    PartitionName,
    deleted_directory,
    future_directory,
    parse_partition_directory,
    partition_directory,
    stray_directory,
)
from warmlog.broker.log.io.disk import Disk, DiskSpace, is_out_of_space, replace_file
from warmlog.protocol.partitions import TopicPartition

PRIVATE = 0o700  # the mode of directories that the broker creates: records are private

logger = logging.getLogger(__name__)

T = TypeVar("T")


class DataDirectory:
    """A locked data directory. A context manager; `close` releases the lock."""

    def __init__(self, path: str, disk: Disk, lock: "DirectoryLock", reserve_bytes: int) -> None:
        self.path = path
        self.space_status = SpaceStatus(path, is_guarded=reserve_bytes != 0)
        self.reserve = Reserve(disk, f"{path}/{RESERVE}", _reserve_size(disk, path, reserve_bytes), self.space_status)
        self.cluster_id = ""
        self.node_id = -1
        self.directory_id = ""
        self.closed_in: int | None = None  # the epoch in the clean shutdown marker; None without one
        self.is_foreign = False  # whether Kafka used it last
        self.recovery_points: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.cleaner_points: dict[TopicPartition, int] = {}  # up to where each log was compacted; kept current
        self.hinted: frozenset[TopicPartition] = frozenset()  # the partitions in the checkpoints at startup
        self.unserved: frozenset[TopicPartition] = frozenset()  # partitions here that belong to no topic
        self.findings: list[str] = []
        self._files = CheckpointFiles(path, disk, self.with_reserve)
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
        """Lock a directory, creating it for this user alone if it is missing, and read its identity and checkpoints.

        `cluster_id`: None accepts the stored one, or generates one. `reserve_bytes` is the size of the disk reserve, -1
        for a default by the file system's size; the reserve is released until it is settled, as startup may need it.

        Raises DataDirectoryError, with a one-line message, if the directory is in use or belongs to another version,
        node or cluster, and DirectoryFailedError if it cannot be read or written.
        """
        disk = disk or Disk()
        text = os.fspath(path)
        try:
            disk.make_directory(text, PRIVATE)
            lock = DirectoryLock(disk, text)
            try:
                directory = cls(text, disk, lock, reserve_bytes)
                directory._identify(node_id, cluster_id)
                directory._take_checkpoints()
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise DirectoryFailedError(text, reason_of(error, text)) from error
        return directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock. Idempotent."""
        self._lock.release()

    # -- content -------------------------------------------------------------------------------------------------------

    def partitions(self) -> list[PartitionName]:
        """Return the partitions in use, by name."""
        parsed = [parse_partition_directory(name) for name in self._directories()]
        return sorted(name for name in parsed if name and not name.moved and name.topic != METADATA_TOPIC)

    def deleted_directories(self) -> list[str]:
        """Return the names of directories whose deletion was interrupted."""
        return sorted(
            name
            for name in self._directories()
            if (parsed := parse_partition_directory(name)) is not None and parsed.moved == "delete"
        )

    def future_directories(self) -> list[tuple[str, PartitionName]]:
        """Return the copies of unfinished moves to this directory: (directory name, partition)."""
        directories = [(name, parse_partition_directory(name)) for name in sorted(self._directories())]
        return [(name, parsed) for name, parsed in directories if parsed is not None and parsed.moved == "future"]

    def foreign_names(self) -> list[str]:
        """Return the names that neither this broker nor Kafka's log layer creates. They are ignored."""
        return sorted(
            entry.name
            for entry in self._disk.scan(self.path)
            if not is_known_name(entry.name)
            and (not entry.is_directory or is_foreign_directory(parse_partition_directory(entry.name)))
        )

    @property
    def was_clean(self) -> bool:
        """Whether it has a clean shutdown marker at startup."""
        return self.closed_in is not None

    @property
    def absolute_path(self) -> str:
        """Return the absolute path."""
        return os.path.abspath(self.path)

    def measure_space(self, *, probe: bool) -> DiskSpace:
        """Check that the directory exists and is writable, and return the disk space. Blocking.

        With `probe`, also write and fsync a file. Raises OSError, and DirectoryFailedError if the directory is gone,
        was replaced by another one, or is read-only.
        """
        if not self._is_there():
            raise DirectoryFailedError(self.path, "it no longer exists (was its file system unmounted?)")
        space = self._disk.space(self.path)
        if space.is_read_only:
            raise DirectoryFailedError(self.path, "its file system is read-only")
        if probe:
            self.probe()
        return space

    def probe(self) -> None:
        """Write and fsync a file to test the disk. Blocking. Raises OSError."""
        replace_file(self._disk, self.partition_path(PROBE), b"probe\n", sync=True)
        self._disk.unlink(self.partition_path(PROBE))

    def _is_there(self) -> bool:
        try:
            return self._disk.identity(self.path) == self._lock.identity
        except FileNotFoundError:
            return False

    def release_reserve(self) -> bool:
        """Release the disk reserve; return whether that freed any space. Raises OSError."""
        return self.reserve.give_up()

    def fill_reserve(self, *, half: bool = False) -> None:
        """Fill the disk reserve, or half of it, as far as possible, for the next startup. Blocking."""
        with suppress(OSError):  # the disk has failed
            self.reserve.keep_for_startup(self.space().usable_bytes, half=half)

    def with_reserve(self, work: Callable[[], T]) -> T:
        """Run work that must succeed on a full disk: retry it with the disk reserve released. Raises OSError."""
        try:
            return work()
        except OSError as error:
            if not is_out_of_space(error) or not self.release_reserve():
                raise
            try:
                return work()
            finally:
                self.fill_reserve(half=True)  # before another process uses it: a startup without any space fails

    def forget_hints(self, topic: str, partition: int) -> None:
        """Discard the checkpoints' entries, read at startup, of a partition that is gone."""
        for hints in (self.recovery_points, self.log_starts, self.high_watermarks, self.cleaner_points):
            hints.pop((topic, partition), None)

    def forget_unserved(self, keys: Collection[TopicPartition]) -> None:
        """Drop unserved partitions whose directories were renamed, and their checkpoint entries."""
        self.unserved = self.unserved.difference(keys)
        for key in keys:
            self.forget_hints(*key)

    def space(self) -> DiskSpace:
        """Return the disk space. Blocking. Raises OSError."""
        return self._disk.space(self.path)

    def known_end(self, topic: str, partition: int) -> int:
        """Return the largest offset of a partition in the checkpoints; 0 without an entry."""
        hints = (self.recovery_points, self.log_starts, self.high_watermarks)
        return max(offsets.get((topic, partition), 0) for offsets in hints)

    def has(self, name: str) -> bool:
        """Return whether the directory has an entry of this name, as far as can be determined."""
        try:
            self._disk.identity(self.partition_path(name))
        except OSError:
            return False
        return True

    def topic_id(self, topic: str, partition: int) -> UUID | None:
        """Return the topic id in a partition's directory; None if it is missing or unreadable."""
        try:
            return read_topic_id(self._disk, f"{self._path_of(topic, partition)}/{PARTITION_METADATA}")
        except (CheckpointError, OSError):
            return None

    def arrival(self, topic: str, partition: int) -> Arrival | None:
        """Return the note about the data directory that a partition was moved from, if any. Raises OSError."""
        return read_arrival(self._disk, self._path_of(topic, partition))

    def note_arrival(self, topic: str, partition: int, arrival: Arrival) -> None:
        """Replace the note about the data directory that a partition was moved from. Blocking. Raises OSError."""
        write_arrival(self._disk, self._path_of(topic, partition), arrival)

    def forget_arrival(self, topic: str, partition: int) -> None:
        """Remove the note: the old data directory has no copy of the partition. Blocking. Raises OSError."""
        remove_arrival(self._disk, self._path_of(topic, partition))

    def take_back(self, topic: str, partition: int) -> None:
        """Rename a partition's directory to that of an unfinished move. Blocking. Raises OSError."""
        self._disk.rename(self._path_of(topic, partition), self.partition_path(future_directory(topic, partition)))
        self._disk.sync_directory(self.path)

    def put_aside(self, topic: str, partition: int) -> None:
        """Rename a partition's directory to a name that marks it as deleted. Blocking. Raises OSError."""
        self._disk.rename(self._path_of(topic, partition), self.partition_path(deleted_directory(topic, partition)))

    def rename_stray(self, topic: str, partition: int, topic_id: UUID) -> None:
        """Rename the directory of a partition of another topic to a name that marks it as stray, and keep it.

        Blocking. Raises OSError. Source: kafka.log.LogManager.asyncDelete (isStray).
        """
        kept = self.partition_path(stray_directory(topic, partition))
        self._disk.rename(self._path_of(topic, partition), kept)
        logger.warning(
            "%s-%d: data of another topic of this name, with the id %s, is kept as %s", topic, partition, topic_id, kept
        )

    def _path_of(self, topic: str, partition: int) -> str:
        return self.partition_path(partition_directory(topic, partition))

    def partition_path(self, name: str) -> str:
        """Return the path of an entry."""
        return f"{self.path}/{name}"

    def _directories(self) -> list[str]:
        return [entry.name for entry in self._disk.scan(self.path) if entry.is_directory]

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def write_checkpoints(self, logs: Iterable[CheckpointedLog]) -> bool:
        """Replace the checkpoints by the state of these logs, which must be all of the directory. Blocking.

        Entries of `unserved` partitions are kept for a topic that is created later, or for the broker that they came
        from. Unchanged checkpoints are not written; returns whether any was. One call at a time. Raises OSError.
        """
        logs = list(logs)
        synced = {(log.topic, log.partition): log.durability.recovery_point for log in logs}
        for log in logs:
            log.durability.checkpoint_epochs()  # at least of all records below the recovery point
        kept = self.unserved.difference((log.topic, log.partition) for log in logs)
        changed = self._files.replace(RECOVERY_POINTS, _known(self.recovery_points, kept) | synced)
        shown = {(log.topic, log.partition): log.offsets.high_watermark for log in logs}
        changed |= self._files.replace(HIGH_WATERMARKS, _known(self.high_watermarks, kept) | shown)
        changed |= self._write_log_starts(logs)
        points = dict(self.cleaner_points)
        if points or self._files.may_have_entries(CLEANER_POINTS):
            changed |= self._files.replace(CLEANER_POINTS, points)
        if changed:
            self.sync_names()  # otherwise a power failure could restore the old ones and so deleted records
        return changed

    def write_log_starts(self, logs: Iterable[CheckpointedLog]) -> None:
        """Replace the checkpoint of log start offsets only, as `write_checkpoints` does."""
        if self._write_log_starts(list(logs)):
            self.sync_names()

    def _write_log_starts(self, logs: Sequence[CheckpointedLog]) -> bool:
        kept = self.unserved.difference((log.topic, log.partition) for log in logs)
        begun = [log for log in logs if log.offsets.log_start_offset > log.old_segments.first_base_offset]
        starts = {(log.topic, log.partition): log.offsets.log_start_offset for log in begun}
        return self._files.replace(LOG_STARTS, _known(self.log_starts, kept) | starts)

    def add_to_checkpoints(self, log: CheckpointedLog, cleaned: int | None) -> None:
        """Add a log that moves here, flushed completely and compacted up to `cleaned`. Blocking. Raises OSError.

        Without this, a startup after a crash would scan the whole log and restore records deleted from its beginning.
        """
        key, end = (log.topic, log.partition), log.offsets.high_watermark
        if cleaned is None:
            self.cleaner_points.pop(key, None)
        else:
            self.cleaner_points[key] = cleaned
        for name, offset in (
            (RECOVERY_POINTS, end),
            (HIGH_WATERMARKS, end),
            (LOG_STARTS, log.offsets.log_start_offset),
        ):
            self._files.replace(name, {**self._files.written(name), key: offset})
        self.write_cleaner_points(self.cleaner_points)
        self.sync_names()

    def add_new(self, keys: Iterable[TopicPartition]) -> None:
        """Add new partitions, so that a startup detects missing directories. Blocking. Raises OSError.

        The names of the directories must already be synced.
        """
        self._files.add(RECOVERY_POINTS, dict.fromkeys(keys, 0))

    def write_cleaner_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Replace the checkpoint of the offsets up to which logs were compacted. Blocking. Raises OSError."""
        self._files.replace(CLEANER_POINTS, dict(points))

    def mentions(self, keys: Iterable[TopicPartition]) -> bool:
        """Return whether a checkpoint on the disk may contain one of these partitions."""
        return self._files.mention(keys)

    def unmark_clean(self) -> None:
        """Remove the clean shutdown marker, before any log is opened. Raises OSError."""
        if self.was_clean:
            self._disk.unlink(self.partition_path(CLEAN_MARKER))
            self._disk.sync_directory(self.path)

    def mark_clean(self, epoch: int = UNKNOWN_BROKER_EPOCH) -> None:
        """Write the clean shutdown marker, after all logs and checkpoints are written. Raises OSError.

        `epoch`: the broker's registration in a cluster, or the time of the stop, the same in all data directories.
        """
        self.with_reserve(lambda: write_clean_marker(self._disk, self.partition_path(CLEAN_MARKER), epoch))
        self.sync_names()

    def recognize(self, epoch: int) -> None:
        """Treat a clean shutdown marker with this epoch as written by this broker."""
        self.is_foreign = self.is_foreign and self.closed_in != epoch

    def sync_names(self) -> None:
        """Fsync the names in the directory, after partitions were created or renamed. Blocking. Raises OSError."""
        self._disk.sync_directory(self.path)

    # -- opening -------------------------------------------------------------------------------------------------------

    def _identify(self, node_id: int, cluster_id: str | None) -> None:
        identity = read_or_create_identity(self._disk, self.path, node_id, cluster_id)
        self.cluster_id = identity.cluster_id
        self.node_id = identity.node_id
        self.directory_id = identity.directory_id

    def _take_checkpoints(self) -> None:
        marker = self.partition_path(CLEAN_MARKER)
        self.closed_in = read_clean_marker(self._disk, marker)
        self.is_foreign = self.was_clean and not is_own_marker(self._disk, marker)
        self.recovery_points = self._files.read(RECOVERY_POINTS)
        self.log_starts = self._files.read(LOG_STARTS)
        self.high_watermarks = self._files.read(HIGH_WATERMARKS)
        self.cleaner_points = self._files.read(CLEANER_POINTS)
        self.findings += self._files.findings
        hints = (self.recovery_points, self.log_starts, self.high_watermarks, self.cleaner_points)
        self.hinted = frozenset(key for each in hints for key in each)


def _known(hints: Mapping[TopicPartition, int], keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the entries of these partitions. Another thread may remove others at the same time."""
    return {key: offset for key in keys if (offset := hints.get(key)) is not None}


def _reserve_size(disk: Disk, path: str, reserve_bytes: int) -> int:
    return reserve_bytes if reserve_bytes >= 0 else default_size(disk.space(path).total_bytes)
