"""Evict idempotent producers: the expired ones, and the longest idle ones near the limit.

    known          0 ............................ 90 % ............ warmlog.producers.max
    expired        forgotten by the check every `producer.id.expiration.check.interval.ms`
    idle longest                                  forgotten, down to 80 %, if idle for warmlog.producers.min.idle.ms
    new ones                                                        refused (`Producers.plan`)

Source: kafka.log.UnifiedLog.removeExpiredProducers.
"""

import logging
import math

import trio

from broker.metrics.registry import Metrics
from broker.partitions.partition import Partition
from broker.partitions.partitions import Partitions
from broker.partitions.refusal_log import Refusals
from broker.settings.settings import Settings

logger = logging.getLogger(__name__)

PRODUCERS_PER_TURN = 1000  # that are looked at in one go on the event loop: a millisecond
HIGH, LOW = 0.9, 0.8  # shares of the limit
PAUSE_S = 30.0  # after a round that found nobody idle for long enough


class ProducerUpkeep:
    """Keeps the number of producers of all logs within the limit."""

    def __init__(self, partitions: Partitions, metrics: Metrics) -> None:
        self._partitions = partitions
        self._budget = budget = partitions.producer_budget
        self._look_again_at = -math.inf  # by trio's clock
        self._refusals = Refusals("idempotent producers")
        self._told = 0
        metrics.gauge(
            "warmlog_producers",
            "Idempotent producers remembered by all partitions together.",
            lambda: [((), budget.count)],
        )
        metrics.counter(
            "warmlog_refused_producers_total",
            "Batches refused because too many idempotent producers were remembered.",
            lambda: [((), budget.refused)],
        )

    @property
    def _settings(self) -> Settings:
        return self._partitions.settings

    async def forget_expired(self) -> None:
        """Forget the producers that have been idle for `producer.id.expiration.ms`."""
        for partition in self._partitions:
            producers = partition.log.producers
            if len(producers):
                producers.age(0)
                while partition.log.forget_expired_producers(PRODUCERS_PER_TURN):
                    await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()

    async def make_room(self) -> None:
        """Forget those that are idle longest if the budget is nearly used up; called every second."""
        budget = self._budget
        if budget.count >= HIGH * budget.limit and trio.current_time() >= self._look_again_at:
            idle_ms = self._settings.producer_id_expiration_ms
            least_ms = self._settings.warmlog_producers_min_idle_ms
            while budget.count > LOW * budget.limit and idle_ms > least_ms:
                idle_ms = max(idle_ms // 2, least_ms)
                await self._forget_idle(idle_ms)
            if budget.count > LOW * budget.limit:
                self._look_again_at = trio.current_time() + PAUSE_S
        self._tell_refused()

    async def _forget_idle(self, idle_ms: int) -> None:
        """Forget producers that are idle for so long, until there is room."""
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

    def _tell_refused(self) -> None:
        budget = self._budget
        new, self._told = budget.refused - self._told, budget.refused
        if new:
            self._refusals.tell(
                f"{budget.count:,} idempotent producers are remembered, and none of them has been idle for"
                f" {self._settings.warmlog_producers_min_idle_ms / 1000:g} s: new ones are refused"
                " (warmlog.producers.max, warmlog.producers.min.idle.ms)",
                new,
            )
        elif self._refusals.told and not budget.is_full:
            self._refusals.over()
