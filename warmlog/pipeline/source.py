"""Spark's side of reading: the data source `warmlog`. That of writing is `sink`.

Owns: what Spark calls, and the mapping of its filters. Must not know: files, batches, columns' bytes.

`reader`, `partitions` and `pushFilters` run once, in a process beside the driver; `read` runs in workers (`splits`).

Source: pyspark.sql.datasource (SPARK-44076).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
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
from warmlog.pipeline.positions import resolve
from warmlog.pipeline.selection import Bounds, narrowed, plan_read
from warmlog.pipeline.splits import SplitPartition, read_partition

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


class WarmlogDataSource(DataSource):
    """`spark.read.format("warmlog")`: the records of topics as rows, in the schema of Spark's Kafka connector."""

    @cached_property
    def _asked(self) -> ReadOptions:
        """The options of a read, asked for by `schema`, so checked before anything else. Raises PipelineError."""
        return read_options(self.options)

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
        if not options.filter_pushdown:
            return BatchReader(options)
        if not hasattr(DataSourceReader, "pushFilters"):
            raise PipelineError("option filterPushdown: Spark tells a source its filters from 4.1 on")
        return FilteredReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A reader of a stream. Raises PipelineError where the schema or an option is not one of a stream."""
        from warmlog.pipeline.stream import StreamReader  # batch jobs do without

        return StreamReader(replace(self._asked, columns=_columns(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of a batch job. Raises PipelineError where options, frame or mode are none of a log."""
        from warmlog.pipeline.sink import batch_writer  # who reads does without
        from warmlog.pipeline.sink_options import write_options

        return batch_writer(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """A writer of a stream. Raises as `writer`."""
        from warmlog.pipeline.sink import stream_writer  # as above
        from warmlog.pipeline.sink_options import write_options

        return stream_writer(write_options(self.options), schema, overwrite=overwrite)


def _columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that Spark gives: ours, or what a user has set with `.schema(...)`."""
    for field in schema.fields:
        if SPARK_TYPES.get(field.name) != field.dataType:
            ours = ", ".join(f"{name} {kind.simpleString()}" for name, kind in SPARK_TYPES.items())
            raise PipelineError(
                f"{field.name} {field.dataType.simpleString()} is no column of a topic; they are {ours}"
            )
    return tuple(field.name for field in schema.fields)


class BatchReader(DataSourceReader):
    """Reads what there is, once."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """The splits. Raises PipelineError."""
        options = self._options
        if options.path is None:
            return [SplitPartition(split) for split in plan_from_broker(options, self._bounds)]
        return [SplitPartition(split) for split in plan_read(options, self._bounds).splits]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of a split. In a worker."""
        return read_partition(partition, self._options, self._bounds)


class FilteredReader(BatchReader):
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


def plan_from_broker(options: ReadOptions, bounds: Bounds) -> list[Any]:
    """The splits of all that is asked for, behind a broker. Raises PipelineError."""
    from warmlog.pipeline.remote import plan_remote, remote_partitions  # who reads directories does without
    from warmlog.pipeline.wire import BrokerConnection

    assert options.bootstrap is not None, "the options see to it"
    with BrokerConnection(options.bootstrap) as broker:
        ranges = {
            (partition.topic, partition.partition): narrowed(partition, resolve(partition, options), bounds)
            for partition in remote_partitions(broker, options)
            if bounds.partitions is None or partition.partition in bounds.partitions
        }
    return list(plan_remote(options.bootstrap, ranges, options.min_partitions))
