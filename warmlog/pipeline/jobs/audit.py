"""The job behind `warmlog pipeline audit`: audit the segments of topics, and compare an archive with them.

An archive is compared by offsets and, if it has them, timestamps. Records that compaction or retention has since
removed from the log are not faults. Records that are missing in the archive, occur twice, have another timestamp or
were never in the log are faults.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from warmlog.broker.log.directory.checkpoint import CLEANER_POINTS, read_offsets
from warmlog.broker.log.errors import CheckpointError
from warmlog.broker.log.io.disk import Disk
from warmlog.inspect.broker_state import broker_is_running, is_idle, was_clean
from warmlog.inspect.metadata import StoredMetadata
from warmlog.inspect.partition import StoredPartition
from warmlog.pipeline.archive.store import Commit
from warmlog.pipeline.archive.table import TableFile, read_commits, read_in_order, table_files
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import JobStats, Reporter, Stopwatch
from warmlog.pipeline.jobs.audit_segment import MAX_FINDINGS, Audited, AuditFinding, Hour, SegmentTask, audit_segment
from warmlog.pipeline.jobs.table_proof import runs
from warmlog.pipeline.runner import Runner
from warmlog.pipeline.source.input import choose_input, read_batches, rules_of, wanted_partitions
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.planning import Split
from warmlog.pipeline.source.ranges import Extent, Range, key_of
from warmlog.pipeline.source.reading import ReadRules
from warmlog.protocol.partitions import TopicPartition


@dataclass(slots=True, kw_only=True)
class Compared:
    """Numbers of offsets: in both log and archive, `different` among those, only in one, duplicated in the archive.

    `compacted`: only in the archive, because compaction has removed them from the log. `earlier`: records of a deleted
    topic of the same name, which are not compared.
    """

    topic: str
    partition: int
    both: int = 0
    different: int = 0
    only_log: int = 0
    only_table: int = 0
    twice: int = 0
    compacted: int = 0
    earlier: int = 0
    findings: list[AuditFinding] = field(default_factory=list)
    stats: JobStats = field(default_factory=JobStats)

    def add(self, other: "Compared") -> None:
        """Add the counts of another split of the partition."""
        for name in ("both", "different", "only_log", "only_table", "twice", "compacted", "earlier"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.findings += other.findings


@dataclass(slots=True, kw_only=True)
class PartitionAudit:
    """Audit of a partition, by hour. `epochs`: leader epochs with their first offsets. `changed`: segments not checked.

    `unaccounted`: offsets from `first_offset` to `end_offset` that no count explains; 0 unless segments changed.
    """

    topic: str
    partition: int
    topic_id: str | None = None
    first_offset: int = 0
    end_offset: int = 0
    segments: int = 0
    changed: int = 0
    unaccounted: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    hours: list[Hour] = field(default_factory=list)
    table: Compared | None = None

    def total(self) -> Hour:
        """Return the sum of all hours."""
        whole = Hour(hour=None)
        for hour in self.hours:
            whole.add(hour)
        return whole


@dataclass(slots=True, kw_only=True)
class Audit:
    """Result of an audit. `finding_count` includes findings that were not stored."""

    partitions: list[PartitionAudit]
    findings: list[AuditFinding]
    finding_count: int

    def add_finding(self, finding: AuditFinding) -> None:
        """Add a finding."""
        self.findings.append(finding)
        self.finding_count += 1


def audit_topics(run: Runner, options: ReadOptions, reporter: Reporter, table: Path | None = None) -> Audit:
    """Audit partition directories, and compare an archive with them. Raises PipelineError, InspectError, OSError."""
    partitions = wanted_partitions(options)
    audit = Audit(
        partitions=[
            PartitionAudit(
                topic=partition.topic,
                partition=partition.partition,
                topic_id=partition.topic_id,
                first_offset=partition.start_offset,
                end_offset=partition.log_end_offset,
                segments=len(partition.segments),
            )
            for partition in partitions
        ],
        findings=[],
        finding_count=0,
    )
    for finding in _log_findings(partitions):
        audit.add_finding(finding)
    cleaned = _cleaned(partitions)
    tasks = [task for partition in partitions for task in _tasks(partition, cleaned)]
    audited = run(tasks, audit_segment, lambda task: task.end_position)
    _add(audit, audited, reporter)
    if table is not None:
        _add_compared(audit, compare(run, options, table, cleaned), reporter)
    audit.findings.sort(
        key=lambda partition: (partition.topic, partition.partition, partition.path, partition.position or 0)
    )
    reporter.set_details(findings=audit.finding_count)
    return audit


def cleaner_points(partitions: Iterable[StoredPartition]) -> dict[TopicPartition, int]:
    """Return the end of the compacted offsets of each partition, from the checkpoints in their data directories."""
    cleaned: dict[TopicPartition, int] = {}
    for directory, there in _by_data_directory(partitions).items():
        with suppress(CheckpointError):
            points = read_offsets(Disk(), str(directory / CLEANER_POINTS))
            cleaned |= {
                key_of(partition): points[key_of(partition)] for partition in there if key_of(partition) in points
            }
    return cleaned


def _by_data_directory(partitions: Iterable[StoredPartition]) -> dict[Path, list[StoredPartition]]:
    by_directory: dict[Path, list[StoredPartition]] = defaultdict(list)
    for partition in partitions:
        by_directory[Path(partition.directory).parent].append(partition)
    return by_directory


def _cleaned(partitions: Sequence[StoredPartition]) -> dict[TopicPartition, int]:
    """Return the largest possible end of the compacted offsets of each partition.

    While a broker is running, or after it was killed, the cleaner may be ahead of its checkpoint, which is written
    after each whole log, but never beyond the base offset of the active segment.
    """
    points, directories, compacted = cleaner_points(partitions), _by_data_directory(partitions), set()
    for directory in directories:  # one directory has the metadata of all directories
        metadata = StoredMetadata(directory, running=broker_is_running(directory))
        compacted |= {name for name in metadata.topics or {} if not metadata.is_gapless(name)}
    for directory, there in directories.items():
        if not broker_is_running(directory) and was_clean(directory):
            continue
        for partition in there:
            if partition.topic in compacted and partition.segments:
                points[key_of(partition)] = max(points.get(key_of(partition), 0), partition.segments[-1].base_offset)
    return points


def _tasks(partition: StoredPartition, cleaned: Mapping[TopicPartition, int]) -> Iterator[SegmentTask]:
    segments = partition.segments
    data_directory = Path(partition.directory).parent
    running = broker_is_running(data_directory)
    clean = not running and was_clean(data_directory)
    log_end = max(partition.log_end_offset, partition.start_offset)
    for at, segment in enumerate(segments):
        next_offset = segments[at + 1].base_offset if at + 1 < len(segments) else log_end
        at_rest = not running or is_idle(Path(segment.path))
        if next_offset <= partition.start_offset and at + 1 < len(segments):
            continue  # below the log start offset: deleted, and awaiting removal by retention
        yield SegmentTask(
            topic=partition.topic,
            partition=partition.partition,
            segment=segment,
            first_offset=max(segment.base_offset, partition.start_offset),
            next_offset=next_offset,
            end_position=partition.readable_size(segment),
            cleaned_until=cleaned.get((partition.topic, partition.partition), 0),
            at_rest=at_rest,
            closed=at_rest and (segment is not segments[-1] or clean),
        )


def _log_findings(partitions: Iterable[StoredPartition]) -> Iterator[AuditFinding]:
    """Report logs without segments, and logs that end before their recovery point."""
    for partition in partitions:
        path, end = partition.directory, partition.log_end_offset
        if not partition.segments:
            yield AuditFinding(
                topic=partition.topic, partition=partition.partition, kind="missing", what="no segments", path=path
            )
        elif partition.flushed_end is not None and partition.flushed_end > end:
            what = f"ends at offset {end}, although everything below {partition.flushed_end} was flushed"
            path = partition.segments[-1].path
            yield AuditFinding(
                topic=partition.topic, partition=partition.partition, kind="missing", what=what, path=path
            )


def _add(audit: Audit, audited: Sequence[Audited], reporter: Reporter) -> None:
    by_key = {(partition.topic, partition.partition): partition for partition in audit.partitions}
    hours: dict[TopicPartition, dict[int | None, Hour]] = {key: {} for key in by_key}
    for part in audited:
        key = part.topic, part.partition
        by_key[key].changed += part.changed
        for number, hour in part.hours.items():
            hours[key].setdefault(number, Hour(hour=number)).add(hour)
        audit.findings += part.findings
        audit.finding_count += part.finding_count
        _add_epochs(audit, by_key[key], part)
        reporter.add(part.stats)
    for key, audited_hours in hours.items():
        partition, known = by_key[key], [hour for hour in audited_hours.values() if hour != Hour(hour=hour.hour)]
        partition.hours = sorted(known, key=lambda hour: (hour.hour is None, hour.hour or 0))
        partition.unaccounted = max(partition.end_offset - partition.first_offset, 0) - partition.total().accounted


def _add_epochs(audit: Audit, partition: PartitionAudit, part: Audited) -> None:
    """Add the leader epochs of a segment, which must not be lower than in the segments before it."""
    for epoch, offset in part.epochs:
        last = partition.epochs[-1][0] if partition.epochs else epoch - 1
        if epoch > last:
            partition.epochs.append((epoch, offset))
        elif epoch < last:
            name = f"{partition.topic}-{partition.partition}"
            what = f"leader epoch {epoch} from offset {offset} on, after {last} in earlier segments"
            audit.add_finding(
                AuditFinding(topic=partition.topic, partition=partition.partition, kind="epoch", what=what, path=name)
            )


# -- the archive --


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTask:
    """A split of the log, and the files of the archive that may contain its offsets."""

    split: Split
    files: tuple[TableFile, ...]
    first_offset: int
    end_offset: int
    cleaned_until: int


def compare(run: Runner, options: ReadOptions, table: Path, cleaned: Mapping[TopicPartition, int]) -> list[Compared]:
    """Compare an archive with the log, split by split. Raises PipelineError, InspectError, OSError."""
    commits = read_commits(table)
    last = commits[-1].positions()
    if not set(options.topics.named) & {topic for topic, _ in last}:
        raise PipelineError(f"{table} has no records of {', '.join(options.topics.named)}")
    partitions = {(partition.topic, partition.partition): partition for partition in wanted_partitions(options)}
    topic_ids = {key: partition.topic_id for key, partition in partitions.items()}
    files, others = _by_topic(table_files(table, commits), topic_ids)
    archived = _archived(commits, topic_ids)
    plan = choose_input(options).plan(partial(_in_both, archived))
    tasks = [task for split in plan.splits for task in _table_tasks(split, files, cleaned)]
    findings = [_other_topics(table, key, others.get(key, ()), key in archived) for key in partitions if key in last]
    rules = replace(rules_of(options), on_corrupt="skip")  # the audit of the segment reports damage
    return [*findings, *run(tasks, partial(compare_split, rules), lambda task: task.split.size)]


def _by_topic(
    files: Mapping[TopicPartition, Sequence[TableFile]], topic_ids: Mapping[TopicPartition, str | None]
) -> tuple[dict[TopicPartition, list[TableFile]], dict[TopicPartition, list[TableFile]]]:
    """Divide the files of an archive into files of the current topics and files of earlier topics of the same names."""
    same: dict[TopicPartition, list[TableFile]] = {}
    others: dict[TopicPartition, list[TableFile]] = {}
    for key, listed in files.items():
        for file in listed:
            target = same if _is_same(file.topic_id, topic_ids.get(key)) else others
            target.setdefault(key, []).append(file)
    return same, others


def _archived(commits: Sequence[Commit], topic_ids: Mapping[TopicPartition, str | None]) -> dict[TopicPartition, Range]:
    """Return the offsets of each partition's log that the archive covers."""
    archived: dict[TopicPartition, Range] = {}
    for commit in commits:
        for (topic, partition), position in commit.positions().items():
            key = topic, partition
            if not _is_same(position.topic_id, topic_ids.get(key)):
                continue
            first, end = commit.spans[topic][str(partition)]
            before = archived.get(key, Range(start=first, end=end))
            archived[key] = Range(start=min(before.start, first), end=end)
    return archived


def _is_same(archived: str | None, in_log: str | None) -> bool:
    """Return whether two topic ids are the same; an archive of version 0.1, or a copied directory, may have none."""
    return archived == in_log or None in {archived, in_log}


def _other_topics(table: Path, key: TopicPartition, files: Sequence[TableFile], is_archived: bool) -> Compared:
    """Count the records of earlier topics of the same name; report a current one that is not in the archive."""
    done = Compared(topic=key[0], partition=key[1])
    if files:
        from pyarrow import parquet

        done.earlier = sum(parquet.read_metadata(file.path).num_rows for file in files)
    if not is_archived:
        what = "the archive has only records of a deleted topic of this name, and none of the current one"
        done.findings.append(AuditFinding(topic=key[0], partition=key[1], kind="table", what=what, path=str(table)))
    return done


def _in_both(archived: Mapping[TopicPartition, Range], extents: list[Extent]) -> dict[TopicPartition, Range]:
    """Return the offsets of each partition that are in the log and should be in the archive."""
    shared = {}
    for extent in extents:
        wanted = archived.get((extent.topic, extent.partition))
        if wanted is not None:
            start = max(wanted.start, extent.start_offset)
            shared[extent.topic, extent.partition] = Range(
                start=start, end=max(start, min(wanted.end, extent.end_offset()))
            )
    return shared


def _table_tasks(
    split: Any, files: Mapping[TopicPartition, Sequence[TableFile]], cleaned: Mapping[TopicPartition, int]
) -> Iterator[TableTask]:
    assert isinstance(split, Split), "an audit reads directories"
    key = split.topic, split.partition
    first, end = split.pieces[0].first_offset, split.pieces[-1].end_offset
    overlapping = [file for file in files.get(key, ()) if file.first_offset < end and file.end_offset > first]
    yield TableTask(
        split=split,
        files=tuple(overlapping),
        first_offset=first,
        end_offset=end,
        cleaned_until=cleaned.get(key, 0),
    )


def _add_compared(audit: Audit, compared: Sequence[Compared], reporter: Reporter) -> None:
    by_key: dict[TopicPartition, Compared] = {}
    for each in compared:
        key = each.topic, each.partition
        by_key.setdefault(key, Compared(topic=each.topic, partition=each.partition)).add(each)
        reporter.add(each.stats)
    for partition in audit.partitions:
        partition.table = by_key.get((partition.topic, partition.partition))
        if partition.table is not None:
            audit.findings += partition.table.findings[:MAX_FINDINGS]
            audit.finding_count += len(partition.table.findings)


def compare_split(rules: ReadRules, task: TableTask) -> Compared:
    """Compare one split with the archive. Runs in a worker. Raises PipelineError, InspectError, OSError."""
    import numpy as np

    watch = Stopwatch()
    done = Compared(topic=task.split.topic, partition=task.split.partition, stats=JobStats(tasks=1))
    in_log, log_times = watch.timed(_log_rows)(task, rules, done.stats)
    in_table, table_times = watch.timed(_table_rows)(task)
    unique, first, counts = np.unique(in_table, return_index=True, return_counts=True)
    both, at_log, at_table = np.intersect1d(in_log, unique, return_indices=True)
    only_log, only_table = np.setdiff1d(in_log, unique), np.setdiff1d(unique, in_log)
    gone = only_table < task.cleaned_until
    only_table, done.compacted = only_table[~gone], int(gone.sum())
    twice = unique[counts > 1]
    different = both[:0] if table_times is None else both[log_times[at_log] != table_times[first[at_table]]]
    done.both, done.different, done.twice = len(both), len(different), len(twice)
    done.only_log, done.only_table = len(only_log), len(only_table)
    for offsets, what in (
        (only_log, "in the log, but not in the archive"),
        (only_table, "in the archive, but not in the log"),
        (twice, "in the archive more than once"),
        (different, "different in the archive: their timestamps differ"),
    ):
        if len(offsets):
            done.findings.append(_finding(task, f"{runs(offsets)} {'is' if len(offsets) == 1 else 'are'} {what}"))
    done.stats.read_s = watch.seconds
    return done


def _finding(task: TableTask, what: str) -> AuditFinding:
    split = task.split
    name = f"{split.topic}-{split.partition}"
    return AuditFinding(topic=split.topic, partition=split.partition, kind="table", what=what, path=name)


def _log_rows(task: TableTask, rules: ReadRules, stats: JobStats) -> tuple[Any, Any]:
    """Return offsets and timestamps (microseconds) of the split."""
    import numpy as np

    from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches

    decoder = ArrowDecoder(task.split.topic, task.split.partition, ("offset", "timestamp"))
    steps, tally = read_batches(task.split, rules, decoder.add)
    parts = [(_numbers(batch, "offset"), _numbers(batch, "timestamp")) for batch in record_batches(decoder, steps)]
    stats.add_tally(tally)
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _table_rows(task: TableTask) -> tuple[Any, Any]:
    """Return offsets and timestamps (microseconds; None if the archive has none) of the same offsets in the archive."""
    import numpy as np

    offsets, times, has_times = [np.empty(0, np.int64)], [np.empty(0, np.int64)], True
    for batch in read_in_order(task.files, ("offset", "timestamp")):
        numbers = _numbers(batch, "offset")
        wanted = (numbers >= task.first_offset) & (numbers < task.end_offset)
        offsets.append(numbers[wanted])
        has_times = has_times and "timestamp" in batch.schema.names
        if has_times:
            times.append(_numbers(batch, "timestamp")[wanted])
    return np.concatenate(offsets), np.concatenate(times) if has_times else None


def _numbers(batch: Any, name: str) -> Any:
    import pyarrow as pa

    return batch.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False)
