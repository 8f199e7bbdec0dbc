"""The periodic work of a broker: flush by time, checkpoints, retention, compaction, removal, the loop's lateness.

Every round is cheap, and off the event loop where it touches a disk; a round that fails is logged and tried again at
the next. What touches every log has a task per data directory, so that a disk that hangs delays only its own.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from broker.maintenance.cleaner import Cleaner
from broker.maintenance.failed_logs import Reopener
from broker.maintenance.file_removal import Unlinking
from broker.maintenance.flushing import Flushing
from broker.maintenance.producer_upkeep import ProducerUpkeep
from broker.maintenance.retention import Retention
from broker.maintenance.wakeups import next_tick, sleep_till_tick
from broker.metadata.store import MetadataError
from broker.metrics.registry import Metrics
from broker.partitions.partitions import Partitions
from broker.settings.settings import Settings

logger = logging.getLogger(__name__)

_Work: TypeAlias = Callable[..., Awaitable[None]]

REMOVAL_INTERVAL_S = 1.0
REOPENING_INTERVAL_S = 1.0  # how long a failed log waits for its first attempt at most


class Maintenance:
    """The loops; `run` them under a nursery that ends with the broker."""

    def __init__(self, partitions: Partitions, metrics: Metrics, settings: Settings) -> None:
        self._partitions = partitions
        self._metrics = metrics
        self._unlinking = Unlinking()
        self._retention = Retention(partitions, self._unlinking, metrics)
        self._cleaner = Cleaner(partitions, self._unlinking, metrics)
        self._initial_delay_s = settings.log_initial_task_delay_ms / 1000
        self._retention_interval_s = settings.log_retention_check_interval_ms / 1000
        self._expiration_check_interval_s = settings.producer_id_expiration_check_interval_ms / 1000
        self._checkpoint_interval_s = settings.log_flush_offset_checkpoint_interval_ms / 1000
        self._producers = ProducerUpkeep(partitions, metrics)
        self._reopener = Reopener(partitions, metrics)
        self._flushing = Flushing(partitions, interval_ms=settings.log_flush_scheduler_interval_ms)

    async def run(self) -> None:
        """All loops, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._measure_lateness)
            nursery.start_soon(self._flush)
            nursery.start_soon(self._reopen_failed)
            nursery.start_soon(self._every, self._expiration_check_interval_s, self._producers.forget_expired)
            nursery.start_soon(self._every, REMOVAL_INTERVAL_S, self._producers.make_room)
            nursery.start_soon(self._clean)
            for directory in self._partitions.data_directories:
                nursery.start_soon(self._every, self._checkpoint_interval_s, self._partitions.checkpoint, directory)
                nursery.start_soon(self._every, REMOVAL_INTERVAL_S, self._partitions.changes.remove_deleted, directory)
                nursery.start_soon(self._every, REMOVAL_INTERVAL_S, self._unlinking.unlink_due, directory)
                nursery.start_soon(self._after_start, self._retention_interval_s, self._retention.check, directory)

    async def _reopen_failed(self) -> None:
        async with trio.open_nursery() as attempts:  # which wait for disks that may hang

            async def begin_reopening() -> None:
                self._reopener.begin(attempts)

            await self._every(REOPENING_INTERVAL_S, begin_reopening)

    async def _clean(self) -> None:
        await trio.sleep(self._initial_delay_s)
        await self._cleaner.run()

    async def _after_start(self, interval_s: float, work: _Work, *arguments: str) -> None:
        """Begin once the broker had time to start; then as `_every`.

        Settings that are made right after the start may keep what the defaults would remove.
        """
        await trio.sleep(self._initial_delay_s)
        await self._attempt(interval_s, work, *arguments)
        await self._every(interval_s, work, *arguments)

    async def _every(self, interval_s: float, work: _Work, *arguments: str) -> None:
        while True:
            await sleep_till_tick(interval_s)
            await self._attempt(interval_s, work, *arguments)

    @staticmethod
    async def _attempt(interval_s: float, work: _Work, *arguments: str) -> None:
        try:
            await work(*arguments)
        except (OSError, MetadataError) as error:
            logger.warning("%s failed, it is tried again in %g s: %s", work.__name__, interval_s, error)
        except Exception:  # whatever it is, no round of this takes the broker down
            logger.exception("%s failed; it is tried again in %g s", work.__name__, interval_s)

    async def _flush(self) -> None:
        while True:
            interval_s = self._flushing.interval_s
            await sleep_till_tick(interval_s)
            await self._attempt(interval_s, self._begin_flushes)

    async def _begin_flushes(self) -> None:
        self._flushing.begin_due()

    async def _measure_lateness(self) -> None:
        """At every tick: sees a stall of 125 ms every other time, and is what wakes an idle broker."""
        while True:
            due = next_tick()
            await trio.sleep_until(due)
            self._metrics.loop_stall.observe(trio.current_time() - due)
