"""Spark's side of reading: the data source `warmlog`.

Owns: what Spark calls, and the mapping of its filters. Must not know: files, batches, columns' bytes.

`reader`, `partitions` and `pushFilters` run once, in a process beside the driver; `read` runs in the workers. What is
handed from one to the other is a split and nothing else.

Source: pyspark.sql.datasource (SPARK-44076).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.options import ReadOptions, read_options
from warmlog.pipeline.planning import Split
from warmlog.pipeline.reading import ReadRules, SplitReader, checked
from warmlog.pipeline.selection import Bounds, plan_read

SPARK_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


class SplitPartition(InputPartition):
    """A split on its way to a worker."""

    def __init__(self, split: Split) -> None:
        super().__init__(None)
        self.split = split


class WarmlogDataSource(DataSource):
    """`spark.read.format("warmlog")`: the records of topics as rows, in the schema of Spark's Kafka connector."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._asked = read_options(options)

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "warmlog"

    def schema(self) -> StructType:
        """The columns that were asked for, in the connector's order."""
        return StructType([StructField(name, SPARK_TYPES[name]) for name in self._asked.columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of a batch job. Raises PipelineError where the schema is not one of ours."""
        options = replace(self._asked, columns=_columns(schema))
        return FilteredReader(options) if options.filter_pushdown else DirectoryReader(options)


def _columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that Spark gives: ours, or what a user has set with `.schema(...)`."""
    for field in schema.fields:
        if SPARK_TYPES.get(field.name) != field.dataType:
            ours = ", ".join(f"{name} {kind.simpleString()}" for name, kind in SPARK_TYPES.items())
            raise PipelineError(
                f"{field.name} {field.dataType.simpleString()} is no column of a topic; they are {ours}"
            )
    return tuple(field.name for field in schema.fields)


class DirectoryReader(DataSourceReader):
    """Reads the files of a data directory."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """The splits. Raises PipelineError."""
        return [SplitPartition(split) for split in plan_read(self._options, self._bounds).splits]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of a split. In a worker."""
        if not isinstance(partition, SplitPartition):  # Spark's way of saying that there is no split at all
            return iter(())
        from warmlog.pipeline.arrow import ArrowDecoder, record_batches  # in the worker, not in the planning process

        split = partition.split
        decoder = ArrowDecoder(split.topic, split.partition, self._options.columns)
        rules = ReadRules(
            on_corrupt=self._options.on_corrupt,
            fail_on_data_loss=self._options.fail_on_data_loss,
            first_ms=self._bounds.first_ms,
            last_ms=self._bounds.last_ms,
        )
        return record_batches(decoder, SplitReader(split, rules, checked(decoder.add)).run())


class FilteredReader(DirectoryReader):
    """The same, told Spark's filters.

    Only with `filterPushdown`: Spark refuses a reader that takes filters unless its own setting
    spark.sql.python.filterPushdown.enabled is on, and does not tell a source whether it is.
    """

    def pushFilters(self, filters: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name
        """Take what bounds offsets, times and partitions; Spark applies all of them once more, to what is left."""
        for one in filters:
            _take_filter(self._bounds, one)
        return filters


def _take_filter(bounds: Bounds, one: Any) -> None:
    kind, column = type(one).__name__, one.attribute[0] if hasattr(one, "attribute") else ""
    if column == "partition" and kind in {"EqualTo", "In"}:
        bounds.keep(frozenset([one.value] if kind == "EqualTo" else one.value))
    if column not in {"offset", "timestamp"} or kind not in _RANGES:
        return
    value = _microseconds(one.value) if column == "timestamp" else one.value
    if isinstance(value, int):
        bounds.narrow(column, *_RANGES[kind](value))


_RANGES: dict[str, Callable[[int], tuple[int | None, int | None]]] = {
    "EqualTo": lambda value: (value, value),
    "GreaterThan": lambda value: (value + 1, None),
    "GreaterThanOrEqual": lambda value: (value, None),
    "LessThan": lambda value: (None, value - 1),
    "LessThanOrEqual": lambda value: (None, value),
}


def _microseconds(value: Any) -> int | None:
    """A time as Spark gives it; None for one without a zone, which is none of ours."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return round(value.timestamp() * 1_000_000)
