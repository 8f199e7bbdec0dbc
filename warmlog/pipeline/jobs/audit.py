"""The job behind `warmlog pipeline audit` without a table: audit the segments of topics."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from warmlog.broker.log.directory.checkpoint import CLEANER_POINTS, read_offsets
from warmlog.broker.log.errors import CheckpointError
from warmlog.broker.log.io.disk import Disk
from warmlog.inspect.broker_state import broker_is_running, is_idle, was_clean
from warmlog.inspect.metadata import StoredMetadata
from warmlog.inspect.partition import StoredPartition
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.audit_segment import Audited, AuditFinding, Hour, SegmentTask, audit_segment
from warmlog.pipeline.runner import Runner
from warmlog.pipeline.source.input import wanted_partitions
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.ranges import key_of
from warmlog.protocol.partitions import TopicPartition


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


def audit_topics(run: Runner, options: ReadOptions, reporter: Reporter) -> Audit:
    """Audit partition directories. Raises PipelineError, InspectError, OSError."""
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
