"""Files that are out of the way and wait for their removal.

Owns: what waits, and until when. Must not know why they are to go.

A removed segment's files keep their blocks until `file.delete.delay.ms` is over; then a worker unlinks them, for a
large file takes its time: 40 ms for 128 MB. After each file it rests for as long as that took, so that a log of many
segments does not have disk and core for seconds. What still waits when the broker stops is removed by the next start,
which knows it by its name.
"""

from typing import NamedTuple

import trio

from broker.log.partition_log import PartitionLog


class _Waiting(NamedTuple):
    """Files that wait until a moment of trio's clock."""

    due: float
    log: PartitionLog
    names: list[str]


class Unlinking:
    """All that waits in one broker."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    def add(self, log: PartitionLog, names: list[str]) -> None:
        """Have these files of a log unlinked after its delay."""
        delay_s = log.config.file_delete_delay_ms / 1000
        self._waiting.append(_Waiting(trio.current_time() + delay_s, log, names))

    async def unlink_due(self) -> None:
        """Unlink those whose delay is over. Raises the last OSError, of what is left then and tried again."""
        now, failure = trio.current_time(), None
        for waiting in [each for each in self._waiting if each.due <= now]:
            try:
                await _unlink(waiting)
            except OSError as error:  # the others' turn comes all the same
                failure = error
            else:
                self._waiting.remove(waiting)
        if failure is not None:
            raise failure


async def _unlink(waiting: _Waiting) -> None:
    """One file after the other, with a rest after each. Raises OSError."""
    for name in waiting.names:
        began_at = trio.current_time()
        await trio.to_thread.run_sync(waiting.log.old_segments.unlink, [name])
        await trio.sleep(trio.current_time() - began_at)
