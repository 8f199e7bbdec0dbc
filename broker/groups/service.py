"""The group coordinator: construct its parts, run and stop them, and export their metrics."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from operator import itemgetter

import trio

from warmlog.broker.coordinator.peer_queue import Peers
from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.groups.commits import OffsetCommits
from warmlog.broker.groups.coordinator import GroupCoordinator
from warmlog.broker.groups.deletion import GroupDeletions
from warmlog.broker.groups.offsets import Committed
from warmlog.broker.groups.registry import GroupRegistry
from warmlog.broker.groups.requests.consumer import ConsumerGroupCoordinator
from warmlog.broker.groups.requests.end_offsets import EndOffsets
from warmlog.broker.groups.requests.share import ShareGroupCoordinator
from warmlog.broker.groups.requests.share_offsets import ShareOffsetsCoordinator
from warmlog.broker.groups.requests.streams import StreamsGroupCoordinator
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.groups.topic import OFFSETS_TOPIC, TOPIC
from warmlog.broker.groups.topics import GroupTopics
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.settings.settings import Settings
from warmlog.broker.share.persister import SharePersister
from warmlog.protocol.groups import ConsumerGroupState, GroupState, GroupType, ShareGroupState, StreamsGroupState
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome


class GroupService:
    """The group coordinator. Call all methods on the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        writer: Writer,
        settings: Settings,
        *,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        persister: SharePersister,
        peers: Peers | None = None,
    ) -> None:
        """Use open logs. `clock` returns ms since the epoch, `new_id` a unique suffix for a new member's id.

        `persister` reaches the share coordinators, `peers` are the other brokers of a cluster.
        """
        runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(OFFSETS_TOPIC, partitions, writer, clock)
        self.registry = GroupRegistry(
            runtime,
            partitions.live_settings,
            clock,
            partitions.was_deleted,
            GroupTopics(partitions),
            persister=persister,
        )
        self.coordinator = GroupCoordinator(self.registry, new_id)
        self.consumers = ConsumerGroupCoordinator(self.registry, new_id)
        self.shares = ShareGroupCoordinator(self.registry)
        self.streams = StreamsGroupCoordinator(self.registry)
        self.share_offsets = ShareOffsetsCoordinator(
            self.registry, partitions, persister, EndOffsets(partitions, peers)
        )
        self.commits = OffsetCommits(self.registry, partitions)
        self.deletions = GroupDeletions(self.registry, self.share_offsets)
        self._partitions = partitions
        self._max_series = settings.warmlog_metrics_groups_max
        self.registry.on_loaded.append(self.commits.remove_obsolete)
        partitions.changes.on_deleted.append(self.commits.topic_deleted)
        partitions.changes.before_forgetting.append(self.commits.tombstones_appended)

    async def run(self) -> None:
        """Load groups, serve their timers and expire offsets, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.registry.run)
            nursery.start_soon(self.commits.run)

    def stop(self) -> None:
        """Answer every waiting client with an error, and refuse further requests."""
        self.registry.runtime.stop()

    def end_transaction(self, topic_partition: TopicPartition, producer_id: int, offset: int, outcome: Outcome) -> None:
        """Apply a marker that was written at `offset` to a partition of any topic."""
        topic, index = topic_partition
        if topic == TOPIC:
            self.registry.end_transaction(index, producer_id, offset, outcome)

    def declare(self, metrics: Metrics) -> None:
        """Declare the metrics of groups."""
        metrics.gauge(
            "warmlog_group_lag",
            "Records between a group's committed offsets and the high watermark, summed over a topic's partitions.",
            self._lags,
            ("group", "topic"),
        )
        metrics.gauge(
            "warmlog_group_committed_offsets",
            "Sum of a group's committed offsets over a topic's partitions; its rate is the group's consumption rate.",
            self._committed,
            ("group", "topic"),
        )
        metrics.gauge(
            "warmlog_groups_without_lag",
            "Groups left out of warmlog_group_lag: those without members that have committed least recently.",
            lambda: [
                ((), max(0, sum(len(shard.offsets) for shard in self.registry.runtime.shards()) - self._max_series))
            ],
        )
        metrics.gauge("warmlog_groups", "Groups by type and state.", self._states, ("type", "state"))
        metrics.gauge(
            "warmlog_groups_memory_bytes",
            "Estimated memory of the members and offsets of groups.",
            lambda: [((), self.registry.holdings.total)],
        )
        metrics.counter(
            "warmlog_refused_group_growth_total",
            "Joins, assignments and commits that were refused because of warmlog.groups.memory.max.bytes.",
            lambda: [((), self.registry.holdings.refused)],
        )
        metrics.counter(
            "warmlog_group_rebalances_total",
            "Rebalances completed with an assignment.",
            lambda: [((), self.registry.completed_rebalances)],
        )

    def _states(self) -> Iterator[tuple[tuple[str, ...], float]]:
        counts = Counter((group.type, str(group.state)) for group in self.registry.all())
        kinds = (
            (GroupType.CLASSIC, GroupState),
            (GroupType.CONSUMER, ConsumerGroupState),
            (GroupType.SHARE, ShareGroupState),
            (GroupType.STREAMS, StreamsGroupState),
        )
        for kind, states in kinds:
            for state in states:
                if state.value != GroupState.DEAD:
                    yield (kind.value, state.value), counts[kind, state.value]

    def _ranks(self) -> Iterator[tuple[bool, int, str, GroupShard]]:
        """Yield (has members, time of the latest commit, name, shard) of all groups with committed offsets."""
        for shard in self.registry.runtime.shards():
            for name in shard.offsets.groups():
                group = shard.get(name)
                has_members = group is not None and not group.is_empty and not group.is_dead
                yield has_members, shard.offsets.committed_at_ms(name), name, shard

    def _offsets(self) -> Iterator[tuple[str, str, Mapping[int, Committed]]]:
        """Yield (group, topic, offsets by partition) of the groups that have series.

        Groups with members and with the latest commits are chosen. Sorting all would hold the GIL for too long.
        """
        for _, _, name, shard in nlargest(self._max_series, self._ranks(), key=itemgetter(0, 1, 2)):
            for topic, partitions in shard.offsets.by_topic(name):
                yield name, topic, partitions

    def _lags(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for group, topic, committed in self._offsets():
            lag = 0
            for index, entry in committed.items():
                partition = self._partitions.local(topic, index)
                if partition is not None:
                    lag += max(0, partition.log.offsets.high_watermark - entry.value.offset)
            yield (group, topic), lag

    def _committed(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for group, topic, committed in self._offsets():
            yield (group, topic), sum(entry.value.offset for entry in committed.values())
