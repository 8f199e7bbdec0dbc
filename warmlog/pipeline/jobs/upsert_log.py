"""Read a partition's log for the audit of a table with one row for each key.

1. Each record's key becomes a change, for the comparison of keys.
2. A row of the table is compared with the record at its offset, all columns of it. Memory is bounded by
   `CHUNK_OFFSETS` offsets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from warmlog.pipeline.job_stats import JobStats
from warmlog.pipeline.jobs.equal_rows import equal_rows
from warmlog.pipeline.jobs.table_proof import without_runs
from warmlog.pipeline.lakehouse.arrangement.spec import Arrangement
from warmlog.pipeline.lakehouse.arrangement.values import misplaced
from warmlog.pipeline.lakehouse.reading import DataFile, Selection, TableReader, UnreadableFileError
from warmlog.pipeline.lakehouse.receipts import Receipt, Runs
from warmlog.pipeline.lakehouse.schemas.decoding import DecodeRules, RowDecoder, SchemaKey
from warmlog.pipeline.lakehouse.upserts.changes import ChangeWriter
from warmlog.pipeline.source.input import read_batches
from warmlog.pipeline.source.plan import AnySplit
from warmlog.pipeline.source.reading import ReadRules
from warmlog.protocol.partitions import TopicPartition

CHUNK_OFFSETS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Offsets of a partition whose records were decoded in the same way. `dead`: offsets of dead letters."""

    key: TopicPartition
    first: int
    end: int
    formats: Mapping[str, Any]
    columns: tuple[str, ...]
    dead: Runs = ()


def segments_of(key: TopicPartition, receipts: Sequence[Receipt], first: int, end: int) -> Iterator[Segment]:
    """Yield the segments of offsets. Those that no receipt covers are decoded as the next receipt says, or the last."""
    named = [(receipt.spans[key].end.offset, receipt) for receipt in receipts if key in receipt.spans]
    waiting: Segment | None = None
    for span_end, receipt in (*named, (end, receipts[-1])):
        until = min(span_end, end)
        dead = receipt.dead_letters.get(key, ())
        if waiting is not None and (waiting.formats, waiting.columns) == (receipt.formats, receipt.columns):
            waiting = replace(waiting, end=max(until, waiting.end), dead=tuple(sorted({*waiting.dead, *dead})))
        elif until > first:
            if waiting is not None:
                yield waiting
            waiting = Segment(
                key=key, first=first, end=until, formats=receipt.formats, columns=receipt.columns, dead=dead
            )
        first = max(first, until)
    if waiting is not None:
        yield waiting


@dataclass(slots=True)
class Differences:
    """Offsets of rows that differ from their records, by path of their file."""

    altered: dict[str, list[int]] = field(default_factory=dict)


class LogReader:
    """Reads segments of a log, and compares rows of the table's files with them."""

    def __init__(self, reader: TableReader, rules: ReadRules, arrangement: Arrangement, changes: ChangeWriter) -> None:
        self._reader = reader
        self._arrangement = arrangement
        self._rules = rules
        self._changes = changes
        self.unknown: set[SchemaKey] = set()
        self.stats = JobStats()

    def read(
        self, segment: Segment, decode: DecodeRules, log: Sequence[AnySplit], files: Sequence[DataFile]
    ) -> Differences:
        """Return the differences of a segment. Raises PipelineError, InspectError, OSError."""
        import pyarrow as pa

        differences = Differences()
        waiting: list[Any] = []
        for batch in self._records(segment, decode, log):
            waiting.append(batch)
            if sum(each.num_rows for each in waiting) >= CHUNK_OFFSETS:
                self._compare(segment, pa.Table.from_batches(waiting), files, differences)
                waiting = []
        if waiting:
            self._compare(segment, pa.Table.from_batches(waiting), files, differences)
        return differences

    def _records(self, segment: Segment, decode: DecodeRules, log: Sequence[AnySplit]) -> Iterator[Any]:
        """Yield the decoded records that have a value, in order."""
        from pyarrow import compute

        from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches

        rows = RowDecoder(decode, *segment.key)
        for split in log:
            decoder = ArrowDecoder(*segment.key, decode.layout.source)
            steps, tally = read_batches(split, self._rules, decoder.add)
            for records in record_batches(decoder, steps):
                batch = rows.decode(without_runs(within(records, segment.first, segment.end), segment.dead))
                if not batch.num_rows:
                    continue
                self._changes.write(segment.key, batch, rows.deletes)
                yield batch.filter(compute.invert(rows.deletes))
            self.stats.add_tally(tally)
        self.unknown |= rows.unknown

    def _compare(self, segment: Segment, records: Any, files: Sequence[DataFile], differences: Differences) -> None:
        import numpy as np
        import pyarrow as pa

        if not records.num_rows:
            return
        offsets = records.column("offset").to_numpy()
        selection = Selection(key=segment.key, first=int(offsets[0]), end=int(offsets[-1]) + 1, columns=segment.columns)
        for file in files:
            if not file.may_hold(selection):
                continue
            try:
                batches = list(self._reader.rows(file, selection))
            except UnreadableFileError:
                continue  # reported when its keys are read
            if not batches:
                continue
            rows = pa.Table.from_batches(batches)
            at = np.searchsorted(offsets, rows.column("offset").to_numpy())
            there = np.flatnonzero(at < len(offsets))
            there = there[offsets[at[there]] == rows.column("offset").to_numpy()[there]]
            if not len(there):
                continue
            same = equal_rows(records.take(at[there]), rows.take(there), segment.columns)
            same &= ~misplaced(self._arrangement, file.partition, rows.take(there))
            wrong = rows.column("offset").to_numpy()[there[~same]]
            if len(wrong):
                differences.altered.setdefault(file.path, []).extend(wrong.tolist())


def within(batch: Any, first: int, end: int) -> Any:
    """Return the records of a batch with these offsets."""
    from pyarrow import compute

    offsets = batch.column("offset")
    if not batch.num_rows or (offsets[0].as_py() >= first and offsets[-1].as_py() < end):
        return batch
    return batch.filter(compute.and_(compute.greater_equal(offsets, first), compute.less(offsets, end)))
