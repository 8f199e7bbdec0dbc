"""How many records there are, by batch headers alone.

Owns: counting a split, and adding up. Must not know: Spark.

A batch at an edge of what is asked for is opened; all others are counted by their headers, whose CRCs are not checked
(`audit` does that).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from protocol.records.batch import BatchHeader
from protocol.records.columns import Wanted
from protocol.records.reader import decode_batch
from warmlog.pipeline.log_file import LogFile
from warmlog.pipeline.measured import Measured, Stopwatch
from warmlog.pipeline.planning import Split
from warmlog.pipeline.reading import ReadRules, SplitReader
from warmlog.pipeline.segments import SCAN_WINDOW_BYTES


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
        """Count a batch."""
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


def count_split(rules: ReadRules, split: Split) -> tuple[Counted, Measured]:
    """What a split holds. In a worker. Raises PipelineError."""
    counted = Counted(topic=split.topic, partition=split.partition)
    reading = Stopwatch()
    reader = SplitReader(split, rules, counted.take, window_bytes=SCAN_WINDOW_BYTES)
    reading.timed(lambda: deque(reader.run(), maxlen=0))()
    measured = Measured(rows=counted.records, tasks=1, read_s=reading.seconds)
    measured.take(reader.tally)
    return counted, measured


def counter(rules: ReadRules) -> partial[tuple[Counted, Measured]]:
    """`count_split` with its rules, to be sent to workers."""
    return partial(count_split, rules)


def by_partition(parts: Iterable[Counted]) -> list[Counted]:
    """The parts added up, by topic and partition."""
    found: dict[tuple[str, int], Counted] = {}
    for part in parts:
        found.setdefault((part.topic, part.partition), Counted(topic=part.topic, partition=part.partition)).add(part)
    return [found[key] for key in sorted(found)]
