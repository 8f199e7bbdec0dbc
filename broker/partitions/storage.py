"""Where partitions live: the data directories, the metadata, and what is injected into logs.

What blocks when topics are created, opened, closed and removed: logs, checkpoints, leftovers. Everything here is for a
worker, except `forget_hints`.

What a creation and a deletion have on the disk, and in which order:

    creation   the topic in the metadata | the partition directories | their names synced | (published)
    deletion   (taken out) | marked in the metadata | directories renamed | the names synced | gone from the metadata

The content of a new partition directory is not synced before the first flush of its log: there is nothing in it that a
startup could not make again, and the metadata say that it must exist.
"""

import errno
import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from random import Random
from typing import NamedTuple

from broker.log.config import LogConfig
from broker.log.directory.checkpoint import PARTITION_METADATA, read_topic_id, write_topic_id
from broker.log.directory.data_directories import DataDirectories
from broker.log.directory.data_directory import DataDirectory
from broker.log.directory.receipt import write_receipt
from broker.log.errors import CheckpointError, DirectoryFailedError, LogError
from broker.log.io.directory_names import partition_directory
from broker.log.io.disk import is_disk_failure
from broker.log.io.files import OpenFiles
from broker.log.partition_log import PartitionLog
from broker.log.producers.table import ProducerBudget
from broker.metadata.store import MetadataStore
from broker.metadata.topic import Topic, is_internal
from broker.partitions.startup import Key, OpenedAhead, Start, StartProgress, receipt_of

logger = logging.getLogger(__name__)

# A closing log waits for three syncs. File systems take waiting syncs into one write of their journal, so that eight at
# a time need a sixth of the time of one after the other; more only take memory.
CLOSING_THREADS = 8


class NewLog(NamedTuple):
    """A partition that is to be made."""

    topic: Topic
    partition: int
    config: LogConfig


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
    budget: ProducerBudget = field(default_factory=ProducerBudget)
    made_in: set[DataDirectory] = field(default_factory=set)  # where names of partition directories are not synced yet

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
        """Open or make the directories of a known topic; `sync_names` follows.

        Raises OSError, DirectoryFailedError.
        """
        logs: list[PartitionLog] = []
        try:
            for index in indexes:
                logs.append(self.ahead.take(topic.name, index) or self._open_log(topic, config, index))
                if self._keep_topic_id(topic, logs[-1]):
                    self.made_in.add(self.directories.place(topic.name, index))
        except (OSError, DirectoryFailedError):
            for log in logs:
                log.close(clean=False)
            raise
        return logs

    def place(self, wanted: Iterable[NewLog]) -> tuple[dict[DataDirectory, list[NewLog]], dict[str, Exception]]:
        """Choose a data directory for each new partition; also return the topics for which that failed, and why."""
        placed: dict[DataDirectory, list[NewLog]] = {}
        failures: dict[str, Exception] = {}
        for new in wanted:
            try:
                placed.setdefault(self.directories.place(new.topic.name, new.partition), []).append(new)
            except OSError as error:
                failures[new.topic.name] = error
        return placed, failures

    def make_logs(self, wanted: Sequence[NewLog]) -> list[PartitionLog | Exception]:
        """Make the directories of new partitions, or open what already lies there; `sync_names` follows.

        An error concerns its own partition only.
        """
        return [self._make_log(new) for new in wanted]

    def _make_log(self, new: NewLog) -> PartitionLog | Exception:
        try:
            log = self._open_log(new.topic, new.config, new.partition)
        except (OSError, LogError) as error:
            return error
        try:
            self._keep_topic_id(new.topic, log)
        except OSError as error:
            log.close(clean=False)
            return error
        return log

    def sync_names(self) -> None:
        """Have the names of the partition directories that were made at startup on the disk. Raises OSError."""
        while self.made_in:
            self.made_in.pop().sync_names()

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

    def _keep_topic_id(self, topic: Topic, log: PartitionLog) -> bool:
        """Write the topic's id into `partition.metadata` unless it says so already; tell whether it did that.

        A directory that was copied here has the id of where it came from. What cannot be read is replaced, too.
        Raises OSError.
        """
        holder = self.directories.place(topic.name, log.partition)
        name = partition_directory(topic.name, log.partition)
        disk, path = self.files.disk, f"{holder.partition_path(name)}/{PARTITION_METADATA}"
        try:
            found = read_topic_id(disk, path)
        except CheckpointError as error:
            logger.warning("%s; replaced", error)
            found = None
        if found == topic.id:
            return False
        if found is not None:
            logger.warning("%s-%d: replaced foreign topic id %s with %s", log.topic, log.partition, found, topic.id)
        write_topic_id(disk, path, topic.id, sync=False)
        return True

    def _open_in(self, directory: DataDirectory, topic: Topic, config: LogConfig, index: int) -> PartitionLog:
        key = topic.name, index
        self.directories.settle_arrival(*key, directory)
        return PartitionLog.open(
            directory.partition_path(partition_directory(*key)),
            topic=topic.name,
            partition=index,
            config=config,
            files=self.files,
            clock=self.clock,
            random=self.random,
            recovery_point=0 if directory.is_foreign else directory.recovery_points.get(key, 0),
            log_start_offset=directory.log_starts.get(key, 0),
            clean=directory.was_clean,
            room=directory.room,
            uses_reserve=is_internal(topic.name),
            scanned=self.progress.scanned,
            budget=self.budget,
        )

    def close_logs(self, logs: Sequence[PartitionLog], *, all_open: bool) -> None:
        """Close all logs, each data directory's by threads of its own, and leave what the next startup goes by.

        Unless `all_open`, what the last broker left still holds.
        """
        held = self.directories.by_directory(logs)
        if not held:
            return
        with ThreadPoolExecutor(len(held), thread_name_prefix="closing") as pool:
            done = [pool.submit(self._close_directory, each, logs, all_open=all_open) for each, logs in held.items()]
        for each in done:
            each.result()

    def _close_directory(self, directory: DataDirectory, logs: Sequence[PartitionLog], *, all_open: bool) -> None:
        if directory.room.is_short:
            with suppress(OSError):  # its disk has failed, which is reported when its checkpoints are written
                directory.make_room()  # closing logs write, too, and all they write is small
        with ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="closing") as pool:
            is_clean = all(list(pool.map(_close, logs)))
        if not all_open:
            return
        try:
            directory.write_checkpoints(logs)
            if is_clean:
                directory.mark_clean()
        except OSError as error:
            logger.warning("%s: no clean stop, the next start looks at everything: %s", directory.path, error)
        finally:
            directory.keep_room()

    def finish_deletions(self) -> None:
        """Finish what a crash interrupted, and remove what waited for its delay when the broker stopped.

        Raises MetadataError, OSError.
        """
        deleting = self.store.deleting()
        leaving_data = [topic.name for topic in deleting if not self._remove_partitions(topic)]
        if deleting:
            for directory in self.directories.live:
                directory.sync_names()  # else a power cut brings back what nobody remembers as deleted
            self.store.finish_delete([topic.name for topic in deleting], leaving_data=leaving_data)
        for directory in self.directories.live:
            for name in directory.deleted_directories():
                shutil.rmtree(directory.partition_path(name), ignore_errors=True)

    def _remove_partitions(self, topic: Topic) -> bool:
        """Remove the partition directories of a topic; tell whether none of them is left."""
        is_gone = True
        for index in range(topic.partitions):
            holder = self.directories.holder(topic.name, index)
            if holder is not None:
                name = partition_directory(topic.name, index)
                shutil.rmtree(holder.partition_path(name), ignore_errors=True)
                is_gone &= not holder.has(name)
            is_gone &= not self.directories.is_offline(topic.name, index)
        self.forget_hints(topic)
        return is_gone

    def warn_of_strangers(self, is_served: Callable[[str, int], bool], exists: Callable[[str], bool]) -> None:
        """Log what lies in the data directories and is not served; its checkpoints are kept. Raises OSError."""
        for directory in self.directories.live:
            found = [(each.topic, each.partition) for each in directory.partitions()]
            directory.unserved = frozenset(key for key in found if not is_served(*key))
            _warn_of_strangers(directory, exists)

    def forget_hints(self, topic: Topic) -> None:
        """Forget what the checkpoints said at startup of a topic that is gone: another one may take its name."""
        for index in range(topic.partitions):
            self.directories.forget(topic.name, index)


def _warn_of_strangers(directory: DataDirectory, exists: Callable[[str], bool]) -> None:
    for finding in directory.findings:
        logger.warning("%s", finding)
    for name in directory.foreign_names():
        logger.warning("%s: not a partition and no file of a broker; left alone", directory.partition_path(name))
    for topic, keys in groupby(sorted(directory.unserved), key=itemgetter(0)):
        indexes = [index for _, index in keys]
        if exists(topic):
            shown = ", ".join(map(str, indexes))
            logger.warning("%s: topic %s has no partition %s, whose data is here", directory.path, topic, shown)
        else:
            logger.warning(
                "%s: data of topic %s (partition directories: %d) is not served, because there is no such topic;"
                " create it with its settings and %d or more partitions to serve the data",
                directory.path,
                topic,
                len(indexes),
                indexes[-1] + 1,
            )


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


def move_away(directory: DataDirectory, logs: Iterable[PartitionLog]) -> tuple[list[tuple[str, str]], set[str]]:
    """Rename the directories of deleted partitions in a data directory, and have the new names on the disk.

    Returns (topic, path) of each under which it waits for its removal, and the topics of which some could not be moved:
    they lie where they were, or would after a power cut.
    """
    moved: list[tuple[str, str]] = []
    left: set[str] = set()
    for log in logs:
        try:
            moved.append((log.topic, str(directory.with_room(log.delete))))
        except OSError as error:
            left.add(log.topic)
            logger.warning(
                "%s-%d: deleted, but its files stay until the next start: %s", log.topic, log.partition, error
            )
    try:
        directory.sync_names()
    except OSError as error:
        left |= {topic for topic, _ in moved}
        logger.warning("data directory %s: names of deleted partitions are not synced: %s", directory.path, error)
    return moved, left
