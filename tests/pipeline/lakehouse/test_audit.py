"""The audit of a table finds every fault, names its file, and finds nothing else."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import compute, parquet

from tests.golden.partitions import read_seen
from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from tests.pipeline.lakehouse.tables import (
    Kind,
    arguments_of,
    copied,
    files_of,
    open_in,
    options_of,
)
from tests.pipeline.lakehouse.test_exactly_once import expire_all_but_the_last, iceberg_table
from tests.pipeline.lakehouse.test_table import recreate
from tests.pipeline.source.test_recreated import write_epochs
from warmlog.cli.pipeline.audit import audit as audit_command
from warmlog.cli.root import root
from warmlog.client.blocking import Client
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.table_audit import AuditState, TableAudit, audit_table
from warmlog.pipeline.jobs.table_proof import Proved
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import ReadOptions, read_options
from warmlog.protocol.records.builder import build_batch
from warmlog.testing import Broker

WritePartition = Callable[..., DirectoryWriter]
FAULTS = ("missing", "twice", "altered", "foreign", "unproved")


def audited(directory: Path, kind: Kind, options: ReadOptions, state: AuditState | None = None) -> TableAudit:
    return audit_table(LocalRunner(), options, open_in(directory, kind), Reporter("audit"), state)


def total(audit: TableAudit) -> Proved:
    whole = Proved()
    for partition in audit.partitions:
        whole.add(partition.proved)
    return whole


def faults(audit: TableAudit) -> dict[str, int]:
    return {name: getattr(total(audit), name) for name in FAULTS if getattr(total(audit), name)}


def messages(audit: TableAudit) -> list[str]:
    return [f"{finding.what}: {finding.path}" for finding in audit.findings]


def change(path: str, edit: Callable[[pa.Table], pa.Table]) -> None:
    """Write a file of a table again, in its place."""
    path = path.removeprefix("file://")
    table = parquet.read_table(path)
    parquet.write_table(edit(table), path)


def file_with(directory: Path, kind: Kind, partition: int, offset: int) -> str:
    """The file that has a row."""
    for path in files_of(directory, kind):
        rows = parquet.read_table(path.removeprefix("file://"), columns=["partition", "offset"])
        if {"partition": partition, "offset": offset} in rows.to_pylist():
            return path
    raise AssertionError(f"no file has {partition}, {offset}")


def is_row(table: pa.Table, partition: int, offset: int) -> Any:
    return compute.and_(compute.equal(table["partition"], partition), compute.equal(table["offset"], offset))


def dropped(partition: int, offset: int) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.filter(compute.invert(is_row(table, partition, offset)))


def altered(partition: int, offset: int, column: str) -> Callable[[pa.Table], pa.Table]:
    others: dict[str, Any] = {
        "key": b"another",
        "value": None,
        "timestamp": NOW_MS * 1000 + 123_456,
        "timestampType": 1,
        "headers": [{"key": "a", "value": b"b"}],
    }

    def edit(table: pa.Table) -> pa.Table:
        field = table.schema.field(column)
        other = pa.array([others[column]] * table.num_rows, field.type)
        mask = is_row(table, partition, offset).combine_chunks()
        values = [
            new if wanted else old
            for wanted, old, new in zip(mask.to_pylist(), table[column].to_pylist(), other.to_pylist(), strict=True)
        ]
        return table.set_column(table.schema.get_field_index(column), field, pa.array(values, field.type))

    return edit


def test_a_sound_table_is_proved_by_its_log(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    result = audited(tmp_path, kind, options_of(writer))
    assert (total(result).rows, total(result).in_log, result.findings, faults(result)) == (90, 90, [], {})
    assert [(each.first_offset, each.end_offset, each.behind) for each in result.partitions] == [(0, 60, 0), (0, 30, 0)]
    writer.segment([b"z"] * 5)
    result = audited(tmp_path, kind, options_of(writer))
    assert ([each.behind for each in result.partitions], result.findings) == ([5, 0], [])


def test_a_missing_row_is_named_with_its_file(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=40))
    path = file_with(tmp_path, kind, 0, 7)
    change(path, dropped(0, 7))
    result = audited(tmp_path, kind, options_of(writer))
    assert messages(result) == [f"offset 7 is in the log, but not in the table: {path}"]
    assert (faults(result), total(result).in_log) == ({"missing": 1}, 89)


@pytest.mark.parametrize("column", ["key", "value", "timestamp", "timestampType", "headers"])
def test_an_altered_row_is_named_with_its_file(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, column: str
) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    path = file_with(tmp_path, kind, 1, 12)
    change(path, altered(1, 12, column))
    result = audited(tmp_path, kind, options_of(writer))
    assert messages(result) == [f"offset 12 is not as in the log: {path}"]
    assert (faults(result), total(result).in_log) == ({"altered": 1}, 89)


def test_a_row_that_is_there_twice_is_named_with_both_files(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    first = file_with(tmp_path, kind, 0, 7)
    rows = parquet.read_table(first.removeprefix("file://"))
    append(tmp_path, kind, rows.filter(is_row(rows, 0, 7)))
    result = audited(tmp_path, kind, options_of(writer))
    assert faults(result) == {"twice": 1}
    (message,) = messages(result)
    assert message.startswith("offset 7 is in the table more than once: ")
    assert (
        set(message.partition(": ")[2].split(", ")) == {first, *files_of(tmp_path, kind)}
        or len(message.partition(": ")[2].split(", ")) == 2
    )


def append(directory: Path, kind: Kind, rows: pa.Table) -> None:
    """What another program appends."""
    if kind == "delta":
        import deltalake

        deltalake.write_deltalake(str(directory / "delta"), rows, mode="append")
    else:
        bare = [pa.field(field.name, field.type) for field in open_in(directory, kind).schema()]
        iceberg_table(directory).append(pa.Table.from_pylist(rows.to_pylist(), pa.schema(without_ids(bare))))


def without_ids(fields: list[pa.Field]) -> list[pa.Field]:
    from warmlog.pipeline.source.arrow import TYPES

    return [pa.field(field.name, TYPES[field.name]) for field in fields]


def test_rows_that_no_receipt_covers_are_named(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    rows = parquet.read_table(file_with(tmp_path, kind, 0, 7).removeprefix("file://"))
    row = rows.filter(is_row(rows, 0, 7)).to_pylist()[0]
    append(tmp_path, kind, pa.Table.from_pylist([{**row, "offset": 1000}], rows.schema))
    result = audited(tmp_path, kind, options_of(writer))
    assert faults(result) == {"foreign": 1}
    assert messages(result)[0].startswith("1 rows from offset 60 on, where no receipt has any: ")


def test_rows_that_another_program_deleted_are_missing(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    if kind == "delta":
        import deltalake

        deltalake.DeltaTable(str(tmp_path / "delta")).delete('"partition" = 0 AND "offset" < 10')
    else:
        iceberg_table(tmp_path).delete("partition == 0 and offset < 10")
    result = audited(tmp_path, kind, options_of(writer))
    assert faults(result) == {"missing": 10}
    assert messages(result)[0].startswith("offsets 0 to 9 are in the log, but not in the table: ")


def test_a_file_that_cannot_be_read_is_a_finding(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    (path,) = files_of(tmp_path, kind)
    Path(path.removeprefix("file://")).write_bytes(b"not parquet")
    result = audited(tmp_path, kind, options_of(writer))
    assert faults(result) == {"missing": 90}
    assert any(message.startswith("cannot be read: ") and message.endswith(path) for message in messages(result))


def test_every_fault_of_many_is_found(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    chance = random.Random(5)
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    rows = chance.sample([(0, at) for at in range(60)] + [(1, at) for at in range(30)], 12)
    for number, (partition, offset) in enumerate(rows):
        edit = dropped(partition, offset) if number % 2 else altered(partition, offset, "value")
        change(file_with(tmp_path, kind, partition, offset), edit)
    assert faults(audited(tmp_path, kind, options_of(writer))) == {"missing": 6, "altered": 6}


# -- without the log --------------------------------------------------------------------------------------------------


@pytest.fixture
def segments(write_partition: WritePartition) -> tuple[DirectoryWriter, list[Path]]:
    writer = write_partition()
    return writer, [writer.segment([value] * 10) for value in (b"a", b"b", b"c")]


def test_what_retention_removed_from_the_log_is_proved_by_receipts(
    segments: tuple[DirectoryWriter, list[Path]], kind: Kind, tmp_path: Path
) -> None:
    writer, logs = segments
    copied(open_in(tmp_path, kind), options_of(writer))
    for log in logs[:2]:
        os.unlink(log)
    result = audited(tmp_path, kind, options_of(writer))
    assert (total(result).by_receipt, total(result).in_log, result.findings) == (20, 10, [])
    path = file_with(tmp_path, kind, 0, 7)
    change(path, altered(0, 7, "value"))
    result = audited(tmp_path, kind, options_of(writer))
    assert faults(result) == {"unproved": 20}
    what = "offsets 0 to 29 are not the 30 rows of their receipt, and the log no longer has offsets below 20"
    assert messages(result) == [f"{what}: {path}"]


def test_what_compaction_removed_from_the_log_is_proved_by_receipts(
    segments: tuple[DirectoryWriter, list[Path]], kind: Kind, tmp_path: Path
) -> None:
    writer, logs = segments
    copied(open_in(tmp_path, kind), options_of(writer))
    rows = [(NOW_MS + at, b"k%d" % at, b"a", ()) for at in (8, 9)]
    logs[0].write_bytes(build_batch(rows, base_offset=8))
    for suffix in (".index", ".timeindex"):
        logs[0].with_suffix(suffix).unlink()
    result = audited(tmp_path, kind, options_of(writer))
    assert (total(result).by_receipt, total(result).in_log, result.findings) == (8, 22, [])


def test_the_topic_may_be_gone(
    writer: DirectoryWriter, write_partition: WritePartition, kind: Kind, tmp_path: Path
) -> None:
    import shutil

    write_partition("others").segment([b"x"])
    copied(open_in(tmp_path, kind), options_of(writer))
    options = options_of(writer)
    for partition in (0, 1):
        shutil.rmtree(writer.directory.parent / f"orders-{partition}")
    result = audited(tmp_path, kind, options)
    assert (total(result).by_receipt, result.findings) == (90, [])


def test_aborted_records_and_markers_are_empty_offsets(kafka_fixtures: Path, kind: Kind, tmp_path: Path) -> None:
    given = {"path": str(kafka_fixtures / "clean"), "assign": '{"transactional":[0]}', "includeHeaders": "true"}
    options = read_options({**given, "isolationLevel": "read_committed"})
    copied(open_in(tmp_path, kind), options)
    result = audited(tmp_path, kind, options)
    (partition,) = result.partitions
    seen = len(read_seen("read_committed/transactional-0").records)
    assert (total(result).in_log, partition.empty, result.findings) == (seen, partition.end_offset - seen, [])
    assert partition.empty > 0


def test_rows_of_a_recreated_topic_and_of_the_one_before_are_told_apart(
    write_partition: WritePartition, kind: Kind, tmp_path: Path
) -> None:
    writer = write_partition()
    log = writer.segment([b"old"] * 10)
    recreate(writer, UUID(int=7))
    copied(open_in(tmp_path, kind), options_of(writer))
    log.unlink()
    writer.next_offset = 0
    writer.segment([b"new"] * 12)
    recreate(writer, UUID(int=8))
    result = audited(tmp_path, kind, options_of(writer))
    assert (total(result).earlier, result.findings) == (10, [])
    copied(open_in(tmp_path, kind), options_of(writer, failOnDataLoss="false"))
    result = audited(tmp_path, kind, options_of(writer))
    assert (total(result).earlier, total(result).in_log, result.findings) == (10, 12, [])


def test_rows_of_a_truncated_tail_are_earlier_ones(write_partition: WritePartition, kind: Kind, tmp_path: Path) -> None:
    writer = write_partition()
    write_epochs(writer, (0, 0, 20), (3, 20, 100))
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=50))
    write_epochs(writer, (0, 0, 20), (3, 20, 60), (5, 60, 150))
    copied(open_in(tmp_path, kind), options_of(writer, failOnDataLoss="false"))
    result = audited(tmp_path, kind, options_of(writer))
    assert (total(result).earlier, total(result).in_log, result.findings) == (50, 140, [])


def test_offsets_that_were_lost_before_they_were_copied_are_counted(
    segments: tuple[DirectoryWriter, list[Path]], kind: Kind, tmp_path: Path
) -> None:
    writer, logs = segments
    copied(open_in(tmp_path, kind), options_of(writer))
    gone = writer.segment([b"d"] * 10)
    writer.segment([b"e"] * 10)
    for log in (*logs, gone):
        os.unlink(log)
    copied(open_in(tmp_path, kind), options_of(writer, failOnDataLoss="false"))
    result = audited(tmp_path, kind, options_of(writer))
    assert ([each.lost for each in result.partitions], result.findings) == ([10], [])
    assert (total(result).by_receipt, total(result).in_log) == (30, 10)


def test_without_receipts_the_log_is_compared(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    """Delta's log was cleaned behind a checkpoint, Iceberg's snapshots have expired."""
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    if kind == "delta":
        import deltalake

        deltalake.DeltaTable(str(tmp_path / "delta")).create_checkpoint()
        for log in sorted((tmp_path / "delta" / "_delta_log").glob("*.json"))[:-1]:
            log.unlink()
    else:
        expire_all_but_the_last(tmp_path)
    result = audited(tmp_path, kind, options_of(writer))
    assert (total(result).in_log, result.findings) == (90, [])
    path = file_with(tmp_path, kind, 0, 7)
    change(path, altered(0, 7, "value"))
    assert messages(audited(tmp_path, kind, options_of(writer))) == [f"offset 7 is not as in the log: {path}"]


# -- one audit after the other ----------------------------------------------------------------------------------------


def test_the_next_audit_reads_only_what_is_new(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=40))
    state = AuditState(table=open_in(tmp_path, kind).name)
    assert total(audited(tmp_path, kind, options_of(writer), state)).rows == 90
    state.write(tmp_path / "state.json")
    writer.segment([b"z"] * 5)
    copied(open_in(tmp_path, kind), options_of(writer))
    state = AuditState.read(tmp_path / "state.json", state.table)
    result = audited(tmp_path, kind, options_of(writer), state)
    assert (total(result).rows, [each.audited_before for each in result.partitions]) == (5, [60, 30])


def test_files_that_were_compacted_are_read_again(writer: DirectoryWriter, tmp_path: Path) -> None:
    import deltalake

    kind: Kind = "delta"  # pyiceberg cannot rewrite files
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=20))
    state = AuditState(table=open_in(tmp_path, kind).name)
    audited(tmp_path, kind, options_of(writer), state)
    deltalake.DeltaTable(str(tmp_path / "delta")).optimize.compact()
    assert len(files_of(tmp_path, kind)) == 1
    result = audited(tmp_path, kind, options_of(writer), state)
    assert (total(result).in_log, result.findings) == (90, [])
    assert [each.audited_before for each in audited(tmp_path, kind, options_of(writer), state).partitions] == [60, 30]
    assert copied(open_in(tmp_path, kind), options_of(writer)) == []


def test_a_fault_stays_one_until_it_is_gone(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    state = AuditState(table=open_in(tmp_path, kind).name)
    path = file_with(tmp_path, kind, 0, 7)
    sound = Path(path.removeprefix("file://")).read_bytes()
    change(path, dropped(0, 7))
    for _ in range(2):
        assert faults(audited(tmp_path, kind, options_of(writer), state)) == {"missing": 1}
    Path(path.removeprefix("file://")).write_bytes(sound)
    assert audited(tmp_path, kind, options_of(writer), state).findings == []
    assert total(audited(tmp_path, kind, options_of(writer), state)).rows == 0


@pytest.mark.parametrize("text", ["[", "{}", '{"table": "x", "files": [], "stretches": 3}'])
def test_a_state_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").write_text(text)
    with pytest.raises(PipelineError, match="is not the state of an audit"):
        AuditState.read(tmp_path / "state", "x")
    AuditState(table="another").write(tmp_path / "state")
    with pytest.raises(PipelineError, match="is the state of an audit of another"):
        AuditState.read(tmp_path / "state", "x")


# -- the command ------------------------------------------------------------------------------------------------------


def invoke(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(audit_command, arguments)
    assert result.exit_code == status, result.output
    return result.output


def test_the_command_says_what_is_wrong(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer))
    where = ["orders", *arguments_of(tmp_path, kind), "--path", str(writer.directory.parent)]
    state = ["--state", str(tmp_path / "state")]
    assert "2 partitions, 90 rows: nothing wrong" in invoke(*where, *state)
    assert "2 partitions, 0 rows: nothing wrong" in invoke(*where, *state)
    path = file_with(tmp_path, kind, 0, 7)
    change(path, dropped(0, 7))
    assert f"orders-0: offset 7 is in the log, but not in the table: {path}" in invoke(*where, status=1)
    form = json.loads(invoke(*where, "--json", status=1))
    assert [each["missing"] for each in form["partitions"]] == [1, 0]
    assert form["findings"][0]["path"] == path


def test_a_plot_says_the_same(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, endingOffsets='{"orders":{"0":60,"1":10}}'))
    where = ["orders", *arguments_of(tmp_path, kind), "--path", str(writer.directory.parent)]
    plot = tmp_path / "audit.svg"
    invoke(*where, "--plot", str(plot))
    text = plot.read_text()
    for words in ("Audit of orders in ", "Nothing wrong: 70 rows", "orders-0", "orders-1", "in log", "behind"):
        assert words in text
    assert "offsets with faults" not in text
    change(file_with(tmp_path, kind, 0, 7), dropped(0, 7))
    change(file_with(tmp_path, kind, 1, 3), altered(1, 3, "value"))
    invoke(*where, "--plot", str(plot), status=1)
    text = plot.read_text()
    assert "2 findings in 69 rows: 1 missing, 1 altered" in text
    assert "offsets with faults" in text
    invoke(*where, "--plot", str(tmp_path / "audit.png"), status=1)
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert "a plot is .svg or .png" in invoke(*where, "--plot", str(tmp_path / "audit.pdf"), status=1)


def test_a_plot_shows_what_newer_records_replaced(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    where = ["orders", *arguments_of(tmp_path, kind), "--path", str(writer.directory.parent)]
    done = CliRunner().invoke(root, ["pipeline", "table", *where, "--until-end", "--upsert"])
    assert done.exit_code == 0, done.output
    invoke(*where, "--plot", str(tmp_path / "audit.svg"))
    text = (tmp_path / "audit.svg").read_text()
    assert "Nothing wrong: 20 rows" in text
    assert "superseded" in text


def test_wrong_names_are_reported(writer: DirectoryWriter, tmp_path: Path) -> None:
    source = ["--path", str(writer.directory.parent)]
    assert "no such table" in invoke("orders", str(tmp_path / "none"), *source, status=1)
    copied(open_in(tmp_path, "delta"), options_of(writer))
    assert "has no rows of others" in invoke("others", str(tmp_path / "delta"), *source, status=1)
    assert "Missing argument 'TOPIC'" in invoke(*source, status=2)
    assert "exclude each other" in invoke("orders", "--topic", "orders", *source, status=2)
    assert "are for TABLE" in invoke("orders", *source, "--catalog", "x", status=2)
    assert "--table was replaced by an argument" in invoke("orders", *source, "--table", "y", status=2)


def test_brokers_are_asked_for_records(kind: Kind, tmp_path: Path) -> None:
    with Broker() as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=2)
        client.produce_many("orders", [b"%d" % at for at in range(100)], partition=1)
        given = {"bootstrap": broker.native, "topic": "orders", "includeHeaders": "true"}
        options = read_options({**given, "isolationLevel": "read_committed"})
        copied(open_in(tmp_path, kind), options)
        result = audited(tmp_path, kind, options)
        assert (total(result).in_log, result.findings) == (100, [])
        path = file_with(tmp_path, kind, 1, 7)
        change(path, dropped(1, 7))
        assert messages(audited(tmp_path, kind, options)) == [f"offset 7 is in the log, but not in the table: {path}"]


def test_spark_finds_the_same(writer: DirectoryWriter, kind: Kind, tmp_path: Path, on_this_spark: None) -> None:
    copied(open_in(tmp_path, kind), options_of(writer, maxOffsetsPerTrigger=40))
    path = file_with(tmp_path, kind, 0, 7)
    change(path, altered(0, 7, "value"))
    where = ["orders", *arguments_of(tmp_path, kind), "--path", str(writer.directory.parent), "--engine", "spark"]
    assert f"orders-0: offset 7 is not as in the log: {path}" in invoke(*where, status=1)
