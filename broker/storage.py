"""Where partitions live: the data directories, the metadata, and what is injected into logs.

Owns: what blocks when topics are opened, closed and removed: logs, checkpoints, leftovers. Must not know: the loop, who
asks, or which topics are served.

Everything here is for a worker, but `forget_hints`.
"""

import errno
import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import UUID

from broker.log.checkpoint import PARTITION_METADATA, read_topic_id, write_topic_id
from broker.log.config import LogConfig
from broker.log.data_directories import DataDirectories
from broker.log.data_directory import DataDirectory
from broker.log.directory_names import partition_directory
from broker.log.disk import Disk, is_disk_failure
from broker.log.errors import CheckpointError, DirectoryFailedError
from broker.log.files import OpenFiles
from broker.log.partition_log import PartitionLog
from broker.log.receipt import write_receipt
from broker.metadata.store import MetadataStore
from broker.metadata.topic import Topic, is_internal
from broker.opening import Key, OpenedAhead, Start, StartProgress, receipt_of

logger = logging.getLogger(__name__)

# A closing log waits for three syncs. File systems take waiting syncs into one write of their journal, so that eight at
# a time need a sixth of the time of one after the other; more only take memory.
CLOSING_THREADS = 8


@dataclass(frozen=True, slots=True)
class Storage:
    """The data directories with their files and metadata; `clock` gives ms."""

    directories: DataDirectories
    files: OpenFiles
    store: MetadataStore
    clock: Callable[[], int]
    random: Random
    progress: StartProgress = field(default_factory=StartProgress)
    ahead: OpenedAhead = field(default_factory=OpenedAhead)

    def open_ahead(self, topics: Iterable[tuple[Topic, LogConfig]], *, threads_each: int) -> None:
        """Open those logs that must be recovered, by several threads for each data directory.

        `open_logs` takes them.
        """
        queues: dict[DataDirectory, list[Key]] = {directory: [] for directory in self.directories.live}
        by_name = {topic.name: (topic, config) for topic, config in topics}
        for topic, _ in by_name.values():
            for index in range(topic.partitions):
                holder = self.directories.holder(topic.name, index)
                if holder in queues and not holder.was_clean:
                    queues[holder].append((topic.name, index))

        def open_log(key: Key) -> PartitionLog:
            return self._open_log(*by_name[key[0]], key[1])

        self.ahead.run(list(queues.values()), open_log, threads_each=threads_each, progress=self.progress)

    def end_opening(self, logs: Sequence[PartitionLog], start: Start) -> None:
        """Leave a receipt in each data directory in which logs were recovered; `logs` are all that are open.

        Never fails: want of room for a receipt is a line in the log.
        """
        self.ahead.close_rest()
        self.progress.end()
        for directory, held in self.directories.by_directory(logs).items():
            receipt = receipt_of(directory, held, start, self.progress.seconds)
            if receipt is not None:
                try:
                    write_receipt(self.files.disk, directory.path, receipt)
                except OSError as error:
                    logger.warning("%s: no receipt of the recovery could be written: %s", directory.path, error)

    def open_logs(self, topic: Topic, indexes: Sequence[int], config: LogConfig) -> list[PartitionLog]:
        """Open or make the directories; fresh ones end up on the disk by one sync for all of them.

        Raises OSError, DirectoryFailedError.
        """
        logs: list[PartitionLog] = []
        try:
            logs += (self.ahead.take(topic.name, index) or self._open_log(topic, config, index) for index in indexes)
            written = [log for log in logs if _keep_topic_id(self.files.disk, log, topic.id)]
            for directory in {self.directories.place(log.topic, log.partition) for log in written}:
                directory.sync()
        except (OSError, DirectoryFailedError):
            for log in logs:
                log.close(clean=False)
            raise
        return logs

    def _open_log(self, topic: Topic, config: LogConfig, index: int) -> PartitionLog:
        """Raises OSError, or DirectoryFailedError if the directory's disk fails."""
        directory = self.directories.place(topic.name, index)
        try:
            log = self._open_in(directory, topic, config, index)
        except OSError as error:
            if is_disk_failure(error):
                self.directories.suspects[directory] = error
            if is_disk_failure(error) and directory is not self.directories.first:
                raise _accused(directory, error) from error
            raise
        self.progress.opened(log.recovery)
        return log

    def _open_in(self, directory: DataDirectory, topic: Topic, config: LogConfig, index: int) -> PartitionLog:
        key = topic.name, index
        return PartitionLog.open(
            Path(directory.partition_path(partition_directory(*key))),
            topic=topic.name,
            partition=index,
            config=config,
            files=self.files,
            clock=self.clock,
            random=self.random,
            recovery_point=directory.recovery_points.get(key, 0),
            log_start_offset=directory.log_starts.get(key, 0),
            clean=directory.was_clean,
            room=directory.room,
            uses_reserve=is_internal(topic.name),
            scanned=self.progress.scanned,
        )

    def close_logs(self, logs: Sequence[PartitionLog], *, all_open: bool) -> None:
        """The end of a broker. Unless `all_open`, what the broker before left still holds."""
        for directory in self.directories.live:
            if directory.room.is_short:
                with suppress(OSError):  # its disk has failed, which is told when its checkpoints are written
                    directory.make_room()  # closing logs write, too, and all they write is small
        with ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="closing") as pool:
            closed = list(pool.map(_close, logs))
        unclean = {self._holder(log) for log, is_clean in zip(logs, closed, strict=True) if not is_clean}
        if not all_open:
            return
        for directory, held in self.directories.by_directory(logs).items():
            try:
                directory.write_checkpoints(held)
                if directory not in unclean:
                    directory.mark_clean()
            except OSError as error:
                logger.warning("%s: no clean stop, the next start looks at everything: %s", directory.path, error)
            finally:
                directory.keep_room()

    def _holder(self, log: PartitionLog) -> DataDirectory:
        return self.directories.place(log.topic, log.partition)

    def finish_deletions(self) -> None:
        """End what a crash interrupted, and remove what waited for its delay when the broker stopped.

        Raises MetadataError, OSError.
        """
        for topic in self.store.deleting():
            offline = [index for index in range(topic.partitions) if self.directories.is_offline(topic.name, index)]
            for index in range(topic.partitions):
                holder = self.directories.holder(topic.name, index)
                if holder is not None:
                    shutil.rmtree(holder.partition_path(partition_directory(topic.name, index)), ignore_errors=True)
            self.forget_hints(topic)
            self.store.finish_delete(topic.name, leaves_data=bool(offline))
        for directory in self.directories.live:
            for name in directory.deleted_directories():
                shutil.rmtree(directory.partition_path(name), ignore_errors=True)

    def warn_of_strangers(self, is_served: Callable[[str, int], bool]) -> None:
        """Log what lies in the data directories and is not served. Raises OSError."""
        for directory in self.directories.live:
            _warn_of_strangers(directory, is_served)

    def forget_hints(self, topic: Topic) -> None:
        """What the checkpoints said at the start is of a topic that is gone: another one may take its name."""
        for index in range(topic.partitions):
            self.directories.forget(topic.name, index)


def _warn_of_strangers(directory: DataDirectory, is_served: Callable[[str, int], bool]) -> None:
    for finding in directory.findings:
        logger.warning("%s", finding)
    for name in directory.foreign_names():
        logger.warning("%s: not a partition and no file of a broker; left alone", directory.partition_path(name))
    for found in directory.partitions():
        if not is_served(found.topic, found.partition):
            logger.warning("%s-%d: no such topic; create it to serve it", found.topic, found.partition)


def _keep_topic_id(disk: Disk, log: PartitionLog, topic_id: UUID) -> bool:
    """See to it that `partition.metadata` says the topic's id; whether it had to be written.

    A directory that was copied here has the id of where it came from. What cannot be read is replaced, too.
    """
    path = str(log.directory / PARTITION_METADATA)
    try:
        found = read_topic_id(disk, path)
    except CheckpointError as error:
        logger.warning("%s; written anew", error)
        found = None
    if found == topic_id:
        return False
    if found is not None:
        logger.warning("%s-%d: topic id %s was another's; now %s", log.topic, log.partition, found, topic_id)
    write_topic_id(disk, path, topic_id, sync=False)
    return True


def _close(log: PartitionLog) -> bool:
    """Whether the log was closed in order, with everything synced."""
    was_failed = log.failed
    try:
        log.close()
    except OSError as error:
        logger.warning("%s-%d: not closed cleanly: %s", log.topic, log.partition, error)
        return False
    return not was_failed


def _accused(directory: DataDirectory, error: OSError) -> OSError | DirectoryFailedError:
    """What an error of a disk means: the failure of the directory, or of one file only if all else is well."""
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        try:
            directory.look(probe=True)
        except OSError as failure:
            return DirectoryFailedError(directory.path, failure.strerror or str(failure))
        except DirectoryFailedError as failure:
            return failure
        return error
    return DirectoryFailedError(directory.path, error.strerror or str(error))


def move_away(logs: Iterable[PartitionLog], directories: DataDirectories) -> tuple[list[str], bool]:
    """Rename the directories out of service.

    Gives the paths under which they wait for their removal, and whether some could not be renamed and lie where they
    were.
    """
    moved, leaves_data = [], False
    for log in logs:
        try:
            moved.append(str(directories.place(log.topic, log.partition).with_room(log.delete)))
        except OSError as error:
            leaves_data = True
            logger.warning(
                "%s-%d: deleted, but its files stay until the next start: %s", log.topic, log.partition, error
            )
    return moved, leaves_data
