"""The checkpoints of all data directories: who writes them, and when they must be on the disk before something else.

Each directory's are replaced as a whole by one writer at a time; a disk that hangs delays no other one's.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager

import trio

from broker.log.directory.checkpoint import TopicPartition
from broker.log.directory.data_directories import DataDirectories
from broker.log.directory.data_directory import DataDirectory
from broker.log.partition_log import PartitionLog


class Checkpoints:
    """Writes the checkpoints of the logs that there are now."""

    def __init__(self, directories: DataDirectories, logs: Callable[[], Iterable[PartitionLog]]) -> None:
        self._directories = directories
        self._logs = logs
        self._writing: defaultdict[DataDirectory, trio.Lock] = defaultdict(trio.Lock)

    async def write(self, directories: Collection[DataDirectory] | None = None) -> None:
        """Write the checkpoints of these directories, or all. Raises the first OSError, when all have had a turn."""
        await self._each(directories, self._directories.write_checkpoints)

    async def write_log_starts(self, directories: Collection[DataDirectory]) -> None:
        """Write log starts only: what was deleted from a log must not come back. Raises OSError, as `write`."""
        await self._each(directories, self._directories.write_log_starts)

    async def forget_stale(self, directories: Collection[DataDirectory], keys: Collection[TopicPartition]) -> None:
        """See to it that no checkpoint there says anything about partitions that are about to be made.

        A log of the same name as a deleted one would begin where that did, and lose what lies before. Raises OSError.
        """
        for directory in directories:
            async with self._writing[directory]:  # what is being written may mention them
                is_stale = directory.mentions(keys)
            if is_stale:
                await self.write([directory])

    @asynccontextmanager
    async def hold(self, directory: DataDirectory) -> AsyncIterator[None]:
        """Let nobody else write a directory's checkpoints in this block."""
        async with self._writing[directory]:
            yield

    async def _each(
        self,
        directories: Collection[DataDirectory] | None,
        write: Callable[[DataDirectory, Iterable[PartitionLog]], None],
    ) -> None:
        failures: list[OSError] = []

        async def write_one(directory: DataDirectory) -> None:
            async with self._writing[directory]:
                logs = list(self._logs())
                try:
                    await trio.to_thread.run_sync(self._write_one, directory, logs, write)
                except OSError as error:
                    failures.append(error)

        async with trio.open_nursery() as nursery:
            for directory in list(self._directories.live) if directories is None else directories:
                nursery.start_soon(write_one, directory)
        if failures:
            raise failures[0]

    def _write_one(
        self,
        directory: DataDirectory,
        logs: Iterable[PartitionLog],
        write: Callable[[DataDirectory, Iterable[PartitionLog]], None],
    ) -> None:
        """Write one directory's checkpoints, in a worker, unless it went out of service. Raises OSError."""
        held = self._directories.by_directory(logs).get(directory)
        if held is not None:
            write(directory, held)
