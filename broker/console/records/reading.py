"""Read records for the console: newest or oldest first, filtered, within budgets, and without a group.

Reads go through the residency gate: a thread reads cold pages, in turn with consumers, and drops them after the answer,
so that browsing an old topic leaves the page cache as it was.

    newest first    offsets [end - span, end), then the `span` before, each span read forwards
    oldest first    offsets from the given one on
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from mmap import PAGESIZE
from time import perf_counter
from typing import Final, TypeVar

from warmlog.broker.console.records.forms import (
    Keeps,
    ShownRecord,
    Wanted,
    bytes_form,
    decode_slice,
    fitting,
    record_form,
)
from warmlog.broker.console.records.values import BytesForm, ReadCost, RecordForm, RecordList
from warmlog.broker.console.visit import ConsoleError, Download, Visit, expected, kafka_error, whole_number
from warmlog.broker.log.descriptions import LogRead
from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.log.io.page_cache import pages_of
from warmlog.broker.log.io.residency import ColdReadError
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.security.acls import Operation
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.batch import read_header
from warmlog.protocol.records.record import Record
from warmlog.protocol.request import ListOffsetsRequest, OffsetQuery

MAX_RECORDS: Final = 200
DEFAULT_RECORDS: Final = 50
SLICE_BYTES: Final = 1 << 20
SMALL_SLICE_BYTES: Final = 64 << 10  # bytes of the first read without a filter
MAX_BATCH_BYTES: Final = 16 << 20
DEFAULT_BUDGET: Final = 4 << 20
DECOMPRESSED_SHARE: Final = 16  # share of the bytes of keys and values that counts against a budget
MAX_BUDGET: Final = 16 << 20
SPAN_BYTES: Final = 4 << 20  # bytes of a span of offsets that is read backwards
MAX_ATTEMPTS: Final = 8  # attempts to read an index whose pages are evicted again
MAX_SPAN: Final = 1 << 20  # offsets
PIECE_BYTES: Final = 256 << 10  # bytes of a large value per request

F = TypeVar("F")


class _Spent:
    """The cost of a read so far."""

    def __init__(self) -> None:
        self.bytes = self.pages = self.cold_pages = self.cold_lookups = 0
        self.began_at = perf_counter()

    def form(self) -> ReadCost:
        milliseconds = round(1000 * (perf_counter() - self.began_at), 3)
        return ReadCost(
            bytes=self.bytes, pages=self.pages, cold_pages=self.cold_pages, cold_lookups=self.cold_lookups,
            milliseconds=milliseconds,
        )  # fmt: skip


class Reading:
    """Reads one partition for one request."""

    def __init__(self, visit: Visit, partition: Partition, budget: int) -> None:
        self.spent = _Spent()
        self.skipped: list[str] = []
        self._visit = visit
        self._partition = partition
        self._budget = budget
        self._decoded = 0  # bytes of keys and values

    @property
    def used(self) -> int:
        """The used part of a budget of bytes: the bytes read or, for well compressed data, those of keys and values."""
        return max(self.spent.bytes, self._decoded // DECOMPRESSED_SHARE)

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up."""
        return self.used >= self._budget

    async def piece(self, wanted: Wanted[F]) -> tuple[Sequence[F], int]:
        """Read one slice; return its wanted records, and the offset at which to continue. Raises ConsoleError."""
        is_search = wanted.keeps is not None
        max_bytes = SLICE_BYTES if is_search else min(SLICE_BYTES, max(SMALL_SLICE_BYTES, self.spent.bytes))
        async with self._visit.slot(self._visit.tools.turns):
            return await self._piece(wanted, max_bytes)

    async def _piece(self, wanted: Wanted[F], max_bytes: int) -> tuple[Sequence[F], int]:
        location = await self._find(wanted.first, max_bytes)
        if location.slice is None:
            return (), wanted.end
        if len(location.slice) > MAX_BATCH_BYTES:
            return (), await self._skip_large(location.slice, wanted)
        data = await self._bring(location.slice)
        decoded = await self._visit.compute(partial(decode_slice, data, wanted))
        self.skipped += decoded.skipped
        self._decoded += decoded.size
        return decoded.records, wanted.end if decoded.next_offset is None else min(wanted.end, decoded.next_offset)

    async def _find(self, offset: int, max_bytes: int) -> LogRead:
        """Find the slice at an offset. A thread first reads cold pages of an index."""
        for _ in range(MAX_ATTEMPTS):
            try:
                with expected():
                    read = self._partition.read(offset, max_bytes, min_one_batch=True)
            except ColdReadError as cold:
                self.spent.cold_lookups += 1
                with expected():
                    await self._visit.context.wait(self._visit.tools.reads.look_up(self._visit.session, cold))
            else:
                if read is None:
                    raise ConsoleError(503, "INDEX_REBUILDING", "an index is being rebuilt; try again")
                return read
        raise ConsoleError(503, "BUSY", "the pages of the index are evicted as fast as they are read; try again")

    async def _bring(self, piece: FileSlice) -> bytes:
        """Read a slice through the gate."""
        reads = self._visit.tools.reads
        length = len(piece)
        self.spent.bytes += length
        self.spent.pages += pages_of(piece.position, length)
        with expected():
            self.spent.cold_pages += reads.residency.missing_pages(piece.descriptor, piece.position, length, None)
            await self._visit.context.wait(reads.bring(self._visit.session, piece, piece.position, length))
        return await self._visit.in_thread(piece.read_all)

    async def _skip_large(self, piece: FileSlice, wanted: Wanted[F]) -> int:
        """Read only the header of a batch that exceeds the budget of memory."""
        head = FileSlice(piece.descriptor, piece.position, min(len(piece), PAGESIZE))
        header = read_header(await self._bring(head))
        self.skipped.append(
            f"batch {header.base_offset} to {header.last_offset}: its {header.size} bytes exceed {MAX_BATCH_BYTES}"
        )
        return min(wanted.end, max(wanted.first + 1, header.next_offset))


# -- lists -------------------------------------------------------------------------------------------------------------


async def list_records(visit: Visit, name: str, index: str) -> RecordList:
    """Return records, filtered by substrings of key and value, within a budget of bytes to search."""
    partition = visit.local_partition(name, whole_number("partition", index, most=1 << 31), Operation.READ)
    limit = visit.number("limit", DEFAULT_RECORDS, least=1, most=MAX_RECORDS)
    budget = visit.number("budget", DEFAULT_BUDGET, least=1, most=MAX_BUDGET)
    order = visit.choice("order", ("newest", "oldest"))
    keeps = _filter(visit.text("key"), visit.text("text"))
    reading = Reading(visit, partition, budget)
    offsets = partition.log.offsets
    start, end = offsets.log_start_offset, offsets.high_watermark
    at = await _begin(visit, partition, default=end if order == "newest" else start)
    with partition.inside():
        if order == "oldest":
            first = max(start, at)
            records, reached = await _forwards(reading, first, end, keeps, limit)
        else:
            first = min(at, end)
            records, reached = await _backwards(reading, partition, start, first, keeps, limit)
    shown = fitting(records)
    if shown < len(records):
        reached = records[shown].offset if order == "oldest" else records[shown - 1].offset
    is_over = reached >= end if order == "oldest" else reached <= start
    return RecordList(
        topic=name,
        partition=partition.index,
        records=tuple(records[:shown]),
        log_start_offset=start,
        high_watermark=end,
        searched=max(0, reached - first if order == "oldest" else first - reached),
        to_search=max(0, end - start),
        next_from=None if is_over else reached,
        skipped=tuple(reading.skipped),
        cost=reading.spent.form(),
    )


async def _begin(visit: Visit, partition: Partition, *, default: int) -> int:
    """Return the offset at which to begin: the given one, or that of the first record since a time."""
    if visit.text("from"):
        return visit.number("from", default)
    if not visit.text("time"):
        return default
    query = OffsetQuery(topic=partition.topic, partition=partition.index, timestamp=visit.number("time", 0))
    listed = (await visit.ask(ListOffsetsRequest(partitions=(query,)))).partitions[0]
    if listed.error:
        raise kafka_error(listed.error, listed.message)
    return default if listed.offset < 0 else listed.offset


async def _forwards(
    reading: Reading, first: int, end: int, keeps: Keeps | None, limit: int
) -> tuple[list[RecordForm], int]:
    """Return up to `limit` records of [first, end), and the offset after the last one examined."""
    records: list[RecordForm] = []
    while first < end and not reading.is_over and len(records) < limit:
        left = limit - len(records)
        decoded, reached = await reading.piece(Wanted(first, end, keeps, left + 1, record_form))
        records += list(decoded)[:left]
        first = records[-1].offset + 1 if len(decoded) > left else reached
    return records, first


async def _backwards(  # noqa: PLR0917  # what to read, from where to where, and what of it
    reading: Reading, partition: Partition, start: int, end: int, keeps: Keeps | None, limit: int
) -> tuple[list[RecordForm], int]:
    """Return up to `limit` records below `end`, the newest first, and the lowest offset examined.

    Each span is read whole, since its newest records come last. A span that turns out to be too large is cut to a
    quarter; a span of one offset always fits. At least one span is read, even beyond the budget.
    """
    records: list[RecordForm] = []
    newest_end = end
    log = partition.log
    per_slice = max(1, SLICE_BYTES * max(1, log.offsets.log_end_offset - start) // max(1, log.size))
    span = min(MAX_SPAN, per_slice if keeps is not None else min(limit, per_slice))
    while end > start and len(records) < limit and not (reading.is_over and end < newest_end):
        low, left = max(start, end - span), limit - len(records)
        newest, reached = await _newest(reading, Wanted(low, end, keeps, left + 1, record_form, newest=True))
        if reached < end and low < end - 1:
            span = max(1, (end - low) // 4)
            continue
        records += newest[:left]
        end = records[-1].offset if len(newest) > left else low
        span = min(MAX_SPAN, 4 * span)
    return records, end


async def _newest(reading: Reading, wanted: Wanted[RecordForm]) -> tuple[list[RecordForm], int]:
    """Return the newest records of a span, the newest first, and how far the span was read, limited by SPAN_BYTES."""
    records = deque[RecordForm](maxlen=wanted.most)
    first, limit = wanted.first, reading.used + SPAN_BYTES
    while first < wanted.end:
        decoded, first = await reading.piece(wanted._replace(first=first))
        records.extend(decoded)
        if reading.used >= limit:
            break
    return list(reversed(records)), first


def _filter(key: str, text: str) -> Keeps | None:
    """Return a predicate for texts in the key and in the value, both as UTF-8; None without a filter."""
    if not key and not text:
        return None
    wanted_key, wanted_text = key.encode(), text.encode()

    def keeps(record: Record) -> bool:
        if wanted_key and (record.key is None or wanted_key not in record.key):
            return False
        return not wanted_text or (record.value is not None and wanted_text in record.value)

    return keeps


# -- one record --------------------------------------------------------------------------------------------------------


async def show_record(visit: Visit, name: str, index: str, offset: str) -> RecordForm:
    """Return the record at an offset, with the beginning of its value."""
    return record_form(await _record(visit, name, index, offset), preview=visit.number("bytes", 4096, most=PIECE_BYTES))


async def read_value(visit: Visit, name: str, index: str, offset: str) -> BytesForm:
    """Return a piece of a record's value: `bytes` bytes from the byte `start` on."""
    value = (await _record(visit, name, index, offset)).record.value
    start, size = visit.number("start", 0), visit.number("bytes", 64 << 10, least=1, most=PIECE_BYTES)
    form = bytes_form(None if value is None else value[start:], preview=size)
    if form is None or (value is not None and start > len(value)):
        raise ConsoleError(404, "NOT_FOUND", "the record has no value, or a shorter one")
    return form


async def save_value(visit: Visit, name: str, index: str, offset: str) -> Download:
    """Return the whole value of a record as it is stored."""
    value = (await _record(visit, name, index, offset)).record.value
    if value is None:
        raise ConsoleError(404, "NOT_FOUND", "the record has no value")
    return Download(value, f"{name}-{index}-{offset}.bin")


async def _record(visit: Visit, name: str, index: str, offset: str) -> ShownRecord:
    """Return the record at an offset. Raises ConsoleError if there is none."""
    partition = visit.local_partition(name, whole_number("partition", index, most=1 << 31), Operation.READ)
    number = whole_number("offset", offset)
    reading = Reading(visit, partition, 1)
    with partition.inside():
        if not partition.log.offsets.log_start_offset <= number < partition.log.offsets.high_watermark:
            raise kafka_error(ErrorCode.OFFSET_OUT_OF_RANGE, f"no offset {number} in the log")
        records, _ = await reading.piece(Wanted(number, number + 1, None, 1, _whole))
    if not records:
        why = reading.skipped[0] if reading.skipped else f"offset {number} was compacted away, or holds no record"
        raise ConsoleError(404, "NO_RECORD", why)
    return records[0]


def _whole(shown: ShownRecord) -> ShownRecord:
    return shown
