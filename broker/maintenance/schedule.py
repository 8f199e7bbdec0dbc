"""The schedule of a broker's periodic work: flushing, checkpoints, retention, compaction, file removal.

Each round is cheap, and blocking work is done in worker threads. A failed round is logged and retried at the next
interval. Work on every log has one task per data directory, so that a hanging disk delays only its own logs.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from warmlog.broker.maintenance.cleaner import Cleaner
from warmlog.broker.maintenance.failed_logs import FailedLogs
from warmlog.broker.maintenance.file_removal import FileRemoval
from warmlog.broker.maintenance.flushing import Flushing
from warmlog.broker.maintenance.producer_upkeep import ProducerUpkeep
from warmlog.broker.maintenance.retention import Retention
from warmlog.broker.maintenance.wakeups import next_wakeup, sleep_until_wakeup
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.settings.settings import Settings

logger = logging.getLogger(__name__)

_Work: TypeAlias = Callable[..., Awaitable[None]]

REMOVAL_INTERVAL_S = 1.0
REOPENING_INTERVAL_S = 1.0  # longest delay of the first attempt to rebuild a failed log


class Maintenance:
    """The periodic tasks; `run` them in a nursery that ends with the broker."""

    def __init__(self, partitions: Partitions, metrics: Metrics, settings: Settings) -> None:
        self._partitions = partitions
        self._metrics = metrics
        self._unlinking = FileRemoval()
        self._retention = Retention(partitions, self._unlinking, metrics)
        self._cleaner = Cleaner(partitions, self._unlinking, metrics)
        self._initial_delay_s = settings.log_initial_task_delay_ms / 1000
        self._retention_interval_s = settings.log_retention_check_interval_ms / 1000
        self._expiration_check_interval_s = settings.producer_id_expiration_check_interval_ms / 1000
        self._checkpoint_interval_s = settings.log_flush_offset_checkpoint_interval_ms / 1000
        self._producers = ProducerUpkeep(partitions, metrics)
        self._failed_logs = FailedLogs(partitions, metrics)
        self._flushing = Flushing(partitions, interval_ms=settings.log_flush_scheduler_interval_ms)

    async def run(self) -> None:
        """Run all tasks until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._measure_lateness)
            nursery.start_soon(self._flush)
            nursery.start_soon(self._reopen_failed)
            nursery.start_soon(self._every, self._expiration_check_interval_s, self._producers.forget_expired)
            nursery.start_soon(self._every, REMOVAL_INTERVAL_S, self._producers.evict_idle)
            nursery.start_soon(self._clean)
            for directory in self._partitions.data_directories:
                nursery.start_soon(self._every, self._checkpoint_interval_s, self._partitions.checkpoint, directory)
                nursery.start_soon(self._every, REMOVAL_INTERVAL_S, self._partitions.directories.remove_due, directory)
                nursery.start_soon(self._every, REMOVAL_INTERVAL_S, self._unlinking.unlink_due, directory)
                nursery.start_soon(self._after_start, self._retention_interval_s, self._retention.check, directory)

    async def _reopen_failed(self) -> None:
        async with trio.open_nursery() as attempts:  # an attempt may wait for a hanging disk

            async def begin_reopening() -> None:
                await self._failed_logs.begin(attempts)

            await self._every(REOPENING_INTERVAL_S, begin_reopening)

    async def _clean(self) -> None:
        await trio.sleep(self._initial_delay_s)
        await self._cleaner.run()

    async def _after_start(self, interval_s: float, work: _Work, *arguments: str) -> None:
        """Run `work` once after `log.initial.task.delay.ms`, then as `_every` does.

        The delay leaves time to change settings after startup before the defaults remove anything.
        """
        await trio.sleep(self._initial_delay_s)
        await self._attempt(interval_s, work, *arguments)
        await self._every(interval_s, work, *arguments)

    async def _every(self, interval_s: float, work: _Work, *arguments: str) -> None:
        while True:
            await sleep_until_wakeup(interval_s)
            await self._attempt(interval_s, work, *arguments)

    @staticmethod
    async def _attempt(interval_s: float, work: _Work, *arguments: str) -> None:
        try:
            await work(*arguments)
        except (OSError, MetadataError) as error:
            logger.warning("%s failed, retrying in %g s: %s", work.__name__, interval_s, error)
        except Exception:  # a defect in one round must not stop the broker
            logger.exception("%s failed, retrying in %g s", work.__name__, interval_s)

    async def _flush(self) -> None:
        while True:
            interval_s = await self._flushing.interval_s()
            await sleep_until_wakeup(interval_s)
            await self._attempt(interval_s, self._flushing.begin_due)

    async def _measure_lateness(self) -> None:
        """Observe the delay of every shared wake-up. A stall of 125 ms is seen every other time."""
        while True:
            due = next_wakeup()
            await trio.sleep_until(due)
            self._metrics.loop_stall.observe(trio.current_time() - due)
