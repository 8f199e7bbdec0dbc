"""How many records there are, by batch headers alone.

Owns: what one task counts, counting it, and adding up. Must not know: Spark.

A batch at an edge of what is asked for is opened; all others are counted by their headers, whose CRCs are not checked
(`audit` does that).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from protocol.errors import ProtocolError
from protocol.records.batch import BatchHeader
from protocol.records.columns import Wanted
from protocol.records.layout import CONTROL_BIT, LOG_OVERHEAD
from protocol.records.reader import decode_batch
from warmlog.pipeline.log_file import LogFile
from warmlog.pipeline.measured import Measured, Stopwatch, added
from warmlog.pipeline.planning import Piece, Split
from warmlog.pipeline.reading import ReadRules, SplitReader

COUNT_WINDOW_BYTES = 4 << 10  # a header and what is around it: bodies need not be copied
# A worker counts so much in 20 to 30 ms where batches have 64 KiB; to start a task takes Spark about half of that.
TASK_BYTES = 256 << 20


@dataclass(slots=True, kw_only=True)
class Counted:
    """What a partition, or a part of it, holds. `first_offset` and `end_offset` (excluded): of its batches."""

    topic: str
    partition: int
    batches: int = 0
    records: int = 0
    bytes: int = 0
    first_offset: int | None = None
    end_offset: int | None = None

    def take(self, file: LogFile, position: int, header: BatchHeader, wanted: Wanted) -> None:
        """Count a batch that is handed over: most likely one at an edge."""
        inside = header.base_offset >= wanted.first_offset and header.last_offset <= wanted.last_offset
        self.records += header.record_count if inside else _records_inside(file, position, header, wanted)
        self.batches += 1
        self.bytes += header.size
        self._stretch(max(header.base_offset, wanted.first_offset), min(header.last_offset, wanted.last_offset) + 1)

    def add(self, other: "Counted") -> None:
        """Add what another part of the same partition holds."""
        self.batches += other.batches
        self.records += other.records
        self.bytes += other.bytes
        if other.first_offset is not None and other.end_offset is not None:
            self._stretch(other.first_offset, other.end_offset)

    def _stretch(self, first: int, end: int) -> None:
        self.first_offset = first if self.first_offset is None else min(self.first_offset, first)
        self.end_offset = end if self.end_offset is None else max(self.end_offset, end)


def _records_inside(file: LogFile, position: int, header: BatchHeader, wanted: Wanted) -> int:
    buffer, start = file.batch(position, header)
    records = decode_batch(buffer, start, header)
    return sum(wanted.first_offset <= record.offset <= wanted.last_offset for record in records)


class HeaderCounter(SplitReader):
    """Counts one split. Whole batches are counted as their headers pass; what is left to `SplitReader` is all else.

    A header costs 2 µs this way, and 7 where each is handed over.
    """

    def __init__(self, split: Split, rules: ReadRules, counted: Counted) -> None:
        super().__init__(split, rules, counted.take, window_bytes=COUNT_WINDOW_BYTES)
        self._counted = counted

    def _read_file(self, file: LogFile, piece: Piece) -> Iterator[None]:
        position = piece.position if self._split.aborted else self._count_whole(file, piece)
        yield from super()._read_file(file, replace(piece, position=position))

    def _count_whole(self, file: LogFile, piece: Piece) -> int:
        """Count batches as long as they lie within the piece; where the first one begins that does not."""
        position, records, batches, skipped = piece.position, 0, 0, 0
        first, end = piece.first_offset, piece.end_offset
        begin: int | None = None
        with suppress(ProtocolError):  # damage is for the reader to tell of
            for at, header in file.headers(position, piece.end_position):
                following = header.base_offset + header.last_offset_delta + 1
                if header.base_offset < first or following > end:
                    break
                if header.attributes & CONTROL_BIT:
                    skipped += 1
                else:
                    records += header.record_count
                    batches += 1
                    begin = header.base_offset if begin is None else begin
                first, position = following, at + header.batch_length + LOG_OVERHEAD
        if batches:
            part = Counted(topic=self._split.topic, partition=self._split.partition, batches=batches, records=records)
            part.bytes, part.first_offset, part.end_offset = position - piece.position, begin, first
            self._counted.add(part)
        self.tally.batches += batches
        self.tally.bytes += position - piece.position
        self.tally.skipped_batches += skipped
        return position


def grouped(splits: Iterable[Split]) -> Iterator[tuple[Split, ...]]:
    """What one task counts: splits of about `TASK_BYTES` together, at least one."""
    group: list[Split] = []
    size = 0
    for split in splits:
        if group and size + split.size > TASK_BYTES:
            yield tuple(group)
            group, size = [], 0
        group.append(split)
        size += split.size
    if group:
        yield tuple(group)


def count_splits(rules: ReadRules, splits: Sequence[Split]) -> tuple[list[Counted], Measured]:
    """What each of these splits holds, one after the other. In a worker. Raises PipelineError."""
    parts = [_count_split(rules, split) for split in splits]
    measured = added(one for _, one in parts)
    measured.tasks = 1
    return [counted for counted, _ in parts], measured


def _count_split(rules: ReadRules, split: Split) -> tuple[Counted, Measured]:
    counted = Counted(topic=split.topic, partition=split.partition)
    reading = Stopwatch()
    reader = HeaderCounter(split, rules, counted)
    reading.timed(lambda: deque(reader.run(), maxlen=0))()
    measured = Measured(rows=counted.records, read_s=reading.seconds)
    measured.take(reader.tally)
    return counted, measured


def counter(rules: ReadRules) -> partial[tuple[list[Counted], Measured]]:
    """`count_splits` with its rules, to be sent to workers."""
    return partial(count_splits, rules)


def by_partition(parts: Iterable[Counted]) -> list[Counted]:
    """The parts added up, by topic and partition."""
    found: dict[tuple[str, int], Counted] = {}
    for part in parts:
        found.setdefault((part.topic, part.partition), Counted(topic=part.topic, partition=part.partition)).add(part)
    return [found[key] for key in sorted(found)]
