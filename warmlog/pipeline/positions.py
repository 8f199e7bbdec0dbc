"""From what is asked for (words, offsets, times) to the offsets that are read of each partition.

Owns: the rules of `startingOffsets` and its kin, and what happens where the offset is not there. Must not know: whether
the partition is a directory or behind a broker (`Extent` says what it must tell).

Source: org.apache.spark.sql.kafka010.KafkaOffsetReaderConsumer, KafkaSourceProvider.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.options import EARLIEST, LATEST, Place, ReadOptions


class Extent(Protocol):
    """What a partition must tell of itself."""

    @property
    def topic(self) -> str:
        """Its topic."""

    @property
    def partition(self) -> int:
        """Its number."""

    @property
    def start_offset(self) -> int:
        """The first offset that is there."""

    def end_offset(self, *, flushed_only: bool = False, committed_only: bool = False) -> int:
        """The offset after the last one to be read."""

    def offset_at_time(self, timestamp_ms: int) -> int | None:
        """The offset of the first record at or past a time; None if all are earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Offsets of a partition, `end` excluded."""

    start: int
    end: int


def resolve(partition: Extent, options: ReadOptions) -> Range:
    """Which offsets to read. Raises PipelineError; DataLossError where the first ones are gone."""
    end = _end(partition, options)
    start = _start(partition, options)
    return Range(start=min(start, end), end=end)  # what ends before it begins is nothing


def last_of(partition: Extent, options: ReadOptions) -> int:
    """The offset after the last one that these options let be read."""
    return partition.end_offset(flushed_only=options.flushed_only, committed_only=options.committed_only)


def check_named(partitions: Iterable[Extent], options: ReadOptions) -> None:
    """Raise PipelineError where the offsets asked for are not those of the partitions that are read."""
    there: dict[str, set[int]] = {}
    for partition in partitions:
        there.setdefault(partition.topic, set()).add(partition.partition)
    for name, place in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        if place.each is not None:
            _check_same(f"{name}ByTimestamp" if place.by_time else name, place.each, there)


def _check_same(name: str, each: Mapping[str, Mapping[int, int]], there: Mapping[str, set[int]]) -> None:
    told = {topic: set(numbers) for topic, numbers in each.items()}
    if told != there:
        raise PipelineError(f"{name} names {_listed(told)}, but what is read is {_listed(there)}")


def _listed(partitions: Mapping[str, set[int]]) -> str:
    names = [f"{topic}-{number}" for topic, numbers in sorted(partitions.items()) for number in sorted(numbers)]
    return ", ".join(names) or "nothing"


def _asked(partition: Extent, place: Place) -> int:
    if place.each is not None:
        return place.each[partition.topic][partition.partition]
    assert place.number is not None
    return place.number


def _start(partition: Extent, options: ReadOptions) -> int:
    asked = _asked(partition, options.start)
    first, end = partition.start_offset, last_of(partition, options)
    if options.start.by_time:
        return _start_at_time(partition, asked, options, end)
    if asked == EARLIEST:
        return first
    if asked == LATEST:
        return end
    if asked < first:
        _lost(partition, f"offset {asked} is gone: it begins at {first}", options)
        return first
    if asked > end:
        _lost(partition, f"offset {asked} is not there: it ends at {end}", options)
        return end
    return asked


def _start_at_time(partition: Extent, timestamp_ms: int, options: ReadOptions, end: int) -> int:
    found = partition.offset_at_time(timestamp_ms)
    if found is not None:
        return min(found, end)
    if options.starts_at_end_without_later:
        return end
    raise PipelineError(
        f"{partition.topic}-{partition.partition} has no record at or past {timestamp_ms} ms; "
        'startingOffsetsByTimestampStrategy="latest" reads nothing of it instead'
    )


def _end(partition: Extent, options: ReadOptions) -> int:
    asked = _asked(partition, options.end)
    last = last_of(partition, options)
    if options.end.by_time:
        found = partition.offset_at_time(asked)
        return last if found is None else min(found, last)
    if asked == LATEST:
        return last
    if asked > last:
        _lost(partition, f"offset {asked} is not there: it ends at {last}", options)
    return min(asked, last)


def _lost(partition: Extent, what: str, options: ReadOptions) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{partition.topic}-{partition.partition}: {what} (failOnDataLoss=false reads what is there)"
        )
