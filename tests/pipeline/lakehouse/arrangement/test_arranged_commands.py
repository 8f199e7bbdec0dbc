"""The options of the command and of the sink of Spark, and columns that schemas add."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.arrangement.arranged import listed
from tests.pipeline.lakehouse.schemas.decoded import encoded, schema_file
from tests.pipeline.lakehouse.tables import Kind, arguments_of, catalog_of, offsets_in, options_of
from tests.pipeline.lakehouse.test_audit import audited, total
from tests.pipeline.lakehouse.test_stream import source
from tests.pipeline.lakehouse.test_table import invoke
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.stream import TableSink

BOTH = [(0, offset) for offset in range(60)] + [(1, offset) for offset in range(30)]
CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "fields": [{"name": "country", "type": "string"}, {"name": "age", "type": "int"}],
}


def arguments(writer: DirectoryWriter, directory: Path, kind: Kind) -> list[str]:
    return ["orders", *arguments_of(directory, kind), "--path", str(writer.directory.parent), "--until-end"]


def test_the_command_makes_an_arranged_table_and_continues_it(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    chosen = ["--partition-by", "partition", "--partition-by", "day(timestamp)", "--sort-by", "value,key"]
    assert "committed 90 records" in invoke(*arguments(writer, tmp_path, kind), *chosen)
    assert [sorted(file.partition) for file in listed(tmp_path, kind)] == [["partition", "timestamp_day"]] * 2
    writer.segment([b"b", b"a"])
    assert "committed 2 records" in invoke(*arguments(writer, tmp_path, kind))
    assert [b"a", b"b"] in [file.values("value") for file in listed(tmp_path, kind)]
    assert "nothing new" in invoke(*arguments(writer, tmp_path, kind), *chosen)
    other = invoke(*arguments(writer, tmp_path, kind), "--sort-by", "key", status=1)
    assert "exists and is sorted by value, key, not by key: leave out --sort-by, or name a new table" in other


def test_the_command_refuses_what_is_no_term(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    output = invoke(*arguments(writer, tmp_path, kind), "--partition-by", "week(timestamp)", status=1)
    assert "'week(timestamp)' is none of COLUMN, year(COLUMN)" in output
    assert len(output.strip().splitlines()) == 1


def test_fields_of_a_schema_are_partitions_and_orders(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    writer.segment(
        encoded(CUSTOMER, *({"country": country, "age": at} for at, country in enumerate(["nl", "be", "nl", "de"]))),
        [None],  # type: ignore[list-item]
    )
    schema = ["--value-format", "avro", "--value-schema", schema_file(tmp_path, CUSTOMER), "--on-bad-row", "null"]
    chosen = ["--partition-by", "country", "--sort-by", "age"]
    invoke(*arguments(writer, tmp_path, kind), *schema, *chosen)
    partitions = {file.partition["country"]: file for file in listed(tmp_path, kind)}
    assert {name: file.rows.num_rows for name, file in partitions.items()} == {"nl": 2, "be": 1, "de": 1, None: 91}
    assert partitions["nl"].values("age") == [0, 2]
    assert len(offsets_in(tmp_path, kind)) == 95


def test_columns_of_a_registry_are_not_known_before_the_first_record(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    registry = ["--value-format", "confluent", "--schema-registry", "http://127.0.0.1:1"]
    output = invoke(*arguments(writer, tmp_path, kind), *registry, "--partition-by", "country", status=1)
    assert "would have no column country" in output
    assert "Columns of schemas in a registry are known from the first record on: create the table with" in output


def test_spark_writes_arranged_tables(writer: DirectoryWriter, kind: Kind, tmp_path: Path, on_this_spark: None) -> None:
    chosen = ["--partition-by", "partition,hour(timestamp)", "--sort-by", "key", "--engine", "spark"]
    assert "committed 90 records" in invoke(*arguments(writer, tmp_path, kind), *chosen, "-o", "minPartitions=4")
    for file in listed(tmp_path, kind):
        assert set(file.values("partition")) == {file.partition["partition"]}
        assert file.values("key") == sorted(file.values("key"))
    assert offsets_in(tmp_path, kind) == BOTH
    audit = audited(tmp_path, kind, options_of(writer))
    assert (total(audit).in_log, audit.findings) == (90, [])


def test_a_stream_of_spark_goes_into_an_arranged_table(
    spark: Any, writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    terms = ["day(timestamp)", "partition"] if kind == "delta" else ["bucket(2, key)", "truncate(1, key)"]
    where: dict[str, Any] = catalog_of(tmp_path) if kind == "iceberg" else {}
    target = "db.orders" if kind == "iceberg" else str(tmp_path / "delta")
    sink = TableSink(target, **where, partition_by=terms, sort_by=["value"])
    for _ in range(2):
        sink(source(spark.read, writer), 0)
    assert offsets_in(tmp_path, kind) == BOTH
    assert {len(file.partition) for file in listed(tmp_path, kind)} == {2}
    audit = audited(tmp_path, kind, options_of(writer))
    assert (total(audit).in_log, audit.findings) == (90, [])


def test_a_sink_with_another_arrangement_is_refused(
    spark: Any, writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    where: dict[str, Any] = catalog_of(tmp_path) if kind == "iceberg" else {}
    target = "db.orders" if kind == "iceberg" else str(tmp_path / "delta")
    TableSink(target, **where)(source(spark.read, writer), 0)
    with pytest.raises(PipelineError, match="exists and is partitioned by nothing, not by partition"):
        TableSink(target, **where, partition_by=["partition"])(source(spark.read, writer), 1)
