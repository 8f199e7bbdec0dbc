"""Partitioned tables that other programs made: written in their own partitions, or refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from tests.pipeline.lakehouse.arrangement.arranged import arranged_in, create, iceberg_catalog, listed, read
from tests.pipeline.lakehouse.schemas.decoded import audited_with
from tests.pipeline.lakehouse.tables import Kind, arguments_of, copied, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited, total
from tests.pipeline.lakehouse.test_audit_expired import expire
from tests.pipeline.lakehouse.test_table import invoke
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.schemas.auditing import SchemaSources
from warmlog.pipeline.source.arrow import arrow_schema
from warmlog.pipeline.source.options import COLUMNS

SCHEMA = arrow_schema(COLUMNS)
BOTH = [(0, offset) for offset in range(60)] + [(1, offset) for offset in range(30)]


def foreign_rows(partition: int) -> pa.Table:
    """Rows of another topic that another program writes."""
    rows = {
        "key": [b"k"],
        "value": [b"v"],
        "topic": ["others"],
        "partition": [partition],
        "offset": [5],
        "timestamp": [NOW_MS * 1000],
        "timestampType": [0],
        "headers": [[]],
    }
    return pa.table([pa.array(rows[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def append(directory: Path, kind: Kind, rows: pa.Table) -> None:
    if kind == "delta":
        from deltalake import write_deltalake

        write_deltalake(str(directory / "delta"), rows, mode="append")
        return
    iceberg_catalog(directory).load_table("db.orders").append(rows)


@pytest.mark.parametrize("terms", [["partition"], ["topic", "partition"]])
def test_rows_are_written_in_the_tables_partitions(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, terms: list[str]
) -> None:
    create(tmp_path, kind, SCHEMA, terms)
    append(tmp_path, kind, foreign_rows(1))
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=50))
    append(tmp_path, kind, foreign_rows(2))
    copied(open_in(tmp_path, kind), options_of(writer))
    ours = [file for file in listed(tmp_path, kind) if file.path.name.startswith("warmlog-")]
    assert {file.partition["partition"] for file in ours} == {0, 1}
    assert all(set(file.values("partition")) == {file.partition["partition"]} for file in ours)
    assert read(tmp_path, kind).num_rows == 92
    audit = audited(tmp_path, kind, options_of(writer))
    assert (total(audit).rows, total(audit).in_log, audit.findings) == (90, 90, [])


def test_files_that_lack_the_column_of_their_partition_are_read(writer: DirectoryWriter, tmp_path: Path) -> None:
    """deltalake rewrites files so, and warmlog's with them."""
    import deltalake

    create(tmp_path, "delta", SCHEMA, ["topic", "partition"])
    copied(open_in(tmp_path, "delta"), options_of(writer, maxOffsetsPerTrigger=20))
    deltalake.DeltaTable(str(tmp_path / "delta")).optimize.compact()
    files = listed(tmp_path, "delta")
    assert not any(file.path.name.startswith("warmlog-") for file in files)
    assert not any({"topic", "partition"} & set(file.rows.column_names) for file in files)
    audit = audited(tmp_path, "delta", options_of(writer))
    assert (total(audit).in_log, audit.findings) == (90, [])
    copied(open_in(tmp_path, "delta"), options_of(writer))
    assert read(tmp_path, "delta").num_rows == 90


def test_files_in_directories_with_other_characters_are_read(writer: DirectoryWriter, tmp_path: Path) -> None:
    """Delta's log has the encoded names of directories, encoded once more."""
    import deltalake

    where = ["orders", *arguments_of(tmp_path, "delta"), "--path", str(writer.directory.parent), "--until-end"]
    for _ in range(2):
        writer.segment(["New York/ü%".encode(), b"a=b c"])
        invoke(*where, "--value-format", "string", "--partition-by", "value")
    deltalake.DeltaTable(str(tmp_path / "delta")).optimize.compact()
    assert (tmp_path / "delta" / "value=New%20York%2F%C3%BC%25").is_dir()
    audit = audited_with(tmp_path, "delta", writer, SchemaSources())
    assert (total(audit).in_log, audit.findings) == (94, [])


def test_an_audit_without_receipts_does_not_miss_a_column_of_a_term(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    copied(arranged_in(tmp_path, kind, "day(timestamp)", "key"), options_of(writer))
    append(tmp_path, kind, read(tmp_path, kind).slice(0, 0))
    expire(tmp_path, kind)
    assert not list(open_in(tmp_path, kind).commits())
    audit = audited(tmp_path, kind, options_of(writer))
    assert (total(audit).in_log, audit.findings) == (90, [])


def test_an_iceberg_table_is_written_in_the_spec_that_it_has_now(writer: DirectoryWriter, tmp_path: Path) -> None:
    from pyiceberg.transforms import DayTransform

    create(tmp_path, "iceberg", SCHEMA, ["partition"])
    table = open_in(tmp_path, "iceberg")
    copied(table, options_of(writer, endingOffsets='{"orders":{"0":30,"1":30}}'))
    other = iceberg_catalog(tmp_path).load_table("db.orders")
    with other.update_spec() as spec:
        spec.remove_field("partition")
        spec.add_field("timestamp", DayTransform(), "ts_day")
    copied(table, options_of(writer))
    specs = [task.file.spec_id for task in open_in(tmp_path, "iceberg", ()).handle.scan().plan_files()]
    assert sorted(set(specs)) == [1, 2]
    assert offsets_in(tmp_path, "iceberg") == BOTH
    audit = audited(tmp_path, "iceberg", options_of(writer))
    assert (total(audit).in_log, audit.findings) == (90, [])


def test_a_field_that_a_version_1_table_has_dropped_is_null(writer: DirectoryWriter, tmp_path: Path) -> None:
    catalog = iceberg_catalog(tmp_path)
    catalog.create_namespace_if_not_exists("db")
    table = catalog.create_table("db.orders", SCHEMA, properties={"format-version": "1"})
    with table.update_spec() as spec:
        spec.add_identity("partition")
    with table.update_spec() as spec:
        spec.remove_field("partition")
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    assert [file.partition for file in listed(tmp_path, "iceberg")] == [{"partition": None}]
    assert offsets_in(tmp_path, "iceberg") == BOTH


def nested(directory: Path) -> None:
    schema = SCHEMA.append(pa.field("address", pa.struct([pa.field("city", pa.string())])))
    create(directory, "iceberg", schema, ["address.city"])


def timed(directory: Path) -> None:
    create(directory, "iceberg", SCHEMA, ["timestamp"])


def generated(directory: Path) -> None:
    expression = {"delta.generationExpression": "CAST(timestamp AS DATE)"}
    schema = SCHEMA.append(pa.field("day", pa.date32(), metadata=expression))
    create(directory, "delta", schema, ["day"])


def by_bytes(directory: Path) -> None:
    create(directory, "delta", SCHEMA, ["key"])


@pytest.mark.parametrize(
    ("made", "kind", "message"),
    [
        (nested, "iceberg", "db.orders is partitioned by identity of address.city, which is not supported"),
        (timed, "iceberg", r"db.orders cannot be partitioned by timestamp, .* but by day\(timestamp\)"),
        (generated, "delta", r"column day is generated by CAST\(timestamp AS DATE\), which is not supported, because"),
        (by_bytes, "delta", "cannot be partitioned by key, because key is binary"),
    ],
)
def test_partitions_that_cannot_be_written_are_refused(
    made: Callable[[Path], None], kind: Kind, tmp_path: Path, message: str
) -> None:
    made(tmp_path)
    with pytest.raises(PipelineError, match=message):
        open_in(tmp_path, kind)


def test_partitions_that_change_meanwhile_are_no_conflict(writer: DirectoryWriter, tmp_path: Path) -> None:
    """The files are written again, in the new partitions."""
    from tests.pipeline.lakehouse.test_exactly_once import Watched, once

    create(tmp_path, "iceberg", SCHEMA, ["partition"])

    def change() -> None:
        other = iceberg_catalog(tmp_path).load_table("db.orders")
        with other.update_spec() as spec:
            spec.add_identity("topic")
        other.append(foreign_rows(3))

    watched: Any = Watched(open_in(tmp_path, "iceberg"), once("before commit", change))
    copied(watched, options_of(writer))
    ours = [file for file in listed(tmp_path, "iceberg") if file.path.name.startswith("warmlog-")]
    assert {tuple(file.partition.items()) for file in ours} == {
        (("partition", 0), ("topic", "orders")),
        (("partition", 1), ("topic", "orders")),
    }
    assert read(tmp_path, "iceberg").num_rows == 91
    audit = audited(tmp_path, "iceberg", options_of(writer))
    assert (total(audit).in_log, audit.findings) == (90, [])
