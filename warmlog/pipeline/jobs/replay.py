"""The job behind `warmlog pipeline replay`: send records of a table or of part of a topic to a topic.

1. A partition is one task, and its rows are sent in offset order. So the records of a key keep their order, and with
   `keep_partitions` so do all records of a partition.
2. Tasks write under an identity made of the replay's id and their partition. A replay that is repeated under its id
   with the same records skips records that are already stored, within the guarantees of the sink.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.cluster import ClusterConnection, reply_error
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import JobStats, Reporter, Stopwatch
from warmlog.pipeline.jobs.table_rows import TableRows, read_rows, table_rows
from warmlog.pipeline.lakehouse.schemas.formats import SIDES
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.retry import Retry
from warmlog.pipeline.runner import Runner
from warmlog.pipeline.sink.options import WriteOptions, write_options
from warmlog.pipeline.source.input import choose_input, read_batches, rules_of
from warmlog.pipeline.source.options import EARLIEST, LATEST, Bound, ReadOptions
from warmlog.pipeline.source.plan import AnySplit, size_of_split
from warmlog.pipeline.source.ranges import key_of, resolve
from warmlog.pipeline.source.reading import ReadRules
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.request import CreateTopicsRequest, NewTopic
from warmlog.protocol.response import CreateTopicsResponse

COLUMNS = ("key", "value", "partition", "offset", "timestamp", "headers")
SENT = ("key", "value", "timestamp", "headers")
SLICE_ROWS = 1000  # rows sent together if the rate is limited


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRules:
    """Rules for sending. `write`: the sink's options, None for a dry run. `rate`: records per second of one task."""

    write: WriteOptions | None
    replay_id: str
    keep_partitions: bool = False
    rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTask:
    """One partition: splits of a log, or rows of a table.

    For rows, the task also has the bounds of the records to send (times in ms, ends excluded).
    """

    topic: str
    partition: int
    splits: tuple[AnySplit, ...] = ()
    rows: TableRows | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    first_ms: int | None = None
    end_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class Replayed:
    """Result of a task. `bytes`: of keys and values. `stored_before`: records sent by an earlier attempt."""

    topic: str
    partition: int
    records: int = 0
    bytes: int = 0
    stored_before: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    stats: JobStats


def sink_options(bootstrap: str, topic: str, given: Mapping[str, str]) -> WriteOptions:
    """Return the sink's options for a replay. `given`: further options, such as a login. Raises PipelineError."""
    return write_options({**given, "bootstrap": bootstrap, "topic": topic})


def plan_from_log(options: ReadOptions) -> list[ReplayTask]:
    """Return a task for each partition of topics. Raises PipelineError, InspectError, OSError."""
    plan = choose_input(options).plan(lambda extents: {key_of(extent): resolve(extent, options) for extent in extents})
    parts: dict[TopicPartition, list[AnySplit]] = {key: [] for key in sorted(plan.ranges)}
    for split in plan.splits:
        parts[split.topic, split.partition].append(split)
    return [ReplayTask(topic=topic, partition=at, splits=tuple(splits)) for (topic, at), splits in parts.items()]


def plan_from_table(table: Table, options: ReadOptions) -> list[ReplayTask]:
    """Return a task for each partition of a table, which must have been read. Raises PipelineError."""
    if any(commit.receipt.formats.keys() & set(SIDES) for commit in table.commits()):
        raise PipelineError(
            f"{table.name} has decoded keys or values, and not the bytes that a replay would send:"
            " replay the topic's log, or copy the topic without --key-format and --value-format"
        )
    parts = table_rows(table)
    _check_topics(table.name, parts, options)
    wanted = sorted(key for key in parts if options.topics.wants(*key))
    return [_bounded(ReplayTask(topic=key[0], partition=key[1], rows=parts[key]), options) for key in wanted]


def _check_topics(name: str, keys: Iterable[TopicPartition], options: ReadOptions) -> None:
    missing = set(options.topics.named) - {topic for topic, _ in keys}
    if missing:
        raise PipelineError(f"{name} has no topic {', '.join(sorted(missing))}")


def _bounded(task: ReplayTask, options: ReadOptions) -> ReplayTask:
    key = task.topic, task.partition
    first, end = _bound(options.start, key), _bound(options.end, key)
    if options.start.by_time:
        task = replace(task, first_ms=first)
    elif first is not None and first not in {EARLIEST, LATEST}:
        task = replace(task, first_offset=first)
    if options.end.by_time:
        return replace(task, end_ms=end)
    return task if end in {None, LATEST} else replace(task, end_offset=end)


def _bound(bound: Bound, key: TopicPartition) -> int | None:
    return bound.number if bound.each is None else bound.each.get(key[0], {}).get(key[1])


def prepare_target(brokers: Brokers, topic: str, tasks: Sequence[ReplayTask], *, keep_partitions: bool) -> int | None:
    """Create the target topic if it does not exist, with as many partitions as the source.

    Returns their number, or None if the topic exists. Raises PipelineError if it has too few partitions to keep them.
    """
    needed = max((task.partition for task in tasks), default=0) + 1
    with ClusterConnection(brokers, Retry()) as cluster:
        cluster.start()
        (metadata,) = cluster.call(lambda client: client.metadata([topic])).topics
        if metadata.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            new = CreateTopicsRequest(topics=(NewTopic(name=topic, partitions=needed),))
            (created,) = cluster.ask(new, CreateTopicsResponse).topics
            if created.error not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:  # it exists after a lost reply
                raise reply_error(created.error, created.message, about=f"topic {topic}")
            return needed
    if metadata.error:
        raise reply_error(metadata.error, metadata.message, about=f"topic {topic}")
    if keep_partitions and len(metadata.partitions) < needed:
        raise PipelineError(
            f"topic {topic} has no partition {needed - 1}, but the source has: add partitions (warmlog topic alter"
            f" {topic} --partitions {needed}), or omit --keep-partitions"
        )
    return None


def size_of_task(task: ReplayTask) -> int:
    """Return the number of bytes that a task reads. Raises OSError."""
    return sum(map(size_of_split, task.splits)) + (0 if task.rows is None else task.rows.size)


def replay(
    run: Runner, tasks: Sequence[ReplayTask], rules: ReplayRules, options: ReadOptions, reporter: Reporter
) -> list[Replayed]:
    """Send the records of the tasks. Raises PipelineError, InspectError, OSError."""
    done = run(tasks, partial(replay_task, rules, rules_of(options)), size_of_task)
    for replayed in done:
        reporter.add(replayed.stats)
    reporter.set_details(id=rules.replay_id, stored_before=sum(replayed.stored_before for replayed in done))
    return done


def replay_task(rules: ReplayRules, read_rules: ReadRules, task: ReplayTask) -> Replayed:
    """Send one partition. Runs in a worker. Raises PipelineError, InspectError, OSError."""
    done = Replayed(topic=task.topic, partition=task.partition, stats=JobStats(tasks=1))
    watch = Stopwatch()
    batches = _counted(_paced(_rows(task, read_rules, done.stats), rules.rate), done)
    if rules.write is None:
        watch.timed(lambda: all(True for _ in batches))()
    else:
        watch.timed(_send)(rules, rules.write, task, batches, done)
    done.stats.rows = done.records
    done.stats.write_s = watch.seconds
    return done


def _send(rules: ReplayRules, write: WriteOptions, task: ReplayTask, batches: Iterator[Any], done: Replayed) -> None:
    from warmlog.pipeline.sink.attempts import batch_identity  # these import pyarrow, in the worker
    from warmlog.pipeline.sink.rows import rows_of
    from warmlog.pipeline.sink.task import write_task

    names = (*SENT, "partition") if rules.keep_partitions else SENT
    rows = (rows_of(batch.select([name for name in names if name in batch.schema.names])) for batch in batches)
    report, _ = write_task(write, batch_identity(f"replay {rules.replay_id} {task.topic}", task.partition), rows)
    done.stored_before = report.stored_before


def _rows(task: ReplayTask, read_rules: ReadRules, stats: JobStats) -> Iterator[Any]:
    """Yield the record batches of a task in offset order."""
    if task.rows is not None:
        yield from _stored_rows(task, task.rows)
        return
    from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches

    for split in task.splits:
        decoder = ArrowDecoder(split.topic, split.partition, COLUMNS)
        steps, tally = read_batches(split, read_rules, decoder.add)
        yield from record_batches(decoder, steps)
        stats.add_tally(tally)
        if tally.damaged and read_rules.on_corrupt == "stop":
            return


def _stored_rows(task: ReplayTask, rows: TableRows) -> Iterator[Any]:
    for batch in read_rows(rows, COLUMNS, first=task.first_offset or 0, end=task.end_offset):
        if "value" not in batch.schema.names:
            raise PipelineError(f"{task.topic}-{task.partition} has no column value, so there is nothing to replay")
        wanted = _wanted(batch, task)
        if wanted.num_rows:
            yield wanted


def _wanted(batch: Any, task: ReplayTask) -> Any:
    """Return the rows of a batch that lie within the task's bounds."""
    import pyarrow as pa
    from pyarrow import compute

    bounds: list[tuple[str, Callable[..., Any], int | None, int]] = [
        ("offset", compute.greater_equal, task.first_offset, 1),
        ("offset", compute.less, task.end_offset, 1),
        ("timestamp", compute.greater_equal, task.first_ms, 1000),
        ("timestamp", compute.less, task.end_ms, 1000),
    ]
    for name, holds, bound, scale in bounds:
        if bound is not None:
            batch = batch.filter(holds(batch.column(name).cast(pa.int64()), bound * scale))
    return batch


def _counted(batches: Iterator[Any], done: Replayed) -> Iterator[Any]:
    for batch in batches:
        done.records += batch.num_rows
        done.bytes += sum(batch.column(name).nbytes for name in ("key", "value") if name in batch.schema.names)
        offsets = batch.column("offset")
        if done.first_offset is None:
            done.first_offset = offsets[0].as_py()
        done.last_offset = offsets[-1].as_py()
        yield batch


def _paced(
    batches: Iterator[Any],
    rate: float | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Any]:
    """Yield the rows in slices, at most `rate` rows per second from the first one on."""
    if rate is None:
        yield from batches
        return
    began, sent = clock(), 0
    for batch in batches:
        for at in range(0, batch.num_rows, SLICE_ROWS):
            early = began + sent / rate - clock()
            if early > 0:
                sleep(early)
            part = batch.slice(at, SLICE_ROWS)
            sent += part.num_rows
            yield part
