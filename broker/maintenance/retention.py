"""Retention of all logs: what is too old, too much, or deleted by users goes away.

Owns: the round over the logs, and the order of steps for one of them. Must not know the rules
(`broker.log.retention`), or when a round is due (`maintenance`).

    worker   which segments may go               one log after the other: no hurry, and one worker of many
    loop     the active segment rolls first, if it is among them; the log start moves; the log lets go of them
    worker   their files are renamed
    worker   their files are unlinked            after `file.delete.delay.ms` (`unlinking`)

Invariants:
1. What goes wrong with one log is told, and the others' turn comes.
2. A log is not closed or moved while a worker is inside it, and nobody else rearranges its segments.
"""

import logging
from collections.abc import Sequence

import trio

from broker.log.errors import LogError
from broker.log.removal import Removable
from broker.log.retention import RemovalReason
from broker.maintenance.file_removal import Unlinking
from broker.metrics.registry import Metrics
from broker.partitions.partition import Partition
from broker.partitions.partitions import Partitions
from protocol.errors import ProtocolError

logger = logging.getLogger(__name__)


class Retention:
    """Removes old segments."""

    def __init__(self, partitions: Partitions, unlinking: Unlinking, metrics: Metrics) -> None:
        self._partitions = partitions
        self._unlinking = unlinking
        self._metrics = metrics
        self._told: set[tuple[str, int, int]] = set()  # segments from the future that were told of

    async def check(self, data_directory: str | None = None) -> None:
        """Go once through all logs, or those of one data directory: another one's disk may hang."""
        for partition in self._partitions:
            if data_directory not in {None, partition.data_directory}:
                continue
            try:
                with partition.rearranging() as scope:
                    if scope is not None:  # else it is being compacted, or deleted: another time
                        await self._check_log(partition)
            except (OSError, LogError, ProtocolError) as error:
                logger.warning("%s-%d: retention: %s", partition.topic, partition.index, error)
            except Exception:  # a defect that one log brings out keeps no other from its turn
                logger.exception("%s-%d: retention failed", partition.topic, partition.index)

    async def _check_log(self, partition: Partition) -> None:
        log = partition.log
        found = await trio.to_thread.run_sync(log.old_segments.find)
        self._tell_future(partition, found)
        if not found.reasons:
            return
        with trio.CancelScope(shield=True):  # what is taken out is also put aside
            partition.advance_start(await self._new_start(partition, found))
            await self._remove(partition, found.reasons)

    async def _remove(self, partition: Partition, reasons: Sequence[RemovalReason]) -> None:
        log = partition.log
        removed = log.old_segments.take_out()
        if not removed:
            return
        for reason in reasons[: len(removed)]:
            self._metrics.removed_segments[reason.value].add()
        logger.info(
            "%s-%d: %d segments removed (%s); the log begins at %d",
            partition.topic,
            partition.index,
            len(removed),
            ", ".join(sorted(set(reasons))),
            log.log_start_offset,
        )
        names = await trio.to_thread.run_sync(log.old_segments.rename, removed)
        self._unlinking.add(log, names)

    async def _new_start(self, partition: Partition, found: Removable) -> int:
        """Up to where all may go; the active segment only if it could be rolled, with nothing new in it."""
        if not found.with_active:
            return found.end_offset
        log = partition.log
        if log.log_end_offset == found.end_offset and await partition.roll():
            self._metrics.rolls["time"].add()
            return found.end_offset
        return found.active_base_offset

    def _tell_future(self, partition: Partition, found: Removable) -> None:
        """A time in the future keeps a segment, and all after it, for longer than anybody asked."""
        if found.from_future is None:
            return
        segment = (partition.topic, partition.index, found.from_future)
        if segment not in self._told:
            self._told.add(segment)
            logger.warning("%s-%d: segment %d has times in the future: it stays until they are past", *segment)
