"""Fetch: slices of partitions, now or when there is something.

Owns: the size rules, how long a fetch waits, and what is answered of which partition. Must not know: wire formats, and
which partitions of a session are worth a look (`fetch_sessions` does).

Size rules (KIP-74): partitions are served in the order asked for; `max_bytes` bounds the whole, each partition's own
bound its part; but the first batch of the first partition that has one is always whole, so that a batch larger than the
bounds can be read at all.

Whoever reads a sealed segment is answered at once, however little its end has (a slice ends there): what is appended
meanwhile goes elsewhere, and a reader that lags is not to wait for it (Kafka's DelayedFetch, case F).

What is not in memory is read beside the loop before the reply begins (`Fetch.warm_up`): the way to the slices, and the
slices as far as is read ahead, so that a disk's error is told with KAFKA_STORAGE_ERROR. What lies behind, the sender
has read in its turn.

So many partitions of a reply can have records as files may be held open for it (`MAX_SLICES`). A fetch that waits holds
none.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sized
from functools import partial
from typing import Any

import trio

from broker.api.context import Context
from broker.api.errors import EXPECTED, RequestError, describe
from broker.api.fetch.sessions import (
    LONG_STEP,
    STEP,
    ConnectionSessions,
    FetchSession,
    FetchSessionError,
    FetchSessions,
    SessionPartition,
)
from broker.api.records.epochs import check_leader_epoch, diverged
from broker.log.descriptions import LogRead
from broker.log.errors import IndexCorruptError
from broker.log.index import transaction as log_index
from broker.log.io.files import FileSlice
from broker.log.io.residency import ColdReadError
from broker.partitions.partition import Partition, StorageError
from broker.partitions.partitions import Partitions, UnknownTopicError
from broker.partitions.read_ahead import ReadAhead
from broker.partitions.waiters import FetchWaiter
from protocol.errors import CorruptBatchError, ErrorCode
from protocol.kafka.codec.bounds import NO_TOPIC_ID
from protocol.kafka.values import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_SESSION,
    KafkaFetchPartition,
    KafkaFetchRequest,
    KafkaFetchResponse,
)
from protocol.request import FetchPartition, FetchRequest, Isolation
from protocol.response import AbortedTransaction, FetchedPartition, FetchResponse

# Partitions of one reply that can have records: each slice keeps a file open until it is sent, beyond those that the
# broker keeps open for itself. The others have their turn in the next fetch.
MAX_SLICES = 128
MAX_REPLY_BYTES = (
    1 << 30
)  # with the batch that is always whole and what surrounds it, less than a frame's length can say


MAX_CHECKED_BYTES = 1 << 20  # of a slice, before its reply begins; the sender asks for the rest in its turn
MAX_LOOKS = 8  # while the way to slices is read from the disk: segment, index, headers, and the same over a gap
NO_FAILURES: Mapping[Partition, Exception] = {}
NO_RECORDS: Sized = b""
NONE_ABORTED: tuple[AbortedTransaction, ...] = ()
# Kafka answers these before it reads a log, with an empty list of aborted transactions; beside other errors it is null.
BEFORE_READING = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
    }
)
UNREADABLE = (OSError, StorageError, CorruptBatchError)  # what is the disk's doing, not the request's


class Look:
    """One look at partitions: what of each can be sent now, within the size limits."""

    __slots__ = (
        "_failures",
        "_is_committed",
        "_knows_zstd",
        "_left",
        "_most",
        "_partitions",
        "_replica_id",
        "_slices",
        "cold_lookups",
        "cold_slices",
        "failed",
        "lags",
        "size",
        "unknown",
    )

    def __init__(
        self, request: FetchRequest, partitions: Partitions, failures: Mapping[Partition, Exception] = NO_FAILURES
    ) -> None:
        """`failures`: partitions that could just not be read."""
        self._partitions = partitions
        self._left = self._most = min(request.max_bytes, partitions.settings.fetch_max_bytes, MAX_REPLY_BYTES)
        self._is_committed = request.isolation is Isolation.READ_COMMITTED
        self._replica_id, self._knows_zstd = -1, True
        if isinstance(request, KafkaFetchRequest):
            self._replica_id, self._knows_zstd = request.replica_id, request.knows_zstd
        self._slices = 0  # partitions with records
        self.size = 0
        self.unknown = 0  # partitions that are not there
        self.failed = False  # one that is there cannot be read as asked
        self.cold_lookups: list[tuple[Partition, ColdReadError]] = []  # the way to a slice is not in memory
        self.cold_slices: list[tuple[Partition, FileSlice]] = []  # the slice itself is not, or not its beginning
        self._failures = failures
        self.lags = False  # some of it comes from a sealed segment

    def missing_bytes(self, min_bytes: int) -> int:
        """What is to come until there is enough to answer with: what no reply can hold is not waited for."""
        return min(min_bytes, max(self._most, 1)) - self.size

    def at(self, asked: FetchPartition, partition: Partition | None) -> FetchedPartition:
        """The answer for one partition, the next in turn."""
        try:
            if partition is None:
                raise self._gone(asked)
            if type(asked) is KafkaFetchPartition:
                self._check(asked, partition)
                if asked.last_fetched_epoch >= 0 and (answer := diverged(partition, asked)) is not None:
                    self.failed = True
                    return answer
            found = self._take(asked, partition)
        except EXPECTED as error:
            return self._refused(asked, partition, error)
        log, records, aborted = partition.log, NO_RECORDS, None
        if self._is_committed:
            aborted = NONE_ABORTED if found is None or not found.aborted else _told(found.aborted)
        if found is not None and found.slice is not None:
            records = found.slice
        return FetchedPartition(
            topic=asked.topic,
            partition=asked.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=aborted,
            records=records,
        )

    def _gone(self, asked: FetchPartition) -> Exception:
        """The error for a partition that is not served; one that is offline is told at once."""
        error = self._partitions.missing(asked.topic, asked.partition)
        if isinstance(error, UnknownTopicError):
            self.unknown += 1
        else:
            self.failed = True
        return error

    def _check(self, asked: KafkaFetchPartition, partition: Partition) -> None:
        """What only Kafka's clients can get wrong."""
        if asked.topic_id != NO_TOPIC_ID and self._partitions.topic_name(asked.topic_id) != asked.topic:
            raise RequestError(ErrorCode.INCONSISTENT_TOPIC_ID, f"topic {asked.topic!r} has another id by now")
        if asked.current_leader_epoch >= 0:
            check_leader_epoch(partition, asked.current_leader_epoch)
        if self._replica_id >= 0:
            knows_epoch = asked.current_leader_epoch >= 0
            code = ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
            name = f"{partition.topic}-{partition.index}"
            raise RequestError(code, f"broker {self._replica_id} is no replica of {name}")
        if not self._knows_zstd and partition.log.config.compression_type == "zstd":
            message = f"{asked.topic} has compression.type=zstd, for clients from Fetch version 10 on"
            raise RequestError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)

    def _take(self, asked: FetchPartition, partition: Partition) -> LogRead | None:
        """Read the records of one partition and count them; None if there are none to send."""
        if asked.max_bytes < 0 or self._most < 0:
            message = f"max_bytes of {asked.topic}-{asked.partition} is negative: {min(asked.max_bytes, self._most)}"
            raise RequestError(ErrorCode.INVALID_FETCH_SIZE, message)
        if asked.offset == (partition.log.last_stable_offset if self._is_committed else partition.log.high_watermark):
            return None  # nearly always: there is nothing yet
        if self._failures and partition in self._failures:
            raise self._failures[partition]
        try:
            found = partition.read(
                asked.offset,
                min(asked.max_bytes, self._left),
                min_one_message=self.size == 0,
                committed=self._is_committed,
            )
        except ColdReadError as cold:
            self.cold_lookups.append((partition, cold))
            return None
        except UNREADABLE as error:
            partition.cannot_read(error)
            raise
        if found is None or found.slice is None or found.first_batch_incomplete:
            return None
        if not partition.is_in_memory(found.slice, min(len(found.slice), MAX_CHECKED_BYTES)):
            self.cold_slices.append((partition, found.slice))
        size = len(found.slice)
        self.size += size
        self.lags = self.lags or found.segment_base_offset < partition.log.active_base_offset
        self._left = max(0, self._left - size)
        self._slices += 1
        if self._slices == MAX_SLICES:
            self._most, self._left = self.size, 0
        return found

    def _refused(self, asked: FetchPartition, partition: Partition | None, error: Exception) -> FetchedPartition:
        code, message = describe(error)
        self.failed = self.failed or partition is not None
        told = None if type(asked) is KafkaFetchPartition else partition  # Kafka tells no offsets with an error
        return FetchedPartition(
            topic=asked.topic,
            partition=asked.partition,
            error=code,
            message=message,
            log_start_offset=-1 if told is None else told.log.log_start_offset,
            high_watermark=-1 if told is None else told.log.high_watermark,
            aborted_transactions=NONE_ABORTED if code in BEFORE_READING else None,
        )


def _told(aborted: Iterable[log_index.AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
    return tuple([AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in aborted])


class Fetch:
    """A fetch of the partitions of a session, begun by `Fetches`.

    `tells_all`: each partition is answered, in the order of the session's latest full fetch; else only news are.

    After each look it is answered if it `is_enough`; goes on in a task if it `needs_task`; else it has to `wait`.
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
    ) -> None:
        self.session = session
        self.connection = connection  # whose session it is
        self.wants_session = wants_session  # the client asks to have the session kept for it
        self.steps: Iterator[None] | None = None  # what is left of the look of a large fetch
        self._request = request
        self._epoch = session.epoch
        self._partitions = partitions
        self._tells_all = tells_all
        self._news: list[SessionPartition] = []
        self._found: list[FetchedPartition] = []  # the answer, put together by `gather`
        self._asked: list[Any] | None = None  # for what; None: as the request says
        self._failures: dict[Partition, Exception] = {}
        self._missed: dict[Partition, object] = {}  # whose file was not there, with the layout of its log then
        self._look = Look(request, partitions)
        self._waiter: FetchWaiter | None = None
        self._is_committed = request.isolation is Isolation.READ_COMMITTED
        self._is_over = False  # it has waited for as long as it may

    @property
    def max_wait_ms(self) -> int:
        """How long it may wait in all."""
        return self._request.max_wait_ms

    @property
    def needs_task(self) -> bool:
        """Whether it goes on in a task: a large fetch looks in pieces, and a cold one reads from the disk."""
        return self.steps is not None or self.is_cold

    @property
    def is_cold(self) -> bool:
        """Whether something has to be read from the disk first."""
        return bool(self._look.cold_lookups or self._look.cold_slices)

    @property
    def is_enough(self) -> bool:
        """Whether to answer at once.

        Enough data, data of a sealed segment, an error that the client should see, nothing there that could be waited
        for, no wish to wait, its time is over, or a session that has gone on without this fetch.
        """
        request, look = self._request, self._look
        return (
            look.missing_bytes(request.min_bytes) <= 0
            or look.failed
            or look.lags
            or request.max_wait_ms == 0
            or self._is_over
            or look.unknown == len(self.session)
            or self.session.epoch != self._epoch
        )

    def wait(self, ready: Callable[[], None]) -> None:
        """Have `ready` called, once, when it is worth to look again. It must only take note (see `FetchWaiter`)."""
        self._waiter = self.session.waiter = FetchWaiter(self._look.missing_bytes(self._request.min_bytes), ready)
        if self._look.size:
            self._release_files()

    def expire(self) -> bool:
        """Let whatever there is be enough from now on; returns whether that takes another look."""
        self._is_over = True
        return bool(self.session.pending or self._look.size)

    def withdraw(self) -> None:
        """Stop waiting, if it does."""
        if self._waiter is not None and self.session.waiter is self._waiter:
            self.session.waiter = None
        self._waiter = None

    async def take_steps(self, context: Context) -> None:
        """Finish a large look, letting others run in between. Raises FetchSessionError."""
        steps, self.steps = self.steps, None
        for _ in steps or ():
            await context.checkpoint()

    async def warm_up(self, reads: ReadAhead, context: Context) -> None:
        """Have what is to be answered read from the disk, so far that an error can still be told.

        What is not there after so many looks is left out of the answer.
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
        """Read something of a partition's; what goes wrong is told for that partition."""
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
        """Whether a file that is not there should be: for the second time in a log in which nothing has changed.

        Else its segment, or the whole of the log, was removed meanwhile: the next look goes to another one.
        """
        layout = partition.log.layout
        is_lost = self._missed.get(partition) is layout
        self._missed[partition] = layout
        return is_lost and self._partitions.get(partition.topic, partition.index) is partition

    def _fail(self, partition: Partition, error: Exception) -> None:
        self._failures[partition] = error
        partition.cannot_read(error)

    def begin(self, sessions: FetchSessions) -> Iterator[None]:
        """Take the request into the session, then look for the first time."""
        request, session = self._request, self.session
        if self._tells_all:
            session.uses_topic_ids = isinstance(request, KafkaFetchRequest) and request.uses_topic_ids
            session.is_committed = self._is_committed
            merges = isinstance(request, KafkaFetchRequest)
            yield from session.follow(request.partitions, kind=_kind(request), merges=merges)
        else:
            assert isinstance(request, KafkaFetchRequest)
            if session.is_committed is not self._is_committed:
                yield from session.change_isolation()
            yield from sessions.update(session, request.partitions, request.forgotten)
        yield from self.look()

    def look(self) -> Iterator[None]:
        """Look at the partitions that may have something new; yields after every STEP of them."""
        session, partitions = self.session, self._partitions
        look = self._look = Look(self._request, partitions, self._failures)
        pending = session.pending
        order = list(pending)
        if order and self._tells_all:
            order = session.order
        self._news = news = []
        number = 0
        for start in range(0, len(order), LONG_STEP):
            if start:
                yield
            for entry in [entry for entry in order[start : start + LONG_STEP] if entry in pending]:
                found = look.at(entry.asked, session.find(entry, partitions.get, partitions.topic_name))
                if entry.take(found):
                    news.append(entry)
                elif self._is_at_end(entry, found):
                    pending.pop(entry, None)
                number += 1
                if number % STEP == 0:
                    yield

    def _is_at_end(self, entry: SessionPartition, found: FetchedPartition) -> bool:
        """Whether there is nothing to read until the partition reports a change."""
        if self._is_committed:
            return entry.asked.offset >= found.last_stable_offset
        return entry.asked.offset == found.high_watermark

    async def _look_again(self, context: Context) -> None:
        for _ in self.look():
            await context.checkpoint()

    def _release_files(self) -> None:
        """Let no file stay open for the answer while there is too little of it."""
        for entry in self._news:
            entry.found = None

    def gather(self) -> Iterator[None]:
        """Put the answer together by the latest look, for `response`; yields between every LONG_STEP partitions."""
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
        """The answer, after `gather`. `settle` must follow."""
        session = self.session
        if session.epoch != self._epoch:
            error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return KafkaFetchResponse(partitions=(), error=error, session_id=session.id, asked=())
        found, self._found = tuple(self._found), []
        count = len(session.order if self._tells_all else self._news)
        assert len(found) == count, "an entry without an answer is pending, and pending ones were looked at"
        if not isinstance(self._request, KafkaFetchRequest):
            return FetchResponse(partitions=found)
        asked = None if self._asked is None else tuple(self._asked)
        return KafkaFetchResponse(partitions=found, session_id=session.id, asked=asked)

    def settle(self) -> Iterator[None]:
        """Take it that the client knows the answer; yields after every STEP partitions."""
        pending, keeps = self.session.pending, self._tells_all
        for number, entry in enumerate(self._news, 1):
            found = entry.found
            if found is not None and entry in pending:
                entry.told(found)
                if len(found.records):
                    entry.found = None
                    if not keeps:
                        pending.move_to_end(entry)
                elif self._is_at_end(entry, found) and entry.is_known:
                    del pending[entry]
            if not keeps:
                entry.found = None
            if number % STEP == 0:
                yield


class Fetches:
    """Begins fetches, each in the session that it belongs to, and answers them."""

    def __init__(self, partitions: Partitions, sessions: FetchSessions, reads: ReadAhead) -> None:
        self._partitions = partitions
        self.sessions = sessions
        self._own = ConnectionSessions(sessions.closed)
        self._reads = reads

    def begin(self, request: FetchRequest, context: Context) -> Fetch | FetchResponse:
        """Serve from the data available now, or return a pending `Fetch`.

        A pending one is to go on by `look_again`, `expire` or `work` until one of them returns the response, or to be
        `abandon`ed.
        """
        try:
            fetch = self._open(request, context.session)
        except FetchSessionError as error:
            return _refused(error)
        return self._take_step(fetch, self._begin(fetch))

    def look_again(self, fetch: Fetch) -> Fetch | FetchResponse:
        """Go on with a fetch that was woken; returns as `begin` does."""
        fetch.withdraw()
        return self._take_step(fetch, fetch.look())

    def expire(self, fetch: Fetch) -> Fetch | FetchResponse:
        """Go on with a fetch whose time is over; it may need a task, but does not wait again."""
        fetch.withdraw()
        return self._take_step(fetch, fetch.look() if fetch.expire() else iter(()))

    async def work(self, fetch: Fetch, context: Context) -> Fetch | FetchResponse:
        """Do what a fetch needs a task for; returns the fetch if it has to wait then."""
        is_pending = is_answered = False
        try:
            await fetch.take_steps(context)
            await fetch.warm_up(self._reads, context)
            is_pending = not (fetch.is_enough or fetch.is_cold)
            if is_pending:
                return fetch
            for _ in fetch.gather():
                await context.checkpoint()
            response = self._register_and_answer(fetch)
            for _ in fetch.settle():
                await context.checkpoint()
            is_answered = True
        except FetchSessionError as error:
            return _refused(error)
        finally:
            if not is_pending:
                self._close(fetch, keep=is_answered)
        return response

    def abandon(self, fetch: Fetch) -> None:
        """Give up a pending fetch: it will not be answered."""
        fetch.withdraw()
        self._close(fetch, keep=False)

    def _take_step(self, fetch: Fetch, steps: Iterator[None]) -> Fetch | FetchResponse:
        """Look, unless there is so much to look at that it takes a task; returns as `begin` does."""
        is_pending = is_answered = False
        try:
            if next(steps, fetch) is None:
                fetch.steps = steps
            is_pending = fetch.needs_task or not fetch.is_enough
            if is_pending:
                return fetch
            for _ in fetch.gather():
                pass
            response = self._register_and_answer(fetch)
            for _ in fetch.settle():
                pass
            is_answered = True
        except FetchSessionError as error:
            return _refused(error)
        finally:
            if not is_pending:
                self._close(fetch, keep=is_answered)
        return response

    def forget(self, connection: Hashable) -> None:
        """Release what is kept for a connection that has gone."""
        self._own.forget(connection)

    def _open(self, request: FetchRequest, connection: Hashable) -> Fetch:
        """Find or make the session. Raises FetchSessionError."""
        sessions = self.sessions
        if isinstance(request, KafkaFetchRequest) and request.replica_id < 0:
            epoch = request.session_epoch
            if epoch not in {INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH}:
                session = sessions.find(request.session_id, epoch, uses_topic_ids=request.uses_topic_ids)
                session.advance()
                return Fetch(request, session, self._partitions, tells_all=False)
            sessions.remove(request.session_id)
            if epoch == INITIAL_SESSION_EPOCH:
                session = FetchSession(uses_topic_ids=request.uses_topic_ids)
                return Fetch(request, session, self._partitions, tells_all=True, wants_session=True)
        return Fetch(request, self._own.take(connection), self._partitions, tells_all=True, connection=connection)

    def _begin(self, fetch: Fetch) -> Iterator[None]:
        for _ in fetch.begin(self.sessions):
            self.sessions.closed.detach()
            yield

    def _register_and_answer(self, fetch: Fetch) -> FetchResponse:
        """Return the response; the session of a first fetch is kept, if there is room."""
        if fetch.wants_session:
            self.sessions.register(fetch.session)
        return fetch.response()

    def _close(self, fetch: Fetch, *, keep: bool = True) -> None:
        """Give the session back, unless it is kept for its client."""
        session = fetch.session
        if session.id == NO_SESSION:
            if keep and fetch.connection is not None:
                self._own.put(fetch.connection, session)
            else:
                self.sessions.closed.add(session)


def _kind(request: FetchRequest) -> Hashable:
    """What the answer for a partition depends on, apart from how the partition is asked for."""
    if isinstance(request, KafkaFetchRequest):
        return request.isolation, request.replica_id, request.knows_zstd, request.uses_topic_ids
    return request.isolation


def _refused(error: FetchSessionError) -> KafkaFetchResponse:
    return KafkaFetchResponse(partitions=(), error=error.code, asked=())
