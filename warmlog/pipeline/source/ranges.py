"""Resolve the bounds in options (words, offsets, timestamps) to the offsets to read from each partition.

Source: org.apache.spark.sql.kafka010.KafkaOffsetReaderConsumer, KafkaSourceProvider.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from warmlog.inspect.errors import InspectError
from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.source.options import EARLIEST, LATEST, Bound, ReadOptions
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.record import MAX_INT64, MIN_INT64


class Extent(Protocol):
    """Interface of a partition, in a directory or read from a broker."""

    @property
    def topic(self) -> str:
        """Name of the topic."""

    @property
    def partition(self) -> int:
        """Partition number."""

    @property
    def topic_id(self) -> str | None:
        """The topic id in URL-safe base64; None if unknown."""

    @property
    def start_offset(self) -> int:
        """The log start offset."""

    def epoch_before(self, offset: int) -> int | None:
        """Return an upper bound of the leader epochs of records before an offset; None if unknown."""

    def batch_at(self, offset: int) -> BatchHeader | None:
        """Return the header of the first batch that ends after an offset; None if there is no readable one."""

    def end_offset(self, *, flushed_only: bool = False, committed_only: bool = False) -> int:
        """Return the end of the readable offsets (exclusive)."""

    def offset_at_time(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or after a time, or None if all records are earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Offsets of a partition; `end` is excluded."""

    start: int
    end: int


Ranges: TypeAlias = Mapping[TopicPartition, Range]
Offsets: TypeAlias = Mapping[TopicPartition, int]


def key_of(extent: Extent) -> TopicPartition:
    """Return the topic and the number of a partition."""
    return extent.topic, extent.partition


def resolve(partition: Extent, options: ReadOptions) -> Range:
    """Return the offsets to read. Raises PipelineError, DataLossError if the first ones were deleted."""
    end = resolve_end(partition, options)
    start = _start(partition, options)
    if start > end and _are_comparable_now(partition, options):
        name = f"{partition.topic}-{partition.partition}"
        raise PipelineError(f"{name}: the start, offset {start}, is after the end, offset {end}")
    return Range(start=min(start, end), end=end)


def _are_comparable_now(partition: Extent, options: ReadOptions) -> bool:
    """Return whether one bound is a time and the other an offset. Others were compared when options were parsed."""
    offset = options.start if options.end.by_time else options.end
    return options.start.by_time != options.end.by_time and _bound_of(partition, offset) not in {EARLIEST, LATEST}


def last_of(partition: Extent, options: ReadOptions) -> int:
    """Return the end of the offsets that the options allow to read (exclusive)."""
    return partition.end_offset(flushed_only=options.flushed_only, committed_only=options.committed_only)


def check_named(partitions: Iterable[Extent], options: ReadOptions) -> None:
    """Raise PipelineError unless bounds per partition name exactly the partitions to read."""
    existing: dict[str, set[int]] = {}
    for partition in partitions:
        existing.setdefault(partition.topic, set()).add(partition.partition)
    for name, bound in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        if bound.each is not None:
            _check_same(f"{name}ByTimestamp" if bound.by_time else name, bound.each, existing)


def _check_same(name: str, each: Mapping[str, Mapping[int, int]], existing: Mapping[str, set[int]]) -> None:
    given = {topic: set(numbers) for topic, numbers in each.items()}
    if given != existing:
        raise PipelineError(f"{name} names {_listed(given)}, but the partitions to read are {_listed(existing)}")


def _listed(partitions: Mapping[str, set[int]]) -> str:
    names = [f"{topic}-{number}" for topic, numbers in sorted(partitions.items()) for number in sorted(numbers)]
    return ", ".join(names) or "none"


def _bound_of(partition: Extent, bound: Bound) -> int:
    if bound.each is not None:
        return bound.each[partition.topic][partition.partition]
    assert bound.number is not None
    return bound.number


def _start(partition: Extent, options: ReadOptions) -> int:
    wanted = _bound_of(partition, options.start)
    first, end = partition.start_offset, last_of(partition, options)
    if options.start.by_time:
        return _start_at_time(partition, wanted, options, end)
    if wanted == EARLIEST:
        return first
    if wanted == LATEST:
        return end
    if wanted < first:
        _lost(partition, f"offset {wanted} was deleted: the log starts at {first}", options)
        return first
    if wanted > end:
        _lost(partition, f"offset {wanted} does not exist: the log ends at {end}", options)
        return end
    return wanted


def _start_at_time(partition: Extent, timestamp_ms: int, options: ReadOptions, end: int) -> int:
    offset = partition.offset_at_time(timestamp_ms)
    if offset is not None:
        return min(offset, end)
    if options.starts_at_end_without_later:
        return end
    raise PipelineError(
        f"{partition.topic}-{partition.partition} has no record at or past {timestamp_ms} ms; "
        'startingOffsetsByTimestampStrategy="latest" reads nothing from such partitions'
    )


def resolve_end(partition: Extent, options: ReadOptions) -> int:
    """Return the offset at which to stop reading. Raises DataLossError if it does not exist."""
    wanted = _bound_of(partition, options.end)
    last = last_of(partition, options)
    if options.end.by_time:
        offset = partition.offset_at_time(wanted)
        return last if offset is None else min(offset, last)
    if wanted == LATEST:
        return last
    if wanted > last:
        _lost(partition, f"offset {wanted} does not exist: the log ends at {last}", options)
    return min(wanted, last)


def _lost(partition: Extent, what: str, options: ReadOptions) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{partition.topic}-{partition.partition}: {what} (failOnDataLoss=false reads what is left)"
        )


def cuts(wanted: Range, count: int, options: ReadOptions) -> list[int]:
    """Return the bounds of `count` parts of a range, about equal in offsets; empty for an empty range.

    There are more parts if `maxRecordsPerPartition` requires it.
    """
    size = wanted.end - wanted.start
    if not size:
        return []
    count = max(count, -(-size // (options.max_records_per_partition or size)))
    return [*(wanted.start + size * at // count for at in range(count)), wanted.end]


def limited(start: Offsets, ends: Offsets, most: int | None) -> dict[TopicPartition, int]:
    """Return the ends of a micro-batch of at most `most` offsets.

    Each partition gets its share of the available offsets, so that all reach their ends at the same time, but at least
    one offset, so that no partition waits for the others. If `most` is too small for that, partitions take turns.
    """
    behind = {key: end - start[key] for key, end in ends.items() if end > start[key]}
    total = sum(behind.values())
    if most is None or total <= most:
        shares = behind
    elif most < len(behind):
        keys, first = list(behind), sum(start.values()) % len(behind)  # advances by `most` each time
        shares = dict.fromkeys((keys + keys)[first : first + most], 1)
    else:
        shares = {key: max(size * most // total, 1) for key, size in behind.items()}
        rest = most - sum(shares.values())  # negative if shares were raised to one
        for key in sorted(shares, key=lambda key: shares[key], reverse=True):
            change = max(1 - shares[key], min(rest, behind[key] - shares[key]))
            shares[key] += change
            rest -= change
    return {key: start[key] + shares.get(key, 0) for key in ends}


@dataclass(slots=True)
class Bounds:
    """Limits from pushed filters: offsets and timestamps (ms), bounds inclusive, and partitions."""

    first_offset: int = MIN_INT64
    last_offset: int = MAX_INT64
    first_ms: int = MIN_INT64
    last_ms: int = MAX_INT64
    partitions: frozenset[int] | None = None

    def narrow(self, column: str, first: int | None, last: int | None) -> None:
        """Restrict a column to a range, bounds inclusive. `column`: offset, or timestamp in microseconds."""
        if column == "offset":
            self.first_offset = max(self.first_offset, MIN_INT64 if first is None else first)
            self.last_offset = min(self.last_offset, MAX_INT64 if last is None else last)
        else:
            self.first_ms = max(self.first_ms, MIN_INT64 if first is None else -(-first // 1000))
            self.last_ms = min(self.last_ms, MAX_INT64 if last is None else last // 1000)

    def keep(self, partitions: frozenset[int]) -> None:
        """Restrict to these partitions."""
        self.partitions = partitions if self.partitions is None else self.partitions & partitions

    def applied(self, partition: Extent, wanted: Range) -> Range:
        """Return the part of a range that may pass the filters.

        A lower bound in time becomes an offset, since all records before that offset are earlier. An upper bound does
        not.
        """
        start = max(wanted.start, self.first_offset)
        if self.first_ms > 0:
            with suppress(PipelineError, InspectError):  # a damaged batch; the read will report it
                offset = partition.offset_at_time(self.first_ms)
                start = wanted.end if offset is None else max(start, offset)
        end = wanted.end if self.last_offset == MAX_INT64 else min(wanted.end, self.last_offset + 1)
        return Range(start=start, end=max(start, end))
