"""Roll one log: worker threads create and flush files, everything else runs on the event loop."""

from contextlib import suppress
from functools import partial

from warmlog.broker.log.appends.durability import FlushPlan
from warmlog.broker.log.appends.planned import PlannedAppend
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.log_flushes import LogFlushes
from warmlog.broker.partitions.appends.log_tasks import LogTasks


class RollTasks:
    """The rolls of one log. Belongs to the event loop."""

    def __init__(self, log: PartitionLog, flushes: LogFlushes, tasks: LogTasks, metrics: Metrics) -> None:
        self._log = log
        self._flushes = flushes
        self._tasks = tasks
        self._metrics = metrics
        self._is_announced = False

    async def begin(self, planned: PlannedAppend) -> None:
        """Activate the segment that a plan begins; flush the old one in the background. Raises OSError."""
        segment = await self._flushes.disk.write(partial(self._log.rolls.prepare, planned))
        plan = self._log.durability.begin_flush()  # everything before the new segment
        sealed = self._log.rolls.commit(segment)
        assert planned.roll is not None
        self._metrics.rolls[planned.roll.value].add()
        self._tasks.spawn(partial(self.finish, sealed, plan))

    def announce_if_near(self) -> None:
        """Flush early, in the background, so that the first roll need not wait for it."""
        if not self._is_announced and self._log.rolls.is_near:
            self._is_announced = True
            self._tasks.spawn(self._announce)

    async def _announce(self) -> None:
        with suppress(OSError):  # the roll will fail with the same error, and report it
            await self._flushes.disk.keep_up(self._log.rolls.announce)

    async def finish(self, sealed: Segment, plan: FlushPlan) -> None:
        """Trim and flush the rolled segment, and advance the recovery point to the new one."""
        error: Exception | None = None
        try:
            await self._flushes.disk.keep_up(partial(_trim_and_flush, self._log, sealed, plan))
        except Exception as failure:  # noqa: BLE001  # reported to the appends that await a flush
            error = failure
        self._flushes.finish(plan, error)


def _trim_and_flush(log: PartitionLog, sealed: Segment, plan: FlushPlan) -> None:
    """Finish a roll, in a worker thread."""
    log.rolls.finish(sealed)
    plan.sync()
