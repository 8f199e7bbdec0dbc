"""Pass splits through Spark to workers, and return their records as Arrow batches."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from warmlog.pipeline.session import freeze_imports
from warmlog.pipeline.source.input import AnySplit, read_batches, rules_of
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.ranges import Bounds


class SplitPartition(InputPartition):
    """A split for Spark to pass to a worker."""

    def __init__(self, split: AnySplit) -> None:
        super().__init__(None)
        self.split = split


def read_partition(partition: InputPartition, options: ReadOptions, bounds: Bounds) -> Iterator[Any]:
    """Return the record batches of a split. Raises PipelineError, InspectError, OSError."""
    if not isinstance(partition, SplitPartition):  # Spark's placeholder where there are no splits
        return iter(())
    from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches  # not in the planning process

    if TaskContext.get() is not None:
        freeze_imports()
    split = partition.split
    decoder = ArrowDecoder(split.topic, split.partition, options.columns)
    rules = replace(rules_of(options), first_ms=bounds.first_ms, last_ms=bounds.last_ms)
    steps, _ = read_batches(split, rules, decoder.add)
    return record_batches(decoder, steps)
