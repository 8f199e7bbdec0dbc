"""The audit of a table whose receipts other engines have removed: the log and the positions decide."""

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import Kind, arguments_of, copied, files_of, open_in, options_of
from tests.pipeline.lakehouse.test_audit import append, audited, change, faults, file_with, invoke, messages, total
from tests.pipeline.lakehouse.test_exactly_once import iceberg_table
from tests.pipeline.lakehouse.test_maintenance import LATER, age, maintained
from warmlog.cli.pipeline.replay import replay as replay_command
from warmlog.pipeline.jobs.table_audit import AuditState, TableAudit
from warmlog.testing import Broker

WritePartition = Callable[..., DirectoryWriter]
UNEXPLAINED = "in the log, but not in the table, and no receipt says why"


def expire(directory: Path, kind: Kind) -> None:
    """Remove the history as other engines do: the receipt of the newest version stays, if it has one."""
    if kind == "delta":
        import deltalake

        table = deltalake.DeltaTable(str(directory / "delta"))
        table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
        table.create_checkpoint()
        table.cleanup_metadata()
    else:
        iceberg_table(directory).maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()


def expire_all(directory: Path, kind: Kind) -> None:
    """Remove the history, and every receipt with it."""
    rows = parquet.read_table(files_of(directory, kind)[0].removeprefix("file://")).slice(0, 0)
    append(directory, kind, rows)
    expire(directory, kind)
    assert not list(open_in(directory, kind).commits())


def delete(directory: Path, kind: Kind, offsets_below: int | None = None) -> None:
    """Delete rows as another program does: all, or those of all partitions below an offset."""
    if kind == "delta":
        import deltalake

        table = deltalake.DeltaTable(str(directory / "delta"))
        table.delete(None if offsets_below is None else f'"offset" < {offsets_below}')
    else:
        where = "offset >= 0" if offsets_below is None else f"offset < {offsets_below}"
        iceberg_table(directory).delete(where)


@pytest.fixture
def expired(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> DirectoryWriter:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    expire_all(tmp_path, kind)
    return writer


def offsets(audit: TableAudit) -> list[tuple[int, int]]:
    return [(each.first_offset, each.end_offset) for each in audit.partitions]


def test_rows_without_receipts_are_proved_by_the_log(expired: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    result = audited(tmp_path, kind, options_of(expired))
    assert (total(result).in_log, result.findings, offsets(result)) == (90, [], [(0, 60), (0, 30)])
    assert copied(open_in(tmp_path, kind), options_of(expired)) == []


def test_deleted_rows_without_receipts_are_missing(expired: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    delete(tmp_path, kind, offsets_below=10)
    result = audited(tmp_path, kind, options_of(expired))
    assert faults(result) == {"missing": 20}
    assert all(message.startswith(f"offsets 0 to 9 are {UNEXPLAINED}: ") for message in messages(result))
    delete(tmp_path, kind)
    expire(tmp_path, kind)
    result = audited(tmp_path, kind, options_of(expired))
    assert (faults(result), total(result).rows) == ({"missing": 90}, 0)
    assert messages(result) == [f"offsets 0 to {end} are {UNEXPLAINED}: no file" for end in (59, 29)]
    where = ["orders", *arguments_of(tmp_path, kind), "--path", str(expired.directory.parent)]
    assert "2 partitions, 0 rows: 2 findings" in invoke(*where, status=1)


def test_rows_without_receipts_that_are_wrong_are_found(expired: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    rows = parquet.read_table(file_with(tmp_path, kind, 1, 7).removeprefix("file://"))
    twice = next(row for row in rows.to_pylist() if (row["partition"], row["offset"]) == (1, 7))
    append(tmp_path, kind, pa.Table.from_pylist([twice, {**twice, "offset": 30}], rows.schema))
    path = file_with(tmp_path, kind, 0, 7)
    change(path, lambda table: table.set_column(0, table.schema.field(0), pa.array([b"?"] * len(table), pa.binary())))
    count = sum(row["partition"] == 0 for row in parquet.read_table(path.removeprefix("file://")).to_pylist())
    result = audited(tmp_path, kind, options_of(expired))
    assert {name: faults(result)[name] for name in ("twice", "foreign")} == {"twice": 1, "foreign": 1}
    assert faults(result)["altered"] >= count > 0


def test_offsets_before_the_first_remaining_receipt_count(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    if kind == "delta":
        import deltalake

        deltalake.DeltaTable(str(tmp_path / "delta")).create_checkpoint()
        for log in sorted((tmp_path / "delta" / "_delta_log").glob("*.json"))[:-1]:
            log.unlink()
    else:
        expire(tmp_path, kind)
    assert len(list(open_in(tmp_path, kind).commits())) == 1
    delete(tmp_path, kind, offsets_below=10)
    result = audited(tmp_path, kind, options_of(writer))
    assert (faults(result), total(result).in_log, offsets(result)) == ({"missing": 20}, 70, [(0, 60), (0, 30)])


def test_a_job_may_begin_after_the_start_of_the_log(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    """As long as all receipts exist, in commits or the ledger, offsets before the first one were never copied."""
    begin = '{"orders": {"0": 40, "1": 20}}'
    copied(open_in(tmp_path, kind), options_of(writer, startingOffsets=begin, maxOffsetsPerTrigger=10))
    for is_maintained in (False, True):
        if is_maintained:
            if kind == "delta":
                age(tmp_path)
            maintained(tmp_path, kind, after=LATER)
        result = audited(tmp_path, kind, options_of(writer))
        assert (total(result).in_log, result.findings, offsets(result)) == (30, [], [(40, 60), (20, 30)])
    without_ledger(tmp_path, kind)
    expire_all(tmp_path, kind)
    result = audited(tmp_path, kind, options_of(writer))
    assert (faults(result), total(result).in_log) == ({"missing": 60}, 30)
    assert messages(result)[0].startswith(f"offsets 0 to 39 are {UNEXPLAINED}: ")


def without_ledger(directory: Path, kind: Kind) -> None:
    """Remove Iceberg's ledger; Delta's is removed with its log."""
    if kind == "iceberg":
        with iceberg_table(directory).transaction() as transaction:
            transaction.remove_properties("warmlog-receipts")


def test_rows_that_nothing_can_prove_are_findings(write_partition: WritePartition, kind: Kind, tmp_path: Path) -> None:
    writer = write_partition()
    logs = [writer.segment([value] * 10) for value in (b"a", b"b", b"c")]
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=10))
    expire_all(tmp_path, kind)
    for log in logs[:2]:
        os.unlink(log)
    result = audited(tmp_path, kind, options_of(writer))
    assert (faults(result), total(result).rows, total(result).in_log) == ({"unproved": 20}, 30, 10)
    what = "20 rows of offsets 0 to 19 cannot be proved: neither the log nor a receipt has these offsets"
    assert messages(result)[0].startswith(f"{what}: ")
    where = ["orders", *arguments_of(tmp_path, kind), "--path", str(writer.directory.parent)]
    assert "1 partition, 30 rows: 1 finding, 20 rows cannot be proved" in invoke(*where, status=1)
    assert json.loads(invoke(*where, "--json", status=1))["findings"][0]["what"] == what
    delete(tmp_path, kind, offsets_below=15)
    (partition,) = audited(tmp_path, kind, options_of(writer)).partitions
    assert (partition.unaccounted, partition.proved.unproved) == (15, 5)
    assert "5 rows cannot be proved, 15 offsets not accounted for" in invoke(*where, status=1)


def test_a_topic_of_which_nothing_was_copied_is_behind(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    open_in(tmp_path, kind)
    where = ["orders", *arguments_of(tmp_path, kind), "--path", str(writer.directory.parent)]
    assert "2 partitions, 0 rows: nothing wrong" in invoke(*where)
    assert [each.behind for each in audited(tmp_path, kind, options_of(writer)).partitions] == [60, 30]


# -- files that are gone or damaged -----------------------------------------------------------------------------------


def test_a_column_that_lost_its_name_is_a_finding(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    (path,) = files_of(tmp_path, kind)
    file = Path(path.removeprefix("file://"))
    rows = parquet.read_table(file)
    fields = [
        pa.field(name.replace("partition", "qartition"), rows.schema.field(name).type) for name in rows.schema.names
    ]
    parquet.write_table(pa.Table.from_arrays(rows.columns, schema=pa.schema(fields)), file)  # without Iceberg's ids
    result = audited(tmp_path, kind, options_of(writer))
    assert faults(result) == {"missing": 90}
    assert f"cannot be read: it has no column partition: {path}" in messages(result)
    with Broker() as broker:
        given = ["--table", *arguments_of(tmp_path, kind), "--topic", "orders", "--to-topic", "again"]
        done = CliRunner().invoke(replay_command, [*given, "--native", broker.native])
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith(f"Error: {path} cannot be read: it has no column partition")


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_state_does_not_hide_files_that_are_gone(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, damage: str
) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    state = AuditState(table=open_in(tmp_path, kind).name)
    assert audited(tmp_path, kind, options_of(writer), state).findings == []
    path = file_with(tmp_path, kind, 0, 25)
    file = Path(path.removeprefix("file://"))
    kept = shutil.copy(file, tmp_path / "kept")
    rows = parquet.read_table(file).num_rows
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-100])
    result = audited(tmp_path, kind, options_of(writer), state)
    assert faults(result) == {"missing": rows}
    assert any(message.startswith("cannot be read: ") and message.endswith(path) for message in messages(result))
    shutil.copy(kept, file)
    result = audited(tmp_path, kind, options_of(writer), state)
    assert (total(result).in_log >= rows, result.findings) == (True, [])
