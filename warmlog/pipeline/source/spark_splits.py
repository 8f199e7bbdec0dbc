"""Pass splits through Spark to workers, and return their records as Arrow batches."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from warmlog.pipeline.packing import packed
from warmlog.pipeline.session import freeze_imports
from warmlog.pipeline.source.input import Readers, rules_of
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import AnySplit, size_of_split
from warmlog.pipeline.source.ranges import Bounds
from warmlog.pipeline.source.reading import ReadRules

LEAST_TASKS = 64  # fewer splits are not packed: rows may cost more to process than to read


class SplitPartition(InputPartition):
    """The splits of one task, for Spark to pass to a worker."""

    def __init__(self, splits: Sequence[AnySplit]) -> None:
        super().__init__(None)
        self.splits = tuple(splits)


def input_partitions(splits: Sequence[AnySplit], options: ReadOptions) -> list[InputPartition]:
    """Return Spark's partitions: the splits of each task."""
    if options.max_records_per_partition is not None:
        return [SplitPartition((split,)) for split in splits]
    least = max(LEAST_TASKS, options.min_partitions or 0)
    return [SplitPartition(some) for some in packed(splits, size_of_split, least)]


def read_partition(partition: InputPartition, options: ReadOptions, bounds: Bounds) -> Iterator[Any]:
    """Return the record batches of a task's splits. Raises PipelineError, InspectError, OSError."""
    if not isinstance(partition, SplitPartition):  # Spark's placeholder if there are no splits
        return iter(())
    if TaskContext.get() is not None:
        freeze_imports()
    rules = replace(rules_of(options), first_ms=bounds.first_ms, last_ms=bounds.last_ms)
    return _record_batches(partition.splits, options, rules)


def _record_batches(splits: Sequence[AnySplit], options: ReadOptions, rules: ReadRules) -> Iterator[Any]:
    from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches  # not in the planning process

    with Readers(rules) as readers:
        for split in splits:
            decoder = ArrowDecoder(split.topic, split.partition, options.columns)
            yield from record_batches(decoder, readers.steps(split, decoder.add))
