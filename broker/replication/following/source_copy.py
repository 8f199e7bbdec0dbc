"""A partition that this broker leads, with records that it copies from another cluster, the source.

The source's batches keep their leader epochs. The high watermark here is advanced by this cluster's leader (`leading`);
it is never ahead of the source's, from which only committed records are fetched.

Invariants:
1. No batch has a leader epoch above the one in which this broker leads: where the source has a later one, the leader
   begins another epoch first.
2. The log is truncated only between two leader epochs; tracking of the followers' progress restarts in the second one.
"""

from collections.abc import Awaitable, Callable

import trio

from warmlog.broker.partitions.partition import Partition
from warmlog.broker.replication.following.fetcher import Step
from warmlog.broker.replication.following.replica import UNKNOWN_EPOCH, Checkpoint, PartitionReplica
from warmlog.broker.replication.peers.leaders import Leaders
from warmlog.protocol.kafka.messages.records.fetch import KafkaFetchedPartition, KafkaFetchPartition
from warmlog.protocol.records.batch import headers

Renew = Callable[[int, Callable[[], Awaitable[bool]] | None], None]


class SourceCopy(PartitionReplica):
    """Copies one partition while this broker leads it in one epoch."""

    def __init__(
        self, partition: Partition, topic_id: bytes, source: Leaders, checkpoint: Checkpoint, *, renew: Renew
    ) -> None:
        """`renew` requests a leader epoch, at least a given one, and a truncation before it; this copy then ends."""
        super().__init__(partition, topic_id, source, checkpoint)
        self.source_epoch = UNKNOWN_EPOCH  # the source's latest known leader epoch
        self._renew = renew
        self._is_over = False

    async def position(self, leader_epoch: int) -> KafkaFetchPartition | None:
        """Return the log end, or None once another epoch has to begin; see `PartitionReplica.position`."""
        self.source_epoch = max(self.source_epoch, leader_epoch)
        if not self._is_over and leader_epoch > self._partition.log.epochs.current:
            self._end(leader_epoch)
        return None if self._is_over else await super().position(leader_epoch)

    def take_at_once(self, fetched: KafkaFetchedPartition) -> KafkaFetchPartition | None:
        """Append the records of a fetch if that needs no waiting; see `PartitionReplica.take_at_once`."""
        return None if self._is_over else super().take_at_once(fetched)

    async def take(self, fetched: KafkaFetchedPartition) -> Step:
        """Append the records of a fetch, or request the leader epoch that they need."""
        if not self._is_over and self._leader_epoch == UNKNOWN_EPOCH:  # a source before Kafka 2.1 sends none
            epochs = [header.leader_epoch for _, header in headers(fetched.records)]
            self.source_epoch = max([self.source_epoch, *epochs])
            if self.source_epoch > self._partition.log.epochs.current:
                self._end(self.source_epoch)
        return Step.PAUSE if self._is_over else await super().take(fetched)

    def _begin(self) -> None:
        """Do nothing: the leader advances the high watermark."""

    def _written(self, records: int, end: int) -> None:
        self.bytes_per_offset = records / (self._partition.log.offsets.log_end_offset - end)

    def _follow_leader(self, fetched: KafkaFetchedPartition) -> None:
        """Adopt the log start offset, limited to records that all replicas here have."""
        offsets = self._partition.log.offsets
        self.leader_end = fetched.high_watermark
        if offsets.log_end_offset >= self.leader_end:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = trio.current_time()
        if fetched.log_start_offset > offsets.log_start_offset:
            self._partition.advance_start(min(fetched.log_start_offset, offsets.high_watermark))

    def _epoch_limit(self) -> int | None:
        return self._partition.log.epochs.current

    async def _cut(self, announce: Callable[[], None], cut: Callable[[], None]) -> bool:
        """Request a truncation before the next leader epoch."""

        async def between() -> bool:
            return await PartitionReplica._cut(self, announce, cut)  # noqa: SLF001  # what this class replaces

        self._end(self.source_epoch, between)
        return False

    def _end(self, at_least: int, cut: Callable[[], Awaitable[bool]] | None = None) -> None:
        self._is_over = True
        self._renew(at_least, cut)
