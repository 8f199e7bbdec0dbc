"""A table with a row for each key as the sink of Spark's streams."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.lakehouse.tables import Kind, catalog_of
from tests.pipeline.lakehouse.test_stream import sink_in, source
from tests.pipeline.lakehouse.upserts.test_upsert_audit import audit
from tests.pipeline.lakehouse.upserts.test_upserts import random_pairs
from tests.pipeline.lakehouse.upserts.test_upserts_elsewhere import changes_in, keyed
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, model_in
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.stream import TableSink


def upserting(directory: Path, kind: Kind) -> TableSink:
    if kind == "delta":
        return TableSink(str(directory / "delta"), upsert=True)
    return TableSink("db.orders", upsert=True, **catalog_of(directory))


def test_a_stream_leaves_the_newest_record_of_each_key(spark: Any, kind: Kind, tmp_path: Path) -> None:
    chance, writers = random.Random(kind), keyed(tmp_path)
    for _ in range(3):
        for writer in writers:
            writer.add(*random_pairs(chance, 200, 60))
        query = (
            source(spark.readStream, writers[0])
            .writeStream.foreachBatch(upserting(tmp_path, kind))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
        assert model_in(tmp_path, kind) == writers[0].model
    assert changes_in(tmp_path) == []
    assert audit(tmp_path, kind, writers[0]).findings == []


def test_a_micro_batch_that_is_repeated_changes_nothing(spark: Any, kind: Kind, tmp_path: Path) -> None:
    """Spark has not noted that it was done; the log has grown since."""
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    upserting(tmp_path, kind)(source(spark.read, writer), 0)
    writer.add((b"b", None), (b"c", b"1"))
    upserting(tmp_path, kind)(source(spark.read, writer), 0)
    upserting(tmp_path, kind)(source(spark.read, writer), 0)
    assert model_in(tmp_path, kind) == writer.model
    assert changes_in(tmp_path) == []


def test_modes_do_not_mix(spark: Any, kind: Kind, tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"))
    upserting(tmp_path, kind)(source(spark.read, writer), 0)
    with pytest.raises(PipelineError, match=r"has one row for each key: write to it with TableSink"):
        sink_in(tmp_path, kind)(source(spark.read, writer), 0)
    assert model_in(tmp_path, kind) == writer.model


def test_a_table_of_appended_rows_is_refused(spark: Any, kind: Kind, tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"))
    sink_in(tmp_path, kind)(source(spark.read, writer), 0)
    with pytest.raises(PipelineError, match="has rows that were not written by"):
        upserting(tmp_path, kind)(source(spark.read, writer), 0)


def test_keys_must_be_among_the_columns(spark: Any, tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"))
    with pytest.raises(PipelineError, match="key"):
        upserting(tmp_path, "delta")(source(spark.read, writer).drop("key"), 0)
