"""One fetch, from the first pass over its partitions to the response.

A reader of a sealed segment is answered immediately, even with little data: new records go to the active segment, so
waiting would add nothing to the slice (Kafka's DelayedFetch, case F).

Data outside the page cache is read by worker threads before the response begins (`warming`). A fetch that waits holds
no files open.
"""

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from warmlog.broker.api.access import Access
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.fetch.options import is_of_follower, kind_of, limited, refused
from warmlog.broker.api.fetch.reader import NO_FAILURES, NO_RECORDS, FetchReader
from warmlog.broker.api.fetch.session import LONG_STEP, STEP, FetchSession, FetchSessionError, Finder, SessionPartition
from warmlog.broker.api.fetch.sessions import FetchSessions
from warmlog.broker.api.fetch.warming import Warming
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.reads.read_ahead import ReadAhead
from warmlog.broker.partitions.reads.waiters import FetchWaiter
from warmlog.broker.security.acls import Operation
from warmlog.broker.security.quotas.client_quotas import ClientQuotas
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.common import UNKNOWN_TOPIC_NAME
from warmlog.protocol.kafka.messages.records.fetch import (
    CONSUMER,
    DEBUGGER,
    NO_SESSION,
    KafkaFetchRequest,
    KafkaFetchResponse,
)
from warmlog.protocol.request import FetchRequest, Isolation
from warmlog.protocol.response import FetchedPartition, FetchResponse


class Fetches:
    """The objects that all fetches share."""

    def __init__(
        self,
        partitions: Partitions,
        sessions: FetchSessions,
        reads: ReadAhead,
        quotas: ClientQuotas,
        access: Callable[[Session], Access] | None = None,
    ) -> None:
        """`access` returns the rights of a client, if there is an authorizer."""
        self.partitions = partitions
        self.sessions = sessions
        self.reads = reads
        self.quotas = quotas
        self._access = access

    def begin(self, request: FetchRequest, context: Context) -> "Fetch | FetchResponse":
        """Serve from the data available now, or return a pending `Fetch`.

        Continue a pending one with `resume` or `work` until one of them returns the response, or cancel it with
        `abandon`.
        """
        client = context.session
        if self.quotas.is_on and not is_of_follower(request):
            request = limited(request, self.quotas.max_fetch_bytes(client))
        try:
            session = self.sessions.open(request, client)
        except FetchSessionError as error:
            return refused(error)
        access = None if self._access is None else partial(self._access, client)
        return Fetch(self, request, session, client, access).begin()

    def forget(self, connection: Hashable) -> None:
        """Close the session of a connection that has closed."""
        self.sessions.own.forget(connection)


class Fetch:
    """One fetch of the partitions of a session, from the request to the response. Begun by `Fetches`.

        begin ──► apply the request to the session ──► read ──► respond
                                              ▲         │
                               resume, work ──┘         └─► pending: `wait`, or `work` in a task if it `needs_task`

    If the session is new or that of a connection, the response has every partition, in the order of the request;
    otherwise only partitions that have changed for the client.
    """

    def __init__(
        self,
        shared: Fetches,
        request: FetchRequest,
        session: FetchSession,
        client: Session,
        access: Callable[[], Access] | None,
    ) -> None:
        """`access` returns the current rights of the client, if there is an authorizer."""
        self._access = access
        self._client = client
        self._revision = 0 if access is None else access().revision
        self._shared = shared
        self._session = session
        self._request = request
        self._epoch = session.epoch
        self._tells_all = session.id == NO_SESSION
        self._steps: Iterator[None] | None = None  # the remaining steps of a large fetch
        self._response: FetchResponse | None = None
        self._news: list[SessionPartition] = []
        self._warming: Warming | None = None  # set by the first cold read
        self._latest: FetchReader  # of the latest pass, set by `_read`
        self._waiter: FetchWaiter | None = None
        self._replica = request.replica if isinstance(request, KafkaFetchRequest) else CONSUMER
        is_consumer = self._replica.broker < 0
        partitions = shared.partitions
        self._find: Finder = partitions.get
        if isinstance(request, KafkaFetchRequest) and is_consumer and request.knows_followers:
            self._find = partitions.local if self._replica.broker == DEBUGGER else partitions.readable
        self._is_committed = request.isolation is Isolation.READ_COMMITTED and is_consumer
        self._is_over = False  # max_wait_ms has passed

    @property
    def max_wait_ms(self) -> int:
        """The total time that this fetch may wait, in ms."""
        return self._request.max_wait_ms

    @property
    def needs_task(self) -> bool:
        """Whether to continue with `work`: a large fetch takes several steps, and a cold one reads from disk."""
        return self._steps is not None or self._is_cold

    # -- from request to response --

    def begin(self) -> "Fetch | FetchResponse":
        """Apply the request, and serve it; returns as `Fetches.begin` does."""
        return self._advance(self._begin())

    def resume(self, *, is_over: bool = False) -> "Fetch | FetchResponse":
        """Serve a fetch again after a notification or the end of its wait; returns as `Fetches.begin` does.

        With `is_over`, any amount of data is enough: the fetch may need a task, but does not wait again.
        """
        self._withdraw()
        if is_over:
            self._is_over = True
            if not (self._session.pending or self._latest.size):
                return self._advance(self._respond())  # nothing to read
        return self._advance(self._serve())

    async def work(self, context: Context) -> "Fetch | FetchResponse":
        """Serve a fetch that needs a task; returns it if it then has to wait."""
        steps, self._steps = self._steps, None
        try:
            for _ in steps or ():
                await context.checkpoint()
            if self._response is None and self._is_cold:
                await self._warm_up(context)
                if self._is_enough or self._is_cold:
                    for _ in self._respond():
                        await context.checkpoint()
        except BaseException:
            self._close(keep=False)
            raise
        return self if self._response is None else self._response

    def wait(self, ready: Callable[[], None]) -> None:
        """Call `ready` once when `resume` may find enough data. `ready` may only set a flag (see `FetchWaiter`)."""
        self._waiter = self._session.waiter = FetchWaiter(self._latest.missing_bytes(self._request.min_bytes), ready)
        if self._latest.size:
            for entry in self._news:
                entry.result = None  # holds a file open

    def abandon(self) -> None:
        """Cancel a pending fetch without a response."""
        self._withdraw()
        self._close(keep=False)

    def _advance(self, steps: Iterator[None]) -> "Fetch | FetchResponse":
        """Take the first step; `work` takes the others."""
        try:
            if next(steps, self) is None:
                self._steps = steps
                return self
        except BaseException:
            self._close(keep=False)
            raise
        return self if self._response is None else self._response

    def _begin(self) -> Iterator[None]:
        request, session, sessions = self._request, self._session, self._shared.sessions
        if self._tells_all:
            session.uses_topic_ids = isinstance(request, KafkaFetchRequest) and request.uses_topic_ids
            session.is_committed, session.replica = self._is_committed, self._replica
            merges = isinstance(request, KafkaFetchRequest)
            kind = kind_of(request) if self._access is None else (kind_of(request), self._revision)
            session.revision = self._revision
            for _ in session.follow(request.partitions, kind=kind, merges=merges):
                sessions.closed.detach()
                yield
        else:
            assert isinstance(request, KafkaFetchRequest)
            if (
                session.is_committed is not self._is_committed
                or session.replica != self._replica
                or session.revision != self._revision
            ):
                session.revision = self._revision
                yield from session.change_reader(self._replica, is_committed=self._is_committed)
            try:
                for _ in sessions.update(session, request.partitions, request.forgotten):
                    sessions.closed.detach()
                    yield
            except FetchSessionError as error:
                self._response = refused(error)
                self._close(keep=False)
                return
        yield from self._serve(reports=True)

    def _serve(self, *, reports: bool = False) -> Iterator[None]:
        """Read partitions that may have changed, and respond if there is enough. `reports`: see `FetchReader`."""
        for _ in self._read(reports=reports):
            yield
        if self._is_enough and not self._is_cold:
            yield from self._respond()

    def _respond(self) -> Iterator[None]:
        """Respond with the results of the latest pass, and record in the session what the client then knows.

        Yields after collecting LONG_STEP partitions, and after recording STEP.
        """
        request, session = self._request, self._session
        entries = session.order if self._tells_all else self._news
        is_as_requested = self._tells_all and len(entries) == len(request.partitions)
        names = isinstance(request, KafkaFetchRequest) and not is_as_requested
        results: list[FetchedPartition] = []
        requested: list[Any] = []  # by result, for a session: how its partition was requested
        for start in range(0, len(entries), LONG_STEP):
            if start:
                yield
            piece = entries[start : start + LONG_STEP]
            results += [each for entry in piece if (each := entry.result) is not None]
            if names:
                requested += [entry.requested for entry in piece]
        is_throttled = self._is_throttled()
        if self._tells_all and session.connection is None and not is_throttled:
            self._shared.sessions.register(session)
        if session.epoch != self._epoch:
            error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            self._response = KafkaFetchResponse(partitions=(), error=error, session_id=session.id, requested=())
        elif is_throttled:
            self._respond_without_records(results)
        else:
            assert len(results) == len(entries), "an entry without a result is pending, and all pending ones were read"
            if isinstance(request, KafkaFetchRequest):
                self._response = KafkaFetchResponse(
                    partitions=tuple(results), session_id=session.id, requested=tuple(requested) if names else None
                )
            else:
                self._response = FetchResponse(partitions=tuple(results))
        yield from self._settle()
        self._close(keep=True)

    def _is_throttled(self) -> bool:
        """Record the bytes for the client's quota; return whether it has to pause, and so gets no records."""
        quotas = self._shared.quotas
        if not quotas.is_on or self._replica.broker >= 0:
            return False
        self._client.throttle_ms, is_empty = quotas.fetched(self._client, self._latest.size)
        return is_empty

    def _respond_without_records(self, results: list[FetchedPartition]) -> None:
        """Respond as if nothing had been read; the session is unchanged (KIP-219)."""
        for entry in self._news:
            entry.result = None  # holds a file open
        self._news = []
        if isinstance(self._request, KafkaFetchRequest):
            self._response = KafkaFetchResponse(partitions=(), session_id=self._session.id, requested=())
        else:
            self._response = FetchResponse(partitions=tuple([replace(each, records=NO_RECORDS) for each in results]))

    def _settle(self) -> Iterator[None]:
        pending, keeps, reader = self._session.pending, self._tells_all, self._replica.broker
        for number, entry in enumerate(self._news, 1):
            result = entry.result
            if result is not None and entry in pending:
                entry.reported(result)
                if len(result.records):
                    if reader >= 0 and entry.partition is not None and entry.partition.replication is not None:
                        entry.partition.replication.sent(reader, len(result.records))
                    entry.result = None
                    if not keeps:
                        pending.move_to_end(entry)
                elif self._is_at_end(entry, result) and entry.is_known:
                    del pending[entry]
            if not keeps:
                entry.result = None
            if number % STEP == 0:
                yield

    def _withdraw(self) -> None:
        """Stop waiting for data."""
        if self._waiter is not None and self._session.waiter is self._waiter:
            self._session.waiter = None
        self._waiter = None

    def _close(self, *, keep: bool) -> None:
        """Return the session to its connection, or close it, unless it is an incremental one."""
        self._shared.sessions.close(self._session, keep=keep)

    # -- reading --

    @property
    def _is_cold(self) -> bool:
        """Whether pages have to be read from disk before the response."""
        return bool(self._latest.cold_lookups or self._latest.cold_slices)

    @property
    def _is_enough(self) -> bool:
        """Whether to respond now.

        True with enough data, data of a sealed segment or an error to report; when no requested partition exists, when
        the client does not want to wait or has waited long enough, and when a later request has advanced the session.
        """
        request, reader = self._request, self._latest
        return (
            reader.missing_bytes(request.min_bytes) <= 0
            or reader.urgent
            or reader.lags
            or request.max_wait_ms == 0
            or self._is_over
            or reader.unknown == len(self._session)
            or self._session.epoch != self._epoch
        )

    def _read(self, *, reports: bool = False) -> Iterator[None]:
        """Read the pending partitions; yields after every STEP of them. `reports`: see `FetchReader`."""
        session, partitions, find = self._session, self._shared.partitions, self._find
        is_follower = self._replica.broker >= 0
        failures = NO_FAILURES if self._warming is None else self._warming.failures
        reader = self._latest = FetchReader(self._request, partitions, failures, reports=reports)
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
                if may_read is None or may_read(entry.requested.topic):
                    result = reader.at(entry.requested, partition)
                else:
                    result = reader.unauthorized(entry.requested)
                if entry.take(result):
                    news.append(entry)
                    if is_follower and entry.is_watermark_urgent(result):
                        reader.urgent = True
                elif self._is_at_end(entry, result):
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

    def _is_at_end(self, entry: SessionPartition, result: FetchedPartition) -> bool:
        """Return whether the client has read everything until the partition reports a change."""
        if self._replica.broker >= 0:
            return entry.partition is not None and entry.requested.offset == entry.partition.log.offsets.log_end_offset
        if self._is_committed:
            return entry.requested.offset >= result.last_stable_offset
        return entry.requested.offset == result.high_watermark

    async def _warm_up(self, context: Context) -> None:
        """Read the slices of the response into the page cache, while errors can still be reported."""

        async def read_again() -> FetchReader:
            for _ in self._read():
                await context.checkpoint()
            return self._latest

        if self._warming is None:
            self._warming = Warming(self._shared.reads, self._find)
        await self._warming.warm_up(self._latest, context.session, read_again)
