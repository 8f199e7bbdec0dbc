"""The data directories of a broker together: which there are, and which of them holds which partition.

Owns: the order in which they are opened, which of them are out of service, the choice of a directory for a new
partition, and the checkpoints of all of them. Must not know: topics' settings, the metadata, or how a log opens.

The first of `log.dirs` has the metadata (as `metadata.log.dir` of Kafka by default) and cannot be done without; each
of the others may fail alone.

Invariants:
1. A partition lies in one directory. One that is found in two was being moved, and its copy has a note of that; else
   it is refused: nobody can say which one is right.
2. A partition is served where it lies; a new one goes where the fewest are, among those that are not full.
3. All directories are of one cluster and one node, and each has an id of its own.
4. A partition that there was is never made anew, empty, because its directory is out of service: not if the directory
   cannot be read, is not mounted, or is not named any more.

Source: kafka.log.LogManager, org.apache.kafka.metadata.properties.MetaPropertiesEnsemble.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Self, TypeVar
from uuid import UUID

from broker.log.directory.checkpoint import TopicPartition
from broker.log.directory.data_directory import CheckpointedLog, DataDirectory
from broker.log.directory.identity import has_identity
from broker.log.directory.kafka_node import refuse_kafka_node
from broker.log.errors import DataDirectoryError, DirectoryFailedError, NoRoomError
from broker.log.io.directory_names import partition_directory
from broker.log.io.disk import Disk, is_disk_failure

METADATA_FILE = "metadata.sqlite"

L = TypeVar("L", bound=CheckpointedLog)


class DataDirectories:
    """The locked data directories of one broker. A context manager; `close` lets go of them.

    What finds or chooses may be called from any thread; what touches a disk is for a worker.
    """

    def __init__(self, first: DataDirectory, others: Sequence[Path], reserve_bytes: int, disk: Disk) -> None:
        """Over the opened one with the metadata; use `open`. Raises DataDirectoryError, OSError."""
        self.first = first
        self.live: list[DataDirectory] = []
        self.offline: dict[str, str] = {}  # by absolute path, and why
        self.suspects: dict[DataDirectory, OSError] = {}  # whose disk failed under a checkpoint
        self._others = [os.fspath(path) for path in others]
        self._reserve_bytes = reserve_bytes
        self._disk = disk
        self._opened = [first]
        self._holders: dict[TopicPartition, DataDirectory] = {}
        self._counts: dict[DataDirectory, int] = {}
        self._missing: dict[str, str] = {}  # ids and paths of directories that there were
        self._buried: set[UUID] = set()  # topics that are gone, though some of their data may still lie about
        self._placing = Lock()
        self._take(first)

    @classmethod
    def open(cls, paths: Sequence[Path], *, node_id: int, reserve_bytes: int = 0, disk: Disk | None = None) -> Self:
        """Lock the first directory, making it if it is not there, and take what the last broker left; then `join`.

        `reserve_bytes` are kept free in each (`DataDirectory.open`). Raises DataDirectoryError, with one line for
        people, if it cannot be served, or has not the metadata.
        """
        disk = disk or Disk()
        refuse_kafka_node(disk, os.fspath(paths[0]), METADATA_FILE)
        _check_first(disk, [os.fspath(path) for path in paths])
        first = DataDirectory.open(paths[0], node_id=node_id, reserve_bytes=reserve_bytes, disk=disk)
        try:
            return cls(first, paths[1:], reserve_bytes, disk)
        except BaseException:
            first.close()
            raise

    def join(
        self, known: Mapping[str, str], partitions: Collection[TopicPartition], buried: Iterable[UUID] = ()
    ) -> None:
        """Open the other directories. One that does not serve is out of service, and told in `offline`.

        `known` are the directories that there were, absolute paths by their ids, and `partitions` those that there are
        to be. Only if all of them are found, a directory that is not there any more is forgotten, or made anew. What is
        left of the topics in `buried` is put aside.

        Raises DataDirectoryError if one is in use, or they do not go together; OSError from the first.
        """
        self._buried.update(buried)
        for topic, partition in [key for key in self._holders if self._is_buried(self.first, *key)]:
            self.first.put_aside(topic, partition)
            self.forget(topic, partition)
        fresh = [path for path in self._others if not self._join_used(path)]
        ids = {directory.directory_id for directory in self.live}
        if any(key not in self._holders for key in partitions):
            self._missing = {known_id: path for known_id, path in known.items() if known_id not in ids}
        for path in fresh:
            if os.path.abspath(path) in self._missing.values():
                self._put_off(path, "it is empty, and had partitions before (is its file system mounted?)")
            else:
                self._attempt(path, self._join)
        paths = {directory.absolute_path for directory in self.live}
        for known_id, path in self._missing.items():
            other = "another one is there now" if path in paths else "it is not in log.dirs any more"
            self.offline.setdefault(path, f"it had partitions before (directory.id {known_id}), and {other}")

    def _join_used(self, path: str) -> bool:
        """Open a directory that belongs to a broker, or find it out of service; False for one that is new."""
        return self._attempt(path, lambda path: has_identity(self._disk, path) and self._join(path))

    def _attempt(self, path: str, join: Callable[[str], bool]) -> bool:
        """What `join` says; True also if the directory does not serve, which is noted."""
        try:
            return join(path)
        except OSError as error:
            self._put_off(path, error.strerror or str(error))
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
        _check_ids(self._opened)
        self._take(opened)
        return True

    def _put_off(self, path: str, reason: str) -> None:
        self.offline[os.path.abspath(path)] = reason

    def _take(self, directory: DataDirectory) -> None:
        """Serve what lies in a directory."""
        found = {(name.topic, name.partition) for name in directory.partitions()}
        buried = {key for key in found if self._is_buried(directory, *key)}
        for key in buried:
            directory.put_aside(*key)
        served = [key for key in sorted(found - buried) if self._belongs_here(*key, directory)]
        self.live.append(directory)
        self._counts[directory] = 0
        for key in served:
            self._hold(*key, directory)

    def take_offline(self, directory: DataDirectory, reason: str) -> None:
        """Take a directory that is in service out of it, until the next start."""
        self.live.remove(directory)
        self._put_off(directory.path, reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the locks. Idempotent."""
        for directory in self._opened:
            directory.close()

    # -- which --

    @property
    def cluster_id(self) -> str:
        """What they all belong to."""
        return self.first.cluster_id

    def holder(self, topic: str, partition: int) -> DataDirectory | None:
        """The directory in which a partition lies; None if it lies nowhere."""
        return self._holders.get((topic, partition))

    def is_offline(self, topic: str, partition: int) -> bool:
        """Whether a partition that there is lies in a directory that is out of service, as far as anybody knows."""
        holder = self._holders.get((topic, partition))
        return bool(self.offline) if holder is None else holder not in self.live

    def remembered(self) -> dict[str, str]:
        """The directories to know at the next start: absolute paths by their ids."""
        return self._missing | {directory.directory_id: directory.absolute_path for directory in self._opened}

    def place(self, topic: str, partition: int) -> DataDirectory:
        """The directory in which a partition lies, or is to lie from now on: where the fewest are. Raises OSError."""
        with self._placing:
            directory = self._holders.get((topic, partition))
            if directory is None:
                directory = self._lying(topic, partition) or min(self.live, key=self._load)
                self._hold(topic, partition, directory)
            return directory

    def _load(self, directory: DataDirectory) -> tuple[bool, int]:
        """What is least where a new partition goes."""
        return directory.room.is_short, self._counts[directory]

    def check_room(self) -> None:
        """Raise NoRoomError if a new partition finds no room anywhere."""
        if all(directory.room.is_short for directory in self.live):
            raise NoRoomError("every data directory is full: no new partitions until there is room again")

    def forget(self, topic: str, partition: int) -> None:
        """Forget a partition that is gone: what is known of it must not apply to another one of the same name."""
        self.release(topic, partition)
        for each in self.live:
            each.forget_hints(topic, partition)

    def release(self, topic: str, partition: int) -> None:
        """Take back that a partition lies somewhere: it could not be made there, and the next attempt may choose."""
        with self._placing:
            directory = self._holders.pop((topic, partition), None)
            if directory is not None:
                self._counts[directory] -= 1

    def has_unserved(self, topic: str) -> bool:
        """Tell whether data of a topic was found here at startup that belongs to no topic of the broker."""
        return any(key[0] == topic and key in self._holders for directory in self.live for key in directory.unserved)

    def forget_unknown(self) -> bool:
        """Forget what the checkpoints say of partitions that are not there; whether there were any."""
        strange = [(directory, key) for directory in self.live for key in directory.hinted if key not in self._holders]
        for directory, (topic, partition) in strange:
            directory.forget_hints(topic, partition)
        return bool(strange)

    def bury(self, topic_id: UUID) -> None:
        """A topic is gone, and some of its data could not be moved away: nobody is to take it for his own."""
        self._buried.add(topic_id)

    def _is_buried(self, directory: DataDirectory, topic: str, partition: int) -> bool:
        """Whether what lies there is of a topic that is gone."""
        return bool(self._buried) and directory.topic_id(topic, partition) in self._buried

    def _lying(self, topic: str, partition: int) -> DataDirectory | None:
        """Where a partition lies that was put there since the start: it is not made anew elsewhere. Raises OSError."""
        if len(self.live) == 1 and not self._buried:
            return None
        name = partition_directory(topic, partition)
        for directory in [each for each in self.live if each.has(name)]:
            if not self._is_buried(directory, topic, partition):
                return directory
            directory.put_aside(topic, partition)
        return None

    def _hold(self, topic: str, partition: int, directory: DataDirectory) -> None:
        self._holders[topic, partition] = directory
        self._counts[directory] += 1

    def _belongs_here(self, topic: str, partition: int, directory: DataDirectory) -> bool:
        """Tell whether this directory serves a partition that lies in it.

        One that was found in another one, too, was being moved: one of the two gives way. Raises OSError, and
        DataDirectoryError where nothing says which one.
        """
        other = self._holders.get((topic, partition))
        if other is None:
            return True
        loser = _give_way(topic, partition, other, directory)
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
        """The directory in service at an absolute path."""
        return next((directory for directory in self.live if directory.absolute_path == path), None)

    def relocate(self, topic: str, partition: int, directory: DataDirectory) -> None:
        """A partition lies in another directory from now on."""
        with self._placing:
            holder = self._holders[topic, partition]
            self._counts[holder] -= 1
            holder.forget_hints(topic, partition)
            self._hold(topic, partition, directory)

    def settle_arrival(self, topic: str, partition: int, directory: DataDirectory) -> None:
        """See to the note of a partition that was moved here, before it is served. For a worker. Raises OSError."""
        arrival = directory.arrival(topic, partition)
        if arrival is None:
            return
        if any(each.directory_id == arrival.source_id for each in self.live):
            directory.forget_arrival(topic, partition)
        elif not arrival.is_confirmed:
            directory.confirm_arrival(topic, partition, arrival.source_id)

    # -- checkpoints --

    def write_checkpoints(self, directory: DataDirectory, logs: Iterable[CheckpointedLog]) -> None:
        """Replace the checkpoints of a directory by what is true of its logs, which must be all of them.

        Where nothing is to be written, the disk is probed: one that fails while it is idle is found all the same.
        Raises OSError; where that says that the disk has failed, the directory is a suspect.
        """
        with self._suspecting(directory):
            if not directory.write_checkpoints(logs):
                directory.probe()

    def write_log_starts(self, directory: DataDirectory, logs: Iterable[CheckpointedLog]) -> None:
        """Replace the checkpoint of log starts alone, as `write_checkpoints`."""
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
        """The logs by the directory in which they lie; every directory in service is there, and no other."""
        held: dict[DataDirectory, list[L]] = {directory: [] for directory in self.live}
        for log in logs:
            holder = self._holders.get((log.topic, log.partition))
            if holder in held:
                held[holder].append(log)
        return held


def _give_way(topic: str, partition: int, first: DataDirectory, second: DataDirectory) -> DataDirectory | None:
    """Resolve a move between two directories that was cut off, and return the one that gives way; None if none does.

    Raises OSError.
    """
    for old, new in ((first, second), (second, first)):
        arrival = new.arrival(topic, partition)
        if arrival is not None and arrival.source_id == old.directory_id:
            if arrival.is_confirmed:
                old.put_aside(topic, partition)
                return old
            new.take_back(topic, partition)
            return new
    return None


def _check_first(disk: Disk, paths: Sequence[str]) -> None:
    """Refuse to make metadata anew where another directory says that there are some. Raises DataDirectoryError."""
    first, *others = paths
    if _belongs(disk, first):
        missing = not _exists(disk, first, METADATA_FILE)
        elsewhere = [path for path in others if missing and _exists(disk, path, METADATA_FILE)]
        if elsewhere:
            raise DataDirectoryError(
                f"{METADATA_FILE} lies in {elsewhere[0]}, which is not the first of log.dirs ({first} is)"
            )
        return
    known = [path for path in others if _belongs(disk, path)]
    if known:
        raise DataDirectoryError(
            f"data directory {first} is new, but {known[0]} belongs to a broker already: the first of log.dirs has the"
            " metadata (is its file system mounted? a new directory goes behind the others)"
        )


def _belongs(disk: Disk, path: str) -> bool:
    """Whether a directory can be seen to belong to a broker."""
    try:
        return has_identity(disk, path)
    except OSError:
        return False


def _exists(disk: Disk, path: str, name: str) -> bool:
    try:
        return any(entry.name == name for entry in disk.scan(path))
    except OSError:
        return False


def _check_ids(directories: Iterable[DataDirectory]) -> None:
    """Raise DataDirectoryError if one directory is a copy of another: both would have the same partitions."""
    paths: dict[str, str] = {}
    for directory in directories:
        other = paths.setdefault(directory.directory_id, directory.path)
        if other != directory.path:
            raise DataDirectoryError(
                f"data directories {other} and {directory.path} have the same directory.id"
                f" ({directory.directory_id}): one is a copy of the other"
            )
