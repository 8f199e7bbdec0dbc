"""The data directories of the partitions: blocking work to create, open, close and delete logs.

Everything here runs in worker threads, except `forget_hints`. The order of durable steps:

    creation   write the topic to the metadata | create the directories | fsync their names | (publish)
    deletion   (unpublish) | mark in the metadata | rename the directories | fsync the names | remove from the metadata

The content of a new partition directory is not flushed before the first flush of its log: startup can create it again,
since the metadata record that the partition exists.
"""

import errno
import logging
import shutil
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from random import Random
from typing import NamedTuple

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.directory.checkpoint import PARTITION_METADATA, read_topic_id, write_topic_id
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.directory.receipt import write_receipt
from warmlog.broker.log.errors import (
    CheckpointError,
    DataDirectoryError,
    DirectoryFailedError,
    LogError,
    MissingFilesError,
)
from warmlog.broker.log.io.directory_names import partition_directory
from warmlog.broker.log.io.disk import IrregularFileError, is_disk_failure
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.idle import ProducerBudget
from warmlog.broker.metadata.topic import Topic, uses_reserve
from warmlog.broker.partitions.disks.startup import RecoveredLogs, Start, StartProgress, receipt_of
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.protocol.partitions import TopicPartition

logger = logging.getLogger(__name__)

# Closing a log waits for three fsyncs. File systems merge concurrent fsyncs into one journal commit, so eight threads
# need a sixth of the time of one; more threads only use memory.
CLOSING_THREADS = 8

# Errors of one partition at startup: its files belong to another user, or another kind of file has its name.
_UNUSABLE = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP})


class NewLog(NamedTuple):
    """A partition to create."""

    topic: Topic
    partition: int
    config: LogConfig


@dataclass(frozen=True, slots=True)
class Storage:
    """The data directories and open files of a broker; `clock` returns milliseconds since the epoch.

    In a cluster (`is_in_cluster`), and for mirrored topics, leader epochs and high watermarks are decided elsewhere.
    `closing_epoch` returns the epoch for clean shutdown markers, by default the time.
    """

    directories: DataDirectories
    files: OpenFiles
    clock: Callable[[], int]
    random: Random
    progress: StartProgress = field(default_factory=StartProgress)
    recovered: RecoveredLogs = field(default_factory=RecoveredLogs)
    budget: ProducerBudget = field(default_factory=ProducerBudget)
    is_in_cluster: bool = False
    closing_epoch: Callable[[], int] | None = None
    cut: set[TopicPartition] = field(default_factory=set)  # logs shorter than at the last clean stop
    unrecovered: set[DataDirectory] = field(default_factory=set)  # directories with logs that could not be opened
    made_in: set[DataDirectory] = field(default_factory=set)  # directories whose new names are not fsynced yet

    def recover_logs(self, topics: Sequence[tuple[Topic, Sequence[int], LogConfig]], *, threads_each: int) -> None:
        """Recover the logs that need it, in several threads per data directory; `open_logs` takes them.

        Each topic comes with its partitions that have a log here.
        """
        queues: dict[DataDirectory, list[TopicPartition]] = {directory: [] for directory in self.directories.live}
        by_name = {topic.name: (topic, config) for topic, _, config in topics}
        for topic, indexes, _ in topics:
            for index in indexes:
                holder = self.directories.holder(topic.name, index)
                if holder in queues and not holder.was_clean:
                    queues[holder].append((topic.name, index))

        def open_log(key: TopicPartition) -> PartitionLog:
            return self._open_log(*by_name[key[0]], key[1])

        self.recovered.run(list(queues.values()), open_log, threads_each=threads_each, progress=self.progress)

    def end_opening(self, logs: Sequence[PartitionLog], start: Start) -> None:
        """Write a receipt in each data directory in which logs were recovered; `logs` are all open logs.

        Never fails: a receipt that cannot be written is logged.
        """
        self.recovered.close_rest()
        self.progress.end()
        for directory, held in self.directories.by_directory(logs).items():
            receipt = receipt_of(directory, held, start, self.progress.seconds)
            if receipt is not None:
                try:
                    write_receipt(self.files.disk, directory.path, receipt)
                except OSError as error:
                    logger.warning("%s: cannot write the receipt of the recovery: %s", directory.path, error)

    def open_logs(
        self, topic: Topic, indexes: Sequence[int], config: LogConfig
    ) -> tuple[list[PartitionLog], dict[int, str]]:
        """Open or create the directories of an existing topic; call `sync_names` afterwards.

        Also returns the partitions that cannot be opened, with the reason: missing files, or missing permissions.
        Raises OSError, DirectoryFailedError.
        """
        logs: list[PartitionLog] = []
        failures: dict[int, str] = {}
        try:
            for index in indexes:
                try:
                    logs.append(self._open_known(topic, index, config))
                except MissingFilesError as error:
                    failures[index] = str(error)
                except OSError as error:
                    if error.errno not in _UNUSABLE and not isinstance(error, IrregularFileError):
                        raise
                    failures[index] = f"{error.strerror}: {error.filename}"
        except (OSError, DirectoryFailedError):
            for log in logs:
                log.close(clean=False)
            raise
        return logs, failures

    def _open_known(self, topic: Topic, index: int, config: LogConfig) -> PartitionLog:
        log = self.recovered.take(topic.name, index) or self._open_log(topic, config, index)
        try:
            if self._keep_topic_id(topic, log):
                self.made_in.add(self.directories.place(topic.name, index))
        except OSError:
            log.close(clean=False)
            raise
        return log

    def place(
        self, wanted: Iterable[NewLog]
    ) -> tuple[dict[DataDirectory, list[NewLog]], dict[TopicPartition, Exception]]:
        """Choose a data directory for each new partition; also return the failures."""
        placed: dict[DataDirectory, list[NewLog]] = {}
        failures: dict[TopicPartition, Exception] = {}
        for new in wanted:
            try:
                placed.setdefault(self.directories.place(new.topic.name, new.partition), []).append(new)
            except OSError as error:
                failures[new.topic.name, new.partition] = error
        return placed, failures

    def rename_strays(self, directory: DataDirectory, wanted: Iterable[NewLog]) -> list[TopicPartition]:
        """Rename, and keep, data of other topics in the directories of new partitions; return the partitions.

        Its records are not those of the cluster's replicas.
        """
        strays: list[TopicPartition] = []
        for topic, index, _ in wanted:
            topic_id = directory.topic_id(topic.name, index)
            if topic_id is not None and topic_id != topic.id:
                try:
                    directory.rename_stray(topic.name, index, topic_id)
                except OSError as error:
                    logger.warning(
                        "%s-%d: cannot move the data of a former topic of this name aside: %s", topic.name, index, error
                    )
                else:
                    strays.append((topic.name, index))
        return strays

    def make_logs(self, wanted: Sequence[NewLog]) -> list[PartitionLog | Exception]:
        """Create or open the directories of new partitions; call `sync_names` afterwards.

        An error affects its own partition only.
        """
        return [self._make_log(new) for new in wanted]

    def _make_log(self, new: NewLog) -> PartitionLog | Exception:
        try:
            if self.is_in_cluster:
                self._refuse_foreign(new)
                self.directories.supersede_offline(new.topic.name, new.partition)
            log = self._open_log(new.topic, new.config, new.partition)
        except (OSError, LogError) as error:
            return error
        try:
            self._keep_topic_id(new.topic, log)
        except OSError as error:
            log.close(clean=False)
            return error
        return log

    def _refuse_foreign(self, new: NewLog) -> None:
        """Raise DataDirectoryError for data of another topic: its records are not those of the cluster's replicas."""
        name, index = new.topic.name, new.partition
        directory = self.directories.place(name, index)
        stored_id = directory.topic_id(name, index)
        if stored_id is not None and stored_id != new.topic.id:
            path = directory.partition_path(partition_directory(name, index))
            raise DataDirectoryError(f"{path} belongs to another topic of this name, with the id {stored_id}")

    def sync_names(self) -> None:
        """Fsync the names of the partition directories created at startup. Raises OSError."""
        while self.made_in:
            self.made_in.pop().sync_names()

    def _open_log(self, topic: Topic, config: LogConfig, index: int) -> PartitionLog:
        """Open a log. Raises OSError, or DirectoryFailedError if the disk has failed."""
        directory = self.directories.place(topic.name, index)
        try:
            log = self._open_in(directory, topic, config, index)
        except OSError as error:
            if is_disk_failure(error):
                self.directories.suspects[directory] = error
            if is_disk_failure(error) and directory is not self.directories.first:
                raise _classify_failure(directory, error) from error
            raise
        self.progress.opened(log.recovery)
        return log

    def _keep_topic_id(self, topic: Topic, log: PartitionLog) -> bool:
        """Write the topic's id to `partition.metadata` unless the file has it; return whether it was written.

        A directory copied from another cluster has a different id. Unreadable files are replaced, too. In a cluster
        only the id shows which topic the records belong to, so the file is synced. Raises OSError.
        """
        holder = self.directories.place(topic.name, log.partition)
        name = partition_directory(topic.name, log.partition)
        disk, path = self.files.disk, f"{holder.partition_path(name)}/{PARTITION_METADATA}"
        try:
            stored_id = read_topic_id(disk, path)
        except CheckpointError as error:
            logger.warning("%s; replacing it", error)
            stored_id = None
        if stored_id == topic.id:
            return False
        if stored_id is not None:
            logger.warning("%s-%d: replaced foreign topic id %s with %s", log.topic, log.partition, stored_id, topic.id)
        write_topic_id(disk, path, topic.id, sync=self.is_in_cluster)
        return True

    def _open_in(self, directory: DataDirectory, topic: Topic, config: LogConfig, index: int) -> PartitionLog:
        key = topic.name, index
        is_copy = self.is_in_cluster or topic.mirror_of is not None
        self.directories.settle_arrival(*key, directory)
        log = PartitionLog.open(
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
            space_status=directory.space_status,
            uses_reserve=uses_reserve(topic.name),
            scanned=self.progress.scanned,
            budget=self.budget,
            high_watermark=directory.high_watermarks.get(key, 0) if is_copy else None,
            known_end=None if is_copy else directory.known_end(*key),
        )
        if directory.was_clean and log.offsets.log_end_offset < directory.recovery_points.get(key, 0):
            self.cut.add(key)
        try:
            assign_epoch(log, records_lost=not directory.was_clean and log.recovery is not None)
            if log.recovery is not None:
                log.durability.checkpoint_epochs()
        except OSError:
            log.close(clean=False)
            raise
        return log

    def close_logs(self, logs: Sequence[PartitionLog], *, all_open: bool) -> None:
        """Close all logs, with threads per data directory, and write the checkpoints and clean shutdown markers.

        Unless `all_open`, those of the previous run stay valid and are kept.
        """
        held = self.directories.by_directory(logs)
        if not held:
            return
        epoch = self.clock() if self.closing_epoch is None else self.closing_epoch()
        with ThreadPoolExecutor(len(held), thread_name_prefix="closing") as pool:
            done = [
                pool.submit(self._close_directory, directory, logs, epoch, all_open=all_open)
                for directory, logs in held.items()
            ]
        for each in done:
            each.result()

    def _close_directory(
        self, directory: DataDirectory, logs: Sequence[PartitionLog], epoch: int, *, all_open: bool
    ) -> None:
        if directory.space_status.is_short:
            with suppress(OSError):  # a failed disk is reported when the checkpoints are written
                directory.release_reserve()  # closing a log writes small files
        with ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="closing") as pool:
            is_clean = all(list(pool.map(_close, logs)))
        if not all_open:
            return
        try:
            directory.write_checkpoints(logs)
            if is_clean and (directory.was_clean or directory not in self.unrecovered):
                directory.mark_clean(epoch)
        except OSError as error:
            logger.warning(
                "%s: cannot record a clean shutdown, the next startup recovers all logs: %s", directory.path, error
            )
        finally:
            directory.fill_reserve()

    def remove_deleted(self) -> None:
        """Remove the files whose removal was pending when the broker stopped."""
        for directory in self.directories.live:
            for name in directory.deleted_directories():
                shutil.rmtree(directory.partition_path(name), ignore_errors=True)

    def remove_topics(self, topics: Iterable[Topic]) -> set[str]:
        """Remove the directories of topics; return the names of those with data that is left. Raises OSError."""
        left = {topic.name for topic in topics if not self._remove_partitions(topic)}
        for directory in self.directories.live:
            directory.sync_names()  # else a power failure could restore directories that the metadata no longer has
        return left

    def _remove_partitions(self, topic: Topic) -> bool:
        """Remove the partition directories of a topic; return whether none of them is left."""
        is_gone = True
        for index in range(topic.partitions):
            holder = self.directories.holder(topic.name, index)
            if holder is not None:
                name = partition_directory(topic.name, index)
                shutil.rmtree(holder.partition_path(name), ignore_errors=True)
                is_gone &= not holder.has(name)
            is_gone &= not self.directories.is_offline(topic.name, index)
            self.directories.forget(topic.name, index)
        return is_gone

    def warn_of_unserved(
        self, served: Container[TopicPartition], offline: Container[TopicPartition], exists: Callable[[str], bool]
    ) -> None:
        """Log a warning for data in the data directories that is not served. Raises OSError.

        Its checkpoints are kept, also those of partitions with missing directories. `offline` ones were already
        reported.
        """
        for directory in self.directories.live:
            present = {(each.topic, each.partition) for each in directory.partitions()}
            directory.unserved = frozenset(
                key for key in present | directory.hinted.intersection(self.directories.lost) if key not in served
            )
            if any(key in offline for key in directory.unserved):
                self.unrecovered.add(directory)
            _warn_of_unserved(directory, [key for key in directory.unserved if key not in offline], exists)


def _warn_of_unserved(
    directory: DataDirectory, unserved: Iterable[TopicPartition], exists: Callable[[str], bool]
) -> None:
    for finding in directory.findings:
        logger.warning("%s", finding)
    for name in directory.foreign_names():
        logger.warning("%s: neither a partition nor a broker file; ignored", directory.partition_path(name))
    for topic, keys in groupby(sorted(unserved), key=itemgetter(0)):
        indexes = [index for _, index in keys]
        if exists(topic):
            shown = ", ".join(map(str, indexes))
            logger.warning(
                "%s: topic %s has no partition %s; its data here is not served", directory.path, topic, shown
            )
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
    """Close a log, and return whether it was closed cleanly."""
    was_failed = log.failed
    try:
        log.close()
    except OSError as error:
        logger.warning("%s-%d: not closed cleanly: %s", log.topic, log.partition, error)
        return False
    return not was_failed


def _classify_failure(directory: DataDirectory, error: OSError) -> OSError | DirectoryFailedError:
    """Return DirectoryFailedError if a disk error affects the whole directory, else the error itself."""
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        try:
            directory.measure_space(probe=True)
        except OSError as failure:
            return DirectoryFailedError(directory.path, failure.strerror or str(failure))
        except DirectoryFailedError as failure:
            return failure
        return error
    return DirectoryFailedError(directory.path, error.strerror or str(error))


def move_away(directory: DataDirectory, logs: Iterable[PartitionLog]) -> tuple[list[tuple[str, str]], set[str]]:
    """Rename the directories of deleted partitions in a data directory, and fsync the new names.

    Returns (topic, new path) of each, and the topics with directories that could not be renamed, or whose new names may
    be lost in a power failure.
    """
    moved: list[tuple[str, str]] = []
    left: set[str] = set()
    for log in logs:
        try:
            moved.append((log.topic, str(directory.with_reserve(log.delete))))
        except OSError as error:
            left.add(log.topic)
            logger.warning(
                "%s-%d: deleted, but its files remain until the next startup: %s", log.topic, log.partition, error
            )
    try:
        directory.sync_names()
    except OSError as error:
        left |= {topic for topic, _ in moved}
        logger.warning("data directory %s: cannot fsync the names of deleted partitions: %s", directory.path, error)
    return moved, left
