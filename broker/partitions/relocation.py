"""Switch a log over to its copy in another data directory."""

import logging
from functools import partial
from pathlib import Path

import trio

from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.moving import LogMove
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.disks.checkpoints import Checkpoints
from warmlog.broker.partitions.partition import Destination, Partition
from warmlog.broker.partitions.topics.partition_directories import PartitionDirectories

logger = logging.getLogger(__name__)


class Relocation:
    """Switches logs over, with the checkpoints of both directories."""

    def __init__(
        self, directories: DataDirectories, checkpoints: Checkpoints, partition_directories: PartitionDirectories
    ) -> None:
        self._directories = directories
        self._checkpoints = checkpoints
        self._partition_directories = partition_directories

    async def relocate(self, partition: Partition, move: LogMove, directory: DataDirectory) -> bool:
        """Switch a log over to its copy in another data directory; return False if that is not possible yet.

        Raises OSError, and leaves the log where it was.
        """
        topic, index, directories = partition.topic, partition.index, self._directories
        async with self._checkpoints.hold(directory):
            source = directories.holder(topic, index)
            assert source is not None, "a served log has a directory"
            to = Destination(
                data_directory=str(Path(directory.path)),
                space_status=directory.space_status,
                write_checkpoints=partial(_checkpoint_arrival, partition.log, source, directory),
                moved=partial(directories.relocate, topic, index, directory),
            )
            moved = await partition.relocate(move, to)
        if moved is None:
            return False
        self._partition_directories.remove_later(moved.old_directory, partition.log.config.file_delete_delay_ms)
        try:
            await trio.to_thread.run_sync(directories.settle_arrival, topic, index, directory)
            await self._checkpoints.write([each for each in (source, directory) if each in directories.live])
        except OSError as error:
            logger.warning("%s-%d: moved, but the checkpoints still name its old directory: %s", topic, index, error)
        return True


def _checkpoint_arrival(log: PartitionLog, source: DataDirectory, target: DataDirectory) -> None:
    """Write the checkpoints of a data directory, including a log that moves there. Raises OSError."""
    target.add_to_checkpoints(log, source.cleaner_points.get((log.topic, log.partition)))
