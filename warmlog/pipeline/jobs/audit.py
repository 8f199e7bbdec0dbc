"""The job behind `warmlog pipeline audit`: which segments there are, and what they say together.

Owns: planning the audit of topics, adding up, and the comparison with an archive. Must not know: what is right in a
segment (`audit`), Spark, how results are shown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from broker.log.checkpoint import CLEANER_POINTS, read_offsets
from broker.log.directory_names import parse_partition_directory
from broker.log.disk import Disk
from broker.log.errors import CheckpointError
from warmlog.inspect.circumstances import broker_is_running, is_left_alone, was_clean
from warmlog.inspect.metadata import StoredMetadata
from warmlog.inspect.partition import StoredPartition
from warmlog.pipeline.archive.table import TableFile, read_commits, read_in_order, table_files
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import JobStats, Reporter, Stopwatch
from warmlog.pipeline.jobs.audit_segment import MAX_FINDINGS, Audited, Finding, Hour, SegmentTask, audit_segment
from warmlog.pipeline.runner import Runner
from warmlog.pipeline.source.input import choose_input, read_batches, rules_of, wanted_partitions
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.planning import Split
from warmlog.pipeline.source.ranges import Extent, Range, TopicPartition
from warmlog.pipeline.source.reading import ReadRules

SHOWN_RUNS = 3  # of offsets, in a finding


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTask:
    """A split of the log, and the files that may have its offsets."""

    split: Split
    files: tuple[TableFile, ...]
    first_offset: int
    end_offset: int
    cleaned_until: int


@dataclass(slots=True, kw_only=True)
class Compared:
    """Offsets in both, in one only, twice in the archive; and those that compaction took from the log since."""

    topic: str
    partition: int
    both: int = 0
    only_log: int = 0
    only_table: int = 0
    twice: int = 0
    compacted: int = 0
    findings: list[Finding] = field(default_factory=list)
    stats: JobStats = field(default_factory=JobStats)

    def add(self, other: "Compared") -> None:
        """Add what another split of the partition says."""
        for name in ("both", "only_log", "only_table", "twice", "compacted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.findings += other.findings


@dataclass(slots=True, kw_only=True)
class PartitionAudit:
    """A partition, by hour; `segments` of it, some of which `changed` while they were read."""

    topic: str
    partition: int
    first_offset: int = 0
    end_offset: int = 0
    segments: int = 0
    changed: int = 0
    hours: list[Hour] = field(default_factory=list)
    table: Compared | None = None

    def total(self) -> Hour:
        """All hours together."""
        whole = Hour(hour=None)
        for hour in self.hours:
            whole.add(hour)
        return whole


@dataclass(slots=True, kw_only=True)
class Audit:
    """What was found. `finding_count` counts those that were too many to be kept, too."""

    partitions: list[PartitionAudit]
    findings: list[Finding]
    finding_count: int


def audit_topics(run: Runner, options: ReadOptions, reporter: Reporter, table: Path | None = None) -> Audit:
    """Audit partition directories, and hold an archive against them. Raises PipelineError, OSError."""
    partitions = wanted_partitions(options)
    audit = Audit(
        partitions=[
            PartitionAudit(
                topic=one.topic,
                partition=one.partition,
                first_offset=one.start_offset,
                end_offset=one.end_offset(),
                segments=len(one.segments),
            )
            for one in partitions
        ],
        findings=list(_end_findings(partitions)),
        finding_count=0,
    )
    audit.finding_count = len(audit.findings)
    cleaned = _cleaned(partitions, options)
    audited = run([task for one in partitions for task in _tasks(one, cleaned)], audit_segment)
    _add(audit, audited, reporter)
    if table is not None:
        compared = compare(run, options, table, cleaned)
        _add_compared(audit, compared, reporter)
    audit.findings.sort(key=lambda one: (one.topic, one.partition, one.path, one.position or 0))
    reporter.tell(findings=audit.finding_count)
    return audit


def cleaner_points(options: ReadOptions) -> Mapping[TopicPartition, int]:
    """Up to where compaction has come in each partition; a broker keeps it beside the partitions' directories."""
    try:
        return read_offsets(Disk(), str(_data_directory(options) / CLEANER_POINTS))
    except CheckpointError:
        return {}


def _data_directory(options: ReadOptions) -> Path:
    """The path, or the directory around it where it is a partition's."""
    assert options.path is not None, "an audit reads directories"
    path = Path(options.path).absolute()
    return path if parse_partition_directory(path.name) is None else path.parent


def _cleaned(partitions: Sequence[StoredPartition], options: ReadOptions) -> dict[TopicPartition, int]:
    """How far compaction may have come.

    While a broker is at work, or after it was killed, the cleaner may be ahead of its checkpoint, which it writes once
    it has done a whole log: up to the segment that is being written, but no further.
    """
    directory = _data_directory(options)
    found = dict(cleaner_points(options))
    running = broker_is_running(directory)
    if not running and was_clean(directory):
        return found
    metadata = StoredMetadata(directory, running=running)
    compacted = {name for name in metadata.topics or {} if not metadata.is_gapless(name)}
    for one in partitions:
        if one.topic in compacted:
            place = one.topic, one.partition
            found[place] = max(found.get(place, 0), one.segments[-1].base_offset)
    return found


def _tasks(partition: StoredPartition, cleaned: Mapping[TopicPartition, int]) -> Iterator[SegmentTask]:
    segments = partition.segments
    directory = Path(partition.directory)
    running = broker_is_running(directory.parent)
    clean = not running and was_clean(directory.parent)
    following = [*(segment.base_offset for segment in segments[1:]), partition.end_offset()]
    for segment, next_base in zip(segments, following, strict=True):
        still = not running or is_left_alone(Path(segment.path))
        yield SegmentTask(
            topic=partition.topic,
            partition=partition.partition,
            path=segment.path,
            identity=segment.identity,
            base_offset=segment.base_offset,
            next_base_offset=next_base,
            end_position=partition.readable_size(segment),
            cleaned_until=cleaned.get((partition.topic, partition.partition), 0),
            still=still,
            settled=still and (segment is not segments[-1] or clean),
        )


def _end_findings(partitions: Iterable[StoredPartition]) -> Iterator[Finding]:
    """Logs that end before what was flushed of them, which the checkpoint beside them tells."""
    for one in partitions:
        end = one.end_offset()
        if one.flushed_end is not None and one.flushed_end > end:
            what = f"ends at offset {end}, but up to {one.flushed_end} was flushed"
            path = one.segments[-1].path
            yield Finding(topic=one.topic, partition=one.partition, kind="missing", what=what, path=path)


def _add(audit: Audit, audited: Sequence[Audited], reporter: Reporter) -> None:
    by_place = {(one.topic, one.partition): one for one in audit.partitions}
    hours: dict[TopicPartition, dict[int | None, Hour]] = {place: {} for place in by_place}
    for part in audited:
        place = part.topic, part.partition
        by_place[place].changed += part.changed
        for number, hour in part.hours.items():
            hours[place].setdefault(number, Hour(hour=number)).add(hour)
        audit.findings += part.findings
        audit.finding_count += part.finding_count
        reporter.add(part.stats)
    for place, found in hours.items():
        known = [hour for hour in found.values() if hour != Hour(hour=hour.hour)]
        by_place[place].hours = sorted(known, key=lambda one: (one.hour is None, one.hour or 0))


# -- the archive --


def compare(run: Runner, options: ReadOptions, table: Path, cleaned: Mapping[TopicPartition, int]) -> list[Compared]:
    """Hold an archive's offsets against the log's, split by split. Raises PipelineError, OSError."""
    commits = read_commits(table)
    files = table_files(table, commits)
    spans = {place: first for commit in reversed(commits) for place, (first, _) in _spans(commit.spans)}
    ends = {key: at.offset for key, at in commits[-1].positions().items()}
    if not set(options.topics.named) & {topic for topic, _ in ends}:
        raise PipelineError(f"{table}: nothing of {', '.join(options.topics.named)} in it")
    plan = choose_input(options).plan(
        partial(_archived, {place: Range(start=spans[place], end=ends[place]) for place in spans})
    )
    tasks = [task for split in plan.splits for task in _table_tasks(split, files, cleaned)]
    return run(tasks, partial(compare_split, rules_of(options)))


def _add_compared(audit: Audit, compared: Sequence[Compared], reporter: Reporter) -> None:
    by_place: dict[TopicPartition, Compared] = {}
    for one in compared:
        place = one.topic, one.partition
        by_place.setdefault(place, Compared(topic=one.topic, partition=one.partition)).add(one)
        reporter.add(one.stats)
    for partition in audit.partitions:
        partition.table = by_place.get((partition.topic, partition.partition))
        if partition.table is not None:
            audit.findings += partition.table.findings[:MAX_FINDINGS]
            audit.finding_count += len(partition.table.findings)


def _spans(spans: Mapping[str, Mapping[str, tuple[int, int]]]) -> Iterator[tuple[TopicPartition, tuple[int, int]]]:
    for topic, listed in spans.items():
        for partition, span in listed.items():
            yield (topic, int(partition)), span


def _archived(ranges: Mapping[TopicPartition, Range], extents: list[Extent]) -> dict[TopicPartition, Range]:
    """What of each partition is in the log and should be in the archive."""
    found = {}
    for one in extents:
        wanted = ranges.get((one.topic, one.partition))
        if wanted is not None:
            start = max(wanted.start, one.start_offset)
            found[one.topic, one.partition] = Range(start=start, end=max(start, min(wanted.end, one.end_offset())))
    return found


def _table_tasks(
    split: Any, files: Mapping[TopicPartition, Sequence[TableFile]], cleaned: Mapping[TopicPartition, int]
) -> Iterator[TableTask]:
    assert isinstance(split, Split), "an audit reads directories"
    place = split.topic, split.partition
    first, end = split.pieces[0].first_offset, split.pieces[-1].end_offset
    overlapping = [one for one in files.get(place, ()) if one.first_offset < end and one.end_offset > first]
    yield TableTask(
        split=split,
        files=tuple(overlapping),
        first_offset=first,
        end_offset=end,
        cleaned_until=cleaned.get(place, 0),
    )


def compare_split(rules: ReadRules, task: TableTask) -> Compared:
    """Compare the offsets of one split. In a worker. Raises PipelineError, OSError."""
    import numpy as np

    watch = Stopwatch()
    done = Compared(topic=task.split.topic, partition=task.split.partition, stats=JobStats(tasks=1))
    in_log, in_table = watch.timed(_log_offsets)(task, rules, done.stats), watch.timed(_table_offsets)(task)
    unique, counts = np.unique(in_table, return_counts=True)
    only_log, only_table = np.setdiff1d(in_log, unique), np.setdiff1d(unique, in_log)
    gone = only_table < task.cleaned_until
    done.compacted = int(gone.sum())
    only_table = only_table[~gone]
    twice = unique[counts > 1]
    done.both = len(unique) - done.compacted - len(only_table)
    done.only_log, done.only_table, done.twice = len(only_log), len(only_table), len(twice)
    for offsets, what in (
        (only_log, "in the log, and not in the archive"),
        (only_table, "in the archive, and not in the log"),
        (twice, "in the archive more than once"),
    ):
        if len(offsets):
            done.findings.append(_finding(task, f"{_runs(offsets)} {'is' if len(offsets) == 1 else 'are'} {what}"))
    done.stats.read_s = watch.seconds
    return done


def _finding(task: TableTask, what: str) -> Finding:
    split = task.split
    return Finding(
        topic=split.topic, partition=split.partition, kind="table", what=what, path=f"{split.topic}-{split.partition}"
    )


def _log_offsets(task: TableTask, rules: ReadRules, stats: JobStats) -> Any:
    import numpy as np

    from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches

    decoder = ArrowDecoder(task.split.topic, task.split.partition, ("offset",))
    steps, tally = read_batches(task.split, rules, decoder.add)
    parts = [_numbers(batch) for batch in record_batches(decoder, steps)]
    stats.take(tally)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _table_offsets(task: TableTask) -> Any:
    import numpy as np

    parts = [_numbers(batch) for batch in read_in_order(task.files, ("offset",))]
    offsets = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return offsets[(offsets >= task.first_offset) & (offsets < task.end_offset)]


def _numbers(batch: Any) -> Any:
    return batch.column("offset").to_numpy(zero_copy_only=False)


def _runs(offsets: Any) -> str:
    """`offsets 3 to 9, 12 and 5 more`."""
    import numpy as np

    runs = np.split(offsets, np.flatnonzero(np.diff(offsets) > 1) + 1)
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:SHOWN_RUNS]]
    rest: Sequence[Any] = runs[SHOWN_RUNS:]
    more = f" and {sum(map(len, rest)):,} more" if rest else ""
    return f"{'offset' if len(offsets) == 1 else 'offsets'} {', '.join(shown)}{more}"
