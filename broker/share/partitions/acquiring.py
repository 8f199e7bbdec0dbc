"""Choose the records of a share-partition that a member acquires from the batches that a fetch has read.

Previously delivered records come first. Records that failed often are isolated, so that one that members cannot process
does not affect others: from half of the allowed deliveries on, fewer records are delivered together each time, and in
its last delivery a record is alone.

Source: kafka.server.share.SharePartition (acquire, acquireNewBatchRecords, createBatches, acquireSubsetBatchRecords).
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from warmlog.broker.share.partitions.spans import RecordState, Span, Unit
from warmlog.broker.share.partitions.state import SharePartition
from warmlog.protocol.kafka.messages.share.fetch import AcquiredRange

MIN_THROTTLED_DELIVERIES = 2
MAX_RANGES = 1_000  # records that a fetch acquires again: 5 ms


class ReadBatch(NamedTuple):
    """Offsets of a batch in the log, both inclusive, and whether its transaction was aborted."""

    first: int
    last: int
    is_aborted: bool = False


class Wanted(NamedTuple):
    """A member's request. `is_exact`: never more than `max_records`, even in the middle of a batch.

    `batch_size`: records that are best acquired and acknowledged together.
    """

    member: str
    max_records: int
    batch_size: int
    is_exact: bool = False


class Acquisition:
    """One acquisition: its limits, and the records acquired so far."""

    def __init__(self, of: SharePartition, wanted: Wanted, batches: Sequence[ReadBatch], now_s: float) -> None:
        self._of = of
        self._wanted = wanted
        self._batches = batches
        self._firsts = [batch.first for batch in batches]
        self._rules = of.rules
        self._deadline_s = now_s + self._rules.lock_s
        self._left = 0  # records that may still be acquired
        self._is_throttled = False
        self.acquired: list[AcquiredRange] = []

    def run(self, fetch_offset: int) -> None:
        """Acquire records of the batches, which were read from `fetch_offset` on."""
        of, batches = self._of, self._batches
        if not batches or self._wanted.max_records <= 0:
            return
        last = batches[-1].last
        self._left = min(self._wanted.max_records, self._rules.max_locks - of.in_flight)
        if self._left <= 0:
            self._left = min(self._wanted.max_records, of.next_offset - fetch_offset)
            last = min(last, of.next_offset - 1)
        if batches[0].first > fetch_offset:  # the records before it were removed by compaction
            of.archive(fetch_offset, batches[0].first - 1, RecordState.AVAILABLE)
        if self._left > 0:
            self._acquire_again(max(batches[0].first, of.start_offset), last)
        if self._left > 0 and not self._is_throttled and last >= of.next_offset:
            self._acquire_new(last)
        if any(batch.is_aborted for batch in batches):
            self._archive_aborted()
        of.trim()

    # -- previously delivered --

    def _acquire_again(self, first: int, last: int) -> None:
        """Acquire available records that were already delivered, in ascending order."""
        spans, unit = self._of.spans, None
        for span in spans.within(first, last):
            if not span.is_available:
                continue
            is_throttled = span.deliveries >= self._throttled_from
            if is_throttled or self._is_throttled:
                if not self._may_isolate(span, unit, is_throttled=is_throttled):
                    return
                unit = span.unit
            begin = max(span.first, first)
            end = min(span.last, last, self._end_of(begin))
            self._acquire_span(spans.cut(span, begin, end))
            if len(self.acquired) >= MAX_RANGES:
                self._left = 0  # the next fetch gets the rest
            if self._left <= 0:
                return

    @property
    def _throttled_from(self) -> int:
        return max(MIN_THROTTLED_DELIVERIES, -(-self._rules.max_deliveries // 2))

    def _may_isolate(self, span: Span, unit: Unit | None, *, is_throttled: bool) -> bool:
        """Limit an acquisition to records that failed often; return whether a span belongs to it."""
        max_deliveries = self._rules.max_deliveries
        is_last = max_deliveries > MIN_THROTTLED_DELIVERIES and span.deliveries == max_deliveries - 1
        if not self._is_throttled:
            if self.acquired:
                self._is_throttled = True  # the next fetch gets it alone
                return False
            self._is_throttled = True
            shift = span.deliveries - self._throttled_from + 1
            self._left = min(self._left, 1 if is_last else max(1, span.unit.size >> shift))
            return True
        return is_throttled and not is_last and span.unit == unit

    def _end_of(self, first: int) -> int:
        """Return the last offset to acquire from `first` on: the limit, or the end of the batch around it."""
        end = first + self._left - 1
        if self._wanted.is_exact or self._is_throttled:
            return end
        index = bisect_right(self._firsts, end) - 1
        return max(end, self._batches[index].last) if index >= 0 else end

    def _acquire_span(self, span: Span) -> None:
        span.deliveries += 1
        self._of.change(span, RecordState.ACQUIRED, member=self._wanted.member, deadline_s=self._deadline_s)
        self._left -= span.size
        self._add(span.first, span.last, span.deliveries)

    def _add(self, first: int, last: int, deliveries: int) -> None:
        acquired = self.acquired
        if acquired and acquired[-1].last_offset + 1 == first and acquired[-1].deliveries == deliveries:
            first = acquired.pop().first_offset
        acquired.append(AcquiredRange(first_offset=first, last_offset=last, deliveries=deliveries))

    # -- for the first time --

    def _acquire_new(self, last: int) -> None:
        """Acquire records that were never delivered, up to an offset, in units of about the batch size."""
        of, batches = self._of, self._batches
        index = max(0, bisect_right(self._firsts, of.next_offset) - 1)
        if batches[index].last < of.next_offset:
            index += 1
        if index == len(batches):
            return
        first = max(of.next_offset, batches[index].first)
        last = min(last, self._end_of(first))
        if not of.spans:
            of.start_offset = first
        begin = first
        if not self._wanted.is_exact and last - first >= self._wanted.batch_size:
            for batch in batches[index + 1 :]:
                if batch.first > last:
                    break
                if batch.first - begin >= self._wanted.batch_size:
                    self._deliver(begin, batch.first - 1)
                    begin = batch.first
        self._deliver(begin, last)
        of.next_offset = last + 1

    def _deliver(self, first: int, last: int) -> None:
        span = Span(first, last, RecordState.AVAILABLE, 1, Unit(first, last))
        self._of.spans.add(span)
        self._of.change(span, RecordState.ACQUIRED, member=self._wanted.member, deadline_s=self._deadline_s)
        self._left -= span.size
        self.acquired.append(AcquiredRange(first_offset=first, last_offset=last, deliveries=1))

    # -- aborted transactions --

    def _archive_aborted(self) -> None:
        """Archive acquired records of aborted transactions, and acquire only the others."""
        of, kept = self._of, list[AcquiredRange]()
        aborted = [batch for batch in self._batches if batch.is_aborted]
        for acquired in self.acquired:
            first, last, deliveries = acquired.first_offset, acquired.last_offset, acquired.deliveries
            for batch in aborted:
                if batch.last < first or batch.first > last:
                    continue
                of.archive(max(first, batch.first), min(last, batch.last), RecordState.ACQUIRED)
                if first < batch.first:
                    kept.append(AcquiredRange(first_offset=first, last_offset=batch.first - 1, deliveries=deliveries))
                first = batch.last + 1
            if first <= last:
                kept.append(AcquiredRange(first_offset=first, last_offset=last, deliveries=deliveries))
        self.acquired = kept


def acquire(
    of: SharePartition, wanted: Wanted, fetch_offset: int, batches: Sequence[ReadBatch], now_s: float
) -> Sequence[AcquiredRange]:
    """Acquire records of batches that were read from `fetch_offset` on, and return their offsets, ascending."""
    acquisition = Acquisition(of, wanted, batches, now_s)
    acquisition.run(fetch_offset)
    return acquisition.acquired


def reach(of: SharePartition, max_records: int, fetch_offset: int) -> int:
    """Return the last offset that an acquisition may take, without the rest of the batch around it.

    Reading beyond it would be useless.
    """
    left = max_records
    for span in of.spans.seen_from(fetch_offset):
        if span.is_available:
            left -= span.size
            if left <= 0:
                return span.last + left
    locks_left = max(of.rules.max_locks - of.in_flight, 0)
    return of.next_offset + min(left, locks_left) - 1
