"""Queue events of the audit log for `__warmlog_audit`, a copy of the file that clients can read.

    put ──► lane of a partition ──► one batch at a time ──► its leader

Invariants:
1. No request waits for the topic. An event is in the file, or failed to be written there, before it is queued.
2. Events queued and in flight take at most MAX_QUEUED_BYTES. Further events are lost for the topic: they are counted,
   and an event with their number follows as soon as there is space again.
3. A lane has one batch in flight, so the events of a user are in order. After a lost answer a batch is appended again;
   events have an id, `metadata.uid`.
4. A lane that fails for PATIENCE_S passes its events to a working lane.
5. Appending events to the topic produces no further events for the topic.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Final, NamedTuple, Protocol

import trio

from warmlog.broker.api.audit.events import Line
from warmlog.broker.api.audit.topic_appends import Failure
from warmlog.broker.metadata.topic import AUDIT_TOPIC
from warmlog.broker.metrics.registry import Metrics
from warmlog.protocol.backoff import delays_s
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.codec import murmur2

MAX_QUEUED_BYTES: Final = 16 << 20
LINE_BYTES: Final = 300  # bytes of the objects of a line
BATCH_BYTES: Final = 256 << 10  # lines of a batch, which is built in less than a millisecond
BATCH_LINES: Final = 1000
FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 5.0
PATIENCE_S: Final = 10.0  # longer than it takes to elect another leader
QUIET_S: Final = 3.0  # time that a new topic may need for its leaders
LOG_PAUSE_S: Final = 60.0
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

logger = logging.getLogger(__name__)


class Appends(Protocol):
    """The interface to the topic, implemented by `TopicAppends`."""

    @property
    def partition_count(self) -> int:
        """The number of partitions, 0 while there is no topic."""

    async def create(self) -> Failure | None:
        """Create the topic."""

    async def append(self, index: int, batch: bytes) -> Failure | None:
        """Append a batch to a partition."""


class Lost(NamedTuple):
    """The number of events missing in the topic, the times of the first and the last, and the reason."""

    events: int
    first_ms: int
    last_ms: int
    why: str


class _Lane:
    """The events for one partition."""

    __slots__ = ("failing_since", "is_busy", "lines", "max_bytes")

    def __init__(self) -> None:
        self.lines: deque[Line] = deque()
        self.is_busy = False
        self.failing_since: float | None = None
        self.max_bytes = BATCH_BYTES

    def batch(self) -> list[Line]:
        """Return the next lines, at least one."""
        batch: list[Line] = []
        size = 0
        for line in self.lines:
            size += len(line.value)
            if batch and (size > self.max_bytes or len(batch) == BATCH_LINES):
                break
            batch.append(line)
        return batch


class AuditTopic:
    """The queue. Belongs to the event loop; `run` is the task."""

    def __init__(self, appends: Appends, metrics: Metrics, random: Random) -> None:
        self.on_lost: Callable[[], None] = lambda: None  # called when `take_lost` has something to return
        self._appends = appends
        self._random = random
        self._unplaced: deque[Line] = deque()
        self._lanes: dict[int, _Lane] = {}
        self._bytes = 0
        self._has_work = trio.Event()
        self._emptied = trio.Event()
        self._lost: Lost | None = None
        self._appended = self._lost_count = 0
        self._why = "more events than could be appended"
        self._failing_since: float | None = None
        self._logged_at = -math.inf
        metrics.counter(
            "warmlog_audit_topic_events_total",
            "Events of the audit log for its topic: appended, or lost, which then are in the file only.",
            lambda: [(("appended",), self._appended), (("lost",), self._lost_count)],
            ("result",),
        )
        metrics.gauge(
            "warmlog_audit_topic_queued_bytes",
            "Memory of the events that are not in the audit log's topic yet; at most 16 MiB.",
            lambda: [((), self._bytes)],
        )

    def put(self, lines: Iterable[Line]) -> None:
        """Queue events, as far as there is space. Never waits."""
        for line in lines:
            if line.key is None:
                continue
            if self._bytes + _size(line) > MAX_QUEUED_BYTES:
                self._lose(line)
            else:
                self._bytes += _size(line)
                self._unplaced.append(line._replace(text=b""))
        self._has_work.set()

    def _lose(self, line: Line) -> None:
        before = self._lost or Lost(0, line.time_ms, 0, "")
        self._lost = Lost(before.events + 1, before.first_ms, line.time_ms, self._why)
        self._lost_count += 1

    def take_lost(self) -> Lost | None:
        """Return what was lost since the last call, once there is space for an event about it."""
        if self._bytes > MAX_QUEUED_BYTES // 2:
            return None
        lost, self._lost = self._lost, None
        return lost

    def take_rest(self) -> Lost | None:
        """Drop queued events, and return everything that is lost."""
        for lines in (*(lane.lines for lane in self._lanes.values()), self._unplaced):
            while lines:
                self._release(line := lines.popleft())
                self._lose(line)
        return self.take_lost()

    async def drain(self, limit_s: float) -> None:
        """Wait until everything is appended, for at most this time."""
        with trio.move_on_after(limit_s):
            while self._bytes:
                self._emptied = trio.Event()
                await self._emptied.wait()

    async def run(self) -> None:
        """Append until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._has_work.wait()
                self._has_work = trio.Event()
                await self._place()
                for index, lane in self._lanes.items():
                    if lane.lines and not lane.is_busy:
                        lane.is_busy = True
                        nursery.start_soon(self._append_all, index, lane)

    async def _place(self) -> None:
        """Pass each event to the lane of its key, once the topic exists."""
        delays = delays_s(self._random, FIRST_PAUSE_S, MAX_PAUSE_S)
        while self._unplaced and not self._appends.partition_count:
            failure = await self._appends.create()
            if failure is not None:
                self._report(failure)
            if not self._appends.partition_count:
                await trio.sleep(next(delays))
        count = self._appends.partition_count
        while self._unplaced:
            line = self._unplaced.popleft()
            self._lane((murmur2(line.key or b"") & 0x7FFFFFFF) % count).lines.append(line)

    def _lane(self, index: int) -> _Lane:
        return self._lanes.setdefault(index, _Lane())

    async def _append_all(self, index: int, lane: _Lane) -> None:
        """Append the events of a lane, in order."""
        delays = delays_s(self._random, FIRST_PAUSE_S, MAX_PAUSE_S)
        while lane.lines:
            lines = lane.batch()
            failure = await self._append(index, lines)
            if failure is None:
                self._settle(lane, len(lines))
                delays = delays_s(self._random, FIRST_PAUSE_S, MAX_PAUSE_S)
            elif failure.code in _TOO_LARGE:
                self._report(failure)
                if len(lines) == 1:
                    self._release(line := lane.lines.popleft())
                    self._lose(line)
                lane.max_bytes = max(1, sum(len(line.value) for line in lines) // 2)
            else:
                self._report(failure)
                if self._moves_away(index, lane):
                    break
                await trio.sleep(next(delays))
        lane.is_busy = False

    async def _append(self, index: int, lines: Iterable[Line]) -> Failure | None:
        batch = build_batch([(line.time_ms, line.key, line.value, ()) for line in lines])
        try:
            return await self._appends.append(index, batch)
        except Exception:  # a defect must not stop the broker
            logger.exception("audit log: appending to %s-%d failed", AUDIT_TOPIC, index)
            return Failure(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker failed to append; its log says why")

    def _settle(self, lane: _Lane, count: int) -> None:
        """Remove the appended first events of a lane."""
        for _ in range(count):
            self._release(lane.lines.popleft())
        self._appended += count
        lane.failing_since = None
        if self._failing_since is not None and all(each.failing_since is None for each in self._lanes.values()):
            self._failing_since = None
            if self._logged_at > -math.inf:
                self._logged_at = -math.inf
                logger.info("audit log: appending to %s again", AUDIT_TOPIC)
        if self._lost is not None and self._bytes <= MAX_QUEUED_BYTES // 2:
            self.on_lost()

    def _release(self, line: Line) -> None:
        self._bytes -= _size(line)
        if not self._bytes:
            self._emptied.set()

    def _moves_away(self, index: int, lane: _Lane) -> bool:
        """Move the events of a lane that has failed for too long, or whose topic is gone, to other lanes."""
        now = trio.current_time()
        count = self._appends.partition_count
        if not count:
            lane.failing_since = None
            self._move(lane, self._unplaced)
            return True
        lane.failing_since = now if lane.failing_since is None else lane.failing_since
        if now - lane.failing_since < PATIENCE_S:
            return False
        for step in range(1, count):
            other = self._lane((index + step) % count)
            if other is not lane and other.failing_since is None:
                self._move(lane, other.lines)
                return True
        return False

    def _move(self, lane: _Lane, to: deque[Line]) -> None:
        to.extend(lane.lines)
        lane.lines.clear()
        self._has_work.set()

    def _report(self, failure: Failure) -> None:
        self._why = failure.reason
        now = trio.current_time()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since >= QUIET_S and now - self._logged_at >= LOG_PAUSE_S:
            self._logged_at = now
            logger.warning("audit log: cannot append to %s, retrying: %s", AUDIT_TOPIC, failure.reason)


def _size(line: Line) -> int:
    return len(line.value) + LINE_BYTES
