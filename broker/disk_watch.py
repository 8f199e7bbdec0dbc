"""The watch over the data directories: which of them still serve.

Owns: when a directory is looked at, and what follows: one whose disk has failed is taken out of service, alone; the
broker ends if it cannot go on without it. Must not know: how a directory is looked at, or what a partition is.

    loop     every second, for each directory in a task of its own: a disk that hangs does not hold up the others
    worker   is it there, is it writable; where something has failed: can something be written and synced
    loop     out of service, if not

Source: kafka.server.ReplicaManager.LogDirFailureHandler, which is told by who runs into an error; here, too, the
errors of checkpoints and of logs come from elsewhere, and the watch makes sure.
"""

import logging
from functools import partial

import trio

from broker.log.data_directories import DataDirectories
from broker.log.data_directory import DataDirectory
from broker.log.disk import is_disk_failure
from broker.log.errors import DirectoryFailedError
from broker.partitions import Partitions

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0  # how late a failure may be noticed; a look takes two system calls


class DiskWatch:
    """`run` it under a nursery that ends with the broker."""

    def __init__(self, partitions: Partitions, directories: DataDirectories) -> None:
        self._partitions = partitions
        self._directories = directories
        self._failed_logs: dict[DataDirectory, int] = {}  # how many there were at the last look

    async def run(self) -> None:
        """Watch every directory until cancelled. Raises DirectoryFailedError if nothing can be served any more."""
        async with trio.open_nursery() as nursery:
            for directory in self._directories.live:
                nursery.start_soon(self._watch, directory)

    async def _watch(self, directory: DataDirectory) -> None:
        while directory in self._directories.live:
            await trio.sleep(INTERVAL_S)
            await self.look(directory)

    async def look(self, directory: DataDirectory) -> None:
        """Look at a directory once. Raises DirectoryFailedError if nothing can be served any more."""
        suspicion = self._directories.suspects.pop(directory, None)
        probe = self._has_new_failures(directory) or suspicion is not None
        try:
            await trio.to_thread.run_sync(partial(directory.look, probe=probe), abandon_on_cancel=True)
        except DirectoryFailedError as error:
            self._partitions.take_offline(directory.path, error.reason)
        except OSError as error:
            if is_disk_failure(error):
                self._partitions.take_offline(directory.path, error.strerror or str(error))
            else:
                logger.warning("data directory %s: %s", directory.path, error)

    def _has_new_failures(self, directory: DataDirectory) -> bool:
        """Whether logs have failed since the last look: it may be their disk, or they alone."""
        failed = sum(
            log.failed for log in self._directories.by_directory(part.log for part in self._partitions)[directory]
        )
        before, self._failed_logs[directory] = self._failed_logs.get(directory, 0), failed
        return failed > before
