"""Read a split of a partition from its leader.

1. The next fetch is sent before the batches of the last reply are decoded.
2. A batch whose offsets contradict those of its neighbours in a reply counts as damaged. The last one of a reply is
   fetched again with the one after it if it leaves a gap, unless it is the only one.
3. If the leader is unavailable, the read is retried from the offset reached so far, at the current leader.
4. Each fetch is followed by a request for the topic's id, so that records of a recreated topic are never mistaken for
   records of the old one.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from warmlog.client.connection.connection import Connection, Reply
from warmlog.client.errors import UnknownTopicError
from warmlog.inspect.lookup import may_hold
from warmlog.pipeline.cluster import ClusterConnection, reply_error
from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.retry import Retry
from warmlog.pipeline.source.order import BatchOrder, MisplacedBatchError
from warmlog.pipeline.source.plan import RemoteSplit
from warmlog.pipeline.source.planning import Split
from warmlog.pipeline.source.reading import BatchHandler, Damage, ReadRules, Tally, deleted, lose, recreated
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.native.messages import ReceivedFetch, ReceivedPartition
from warmlog.protocol.records.arrow.columns import Wanted
from warmlog.protocol.records.batch import BatchHeader, headers, verify_crc
from warmlog.protocol.records.committed import AbortedFilter
from warmlog.protocol.request import FetchPartition, FetchRequest, Isolation, MetadataRequest
from warmlog.protocol.response import MetadataResponse

_log = logging.getLogger(__name__)

FETCH_BYTES = 4 << 20  # bytes per reply; a worker holds two replies
FETCH_MAX_WAIT_MS = 500


def rest_of(split: Split, offset: int) -> RemoteSplit:
    """Return the rest of a directory's split, for reading from its brokers."""
    assert split.brokers is not None, "only called for a split with a broker"
    return RemoteSplit(
        brokers=split.brokers,
        topic=split.topic,
        partition=split.partition,
        first_offset=offset,
        end_offset=split.pieces[-1].end_offset,
        topic_id=split.topic_id,
    )


def connect(split: RemoteSplit, retry: Retry | None = None) -> ClusterConnection:
    """Return the connections for reading a split, and others of the same cluster."""
    return ClusterConnection(split.brokers, retry or Retry(), max_reply_bytes=FETCH_BYTES)


class _Fetch(NamedTuple):
    """A sent fetch, and the request for the topic's id that follows it."""

    offset: int
    records: Reply[ReceivedFetch]
    topic: Reply[MetadataResponse] | None


class RemoteReader:
    """Reads one split. Each step of `run` has passed one batch with a valid CRC to the handler."""

    def __init__(
        self,
        split: RemoteSplit,
        rules: ReadRules,
        handler: BatchHandler,
        *,
        cluster: ClusterConnection,
        tally: Tally | None = None,
    ) -> None:
        self._split = split
        self._rules = rules
        self._handler = handler
        self._cluster = cluster
        self._retry = cluster.retry
        self._name = f"{split.topic}-{split.partition}"
        self._offset = split.first_offset
        self._within = split.first_offset  # offset that may be within a batch, not at the end of the one before
        self._stopped = False
        self._damaged_from: int | None = None  # offset at which misplaced batches began that none has followed
        self._misplaced: frozenset[tuple[int, int]] = frozenset()  # those at the end of the last reply
        self.tally = tally if tally is not None else Tally()

    def run(self) -> Iterator[None]:
        """Read to the end. Raises PipelineError."""
        while self._wants_more():
            try:
                yield from self._read()
            except UnavailableError as error:
                self._cluster.forget_leaders(self._split.topic)
                self._retry.wait(error)
        if not self._stopped:
            self._end_damage(self._split.end_offset)

    def _wants_more(self) -> bool:
        return self._offset < self._split.end_offset and not self._stopped

    def _read(self) -> Iterator[None]:
        """Read until the end, an error, or a loss."""
        try:
            leader = self._cluster.leader(self._split.topic, self._split.partition)
        except PipelineError as error:
            if self._split.topic_id is None or not isinstance(error.__cause__, UnknownTopicError):
                raise
            self._lose("the topic was deleted", self._split.end_offset)
            return
        fetch = self._send_fetch(leader, self._offset)
        while self._wants_more():
            part = self._receive(fetch)
            if part is None:
                return
            batches = self._in_order(self._whole_batches(part), fetch.offset)
            ends_here, self._stopped = self._stopped, False  # after the batches before the misplaced one
            following = batches[-1][1].next_offset if batches else self._offset
            if following < self._split.end_offset and not ends_here:
                fetch = self._send_fetch(leader, following)
            aborted = self._aborted_in(part)
            for at, header in batches:
                if self._take(part.records, at, header, aborted):
                    yield
                if not self._wants_more():
                    return
            self._stopped = ends_here

    def _send_fetch(self, leader: Connection, offset: int) -> _Fetch:
        split = self._split
        wanted = FetchPartition(topic=split.topic, partition=split.partition, offset=offset, max_bytes=FETCH_BYTES)
        isolation = Isolation.READ_COMMITTED if self._rules.committed_only else Isolation.READ_UNCOMMITTED
        request = FetchRequest(
            partitions=(wanted,), max_wait_ms=FETCH_MAX_WAIT_MS, max_bytes=FETCH_BYTES, isolation=isolation
        )
        records = self._cluster.submit(leader, request, ReceivedFetch)
        if split.topic_id is None:
            return _Fetch(offset, records, None)
        topic = self._cluster.submit(leader, MetadataRequest(topics=(split.topic,)), MetadataResponse)
        return _Fetch(offset, records, topic)

    def _receive(self, fetch: _Fetch) -> ReceivedPartition | None:
        """Return the fetched partition; None if records were lost and reading continues at another offset."""
        (part,) = self._cluster.wait(fetch.records).partitions
        gone = None if fetch.topic is None else self._gone(self._cluster.wait(fetch.topic))
        if gone is not None:
            self._lose(gone, self._split.end_offset)
            return None
        if part.error is ErrorCode.OFFSET_OUT_OF_RANGE and self._offset < part.log_start_offset:
            end = min(part.log_start_offset, self._split.end_offset)
            self._lose(deleted(self._offset, end), end)
            return None
        if part.error is ErrorCode.OFFSET_OUT_OF_RANGE and self._offset > part.high_watermark >= 0:
            raise self._behind(part)
        if part.error:
            raise reply_error(part.error, part.message, about=f"{self._name}, offset {self._offset}")
        return part

    def _gone(self, reply: MetadataResponse) -> str | None:
        """Describe the topic's deletion or recreation, or return None if neither happened.

        Replies come in the order of requests, so records fetched before this reply belong to the topic in it.
        """
        (topic,) = reply.topics
        if topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return "the topic was deleted"
        if topic.error:
            raise reply_error(topic.error, topic.message, about=self._name)
        was = self._split.topic_id
        return None if topic.topic_id == was else recreated(was, topic.topic_id)

    def _lose(self, what: str, end: int) -> None:
        """Report lost offsets, and continue at `end`. Raises DataLossError."""
        lose(self._rules, self.tally, f"{self._name}: {what}", end - self._offset)
        self._damaged_from = None
        self._offset = self._within = end

    def _whole_batches(self, part: ReceivedPartition) -> list[tuple[int, BatchHeader]]:
        """Return the complete batches of a reply. Raises UnavailableError if there is none."""
        try:
            batches = list(headers(part.records))
        except ProtocolError as error:
            raise PipelineError(f"{self._name}: invalid batch at offset {self._offset}: {error}") from error
        if not batches:
            raise self._behind(part)
        self._retry.progressed()
        return batches

    def _behind(self, part: ReceivedPartition) -> UnavailableError:
        """Return the error for a leader without the records, which a newly elected leader may briefly lack."""
        end = part.high_watermark
        return UnavailableError(f"{self._name}: no records at offset {self._offset}; the log ends at {end}")

    def _aborted_in(self, part: ReceivedPartition) -> AbortedFilter:
        """Return the filter for the batches of a reply. Raises PipelineError if the broker is too old for it."""
        if self._rules.committed_only and part.aborted_transactions is None:
            raise PipelineError(
                f"{self._name}: this broker is too old to report aborted transactions: read_committed needs "
                'a newer one, or the directory, option("path", ...)'
            )
        return AbortedFilter(part.aborted_transactions or ())

    def _in_order(self, batches: Sequence[tuple[int, BatchHeader]], offset: int) -> list[tuple[int, BatchHeader]]:
        """Return the batches of a reply that fit between their neighbours; others count as damaged, once.

        `offset`: the offset that was fetched, which the first batch must have, or begin after. Raises PipelineError.
        """
        first = batches[0][1]
        may_begin_before = offset == self._within and first.next_offset > offset
        order = BatchOrder(min(first.base_offset, offset) if may_begin_before else offset)
        kept: list[tuple[int, BatchHeader]] = []
        reached, misplaced = offset, []
        for (at, header), after in zip(batches, [*batches[1:], None], strict=True):
            if after is None and kept and header.base_offset > reached:
                break  # the next reply tells whether the gap is right
            try:
                order.check(header, None if after is None else after[1].base_offset)
            except MisplacedBatchError as error:
                if (header.base_offset, header.crc) not in self._misplaced:
                    self._damaged(header, error)
                if self._stopped:
                    break
                misplaced.append((header.base_offset, header.crc))
                self._damaged_from = reached if self._damaged_from is None else self._damaged_from
            else:
                self._end_damage(header.base_offset)
                reached, misplaced = max(reached, header.next_offset), []
                kept.append((at, header))
        self._misplaced = frozenset(misplaced)
        if not kept and not self._stopped:
            raise PipelineError(f"{self._name}: nothing can be read after offset {offset}, where a batch is misplaced")
        return kept

    def _end_damage(self, offset: int) -> None:
        """Note the offsets of misplaced batches before another one, or the end."""
        end = min(offset, self._split.end_offset)
        if self._damaged_from is not None and self._damaged_from < end:
            self.tally.damaged_offsets.append((self._damaged_from, end))
        self._damaged_from = None

    def _take(self, records: memoryview, at: int, header: BatchHeader, aborted: AbortedFilter) -> bool:
        """Pass a batch on or skip it; return whether it was passed on."""
        passed = False
        if aborted.discards(header) or header.next_offset <= self._offset or not may_hold(header, self._rules.first_ms):
            self.tally.skipped_batches += 1
        else:
            passed = self._pass_on(records, at, header)
        if not self._stopped:
            self._offset = max(self._offset, header.next_offset)
        return passed

    def _pass_on(self, records: memoryview, at: int, header: BatchHeader) -> bool:
        first = self._offset  # a batch may begin with offsets that were deleted
        wanted = Wanted(first, self._split.end_offset - 1, self._rules.first_ms, self._rules.last_ms)
        try:
            verify_crc(records, at, header)
            self._handler(records, at, header, wanted)
        except ProtocolError as error:
            self._damaged(header, error)
            if not self._stopped:
                end = min(header.next_offset, self._split.end_offset)
                self.tally.damaged_offsets.append((max(first, header.base_offset), end))
            return False
        self.tally.batches += 1
        self.tally.bytes += header.size
        return True

    def _damaged(self, header: BatchHeader, error: ProtocolError) -> None:
        what = f"{self._name}: damaged batch at offset {header.base_offset}: {error}"
        if self._rules.on_corrupt == "fail":
            raise PipelineError(f"{what} (onCorrupt=skip continues after it, onCorrupt=stop ends before it)") from error
        self.tally.damaged.append(Damage(path=self._name, position=header.base_offset, reason=str(error)))
        self._stopped = self._rules.on_corrupt == "stop"
        _log.warning("%s", what)
