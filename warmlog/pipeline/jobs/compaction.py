"""The job behind `warmlog pipeline compact-report`: the space that compaction would save, and the largest keys.

Compaction keeps the last record of each key. The saving is measured in bytes of keys and values, and scaled to the size
of the partition's files, since records on disk are in batches that may be compressed. The active segment, which
compaction does not change, counts like all others.

A partition is a task, and its keys are grouped in memory: at most MAX_KEYS_BYTES of them. For more keys,
`docs/pipeline/jobs.md` has a query for Spark.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import JobStats, Reporter, Stopwatch
from warmlog.pipeline.jobs.audit import cleaner_points
from warmlog.pipeline.runner import Runner
from warmlog.pipeline.source.input import choose_input, read_batches, rules_of, wanted_partitions
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import AnySplit, size_of_split
from warmlog.pipeline.source.ranges import key_of, resolve
from warmlog.pipeline.source.reading import ReadRules
from warmlog.protocol.partitions import TopicPartition

COLUMNS = ("key", "value", "offset")
MERGE_ROWS = 1 << 20  # records to collect before they are merged with earlier ones
MAX_KEYS_BYTES = 1 << 30  # per task


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKey:
    """A key and the size of its records. `text`: the key as UTF-8, or in hexadecimal if it is not UTF-8."""

    text: str
    records: int
    bytes: int


@dataclass(slots=True, kw_only=True)
class Compactable:
    """Report of a partition. `bytes`, `saved_bytes`: bytes of keys and values; names with `stored`: bytes on disk.

    `keyless`: records without a key, which compacted topics cannot have. `dirty_ratio`: as the cleaner computes it;
    None when read from a broker.
    """

    topic: str
    partition: int
    records: int = 0
    keys: int = 0
    tombstones: int = 0
    keyless: int = 0
    bytes: int = 0
    saved_records: int = 0
    saved_bytes: int = 0
    stored_bytes: int | None = None
    stored_saved_bytes: int | None = None
    dirty_ratio: float | None = None
    top: list[TopKey] = field(default_factory=list)


def report_compaction(run: Runner, options: ReadOptions, top: int, reporter: Reporter) -> list[Compactable]:
    """Report the space that compaction would save in each partition. Raises PipelineError, InspectError, OSError.

    `top`: number of keys to list.
    """
    plan = choose_input(options).plan(lambda extents: {key_of(extent): resolve(extent, options) for extent in extents})
    parts: dict[TopicPartition, list[AnySplit]] = {key: [] for key in sorted(plan.ranges)}
    for split in plan.splits:
        parts[split.topic, split.partition].append(split)
    tasks = [(key, tuple(splits)) for key, splits in parts.items()]
    done = run(tasks, partial(compactable, rules_of(options), top), lambda task: sum(map(size_of_split, task[1])))
    for _, stats in done:
        reporter.add(stats)
    report = [extent for extent, _ in done]
    if options.path is not None:
        _measure(report, options)
    return report


def compactable(
    rules: ReadRules, top: int, task: tuple[TopicPartition, Sequence[AnySplit]]
) -> tuple[Compactable, JobStats]:
    """Group the records of one partition by key. Runs in a worker. Raises PipelineError, InspectError, OSError."""
    (topic, partition), splits = task
    compactable_part, stats, watch = Compactable(topic=topic, partition=partition), JobStats(tasks=1), Stopwatch()
    table = watch.timed(_by_key)(compactable_part, splits, rules, stats)
    if table is not None:
        import pyarrow.compute as pc

        compactable_part.keys = table.num_rows
        compactable_part.saved_records = (pc.sum(table["records"]).as_py() or 0) - table.num_rows
        compactable_part.saved_bytes = (pc.sum(table["bytes"]).as_py() or 0) - (
            pc.sum(table["last_bytes"]).as_py() or 0
        )
        largest = table.sort_by([("bytes", "descending"), ("key", "ascending")]).slice(0, top)
        compactable_part.top = [_top_key(row) for row in largest.to_pylist()]
    stats.rows, stats.read_s = compactable_part.records, watch.seconds
    return compactable_part, stats


def _by_key(part: Compactable, splits: Sequence[AnySplit], rules: ReadRules, stats: JobStats) -> Any:
    """Return a table of keys: number of records, their bytes, bytes of the last record. None if there are no keys."""
    merged, waiting, rows = None, [], 0
    for batch in _batches(splits, rules, stats):
        waiting.append(_sizes(batch, part))
        rows += batch.num_rows
        if rows >= MERGE_ROWS:
            merged, waiting, rows = _merged([merged, *waiting], part), [], 0
    if merged is None and not waiting:
        return None
    return _merged([merged, *waiting], part)


def _batches(splits: Sequence[AnySplit], rules: ReadRules, stats: JobStats) -> Iterator[Any]:
    """Yield the record batches of a partition in offset order."""
    from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches

    for split in splits:
        decoder = ArrowDecoder(split.topic, split.partition, COLUMNS)
        steps, tally = read_batches(split, rules, decoder.add)
        yield from record_batches(decoder, steps)
        stats.add_tally(tally)


def _sizes(batch: Any, part: Compactable) -> Any:
    """Count a record batch; return its keyed records as a table like those of `_merged`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys, values = batch.column("key"), batch.column("value")
    sizes = [pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()) for column in (keys, values)]
    size = pc.add(*sizes)
    part.records += batch.num_rows
    part.keyless += keys.null_count
    part.tombstones += values.null_count
    part.bytes += pc.sum(size).as_py() or 0
    counts = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
    table = pa.table({"key": keys, "records": counts, "bytes": size, "last_bytes": size})
    return table.filter(pc.is_valid(keys)) if keys.null_count else table


def _merged(tables: Sequence[Any], part: Compactable) -> Any:
    """Group tables by key, in their order. Raises PipelineError if there are too many keys."""
    import pyarrow as pa

    whole = pa.concat_tables([table for table in tables if table is not None])
    groups = whole.group_by("key", use_threads=False)  # threads would lose the order, which determines the last record
    merged = groups.aggregate([("records", "sum"), ("bytes", "sum"), ("last_bytes", "last")])
    merged = merged.rename_columns(["key", "records", "bytes", "last_bytes"])
    if merged["key"].nbytes > MAX_KEYS_BYTES:
        raise PipelineError(
            f"{part.topic}-{part.partition} has more than {MAX_KEYS_BYTES >> 20} MiB of distinct keys, too many to"
            " group in memory: docs/pipeline/jobs.md has a query for Spark without this limit"
        )
    return merged


def _top_key(row: Mapping[str, Any]) -> TopKey:
    try:
        text = row["key"].decode()
    except UnicodeDecodeError:
        text = row["key"].hex()
    return TopKey(text=text, records=row["records"], bytes=row["bytes"])


def _measure(report: Sequence[Compactable], options: ReadOptions) -> None:
    """Add the sizes of the partitions' files."""
    stored = {key_of(each): each for each in wanted_partitions(options)}
    cleaned = cleaner_points(stored.values())
    for each in report:
        partition = stored[each.topic, each.partition]
        sizes = {segment.base_offset: partition.readable_size(segment) for segment in partition.segments}
        each.stored_bytes = sum(sizes.values())
        each.stored_saved_bytes = round(each.stored_bytes * each.saved_bytes / each.bytes) if each.bytes else 0
        each.dirty_ratio = dirty_ratio(sizes, cleaned.get((each.topic, each.partition), 0))


def dirty_ratio(sizes: Mapping[int, int], cleaned_until: int) -> float:
    """Return the share of uncleaned bytes in the segments that may be cleaned (all but the active one).

    `sizes`: by the segments' base offsets. Source: org.apache.kafka.storage.internals.log.LogToClean.
    """
    closed = sorted(sizes)[:-1]
    total = sum(sizes[base] for base in closed)
    return sum(sizes[base] for base in closed if base >= cleaned_until) / total if total else 0.0
