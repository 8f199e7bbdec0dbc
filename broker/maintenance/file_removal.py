"""Files of removed segments that wait for `file.delete.delay.ms` before they are unlinked.

A worker unlinks them, because a large file takes its time: 40 ms for 128 MB. After each file it rests for as long as
that took, so that a log of many segments does not occupy disk and core for seconds. What still waits when the broker
stops is removed by the next startup, which recognizes it by its name.
"""

from collections import defaultdict
from typing import NamedTuple

import trio

from broker.log.partition_log import PartitionLog


class _Waiting(NamedTuple):
    """Files that wait until a moment of trio's clock."""

    due: float
    log: PartitionLog
    names: list[str]


class Unlinking:
    """The waiting files of one broker, by data directory: a slow disk does not delay the space gained on another."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, list[_Waiting]] = defaultdict(list)

    def add(self, log: PartitionLog, names: list[str]) -> None:
        """Have these files of a log unlinked after its delay."""
        delay_s = log.config.file_delete_delay_ms / 1000
        self._waiting[str(log.directory.parent)].append(_Waiting(trio.current_time() + delay_s, log, names))

    async def unlink_due(self, data_directory: str) -> None:
        """Unlink the files in a data directory whose delay is over.

        Raises the last OSError; what could not be unlinked is tried again by the next call.
        """
        now, failure = trio.current_time(), None
        waiting = self._waiting[data_directory]
        for entry in [each for each in waiting if each.due <= now]:
            try:
                await _unlink(entry)
            except OSError as error:  # the others' turn comes all the same
                failure = error
            else:
                waiting.remove(entry)
        if failure is not None:
            raise failure


async def _unlink(waiting: _Waiting) -> None:
    """One file after the other, with a rest after each. Raises OSError."""
    for name in waiting.names:
        began_at = trio.current_time()
        await trio.to_thread.run_sync(waiting.log.old_segments.unlink, [name])
        await trio.sleep(trio.current_time() - began_at)
