"""Iceberg tables of which other programs rename, drop and add columns: files are read by the ids of columns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.iceberg.rolled import opened
from tests.pipeline.lakehouse.tables import copied, open_in, options_of
from tests.pipeline.lakehouse.test_maintenance import maintained
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, upserted
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.table_audit import AuditState, TableAudit, audit_table
from warmlog.pipeline.runner import LocalRunner


@pytest.fixture
def copies(writer: DirectoryWriter, tmp_path: Path) -> DirectoryWriter:
    copied(open_in(tmp_path, "iceberg"), options_of(writer, maxOffsetsPerTrigger=20))
    return writer


def handle(directory: Path) -> Any:
    return opened(directory).handle


def audited(directory: Path, writer: DirectoryWriter, **options: Any) -> TableAudit:
    return audit_table(LocalRunner(), options_of(writer, **options), opened(directory), Reporter("audit"))


def rename(directory: Path, *pairs: tuple[str, str]) -> None:
    for before, after in pairs:
        with handle(directory).update_schema() as update:
            update.rename_column(before, after)


def drop_and_add(directory: Path, name: str) -> None:
    kind = handle(directory).schema().find_field(name).field_type
    with handle(directory).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column(name)
    with handle(directory).update_schema() as update:
        update.add_column(name, kind)


def rows_in(directory: Path) -> list[dict[str, Any]]:
    """Rows as pyiceberg reads them, by partition and offset."""
    rows: list[dict[str, Any]] = handle(directory).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def altered(directory: Path, writer: DirectoryWriter, **options: Any) -> int:
    audit = audited(directory, writer, **options)
    assert bool(audit.findings) == any(each.proved.altered for each in audit.partitions)
    return sum(each.proved.altered for each in audit.partitions)


def test_maintenance_merges_files_from_before_and_after_a_rename(copies: DirectoryWriter, tmp_path: Path) -> None:
    before = rows_in(tmp_path)
    rename(tmp_path, ("value", "payload"))
    assert maintained(tmp_path, "iceberg").new_files == 1
    assert rows_in(tmp_path) == [_renamed(row, {"value": "payload"}) for row in before]


def test_an_audit_reads_columns_by_their_present_names(copies: DirectoryWriter, tmp_path: Path) -> None:
    rename(tmp_path, ("value", "other"), ("key", "value"), ("other", "key"))
    assert altered(tmp_path, copies) == 90
    rename(tmp_path, ("value", "other"), ("key", "value"), ("other", "key"))
    assert altered(tmp_path, copies) == 0


def test_an_audit_with_a_state_reads_renamed_columns_again(copies: DirectoryWriter, tmp_path: Path) -> None:
    path = tmp_path / "state"

    def audit() -> TableAudit:
        state = AuditState.read(path, "db.orders")
        result = audit_table(LocalRunner(), options_of(copies), opened(tmp_path), Reporter("audit"), state)
        state.write(path)
        return result

    assert audit().findings == []
    rename(tmp_path, ("value", "other"))
    assert len(audit().findings) == len(audit().findings) > 0
    rename(tmp_path, ("other", "value"))
    assert audit().findings == []
    assert all(each.audited_before == each.end_offset for each in audit().partitions)
    drop_and_add(tmp_path, "value")
    assert audit().findings
    with handle(tmp_path).update_schema() as update:
        update.add_column("more", handle(tmp_path).schema().find_field("value").field_type)
    assert any(each.audited_before == 0 for each in audit().partitions)


def test_an_audit_names_a_column_that_is_gone(copies: DirectoryWriter, tmp_path: Path) -> None:
    rename(tmp_path, ("value", "payload"))
    findings = audited(tmp_path, copies).findings
    assert all(finding.what.endswith("not as in the log: there is no column value") for finding in findings)
    assert findings


@pytest.mark.parametrize("name", ["partition", "offset"])
@pytest.mark.parametrize("change", ["rename", "drop and add"])
def test_maintenance_leaves_files_alone_whose_rows_have_no_offsets(
    copies: DirectoryWriter, tmp_path: Path, name: str, change: str
) -> None:
    if change == "rename":
        rename(tmp_path, (name, "number"))
    else:
        drop_and_add(tmp_path, name)
    done = maintained(tmp_path, "iceberg")
    assert (done.new_files, set(done.left_alone.values())) == (0, {f"it has no column {name}"})
    assert audited(tmp_path, copies).findings


def test_a_renamed_offset_is_not_the_offset(copies: DirectoryWriter, tmp_path: Path) -> None:
    rename(tmp_path, ("partition", "other"), ("timestampType", "partition"), ("other", "timestampType"))
    findings = audited(tmp_path, copies).findings
    assert any("in the log, but not in the table" in finding.what for finding in findings)


def test_an_audit_misses_values_of_a_column_that_was_dropped_and_added(copies: DirectoryWriter, tmp_path: Path) -> None:
    drop_and_add(tmp_path, "value")
    assert all(row["value"] is None for row in rows_in(tmp_path))
    assert altered(tmp_path, copies) == 90
    maintained(tmp_path, "iceberg")
    assert all(row["value"] is None for row in rows_in(tmp_path))
    assert altered(tmp_path, copies) == 90
    copies.segment([b"z"] * 5)
    copied(open_in(tmp_path, "iceberg"), options_of(copies))
    assert altered(tmp_path, copies) == 90


def test_a_dropped_column_leaves_the_files_with_the_next_merge(copies: DirectoryWriter, tmp_path: Path) -> None:
    with handle(tmp_path).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("headers")
    assert maintained(tmp_path, "iceberg").new_files == 1
    assert len(rows_in(tmp_path)) == 90
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert altered(tmp_path, copies, columns=",".join(columns), includeHeaders="false") == 0


def test_nested_fields_are_read_by_their_present_names(copies: DirectoryWriter, tmp_path: Path) -> None:
    rename(tmp_path, ("headers.element.key", "name"))
    before = rows_in(tmp_path)
    assert maintained(tmp_path, "iceberg").new_files == 1
    assert rows_in(tmp_path) == before


def test_upserts_keep_a_column_that_was_renamed(tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    upserted(open_in(tmp_path, "iceberg"), writer)
    with handle(tmp_path).update_schema() as update:
        update.rename_column("topic", "source")
        update.rename_column("value", "payload")
    with handle(tmp_path).update_schema() as update:
        update.add_column("value", handle(tmp_path).schema().find_field("payload").field_type)
        update.add_column("topic", handle(tmp_path).schema().find_field("source").field_type)
    writer.add((b"b", b"4"))
    upserted(open_in(tmp_path, "iceberg"), writer)
    got = {row["key"]: (row["payload"], row["value"]) for row in rows_in(tmp_path)}
    assert got == {b"a": (b"1", None), b"b": (None, b"4"), b"c": (b"3", None)}


def _renamed(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in row.items()}
