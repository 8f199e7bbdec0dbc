"""Spark's side of a stream: offsets as JSON, micro-batches, and the group's offsets at the broker.

Owns: what a stream's offsets are and how far the next micro-batch goes. Must not know: how a split is read.

    {"orders": {"0": 1200, "1": 994}}       by topic and partition, the next offset; it stands in Spark's checkpoint

Invariants:
1. The offsets of a micro-batch decide which records are in it, whoever reads them, however often: with Spark's
   checkpoint and a sink that takes a batch once, each record arrives once.
2. A group's offsets are committed when Spark says that a micro-batch is done, which it does as it begins the next one.
   They are for people and lag tools; a stream goes on where its checkpoint says.
3. Partitions that come later are read from their beginning. Records that went before they were read are an error, or a
   warning that counts them (`failOnDataLoss`); so are a partition that is gone, and a log that ends before the stream's
   offset, with which the stream then goes on at its end.
4. With both, a directory and a broker, what is there when the query begins is read from the directory (`handover`).
5. A broker that goes away in mid-query is waited for (`remote.PATIENCE_S`).

Source: org.apache.spark.sql.kafka010.KafkaMicroBatchStream.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.options import EARLIEST, LATEST, Place, ReadOptions
from warmlog.pipeline.planning import plan_splits
from warmlog.pipeline.positions import Extent, Range, last_of, resolve
from warmlog.pipeline.selection import Bounds, wanted_partitions
from warmlog.pipeline.splits import SplitPartition, read_partition

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2 a source was not told how much to take

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nobody asks."""


if TYPE_CHECKING:
    from warmlog.pipeline.handover import Handover

_log = logging.getLogger(__name__)

T = TypeVar("T")
Offsets: TypeAlias = dict[str, dict[str, int]]
Places: TypeAlias = Mapping[tuple[str, int], int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes, from directories or from a broker. Lives in a process beside the driver; `read` in workers."""

    def __init__(self, options: ReadOptions) -> None:
        if options.end != Place(number=LATEST):
            raise PipelineError("a stream has no end: endingOffsets and its kin are for batch jobs")
        start = Place(number=LATEST) if options.starts_by_default else options.start
        self._options = replace(options, start=start)
        self._handover = _handover(self._options)
        self.lost_offsets = 0  # of this query so far
        self._last: Offsets | None = None
        self._until: dict[tuple[str, int], Range] | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Where a stream without a checkpoint begins. Raises PipelineError."""
        with _extents(self._options) as extents:
            self._last = _as_json({_place(extent): resolve(extent, self._options).start for extent in extents})
            return self._last

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> Offsets:  # noqa: N802 - Spark's name
        """How far the next micro-batch goes. Spark before 4.2 says neither where it begins nor how much to take."""
        begin = start if start is not None else self._last
        most = self._options.max_offsets_per_trigger if limit is None else getattr(limit, "max_rows", None)
        there = self._until or self._there()
        if begin is None:
            return _as_json({place: wanted.end for place, wanted in there.items()})
        before = _places(begin)
        self._miss(before, there)
        starts = {place: before.get(place, wanted.start) for place, wanted in there.items()}
        ends = {place: wanted.end for place, wanted in there.items()}
        return _as_json({**limited(starts, ends, most), **self._cut(starts, ends)})

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """`maxOffsetsPerTrigger`, as Spark puts it."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """The ends of the logs, for the progress report."""
        return _as_json({place: wanted.end for place, wanted in self._there().items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on there is no more than there is."""
        self._until = self._there()

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """The splits of a micro-batch. Raises PipelineError; DataLossError where its first records are gone."""
        self._last = end
        lost = self.lost_offsets

        def plan() -> list[Any]:
            self.lost_offsets = lost  # what was counted before the broker went away is counted anew
            return self._planned(start, end)

        return [SplitPartition(split) for split in self._patiently(plan)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of a split. In a worker."""
        return read_partition(partition, self._options, Bounds())

    def commit(self, end: Offsets) -> None:
        """The micro-batches up to here are done: the group's offsets tell so. Raises PipelineError."""
        if self._options.group is None or self._options.bootstrap is None:
            return
        from warmlog.pipeline.remote import commit_offsets  # as below

        offsets = [(topic, partition, offset) for (topic, partition), offset in _places(end).items()]
        bootstrap, group = self._options.bootstrap, self._options.group
        self._patiently(lambda: commit_offsets(bootstrap, group, offsets))

    def stop(self) -> None:
        """Nothing is kept open."""

    def _there(self) -> dict[tuple[str, int], Range]:
        """What can be read now."""
        return self._patiently(self._there_now)

    def _there_now(self) -> dict[tuple[str, int], Range]:
        everything = replace(self._options, start=Place(number=EARLIEST))
        with _extents(everything) as extents:
            return {_place(extent): resolve(extent, everything) for extent in extents}

    def _patiently(self, act: Callable[[], T]) -> T:
        """What `act` gives; a broker that is away for a while does not end the query."""
        if self._options.bootstrap is None:
            return act()
        from warmlog.pipeline.remote import patiently  # who reads directories does without

        return patiently(act)

    def _planned(self, start: Offsets, end: Offsets) -> list[Any]:
        with _extents(replace(self._options, start=Place(number=EARLIEST))) as extents:
            there = {_place(extent): extent for extent in extents}
            ranges = {
                place: self._range(there.get(place), place, _places(start).get(place), until)
                for place, until in _places(end).items()
            }
            return self._split(there, ranges)

    def _range(self, extent: Extent | None, place: tuple[str, int], start: int | None, end: int) -> Range:
        name = f"{place[0]}-{place[1]}"
        if extent is None:
            self._lose(f"{name} is gone", end - (start or 0))
            return Range(start=end, end=end)
        first = extent.start_offset
        if start is not None and first > start:
            what = f"{name}: offsets {start} to {min(first, end) - 1} were deleted before they were read"
            self._lose(what, min(first, end) - start)
        last = last_of(extent, self._options)
        if end > last:
            self._lose(f"{name}: offset {end} is not there: it ends at {last}", end - max(last, start or 0))
        end = min(end, last)
        return Range(start=min(max(first, start or 0), end), end=end)

    def _miss(self, before: Places, there: Mapping[tuple[str, int], Range]) -> None:
        """Partitions that were read and are not there any more: what they got since, nobody will read."""
        for topic, partition in before.keys() - there.keys():
            self._lose(f"{topic}-{partition} is gone, or not asked for any more", 0)

    def _cut(self, starts: Places, ends: Places) -> Places:
        """The ends of logs that end before where the stream is: made anew, or cut by a loss of power.

        Else all that comes below the old end would be passed by, and nobody told.
        """
        if self._options.flushed_only:
            return {}  # where the recovery point cannot be read, nothing counts as flushed for a while
        cut = {place: end for place, end in ends.items() if end < starts[place]}
        for (topic, partition), end in cut.items():
            start = starts[topic, partition]
            self._lose(f"{topic}-{partition}: offset {start} is not there any more: it ends at {end}", start - end)
        return cut

    def _lose(self, what: str, count: int) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{what} (failOnDataLoss=false reads on without them)")
        self.lost_offsets += count
        _log.warning("%s: %d offsets, %d in this query so far", what, count, self.lost_offsets)

    def _split(self, there: Mapping[tuple[str, int], Any], ranges: Mapping[tuple[str, int], Range]) -> list[Any]:
        options = self._options
        if self._handover is not None:
            return self._handover.plan(there.values(), ranges)
        if options.path is not None:
            return list(
                plan_splits([(there[place], wanted) for place, wanted in ranges.items() if place in there], options)
            )
        from warmlog.pipeline.remote import plan_remote  # as below

        assert options.bootstrap is not None, "the options see to it"
        return list(plan_remote(options.bootstrap, ranges, options.min_partitions))


def limited(start: Places, ends: Places, most: int | None) -> Places:
    """How far a micro-batch of at most so many offsets goes: each partition by its share of what there is to read.

    What is left by rounding goes to the first ones, so that there is always some progress.
    """
    behind = {place: max(end - start[place], 0) for place, end in ends.items()}
    total = sum(behind.values())
    if most is None or total <= most:
        return {place: max(end, start[place]) for place, end in ends.items()}
    shares = {place: size * most // total for place, size in behind.items()}
    rest = most - sum(shares.values())
    for place, size in behind.items():
        more = min(rest, size - shares[place])
        shares[place] += more
        rest -= more
    return {place: start[place] + share for place, share in shares.items()}


@contextmanager
def _extents(options: ReadOptions) -> Iterator[list[Extent]]:
    """The partitions that are asked for, as long as they may be asked of themselves."""
    if options.path is not None and not _hands_over(options):
        yield list(wanted_partitions(options))
        return
    from warmlog.pipeline.remote import remote_partitions  # who reads directories does without
    from warmlog.pipeline.wire import BrokerConnection

    assert options.bootstrap is not None, "the options see to it"
    with BrokerConnection(options.bootstrap) as broker:
        yield list(remote_partitions(broker, options))


def _hands_over(options: ReadOptions) -> bool:
    """Whether the broker has what the directory does not have yet. What is flushed stands in directories only."""
    return options.path is not None and options.bootstrap is not None and not options.flushed_only


def _handover(options: ReadOptions) -> "Handover | None":
    if not _hands_over(options):
        return None
    from warmlog.pipeline.handover import Handover  # who has only one of the two does without

    return Handover(options)


def _place(extent: Extent) -> tuple[str, int]:
    return extent.topic, extent.partition


def _as_json(places: Places) -> Offsets:
    offsets: Offsets = {}
    for (topic, partition), offset in sorted(places.items()):
        offsets.setdefault(topic, {})[str(partition)] = offset
    return offsets


def _places(offsets: Offsets) -> dict[tuple[str, int], int]:
    return {
        (topic, int(partition)): offset for topic, listed in offsets.items() for partition, offset in listed.items()
    }
