"""The share-partitions of this broker: one for each group and partition that members fetch from here.

They are loaded at the first fetch, and dropped when this broker no longer leads the partition, when the group or the
topic is deleted, and when the group has no session here.

Source: kafka.server.share.SharePartitionManager, SharePartitionCache.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from warmlog.broker.coordinator.timers import Timers
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.settings.groups.deliveries import ShareRules
from warmlog.broker.share.dead_letters import DeadLetters
from warmlog.broker.share.partitions.counts import DeliveryCounts
from warmlog.broker.share.partitions.delivery import Delivery, Status, WaitingShareFetch
from warmlog.broker.share.partitions.transitions import DeadLetter
from warmlog.broker.share.persister import Outcome, SharePersister
from warmlog.broker.share.rules import GroupShareRules
from warmlog.broker.share.wakes import Wakes
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.share_state_records import SharePartitionKey

logger = logging.getLogger(__name__)


async def _logged(run: Callable[[], Awaitable[None]]) -> None:
    """Run an async function; a defect of one share-partition must not stop the others."""
    try:
        await run()
    except Exception:
        logger.exception("unexpected error in a share-partition")


class Deliveries:
    """All share-partitions of this broker. Belongs to the event loop; `run` is its task."""

    def __init__(
        self,
        partitions: Partitions,
        persister: SharePersister,
        dead_letters: DeadLetters,
        has_members: Callable[[str], bool],
    ) -> None:
        """`has_members` returns whether a group has a session here."""
        self._dead_letters = dead_letters
        self.writes_dead_letters = True
        self.persister = persister
        self.counts = DeliveryCounts()
        self._has_members = has_members
        self._nursery: trio.Nursery | None = None
        self._partitions = partitions
        self._rules = GroupShareRules(partitions.live_settings)
        self._all: dict[SharePartitionKey, Delivery] = {}
        self._of_groups: dict[str, dict[SharePartitionKey, Delivery]] = {}
        self._timers: Timers[Delivery] = Timers(Delivery.expire)
        self._wakes = Wakes()

    async def run(self) -> None:
        """Load and store share-partitions, and release records whose locks expire, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._dead_letters.run)
            self._nursery.start_soon(self._wakes.run)
            await self._timers.run()

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run an async function in the background, while the broker serves."""
        if self._nursery is not None:
            self._nursery.start_soon(_logged, run)

    def __len__(self) -> int:
        return len(self._all)

    def declare(self, metrics: Metrics) -> None:
        """Declare the metrics of deliveries."""
        self.counts.declare(metrics)
        metrics.gauge(
            "warmlog_share_partitions",
            "Share-partitions at this broker: partitions that it leads, by the share groups that fetch from them.",
            lambda: [((), len(self))],
        )
        metrics.gauge(
            "warmlog_share_records_in_flight",
            "Offsets from the first that is not done to the last that was delivered, of all share-partitions.",
            lambda: [((), sum([delivery.in_flight for delivery in list(self._all.values())]))],
        )

    def rules(self, group: str) -> ShareRules:
        """Return the rules of a group."""
        return self._rules[group]

    def find(self, key: SharePartitionKey) -> Delivery | None:
        """Return a share-partition that is served here, or None."""
        delivery = self._all.get(key)
        if delivery is not None and not self.is_current(delivery):
            delivery.wake()
            delivery = self._all.get(key)
        return delivery

    def open(self, key: SharePartitionKey, partition: Partition) -> Delivery:
        """Return the share-partition of a partition that this broker leads; it may still be loading."""
        delivery = self.find(key)
        if delivery is not None and delivery.partition is not partition:
            delivery.close(Outcome(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition was replaced"))
            delivery = None
        if delivery is not None:
            delivery.follow_isolation()
        if delivery is None:
            delivery = self._all[key] = Delivery(key, partition, self)
            self._of_groups.setdefault(key.group, {})[key] = delivery
            self.spawn(delivery.load)
        return delivery

    def is_current(self, delivery: Delivery) -> bool:
        """Return whether this broker leads the partition of a share-partition, in the same leader epoch."""
        partition = delivery.partition
        return (
            self._partitions.get(partition.topic, partition.index) is partition
            and partition.leader_epoch == delivery.leader_epoch
            and self._partitions.topic_name(delivery.key.topic_id) == partition.topic
        )

    def left(self, group: str) -> None:
        """Drop the share-partitions of a group that no longer has a session here, once they are idle."""
        for delivery in list(self._of_groups.get(group, {}).values()):
            self.settled(delivery)

    def close_all(self) -> None:
        """Drop all share-partitions."""
        for delivery in list(self._all.values()):
            delivery.close(Outcome(ErrorCode.NOT_LEADER_OR_FOLLOWER, "share groups are not enabled any more"))

    def settled(self, delivery: Delivery) -> None:
        """Drop an idle share-partition whose group no longer has a session here."""
        if delivery.status is Status.ACTIVE and not self._has_members(delivery.key.group) and delivery.is_idle:
            delivery.close(Outcome(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no member of the group is connected"))

    # -- for share-partitions --

    def wake(self, fetch: WaitingShareFetch) -> None:
        """Wake a fetch, now or after others."""
        self._wakes.add(fetch)

    def schedule(self, delivery: Delivery) -> None:
        """Call `expire` of a share-partition when its first lock may expire."""
        if delivery.wake_at_s < math.inf:
            self._timers.schedule(delivery)

    def closed(self, delivery: Delivery) -> None:
        """Drop a closed share-partition."""
        self._timers.forget(delivery)
        if self._all.get(delivery.key) is delivery:
            del self._all[delivery.key]
            of_group = self._of_groups[delivery.key.group]
            del of_group[delivery.key]
            if not of_group:
                del self._of_groups[delivery.key.group]

    async def offset_for_age(self, partition: Partition, age_ms: int) -> int:
        """Return the first offset whose timestamp is no older than this age, else the high watermark."""
        timestamp = self._partitions.clock() - age_ms
        first = await trio.to_thread.run_sync(partial(partition.log.reads.offset_for_time, timestamp))
        end = partition.log.offsets.high_watermark
        return end if first is None else min(end, first.offset)

    def write_dead_letters(self, delivery: Delivery, letters: Sequence[DeadLetter]) -> None:
        """Write dead letters of records."""
        for letter in letters:
            self._dead_letters.put(delivery, letter)
