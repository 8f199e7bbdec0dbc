"""Appends to one log that wait for batches to be decompressed: a lane for each source, and transaction markers.

Invariants:
1. Appends of one source (a connection) are planned in the order of their arrival.
2. A marker is planned after all appends that arrived before it, of any source.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

from warmlog.broker.log.appends.planned import Buffer
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.transactions import Origin, TransactionMarker
from warmlog.broker.partitions.appends.append import Append
from warmlog.broker.partitions.appends.batch_opener import BatchOpener
from warmlog.broker.partitions.appends.log_tasks import LogTasks
from warmlog.protocol.records.reencode import Reencoding


class Planner(Protocol):
    """Plans and queues appends that no longer wait."""

    def append_opened(self, append: Append, opened: Buffer | Exception, origin: Origin, guard: int) -> None:
        """Plan and queue decompressed batches, or settle their append with the error."""

    def append_waiting_marker(self, append: Append, marker: TransactionMarker) -> None:
        """Plan and queue a marker, or settle its append with an error."""

    def write_queued(self) -> None:
        """Write the queue."""


class Unopened(NamedTuple):
    """An append that waits for batches to be decompressed: its own, or earlier ones of its source."""

    number: int  # in the order of arrival
    append: Append
    reencoding: Reencoding
    origin: Origin
    guard: int


class WaitingMarker(NamedTuple):
    """A marker that waits for the batches that arrived before it."""

    number: int
    append: Append
    marker: TransactionMarker


class SourceLane:
    """The waiting appends of one source; see `batch_opener.Lane`."""

    __slots__ = ("_lanes", "log", "source", "waiting")

    def __init__(self, lanes: "Lanes", log: PartitionLog, source: Hashable) -> None:
        self.log = log
        self.source = source
        self.waiting: deque[Unopened] = deque()
        self._lanes = lanes

    def next_unopened(self, max_bytes: int) -> list[Reencoding]:
        """Return what a thread must decompress for the first appends, at least one; `opened` follows."""
        unopened: list[Reencoding] = []
        size = 0
        for each in self.waiting:
            size += each.reencoding.size
            if unopened and size > max_bytes:
                break
            unopened.append(each.reencoding)
        return unopened

    def opened(self, outcomes: Sequence[Buffer | Exception]) -> bool:
        """Plan and write the first appends, which were decompressed; return whether more are waiting."""
        return self._lanes.opened(self, outcomes)


class Lanes:
    """The waiting appends of one log. Belongs to the event loop."""

    def __init__(self, log: PartitionLog, planner: Planner, opener: BatchOpener, tasks: LogTasks) -> None:
        self._log = log
        self._planner = planner
        self._opener = opener
        self._tasks = tasks
        self._lanes: dict[Hashable, SourceLane] = {}
        self._markers: deque[WaitingMarker] = deque()
        self._arrivals = 0

    @property
    def are_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._lanes and not self._markers

    def holds(self, source: Hashable) -> bool:
        """Return whether appends of a source are waiting, so that further ones must wait behind them."""
        return source in self._lanes

    def add(self, append: Append, records: bytes | memoryview, origin: Origin, guard: int, source: Hashable) -> None:
        """Queue an append behind those of its source, or until a thread has decompressed its batches."""
        lane = self._lanes.get(source)
        is_new = lane is None
        if lane is None:
            if self.are_empty:
                self._tasks.enter()
            lane = self._lanes[source] = SourceLane(self, self._log, source)
        self._arrivals += 1
        lane.waiting.append(Unopened(self._arrivals, append, self._log.appends.reencoding(records), origin, guard))
        if is_new:
            self._opener.enlist(source, lane)

    def add_marker(self, append: Append, marker: TransactionMarker) -> None:
        """Queue a marker behind everything that is waiting now."""
        self._arrivals += 1
        self._markers.append(WaitingMarker(self._arrivals, append, marker))

    def opened(self, lane: SourceLane, outcomes: Sequence[Buffer | Exception]) -> bool:
        """Plan and write the first appends of a lane, which were decompressed; return whether more are waiting."""
        waiting = lane.waiting
        for outcome in outcomes:
            first = waiting[0]
            if not first.append.done:  # settled by `settle_all`
                self._planner.append_opened(first.append, outcome, first.origin, first.guard)
            waiting.popleft()  # not earlier: appends that arrive in the meantime must wait behind it
            if not waiting:
                del self._lanes[lane.source]
            if self._markers:
                self._append_markers()
        self._planner.write_queued()
        if self.are_empty:
            self._tasks.leave()
        return bool(waiting)

    def settle_all(self, reason: Exception) -> None:
        """Settle all waiting appends with an error; results of their decompression are dropped."""
        for lane in self._lanes.values():
            for each in lane.waiting:
                if not each.append.done:
                    each.append.settle(reason)
        for marker in self._markers:
            if not marker.append.done:
                marker.append.settle(reason)

    def _append_markers(self) -> None:
        """Plan the markers that nothing waits before."""
        while self._markers:
            first = self._markers[0]
            for lane in self._lanes.values():
                if lane.waiting[0].number < first.number:
                    return
            self._markers.popleft()
            if not first.append.done:
                self._planner.append_waiting_marker(first.append, first.marker)
