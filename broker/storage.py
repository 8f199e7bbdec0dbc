"""Where partitions live: the data directory, the metadata, and what is injected into logs.

Owns: what blocks when topics are opened, closed and removed: logs, checkpoints, leftovers. Must not know: the loop, who
asks, or which topics are served.

Everything here is for a worker, but `forget_hints`.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from uuid import UUID

from broker.log.checkpoint import PARTITION_METADATA, read_topic_id, write_topic_id
from broker.log.config import LogConfig
from broker.log.data_directory import DataDirectory
from broker.log.directory_names import partition_directory
from broker.log.disk import Disk
from broker.log.errors import CheckpointError
from broker.log.files import OpenFiles
from broker.log.partition_log import PartitionLog
from broker.metadata.store import MetadataStore
from broker.metadata.topic import Topic

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Storage:
    """One data directory with its files and metadata; `clock` gives ms."""

    directory: DataDirectory
    files: OpenFiles
    store: MetadataStore
    clock: Callable[[], int]
    random: Random

    def open_logs(self, topic: Topic, indexes: Sequence[int], config: LogConfig) -> list[PartitionLog]:
        """Open or make the directories; fresh ones end up on the disk by one sync for all of them. Raises OSError."""
        logs: list[PartitionLog] = []
        try:
            logs += (self._open_log(topic, index, config) for index in indexes)
            written = [_keep_topic_id(self.files.disk, log, topic.id) for log in logs]
            if any(written):
                self.directory.sync()
        except OSError:
            for log in logs:
                log.close(clean=False)
            raise
        return logs

    def _open_log(self, topic: Topic, index: int, config: LogConfig) -> PartitionLog:
        directory, key = self.directory, (topic.name, index)
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
        )

    def close_logs(self, logs: Sequence[PartitionLog], *, all_open: bool) -> None:
        """The end of a broker. Unless `all_open`, what the broker before left still holds."""
        clean = [_close(log) for log in logs]
        if not all_open:
            return
        try:
            self.directory.write_checkpoints(logs)
            if all(clean):
                self.directory.mark_clean()
        except OSError as error:
            logger.warning("no clean stop, the next start looks at everything: %s", error)

    def finish_deletions(self) -> None:
        """End what a crash interrupted, and remove what waited for its delay when the broker stopped.

        Raises MetadataError, OSError.
        """
        directory = self.directory
        for topic in self.store.deleting():
            for index in range(topic.partitions):
                shutil.rmtree(directory.partition_path(partition_directory(topic.name, index)), ignore_errors=True)
            self.forget_hints(topic)
            self.store.finish_delete(topic.name)
        for name in directory.deleted_directories():
            shutil.rmtree(directory.partition_path(name), ignore_errors=True)

    def warn_of_strangers(self, is_served: Callable[[str, int], bool]) -> None:
        """Log what lies in the data directory and is not served. Raises OSError."""
        directory = self.directory
        for finding in directory.findings:
            logger.warning("%s", finding)
        for name in directory.foreign_names():
            logger.warning("%s: not a partition and no file of a broker; left alone", directory.partition_path(name))
        for found in directory.partitions():
            if not is_served(found.topic, found.partition):
                logger.warning("%s-%d: no such topic; create it to serve it", found.topic, found.partition)

    def forget_hints(self, topic: Topic) -> None:
        """What the checkpoints said at the start is of a topic that is gone: another one may take its name."""
        directory = self.directory
        hinted = (directory.recovery_points, directory.log_starts, directory.high_watermarks, directory.cleaner_points)
        for hints in hinted:
            for index in range(topic.partitions):
                hints.pop((topic.name, index), None)


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


def move_away(logs: Iterable[PartitionLog]) -> list[str]:
    """Rename the directories out of service; the paths under which they wait for their removal."""
    return [str(log.delete()) for log in logs]
