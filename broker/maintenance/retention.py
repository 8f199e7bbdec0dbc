"""Retention: delete segments that are too old, exceed the size limit, or were deleted by users.

This module runs the check over all logs; the rules are in `broker.log.retention`. The steps for one log:

    worker   find the segments to remove         one log after the other, in one worker thread
    loop     roll the active segment if it is among them; advance the log start offset; take the segments out of the log
    worker   rename their files
    worker   unlink their files                  after `file.delete.delay.ms` (`file_removal`)

Invariants:
1. A failure of one log is logged and does not keep other logs from being checked.
2. A log is not closed or moved while a worker uses it, and its segments are rearranged by one task at a time.
"""

import logging
from collections.abc import Sequence

import trio

from warmlog.broker.log.errors import LogError
from warmlog.broker.log.retention.removal import Removable
from warmlog.broker.log.retention.rules import RemovalReason
from warmlog.broker.maintenance.file_removal import FileRemoval
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ProtocolError

logger = logging.getLogger(__name__)


class Retention:
    """Removes old segments."""

    def __init__(self, partitions: Partitions, unlinking: FileRemoval, metrics: Metrics) -> None:
        self._partitions = partitions
        self._unlinking = unlinking
        self._metrics = metrics
        self._reported: set[tuple[str, int, int]] = set()  # segments with future timestamps that were logged

    async def check(self, data_directory: str | None = None) -> None:
        """Check all logs once, or those of one data directory (another directory's disk may hang)."""
        for partition in self._partitions:
            if data_directory not in {None, partition.data_directory}:
                continue
            try:
                with partition.rearranging() as scope:
                    if scope is not None:  # otherwise it is being compacted or deleted: skipped this time
                        await self._check_log(partition)
            except (OSError, LogError, ProtocolError) as error:
                logger.warning("%s-%d: retention: %s", partition.topic, partition.index, error)
            except Exception:  # a defect in one log must not stop retention of the others
                logger.exception("%s-%d: retention failed", partition.topic, partition.index)

    async def _check_log(self, partition: Partition) -> None:
        log = partition.log
        old_segments = await trio.to_thread.run_sync(log.old_segments.find)
        self._report_future(partition, old_segments)
        if not old_segments.reasons:
            return
        with trio.CancelScope(shield=True):  # removed segments must also be renamed
            partition.advance_start(await self._new_start(partition, old_segments))
            await self._remove(partition, old_segments.reasons)

    async def _remove(self, partition: Partition, reasons: Sequence[RemovalReason]) -> None:
        log = partition.log
        removed = log.old_segments.take_out()
        if not removed:
            return
        for reason in reasons[: len(removed)]:
            self._metrics.removed_segments[reason.value].add()
        logger.info(
            "%s-%d: removed %d segments (%s); log start offset is now %d",
            partition.topic,
            partition.index,
            len(removed),
            ", ".join(sorted(set(reasons))),
            log.offsets.log_start_offset,
        )
        names = await trio.to_thread.run_sync(log.old_segments.rename, removed)
        self._unlinking.add(log, names)

    async def _new_start(self, partition: Partition, removable: Removable) -> int:
        """Return the new log start offset. It includes the active segment only if that could be rolled while empty."""
        if not removable.with_active:
            return removable.end_offset
        log = partition.log
        if log.offsets.log_end_offset == removable.end_offset and await partition.roll():
            self._metrics.rolls["time"].add()
            return removable.end_offset
        return removable.active_base_offset

    def _report_future(self, partition: Partition, removable: Removable) -> None:
        """Log once that a segment's future timestamps keep it, and all later ones, beyond the retention time."""
        if removable.from_future is None:
            return
        segment = (partition.topic, partition.index, removable.from_future)
        if segment not in self._reported:
            self._reported.add(segment)
            logger.warning("%s-%d: segment %d has future timestamps and is kept until they have passed", *segment)
