"""Write the checkpoints of all data directories.

One task at a time rewrites all checkpoints of a directory; a hanging disk delays no other directory.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager

import trio

from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.partitions import TopicPartition


class Checkpoints:
    """Writes the checkpoints of the current logs."""

    def __init__(self, directories: DataDirectories, logs: Callable[[], Iterable[PartitionLog]]) -> None:
        self._directories = directories
        self._logs = logs
        self._writing: defaultdict[DataDirectory, trio.Lock] = defaultdict(trio.Lock)

    async def write(self, directories: Collection[DataDirectory] | None = None) -> None:
        """Write the checkpoints of these directories, or of all. Raises the first OSError after all were tried."""
        await self._each(directories, self._directories.write_checkpoints)

    async def write_log_starts(self, directories: Collection[DataDirectory]) -> None:
        """Write log start offsets only, so that deleted records stay deleted. Raises OSError, as `write` does."""
        await self._each(directories, self._directories.write_log_starts)

    async def forget_stale(self, directories: Collection[DataDirectory], keys: Collection[TopicPartition]) -> None:
        """Remove the entries of partitions that are about to be created from the checkpoints.

        Otherwise a new log would inherit the log start offset of a deleted one of its name. Raises OSError.
        """
        for directory in directories:
            async with self._writing[directory]:  # a write in progress may contain them
                is_stale = directory.mentions(keys)
            if is_stale:
                await self.write([directory])

    async def add_new(self, directory: DataDirectory, keys: Collection[TopicPartition]) -> None:
        """Add partitions whose directories were created and synced (`DataDirectory.add_new`). Raises OSError."""
        async with self._writing[directory]:
            await trio.to_thread.run_sync(directory.add_new, keys)

    @asynccontextmanager
    async def hold(self, directory: DataDirectory) -> AsyncIterator[None]:
        """Keep other tasks from writing a directory's checkpoints within the block."""
        async with self._writing[directory]:
            yield

    async def _each(
        self,
        directories: Collection[DataDirectory] | None,
        write: Callable[[DataDirectory, Iterable[PartitionLog]], None],
    ) -> None:
        failures: list[OSError] = []

        async def write_directory(directory: DataDirectory) -> None:
            async with self._writing[directory]:
                logs = list(self._logs())
                try:
                    await trio.to_thread.run_sync(self._write_directory, directory, logs, write)
                except OSError as error:
                    failures.append(error)

        async with trio.open_nursery() as nursery:
            for directory in list(self._directories.live) if directories is None else directories:
                nursery.start_soon(write_directory, directory)
        if failures:
            raise failures[0]

    def _write_directory(
        self,
        directory: DataDirectory,
        logs: Iterable[PartitionLog],
        write: Callable[[DataDirectory, Iterable[PartitionLog]], None],
    ) -> None:
        """Write one directory's checkpoints in a worker thread, unless it is offline. Raises OSError."""
        held = self._directories.by_directory(logs).get(directory)
        if held is not None:
            write(directory, held)
