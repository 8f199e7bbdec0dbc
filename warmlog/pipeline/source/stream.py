"""The stream reader called by Spark: offsets as JSON, micro-batches, and the group's offsets at the broker.

Spark's checkpoint has offsets in the format of `source.offsets`.

Invariants:
1. The offsets of a micro-batch determine its records, in every attempt. So with Spark's checkpoint and an idempotent
   sink, each record is delivered exactly once. The end of a query's first micro-batch also holds its start.
2. A group's offsets are committed when Spark reports that a micro-batch is done, which it does when it begins the next.
   They are only for monitoring the lag; a stream continues from its checkpoint, even if they cannot be committed.
3. Partitions that appear later are read from their start. Losses are an error, or a warning that counts them
(`failOnDataLoss`): records that were deleted before they were read, a partition that was deleted, a topic that was
recreated (it is read from its start), a log that was truncated (it is read from the truncation on).
4. If the broker is unavailable during a query, the query retries.

Source: org.apache.spark.sql.kafka010.KafkaMicroBatchStream.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.source.input import Input, choose_input
from warmlog.pipeline.source.offsets import (
    Lose,
    OffsetsForm,
    Position,
    Positions,
    continue_at,
    form_of,
    is_recreated,
    position_at,
    positions_of,
    start_of,
    with_start,
)
from warmlog.pipeline.source.options import EARLIEST, LATEST, Bound, ReadOptions
from warmlog.pipeline.source.ranges import Bounds, Extent, Range, key_of, last_of, limited, resolve
from warmlog.pipeline.source.reading import recreated
from warmlog.pipeline.source.spark_splits import input_partitions, read_partition
from warmlog.protocol.partitions import TopicPartition

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Placeholder: older versions do not use it."""


_log = logging.getLogger(__name__)

T = TypeVar("T")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. Runs in a process beside the driver, except `read`, which is called in workers."""

    def __init__(self, options: ReadOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        if options.end != Bound(number=LATEST):
            raise PipelineError("a stream has no end: endingOffsets and the like are for batch reads")
        start = Bound(number=LATEST) if options.starts_by_default else options.start
        self._options = replace(options, start=start)
        self._input = _stream_input(replace(options, start=Bound(number=EARLIEST)), patient=True)
        self.lost_offsets = 0  # offsets lost in this query so far
        self._first: OffsetsForm | None = None  # start of the query if it is new
        self._initial: OffsetsForm | None = None  # start reported to Spark in this run for a new query
        self._last: OffsetsForm | None = None
        self._has_begun = False  # whether a micro-batch of this run has been planned
        self._until: dict[TopicPartition, int] | None = None
        self._reported: set[str] = set()
        self._clock = clock
        self._triggered_at: float | None = None

    def initialOffset(self) -> OffsetsForm:  # noqa: N802 - Spark's name
        """Return the start of a stream without a checkpoint. Raises PipelineError, InspectError."""
        self._initial = self._last = self._first or self._find_first()
        return self._initial

    def latestOffset(self, start: OffsetsForm | None = None, limit: Any = None) -> OffsetsForm:  # noqa: N802
        """Return the end of the next micro-batch.

        Spark before 4.2 passes neither its start nor a limit. Then the first micro-batch of a run takes all records,
        since with `Trigger.AvailableNow` the query ends after it.
        """
        begin = start if start is not None else self._last
        if begin is None:  # before Spark 4.2, which does not report whether the query is new
            self._first = self._find_first()
            return with_start(form_of(self._with_extents(self._ends)), self._first)
        if start is None and not self._has_begun:
            most = None
        else:
            most = self._options.max_offsets_per_trigger if limit is None else getattr(limit, "max_rows", None)
        before = positions_of(begin)
        offset = self._with_extents(lambda extents: self._next(extents, before, most)) or before
        if begin == self._initial:
            return with_start(form_of(offset), begin)
        self._initial = None
        return begin if offset == before else form_of(offset)

    def _find_first(self) -> OffsetsForm:
        options = self._options

        def begin(extents: list[Extent]) -> OffsetsForm:
            return form_of({key_of(extent): position_at(extent, resolve(extent, options).start) for extent in extents})

        return _stream_input(options).with_extents(begin)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Return `maxOffsetsPerTrigger` as Spark's limit."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the ends of the logs and the stream's lag, for the progress report.

        Spark has no metrics for Python sources (none up to 4.3), and shows this as `latestOffset`.
        """

        def ends(extents: list[Extent]) -> dict[TopicPartition, Position]:
            return {key_of(extent): Position(offset=self._end(extent), topic_id=extent.topic_id) for extent in extents}

        latest = self._with_extents(ends)
        reached = {} if self._last is None else positions_of(self._last)
        behind = [max(latest[key].offset - at.offset, 0) for key, at in reached.items() if key in latest] or [0]
        metrics = {
            "minOffsetsBehindLatest": min(behind),
            "maxOffsetsBehindLatest": max(behind),
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
            "offsetsBehindLatest": sum(behind),
        }
        return {"offsets": form_of(latest), "metrics": metrics}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit the query to the records that exist now."""
        self._until = self._with_extents(lambda extents: {key_of(extent): self._end(extent) for extent in extents})

    def partitions(self, start: OffsetsForm, end: OffsetsForm) -> list[InputPartition]:
        """Return the splits of a micro-batch. Raises PipelineError, DataLossError if its first records were deleted."""
        self._last = end
        self._has_begun = self._has_begun or start != end  # Spark 4.1 continues with an empty range
        if start == self._initial:  # start of the first micro-batch, which an earlier run may have planned
            start = start_of(end) or start
        lost, starts, ends = self.lost_offsets, positions_of(start), positions_of(end)

        def choose(extents: list[Extent]) -> dict[TopicPartition, Range]:
            self.lost_offsets = lost  # losses of a repeated plan are counted again
            return self._ranges(extents, starts, ends)

        splits = self._input.plan(choose, lenient=True)
        return input_partitions(splits.splits, self._options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the record batches of a split. In a worker."""
        return read_partition(partition, self._options, Bounds())

    def commit(self, end: OffsetsForm) -> None:
        """Commit the group's offsets after the micro-batches up to here are done. Only the first failure is logged."""
        if self._options.group is None or self._options.brokers is None:
            return
        from warmlog.pipeline.source.remote import commit_offsets  # imports the client

        offsets = {key: at.offset for key, at in positions_of(end).items()}
        brokers, group = self._options.brokers, self._options.group
        try:
            commit_offsets(brokers, group, offsets)
        except PipelineError as error:  # the next micro-batch commits later offsets, and no data depends on them
            self._warn(f"offsets of group {group} not committed: {error}")

    def stop(self) -> None:
        """Do nothing, since no resources are kept open."""

    # -- the end of a micro-batch --

    def _ends(self, extents: list[Extent]) -> Positions:
        """Return the end of all records available now."""
        return {key: position_at(extent, self._end(extent)) for key, extent in self._available(extents).items()}

    def _next(self, extents: list[Extent], before: Positions, most: int | None) -> Positions | None:
        """Return the end of the next micro-batch; None if it must wait for more records."""
        available = self._available(extents)
        gone = {key: position for key, position in before.items() if key not in available}
        for topic, partition in gone:
            self._report(f"{topic}-{partition} was deleted or is no longer selected", 0)
        starts = {key: self._start(extent, before.get(key), self._report) for key, extent in available.items()}
        ends = {key: max(self._end(extent), starts[key]) for key, extent in available.items()}
        if not self._is_due(sum(ends[key] - starts[key] for key in starts)):
            return None
        reached = limited(starts, ends, most)
        # Keep the positions of missing partitions: they may return, for example when a directory is remounted.
        return gone | {key: position_at(extent, reached[key], before.get(key)) for key, extent in available.items()}

    def _available(self, extents: list[Extent]) -> dict[TopicPartition, Extent]:
        return {key_of(extent): extent for extent in extents if self._until is None or key_of(extent) in self._until}

    def _is_due(self, available: int) -> bool:
        """Return whether there are enough records for a micro-batch, or it has waited long enough."""
        least, now = self._options.min_offsets_per_trigger, self._clock()
        if least is None or self._until is not None:
            return True
        waited_s = None if self._triggered_at is None else now - self._triggered_at
        if waited_s is not None and available < least and waited_s < self._options.max_trigger_delay_ms / 1000:
            return False
        self._triggered_at = now
        return True

    def _end(self, extent: Extent) -> int:
        """Return the end of a partition's offsets in this query."""
        end = last_of(extent, self._options)
        return end if self._until is None else min(end, self._until.get(key_of(extent), end))

    def _start(self, extent: Extent, position: Position | None, lose: Lose) -> int:
        """Return the positions to continue at. Partitions new to the query are read from their start."""
        if position is None:
            return extent.start_offset
        end = last_of(extent, self._options)
        if self._options.flushed_only:
            end = max(end, position.offset)  # an unreadable recovery point must not be mistaken for a truncation
        return continue_at(extent, position, end, lose)

    def _with_extents(self, see: Callable[[list[Extent]], T]) -> T:
        return self._input.with_extents(see, lenient=True)

    # -- the content of a micro-batch --

    def _ranges(self, extents: list[Extent], starts: Positions, ends: Positions) -> dict[TopicPartition, Range]:
        existing = {key_of(extent): extent for extent in extents}
        return {key: self._range(existing.get(key), key, starts.get(key), end) for key, end in ends.items()}

    def _range(self, extent: Extent | None, key: TopicPartition, start: Position | None, end: Position) -> Range:
        name = f"{key[0]}-{key[1]}"
        begin = 0 if start is None or start.topic_id not in {None, end.topic_id} else start.offset
        if extent is None:
            self._lose(f"{name} no longer exists", end.offset - begin)
            return Range(start=end.offset, end=end.offset)
        if is_recreated(extent, end):
            self._lose(f"{name}: {recreated(end.topic_id, extent.topic_id)}", end.offset - begin)
            return Range(start=end.offset, end=end.offset)
        first = self._start(extent, start, self._lose)
        last = last_of(extent, self._options)
        if end.offset > last:
            what = f"{name}: offset {end.offset} does not exist: the log ends at {last}"
            self._lose(what, end.offset - max(last, first))
        return Range(start=min(first, end.offset, last), end=min(end.offset, last))

    def _report(self, what: str, _count: int) -> None:
        """Report a loss that planning the micro-batch will count. Raises DataLossError."""
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{what} (failOnDataLoss=false reads on without them)")
        self._warn(what)

    def _warn(self, what: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            _log.warning("%s", what)

    def _lose(self, what: str, count: int) -> None:
        """Count and report lost offsets. Raises DataLossError."""
        self._report(what, count)
        if count:
            self.lost_offsets += count
            _log.warning("%s: %d offsets lost, %d in this query so far", what, count, self.lost_offsets)


def _stream_input(options: ReadOptions, *, patient: bool = False) -> Input:
    """Return the input of a stream: directory and broker, or one of them. Brokers do not report recovery points."""
    if options.path is None or options.brokers is None or options.flushed_only:
        return choose_input(options, patient=patient)
    from warmlog.pipeline.source.handover import HandoverInput  # imports the client

    return HandoverInput(options, patient=patient)
