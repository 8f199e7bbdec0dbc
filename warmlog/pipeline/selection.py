"""What of a data directory is read: the partitions that are asked for, the offsets in them, and the splits of these.

Owns: putting options and filters together into a plan. Must not know: Spark, or how the plan is carried out.
"""

from contextlib import suppress
from dataclasses import dataclass

from protocol.records.record import MAX_INT64, MIN_INT64
from warmlog.pipeline.directory import StoredPartition, find_partitions
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.options import ReadOptions
from warmlog.pipeline.planning import Split, plan_splits
from warmlog.pipeline.positions import Extent, Range, check_named, resolve
from warmlog.pipeline.segments import SegmentGoneError

TRIES = 5  # to make a plan while a broker replaces segments; it does so every 15 s, not every millisecond


@dataclass(slots=True)
class Bounds:
    """What filters leave of a partition's records: offsets and times (ms) up to and with `last`, these partitions."""

    first_offset: int = MIN_INT64
    last_offset: int = MAX_INT64
    first_ms: int = MIN_INT64
    last_ms: int = MAX_INT64
    partitions: frozenset[int] | None = None

    def narrow(self, column: str, first: int | None, last: int | None) -> None:
        """Records outside of these are not wanted. `column`: offset, or timestamp in microseconds."""
        if column == "offset":
            self.first_offset = max(self.first_offset, MIN_INT64 if first is None else first)
            self.last_offset = min(self.last_offset, MAX_INT64 if last is None else last)
        else:
            self.first_ms = max(self.first_ms, MIN_INT64 if first is None else -(-first // 1000))
            self.last_ms = min(self.last_ms, MAX_INT64 if last is None else last // 1000)

    def keep(self, partitions: frozenset[int]) -> None:
        """Other partitions are not wanted."""
        self.partitions = partitions if self.partitions is None else self.partitions & partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is read: splits, and the offsets of each (topic, partition) that they hold together."""

    splits: list[Split]
    ranges: dict[tuple[str, int], Range]


def plan_read(options: ReadOptions, bounds: Bounds) -> Plan:
    """The splits of all that is asked for. Raises PipelineError, OSError."""
    for _ in range(TRIES):
        with suppress(SegmentGoneError):
            return _plan(options, bounds)
    return _plan(options, bounds)


def _plan(options: ReadOptions, bounds: Bounds) -> Plan:
    parts = [
        (partition, narrowed(partition, resolve(partition, options), bounds))
        for partition in wanted_partitions(options)
        if bounds.partitions is None or partition.partition in bounds.partitions
    ]
    ranges = {(partition.topic, partition.partition): wanted for partition, wanted in parts}
    return Plan(splits=plan_splits(parts, options), ranges=ranges)


def narrowed(partition: Extent, wanted: Range, bounds: Bounds) -> Range:
    """What filters leave of these offsets.

    All before the first record at or past a time is earlier; of what follows, nothing can be said.
    """
    start = max(wanted.start, bounds.first_offset)
    if bounds.first_ms > 0:
        with suppress(PipelineError):  # a damaged batch: whoever reads it says so
            found = partition.offset_at_time(bounds.first_ms)
            start = wanted.end if found is None else max(start, found)
    end = wanted.end if bounds.last_offset == MAX_INT64 else min(wanted.end, bounds.last_offset + 1)
    return Range(start=start, end=max(start, end))


def wanted_partitions(options: ReadOptions) -> list[StoredPartition]:
    """The partitions that are asked for, all named ones there. Raises PipelineError."""
    assert options.path is not None, "else there is a broker to be asked"
    stored = find_partitions(options.path)
    found = [partition for partition in stored if options.topics.wants(partition.topic, partition.partition)]
    missing = set(options.topics.named) - {partition.topic for partition in stored}
    if missing:
        raise PipelineError(f"{options.path}: no topic {', '.join(sorted(missing))} in it")
    for topic, numbers in (options.topics.assigned or {}).items():
        there = {partition.partition for partition in found if partition.topic == topic}
        if set(numbers) - there:
            raise PipelineError(f"{options.path}: no partition {min(set(numbers) - there)} of {topic} in it")
    check_named(found, options)
    return found
