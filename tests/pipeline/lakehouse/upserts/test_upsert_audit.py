"""The audit of a table with one row for each key: what it counts, and what it finds."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.pipeline.conftest import NOW_MS
from tests.pipeline.lakehouse.tables import Kind, files_of, open_in, options_of
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, model_in, upserted
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.table_audit import AuditState, TableAudit, audit_table
from warmlog.pipeline.runner import LocalRunner
from warmlog.protocol.records.builder import build_batch


def audit(directory: Path, kind: Kind, writer: KeyedWriter, state: AuditState | None = None) -> TableAudit:
    options = options_of(writer)
    return audit_table(LocalRunner(), options, open_in(directory, kind), Reporter("audit"), state)


@pytest.fixture
def written(kind: Kind, tmp_path: Path) -> KeyedWriter:
    """Keys 0 to 9, three times; the last time keys 0 and 1 are deleted. Offsets 20 to 29 are the last ones."""
    writer = KeyedWriter(tmp_path / "data")
    for number in range(3):
        gone = {0, 1} if number == 2 else set()
        writer.add(*((b"k%d" % key, None if key in gone else b"%d-%d" % (number, key)) for key in range(10)))
        upserted(open_in(tmp_path, kind), writer)
    return writer


def change(directory: Path, kind: Kind, how: Callable[[pa.Table], pa.Table]) -> str:
    """Change the only file of the table, and return its path."""
    (path,) = (file.removeprefix("file://") for file in files_of(directory, kind))
    schema = parquet.read_schema(path)
    parquet.write_table(how(parquet.read_table(path)).cast(schema), path)
    return path


def with_value(table: pa.Table, row: int, column: str, value: Any) -> pa.Table:
    values = table.column(column).to_pylist()
    values[row] = value
    return table.set_column(table.column_names.index(column), column, pa.array(values, table.schema.field(column).type))


def test_each_offset_is_accounted_for(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    result = audit(tmp_path, kind, written)
    (partition,) = result.partitions
    assert result.findings == []
    assert (partition.first_offset, partition.end_offset, partition.empty, partition.behind) == (0, 30, 0, 0)
    assert (partition.proved.rows, partition.proved.in_log, partition.superseded, partition.deletes) == (8, 8, 20, 2)


def test_records_after_the_position_are_behind(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    written.add((b"k2", b"new"), (b"k3", None))
    (partition,) = audit(tmp_path, kind, written).partitions
    assert (partition.behind, partition.proved.in_log, partition.superseded) == (2, 8, 20)


def planted(directory: Path, kind: Kind, writer: KeyedWriter) -> list[str]:
    result = audit(directory, kind, writer)
    path = files_of(directory, kind)[0].removeprefix("file://")
    return [
        f"{finding.what}: {finding.path.removeprefix('file://').replace(path, 'FILE')}" for finding in result.findings
    ]


def test_an_altered_row_is_named(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    change(tmp_path, kind, lambda table: with_value(table, 0, "value", b"wrong"))
    assert planted(tmp_path, kind, written) == ["offset 22 is not as in the log: FILE"]


def test_a_missing_row_is_named(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    change(tmp_path, kind, lambda table: table.slice(1))
    assert planted(tmp_path, kind, written) == [
        "key 'k2': the newest record is at offset 22, and the table has no row: no file"
    ]


def test_a_doubled_row_is_named(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    change(tmp_path, kind, lambda table: pa.concat_tables([table.slice(0, 1), table]))
    assert planted(tmp_path, kind, written) == ["key 'k2': has 2 rows, of offsets 22, 22: FILE"]


def earlier(table: pa.Table, key: bytes, offset: int) -> pa.Table:
    row = with_value(with_value(table.slice(0, 1), 0, "key", key), 0, "offset", offset)
    return pa.concat_tables([with_value(row, 0, "value", b"%d-%s" % (offset // 10, key[1:])), table])


def test_a_row_that_was_deleted_is_named(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    change(tmp_path, kind, lambda table: earlier(table, b"k1", 11))
    found = planted(tmp_path, kind, written)
    assert "key 'k1': the row of offset 11 was deleted by the record at offset 21: FILE" in found


def test_a_row_that_a_newer_record_replaces_is_named(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    change(tmp_path, kind, lambda table: earlier(table.slice(1), b"k2", 12))
    found = planted(tmp_path, kind, written)
    assert "key 'k2': the row of offset 12 is not the newest record, which is at offset 22: FILE" in found


def test_a_row_that_never_was_in_the_log_is_named(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    change(tmp_path, kind, lambda table: earlier(table, b"k99", 12))
    found = planted(tmp_path, kind, written)
    assert "key 'k99': the row of offset 12 is in the table, but not in the log: FILE" in found


def test_a_damaged_file_is_named(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    path = files_of(tmp_path, kind)[0].removeprefix("file://")
    Path(path).write_bytes(b"PAR1 is no footer")
    found = planted(tmp_path, kind, written)
    assert found[0].startswith("cannot be read: ")
    assert found[0].endswith(": FILE")
    assert len(found) == 1 + 8  # and a row of each key


def test_rows_below_the_start_of_the_log_are_not_proved(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    """Retention removed the records of two keys that have none since."""
    written.add(*((b"k%d" % key, b"new") for key in range(4, 10)))
    upserted(open_in(tmp_path, kind), written)
    for base in (0, 10, 20):
        for path in written.directory.glob(f"{base:020d}.*"):
            path.unlink()
    result = audit(tmp_path, kind, written)
    (partition,) = result.partitions
    assert (partition.proved.in_log, partition.proved.unproved, partition.unaccounted) == (6, 2, 30)
    assert result.findings == []


def compact(writer: KeyedWriter, offsets: Sequence[int]) -> None:
    """Leave only these records in the log, as compaction does."""
    for path in writer.directory.iterdir():
        path.unlink()
    (writer.directory / f"{0:020d}.log").write_bytes(
        b"".join(
            build_batch([(NOW_MS + offset, *writer.records[offset], ())], base_offset=offset) for offset in offsets
        )
    )


def test_what_compaction_removes_needs_no_proof(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    """A new table has the same rows; tombstones are gone, too."""
    compact(written, range(22, 30))
    (partition,) = audit(tmp_path, kind, written).partitions
    assert (partition.proved.in_log, partition.proved.rows, partition.superseded) == (8, 8, 0)
    upserted(open_in(tmp_path / "later", kind), written)
    assert model_in(tmp_path / "later", kind) == model_in(tmp_path, kind) == written.model
    assert audit(tmp_path / "later", kind, written).findings == []


def test_a_row_whose_record_gave_way_to_one_after_the_position_is_no_finding(
    kind: Kind, written: KeyedWriter, tmp_path: Path
) -> None:
    written.add((b"k2", b"new"))
    compact(written, range(23, 31))
    result = audit(tmp_path, kind, written)
    (partition,) = result.partitions
    assert (result.findings, partition.proved.in_log, partition.proved.unproved, partition.behind) == ([], 7, 1, 1)


def test_a_row_that_the_log_no_longer_has_is_named(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    """Nothing explains it: a tombstone that was not applied, and is compacted."""
    compact(written, range(23, 30))
    assert planted(tmp_path, kind, written) == [
        "key 'k2': the row of offset 22 is in the table, but not in the log: FILE"
    ]


def test_a_state_is_refused(kind: Kind, written: KeyedWriter, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="--state is for tables of appended rows"):
        audit(tmp_path, kind, written, AuditState(table="any"))
