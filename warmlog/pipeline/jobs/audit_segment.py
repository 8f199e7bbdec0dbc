"""A segment held against itself: every offset accounted for.

Owns: what a segment must be like, and counting what it is, by hour. Must not know: Spark, how results are shown, or
what must be true of an index (`warmlog.inspect.index_checks`, which `log verify` uses as well).

1. A segment is a task: whatever is told of it is told by itself and by where the next one begins.
2. Every offset between the segment's first and the next one's is a record, a marker, taken by compaction, missing, or
   behind damage; one that is there twice is a duplicate. Compaction may have taken what lies below `cleaned_until`, and
   nothing else.
3. An index is read before its log, so that beside a running broker whatever it tells of must be in the log.
4. Memory is bounded by the window, the largest batch and the index.

Times of records are those of their hour; what is wrong between two batches is told of the hour of the second.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.log.directory_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from protocol.errors import ProtocolError
from protocol.records.batch import BatchHeader
from protocol.records.columns import EVERYTHING
from warmlog.inspect.findings import DEFAULT_INDEX_INTERVAL_BYTES
from warmlog.inspect.findings import Finding as IndexFinding
from warmlog.inspect.index_checks import IndexCheck, OffsetIndexCheck, SegmentEnd, TimeIndexCheck
from warmlog.inspect.segment import CutError, LogFile
from warmlog.pipeline.job_stats import JobStats, Stopwatch
from warmlog.pipeline.source.arrow import ArrowDecoder

HOUR_MS = 3_600_000
HOUR_US = HOUR_MS * 1000
MAX_FINDINGS = 100  # of a segment; counts go on
COLUMNS = ("offset", "timestamp")
INDEXES: dict[str, Callable[..., IndexCheck]] = {
    OFFSET_INDEX_SUFFIX: OffsetIndexCheck,
    TIME_INDEX_SUFFIX: TimeIndexCheck,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTask:
    """A segment to be audited.

    `end_position`: where its readable part ends. `next_base_offset`: of the following segment, or where the log ends.
    `cleaned_until`: how far compaction may have come, 0 without. `still`, `settled`: of its indexes, see `SegmentEnd`.
    """

    topic: str
    partition: int
    path: str
    identity: tuple[int, int]
    base_offset: int
    next_base_offset: int
    end_position: int
    cleaned_until: int
    still: bool
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong. `kind`: missing, duplicate, damage, index, table."""

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
    """What an hour of a partition holds, in records (offsets where there is no record) and bytes.

    `hour`: since the epoch; None for what no time is known of. `damaged`: batches.
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

    def add(self, other: "Hour") -> None:
        """Add what another part of the same hour holds."""
        for name in ("records", "bytes", "markers", "compacted", "missing", "duplicates", "damaged"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.stretch(other.first_offset, other.last_offset)

    def stretch(self, first: int | None, last: int | None) -> None:
        """The hour reaches over these offsets as well."""
        if first is not None and last is not None:
            self.first_offset = first if self.first_offset is None else min(first, self.first_offset)
            self.last_offset = last if self.last_offset is None else max(last, self.last_offset)

    @property
    def faults(self) -> int:
        """How much is wrong."""
        return self.missing + self.duplicates + self.damaged


@dataclass(slots=True, kw_only=True)
class Audited:
    """What was found of a segment. `changed`: compaction or retention took it meanwhile, so it was not judged whole."""

    topic: str
    partition: int
    hours: dict[int | None, Hour] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    finding_count: int = 0
    changed: bool = False
    stats: JobStats = field(default_factory=JobStats)

    def hour(self, hour: int | None) -> Hour:
        """The counts of an hour."""
        return self.hours.setdefault(hour, Hour(hour=hour))

    def tell(self, finding: Finding) -> None:
        """Something is wrong."""
        self.finding_count += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)


def audit_segment(task: SegmentTask) -> Audited:
    """What is in a segment, and what is wrong with it. In a worker. Raises OSError."""
    audited = Audited(topic=task.topic, partition=task.partition)
    watch = Stopwatch()
    try:
        watch.timed(SegmentAudit(task, audited).run)()
    except FileNotFoundError:  # retention or compaction have taken it since it was listed
        audited.changed = True
    records = sum(hour.records for hour in audited.hours.values())
    audited.stats.add(JobStats(rows=records, tasks=1, read_s=watch.seconds))
    return audited


class SegmentAudit:
    """Reads one segment from its first batch to its last."""

    def __init__(self, task: SegmentTask, audited: Audited) -> None:
        self._task = task
        self._audited = audited
        self._expected = task.base_offset
        self._batches = 0
        self._decoder = ArrowDecoder(task.topic, task.partition, COLUMNS)
        self._last_record = task.base_offset - 1

    def run(self) -> None:
        """Do it. Raises OSError."""
        indexes = list(self._open_indexes())
        with LogFile(self._task.path) as file:
            self._audited.changed = file.identity != self._task.identity
            end = file.size if self._audited.changed else self._task.end_position
            self._read(file, end, indexes)
        self._count_records()
        if not self._audited.changed:
            self._end(end, indexes)

    def _read(self, file: LogFile, end: int, indexes: list[IndexCheck]) -> None:
        position = 0
        while position < end:
            try:
                header = file.header(position)
            except ProtocolError as error:
                self._damage(position, f"{error}; {end - position} bytes from here to the end cannot be read", None)
                return
            self._batch(file, position, header)
            for index in indexes:
                self._index_findings(index.batch(position, header))
            position += header.size

    def _batch(self, file: LogFile, position: int, header: BatchHeader) -> None:
        hour = self._audited.hour(_hour(header.max_timestamp))
        try:
            buffer, start = file.batch(position, header)
            self._place(position, header, hour)
            self._take(buffer, start, header, hour)
        except CutError as error:
            self._damage(position, str(error), hour)
            return
        except ProtocolError as error:
            self._damage(position, f"offsets {header.base_offset} to {header.last_offset}: {error}", hour)
            self._expected = max(self._expected, header.next_offset)
            return
        hour.bytes += header.size
        self._batches += 1
        self._audited.stats.batches += 1
        self._audited.stats.bytes += header.size
        self._expected = max(self._expected, header.next_offset)

    def _take(self, buffer: memoryview, start: int, header: BatchHeader, hour: Hour) -> None:
        """Its records; a marker is none. Raises ProtocolError where they are not what the header says."""
        if header.is_control:
            hour.markers += header.record_count
            return
        self._decoder.add(buffer, start, header, EVERYTHING)
        if self._decoder.is_full:
            self._count_records()

    def _place(self, position: int, header: BatchHeader, hour: Hour) -> None:
        """Where a batch stands among the offsets."""
        if header.base_offset > self._expected:
            self._gap(self._expected, header.base_offset, position, hour)
        elif header.base_offset < self._expected:
            twice = min(self._expected, header.next_offset) - header.base_offset
            hour.duplicates += twice
            what = f"offsets {header.base_offset} to {header.base_offset + twice - 1} are there before as well"
            self._find("duplicate", what, position)
        holes = header.last_offset_delta + 1 - header.record_count
        if holes > 0 and not header.is_control:
            self._holes(holes, header, position, hour)

    def _gap(self, first: int, end: int, position: int | None, hour: Hour) -> None:
        """Offsets that no batch has: compaction may have taken those before its checkpoint."""
        compacted = max(min(end, self._task.cleaned_until) - first, 0)
        hour.compacted += compacted
        if first + compacted < end:
            hour.missing += end - first - compacted
            self._find("missing", f"offsets {first + compacted} to {end - 1} are missing", position)

    def _holes(self, count: int, header: BatchHeader, position: int, hour: Hour) -> None:
        """Offsets inside a batch that no record has."""
        if header.base_offset < self._task.cleaned_until:
            hour.compacted += count
            return
        hour.missing += count
        what = f"{count} of offsets {header.base_offset} to {header.last_offset} are missing"
        self._find("missing", what, position)

    def _count_records(self) -> None:
        """Count what was decoded, by the hour of each record."""
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
        if repeated:
            self._audited.hour(int(hours[0])).duplicates += repeated
            self._find("duplicate", f"{repeated} offsets up to {self._last_record} are there twice in a batch", None)

    def _damage(self, position: int, what: str, hour: Hour | None) -> None:
        (hour or self._audited.hour(None)).damaged += 1
        self._audited.stats.damaged += 1
        self._find("damage", what, position)

    def _end(self, end: int, indexes: list[IndexCheck]) -> None:
        """What can be said once the segment is read."""
        task = self._task
        if self._expected > task.next_base_offset:
            twice = self._expected - task.next_base_offset
            self._audited.hour(None).duplicates += twice
            what = f"offsets {task.next_base_offset} to {self._expected - 1} belong into the next segment"
            self._find("duplicate", what, None)
        elif self._expected < task.next_base_offset and not self._audited.hours.get(None):
            self._gap(self._expected, task.next_base_offset, None, self._audited.hour(None))
        told = SegmentEnd(
            size=end,
            batches=self._batches,
            next_offset=self._expected,
            still=task.still,
            settled=task.settled,
            index_interval_bytes=DEFAULT_INDEX_INTERVAL_BYTES,
        )
        for index in indexes:
            self._index_findings(index.end(told))

    def _open_indexes(self) -> Iterator[IndexCheck]:
        stem, _, state = self._task.path.rpartition(LOG_SUFFIX)
        for suffix, kind in INDEXES.items():
            path = Path(f"{stem}{suffix}{state}")
            with suppress(FileNotFoundError):
                index = kind(path, self._task.base_offset, still=self._task.still, settled=self._task.settled)
                self._index_findings(index.form())
                yield index
                continue
            if self._task.still and Path(self._task.path).exists():
                self._index_findings(iter([IndexFinding(path, "missing")]))

    def _index_findings(self, findings: Iterator[IndexFinding]) -> None:
        for one in findings:
            self._find("index", one.what, one.position, str(one.path))

    def _find(self, kind: str, what: str, position: int | None, path: str | None = None) -> None:
        task = self._task
        self._audited.tell(
            Finding(
                topic=task.topic,
                partition=task.partition,
                kind=kind,
                what=what,
                path=path or task.path,
                position=position,
            )
        )


def _hour(timestamp_ms: int) -> int | None:
    return timestamp_ms // HOUR_MS if timestamp_ms >= 0 else None


def form_of(one: Any) -> dict[str, Any]:
    """A value of this module for JSON."""
    return {name: getattr(one, name) for name in one.__slots__}
