"""Spark's side of writing: the writers of batch jobs and of streams.

Owns: what Spark calls, which attempts have an identity in common, and the report at the end. Must not know: batches,
sequences, the broker.

`write` runs in workers, a task each; `commit` and `abort` in a process beside the driver. Nothing is held back for a
commit: a record is there for readers as soon as the broker has it.

Source: pyspark.sql.datasource (SPARK-44076); org.apache.spark.sql.execution.streaming.MicroBatchExecution, which tells
tasks the query and the micro-batch by local properties.
"""

import json
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink_broker import PatientBroker
from warmlog.pipeline.sink_identity import Identity, batch_identity, stream_identity
from warmlog.pipeline.sink_options import WriteOptions
from warmlog.pipeline.sink_rows import Rows, check_columns, rows_of, rows_of_spark
from warmlog.pipeline.sink_stored import FETCH_BYTES
from warmlog.pipeline.sink_task import TaskReport, TaskWriter

ARROW = "DataSourceStreamArrowWriter"
ARROW_STREAMS = hasattr(datasource, ARROW)  # before Spark 4.1 streams were given rows only
_ArrowBase: Any = getattr(datasource, ARROW, DataSourceStreamWriter)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"

_log = logging.getLogger(__name__)


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task tells the driver."""

    report: TaskReport


def batch_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    """The writer of a batch job. Raises PipelineError where the frame or the mode is none of a log."""
    if overwrite:
        raise PipelineError('a topic is appended to, never overwritten: mode("append")')
    check_columns(_typed(schema), topic=options.topic)
    return BatchWriter(options, options.write_id or uuid.uuid4().hex)


def stream_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    """The writer of a stream. Raises PipelineError where the frame or the mode is none of a log."""
    if overwrite:
        raise PipelineError('a topic is appended to, never overwritten: outputMode("append")')
    if options.write_id is not None:
        raise PipelineError("option writeId is for batch jobs, and for foreachBatch: a stream goes by its query's id")
    check_columns(_typed(schema), topic=options.topic)
    return ArrowStreamWriter(options) if ARROW_STREAMS else RowStreamWriter(options, schema.fieldNames())


def _typed(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame once. `write_id`: what attempts at it have in common (with `write_batch`, if there is one)."""

    def __init__(self, options: WriteOptions, write_id: str) -> None:
        self._options = options
        self._write_id = write_id

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the Arrow batches of a task. In a worker. Raises PipelineError."""
        identity = batch_identity(self._write_id, _task().partitionId(), self._options.write_batch)
        return TaskMessage(write_task(self._options, identity, map(rows_of, iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every task is done."""
        report(self._options, messages, "done")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task has failed for good; what was written stays."""
        report(self._options, messages, "failed")


class _Stream:
    """What the writers of streams have in common."""

    _options: WriteOptions

    def _write(self, rows: Iterable[Rows]) -> WriterCommitMessage:
        context = _task()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise PipelineError(
                "Spark does not tell its tasks which micro-batch they are of: no trigger but micro-batches"
            )
        identity = stream_identity(query, int(batch), context.partitionId())
        return TaskMessage(write_task(self._options, identity, rows))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Every task of the micro-batch is done."""
        report(self._options, messages, "done", batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """A task of the micro-batch has failed for good; it is run again when the query starts again."""
        report(self._options, messages, "failed", batchId)


class RowStreamWriter(_Stream, DataSourceStreamWriter):
    """Writes a stream, given rows."""

    def __init__(self, options: WriteOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = tuple(names)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of a task. In a worker. Raises PipelineError."""
        return self._write(rows_of_spark(iterator, self._names))


class ArrowStreamWriter(_Stream, _ArrowBase):  # type: ignore[misc] # which of two it is, the version decides
    """Writes a stream, given Arrow batches."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the Arrow batches of a task. In a worker. Raises PipelineError."""
        return self._write(map(rows_of, iterator))


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a writer runs in a task"
    return context


def write_task(options: WriteOptions, identity: Identity, rows: Iterable[Rows]) -> TaskReport:
    """Write the rows of one task, and wait until all are stored. Raises PipelineError."""
    patience_s = options.delivery_timeout_ms / 1000
    with PatientBroker(options.bootstrap, patience_s, max_reply_bytes=FETCH_BYTES) as broker:
        writer = TaskWriter(options, identity, broker, now_ms=lambda: time.time_ns() // 1_000_000)
        for some in rows:
            writer.add(some)
        return writer.finish()


def report(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], outcome: str, batch_id: int | None = None
) -> None:
    """Say what was written: to the log, and as a line of JSON to the file that the option `report` names."""
    done = [message.report for message in messages if isinstance(message, TaskMessage)]
    told: dict[str, Any] = {"outcome": outcome, "topic": options.topic, "tasks": len(done)}
    for one in fields(TaskReport):
        told[one.name] = sum(getattr(task, one.name) for task in done)
    if batch_id is not None:
        told["batch_id"] = batch_id
    line = json.dumps(told)
    _log.info("written: %s", line)
    if options.report is not None:
        with open(options.report, "a", encoding="utf-8") as file:
            file.write(line + "\n")
