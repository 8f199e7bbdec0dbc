"""Append the records of a coordinator, and report when they are stored.

Invariants:
1. Records of one name are written in the order in which they were appended.
2. Records are reported as stored when the high watermark covers them, and as failed when they will certainly never be
   stored, or when the term ends. So a coordinator's state after these reports is the state that the next load finds.
   Only with `limit_ms` may an append be reported as failed and be stored later.
3. Nothing is reported in the middle of a commit of the log, since a coordinator may append again.

Source: org.apache.kafka.coordinator.common.runtime.CoordinatorRuntime, CoordinatorOperationExceptionHelper (error
codes).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import trio

from warmlog.broker.coordinator.term import Term
from warmlog.broker.log.errors import InvalidProducerEpochError, InvalidTransactionStateError, LogError, LogFailedError
from warmlog.broker.log.producers.transactions import Origin
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partition import Append
from warmlog.protocol.errors import BatchTooLargeError, ErrorCode, ProtocolError
from warmlog.protocol.records.builder import build_batch, record_size_bound
from warmlog.protocol.records.layout import HEADER_SIZE, TRANSACTIONAL_BIT

logger = logging.getLogger(__name__)

UNLIMITED_MS = 1 << 31  # in ms; longer than any term
REPORTED_PER_STEP = 50  # appends, between two checkpoints

Rows: TypeAlias = Sequence[tuple[bytes, bytes | None]]  # keys and values; no value: a tombstone
#: Called with NONE, or an error, and the offsets of the rows that are stored: all, or (rarely) the first ones.
Settled: TypeAlias = Callable[[ErrorCode, Sequence[int]], None]

_NOT_ENOUGH_REPLICAS = frozenset(
    {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT}
)


class LogProducer(NamedTuple):
    """The producer of the transaction that appended records belong to, and a guard that allows it to begin one."""

    id: int
    epoch: int
    guard: int


class CoordinatorAppend:
    """Records on their way into the log, in one batch or several."""

    __slots__ = ("_settled", "batches", "refusal", "term")

    def __init__(self, term: Term, settled: Settled) -> None:
        self.term = term
        self.batches: list[tuple[Append, int]] = []  # appends, each with its number of records
        self.refusal = ErrorCode.NONE  # the reason why the others were not appended
        self._settled: Settled | None = settled

    @property
    def done(self) -> bool:
        """Whether the outcome of every batch is known."""
        return all(append.done for append, _ in self.batches)

    def report(self) -> None:
        """Report the outcome, once."""
        offsets: list[int] = []
        error = self.refusal
        for append, count in self.batches:
            if append.error is not None:
                error = _code_of(append.error)
                break
            offsets += range(append.planned.base_offset, append.planned.base_offset + count)
        self._settle(error, offsets)

    def fail(self) -> None:
        """Report that the term has ended. The next load shows whether the records were stored."""
        self._settle(ErrorCode.NOT_COORDINATOR, ())

    def _settle(self, error: ErrorCode, offsets: Sequence[int]) -> None:
        settled, self._settled = self._settled, None
        self.term.unsettled.pop(self, None)
        if settled is not None:
            settled(error, offsets)


class CoordinatorAppends:
    """Appends to the partitions of one coordinator's topic. Belongs to the event loop."""

    def __init__(self, writer: Writer, clock: Callable[[], int], keeps: str) -> None:
        """`clock` returns ms since the epoch. `keeps`: the kind of thing that a name identifies, for log messages."""
        self._writer = writer
        self._clock = clock
        self._keeps = keeps
        self._done: list[CoordinatorAppend] = []  # to be reported
        self._is_reporting = False

    def append(
        self,
        term: Term,
        name: str,
        rows: Rows,
        settled: Settled,
        *,
        producer: LogProducer | None = None,
        limit_ms: int = UNLIMITED_MS,
    ) -> None:
        """Append records of a name with acks=all; `settled` is called with the outcome, possibly before return.

        With a producer they are part of its transaction: they take effect when its commit marker is in the partition.
        `limit_ms`: time for replicas after which the append is reported as failed.
        """
        if term.is_over:
            settled(ErrorCode.NOT_COORDINATOR, ())
            return
        pending = CoordinatorAppend(term, settled)
        max_bytes = term.partition.log.config.max_message_bytes - HEADER_SIZE
        for batch in _batches(rows, max_bytes):
            try:
                pending.batches.append((self._append(term, batch, producer, limit_ms), len(batch)))
            except (ProtocolError, LogError) as error:
                if not isinstance(error, LogFailedError):  # reported once for all its appends
                    topic = term.partition.topic
                    logger.warning("%s %.200r: cannot append its records to %s: %s", self._keeps, name, topic, error)
                pending.refusal = _code_of(error)
                break
        self._writer.write_queued()
        waiting = [append for append, _ in pending.batches if not append.done]
        if not waiting and not self._done:
            pending.report()
            return
        term.unsettled[pending] = None
        if not waiting:
            self._note(pending)
        for append in waiting:
            append.notify(partial(self._note, pending))

    def _append(self, term: Term, rows: Rows, producer: LogProducer | None, limit_ms: int) -> Append:
        now_ms = self._clock()
        _check_size(rows, term.partition.log.config.max_message_bytes)
        records = [(now_ms, key, value, ()) for key, value in rows]
        if producer is None:
            return term.partition.append(build_batch(records), Origin.COORDINATOR, 0, limit_ms)
        batch = build_batch(
            records, producer_id=producer.id, producer_epoch=producer.epoch, attributes=TRANSACTIONAL_BIT
        )
        return term.partition.append(batch, Origin.COORDINATOR, producer.guard, limit_ms)

    def _note(self, pending: CoordinatorAppend) -> None:
        """Record a batch whose outcome is known. Called in the middle of a commit."""
        if not pending.done:
            return
        self._done.append(pending)
        if not self._is_reporting:
            self._is_reporting = True
            self._writer.spawn(self._report)

    async def _report(self) -> None:
        """Report known outcomes, in the order in which they became known."""
        while self._done:
            done = self._done[:REPORTED_PER_STEP]
            for pending in done:
                pending.report()  # the callback may append, and refused appends add entries
            del self._done[: len(done)]
            await trio.lowlevel.checkpoint()
        self._is_reporting = False


def _batches(rows: Rows, max_bytes: int) -> Iterator[Rows]:
    """Split rows into batches of limited size; a row that exceeds it is a batch of its own."""
    overhead = record_size_bound(None, None)
    sizes = [len(key) + len(value or b"") for key, value in rows]
    if sum(sizes) + overhead * len(rows) <= max_bytes:
        yield rows
        return
    start = size = 0
    for index, row_size in enumerate(sizes):
        if size + row_size + overhead > max_bytes and index > start:
            yield rows[start:index]
            start, size = index, 0
        size += row_size + overhead
    yield rows[start:]


def _check_size(rows: Rows, max_bytes: int) -> None:
    """Raise BatchTooLargeError if no batch can hold a record, before one is built: members may send megabytes."""
    if len(rows) == 1:  # `_batches` keeps those of several records below the limit
        ((key, value),) = rows
        size = len(key) + len(value or b"")
        if size > max_bytes:
            raise BatchTooLargeError(f"records of {size} bytes, more than a batch of {max_bytes} bytes can hold")


def _code_of(error: Exception) -> ErrorCode:
    """Map an append's failure to an error code (Kafka: appendGroupMetadataErrorToResponseError)."""
    if isinstance(error, BatchTooLargeError):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if isinstance(error, InvalidProducerEpochError):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if isinstance(error, InvalidTransactionStateError):
        return ErrorCode.INVALID_TXN_STATE
    if isinstance(error, ProtocolError) and error.code in _NOT_ENOUGH_REPLICAS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NOT_COORDINATOR
