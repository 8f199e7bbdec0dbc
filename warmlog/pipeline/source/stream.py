"""Spark's side of a stream: offsets as JSON, micro-batches, and the group's offsets at the broker.

    {"orders": {"0": 1200, "1": 994}}       the next offset by topic and partition, as stored in Spark's checkpoint

Invariants:
1. The offsets of a micro-batch determine its records, whoever reads them and however often. So with Spark's checkpoint
   and a sink that takes a micro-batch once, each record arrives once.
2. A group's offsets are committed when Spark says that a micro-batch is done, which it does when it begins the next.
   They are for people and lag tools; a stream continues where its checkpoint says.
3. Partitions that appear later are read from their beginning. Records that were deleted before they were read are an
   error, or a warning that counts them (`failOnDataLoss`); so are a partition that is gone, and a log that ends before
   the stream's offset, at whose end the stream then continues.
4. A broker that goes away during a query is waited for.

Source: org.apache.spark.sql.kafka010.KafkaMicroBatchStream.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.source.input import Input, choose_input
from warmlog.pipeline.source.options import EARLIEST, LATEST, Bound, ReadOptions
from warmlog.pipeline.source.ranges import (
    Bounds,
    Extent,
    Positions,
    Range,
    TopicPartition,
    key_of,
    last_of,
    limited,
    resolve,
)
from warmlog.pipeline.source.spark_splits import SplitPartition, read_partition

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Not called by older versions."""


_log = logging.getLogger(__name__)

T = TypeVar("T")
Offsets: TypeAlias = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. Lives in a process beside the driver; `read` is called in workers."""

    def __init__(self, options: ReadOptions) -> None:
        if options.end != Bound(number=LATEST):
            raise PipelineError("a stream has no end: endingOffsets and the like are for batch reads")
        start = Bound(number=LATEST) if options.starts_by_default else options.start
        self._options = replace(options, start=start)
        self._input = _stream_input(self._options)
        self.lost_offsets = 0  # of this query so far
        self._last: Offsets | None = None
        self._until: dict[TopicPartition, Range] | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Return where a stream without a checkpoint begins. Raises PipelineError, InspectError."""
        self._last = self._input.look(
            lambda extents: _as_json({key_of(extent): resolve(extent, self._options).start for extent in extents})
        )
        return self._last

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> Offsets:  # noqa: N802 - Spark's name
        """Return where the next micro-batch ends. Spark before 4.2 passes neither its start nor a limit."""
        begin = start if start is not None else self._last
        most = self._options.max_offsets_per_trigger if limit is None else getattr(limit, "max_rows", None)
        available = self._until or self._available()
        if begin is None:
            return _as_json({key: wanted.end for key, wanted in available.items()})
        before = _positions(begin)
        self._check_gone(before, available)
        starts = {key: before.get(key, wanted.start) for key, wanted in available.items()}
        ends = {key: wanted.end for key, wanted in available.items()}
        return _as_json({**limited(starts, ends, most), **self._truncated(starts, ends)})

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Return `maxOffsetsPerTrigger` as Spark's limit."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Return the ends of the logs, for the progress report."""
        return _as_json({key: wanted.end for key, wanted in self._available().items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit the query to what is available now."""
        self._until = self._available()

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Return the splits of a micro-batch. Raises PipelineError, DataLossError if its first records are gone."""
        self._last = end
        lost = self.lost_offsets

        def plan() -> list[InputPartition]:
            self.lost_offsets = lost  # counted again in each try
            found = self._input.plan(lambda extents: self._ranges(extents, start, end))
            return [SplitPartition(split) for split in found.splits]

        return self._patiently(plan)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the record batches of a split. In a worker."""
        return read_partition(partition, self._options, Bounds())

    def commit(self, end: Offsets) -> None:
        """Commit the group's offsets: micro-batches up to here are done. Raises PipelineError."""
        if self._options.group is None or self._options.bootstrap is None:
            return
        from warmlog.pipeline.source.remote import commit_offsets  # imports the client

        offsets = [(topic, partition, offset) for (topic, partition), offset in _positions(end).items()]
        bootstrap, group = self._options.bootstrap, self._options.group
        self._patiently(lambda: commit_offsets(bootstrap, group, offsets))

    def stop(self) -> None:
        """Do nothing: nothing is kept open."""

    def _available(self) -> dict[TopicPartition, Range]:
        """Return what can be read now."""
        everything = replace(self._options, start=Bound(number=EARLIEST))
        return self._patiently(
            lambda: self._input.look(lambda extents: {key_of(one): resolve(one, everything) for one in extents})
        )

    def _patiently(self, act: Callable[[], T]) -> T:
        """Call a function, again while the broker is away."""
        if self._options.bootstrap is None:
            return act()
        from warmlog.pipeline.broker import Retry  # imports the client

        return Retry().call(act)

    def _ranges(self, extents: list[Extent], start: Offsets, end: Offsets) -> dict[TopicPartition, Range]:
        existing = {key_of(extent): extent for extent in extents}
        starts = _positions(start)
        return {
            key: self._range(existing.get(key), key, starts.get(key), until) for key, until in _positions(end).items()
        }

    def _range(self, extent: Extent | None, key: TopicPartition, start: int | None, end: int) -> Range:
        name = f"{key[0]}-{key[1]}"
        if extent is None:
            self._lose(f"{name} is gone", end - (start or 0))
            return Range(start=end, end=end)
        first = extent.start_offset
        if start is not None and first > start:
            what = f"{name}: offsets {start} to {min(first, end) - 1} were deleted before they were read"
            self._lose(what, min(first, end) - start)
        last = last_of(extent, self._options)
        if end > last:
            self._lose(f"{name}: offset {end} does not exist: the log ends at {last}", end - max(last, start or 0))
        end = min(end, last)
        return Range(start=min(max(first, start or 0), end), end=end)

    def _check_gone(self, before: Positions, available: Mapping[TopicPartition, Range]) -> None:
        """Report partitions that were read and are gone; what was written to them since is lost."""
        for topic, partition in before.keys() - available.keys():
            self._lose(f"{topic}-{partition} is gone, or not asked for any more", 0)

    def _truncated(self, starts: Positions, ends: Positions) -> Positions:
        """Return the ends of logs that end before the stream's offset; records up to there would be skipped else."""
        if self._options.flushed_only:
            return {}  # a recovery point that cannot be read looks like a truncation for a while
        cut = {key: end for key, end in ends.items() if end < starts[key]}
        for (topic, partition), end in cut.items():
            start = starts[topic, partition]
            what = f"{topic}-{partition}: offset {start} does not exist any more: the log ends at {end}"
            self._lose(what, start - end)
        return cut

    def _lose(self, what: str, count: int) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{what} (failOnDataLoss=false reads on without them)")
        self.lost_offsets += count
        _log.warning("%s: %d offsets lost, %d in this query so far", what, count, self.lost_offsets)


def _stream_input(options: ReadOptions) -> Input:
    """Return the input of a stream: both, unless only flushed records are wanted, which a broker does not tell."""
    if options.path is None or options.bootstrap is None or options.flushed_only:
        return choose_input(options)
    from warmlog.pipeline.source.handover import HandoverInput  # imports the client

    return HandoverInput(options)


def _as_json(positions: Positions) -> Offsets:
    offsets: Offsets = {}
    for (topic, partition), offset in sorted(positions.items()):
        offsets.setdefault(topic, {})[str(partition)] = offset
    return offsets


def _positions(offsets: Offsets) -> dict[TopicPartition, int]:
    return {
        (topic, int(partition)): offset for topic, listed in offsets.items() for partition, offset in listed.items()
    }
