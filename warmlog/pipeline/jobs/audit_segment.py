"""Audit one segment: account for every offset, and check the indexes against the log.

Invariants:
1. A segment is a task: its report depends only on the segment and on the start of the next one.
2. Every offset from the segment's first up to the next segment's first (excluded) is counted: as a record, a marker,
compacted, missing or damaged. An offset that is counted twice is also counted as a duplicate. So
   records + markers + compacted + missing + damaged - duplicates = next_offset - first_offset.
3. Only offsets below `cleaned_until` may have been removed by compaction.
4. An index is read before its log, so that every entry must be in the log even beside a running broker.
5. Memory is bounded by the window, the largest batch and the index.

Records count for the hour of their timestamps. A fault between two batches counts for the hour of the second batch, a
fault after the last batch for the hour of the last batch.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from warmlog.broker.log.io.directory_names import LOG_SUFFIX
from warmlog.inspect.checks.indexes import INDEX_CHECKS, IndexCheck, SegmentEnd
from warmlog.inspect.findings import DEFAULT_INDEX_INTERVAL_BYTES, Finding
from warmlog.inspect.log_file import LogFile, Segment
from warmlog.inspect.lookup import position_after_damage
from warmlog.pipeline.job_stats import JobStats, Stopwatch
from warmlog.pipeline.source.arrow import ArrowDecoder
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.arrow.columns import Wanted
from warmlog.protocol.records.batch import BatchHeader
from warmlog.protocol.records.record import MAX_INT64, MIN_INT64

HOUR_MS = 3_600_000
HOUR_US = HOUR_MS * 1000
MAX_FINDINGS = 100  # maximum findings stored for one segment; all are counted
COLUMNS = ("offset", "timestamp")
COUNTS = ("records", "bytes", "markers", "compacted", "missing", "duplicates", "damaged", "damaged_batches")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTask:
    """A segment to audit.

    `first_offset`: start of the accounting, the base offset or the log start offset. `next_offset`: the base offset of
    the next segment, or the log end offset. `end_position`: end of the readable part. `cleaned_until`: end of the
    offsets that compaction may have removed, 0 without compaction. `at_rest`, `closed`: as in `SegmentEnd`.
    """

    topic: str
    partition: int
    segment: Segment
    first_offset: int
    next_offset: int
    end_position: int
    cleaned_until: int
    at_rest: bool
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """A fault. `kind`: missing, duplicate, damage, epoch, index or table."""

    topic: str
    partition: int
    kind: str
    what: str
    path: str
    position: int | None = None

    def __str__(self) -> str:
        where = "" if self.position is None else f" at position {self.position}"
        return f"{self.path}{where}: {self.what}"


@dataclass(slots=True, kw_only=True)
class Hour:
    """Counts of an hour of a partition, in offsets except `bytes` and `damaged_batches`.

    `hour`: hours since the epoch; None if no timestamp is known.
    """

    hour: int | None
    records: int = 0
    bytes: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    markers: int = 0
    compacted: int = 0
    missing: int = 0
    duplicates: int = 0
    damaged: int = 0
    damaged_batches: int = 0

    def add(self, other: "Hour") -> None:
        """Add another part of the same hour."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.stretch(other.first_offset, other.last_offset)

    def stretch(self, first: int | None, last: int | None) -> None:
        """Extend the hour's range of offsets."""
        if first is not None and last is not None:
            self.first_offset = first if self.first_offset is None else min(first, self.first_offset)
            self.last_offset = last if self.last_offset is None else max(last, self.last_offset)

    @property
    def faults(self) -> int:
        """Offsets that are missing, duplicate or damaged."""
        return self.missing + self.duplicates + self.damaged

    @property
    def accounted(self) -> int:
        """Number of offsets with a record, a marker or a known reason for having neither."""
        return self.records + self.markers + self.compacted + self.missing + self.damaged - self.duplicates


@dataclass(slots=True, kw_only=True)
class Audited:
    """Audit of a segment. `epochs`: leader epochs with their first offsets.

    `changed`: compaction or retention replaced the file during the audit, so it could not be checked.
    """

    topic: str
    partition: int
    hours: dict[int | None, Hour] = field(default_factory=dict)
    findings: list[AuditFinding] = field(default_factory=list)
    finding_count: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    changed: bool = False
    stats: JobStats = field(default_factory=JobStats)

    def hour(self, hour: int | None) -> Hour:
        """Return the counts of an hour."""
        return self.hours.setdefault(hour, Hour(hour=hour))

    def add_finding(self, finding: AuditFinding) -> None:
        """Add a finding."""
        self.finding_count += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)


def audit_segment(task: SegmentTask) -> Audited:
    """Audit a segment. Runs in a worker. Raises OSError."""
    audited = Audited(topic=task.topic, partition=task.partition)
    watch = Stopwatch()
    try:
        watch.timed(SegmentAudit(task, audited).run)()
    except FileNotFoundError:  # removed by retention or compaction since it was listed
        audited.changed = True
    records = sum(hour.records for hour in audited.hours.values())
    audited.stats.add(JobStats(rows=records, tasks=1, read_s=watch.seconds))
    return audited


class SegmentAudit:
    """Reads one segment from its first batch to its last."""

    def __init__(self, task: SegmentTask, audited: Audited) -> None:
        self._task = task
        self._audited = audited
        self._expected = task.first_offset  # all offsets before it are accounted for
        self._in_damage: Hour | None = None  # counts damaged offsets up to the next batch
        self._last_hour: int | None = None  # hour of the last batch so far
        self._batches = 0
        self._decoder = ArrowDecoder(task.topic, task.partition, COLUMNS)
        self._wanted = Wanted(task.first_offset, MAX_INT64, MIN_INT64, MAX_INT64)
        self._last_record = task.first_offset - 1

    def run(self) -> None:
        """Audit the segment. Raises OSError."""
        indexes = list(self._open_indexes())
        with LogFile(self._task.segment.path) as file:
            self._audited.changed = file.identity != self._task.segment.identity
            end = file.size if self._audited.changed else self._task.end_position
            self._read(file, end, [] if self._audited.changed else indexes)
        self._count_records()
        if not self._audited.changed:
            self._end(end, indexes)

    def _read(self, file: LogFile, end: int, indexes: list[IndexCheck]) -> None:
        position = 0
        while position < end:
            header = None
            try:
                header = file.header(position)
                buffer, start = file.batch(position, header)
                self._batch(buffer, start, position, header)
                following = position + header.size
            except ProtocolError as error:
                following = position_after_damage(file, self._task.segment, position, end)
                self._damage(file, position, following, end, str(error))
            if header is not None:
                for index in indexes:
                    self._index_findings(index.batch_findings(position, header))
            position = following

    def _batch(self, buffer: memoryview, start: int, position: int, header: BatchHeader) -> None:
        """Account for an undamaged batch. Raises ProtocolError if its records do not match the header."""
        task, hour = self._task, self._audited.hour(_hour(header.max_timestamp))
        self._last_hour = hour.hour
        before = self._decoder.count
        if not header.is_control and header.next_offset > task.first_offset:
            self._decoder.add(buffer, start, header, self._wanted)
        first = max(header.base_offset, task.first_offset)
        span = max(header.next_offset - first, 0)
        count = min(header.record_count, span) if header.is_control else self._decoder.count - before
        if span:
            self._account(first, header.next_offset, position, hour)
        hour.markers += count if header.is_control else 0
        if count < span:
            self._holes(span - count, header, position, hour)
        elif count > span:
            hour.duplicates += count - span
            self._find("duplicate", f"{count} records in offsets {first} to {header.last_offset}", position)
        self._check_epoch(header, position)
        self._expected = max(self._expected, header.next_offset)
        hour.bytes += header.size
        self._batches += 1
        self._audited.stats.batches += 1
        self._audited.stats.bytes += header.size
        if self._decoder.is_full:
            self._count_records()

    def _account(self, first: int, end: int, position: int, hour: Hour) -> None:
        """Account for the offsets between the batches so far and a batch from `first` to before `end`."""
        if first > self._expected:
            self._gap(self._expected, first, position, hour)
        elif first < self._expected:
            again = min(self._expected, end) - first
            hour.duplicates += again
            self._find("duplicate", f"offsets {first} to {first + again - 1} occurred before", position)
        self._in_damage = None

    def _gap(self, first: int, end: int, position: int | None, hour: Hour) -> None:
        """Account for offsets that no batch has: damaged, removed by compaction, or missing."""
        if self._in_damage is not None:
            self._in_damage.damaged += end - first
            return
        compacted = max(min(end, self._task.cleaned_until) - first, 0)
        hour.compacted += compacted
        if first + compacted < end:
            hour.missing += end - first - compacted
            self._find("missing", f"offsets {first + compacted} to {end - 1} are missing", position)

    def _holes(self, count: int, header: BatchHeader, position: int, hour: Hour) -> None:
        """Account for offsets of a batch that no record has."""
        if header.base_offset < self._task.cleaned_until:
            hour.compacted += count
            return
        hour.missing += count
        what = f"{count} of offsets {header.base_offset} to {header.last_offset} are missing"
        self._find("missing", what, position)

    def _damage(self, file: LogFile, position: int, following: int, end: int, reason: str) -> None:
        """Account for a damaged batch: by its header if that is plausible, else up to where reading continues."""
        self._audited.stats.damaged += 1
        header = self._plausible_header(file, position, following, end)
        if header is None:
            hour = self._in_damage = self._audited.hour(self._last_hour)
            what = f"{reason}; {following - position} bytes up to position {following} cannot be read"
        else:
            hour = self._audited.hour(_hour(header.max_timestamp))
            first = max(header.base_offset, self._task.first_offset)
            if header.next_offset > first:
                self._account(first, header.next_offset, position, hour)
                hour.damaged += header.next_offset - first
            self._expected = max(self._expected, header.next_offset)
            what = f"offsets {header.base_offset} to {header.last_offset}: {reason}"
        hour.damaged_batches += 1
        self._find("damage", what, position)

    def _plausible_header(self, file: LogFile, position: int, following: int, end: int) -> BatchHeader | None:
        """Return the header of a damaged batch if its offsets fit between its neighbours'."""
        try:
            header = file.header(position)
            limit = file.header(following).base_offset if following < end else self._task.next_offset
        except ProtocolError:
            return None
        fits = self._expected <= header.base_offset < header.next_offset <= limit
        return header if fits and position + header.size == following else None

    def _check_epoch(self, header: BatchHeader, position: int) -> None:
        epochs, epoch = self._audited.epochs, header.leader_epoch
        if not epochs or epoch > epochs[-1][0]:
            epochs.append((epoch, header.base_offset))
        elif epoch < epochs[-1][0]:
            what = f"leader epoch {epoch} at offset {header.base_offset}, after {epochs[-1][0]}"
            self._find("epoch", what, position)

    def _count_records(self) -> None:
        """Count the decoded records, by the hour of each."""
        if not self._decoder.count:
            return
        import numpy as np

        batch = self._decoder.take()
        offsets = np.frombuffer(batch.column("offset").buffers()[1], np.int64)
        hours = np.frombuffer(batch.column("timestamp").buffers()[1], np.int64) // HOUR_US
        repeated = int((np.diff(offsets, prepend=self._last_record) == 0).sum())
        self._last_record = int(offsets[-1])
        for number in np.unique(hours).tolist():
            of_hour = offsets[hours == number]
            hour = self._audited.hour(number)
            hour.records += len(of_hour)
            hour.stretch(int(of_hour.min()), int(of_hour.max()))
        if repeated:  # each takes the place of another offset of its batch
            hour = self._audited.hour(int(hours[0]))
            hour.duplicates += repeated
            hour.missing += repeated
            self._find("duplicate", f"{repeated} offsets up to {self._last_record} occur twice in a batch", None)

    def _end(self, end: int, indexes: list[IndexCheck]) -> None:
        """Account for offsets after the last batch, and finish the indexes."""
        task = self._task
        if self._expected > task.next_offset:
            again = self._expected - task.next_offset
            self._audited.hour(self._last_hour).duplicates += again
            what = f"offsets {task.next_offset} to {self._expected - 1} belong to the next segment"
            self._find("duplicate", what, None)
        elif self._expected < task.next_offset:
            self._gap(self._expected, task.next_offset, None, self._audited.hour(self._last_hour))
        segment_end = SegmentEnd(
            size=end,
            batches=self._batches,
            next_offset=max(self._expected, task.segment.base_offset),
            at_rest=task.at_rest,
            closed=task.closed,
            index_interval_bytes=DEFAULT_INDEX_INTERVAL_BYTES,
        )
        for index in indexes:
            self._index_findings(index.end_findings(segment_end))

    def _open_indexes(self) -> Iterator[IndexCheck]:
        log = self._task.segment.path
        stem, _, state = log.rpartition(LOG_SUFFIX)
        for suffix, kind in INDEX_CHECKS.items():
            path = Path(f"{stem}{suffix}{state}")
            with suppress(FileNotFoundError):
                base_offset = self._task.segment.base_offset
                index = kind(path, base_offset, at_rest=self._task.at_rest, closed=self._task.closed)
                self._index_findings(index.form_findings())
                yield index
                continue
            if self._task.at_rest and Path(log).exists():
                self._index_findings(iter([Finding(path, "missing")]))

    def _index_findings(self, findings: Iterator[Finding]) -> None:
        for finding in findings:
            self._find("index", finding.what, finding.position, str(finding.path))

    def _find(self, kind: str, what: str, position: int | None, path: str | None = None) -> None:
        task = self._task
        self._audited.add_finding(
            AuditFinding(
                topic=task.topic,
                partition=task.partition,
                kind=kind,
                what=what,
                path=path or task.segment.path,
                position=position,
            )
        )


def _hour(timestamp_ms: int) -> int | None:
    return timestamp_ms // HOUR_MS if timestamp_ms >= 0 else None
