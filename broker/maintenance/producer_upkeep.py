"""Eviction of idempotent producers: the expired ones, and the longest idle ones near the limit.

    producers kept   0 ............................ 90 % ............ warmlog.producers.max
    expired          evicted by the check every `producer.id.expiration.check.interval.ms`
    longest idle                                    evicted, down to 80 %, if idle for warmlog.producers.min.idle.ms
    new                                                               rejected (`Producers.plan`)

Source: kafka.log.UnifiedLog.removeExpiredProducers.
"""

import logging
import math

import trio

from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.refusal_log import RefusalLog
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.settings.settings import Settings

logger = logging.getLogger(__name__)

PRODUCERS_PER_TURN = 1000  # examined per turn of the event loop, in about a millisecond
HIGH, LOW = 0.9, 0.8  # shares of the limit
PAUSE_S = 30.0  # after a round in which no producer was idle for long enough


class ProducerUpkeep:
    """Keeps the number of producers of all logs within the limit."""

    def __init__(self, partitions: Partitions, metrics: Metrics) -> None:
        self._partitions = partitions
        self._budget = budget = partitions.producer_budget
        self._next_eviction_at = -math.inf  # by trio's clock
        self._refusals = RefusalLog("idempotent producers")
        self._reported = 0  # refusals
        metrics.gauge(
            "warmlog_producers",
            "Idempotent producers whose state is kept, over all partitions.",
            lambda: [((), budget.count)],
        )
        metrics.counter(
            "warmlog_refused_producers_total",
            "Batches rejected because the limit on idempotent producers was reached.",
            lambda: [((), budget.refused)],
        )

    @property
    def _settings(self) -> Settings:
        return self._partitions.settings

    async def forget_expired(self) -> None:
        """Evict the producers that have been idle for `producer.id.expiration.ms`."""
        for partition in self._partitions:
            producers = partition.log.producers
            if len(producers):
                producers.age(0)
                while partition.log.appends.forget_expired_producers(PRODUCERS_PER_TURN):
                    await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()

    async def evict_idle(self) -> None:
        """Evict the longest idle producers if the limit is nearly reached; called every second."""
        budget = self._budget
        if budget.count >= HIGH * budget.limit and trio.current_time() >= self._next_eviction_at:
            idle_ms = self._settings.producer_id_expiration_ms
            least_ms = self._settings.warmlog_producers_min_idle_ms
            while budget.count > LOW * budget.limit and idle_ms > least_ms:
                idle_ms = max(idle_ms // 2, least_ms)
                await self._forget_idle(idle_ms)
            if budget.count > LOW * budget.limit:
                self._next_eviction_at = trio.current_time() + PAUSE_S
        self._report_refused()

    async def _forget_idle(self, idle_ms: int) -> None:
        """Evict producers idle for at least `idle_ms`, until the count is low enough."""
        aged_ms = self._settings.warmlog_producers_min_idle_ms // 4
        for partition in self._partitions:
            producers = partition.log.producers
            if len(producers):
                producers.age(aged_ms)
                while self._has_more(partition, idle_ms):
                    await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()

    def _has_more(self, partition: Partition, idle_ms: int) -> bool:
        budget = self._budget
        most = min(PRODUCERS_PER_TURN, math.ceil(budget.count - LOW * budget.limit))
        return most > 0 and partition.log.producers.forget_idle(self._partitions.clock() - idle_ms, most=most)

    def _report_refused(self) -> None:
        budget = self._budget
        new, self._reported = budget.refused - self._reported, budget.refused
        if new:
            self._refusals.report(
                f"rejecting new idempotent producers: {budget.count:,} are kept, and none has been idle for"
                f" {self._settings.warmlog_producers_min_idle_ms / 1000:g} s"
                " (raise warmlog.producers.max or lower warmlog.producers.min.idle.ms)",
                new,
            )
        elif self._refusals.is_active and not budget.is_full:
            self._refusals.end()
