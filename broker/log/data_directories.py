"""The data directories of a broker together: which there are, and which of them holds which partition.

Owns: the order in which they are opened, the choice of a directory for a new partition, and the checkpoints of all of
them. Must not know: topics' settings, the metadata, or how a log opens.

The first of `log.dirs` has the metadata (as `metadata.log.dir` of Kafka by default); in all else they are equal.

Invariants:
1. A partition lies in one directory. One that is found in two is refused: nobody can say which one is right.
2. A partition is served where it lies; a new one goes where the fewest are.
3. All directories are of one cluster and one node, and each has an id of its own.

Source: kafka.log.LogManager, org.apache.kafka.metadata.properties.MetaPropertiesEnsemble.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import Self, TypeVar

from broker.log.checkpoint import TopicPartition
from broker.log.data_directory import CheckpointedLog, DataDirectory, has_identity
from broker.log.directory_names import partition_directory
from broker.log.disk import Disk
from broker.log.errors import DataDirectoryError

METADATA_FILE = "metadata.sqlite"

L = TypeVar("L", bound=CheckpointedLog)


class DataDirectories:
    """The locked data directories of one broker. A context manager; `close` lets go of them.

    What finds or chooses may be called from any thread; what touches a disk is for a worker.
    """

    def __init__(self, live: Sequence[DataDirectory]) -> None:
        """Over opened directories, the one with the metadata first; use `open`. Raises DataDirectoryError, OSError."""
        self.live = list(live)
        self._holders: dict[TopicPartition, DataDirectory] = {}
        self._counts = dict.fromkeys(self.live, 0)
        self._placing = Lock()
        for directory in self.live:
            for found in directory.partitions():
                self._found(found.topic, found.partition, directory)

    @classmethod
    def open(cls, paths: Sequence[Path], *, node_id: int, disk: Disk | None = None) -> Self:
        """Lock the directories, making those that are not there, and take what the last broker left.

        Raises DataDirectoryError, with one line for people, if one of them cannot be served, or they do not go
        together.
        """
        disk = disk or Disk()
        _check_first(disk, [os.fspath(path) for path in paths])
        with ExitStack() as stack:
            live: list[DataDirectory] = []
            for path in paths:
                cluster_id = live[0].cluster_id if live else None
                opened = DataDirectory.open(path, node_id=node_id, cluster_id=cluster_id, disk=disk)
                live.append(stack.enter_context(opened))
            _check_ids(live)
            directories = cls(live)
            stack.pop_all()
        return directories

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the locks. Idempotent."""
        for directory in self.live:
            directory.close()

    # -- which --

    @property
    def first(self) -> DataDirectory:
        """The one with the metadata."""
        return self.live[0]

    @property
    def cluster_id(self) -> str:
        """What they all belong to."""
        return self.first.cluster_id

    def holder(self, topic: str, partition: int) -> DataDirectory | None:
        """The directory in which a partition lies; None if it lies nowhere."""
        return self._holders.get((topic, partition))

    def place(self, topic: str, partition: int) -> DataDirectory:
        """The directory in which a partition lies, or is to lie from now on: where the fewest are."""
        with self._placing:
            directory = self._holders.get((topic, partition))
            if directory is None:
                directory = self._lying(topic, partition) or min(self.live, key=self._counts.__getitem__)
                self._hold(topic, partition, directory)
            return directory

    def forget(self, topic: str, partition: int) -> None:
        """A partition is gone: what is known of it is another's, which may come by its name."""
        with self._placing:
            directory = self._holders.pop((topic, partition), None)
            if directory is not None:
                self._counts[directory] -= 1
                directory.forget_hints(topic, partition)

    def _lying(self, topic: str, partition: int) -> DataDirectory | None:
        """Where a partition lies that was put there since the start: it is not made anew elsewhere."""
        if len(self.live) == 1:
            return None
        name = partition_directory(topic, partition)
        return next((directory for directory in self.live if directory.has(name)), None)

    def _hold(self, topic: str, partition: int, directory: DataDirectory) -> None:
        self._holders[topic, partition] = directory
        self._counts[directory] += 1

    def _found(self, topic: str, partition: int, directory: DataDirectory) -> None:
        other = self._holders.get((topic, partition))
        if other is not None:
            name = partition_directory(topic, partition)
            raise DataDirectoryError(
                f"partition {name} lies in two data directories, {other.path} and {directory.path}: move one of them"
                " away (the one that is older, or of the disk that failed)"
            )
        self._hold(topic, partition, directory)

    # -- checkpoints --

    def write_checkpoints(self, logs: Iterable[CheckpointedLog]) -> None:
        """Replace the checkpoints of all directories by what is true of these logs, which must be all of them.

        Raises the first OSError, when the others' turn was over.
        """
        self._write_each(logs, DataDirectory.write_checkpoints)

    def write_log_starts(self, logs: Iterable[CheckpointedLog]) -> None:
        """Replace the checkpoints of log starts alone; as `write_checkpoints`."""
        self._write_each(logs, DataDirectory.write_log_starts)

    def _write_each(
        self, logs: Iterable[CheckpointedLog], write: Callable[[DataDirectory, Iterable[CheckpointedLog]], None]
    ) -> None:
        failure: OSError | None = None
        for directory, held in self.by_directory(logs).items():
            try:
                write(directory, held)
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def by_directory(self, logs: Iterable[L]) -> dict[DataDirectory, list[L]]:
        """The logs by the directory in which they lie; every directory is there."""
        held: dict[DataDirectory, list[L]] = {directory: [] for directory in self.live}
        for log in logs:
            held[self._holders[log.topic, log.partition]].append(log)
        return held


def _check_first(disk: Disk, paths: Sequence[str]) -> None:
    """Refuse to make metadata anew where another directory says that there are some. Raises DataDirectoryError."""
    first, *others = paths
    if has_identity(disk, first):
        missing = not _exists(disk, first, METADATA_FILE)
        elsewhere = [path for path in others if missing and _exists(disk, path, METADATA_FILE)]
        if elsewhere:
            raise DataDirectoryError(
                f"{METADATA_FILE} lies in {elsewhere[0]}, which is not the first of log.dirs ({first} is)"
            )
        return
    known = [path for path in others if has_identity(disk, path)]
    if known:
        raise DataDirectoryError(
            f"data directory {first} is new, but {known[0]} belongs to a broker already: the first of log.dirs has the"
            " metadata (is its file system mounted? a new directory goes behind the others)"
        )


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
