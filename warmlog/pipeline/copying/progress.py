"""Progress of a job that copies topics in batches: positions, and the choice of the next batch.

1. A batch starts at the positions of the last commit, and at the log start of new partitions.
2. A batch has at most `maxOffsetsPerTrigger` offsets, so a kill wastes at most one batch's work.
3. A loss is an error, or a warning that is logged once and counted; never silent.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from warmlog.pipeline.errors import DataLossError
from warmlog.pipeline.source.offsets import Position, continue_at, position_at
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.ranges import Extent, Range, key_of, last_of, limited, resolve, resolve_end
from warmlog.protocol.partitions import TopicPartition

_log = logging.getLogger(__name__)

DEFAULT_BATCH_OFFSETS = 10_000_000  # a gigabyte of small records: a kill wastes a few seconds of work
MIN_SPLIT_OFFSETS = 250_000  # when reading from a broker: a task costs a few milliseconds, and writes a file


class Progress:
    """A job's positions, and the choice of its next batch. `positions`: at the last commit, None before the first.

    `until`: where the job ends, None for an endless job. `reached`: the ends of the last chosen batch. `lost`: number
    of offsets that no longer existed when it was chosen, and `lost_before` the same by partition.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.positions: dict[TopicPartition, Position] | None = None
        self.until: Mapping[TopicPartition, int] | None = None
        self.reached: dict[TopicPartition, Position] = {}
        self.lost = 0
        self.lost_before: dict[TopicPartition, int] = {}
        self._warned: set[str] = set()

    @property
    def is_lenient(self) -> bool:
        """Whether to continue without named topics that no longer exist."""
        return self.positions is not None and not self.options.fail_on_data_loss

    def split_options(self, parallelism: int) -> ReadOptions:
        """Return options with a number of splits for a broker, unless one is given."""
        options = self.options
        if options.path is not None or options.min_partitions is not None:
            return options
        return replace(options, min_partitions=2 * parallelism, min_split_offsets=MIN_SPLIT_OFFSETS)

    def choose(self, extents: list[Extent], most: int | None = None) -> dict[TopicPartition, Range]:
        """Return the offsets of the next batch, at most `most` of them. Raises PipelineError, DataLossError."""
        self.lost, self.lost_before = 0, {}
        for topic, partition in (self.positions or {}).keys() - {key_of(extent) for extent in extents}:
            if self.options.topics.wants(topic, partition):
                self.warn(f"{topic}-{partition} is gone")
        wanted = {key_of(extent): extent for extent in extents if self._is_wanted(key_of(extent))}
        pending = self._pending(wanted.values())
        starts = {key: start for key, (start, _) in pending.items()}
        ends = {key: max(end, start) for key, (start, end) in pending.items()}
        reached = limited(starts, ends, most or self.options.max_offsets_per_trigger or DEFAULT_BATCH_OFFSETS)
        before = self.positions or {}
        self.reached = {key: position_at(extent, reached[key], before.get(key)) for key, extent in wanted.items()}
        return {key: Range(start=starts[key], end=reached[key]) for key in wanted}

    def pending(self, extents: Iterable[Extent]) -> dict[TopicPartition, Range]:
        """Return all offsets that have not been copied yet. Raises PipelineError, DataLossError."""
        return {key: Range(start=start, end=max(end, start)) for key, (start, end) in self._pending(extents).items()}

    def ends(self, extents: Iterable[Extent]) -> dict[TopicPartition, int]:
        """Return the current ends of partitions, for `until`. Raises DataLossError."""
        return {key_of(extent): resolve_end(extent, self.options) for extent in extents}

    def _pending(self, extents: Iterable[Extent]) -> dict[TopicPartition, tuple[int, int]]:
        return {key_of(extent): (self._start(extent), self._end(extent)) for extent in extents}

    def _is_wanted(self, key: TopicPartition) -> bool:
        return self.until is None or key in self.until

    def _start(self, extent: Extent) -> int:
        """Return the position to continue at: the end of the last commit, or the start of a new partition."""
        if self.positions is None:
            return resolve(extent, self.options).start
        position = self.positions.get(key_of(extent))
        if position is None:
            return extent.start_offset
        end = last_of(extent, self.options)
        if self.options.flushed_only:
            end = max(end, position.offset)  # recovery points are checkpointed late, and may decrease
        return continue_at(extent, position, end, partial(self._lose, key_of(extent)))

    def _end(self, extent: Extent) -> int:
        end = resolve_end(extent, self.options)
        return end if self.until is None else min(end, self.until[key_of(extent)])

    def _lose(self, key: TopicPartition, what: str, count: int) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{what} (failOnDataLoss=false copies what is left)")
        self.warn(what)
        self.lost += count
        self.lost_before[key] = self.lost_before.get(key, 0) + count

    def warn(self, what: str) -> None:
        """Log a warning once."""
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s", what)
