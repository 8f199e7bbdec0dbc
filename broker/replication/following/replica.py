"""A partition on this broker that follows a leader: the follower's `Replica`.

Invariants:
1. Only the replica appends to its log, and it processes one result of a fetch at a time.
2. A truncation, or a restart of the log, is checkpointed before it begins, so that recovery finds a usable log.
3. Records of a leader are validated before they are written. If they do not fit, nothing is written; see `problem`.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import trio

from warmlog.broker.log.errors import LogError, UnknownTimestampError
from warmlog.broker.log.producers.copies import largest_timestamps
from warmlog.broker.partitions.appends.append import Append
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.replication.following.fetcher import Step
from warmlog.broker.replication.following.truncation import (
    EpochEnd,
    TruncateFully,
    Truncation,
    after_divergence,
    after_out_of_range,
)
from warmlog.broker.replication.hidden_bytes import HiddenBytes
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.broker.replication.peers.leaders import Leaders
from warmlog.broker.replication.throttle import Throttle
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.kafka.messages.records.fetch import DivergedPartition, KafkaFetchedPartition, KafkaFetchPartition
from warmlog.protocol.kafka.messages.records.offsets import KafkaListOffsetsRequest, KafkaOffsetQuery
from warmlog.protocol.kafka.peer_apis import LIST_OFFSETS
from warmlog.protocol.records.batch import batch_spans, read_header
from warmlog.protocol.records.layout import HEADER_SIZE
from warmlog.protocol.request import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

MAX_BYTES: Final = 1 << 20  # Kafka's replica.fetch.max.bytes
BATCHES_PER_PIECE: Final = 200  # planned in 0.5 ms compiled, in 2 ms interpreted
UNKNOWN_EPOCH: Final = -1

logger = logging.getLogger(__name__)

# Writes the checkpoints of a data directory. Raises OSError.
Checkpoint = Callable[[str], Awaitable[None]]


class PartitionReplica:
    """Copies one partition. `problem`: why it cannot continue, or None."""

    def __init__(
        self,
        partition: Partition,
        topic_id: bytes,
        cluster: Leaders,
        checkpoint: Checkpoint,
        *,
        max_bytes: int = MAX_BYTES,
        is_in_sync: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_in_sync` returns whether this replica is in the ISR; then it is not throttled."""
        self.throttle: Throttle | None = None  # if the topic's settings throttle this replica
        self._is_in_sync = is_in_sync
        self.topic = partition.topic
        self.topic_id = topic_id
        self.partition = partition.index
        self.problem: str | None = None
        self.leader_end = -1  # as of the last fetch; -1 if unknown
        self.behind_since: float | None = None  # on trio's clock; None while this replica lacks no records
        self.bytes_per_offset: float | None = None  # of the last records copied
        self._partition = partition
        self._cluster = cluster
        self._checkpoint = checkpoint
        self._max_bytes = max_bytes
        self._leader_epoch = UNKNOWN_EPOCH
        self._begin()
        self._hidden = HiddenBytes(partition.log.offsets.high_watermark, partition.log.offsets.log_end_offset)

    def _begin(self) -> None:
        """Make the high watermark follow the leader's."""
        self._partition.log.follow_replicas()

    @property
    def throttled_s(self) -> float:
        """How long to pause fetching because the replication rate is exceeded; 0 if it is not."""
        throttle = self.throttle
        return 0.0 if throttle is None or self._is_in_sync() else throttle.delay_s

    async def position(self, leader_epoch: int) -> KafkaFetchPartition | None:
        """Return the log end offset, and the epoch of the last record, by which the leader detects a divergence.

        The leader counts all records before that offset as copied: with `flush.messages=1` they are on the disk. None
        while the log has failed, since it may turn out to be shorter, and while the disk is full.
        """
        log = self._partition.log
        if log.durability.flush_messages == 1 and log.durability.recovery_point < log.offsets.log_end_offset:
            await self._partition.appends.flushes.flushed_up_to(log.offsets.log_end_offset)
        if log.failed:
            self._note("the log has failed")
            return None
        if log.appends.is_full:
            self._note("the disk is full")
            return None
        return self._from_log_end(leader_epoch)

    def _from_log_end(self, leader_epoch: int) -> KafkaFetchPartition:
        self._leader_epoch = leader_epoch
        log = self._partition.log
        is_empty = log.offsets.log_end_offset == log.offsets.log_start_offset
        return KafkaFetchPartition(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            offset=log.offsets.log_end_offset,
            current_leader_epoch=leader_epoch,
            last_fetched_epoch=UNKNOWN_EPOCH if is_empty else log.epochs.latest,
            log_start_offset=log.offsets.log_start_offset,
            max_bytes=self._max_bytes,
        )

    async def take(self, fetched: KafkaFetchedPartition) -> Step:
        """Append the records of a fetch, or truncate or restart the log."""
        try:
            step = await self._take(fetched)
        except (OSError, LogError, ProtocolError, PeerError) as error:
            self._note(str(error))
            return Step.PAUSE
        if step is Step.GO_ON:
            self._note(None)
        return step

    def take_at_once(self, fetched: KafkaFetchedPartition) -> KafkaFetchPartition | None:
        """Append the records of a fetch if that needs no waiting, and return the next position; else return None."""
        log, records = self._partition.log, fetched.records
        if (
            fetched.error is not ErrorCode.NONE
            or isinstance(fetched, DivergedPartition)
            or log.durability.flush_messages == 1
            or log.failed
        ):
            return None
        if len(records):
            if not log.size:
                return None
            end = log.offsets.log_end_offset
            try:
                if not self._partition.appends.copy_at_once(records, self._epoch_limit()):
                    return None
            except (LogError, ProtocolError):
                return None  # `take` reports it
            self._written(len(records), end)
        self._follow_leader(fetched)
        self._note(None)
        return self._from_log_end(self._leader_epoch)

    async def _take(self, fetched: KafkaFetchedPartition) -> Step:
        if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return await self._find_range()
        if fetched.error is not ErrorCode.NONE:
            self._note(f"the leader refuses: {fetched.error.name}")
            return Step.STOP
        log = self._partition.log
        if isinstance(fetched, DivergedPartition):
            answer = EpochEnd(fetched.epoch, fetched.end_offset)
            return await self._truncate(
                after_divergence(log.epochs, log.offsets.log_end_offset, log.offsets.high_watermark, answer)
            )
        if not await self._begin_inside(fetched.records) or not await self._append(fetched.records):
            return Step.PAUSE
        self._follow_leader(fetched)
        return Step.GO_ON

    def _follow_leader(self, fetched: KafkaFetchedPartition) -> None:
        """Adopt the leader's high watermark and log start offset, limited to the records here."""
        if self.throttle is not None:
            self.throttle.count(len(fetched.records), is_held_up=not self._is_in_sync())
        log = self._partition.log
        self.leader_end = fetched.high_watermark
        if log.offsets.log_end_offset >= self.leader_end:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = trio.current_time()
        if log.offsets.advance_high_watermark(fetched.high_watermark):
            self._partition.waiters.shown(self._hidden.show(log.offsets.high_watermark))
        if fetched.log_start_offset > log.offsets.log_start_offset:
            self._partition.advance_start(min(fetched.log_start_offset, log.offsets.high_watermark))

    # -- appending -----------------------------------------------------------------------------------------------------

    async def _append(self, records: memoryview) -> bool:
        """Append whole batches, piece by piece, so that other tasks run in between.

        Returns False if writing failed. Raises ProtocolError, LogError for a piece that does not fit.
        """
        log = self._partition.log
        end = log.offsets.log_end_offset
        for piece in pieces(records):
            append = await self._append_piece(piece)
            if append is None:
                break
            self._partition.appends.write_queued()
            await append.wait()
            if append.error is not None:
                self._note(str(append.error))
                return False
            await trio.lowlevel.checkpoint()
        if log.offsets.log_end_offset > end:
            self._written(len(records), end)
        return True

    def _written(self, records: int, end: int) -> None:
        """Record that so many bytes of records were appended at an offset."""
        shown = self._partition.log.offsets.log_end_offset
        self.bytes_per_offset = records / (shown - end)
        self._hidden.written(shown, records)

    async def _append_piece(self, piece: memoryview) -> Append | None:
        """Queue the batches of a piece; a worker decompresses them first if their headers lack timestamps."""
        appends = self._partition.appends
        try:
            return appends.append_copy(piece, self._epoch_limit())
        except UnknownTimestampError:
            timestamps = await trio.to_thread.run_sync(largest_timestamps, piece)
            return appends.append_copy(piece, self._epoch_limit(), timestamps)

    def _epoch_limit(self) -> int | None:
        return None if self._leader_epoch == UNKNOWN_EPOCH else self._leader_epoch

    async def _begin_inside(self, records: memoryview) -> bool:
        """Restart the log at the first batch's base offset, if the leader's log start offset is inside that batch."""
        log = self._partition.log
        if log.size or len(records) < HEADER_SIZE:
            return True
        first = read_header(records)
        if not first.base_offset < log.offsets.log_end_offset <= first.last_offset:
            return True
        return await self._truncate_fully(first.base_offset)

    # -- truncating ----------------------------------------------------------------------------------------------------

    async def _find_range(self) -> Step:
        """Decide what to do if the leader's log does not contain this log's end. Raises PeerError."""
        log = self._partition.log
        start, end = await self._offset_at(EARLIEST_TIMESTAMP), await self._offset_at(LATEST_TIMESTAMP)
        if start < 0 or end < start:
            self._note(f"the leader's log begins at {start} and ends at {end}")
            return Step.PAUSE
        remedy = after_out_of_range(log.offsets.log_end_offset, start, end)
        if isinstance(remedy, Truncation):
            return await self._truncate(remedy)
        if isinstance(remedy, TruncateFully):
            logger.warning(
                "%s-%d: removing all records: the leader's log begins at offset %d, after the local log end offset %d",
                self.topic,
                self.partition,
                remedy.offset,
                log.offsets.log_end_offset,
            )
            return Step.GO_ON if await self._truncate_fully(remedy.offset) else Step.PAUSE
        return Step.GO_ON

    async def _offset_at(self, timestamp: int) -> int:
        """Return the offset at a timestamp of the leader's log; -1 if it does not report one. Raises PeerError."""
        leader = self._cluster.leader_of(self.topic, self.partition)
        if leader is None:
            return -1
        query = KafkaOffsetQuery(
            topic=self.topic, partition=self.partition, timestamp=timestamp, current_leader_epoch=leader.epoch
        )
        request = KafkaListOffsetsRequest(partitions=(query,), replica_id=self._cluster.identity().broker)
        response = await self._cluster.ask(leader.node_id, LIST_OFFSETS, request)
        offsets = [partition for partition in response.partitions if partition.error is ErrorCode.NONE]
        return offsets[0].offset if offsets else -1

    async def _truncate(self, truncation: Truncation) -> Step:
        log, offset = self._partition.log, truncation.offset
        if offset < log.offsets.high_watermark:
            logger.warning(
                "%s-%d: truncating to offset %d, below the high watermark %d: the leader has lost records",
                self.topic,
                self.partition,
                offset,
                log.offsets.high_watermark,
            )
        was_cut = await self._cut(
            lambda: log.durability.lower_recovery_point(offset), lambda: log.truncation.truncate_to(offset)
        )
        return Step.GO_ON if was_cut else Step.PAUSE

    async def _truncate_fully(self, offset: int) -> bool:
        log = self._partition.log
        return await self._cut(
            lambda: log.truncation.prepare_truncate_fully(offset), lambda: log.truncation.truncate_fully(offset)
        )

    async def _cut(self, announce: Callable[[], None], cut: Callable[[], None]) -> bool:
        """Announce a truncation, checkpoint it and truncate; return False while another task rearranges the segments.

        The truncation runs on the event loop: readers must not see an incomplete truncation. Raises OSError.
        """
        partition = self._partition
        with partition.rearranging() as scope:
            if scope is None:
                partition.interrupt_rearranging()  # a compaction, which may take minutes
                return False
            announce()
            with trio.CancelScope(shield=True):
                await self._checkpoint(partition.data_directory)
            await partition.appends.settled(among=1)
            cut()
        self._hidden = HiddenBytes(partition.log.offsets.high_watermark, partition.log.offsets.log_end_offset)
        partition.wake_all()
        return True

    def _note(self, problem: str | None) -> None:
        """Record a problem, and log it once."""
        if problem is not None and problem != self.problem:
            logger.warning("%s-%d: cannot replicate: %s", self.topic, self.partition, problem)
        self.problem = problem


def pieces(records: memoryview) -> Iterator[memoryview]:
    """Split records into pieces of at most BATCHES_PER_PIECE whole batches; the last one may end inside a batch.

    Everything after a damaged batch is in the same piece. Only lengths are checked here.
    """
    begin = count = 0
    for position, size in batch_spans(records):
        end = position + size
        if not size or end > len(records):
            break
        count += 1
        if count == BATCHES_PER_PIECE:
            yield records[begin:end]
            begin, count = end, 0
    if begin < len(records):
        yield records[begin:]
