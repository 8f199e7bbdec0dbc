"""Periodic checks of the data directories: take failed disks offline, and stop appends to full ones.

A directory whose disk has failed is taken offline; the broker stops only if it cannot run without it. A full directory
rejects appends until space is free again, which is logged once for all of its logs.

    loop     every second, in a task per directory: a hanging disk does not delay the checks of others
    worker   check that the directory exists and is writable, and its free space; after an error also write and fsync a
             probe file; fill or release the disk reserve
    loop     take the directory offline if it failed; log rejected appends

Appends do not check for free space: a write that fails for lack of it closes the directory for appends
(`SpaceStatus.ran_out`), and the next check may open it again.

Source: kafka.server.ReplicaManager.LogDirFailureHandler. There, the code that gets an I/O error reports the directory;
here errors of checkpoints and logs only cause a probe.
"""

import logging
from functools import partial

import trio

from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.errors import DirectoryFailedError
from warmlog.broker.log.io.disk import DiskSpace, is_disk_failure, is_out_of_space
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.maintenance.pieces import in_pieces
from warmlog.broker.maintenance.wakeups import sleep_until_wakeup
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.refusal_log import RefusalLog
from warmlog.broker.partitions.partitions import Partitions

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0  # longest delay until a failure or free space is detected; a check takes three system calls


class DiskWatch:
    """Checks the data directories; `run` it in a nursery that ends with the broker."""

    def __init__(self, partitions: Partitions, directories: DataDirectories, metrics: Metrics) -> None:
        self._partitions = partitions
        self._directories = directories
        self._spaces: dict[DataDirectory, DiskSpace] = {}  # by the last check
        self._failed_logs: dict[DataDirectory, int] = {}  # their number at the last check
        self._refusals = {directory: RefusalLog(f"data directory {directory.path}") for directory in directories.live}
        self._reported: dict[DataDirectory, int] = {}  # rejected appends
        _declare(metrics, self._spaces, directories)

    async def run(self) -> None:
        """Check every directory until cancelled. Raises DirectoryFailedError if the broker cannot continue."""
        async with trio.open_nursery() as nursery:
            for directory in self._directories.live:
                nursery.start_soon(self._watch, directory)

    async def _watch(self, directory: DataDirectory) -> None:
        while directory in self._directories.live:
            await self.check(directory)
            await sleep_until_wakeup(INTERVAL_S)
        self._spaces.pop(directory, None)

    async def check(self, directory: DataDirectory) -> None:
        """Measure a directory's free space, and take it offline if its disk has failed.

        Raises DirectoryFailedError if that is the directory with the metadata: the broker has to stop.
        """
        suspicion = self._directories.suspects.pop(directory, None)
        probe = await self._has_new_failures(directory) or suspicion is not None
        try:
            measure = partial(_measure, directory, probe=probe)
            self._spaces[directory] = await trio.to_thread.run_sync(measure, abandon_on_cancel=True)
        except DirectoryFailedError as error:
            self._partitions.availability.take_offline(directory.path, error.reason)
        except OSError as error:
            if is_disk_failure(error):
                self._partitions.availability.take_offline(directory.path, error.strerror or str(error))
            else:
                logger.warning("data directory %s: %s", directory.path, error)
        else:
            self._report_refusals(directory)

    async def _has_new_failures(self, directory: DataDirectory) -> bool:
        """Return whether logs have failed since the last check, which may be due to their disk."""
        logs: list[PartitionLog] = []
        async for piece in in_pieces(self._partitions):
            logs += [partition.log for partition in piece if partition.log.failed]
        failed = len(self._directories.by_directory(logs)[directory])
        before, self._failed_logs[directory] = self._failed_logs.get(directory, 0), failed
        return failed > before

    def _report_refusals(self, directory: DataDirectory) -> None:
        """Log rejected appends, and the end of the rejections."""
        status, refusals = directory.space_status, self._refusals[directory]
        new = status.refused - self._reported.get(directory, 0)
        self._reported[directory] = status.refused
        if new or (status.is_short and not refusals.is_active):
            usable = self._spaces[directory].usable_bytes
            refusals.report(f"data directory {directory.path} is full ({usable:,} bytes are free)", new)
        elif refusals.is_active and not status.is_short:
            refusals.end()


def _measure(directory: DataDirectory, *, probe: bool) -> DiskSpace:
    """Check a directory and adjust its reserve, in a worker thread. Raises OSError, DirectoryFailedError."""
    try:
        space = directory.measure_space(probe=probe)
    except OSError as error:
        if not is_out_of_space(error):
            raise
        space = directory.measure_space(probe=False)  # too full for the probe file, which is no failure of the disk
    directory.reserve.settle(space.usable_bytes)
    return space


def _declare(metrics: Metrics, spaces: dict[DataDirectory, DiskSpace], directories: DataDirectories) -> None:
    """Declare the metrics of each data directory, labelled by its path."""
    metrics.gauge(
        "warmlog_disk_total_bytes",
        "Size of a data directory's file system.",
        lambda: [((each.path,), space.total_bytes) for each, space in list(spaces.items())],
        ("directory",),
    )
    metrics.gauge(
        "warmlog_disk_free_bytes",
        "Free bytes of a data directory's file system that appends may use, without the disk reserve.",
        lambda: [((each.path,), space.usable_bytes) for each, space in list(spaces.items())],
        ("directory",),
    )
    metrics.gauge(
        "warmlog_disk_reserved_bytes",
        "Bytes currently held in a data directory's disk reserve.",
        lambda: [((each.path,), each.reserve.held_bytes) for each in list(directories.live)],
        ("directory",),
    )
    metrics.counter(
        "warmlog_refused_appends_total",
        "Appends rejected because the disk is full.",
        lambda: [((each.path,), each.space_status.refused) for each in list(directories.live)],
        ("directory",),
    )
