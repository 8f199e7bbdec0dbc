"""Maintenance, replay and limits of partitioned and sorted tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from tests.pipeline.lakehouse.arrangement.arranged import arranged_in, iceberg_catalog, listed, read
from tests.pipeline.lakehouse.tables import Kind, copied, files_of, offsets_in, open_in, options_of, query
from tests.pipeline.lakehouse.test_audit import altered, audited, change, faults, file_with, total
from tests.pipeline.lakehouse.test_maintenance import LATER, age, counts, maintained, proofs_of, versions_of
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.jobs.replay import plan_from_table
from warmlog.pipeline.jobs.table_rows import read_rows
from warmlog.pipeline.lakehouse.arrangement.sorting import SortLimits
from warmlog.pipeline.lakehouse.job import TableSettings
from warmlog.pipeline.lakehouse.pace import Targets

BOTH = [(0, offset) for offset in range(60)] + [(1, offset) for offset in range(30)]

ARRANGEMENTS = [("partition", ""), ("", "value,key"), ("partition, day(timestamp)", "key")]


def is_sorted(file: Any, columns: str) -> bool:
    rows = list(zip(*(file.values(name) for name in columns.split(",")), strict=True))
    return rows == sorted(rows)


@pytest.mark.parametrize(("partition_by", "sort_by"), ARRANGEMENTS)
def test_small_files_are_merged_within_partitions_and_stay_sorted(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, partition_by: str, sort_by: str
) -> None:
    copied(arranged_in(tmp_path, kind, partition_by, sort_by), options_of(writer, maxOffsetsPerTrigger=9))
    before = counts(tmp_path, kind, writer)
    rows = query(tmp_path, kind, "SELECT * FROM data ORDER BY ALL")
    files = listed(tmp_path, kind)
    done = maintained(tmp_path, kind)
    partitions = {str(file.partition) for file in files}
    assert (done.merged_files, done.new_files, done.left_alone) == (len(files), len(partitions), {})
    merged = listed(tmp_path, kind)
    assert {str(file.partition) for file in merged} == partitions
    assert len(merged) == len(partitions)
    assert all(is_sorted(file, sort_by or "partition,offset") for file in merged)
    assert query(tmp_path, kind, "SELECT * FROM data ORDER BY ALL") == rows
    assert read(tmp_path, kind).num_rows == 90
    assert counts(tmp_path, kind, writer) == before
    assert maintained(tmp_path, kind).merged_files == 0
    writer.segment([b"c"] * 5)
    copied(open_in(tmp_path, kind), options_of(writer))
    assert len(offsets_in(tmp_path, kind)) == 95
    if kind == "iceberg" and sort_by:
        table = iceberg_catalog(tmp_path).load_table("db.orders")
        orders = {task.file.sort_order_id for task in table.scan().plan_files()}
        assert orders == {table.sort_order().order_id}


def test_files_of_many_partitions_are_merged_in_a_commit(
    write_partition: Callable[..., DirectoryWriter], kind: Kind, tmp_path: Path
) -> None:
    writers = [write_partition(partition=partition) for partition in range(20)]
    for _ in range(2):
        for writer in writers:
            writer.segment([b"x"] * 5)
        copied(arranged_in(tmp_path, kind, "partition", "key"), options_of(writers[0]))
    before = counts(tmp_path, kind, writers[0])
    versions = versions_of(tmp_path, kind)
    done = maintained(tmp_path, kind)
    assert (done.merged_files, done.new_files, done.rows) == (40, 20, 200)
    assert versions_of(tmp_path, kind) == versions + 1
    assert counts(tmp_path, kind, writers[0]) == before


def test_a_damaged_file_stops_no_other_partition(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    copied(arranged_in(tmp_path, kind, "partition"), options_of(writer, maxOffsetsPerTrigger=20))
    before = files_of(tmp_path, kind)
    damaged = Path(file_with(tmp_path, kind, 1, 3).removeprefix("file://"))
    data = damaged.read_bytes()
    damaged.write_bytes(data[:4] + bytes(100) + data[104:])
    (left,) = maintained(tmp_path, kind).left_alone
    assert Path(left.removeprefix("file://")) == damaged
    after = files_of(tmp_path, kind)
    assert damaged.name in {path.rpartition("/")[2] for path in after}
    assert len(after) < len(before)


@pytest.mark.parametrize(("partition_by", "sort_by"), [*ARRANGEMENTS, ("hour(timestamp)", "")])
def test_receipts_become_few_and_prove_what_the_log_has_lost(
    write_partition: Callable[..., DirectoryWriter], kind: Kind, tmp_path: Path, partition_by: str, sort_by: str
) -> None:
    """Proofs are merged although their rows are in several files, and in no order there."""
    writer = write_partition()
    logs = [writer.segment(*[[b"x"] * 5] * 4, first_ms=NOW_MS + at * 1_799_990) for at in range(3)]
    copied(arranged_in(tmp_path, kind, partition_by, sort_by), options_of(writer, maxOffsetsPerTrigger=5))
    maintained(tmp_path, kind)
    age(tmp_path)
    done = maintained(tmp_path, kind, after=LATER)
    assert done.versions > 5
    assert proofs_of(tmp_path, kind) == 1
    for log in logs[:2]:
        log.unlink()
    result = audited(tmp_path, kind, options_of(writer))
    assert (total(result).by_receipt, total(result).in_log, result.findings) == (40, 20, [])
    change(file_with(tmp_path, kind, 0, 7), altered(0, 7, "value"))
    assert faults(audited(tmp_path, kind, options_of(writer))) == {"unproved": 40}


def test_a_fault_is_not_hidden_by_merged_proofs(
    write_partition: Callable[..., DirectoryWriter], kind: Kind, tmp_path: Path
) -> None:
    writer = write_partition()
    writer.segment(*[[b"x"] * 5] * 20)
    copied(arranged_in(tmp_path, kind, sort_by="key"), options_of(writer, maxOffsetsPerTrigger=5))
    change(file_with(tmp_path, kind, 0, 57), altered(0, 57, "value"))
    maintained(tmp_path, kind)
    age(tmp_path)
    maintained(tmp_path, kind, after=LATER)
    spans = [
        (proof.first, proof.end)
        for commit in open_in(tmp_path, kind).commits()
        for proofs in commit.receipt.proofs.values()
        for proof in proofs
    ]
    assert sorted(spans) == [(0, 55), (55, 60), (60, 100)]
    assert faults(audited(tmp_path, kind, options_of(writer))) == {"altered": 1}


def test_files_of_an_earlier_spec_are_left_alone_and_named(writer: DirectoryWriter, tmp_path: Path) -> None:
    copied(arranged_in(tmp_path, "iceberg", "partition"), options_of(writer, maxOffsetsPerTrigger=20))
    before = files_of(tmp_path, "iceberg")
    with iceberg_catalog(tmp_path).load_table("db.orders").update_spec() as spec:
        spec.add_identity("topic")
    done = maintained(tmp_path, "iceberg")
    reason = "it has other partition fields than the table has now"
    assert done.left_alone == dict.fromkeys(before, reason)
    writer.segment(*[[b"c"] * 5] * 4)
    copied(open_in(tmp_path, "iceberg"), options_of(writer, maxOffsetsPerTrigger=5))
    assert (maintained(tmp_path, "iceberg").merged_files, len(offsets_in(tmp_path, "iceberg"))) == (4, 110)
    audit = audited(tmp_path, "iceberg", options_of(writer))
    assert (total(audit).in_log, audit.findings) == (110, [])


def test_a_file_whose_row_groups_are_in_another_order_is_named(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    copied(arranged_in(tmp_path, kind, sort_by="value,key"), options_of(writer, maxOffsetsPerTrigger=40))
    path = file_with(tmp_path, kind, 0, 7).removeprefix("file://")
    table = parquet.read_table(path)
    parquet.write_table(table.take(list(range(table.num_rows))[::-1]), path, row_group_size=10)
    done = maintained(tmp_path, kind)
    assert [reason for _, reason in done.left_alone.items()] == ["it is not in the order of value, key"]


@pytest.mark.parametrize(("partition_by", "sort_by"), ARRANGEMENTS)
def test_a_replay_sends_rows_in_the_order_of_offsets(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, partition_by: str, sort_by: str
) -> None:
    options = options_of(writer)
    copied(arranged_in(tmp_path, kind, partition_by, sort_by), options_of(writer, maxOffsetsPerTrigger=20))
    tasks = plan_from_table(open_in(tmp_path, kind), options)
    read_back = {
        task.partition: [
            offset for part in read_rows(task.rows, ("offset",)) for offset in part.column("offset").to_pylist()
        ]
        for task in tasks
        if task.rows is not None
    }
    assert read_back == {0: list(range(60)), 1: list(range(30))}


def test_too_many_partitions_in_a_commit_are_an_error_that_changes_nothing(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    table = arranged_in(tmp_path, kind, "offset")
    settings = TableSettings(limits=SortLimits(partitions=25))
    with pytest.raises(PipelineError, match=r"more than 25 partitions of offset: .* \(--commit-rows\)"):
        copied(table, options_of(writer, maxSplitBytes=300), settings)
    assert not list(tmp_path.glob("delta/*.parquet")) + list(tmp_path.glob("warehouse/**/*.parquet"))
    fewer = TableSettings(limits=settings.limits, targets=Targets(rows=25))
    copied(table, options_of(writer, maxSplitBytes=300), fewer)
    assert offsets_in(tmp_path, kind) == BOTH


@pytest.mark.interop  # takes many seconds
def test_a_thousand_partitions_are_a_commit(
    write_partition: Callable[..., DirectoryWriter], kind: Kind, tmp_path: Path
) -> None:
    writer = write_partition()
    writer.segment(*[[b"x"] * 100] * 10)
    settings = TableSettings(limits=SortLimits(bytes=10_000))
    (receipt,) = copied(arranged_in(tmp_path, kind, "offset"), options_of(writer), settings)
    assert len(receipt.files) == 1000
    assert len(offsets_in(tmp_path, kind)) == 1000
    audit = audited(tmp_path, kind, options_of(writer))
    assert (total(audit).in_log, audit.findings) == (1000, [])
