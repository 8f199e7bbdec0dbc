"""What compaction would save: asked of Spark, which counts more keys than fit into memory.

Owns: the questions, and the dirty ratio of directories. Must not know: the command line.

Compaction keeps the last record of each key. What it would take is told in bytes of keys and values, and as that share
of what the partition's files measure: on the disk records stand in batches, perhaps compressed ones. The segment that
is being written, which compaction leaves alone, is counted like all others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from warmlog.pipeline.jobs.audit import cleaner_points
from warmlog.pipeline.source.input import wanted_partitions
from warmlog.pipeline.source.options import ReadOptions

COLUMNS = "key,value,topic,partition,offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKey:
    """A key and what its records measure; `text` where it is UTF-8, else hexadecimal."""

    text: str
    records: int
    bytes: int


@dataclass(slots=True, kw_only=True)
class Compactable:
    """A partition. `bytes` and `saved_bytes`: of keys and values; those with `stored` as the files measure them.

    `keyless`: records without a key, which no compacted topic may have. `dirty_ratio`: as the cleaner sees it, of what
    it may clean; None behind a broker.
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


def report_compaction(session: Any, given: Mapping[str, str], options: ReadOptions, top: int) -> list[Compactable]:
    """What compaction would take from each partition. `given`: the source's options. Raises PipelineError."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    from warmlog.pipeline.data_source import WarmlogDataSource

    session.dataSource.register(WarmlogDataSource)
    context = session.sparkContext
    if context.master.startswith("local"):  # 200 shuffled parts are for a cluster
        session.conf.set("spark.sql.shuffle.partitions", 2 * context.defaultParallelism)
    rows = session.read.format("warmlog").options(**{**given, "columns": COLUMNS}).load()
    size = F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
    records = rows.select(
        "topic", "partition", "key", "offset", size.alias("size"), F.isnull("value").alias("no_value")
    )
    by_key = records.groupBy("topic", "partition", "key").agg(
        F.count("*").alias("records"),
        F.sum("size").alias("size"),
        F.max_by("size", "offset").alias("last_size"),
        F.sum(F.col("no_value").cast("long")).alias("tombstones"),
    )
    by_key = by_key.persist()
    try:
        found = [_compactable(row) for row in _by_partition(by_key, F).collect()]
        keys = _top_keys(by_key, F, top).collect() if top else []
    finally:
        by_key.unpersist()
    for one in found:
        one.top = [_top_key(row) for row in keys if (row.topic, row.partition) == (one.topic, one.partition)]
    if options.path is not None:
        _measure(found, options)
    return sorted(found, key=lambda one: (one.topic, one.partition))


def _by_partition(by_key: Any, F: Any) -> Any:  # noqa: N803 - as everybody calls it
    keyed = F.col("key").isNotNull()
    return by_key.groupBy("topic", "partition").agg(
        F.sum("records").alias("records"),
        F.sum("size").alias("bytes"),
        F.count("key").alias("keys"),
        F.sum("tombstones").alias("tombstones"),
        F.sum(F.when(keyed, 0).otherwise(F.col("records"))).alias("keyless"),
        F.sum(F.when(keyed, F.col("records") - 1).otherwise(0)).alias("saved_records"),
        F.sum(F.when(keyed, F.col("size") - F.col("last_size")).otherwise(0)).alias("saved_bytes"),
    )


def _top_keys(by_key: Any, F: Any, top: int) -> Any:  # noqa: N803 - as above
    from pyspark.sql import Window

    ranked = F.row_number().over(Window.partitionBy("topic", "partition").orderBy(F.desc("size"), "key"))
    keyed = by_key.where(F.col("key").isNotNull()).withColumn("rank", ranked)
    return keyed.where(F.col("rank") <= top).orderBy("topic", "partition", "rank")


def _compactable(row: Any) -> Compactable:
    return Compactable(**row.asDict())


def _top_key(row: Any) -> TopKey:
    try:
        text = bytes(row.key).decode()
    except UnicodeDecodeError:
        text = bytes(row.key).hex()
    return TopKey(text=text, records=row.records, bytes=row.size)


def _measure(found: Sequence[Compactable], options: ReadOptions) -> None:
    """Add what the files of the partitions say."""
    cleaned = cleaner_points(options)
    stored = {(one.topic, one.partition): one for one in wanted_partitions(options)}
    for one in found:
        partition = stored[one.topic, one.partition]
        sizes = {segment.base_offset: partition.readable_size(segment) for segment in partition.segments}
        one.stored_bytes = sum(sizes.values())
        one.stored_saved_bytes = round(one.stored_bytes * one.saved_bytes / one.bytes) if one.bytes else 0
        one.dirty_ratio = dirty_ratio(sizes, cleaned.get((one.topic, one.partition), 0))


def dirty_ratio(sizes: Mapping[int, int], cleaned_until: int) -> float:
    """Of the bytes that may be cleaned (all but the last segment's), those that the cleaner has not seen.

    `sizes`: by the segments' base offsets. Source: org.apache.kafka.storage.internals.log.LogToClean.
    """
    closed = sorted(sizes)[:-1]
    total = sum(sizes[base] for base in closed)
    return sum(sizes[base] for base in closed if base >= cleaned_until) / total if total else 0.0
