"""All data directories of a broker: which are online, and which one holds which partition.

The first of `log.dirs` holds the metadata (like Kafka's default `metadata.log.dir`) and is required; each of the others
may fail on its own.

Invariants:
1. A partition is in one directory. If it is in two, it was being moved, and the copy has a note of that; otherwise
   startup fails, because it is unknown which one is current.
2. A partition is served from the directory that holds it; a new one goes to the directory with the fewest partitions
   among those that are not full.
3. All directories belong to the same cluster and node, and each has its own id.
4. An existing partition is never recreated empty because its directory is offline: unreadable, not mounted, or no
   longer listed in `log.dirs`. The same applies if its own directory is missing, since the checkpoints of the data
   directory contain it from its creation on.

Source: kafka.log.LogManager, org.apache.kafka.metadata.properties.MetaPropertiesEnsemble.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from threading import Lock
from typing import Self, TypeVar
from uuid import UUID

from warmlog.broker.log.directory.accepted_loss import how_to_accept
from warmlog.broker.log.directory.arrival import REPLACES_ALL, Arrival, write_arrival
from warmlog.broker.log.directory.belonging import METADATA_FILE, check_first, check_ids, why_missing
from warmlog.broker.log.directory.checkpointed_log import CheckpointedLog
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.directory.identity import has_identity
from warmlog.broker.log.directory.kafka_node import refuse_kafka_node
from warmlog.broker.log.directory.names import reason_of
from warmlog.broker.log.errors import DataDirectoryError, DirectoryFailedError, NoSpaceError
from warmlog.broker.log.io.directory_names import partition_directory
from warmlog.broker.log.io.disk import Disk, is_disk_failure
from warmlog.protocol.partitions import TopicPartition

L = TypeVar("L", bound=CheckpointedLog)


class Verdict(Enum):
    """The fate of a partition's directory at startup. `STRAY`: it belongs to another topic, and is renamed and kept."""

    KEPT = auto()
    DELETED = auto()
    STRAY = auto()


class DataDirectories:
    """The locked data directories of one broker. A context manager; `close` releases the locks.

    Lookups and placement may be called from any thread; methods that access a disk are blocking.
    """

    def __init__(self, first: DataDirectory, others: Sequence[Path], reserve_bytes: int, disk: Disk) -> None:
        """Start with the opened directory that holds the metadata; use `open`. Raises DataDirectoryError, OSError."""
        self.first = first
        self.live: list[DataDirectory] = []
        self.offline: dict[str, str] = {}  # reasons by absolute path
        self.suspects: dict[DataDirectory, OSError] = {}  # directories whose disk failed under a checkpoint
        self._others = [os.fspath(path) for path in others]
        self._reserve_bytes = reserve_bytes
        self._disk = disk
        self._opened = [first]
        self._holders: dict[TopicPartition, DataDirectory] = {}
        self._counts: dict[DataDirectory, int] = {}
        self._missing: dict[str, str] = {}  # paths by ids of directories that existed before
        self.gone: dict[str, str] = {}  # the fate of unneeded directories of the last run, by id
        self.lost: dict[TopicPartition, str] = {}  # partitions whose directories are missing, with the remedy
        self._deleted_topics: set[UUID] = set()  # deleted topics that may have data left
        self._placing = Lock()
        self._take(first)

    @classmethod
    def open(
        cls,
        paths: Sequence[Path],
        *,
        node_id: int,
        cluster_id: str | None = None,
        reserve_bytes: int = 0,
        disk: Disk | None = None,
    ) -> Self:
        """Lock the first directory, creating it if it is missing, and find its partitions; `join` must follow.

        `cluster_id`: None accepts the stored one, or generates one. `reserve_bytes`: the disk reserve of each directory
        (`DataDirectory.open`). Raises DataDirectoryError, with a one-line message, if the directory cannot be served or
        lacks the metadata.
        """
        disk = disk or Disk()
        refuse_kafka_node(disk, os.fspath(paths[0]), METADATA_FILE)
        check_first(disk, [os.fspath(path) for path in paths])
        first = DataDirectory.open(
            paths[0], node_id=node_id, cluster_id=cluster_id, reserve_bytes=reserve_bytes, disk=disk
        )
        try:
            return cls(first, paths[1:], reserve_bytes, disk)
        except BaseException:
            first.close()
            raise

    def join(
        self, known: Mapping[str, str], partitions: Collection[TopicPartition], deleted_topics: Iterable[UUID] = ()
    ) -> None:
        """Open the other directories. Those that fail are listed in `offline`.

        `known` are the directories of the last run, absolute paths by ids, and `partitions` the expected ones. A
        missing directory is dropped or created only if all expected partitions exist. Remaining data of the topics in
        `buried` is renamed as deleted.

        Raises DataDirectoryError if a directory is in use or belongs to another broker; OSError from the first one.
        """
        self._deleted_topics.update(deleted_topics)
        for topic, partition in [key for key in self._holders if self._is_of_deleted_topic(self.first, *key)]:
            self.first.put_aside(topic, partition)
            self.forget(topic, partition)
        fresh = [path for path in self._others if not self._join_used(path)]
        ids = {directory.directory_id for directory in self.live}
        if any(key not in self._holders for key in partitions):
            self._missing = {known_id: path for known_id, path in known.items() if known_id not in ids}
        missing = {path: known_id for known_id, path in self._missing.items()}
        for path in fresh:
            known_id = missing.get(os.path.abspath(path))
            if known_id is None:
                self._attempt(path, self._join)
            else:
                self._put_off(path, why_missing(self._disk, path, known_id))
        elsewhere = ", unless a data directory that is offline has it" if self.offline else ""
        self.lost = {
            key: f"{path} is missing{elsewhere}: {how_to_accept(path)}"
            for key, path in self.find_lost(partitions).items()
        }
        paths = {directory.absolute_path for directory in self.live}
        for known_id, path in known.items():
            is_replaced = path in paths
            if known_id in self._missing:
                other = "another one is there now" if is_replaced else "it is no longer in log.dirs"
                self.offline.setdefault(path, f"it had partitions before (directory.id {known_id}), and {other}")
            elif all(directory.directory_id != known_id for directory in self._opened):
                what = "was emptied or replaced" if is_replaced else "is no longer in log.dirs"
                self.gone[known_id] = f"{path} {what} (directory.id was {known_id})"

    def find_lost(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Return, by partition, the path of each directory that a checkpoint contains and no data directory has."""
        return {
            key: directory.partition_path(partition_directory(*key))
            for directory in self.live
            for key in sorted(directory.hinted.intersection(partitions))
            if key not in self._holders
        }

    def _join_used(self, path: str) -> bool:
        """Open a directory that belongs to a broker, or mark it offline; return False for a new one."""
        return self._attempt(path, lambda path: has_identity(self._disk, path) and self._join(path))

    def _attempt(self, path: str, join: Callable[[str], bool]) -> bool:
        """Return the result of `join`; mark the directory offline if it fails, and return True."""
        try:
            return join(path)
        except OSError as error:
            self._put_off(path, reason_of(error, path))
        except DirectoryFailedError as error:
            self._put_off(path, error.reason)
        return True

    def _join(self, path: str) -> bool:
        opened = DataDirectory.open(
            Path(path),
            node_id=self.first.node_id,
            cluster_id=self.cluster_id,
            reserve_bytes=self._reserve_bytes,
            disk=self._disk,
        )
        self._opened.append(opened)
        check_ids(self._opened)
        self._take(opened)
        return True

    def _put_off(self, path: str, reason: str) -> None:
        self.offline[os.path.abspath(path)] = reason

    def _take(self, directory: DataDirectory) -> None:
        """Serve the partitions in a directory."""
        present = {(name.topic, name.partition) for name in directory.partitions()}
        deleted = {key for key in present if self._is_of_deleted_topic(directory, *key)}
        for key in deleted:
            directory.put_aside(*key)
        served = [key for key in sorted(present - deleted) if self._belongs_here(*key, directory)]
        self.live.append(directory)
        self._counts[directory] = 0
        for key in served:
            self._hold(*key, directory)

    def unmark_clean(self) -> None:
        """Remove the clean shutdown markers, before any log is opened; a directory that fails goes offline.

        Raises OSError from the first one.
        """
        for directory in list(self.live):
            try:
                directory.unmark_clean()
            except OSError as error:
                if directory is self.first:
                    raise
                self.take_offline(directory, reason_of(error, directory.path))

    def take_offline(self, directory: DataDirectory, reason: str) -> None:
        """Take a live directory offline until the next startup."""
        self.live.remove(directory)
        self._put_off(directory.path, reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the locks. Idempotent."""
        for directory in self._opened:
            directory.close()

    # -- lookup --

    @property
    def cluster_id(self) -> str:
        """The cluster that all directories belong to."""
        return self.first.cluster_id

    def holder(self, topic: str, partition: int) -> DataDirectory | None:
        """Return the directory that holds a partition, or None."""
        return self._holders.get((topic, partition))

    def is_offline(self, topic: str, partition: int) -> bool:
        """Return whether an existing partition is (presumably) in an offline directory, or its directory is missing."""
        holder = self._holders.get((topic, partition))
        if holder is None:
            return bool(self.offline) or (topic, partition) in self.lost
        return holder not in self.live

    def remembered(self) -> dict[str, str]:
        """Return the directories that the next startup has to know: absolute paths by ids."""
        return self._missing | {directory.directory_id: directory.absolute_path for directory in self._opened}

    def place(self, topic: str, partition: int) -> DataDirectory:
        """Return the directory of a partition, or assign the one with the fewest partitions. Raises OSError."""
        with self._placing:
            directory = self._holders.get((topic, partition))
            if directory is None:
                directory = self._lying(topic, partition) or min(self.live, key=self._load)
                self._hold(topic, partition, directory)
            return directory

    def _load(self, directory: DataDirectory) -> tuple[bool, int]:
        """Return the sort key for placement: the smallest gets the next partition."""
        return directory.space_status.is_short, self._counts[directory]

    def check_space(self) -> None:
        """Raise NoSpaceError if all directories are full."""
        if all(directory.space_status.is_short for directory in self.live):
            raise NoSpaceError("every data directory is full: no new partitions until there is space again")

    def forget(self, topic: str, partition: int) -> None:
        """Drop a removed partition, so that its checkpoints do not apply to a new one of the same name."""
        self.release(topic, partition)
        self.lost.pop((topic, partition), None)
        for each in self.live:
            each.forget_hints(topic, partition)

    def release(self, topic: str, partition: int) -> None:
        """Undo the placement of a partition that could not be created there; the next attempt may choose another."""
        with self._placing:
            directory = self._holders.pop((topic, partition), None)
            if directory is not None:
                self._counts[directory] -= 1

    def has_unserved(self, topic: str) -> bool:
        """Return whether there was data of a topic at startup that belongs to no topic of the broker."""
        return any(key[0] == topic and key in self._holders for directory in self.live for key in directory.unserved)

    def forget_unknown(self) -> bool:
        """Drop checkpoint entries of partitions that no longer exist; return whether there were any."""
        known = self._holders.keys() | self.lost.keys()
        strange = [(directory, key) for directory in self.live for key in directory.hinted - known]
        for directory, (topic, partition) in strange:
            directory.forget_hints(topic, partition)
        return bool(strange)

    def note_deleted(self, topic_id: UUID) -> None:
        """Record a deleted topic whose data could not be renamed, so that no new topic inherits it."""
        self._deleted_topics.add(topic_id)

    def sort_out(self, judge: Callable[[str, int, UUID], Verdict]) -> None:
        """Rename directories that are not served, judged by topic, partition and topic id. Blocking. Raises OSError."""
        for (topic, partition), directory in list(self._holders.items()):
            stored_id = directory.topic_id(topic, partition)
            verdict = Verdict.KEPT if stored_id is None else judge(topic, partition, stored_id)
            if stored_id is None or verdict is Verdict.KEPT:
                continue
            if verdict is Verdict.STRAY:
                directory.rename_stray(topic, partition, stored_id)
            else:
                directory.put_aside(topic, partition)
            self.forget(topic, partition)

    def _is_of_deleted_topic(self, directory: DataDirectory, topic: str, partition: int) -> bool:
        """Return whether a partition's data in a directory belongs to a deleted topic."""
        return bool(self._deleted_topics) and directory.topic_id(topic, partition) in self._deleted_topics

    def _lying(self, topic: str, partition: int) -> DataDirectory | None:
        """Return a directory into which a partition was copied since startup, if any. Raises OSError."""
        if len(self.live) == 1 and not self._deleted_topics:
            return None
        name = partition_directory(topic, partition)
        for directory in [each for each in self.live if each.has(name)]:
            if not self._is_of_deleted_topic(directory, topic, partition):
                return directory
            directory.put_aside(topic, partition)
        return None

    def _hold(self, topic: str, partition: int, directory: DataDirectory) -> None:
        self._holders[topic, partition] = directory
        self._counts[directory] += 1

    def _belongs_here(self, topic: str, partition: int, directory: DataDirectory) -> bool:
        """Return whether this directory serves a partition that it holds.

        If another directory also has it, it was being moved, and one of the two copies is discarded. Raises OSError,
        and DataDirectoryError if it is unknown which one.
        """
        other = self._holders.get((topic, partition))
        if other is None:
            return True
        loser = _resolve_move(topic, partition, other, directory)
        if loser is None:
            name = partition_directory(topic, partition)
            raise DataDirectoryError(
                f"partition {name} lies in two data directories, {other.path} and {directory.path}: move one of them"
                " away (the one that is older, or of the disk that failed)"
            )
        if loser is other:
            self.forget(topic, partition)
        return loser is other

    # -- moves --

    def find(self, path: str) -> DataDirectory | None:
        """Return the live directory at an absolute path, or None."""
        return next((directory for directory in self.live if directory.absolute_path == path), None)

    def relocate(self, topic: str, partition: int, directory: DataDirectory) -> None:
        """Record that a partition was moved to another directory."""
        with self._placing:
            holder = self._holders[topic, partition]
            self._counts[holder] -= 1
            holder.forget_hints(topic, partition)
            self._hold(topic, partition, directory)

    def supersede_offline(self, topic: str, partition: int) -> None:
        """Record that a new replica replaces any in an offline directory. Blocking. Raises OSError."""
        directory = self.place(topic, partition)
        name = partition_directory(topic, partition)
        if self.offline and not directory.has(name):
            self._disk.make_directory(directory.partition_path(name))
            write_arrival(self._disk, directory.partition_path(name), REPLACES_ALL)

    def settle_arrival(self, topic: str, partition: int, directory: DataDirectory) -> None:
        """Remove or confirm the note of a partition that was moved here, before use. Blocking. Raises OSError."""
        arrival = directory.arrival(topic, partition)
        if arrival is None:
            return
        is_old_copy_gone = arrival == REPLACES_ALL or any(each.directory_id == arrival.source_id for each in self.live)
        if not is_old_copy_gone:
            settled: Arrival | None = arrival._replace(is_confirmed=True)
        else:
            settled = REPLACES_ALL if arrival.replaces_all and self.offline else None
        if settled is None:
            directory.forget_arrival(topic, partition)
        elif settled != arrival:
            directory.note_arrival(topic, partition, settled)

    # -- checkpoints --

    def write_checkpoints(self, directory: DataDirectory, logs: Iterable[CheckpointedLog]) -> None:
        """Replace the checkpoints of a directory by the state of `logs`, which must be all of its logs.

        If they are unchanged, probe the disk, so that a failure of an idle disk is detected. Raises OSError; if that
        means that the disk has failed, the directory becomes a suspect.
        """
        with self._suspecting(directory):
            if not directory.write_checkpoints(logs):
                directory.probe()

    def write_log_starts(self, directory: DataDirectory, logs: Iterable[CheckpointedLog]) -> None:
        """Replace only the checkpoint of log start offsets, as `write_checkpoints` does."""
        with self._suspecting(directory):
            directory.write_log_starts(logs)

    @contextmanager
    def _suspecting(self, directory: DataDirectory) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if is_disk_failure(error):
                self.suspects[directory] = error
            raise

    def by_directory(self, logs: Iterable[L]) -> dict[DataDirectory, list[L]]:
        """Group logs by the directory that holds them; the keys are all live directories."""
        held: dict[DataDirectory, list[L]] = {directory: [] for directory in self.live}
        for log in logs:
            holder = self._holders.get((log.topic, log.partition))
            if holder in held:
                held[holder].append(log)
        return held


def _resolve_move(topic: str, partition: int, first: DataDirectory, second: DataDirectory) -> DataDirectory | None:
    """Finish or undo an interrupted move between two directories; return the one that loses the partition.

    A replica that was created again replaces an earlier one. Returns None without a note. Raises OSError.
    """
    arrivals = [(old, new, new.arrival(topic, partition)) for old, new in ((first, second), (second, first))]
    for old, new, arrival in arrivals:
        if arrival is not None and arrival.source_id == old.directory_id:
            if not arrival.is_confirmed:
                new.take_back(topic, partition)
                return new
            old.put_aside(topic, partition)
            return old
    for old, _, arrival in arrivals:  # less exact: it may be older than the move
        if arrival is not None and arrival.replaces_all:
            old.put_aside(topic, partition)
            return old
    return None
