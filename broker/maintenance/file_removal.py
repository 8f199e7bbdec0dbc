"""Removal of the files of deleted segments after `file.delete.delay.ms`.

A worker unlinks them, because unlinking a large file is slow: 40 ms for 128 MB. After each file the worker pauses for
as long as the unlink took, so that removing a log of many segments does not occupy the disk and a core for seconds.
Files that remain when the broker stops are removed by the next startup, which recognizes them by name.
"""

from collections import defaultdict
from typing import NamedTuple

import trio

from warmlog.broker.log.partition_log import PartitionLog


class _Waiting(NamedTuple):
    """Files to unlink at a time of trio's clock."""

    due: float
    log: PartitionLog
    names: list[str]


class FileRemoval:
    """The files waiting for removal, by data directory: a slow disk does not delay removals on another."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, list[_Waiting]] = defaultdict(list)

    def add(self, log: PartitionLog, names: list[str]) -> None:
        """Schedule files of a log for removal after its delay."""
        delay_s = log.config.file_delete_delay_ms / 1000
        self._waiting[str(log.directory.parent)].append(_Waiting(trio.current_time() + delay_s, log, names))

    async def unlink_due(self, data_directory: str) -> None:
        """Unlink the files of a data directory whose delay is over.

        Raises the last OSError; files that could not be unlinked are retried by the next call.
        """
        now, failure = trio.current_time(), None
        waiting = self._waiting[data_directory]
        for entry in [each for each in waiting if each.due <= now]:
            try:
                await _unlink(entry)
            except OSError as error:  # continue with the other files
                failure = error
            else:
                waiting.remove(entry)
        if failure is not None:
            raise failure


async def _unlink(waiting: _Waiting) -> None:
    """Unlink files one after the other, with a pause after each. Raises OSError."""
    for name in waiting.names:
        began_at = trio.current_time()
        await trio.to_thread.run_sync(waiting.log.old_segments.unlink, [name])
        await trio.sleep(trio.current_time() - began_at)
