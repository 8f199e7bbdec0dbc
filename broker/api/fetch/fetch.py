"""One fetch, from the first look at its partitions to the response.

A reader of a sealed segment is answered at once, even with little data: new records go to the active segment, so
waiting would not add anything to the slice (Kafka's DelayedFetch, case F).

Data outside the page cache is read by worker threads before the response begins (`Fetch.warm_up`): first whatever is
needed to find the slices, then the slices themselves up to the read-ahead limit, so that a disk error can be reported
as KAFKA_STORAGE_ERROR. The sender reads the rest chunk by chunk. A fetch that waits holds no files open.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterator
from functools import partial
from typing import Any

import trio

from warmlog.broker.api.access import Access
from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED
from warmlog.broker.api.fetch.look import Look
from warmlog.broker.api.fetch.session import LONG_STEP, STEP, FetchSession, Finder, SessionPartition
from warmlog.broker.api.fetch.sessions import FetchSessions
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.partitions.partition import Partition, StorageError
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.reads.read_ahead import ReadAhead
from warmlog.broker.partitions.reads.waiters import FetchWaiter
from warmlog.broker.security.acls import Operation
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.common import UNKNOWN_TOPIC_NAME
from warmlog.protocol.kafka.messages.fetch import CONSUMER, DEBUGGER, KafkaFetchRequest, KafkaFetchResponse
from warmlog.protocol.request import FetchRequest, Isolation
from warmlog.protocol.response import FetchedPartition, FetchResponse

MAX_LOOKS = 8  # while index and header pages are read from disk; a gap between batches takes several


class Fetch:
    """A fetch of the partitions of a session, begun by `Fetches`.

    With `tells_all` the response has every partition, in the order of the session's latest full fetch; otherwise only
    partitions that have changed for the client.

    After each look the fetch is answered if it `is_enough`, continues in a task if it `needs_task`, or has to `wait`.
    """

    def __init__(
        self,
        request: FetchRequest,
        session: FetchSession,
        partitions: Partitions,
        *,
        tells_all: bool,
        connection: Hashable = None,
        wants_session: bool = False,
        access: Callable[[], Access] | None = None,
    ) -> None:
        """`access` returns the rights of the client as of now, if there is an authorizer."""
        self._access = access
        self._revision = 0 if access is None else access().revision
        self.session = session
        self.connection = connection  # the connection that owns the session, if any does
        self.wants_session = wants_session  # the client asks for an incremental session
        self.steps: Iterator[None] | None = None  # the rest of a large fetch's look
        self._request = request
        self._epoch = session.epoch
        self._partitions = partitions
        self._tells_all = tells_all
        self._news: list[SessionPartition] = []
        self._found: list[FetchedPartition] = []  # the response's partitions, filled by `gather`
        self._asked: list[Any] | None = None  # how each of them was requested; None: the same as in the request
        self._failures: dict[Partition, Exception] = {}
        self._missed: dict[Partition, object] = {}  # file was missing, with the layout then
        self._look: Look  # the latest one, set by `look`
        self._waiter: FetchWaiter | None = None
        self._replica = request.replica if isinstance(request, KafkaFetchRequest) else CONSUMER
        is_consumer = self._replica.broker < 0
        self._find: Finder = partitions.get
        if isinstance(request, KafkaFetchRequest) and is_consumer and request.knows_followers:
            self._find = partitions.local if self._replica.broker == DEBUGGER else partitions.readable
        self._is_committed = request.isolation is Isolation.READ_COMMITTED and is_consumer
        self._is_over = False  # max_wait_ms has passed

    @property
    def max_wait_ms(self) -> int:
        """Total time that this fetch may wait, in ms."""
        return self._request.max_wait_ms

    @property
    def needs_task(self) -> bool:
        """Whether to continue in a task: a large fetch looks in pieces, and a cold one reads from disk."""
        return self.steps is not None or self.is_cold

    @property
    def is_cold(self) -> bool:
        """Whether pages have to be read from disk before the response."""
        return bool(self._look.cold_lookups or self._look.cold_slices)

    @property
    def is_enough(self) -> bool:
        """Whether to answer now.

        True with enough data, data of a sealed segment or an error to report; when no requested partition exists, when
        the client does not want to wait or has waited long enough, and when a later request has advanced the session.
        """
        request, look = self._request, self._look
        return (
            look.missing_bytes(request.min_bytes) <= 0
            or look.urgent
            or look.lags
            or request.max_wait_ms == 0
            or self._is_over
            or look.unknown == len(self.session)
            or self.session.epoch != self._epoch
        )

    def wait(self, ready: Callable[[], None]) -> None:
        """Call `ready` once when another look may find enough data. `ready` may only set a flag (see `FetchWaiter`)."""
        self._waiter = self.session.waiter = FetchWaiter(self._look.missing_bytes(self._request.min_bytes), ready)
        if self._look.size:
            self._release_files()

    def expire(self) -> bool:
        """Accept any amount of data from now on; return whether that takes another look."""
        self._is_over = True
        return bool(self.session.pending or self._look.size)

    def withdraw(self) -> None:
        """Stop waiting for data."""
        if self._waiter is not None and self.session.waiter is self._waiter:
            self.session.waiter = None
        self._waiter = None

    async def take_steps(self, context: Context) -> None:
        """Finish a large look, yielding to other tasks. Raises FetchSessionError."""
        steps, self.steps = self.steps, None
        for _ in steps or ():
            await context.checkpoint()

    async def warm_up(self, reads: ReadAhead, context: Context) -> None:
        """Read the slices of the response into the page cache, as far as errors can still be reported.

        Partitions whose index and header pages are still missing after MAX_LOOKS looks get no records this time.
        """
        consumer = context.session
        for _ in range(MAX_LOOKS):
            if not self._look.cold_lookups:
                break
            async with trio.open_nursery() as nursery:
                for partition, cold in self._look.cold_lookups:
                    nursery.start_soon(self._attempt, partition, partial(reads.look_up, consumer, cold))
            await self._look_again(context)
        known, left = len(self._failures), reads.limits.ahead_bytes
        for partition, piece in self._look.cold_slices:
            if left > 0:
                length = min(len(piece), left)
                left -= length
                await self._attempt(partition, partial(reads.bring, consumer, piece, piece.position, length))
        self._look.cold_slices.clear()
        if len(self._failures) > known:
            await self._look_again(context)

    async def _attempt(self, partition: Partition, read: Callable[[], Awaitable[object]]) -> None:
        """Run a read for a partition; an error is reported for that partition alone."""
        try:
            await read()
        except IndexCorruptError as damage:
            try:
                partition.rebuild(damage)
            except StorageError as refusal:
                self._fail(partition, refusal)
        except FileNotFoundError as error:
            if self._is_lost(partition):
                self._fail(partition, error)
        except EXPECTED as error:
            self._fail(partition, error)

    def _is_lost(self, partition: Partition) -> bool:
        """Whether a file is missing for the second time although the log's layout has not changed.

        Otherwise the segment or the whole log was removed in the meantime, and the next look reads another file.
        """
        layout = partition.log.layout
        is_lost = self._missed.get(partition) is layout
        self._missed[partition] = layout
        return is_lost and self._find(partition.topic, partition.index) is partition

    def _fail(self, partition: Partition, error: Exception) -> None:
        self._failures[partition] = error
        partition.cannot_read(error)

    def begin(self, sessions: FetchSessions) -> Iterator[None]:
        """Apply the request to the session, then look for the first time."""
        request, session = self._request, self.session
        if self._tells_all:
            session.uses_topic_ids = isinstance(request, KafkaFetchRequest) and request.uses_topic_ids
            session.is_committed, session.replica = self._is_committed, self._replica
            merges = isinstance(request, KafkaFetchRequest)
            kind = _kind(request) if self._access is None else (_kind(request), self._revision)
            session.revision = self._revision
            yield from session.follow(request.partitions, kind=kind, merges=merges)
        else:
            assert isinstance(request, KafkaFetchRequest)
            if (
                session.is_committed is not self._is_committed
                or session.replica != self._replica
                or session.revision != self._revision
            ):
                session.revision = self._revision
                yield from session.change_reader(self._replica, is_committed=self._is_committed)
            yield from sessions.update(session, request.partitions, request.forgotten)
        yield from self.look(reports=True)

    def look(self, *, reports: bool = False) -> Iterator[None]:
        """Read the pending partitions; yields after every STEP of them. `reports`: see `Look`."""
        session, partitions, find, is_follower = self.session, self._partitions, self._find, self._replica.broker >= 0
        look = self._look = Look(self._request, partitions, self._failures, reports=reports)
        may_read = None if self._access is None else self._reader(self._access())
        pending = session.pending
        order = session.order if pending and self._tells_all else list(pending)
        if len(order) > LONG_STEP:
            yield
        self._news = news = []
        number = 0
        for start in range(0, len(order), LONG_STEP):
            if start:
                yield
            for entry in [entry for entry in order[start : start + LONG_STEP] if entry in pending]:
                partition = session.find(entry, find, partitions.topic_name)
                if may_read is None or may_read(entry.asked.topic):
                    found = look.at(entry.asked, partition)
                else:
                    found = look.unauthorized(entry.asked)
                if entry.take(found):
                    news.append(entry)
                    if is_follower and entry.is_watermark_urgent(found):
                        look.urgent = True
                elif self._is_at_end(entry, found):
                    pending.pop(entry, None)
                number += 1
                if number % STEP == 0:
                    yield

    def _reader(self, access: Access) -> Callable[[str], bool]:
        """Return whether the client may read a topic: a consumer needs READ, a follower CLUSTER_ACTION."""
        if self._replica.broker >= 0:
            is_broker = access.cluster(Operation.CLUSTER_ACTION)
            return lambda _: is_broker
        return lambda topic: topic == UNKNOWN_TOPIC_NAME or access.topic(Operation.READ, topic)

    def _is_at_end(self, entry: SessionPartition, found: FetchedPartition) -> bool:
        """Whether the client has read everything until the partition reports a change."""
        if self._replica.broker >= 0:
            return entry.partition is not None and entry.asked.offset == entry.partition.log.offsets.log_end_offset
        if self._is_committed:
            return entry.asked.offset >= found.last_stable_offset
        return entry.asked.offset == found.high_watermark

    async def _look_again(self, context: Context) -> None:
        for _ in self.look():
            await context.checkpoint()

    def _release_files(self) -> None:
        """Close the files of the slices found so far while the fetch waits for more."""
        for entry in self._news:
            entry.found = None

    def gather(self) -> Iterator[None]:
        """Collect the results of the latest look for `response`; yields after every LONG_STEP partitions."""
        request = self._request
        entries = self.session.order if self._tells_all else self._news
        is_as_asked = self._tells_all and len(entries) == len(request.partitions)
        self._found, self._asked = [], None
        if isinstance(request, KafkaFetchRequest) and not is_as_asked:
            self._asked = []
        for start in range(0, len(entries), LONG_STEP):
            if start:
                yield
            piece = entries[start : start + LONG_STEP]
            self._found += [each for entry in piece if (each := entry.found) is not None]
            if self._asked is not None:
                self._asked += [entry.asked for entry in piece]

    def response(self) -> FetchResponse:
        """Return the response after `gather`. Call `settle` afterwards."""
        session = self.session
        if session.epoch != self._epoch:
            error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return KafkaFetchResponse(partitions=(), error=error, session_id=session.id, asked=())
        found, self._found = tuple(self._found), []
        count = len(session.order if self._tells_all else self._news)
        assert len(found) == count, "an entry without a result is pending, and the look has read all pending ones"
        if not isinstance(self._request, KafkaFetchRequest):
            return FetchResponse(partitions=found)
        asked = None if self._asked is None else tuple(self._asked)
        return KafkaFetchResponse(partitions=found, session_id=session.id, asked=asked)

    def settle(self) -> Iterator[None]:
        """Record in the session what the response tells the client; yields after every STEP partitions."""
        pending, keeps, reader = self.session.pending, self._tells_all, self._replica.broker
        for number, entry in enumerate(self._news, 1):
            found = entry.found
            if found is not None and entry in pending:
                entry.told(found)
                if len(found.records):
                    if reader >= 0 and entry.partition is not None and entry.partition.replication is not None:
                        entry.partition.replication.sent(reader, len(found.records))
                    entry.found = None
                    if not keeps:
                        pending.move_to_end(entry)
                elif self._is_at_end(entry, found) and entry.is_known:
                    del pending[entry]
            if not keeps:
                entry.found = None
            if number % STEP == 0:
                yield


def _kind(request: FetchRequest) -> Hashable:
    """Return the fields of a request, besides its partitions, on which the result of each partition depends."""
    if isinstance(request, KafkaFetchRequest):
        return (
            request.isolation,
            request.replica,
            request.uses_topic_ids,
            request.knows_followers,
            request.rack,
        )
    return request.isolation
