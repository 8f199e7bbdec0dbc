"""The data source `warmlog`: the classes that Spark calls.

`schema`, `reader`, `writer` and planning run once, in a process beside the driver; reading and writing run in workers.

Source: pyspark.sql.datasource (SPARK-44076).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

from pyspark.errors import AnalysisException
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
from warmlog.pipeline.session import defines_pipeline, pin_stream_partitions, use_this_python
from warmlog.pipeline.source.input import plan_batch
from warmlog.pipeline.source.options import ReadOptions, read_options
from warmlog.pipeline.source.ranges import Bounds
from warmlog.pipeline.source.spark_splits import input_partitions, read_partition

_DISCOVERED = "DATA_SOURCE_ALREADY_EXISTS"

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
    def _read_options(self) -> ReadOptions:
        """The options of a read; `schema` reads them first, so they are validated before anything else."""
        return read_options(self.options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`. Spark calls this at registration, so it also prepares the session."""
        use_this_python()
        pin_stream_partitions()
        return "warmlog"

    def schema(self) -> StructType:
        """Return the requested columns, in the connector's order. Raises PipelineError."""
        return StructType([StructField(name, SPARK_TYPES[name]) for name in self._read_options.columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a batch job. Raises PipelineError if the schema has other columns."""
        options = replace(self._read_options, columns=_columns(schema))
        if not options.filter_pushdown:
            return BatchReader(options)
        if not hasattr(DataSourceReader, "pushFilters"):
            raise PipelineError("option filterPushdown needs Spark 4.1 or newer")
        return FilteredReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of a stream. Raises PipelineError if a stream cannot have the schema or an option."""
        from warmlog.pipeline.source.stream import StreamReader  # not needed by batch jobs

        return StreamReader(replace(self._read_options, columns=_columns(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a batch job. Raises PipelineError if options, schema or mode are invalid for a topic."""
        from warmlog.pipeline.sink.options import write_options  # not needed by reads
        from warmlog.pipeline.sink.writer import batch_writer

        return batch_writer(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return a writer of a stream. Raises the same errors as `writer`."""
        from warmlog.pipeline.sink.options import write_options  # as above
        from warmlog.pipeline.sink.writer import stream_writer

        return stream_writer(write_options(self.options), schema, overwrite=overwrite)


def register(spark: Any) -> None:
    """Register the data source in a session, unless Spark has discovered it, and prepare the session.

    Spark 4.0 refuses to register a source that it has discovered; newer versions warn. With Spark Connect, only the
    refusal shows that the server has discovered it. Raises PipelineError in definitions of a declarative pipeline.
    """
    if defines_pipeline():
        raise PipelineError(
            "a declarative pipeline ends with an error where its definitions register a source (Spark up to 4.3): leave"
            " out `register`; Spark discovers the source where the server's PYSPARK_PYTHON has warmlog"
        )
    name = WarmlogDataSource.name()
    session = getattr(spark, "_jsparkSession", None)  # None with Spark Connect
    if session is not None and session.sessionState().dataSourceManager().dataSourceExists(name):
        return
    try:
        spark.dataSource.register(WarmlogDataSource)
    except AnalysisException as error:
        if error.getCondition() != _DISCOVERED:
            raise


def _columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns of a schema: the data source's own, or the ones chosen by `.schema(...)`."""
    for field in schema.fields:
        if SPARK_TYPES.get(field.name) != field.dataType:
            ours = ", ".join(f"{name} {kind.simpleString()}" for name, kind in SPARK_TYPES.items())
            raise PipelineError(f"topics have no column {field.name} {field.dataType.simpleString()}; they have {ours}")
    return tuple(field.name for field in schema.fields)


class BatchReader(DataSourceReader):
    """Reads the records that exist when the job is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """Return the splits. Raises PipelineError, InspectError, OSError."""
        return input_partitions(plan_batch(self._options, self._bounds).splits, self._options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the record batches of a split. Runs in a worker."""
        return read_partition(partition, self._options, self._bounds)


class FilteredReader(BatchReader):
    """A BatchReader that accepts Spark's filters.

    A separate class, enabled by an option, because Spark rejects a reader that accepts filters unless its setting
    spark.sql.python.filterPushdown.enabled is on, and a source cannot read that setting.
    """

    def pushFilters(self, filters: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name
        """Narrow offsets, timestamps and partitions by the filters; return all, so that Spark applies them too."""
        for each in filters:
            _take_filter(self._bounds, each)
        return filters


def _take_filter(bounds: Bounds, pushed: Any) -> None:
    kind, column = type(pushed).__name__, pushed.attribute[0] if hasattr(pushed, "attribute") else ""
    if column == "partition" and kind in {"EqualTo", "In"}:
        bounds.keep(frozenset([pushed.value] if kind == "EqualTo" else pushed.value))
    if column not in {"offset", "timestamp"} or kind not in _RANGES:
        return
    value = _microseconds(pushed.value) if column == "timestamp" else pushed.value
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
    """Convert a time with a zone, as Spark passes the values of a timestamp column; None for any other value."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return round(value.timestamp() * 1_000_000)
