"""The watch over the data directories: which of them still serve, and which have room.

Owns: when a directory is looked at, and what follows. One whose disk has failed is taken out of service, alone; the
broker ends if it cannot go on without it. One that is full takes no appends until there is room again, which is told
once for all of its logs. Must not know: how a directory is looked at, or how much room is kept.

    loop     every second, for each directory in a task of its own: a disk that hangs does not hold up the others
    worker   is it there, is it writable, how much room is there; where something has failed: can something be written
             and synced; take what is to be kept, or give it up
    loop     out of service, if not; what is to be told

Nobody asks for room on an append: a write that finds none closes the directory for appends (`Room.ran_out`), and the
next look opens it again, or not.

Source: kafka.server.ReplicaManager.LogDirFailureHandler, which is told by who runs into an error; here, too, the
errors of checkpoints and of logs come from elsewhere, and the watch makes sure.
"""

import logging
from functools import partial

import trio

from broker.log.directory.data_directories import DataDirectories
from broker.log.directory.data_directory import DataDirectory
from broker.log.errors import DirectoryFailedError
from broker.log.io.disk import DiskSpace, is_disk_failure, is_out_of_room
from broker.maintenance.wakeups import sleep_till_tick
from broker.metrics.registry import Metrics
from broker.partitions.partitions import Partitions
from broker.partitions.refusal_log import Refusals

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0  # how late a failure, or room, may be noticed; a look takes three system calls


class DiskWatch:
    """`run` it under a nursery that ends with the broker."""

    def __init__(self, partitions: Partitions, directories: DataDirectories, metrics: Metrics) -> None:
        self._partitions = partitions
        self._directories = directories
        self._spaces: dict[DataDirectory, DiskSpace] = {}  # as last seen
        self._failed_logs: dict[DataDirectory, int] = {}  # how many there were at the last look
        self._refusals = {directory: Refusals(f"data directory {directory.path}") for directory in directories.live}
        self._told: dict[DataDirectory, int] = {}  # refused appends
        _declare(metrics, self._spaces, directories)

    async def run(self) -> None:
        """Watch every directory until cancelled. Raises DirectoryFailedError if nothing can be served any more."""
        async with trio.open_nursery() as nursery:
            for directory in self._directories.live:
                nursery.start_soon(self._watch, directory)

    async def _watch(self, directory: DataDirectory) -> None:
        while directory in self._directories.live:
            await self.look(directory)
            await sleep_till_tick(INTERVAL_S)
        self._spaces.pop(directory, None)

    async def look(self, directory: DataDirectory) -> None:
        """Look at a directory once. Raises DirectoryFailedError if nothing can be served any more."""
        suspicion = self._directories.suspects.pop(directory, None)
        probe = self._has_new_failures(directory) or suspicion is not None
        try:
            look = partial(_look, directory, probe=probe)
            self._spaces[directory] = await trio.to_thread.run_sync(look, abandon_on_cancel=True)
        except DirectoryFailedError as error:
            self._partitions.take_offline(directory.path, error.reason)
        except OSError as error:
            if is_disk_failure(error):
                self._partitions.take_offline(directory.path, error.strerror or str(error))
            else:
                logger.warning("data directory %s: %s", directory.path, error)
        else:
            self._tell_room(directory)

    def _has_new_failures(self, directory: DataDirectory) -> bool:
        """Whether logs have failed since the last look: it may be their disk, or they alone."""
        logs = [partition.log for partition in self._partitions if partition.log.failed]
        failed = len(self._directories.by_directory(logs)[directory])
        before, self._failed_logs[directory] = self._failed_logs.get(directory, 0), failed
        return failed > before

    def _tell_room(self, directory: DataDirectory) -> None:
        """Tell of refused appends, now and then, and when they go on."""
        room, refusals = directory.room, self._refusals[directory]
        new = room.refused - self._told.get(directory, 0)
        self._told[directory] = room.refused
        if new or (room.is_short and not refusals.told):
            usable = self._spaces[directory].usable_bytes
            refusals.tell(f"data directory {directory.path} is full ({usable:,} bytes are free)", new)
        elif refusals.told and not room.is_short:
            refusals.over()


def _look(directory: DataDirectory, *, probe: bool) -> DiskSpace:
    """Worker: see how a directory is, and keep room in it. Raises OSError, DirectoryFailedError."""
    try:
        space = directory.look(probe=probe)
    except OSError as error:
        if not is_out_of_room(error):
            raise
        space = directory.look(probe=False)  # there is no room for the probe, which is another matter
    directory.reserve.settle(space.usable_bytes)
    return space


def _declare(metrics: Metrics, spaces: dict[DataDirectory, DiskSpace], directories: DataDirectories) -> None:
    """What is to be known of every data directory, by its path."""
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
        "Appends refused because the disk is full.",
        lambda: [((each.path,), each.room.refused) for each in list(directories.live)],
        ("directory",),
    )
