"""The job behind `warmlog pipeline audit`: which segments there are, and what they say together.

Owns: planning the audit of topics, adding up, and the comparison with an archive. Must not know: what is right in a
segment (`audit`), Spark, how results are shown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from broker.log.checkpoint import CLEANER_POINTS, TopicPartition, read_offsets
from broker.log.directory_names import parse_partition_directory
from broker.log.disk import Disk
from broker.log.errors import CheckpointError
from warmlog.cli.directory_checks import broker_is_running, was_clean
from warmlog.cli.metadata_checks import StoredMetadata
from warmlog.cli.partition_checks import is_left_alone
from warmlog.pipeline.audit import MAX_FINDINGS, Audited, Finding, Hour, SegmentTask, audit_segment
from warmlog.pipeline.audit_table import Compared, TableTask, compare_split
from warmlog.pipeline.directory import StoredPartition
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.jobs import Runner
from warmlog.pipeline.measured import Reporter
from warmlog.pipeline.options import ReadOptions
from warmlog.pipeline.origin import Place, plan_job, rules_of
from warmlog.pipeline.planning import Split
from warmlog.pipeline.positions import Extent, Range
from warmlog.pipeline.selection import wanted_partitions
from warmlog.pipeline.table import TableFile, read_commits, table_files


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
    hours: dict[Place, dict[int | None, Hour]] = {place: {} for place in by_place}
    for part in audited:
        place = part.topic, part.partition
        by_place[place].changed += part.changed
        for number, hour in part.hours.items():
            hours[place].setdefault(number, Hour(hour=number)).add(hour)
        audit.findings += part.findings
        audit.finding_count += part.finding_count
        reporter.add(part.measured)
    for place, found in hours.items():
        known = [hour for hour in found.values() if hour != Hour(hour=hour.hour)]
        by_place[place].hours = sorted(known, key=lambda one: (one.hour is None, one.hour or 0))


# -- the archive --


def compare(run: Runner, options: ReadOptions, table: Path, cleaned: Mapping[TopicPartition, int]) -> list[Compared]:
    """Hold an archive's offsets against the log's, split by split. Raises PipelineError, OSError."""
    commits = read_commits(table)
    files = table_files(table, commits)
    spans = {place: first for commit in reversed(commits) for place, (first, _) in _spans(commit.spans)}
    ends = commits[-1].ends()
    if not set(options.topics.named) & {topic for topic, _ in ends}:
        raise PipelineError(f"{table}: nothing of {', '.join(options.topics.named)} in it")
    plan = plan_job(options, partial(_archived, {place: Range(start=spans[place], end=ends[place]) for place in spans}))
    tasks = [task for split in plan.splits for task in _table_tasks(split, files, cleaned)]
    return run(tasks, partial(compare_split, rules_of(options)))


def _add_compared(audit: Audit, compared: Sequence[Compared], reporter: Reporter) -> None:
    by_place: dict[Place, Compared] = {}
    for one in compared:
        place = one.topic, one.partition
        by_place.setdefault(place, Compared(topic=one.topic, partition=one.partition)).add(one)
        reporter.add(one.measured)
    for partition in audit.partitions:
        partition.table = by_place.get((partition.topic, partition.partition))
        if partition.table is not None:
            audit.findings += partition.table.findings[:MAX_FINDINGS]
            audit.finding_count += len(partition.table.findings)


def _spans(spans: Mapping[str, Mapping[str, tuple[int, int]]]) -> Iterator[tuple[Place, tuple[int, int]]]:
    for topic, listed in spans.items():
        for partition, span in listed.items():
            yield (topic, int(partition)), span


def _archived(ranges: Mapping[Place, Range], extents: list[Extent]) -> dict[Place, Range]:
    """What of each partition is in the log and should be in the archive."""
    found = {}
    for one in extents:
        wanted = ranges.get((one.topic, one.partition))
        if wanted is not None:
            start = max(wanted.start, one.start_offset)
            found[one.topic, one.partition] = Range(start=start, end=max(start, min(wanted.end, one.end_offset())))
    return found


def _table_tasks(
    split: Any, files: Mapping[Place, Sequence[TableFile]], cleaned: Mapping[TopicPartition, int]
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
