"""The share coordinator as a service: periodic work, and the deletion of topics.

    every prune interval     delete the records before the first needed one, in each log partition
    every cold interval      write a snapshot of each state without a recent one, since the old one prevents the
                             deletion of later records
    topics deleted           delete the states of their share-partitions

Source: org.apache.kafka.coordinator.share.ShareCoordinatorService (setupRecordPruning, setupSnapshotColdPartitions,
onTopicsDeleted).
"""

import logging
from collections.abc import Awaitable, Callable, Iterator

import trio

from warmlog.broker.coordinator.peer_queue import Peers
from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.coordinator.term import Term, TermState
from warmlog.broker.log.errors import LogError
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partition import StorageError
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.settings.settings import Settings
from warmlog.broker.share.state.client import StatePersister
from warmlog.broker.share.state.coordinator import ShareCoordinator
from warmlog.broker.share.state.rules import RefusedError, ShareState, cold_snapshot
from warmlog.broker.share.state.shard import Change, ShareStateShard, StateEntry
from warmlog.broker.share.state.topic import SHARE_STATE_TOPIC
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.kafka.share_state_records import ShareSnapshot

VISITED_PER_STEP = 500  # states between two checkpoints
APPENDED_TOGETHER = 50  # snapshots and tombstones

logger = logging.getLogger(__name__)


class ShareStateService:
    """The share coordinator of this broker. Call all methods on the event loop; `run` is its task."""

    def __init__(
        self,
        partitions: Partitions,
        writer: Writer,
        settings: Settings,
        *,
        clock: Callable[[], int],
        peers: Peers | None = None,
    ) -> None:
        """Use open logs. `clock` returns ms since the epoch; `peers` are the other brokers of a cluster."""
        self.runtime: CoordinatorRuntime[ShareStateShard] = CoordinatorRuntime(
            SHARE_STATE_TOPIC, partitions, writer, clock
        )
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self.coordinator = ShareCoordinator(self.runtime, settings, clock, self._has_partition)
        self.persister = StatePersister(self.coordinator, self.runtime, peers)
        self._to_clean: dict[ShareStateShard, None] = {}  # log partitions that may have states of deleted topics
        self._has_to_clean = trio.Event()
        partitions.watch_topics(self._topic_changed)
        self.runtime.bind(self)

    async def run(self) -> None:
        """Load the log, and run periodic work, until cancelled."""
        settings = self._settings
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.runtime.run)
            nursery.start_soon(self.persister.run)
            nursery.start_soon(self._delete_with_topics)
            nursery.start_soon(_every, settings.share_coordinator_state_topic_prune_interval_ms / 1000, self._prune_all)
            nursery.start_soon(
                _every, settings.share_coordinator_cold_partition_snapshot_interval_ms / 1000, self._snapshot_cold
            )

    def stop(self) -> None:
        """Reject further requests; those whose records are on their way are still answered."""
        self.runtime.stop()

    def declare(self, metrics: Metrics) -> None:
        """Declare the metrics."""
        metrics.gauge(
            "warmlog_share_states",
            "Share-partitions whose delivery state this broker keeps as share coordinator.",
            lambda: [((), sum([len(shard.entries) for shard in self.runtime.shards()]))],
        )
        metrics.gauge(
            "warmlog_share_states_memory_bytes",
            "Estimated memory of the delivery states that this broker keeps as share coordinator.",
            lambda: [((), sum([shard.bytes for shard in self.runtime.shards()]))],
        )
        metrics.counter(
            "warmlog_share_states_refused_total",
            "Changes of delivery states refused because of warmlog.share.states.memory.max.bytes.",
            lambda: [((), self.coordinator.refused)],
        )

    # -- log partitions --

    def begin(self, term: Term) -> ShareStateShard:
        """Begin a term of a log partition, without states."""
        return ShareStateShard(term, self._settings.share_coordinator_snapshot_update_records_per_snapshot)

    def loaded(self, shard: ShareStateShard) -> Iterator[None]:
        """Delete the states of topics that were deleted while no broker served the log partition."""
        self._clean(shard)
        return iter(())

    def close(self, shard: ShareStateShard) -> Iterator[None]:
        """Stop cleaning a log partition. Requests wait only for records, which the runtime reports."""
        self._to_clean.pop(shard, None)
        return iter(())

    # -- topics --

    def _has_partition(self, topic_id: bytes, partition: int) -> bool:
        name = self._partitions.topic_name(topic_id)
        topic = None if name is None else self._partitions.topic(name)
        return topic is not None and partition < topic.partitions

    def _topic_changed(self, name: str) -> None:
        if self._partitions.topic(name) is None:
            for shard in self.runtime.shards():
                self._clean(shard)

    def _clean(self, shard: ShareStateShard) -> None:
        """Schedule the deletion of deleted topics' states."""
        self._to_clean[shard] = None
        self._has_to_clean.set()

    async def _delete_with_topics(self) -> None:
        while True:
            await self._has_to_clean.wait()
            self._has_to_clean = trio.Event()
            while self._to_clean:
                shard = next(iter(self._to_clean))
                del self._to_clean[shard]
                await self._change_all(shard, self._obsolete, lambda _: None)

    def _obsolete(self, entry: StateEntry) -> ShareState | None:
        return entry.state if self._partitions.was_deleted(entry.key.topic_id) else None

    # -- periodic work --

    async def _snapshot_cold(self) -> None:
        interval_ms = self._settings.share_coordinator_cold_partition_snapshot_interval_ms
        for shard in self._serving():
            if await _is_quiet(shard):
                continue

            def cold(entry: StateEntry) -> ShareState | None:
                state = entry.state
                is_cold = state is not None and self._clock() - state.content.written_ms >= interval_ms
                return state if is_cold else None

            await self._change_all(shard, cold, lambda state: cold_snapshot(state, self._clock()))

    async def _change_all(
        self,
        shard: ShareStateShard,
        applies: Callable[[StateEntry], ShareState | None],
        record_of: Callable[[ShareState], ShareSnapshot | None],
    ) -> None:
        """Append the record that `applies` returns for each state of a shard, in steps."""
        changes: list[Change] = []
        for entry in _entries(shard):
            if entry is None:
                await trio.lowlevel.checkpoint()
                continue
            state = applies(entry)
            if state is not None:
                try:
                    changes.append(shard.change(entry, record_of(state)))
                except RefusedError as error:
                    logger.warning("%s: cannot write a record of %.200r: %s", self._name(shard), entry.key, error)
            if len(changes) == APPENDED_TOGETHER:
                self.coordinator.append(shard, changes)
                changes = []
                await trio.lowlevel.checkpoint()
        if changes:
            self.coordinator.append(shard, changes)

    async def _prune_all(self) -> None:
        """Delete the records that no load needs."""
        moved = []
        for shard in self._serving():
            for offset in shard.redundant_before():
                if offset is None:
                    await trio.lowlevel.checkpoint()
                elif not shard.term.is_over and offset > shard.term.partition.log.offsets.log_start_offset:
                    try:
                        if shard.term.partition.advance_start(offset):
                            moved.append(shard.term.partition)
                    except (LogError, StorageError, ProtocolError) as error:
                        logger.warning("%s: cannot delete old records: %s", self._name(shard), error)
            await trio.lowlevel.checkpoint()
        if moved:
            try:
                await self._partitions.checkpoint_log_starts(moved)
            except OSError as error:
                logger.warning("cannot store the log start offsets of %s: %s", self.runtime.topic, error)

    def _name(self, shard: ShareStateShard) -> str:
        return f"{self.runtime.topic}-{shard.term.index}"

    def _serving(self) -> list[ShareStateShard]:
        return [shard for shard in self.runtime.shards() if shard.term.state is TermState.SERVING]


def _entries(shard: ShareStateShard) -> Iterator[StateEntry | None]:
    """Yield the entries of a shard while it serves, and None for checkpoints."""
    for number, (key, entry) in enumerate(list(shard.entries.items()), 1):
        if shard.term.state is not TermState.SERVING:
            return
        if shard.entries.get(key) is entry:
            yield entry
        if number % VISITED_PER_STEP == 0:
            yield None


async def _is_quiet(shard: ShareStateShard) -> bool:
    """Return whether the last snapshot of every state was written because it was cold, so that nothing changes."""
    for entry in _entries(shard):
        if entry is None:
            await trio.lowlevel.checkpoint()
        elif entry.state is not None and entry.state.content.created_ms == entry.state.content.written_ms:
            return False
    return True


async def _every(interval_s: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await trio.sleep(interval_s)
        try:
            await work()
        except Exception:  # a defect must not stop the work of later intervals
            logger.exception("unexpected error in the periodic work of the share coordinator")
