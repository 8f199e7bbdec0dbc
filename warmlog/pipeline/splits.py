"""Splits on their way to Spark's workers, and what is done with them there.

Owns: the hand-over. Must not know: how splits were made, batch or stream.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from warmlog.pipeline.options import ReadOptions
from warmlog.pipeline.planning import Split
from warmlog.pipeline.reading import ReadRules, SplitReader, checked
from warmlog.pipeline.selection import Bounds
from warmlog.pipeline.worker import settle

if TYPE_CHECKING:
    from warmlog.pipeline.remote import RemoteSplit


class SplitPartition(InputPartition):
    """A split, as Spark hands it to a worker."""

    def __init__(self, split: "Split | RemoteSplit") -> None:
        super().__init__(None)
        self.split = split


def read_partition(partition: InputPartition, options: ReadOptions, bounds: Bounds) -> Iterator[Any]:
    """The record batches of a split. Raises PipelineError."""
    if not isinstance(partition, SplitPartition):  # Spark's way of saying that there is no split at all
        return iter(())
    from warmlog.pipeline.arrow import ArrowDecoder, record_batches  # in the worker, not in the planning process

    if TaskContext.get() is not None:  # who reads without Spark keeps its own collections
        settle()
    split = partition.split
    decoder = ArrowDecoder(split.topic, split.partition, options.columns)
    rules = ReadRules(
        on_corrupt=options.on_corrupt,
        fail_on_data_loss=options.fail_on_data_loss,
        committed_only=options.committed_only,
        first_ms=bounds.first_ms,
        last_ms=bounds.last_ms,
    )
    if isinstance(split, Split):
        return record_batches(decoder, SplitReader(split, rules, checked(decoder.add)).run())
    from warmlog.pipeline.remote import RemoteReader  # who reads directories does without

    return record_batches(decoder, RemoteReader(split, rules, decoder.add).run())
