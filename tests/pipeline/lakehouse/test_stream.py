"""A table as the sink of Spark's streams: micro-batches once, however often Spark repeats them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.documents import ROOT
from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import (
    AnyTable,
    Kind,
    catalog_of,
    copied,
    files_of,
    offsets_in,
    open_in,
    options_of,
)
from tests.pipeline.lakehouse.test_audit import audited, total
from tests.pipeline.lakehouse.test_exactly_once import BOTH, Watched, once
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse import stream
from warmlog.pipeline.lakehouse.stream import TableSink


def sink_in(directory: Path, kind: Kind) -> TableSink:
    if kind == "delta":
        return TableSink(str(directory / "delta"))
    return TableSink("db.orders", **catalog_of(directory))


def source(how: Any, writer: DirectoryWriter) -> Any:
    """`how`: spark.read or spark.readStream."""
    options = {"path": str(writer.directory.parent), "topic": "orders", "includeHeaders": "true"}
    return how.format("warmlog").options(**options, startingOffsets="earliest").load()


def test_a_stream_is_copied_once_over_several_runs(
    spark: Any, writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    for _ in range(2):
        query = (
            source(spark.readStream, writer)
            .writeStream.foreachBatch(sink_in(tmp_path, kind))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
        last = writer.next_offset
        writer.segment([b"z"] * 5)
    assert offsets_in(tmp_path, kind) == [(0, at) for at in range(last)] + BOTH[60:]
    result = audited(tmp_path, kind, options_of(writer))
    assert (total(result).in_log, result.findings, result.partitions[0].behind) == (last + 30, [], 5)


def test_a_micro_batch_that_is_repeated_adds_nothing(
    spark: Any, writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    """Spark has not noted that it was done."""
    sink = sink_in(tmp_path, kind)
    sink(source(spark.read, writer), 0)
    sink(source(spark.read, writer), 0)
    assert offsets_in(tmp_path, kind) == BOTH
    writer.segment([b"z"] * 5)
    sink(source(spark.read, writer), 0)
    assert offsets_in(tmp_path, kind) == sorted([*BOTH, *((0, at) for at in range(60, 65))])
    assert len(list(tmp_path.rglob("*.parquet"))) == len(files_of(tmp_path, kind))
    assert audited(tmp_path, kind, options_of(writer)).findings == []


def test_the_job_continues_where_a_stream_ended(
    spark: Any, writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    sink_in(tmp_path, kind)(source(spark.read, writer), 0)
    writer.segment([b"z"] * 5)
    assert [receipt.rows for receipt in copied(open_in(tmp_path, kind), options_of(writer))] == [5]
    sink_in(tmp_path, kind)(source(spark.read, writer), 1)
    assert len(offsets_in(tmp_path, kind)) == 95


def test_another_writer_in_between_adds_no_row_twice(
    spark: Any, writer: DirectoryWriter, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = once("before commit", lambda: copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=50)))

    def opened(*_: Any, **__: Any) -> Any:
        table: AnyTable = open_in(tmp_path, kind)
        return Watched(table, step)

    monkeypatch.setattr(stream, "open_table", opened)
    # The table's files are not written through a watched store: tasks get a copy of it.
    monkeypatch.setattr(Watched, "store", lambda watched: watched._table.store())
    sink_in(tmp_path, kind)(source(spark.read, writer), 0)
    assert offsets_in(tmp_path, kind) == BOTH


def test_the_example_runs_as_written(
    spark: Any, write_partition: Callable[..., DirectoryWriter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_partition("readings").segment([b"x"] * 10)
    monkeypatch.chdir(tmp_path)
    code = (ROOT / "docs" / "lakehouse.md").read_text().split("```python\n")[1].split("```")[0]
    for name in ("data", "lake/checkpoint"):  # Spark was started in another directory
        code = code.replace(f'"{name}"', repr(str(tmp_path / name)))
    exec(code, {"spark": spark})
    assert deltalake.DeltaTable("lake/stream").to_pyarrow_table().num_rows == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.withColumn("price", frame["offset"]), "columns that the source does not have: price"),
        (lambda frame: frame.drop("topic"), "a table needs the columns topic"),
        (lambda frame: frame.orderBy("offset", ascending=False), "are out of order or duplicated"),
        (lambda frame: frame.union(frame), "are out of order or duplicated"),
    ],
    ids=["another column", "no topic", "another order", "twice"],
)
def test_frames_whose_rows_cannot_be_accounted_for_are_refused(
    spark: Any, writer: DirectoryWriter, tmp_path: Path, change: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        sink_in(tmp_path, "delta")(change(source(spark.read, writer)), 0)
    assert not (tmp_path / "delta").exists() or offsets_in(tmp_path, "delta") == []
