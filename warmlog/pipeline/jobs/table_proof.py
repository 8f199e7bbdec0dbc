"""Prove a stretch of a table: compare offsets of a partition with the log and with the receipt of their commit.

1. Rows of the table and records of the log are read in offset order and hashed, whatever the order of rows in files. If
   both digests equal the receipt's, each record is in the table once and unchanged. Memory is bounded by a range of
   offsets (`arrangement.in_order`).
2. If they differ, rows and records are compared one by one, `DETAIL_OFFSETS` at a time, and each fault is reported with
   its file.
3. If retention has since removed the records from the log, the receipt alone decides: it has the digest of the written
   rows. Compaction also removes records from the log; these are in the table, and the receipt's digest covers them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import JobStats, Stopwatch
from warmlog.pipeline.jobs.audit_segment import AuditFinding
from warmlog.pipeline.jobs.equal_rows import digest_of, equal_rows, own_rows, without_records
from warmlog.pipeline.lakehouse.arrangement.in_order import by_offset
from warmlog.pipeline.lakehouse.arrangement.spec import PLAIN, Arrangement
from warmlog.pipeline.lakehouse.arrangement.values import misplaced
from warmlog.pipeline.lakehouse.digest import RowDigest
from warmlog.pipeline.lakehouse.reading import DataFile, Selection, TableReader, UnreadableFileError
from warmlog.pipeline.lakehouse.receipts import Proof, Runs
from warmlog.pipeline.lakehouse.schemas.decoding import DecodeRules, RowDecoder, SchemaKey
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.lakehouse.writing import FileStore
from warmlog.pipeline.source.input import read_batches
from warmlog.pipeline.source.plan import AnySplit
from warmlog.pipeline.source.reading import ReadRules
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.record import MAX_INT64

DETAIL_OFFSETS = 1 << 14
SHOWN_RUNS = 3  # maximum runs of offsets in a finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Offsets to prove (`end` excluded). `proof`: the receipt's proof, or None without one.

    `files`: files of the table that may have its rows. `written`: names of the receipt's files. `log`: splits with its
    records from `log_first` on. `formats`: the receipt's formats, and `decode`: the rules that follow from them.
    `dead_letters`: offsets that the receipt lists as stored in a dead-letter topic instead. `damaged`: those of batches
    that were skipped as damaged, as the receipt says. `is_covered`: whether the table should have the rows; otherwise
    only existing rows are checked. `is_earlier`: whether the offsets are from a deleted topic of the same name, or were
    truncated since. `others`: how many other topics of the name may have rows at these offsets in files that no receipt
    names. `log_end`: where the records in `log` end. `absent`: the count of `PartitionProof` to which offsets without a
    row belong, if not to `missing`.
    """

    key: TopicPartition
    first: int
    end: int
    columns: tuple[str, ...]
    proof: Proof | None
    files: tuple[DataFile, ...]
    written: tuple[str, ...] = ()
    log: tuple[AnySplit, ...] = ()
    formats: Mapping[str, Any] = field(default_factory=dict)
    decode: DecodeRules | None = None
    dead_letters: Runs = ()
    damaged: Runs = ()
    log_first: int = 0
    log_end: int = MAX_INT64
    others: int = 0
    is_covered: bool = True
    is_earlier: bool = False
    absent: str = ""

    @property
    def is_open(self) -> bool:
        """Whether this is the stretch after the last receipt, which must not have rows."""
        return self.end == MAX_INT64

    @property
    def selection(self) -> Selection:
        """The rows to read."""
        return Selection(key=self.key, first=self.first, end=self.end, columns=self.columns)


@dataclass(slots=True, kw_only=True)
class Proved:
    """Numbers of offsets of one or several stretches.

    `rows`: in the table at least once. Among `rows` are `in_log`: equal to the log's; `by_receipt`: no longer in the
    log, but equal to their receipt; `earlier`: from earlier logs, equal to their receipts; `unproved`: neither log nor
    receipt can prove them; `altered`: different from the log's; `foreign`: never in the log; `twice`: more than once in
    the table. `missing`: only in the log. In a table with one row for each key, `stale`: rows that a newer record
    replaces, and `undead`: rows that a newer record deletes. `unknown`: schemas without which the stretch cannot be
    proved.
    """

    rows: int = 0
    in_log: int = 0
    by_receipt: int = 0
    earlier: int = 0
    unproved: int = 0
    missing: int = 0
    twice: int = 0
    altered: int = 0
    foreign: int = 0
    stale: int = 0
    undead: int = 0
    findings: list[AuditFinding] = field(default_factory=list)
    unknown: set[SchemaKey] = field(default_factory=set)
    stats: JobStats = field(default_factory=JobStats)

    COUNTS = (
        "rows", "in_log", "by_receipt", "earlier", "unproved", "missing", "twice", "altered", "foreign", "stale",
        "undead",
    )  # fmt: skip

    def add(self, other: "Proved") -> None:
        """Add the counts of another stretch."""
        for name in self.COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.findings += other.findings
        self.stats.add(other.stats)


def prove(store: FileStore, rules: ReadRules, arrangement: Arrangement, stretches: Sequence[Stretch]) -> list[Proved]:
    """Prove stretches one by one. Runs in a worker. Raises PipelineError, InspectError, OSError."""
    reader = TableReader(store)
    results = []
    for stretch in stretches:
        watch = Stopwatch()
        task = _Proving(reader, rules, arrangement, stretch)
        watch.timed(task.run)()
        task.done.stats.tasks, task.done.stats.read_s = 1, watch.seconds
        task.done.stats.rows = task.done.rows
        results.append(task.done)
    return results


def arrangement_to_check(table: Table) -> Arrangement:
    """Return how rows have to be arranged. Jobs refuse some partitions of other programs; an audit only reads them."""
    try:
        return table.arrangement()
    except PipelineError:
        return PLAIN


class _Disorder(Exception):  # noqa: N818 - never leaves this module
    """An offset occurs twice, or a file lacks columns."""


class _Proving:
    def __init__(self, reader: TableReader, rules: ReadRules, arrangement: Arrangement, stretch: Stretch) -> None:
        self._reader = reader
        self._rules = rules
        self._arrangement = arrangement
        self._stretch = stretch
        self._damaged: set[str] = set()
        self.done = Proved()

    def run(self) -> None:
        stretch, done = self._stretch, self.done
        for file in stretch.files:
            if file.hides_rows:
                self._find(f"rows of {file.name} were deleted by another program", file.path)
        at_log = stretch.end if stretch.is_earlier else max(stretch.first, min(stretch.log_first, stretch.end))
        before, after = replace(stretch, end=at_log), replace(stretch, first=at_log)
        table = self._digest(stretch)
        as_written = table is not None and stretch.proof is not None and _agrees(table, stretch.proof)
        if after.first < after.end:
            rows = table if after.first == stretch.first else self._digest(after)
            same = rows is not None and rows.hexdigest() == self._log_digest(after).hexdigest()
            if rows is not None and same and (as_written or stretch.proof is None):
                done.rows += rows.rows
                done.in_log += rows.rows
            else:
                self._compare(after, as_written=as_written)
        if before.first < before.end:
            self._without_log(before, as_written=as_written)

    def _without_log(self, stretch: Stretch, *, as_written: bool) -> None:
        """Count rows that the log no longer has."""
        done, proof = self.done, self._stretch.proof
        if stretch.others and proof is not None and not proof.rows:
            return  # all rows there may be of another topic
        rows = self._table_rows(stretch) if not as_written else None
        if rows is not None and stretch.is_earlier and stretch.others:
            rows = without_records(rows, self._logged(stretch), stretch.columns)
            as_written = proof is not None and _agrees(digest_of(rows, stretch.columns), proof)
        if rows is not None:
            offsets = rows.column("offset").to_numpy()
            count = self._doubled(offsets, rows.column("file").to_numpy(), 1 + stretch.others)
        else:
            digest = self._digest(stretch)
            count = digest.rows if digest is not None else 0
        done.rows += count
        if as_written:
            done.earlier += count if stretch.is_earlier else 0
            done.by_receipt += 0 if stretch.is_earlier else count
            return
        if proof is not None and not proof.rows:
            done.foreign += count
            self._find(f"{count:,} rows from offset {proof.first} on, where no receipt has any", self._names(stretch))
            return
        done.unproved += count
        if proof is not None and stretch.others:
            what = f"offsets {proof.first} to {proof.end - 1} are not the {proof.rows:,} rows of their receipt"
            what += ", and files that no receipt names may have rows of another topic of this name"
            self._find(what, self._names(stretch))
        elif proof is not None:
            what = f"offsets {proof.first} to {proof.end - 1} are not the {proof.rows:,} rows of their receipt"
            self._find(f"{what}, and the log no longer has offsets below {stretch.end}", self._names(stretch))
        elif count:
            offsets = f"offsets {stretch.first} to {stretch.end - 1}"
            what = f"{count:,} rows of {offsets} cannot be proved: neither the log nor a receipt has these offsets"
            self._find(what, self._names(stretch))

    # -- digests --

    def _digest(self, stretch: Stretch) -> RowDigest | None:
        """Return the digest of the table's rows, or None if they are out of order or lack columns."""
        digest, last = RowDigest(stretch.columns), stretch.first - 1
        try:
            for batch in self._in_order(stretch):
                last = _check_order(batch, last)
                digest.add(batch)
        except _Disorder:
            return None
        return digest

    def _in_order(self, stretch: Stretch) -> Iterator[Any]:
        """Yield the table's rows in the order of offsets. Raises _Disorder if a file lacks columns."""
        for first, end in self._reader.ranges(self._stretch.files, stretch.selection, self._fail):
            part = [batch for _, batch in self._batches(replace(stretch, first=first, end=end))]
            if not all(set(stretch.columns) <= set(batch.schema.names) for batch in part):
                raise _Disorder
            yield from by_offset(part)

    def _log_digest(self, stretch: Stretch) -> RowDigest:
        digest = RowDigest(stretch.columns)
        for batch in self._log_batches(stretch, first=stretch.first, end=stretch.end):
            digest.add(batch)
        return digest

    def _batches(self, stretch: Stretch) -> Iterator[tuple[int, Any]]:
        """Yield record batches, each with the number of its file; report what is wrong with the file."""
        for number, file in enumerate(self._stretch.files):
            if not file.may_hold(stretch.selection):
                continue
            try:
                for batch in self._reader.rows(file, stretch.selection):
                    if self._arrangement.partition:
                        self._check_partition(file, batch)
                    yield number, batch
            except UnreadableFileError as error:
                self._fail(error)

    def _check_partition(self, file: DataFile, batch: Any) -> None:
        wrong = batch.column("offset").to_numpy()[misplaced(self._arrangement, file.partition, batch)]
        terms = ", ".join(str(field.term) for field in self._arrangement.partition)
        self._name(wrong, f"in the partition of another value of {terms}", file.path)

    def _fail(self, error: UnreadableFileError) -> None:
        if error.path not in self._damaged:
            self._damaged.add(error.path)
            self._find(f"cannot be read: {error.reason}", error.path)

    def _log_batches(self, stretch: Stretch, *, first: int, end: int) -> Iterator[Any]:
        from pyarrow import compute

        from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches

        topic, partition = stretch.key
        assert stretch.decode is not None, "stretches with a log have rules"
        row_decoder = RowDecoder(stretch.decode, topic, partition)
        for split in stretch.log:
            decoder = ArrowDecoder(topic, partition, stretch.decode.layout.source)
            steps, tally = read_batches(split, self._rules, decoder.add)
            for records in record_batches(decoder, steps):
                batch = without_runs(row_decoder.decode(records), stretch.dead_letters)
                if not batch.num_rows:
                    continue
                offsets = batch.column("offset")
                low, high = offsets[0].as_py(), offsets[-1].as_py()
                if low >= first and high < end:
                    yield batch
                elif low < end and high >= first:
                    yield batch.filter(compute.and_(compute.greater_equal(offsets, first), compute.less(offsets, end)))
            self.done.stats.add_tally(tally)
        self.done.unknown |= row_decoder.unknown

    def _logged(self, stretch: Stretch) -> Any:
        """Return the log's records at the offsets of a stretch, or None."""
        import pyarrow as pa

        records = list(self._log_batches(stretch, first=stretch.first, end=stretch.end))
        return pa.Table.from_batches(records) if records else None

    # -- row by row --

    def _compare(self, stretch: Stretch, *, as_written: bool) -> None:
        """Compare the rows with the log's records, and report differences."""
        records = self._log_batches(stretch, first=stretch.first, end=stretch.end)
        waiting: list[Any] = []
        first = stretch.first
        for batch in records:
            waiting.append(batch)
            if sum(each.num_rows for each in waiting) >= DETAIL_OFFSETS:
                until = batch.column("offset")[-1].as_py() + 1
                self._compare_part(replace(stretch, first=first, end=until), waiting, as_written=as_written)
                waiting, first = [], until
        self._compare_part(replace(stretch, first=first), waiting, as_written=as_written)

    def _compare_part(self, stretch: Stretch, records: list[Any], *, as_written: bool) -> None:
        import numpy as np
        import pyarrow as pa

        done = self.done
        rows = self._table_rows(stretch)
        log = pa.Table.from_batches(records) if records else None
        if stretch.others:
            rows = own_rows(rows, log, stretch.columns, stretch.others)
        in_table, files = rows.column("offset").to_numpy(), rows.column("file").to_numpy()
        in_log = log.column("offset").to_numpy() if log is not None else np.empty(0, np.int64)
        done.rows += self._doubled(in_table, files)
        unique, at_table = np.unique(in_table, return_index=True)
        both, at_log, at_unique = np.intersect1d(in_log, unique, return_indices=True)
        altered = both[:0]
        if log is not None and len(both):
            same = equal_rows(log.take(at_log), rows.take(at_table[at_unique]), stretch.columns)
            altered = both[~same]
            lacking = [
                name
                for name in stretch.columns
                if name not in rows.column_names and log.column(name).null_count < log.num_rows
            ]
            without = f": there is no column {', '.join(lacking)}" if lacking else ""
            self._name(altered, f"not as in the log{without}", self._files_of(altered, in_table, files))
        done.altered += len(altered)
        done.in_log += len(both) - len(altered)
        missing = np.setdiff1d(in_log, unique)
        if stretch.is_covered:
            done.missing += len(missing)
            why = ", and no receipt says why" if stretch.proof is None else ""
            self._name(missing, f"in the log, but not in the table{why}", self._names(stretch, missing))
        extra = np.setdiff1d(unique, in_log)
        if as_written:
            done.by_receipt += len(extra)  # compaction has since removed them from the log
        elif len(extra):
            done.foreign += len(extra)
            self._name(extra, "in the table, but not in the log", self._files_of(extra, in_table, files))

    def _table_rows(self, stretch: Stretch) -> Any:
        """Return the rows of all files, sorted by offset, with the number of each row's file."""
        import pyarrow as pa

        columns = tuple(dict.fromkeys((*stretch.columns, "offset")))
        parts = []
        for number, batch in self._batches(replace(stretch, columns=columns)):
            kept = [name for name in columns if name in batch.schema.names]
            table = pa.Table.from_batches([batch.select(kept)])
            parts.append(table.append_column("file", pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)))
        if not parts:
            return pa.table({"offset": pa.array([], pa.int64()), "file": pa.array([], pa.int32())})
        return pa.concat_tables(parts, promote_options="permissive").sort_by("offset")

    def _doubled(self, offsets: Any, files: Any, most: int = 1) -> int:
        """Report offsets that occur more than `most` times; return the number of distinct offsets."""
        import numpy as np

        unique, counts = np.unique(offsets, return_counts=True)
        twice = unique[counts > most]
        self.done.twice += len(twice)
        self._name(twice, "in the table more than once", self._files_of(twice, offsets, files))
        return len(unique)

    # -- findings --

    def _files_of(self, offsets: Any, in_table: Any, files: Any) -> str:
        import numpy as np

        numbers = np.unique(files[np.isin(in_table, offsets)])
        return ", ".join(self._stretch.files[number].path for number in numbers[:SHOWN_RUNS])

    def _names(self, stretch: Stretch, offsets: Any = ()) -> str:
        """Name the files that may have rows of a stretch: the receipt's files if they still exist."""
        selection = stretch.selection
        if len(offsets):
            selection = replace(selection, first=int(offsets[0]), end=int(offsets[-1]) + 1)
        files = [file for file in self._stretch.files if file.may_hold(selection)]
        written = [file for file in files if file.name in self._stretch.written]
        return ", ".join(file.path for file in (written or files)[:SHOWN_RUNS]) or "no file"

    def _name(self, offsets: Any, what: str, path: str) -> None:
        if len(offsets):
            self._find(f"{runs(offsets)} {'is' if len(offsets) == 1 else 'are'} {what}", path)

    def _find(self, what: str, path: str) -> None:
        topic, partition = self._stretch.key
        finding = AuditFinding(topic=topic, partition=partition, kind="table", what=what, path=path)
        if finding not in self.done.findings:
            self.done.findings.append(finding)


def without_runs(batch: Any, runs: Runs) -> Any:
    """Return the rows of a batch whose offsets are in none of the runs."""
    import numpy as np
    import pyarrow as pa

    if not runs or not batch.num_rows:
        return batch
    offsets = batch.column("offset").to_numpy()
    firsts, ends = np.array(runs).T
    at = np.searchsorted(firsts, offsets, "right") - 1
    return batch.filter(pa.array((at < 0) | (offsets >= ends[at])))


def _agrees(digest: RowDigest, proof: Proof) -> bool:
    return (digest.rows, digest.hexdigest()) == (proof.rows, proof.digest)


def _check_order(batch: Any, last: int) -> int:
    """Return the last offset of a batch. Raises _Disorder unless offsets increase, starting above `last`."""
    import numpy as np

    offsets = batch.column("offset").to_numpy(zero_copy_only=False)
    if offsets[0] <= last or (np.diff(offsets) <= 0).any():
        raise _Disorder
    return int(offsets[-1])


def runs(offsets: Any) -> str:
    """Format offsets as `offsets 3 to 9, 12 and 5 more`."""
    import numpy as np

    parts = np.split(offsets, np.flatnonzero(np.diff(offsets) > 1) + 1)
    shown = [str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts[:SHOWN_RUNS]]
    rest = parts[SHOWN_RUNS:]
    more = f" and {sum(map(len, rest)):,} more" if rest else ""
    return f"{'offset' if len(offsets) == 1 else 'offsets'} {', '.join(shown)}{more}"
