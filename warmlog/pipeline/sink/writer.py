"""The writers called by Spark, for batch jobs and for streams.

`write` runs in workers, once per task; `commit` and `abort` in a process beside the driver. Records are visible as soon
as the broker has stored them; with `transactional=true`, readers of committed records see them after `commit`.

Source: pyspark.sql.datasource (SPARK-44076); org.apache.spark.sql.execution.streaming.MicroBatchExecution, which passes
the query and the micro-batch to tasks as local properties.
"""

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
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
from warmlog.pipeline.session import ADAPTIVE, ADAPTIVE_STREAMS, has_adaptive_streams
from warmlog.pipeline.sink.attempts import Identity, batch_identity, stream_identity
from warmlog.pipeline.sink.options import WriteOptions
from warmlog.pipeline.sink.repeats import Attempt, check_tasks
from warmlog.pipeline.sink.rows import Rows, check_columns, rows_of, rows_of_spark
from warmlog.pipeline.sink.task import TaskReport, open_cluster, write_in_transaction, write_task
from warmlog.pipeline.sink.transactions import CompleteTask, Write, abort, commit

ARROW = "DataSourceStreamArrowWriter"
ARROW_STREAMS = hasattr(datasource, ARROW)  # from Spark 4.1 on; earlier versions pass rows to streams
_ArrowBase: Any = getattr(datasource, ARROW, DataSourceStreamWriter)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"  # local property with the run id of a query

_log = logging.getLogger(__name__)


@dataclass
class TaskMessage(WriterCommitMessage):
    """The report of a task to the driver, with its transaction, or with its attempt outside transactions."""

    report: TaskReport
    complete: CompleteTask | None = None
    attempt: Attempt | None = None


def batch_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    """Return the writer of a batch job. Raises PipelineError if schema or mode are invalid for a topic."""
    if overwrite:
        raise PipelineError('topics can only be appended to: mode("append")')
    check_columns(_typed(schema), topic=options.topic)
    return BatchWriter(options, options.write_id or uuid.uuid4().hex)


def stream_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer of a stream. Raises PipelineError if schema or mode are invalid for a topic."""
    if overwrite:
        raise PipelineError('topics can only be appended to: outputMode("append")')
    if options.write_id is not None:
        raise PipelineError("option writeId is for batch jobs and foreachBatch: a stream is identified by its query id")
    check_columns(_typed(schema), topic=options.topic)
    return ArrowStreamWriter(options) if ARROW_STREAMS else RowStreamWriter(options, schema.fieldNames())


def _typed(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame once. `write_id`, and `write_batch` if given, identify attempts at the same write."""

    def __init__(self, options: WriteOptions, write_id: str) -> None:
        self._options = options
        self._write_id = write_id
        self._write = Write(
            name=write_id,
            number=options.write_batch,
            is_repeatable=options.write_id is not None,
            run=uuid.uuid4().hex,
        )

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the Arrow batches of a task. Runs in a worker. Raises PipelineError."""
        context = _task()
        rows, task, number = _rows(self._options, iterator), context.partitionId(), self._options.write_batch
        if self._options.transactional:
            return TaskMessage(*write_in_transaction(self._options, self._write, task, rows))
        if self._options.write_id is not None:
            _check_partitions_are_fixed(context)
        task_report, topics = write_task(self._options, batch_identity(self._write_id, task, number), rows)
        return TaskMessage(task_report, attempt=Attempt(name=self._write_id, number=number, run=None, topics=topics))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit a job after all of its tasks are done, and report it. Raises PipelineError."""
        commit_tasks(self._options, messages)
        if self._options.write_id is not None:
            identity = partial(batch_identity, self._write_id, batch=self._options.write_batch)
            check_attempts(self._options, messages, identity)
        report(self._options, messages, "done")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report a job after a task's last attempt failed; without transactions, written records remain."""
        if self._options.transactional:
            abort_tasks(self._options, self._write)
        report(self._options, messages, "failed")


def _check_partitions_are_fixed(context: TaskContext) -> None:
    """Raise PipelineError if adaptive query execution is on.

    It may coalesce or split shuffle partitions by their measured sizes, differently in each run. Then a task of the
    second run has other rows than the first run's task of that number, and stores rows again that other tasks have
    stored. A task cannot see the number of tasks or whether its input was shuffled, so the setting must always be off.
    """
    if context.getLocalProperty(ADAPTIVE) != "false":
        raise PipelineError(
            f"option writeId needs {ADAPTIVE}=false: adaptive query execution may divide the rows differently when the"
            f' job is run again, and they would be stored twice (spark.conf.set("{ADAPTIVE}", "false"))'
        )


def _check_stream_partitions_are_fixed(context: TaskContext) -> None:
    """Raise PipelineError if adaptive execution of stateless streams is on, as for batch jobs.

    Tasks see only explicit settings, and cannot see whether the query is stateless.
    """
    if has_adaptive_streams() and "false" not in map(context.getLocalProperty, (ADAPTIVE, ADAPTIVE_STREAMS)):
        raise PipelineError(
            f"a stream into a topic needs {ADAPTIVE_STREAMS}=false or transactional=true: adaptive execution may divide"
            " the rows of a micro-batch differently when it is repeated, and they would be stored twice"
            f' (spark.conf.set("{ADAPTIVE_STREAMS}", "false"), or `configuration` of a declarative pipeline)'
        )


def _rows(options: WriteOptions, batches: Iterable[Any]) -> Iterator[Rows]:
    return (rows_of(batch, with_headers=options.include_headers) for batch in batches)


class _Stream:
    """Base of the writers of streams."""

    _options: WriteOptions

    def _write(self, rows: Iterable[Rows]) -> WriterCommitMessage:
        context = _task()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise PipelineError("Spark passed no query id or micro-batch: only micro-batch triggers are supported")
        task = context.partitionId()
        if self._options.transactional:
            write = Write(name=query, number=int(batch))
            return TaskMessage(*write_in_transaction(self._options, write, task, rows))
        _check_stream_partitions_are_fixed(context)
        task_report, topics = write_task(self._options, stream_identity(query, int(batch), task), rows)
        run = context.getLocalProperty(RUN_ID) or uuid.uuid4().hex
        return TaskMessage(task_report, attempt=Attempt(name=query, number=int(batch), run=run, topics=topics))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit a micro-batch after all of its tasks are done, and report it. Raises PipelineError."""
        commit_tasks(self._options, messages)
        for query in [attempt.name for attempt in _attempts(messages)][:1]:
            check_attempts(self._options, messages, partial(stream_identity, query, batchId))
        report(self._options, messages, "done", batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Report a micro-batch after a task's last attempt failed. It runs again when the query is restarted."""
        for task in _complete(messages)[:1]:  # without a message from any task, the driver does not know the write
            abort_tasks(self._options, task.write)
        report(self._options, messages, "failed", batchId)


class RowStreamWriter(_Stream, DataSourceStreamWriter):
    """Writes a stream that Spark passes as rows."""

    def __init__(self, options: WriteOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = tuple(names)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of a task. Runs in a worker. Raises PipelineError."""
        return self._write(rows_of_spark(iterator, self._names, with_headers=self._options.include_headers))


class ArrowStreamWriter(_Stream, _ArrowBase):  # type: ignore[misc] # the base depends on Spark's version
    """Writes a stream that Spark passes as Arrow batches."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the Arrow batches of a task. Runs in a worker. Raises PipelineError."""
        return self._write(_rows(self._options, iterator))


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a writer runs in a task"
    return context


def commit_tasks(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit the transactions of all tasks. Raises PipelineError."""
    if tasks := _complete(messages):
        with open_cluster(options) as cluster:
            commit(cluster, tasks, options.transaction_timeout_ms)


def check_attempts(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], identity: Callable[[int], Identity]
) -> None:
    """Raise PipelineError if an earlier attempt had more tasks, whose rows are now stored twice."""
    attempts = _attempts(messages)
    if attempts and options.on_changed_rows == "fail":
        with open_cluster(options) as cluster:
            check_tasks(cluster, attempts, identity)


def _attempts(messages: Sequence[WriterCommitMessage | None]) -> list[Attempt]:
    done = [message.attempt for message in messages if isinstance(message, TaskMessage)]
    return [attempt for attempt in done if attempt is not None]


def abort_tasks(options: WriteOptions, write: Write) -> None:
    """Abort the transactions of all tasks. If that fails, the broker's timeout ends them."""
    try:
        with open_cluster(options) as cluster:
            abort(cluster, write)
    except PipelineError as error:
        _log.warning("transactions stay open for up to %d ms: %s", options.transaction_timeout_ms, error)


def _complete(messages: Sequence[WriterCommitMessage | None]) -> list[CompleteTask]:
    done = [message.complete for message in messages if isinstance(message, TaskMessage)]
    return [task for task in done if task is not None]


def report(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], outcome: str, batch_id: int | None = None
) -> None:
    """Log the totals, and append them as a line of JSON to the file of the option `report`."""
    done = [message.report for message in messages if isinstance(message, TaskMessage)]
    summary: dict[str, Any] = {"outcome": outcome, "topic": options.topic, "tasks": len(done)}
    for field in fields(TaskReport):
        summary[field.name] = sum(getattr(task, field.name) for task in done)
    if batch_id is not None:
        summary["batch_id"] = batch_id
    line = json.dumps(summary)
    _log.info("write report: %s", line)
    if options.report is not None:
        with open(options.report, "a", encoding="utf-8") as file:
            file.write(line + "\n")
