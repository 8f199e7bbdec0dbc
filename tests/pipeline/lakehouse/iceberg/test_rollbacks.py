"""Iceberg tables that other programs roll back."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.iceberg.rolled import append_nothing, expire_others, roll_back
from tests.pipeline.lakehouse.tables import arguments_of, copied, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited, invoke
from tests.pipeline.lakehouse.test_exactly_once import BOTH, iceberg_table, remove_property
from tests.pipeline.lakehouse.test_maintenance import LATER, maintained
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.iceberg.properties import parse_positions
from warmlog.pipeline.lakehouse.iceberg.table import IcebergTable
from warmlog.pipeline.lakehouse.ledger import LEDGER_KEY
from warmlog.pipeline.lakehouse.maintenance.iceberg import IcebergUpkeep
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition


def unchecked(table: IcebergTable, topic: str) -> dict[TopicPartition, Position]:
    """The positions of a topic, as by an earlier version of warmlog that did not look for rollbacks."""
    return parse_positions(topic, table.handle.metadata.properties[f"warmlog.{topic}"], table.name)[1]


def test_maintenance_refuses_a_table_that_was_rolled_back(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    roll_back(tmp_path, 2)
    before = iceberg_table(tmp_path).metadata_location
    with pytest.raises(PipelineError, match="was rolled back to an earlier snapshot, which took back"):
        maintained(tmp_path, "iceberg", after=LATER)
    assert iceberg_table(tmp_path).metadata_location == before
    with pytest.raises(PipelineError, match="was rolled back"):
        copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    remove_property(tmp_path)
    copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    assert offsets_in(tmp_path, "iceberg") == BOTH


def test_a_rollback_during_maintenance_is_noticed(
    five_commits: DirectoryWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = IcebergUpkeep.check

    def then_roll_back(upkeep: IcebergUpkeep) -> None:
        checked(upkeep)
        roll_back(tmp_path, 2)

    monkeypatch.setattr(IcebergUpkeep, "check", then_roll_back)
    with pytest.raises(PipelineError, match="was rolled back"):
        maintained(tmp_path, "iceberg", after=LATER)
    assert "warmlog-receipts" not in iceberg_table(tmp_path).properties


def test_a_rollback_that_maintenance_settled_is_noticed(
    five_commits: DirectoryWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger of an earlier version of warmlog, which did not notice rollbacks, ends before the positions."""
    roll_back(tmp_path, 2)
    with monkeypatch.context() as earlier:
        earlier.setattr(IcebergTable, "all_positions", lambda _: {})
        earlier.setattr(IcebergTable, "taken_back", lambda _: None)
        maintained(tmp_path, "iceberg", after=LATER)
    assert len(iceberg_table(tmp_path).metadata.snapshots) == 1
    five_commits.segment([b"z"] * 5)
    with pytest.raises(PipelineError, match="earlier snapshot, which took back rows of orders-0 from offset"):
        copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    remove_property(tmp_path)
    copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    assert offsets_in(tmp_path, "iceberg") == sorted([*BOTH, *((0, offset) for offset in range(60, 65))])


def test_a_rollback_to_an_earlier_ledger_is_noticed(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    maintained(tmp_path, "iceberg", after=LATER)
    append_nothing(tmp_path)
    five_commits.segment([b"z"] * 5)
    copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    maintained(tmp_path, "iceberg")  # moves the ledger on, and expires nothing
    expired = [each.snapshot_id for each in iceberg_table(tmp_path).metadata.snapshots]
    roll_back(tmp_path, 1)
    iceberg_table(tmp_path).maintenance.expire_snapshots().by_ids([expired[0], *expired[2:]]).commit()
    for act in (
        lambda: copied(open_in(tmp_path, "iceberg"), options_of(five_commits)),
        lambda: audited(tmp_path, "iceberg", options_of(five_commits)),
        lambda: maintained(tmp_path, "iceberg", after=LATER),
    ):
        with pytest.raises(PipelineError, match="its rows of orders-0 end have expired"):
            act()


def test_expired_snapshots_after_maintenance_are_no_rollback(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    """Receipts after the ledger may be gone, in a table that is complete."""
    maintained(tmp_path, "iceberg", after=LATER)
    for values in ([b"z"] * 5, [b"w"] * 5):
        five_commits.segment(values)
        copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    append_nothing(tmp_path)
    expire_others(tmp_path)
    assert copied(open_in(tmp_path, "iceberg"), options_of(five_commits)) == []
    result = audited(tmp_path, "iceberg", options_of(five_commits))
    assert (result.findings, sum(each.proved.rows for each in result.partitions)) == ([], 100)
    maintained(tmp_path, "iceberg", after=LATER)


def test_offsets_that_no_receipt_says_are_lost_are_not_accounted_for(
    write_partition: Callable[..., DirectoryWriter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version of warmlog continued a table with a hole."""
    writer = write_partition()
    logs = [writer.segment([value] * 10) for value in (b"a", b"b", b"c")]
    copied(open_in(tmp_path, "iceberg"), options_of(writer, maxOffsetsPerTrigger=10))
    roll_back(tmp_path, 1)
    writer.segment([b"d"] * 10)
    with monkeypatch.context() as earlier:
        earlier.setattr(IcebergTable, "_topic", unchecked)
        copied(open_in(tmp_path, "iceberg"), options_of(writer))
    assert [offset for _, offset in offsets_in(tmp_path, "iceberg")] == [*range(20), *range(30, 40)]
    for log in logs:
        os.unlink(log)
    for _ in range(2):
        (partition,) = audited(tmp_path, "iceberg", options_of(writer)).partitions
        assert (partition.lost, partition.unaccounted, partition.proved.rows) == (0, 10, 30)
        where = ["orders", *arguments_of(tmp_path, "iceberg"), "--path", str(writer.directory.parent)]
        said = invoke(*where)
        assert "1 partition, 30 rows: 10 offsets not accounted for" in said
        assert "nothing wrong" not in said
        maintained(tmp_path, "iceberg", after=LATER)


# -- rows that were brought back --------------------------------------------------------------------------------------


def rolled_back(directory: Path, number: int) -> Any:
    """Roll back; return the rows that are gone."""
    before = iceberg_table(directory).scan().to_arrow()
    roll_back(directory, number)
    remaining = set(offsets_in(directory, "iceberg"))
    keys = zip(before["partition"].to_pylist(), before["offset"].to_pylist(), strict=True)
    return before.filter(pa.array([key not in remaining for key in keys]))


def complete(directory: Path, writer: DirectoryWriter) -> None:
    """Check that each row is there once, that there is no alarm, and that the table is continued."""
    assert copied(open_in(directory, "iceberg"), options_of(writer)) == []
    for is_maintained in (False, True):
        if is_maintained:
            maintained(directory, "iceberg", after=LATER)
        assert audited(directory, "iceberg", options_of(writer)).findings == []
        writer.segment([b"new"] * 5)
        assert [receipt.rows for receipt in copied(open_in(directory, "iceberg"), options_of(writer))] == [5]
    assert offsets_in(directory, "iceberg") == sorted([*BOTH, *((0, offset) for offset in range(60, 70))])


@pytest.mark.parametrize("number", [0, 2])
def test_rows_that_were_appended_again_are_not_copied_again(
    five_commits: DirectoryWriter, tmp_path: Path, number: int
) -> None:
    iceberg_table(tmp_path).append(rolled_back(tmp_path, number))
    complete(tmp_path, five_commits)


def test_a_table_that_was_overwritten_with_all_rows_is_continued(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    rows = iceberg_table(tmp_path).scan().to_arrow()
    roll_back(tmp_path, 1)
    iceberg_table(tmp_path).overwrite(rows)
    complete(tmp_path, five_commits)


@pytest.mark.parametrize("kept", ["first", "last"])
def test_rows_with_a_hole_are_refused(five_commits: DirectoryWriter, tmp_path: Path, kept: str) -> None:
    gone = rolled_back(tmp_path, 2).sort_by("offset")
    ours = gone.filter(pa.compute.equal(gone["partition"], 0))
    iceberg_table(tmp_path).append(ours.slice(0, 3) if kept == "first" else ours.slice(len(ours) - 3))
    for act in (
        lambda: copied(open_in(tmp_path, "iceberg"), options_of(five_commits)),
        lambda: audited(tmp_path, "iceberg", options_of(five_commits)),
        lambda: maintained(tmp_path, "iceberg"),
    ):
        with pytest.raises(PipelineError, match="has some of the rows of orders-0 from offset"):
            act()
    remove_property(tmp_path)
    with pytest.raises(PipelineError, match=r"has rows of orders-0 from offset \d+ on that no receipt names"):
        copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    iceberg_table(tmp_path).delete(f"partition == 0 and offset >= {ours['offset'][0].as_py()}")
    copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    complete(tmp_path, five_commits)


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"receipt": "a", "positions": []}'])
def test_a_damaged_property_says_what_to_do(five_commits: DirectoryWriter, tmp_path: Path, text: str) -> None:
    with iceberg_table(tmp_path).transaction() as transaction:
        transaction.set_properties({"warmlog.orders": text})
    with pytest.raises(PipelineError, match=r"property warmlog\.orders is damaged .*: set it as .*, or remove it"):
        copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    remove_property(tmp_path)
    assert copied(open_in(tmp_path, "iceberg"), options_of(five_commits)) == []


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"receipts": 1}', '{"whole": "a", "receipts": []}'])
def test_a_damaged_ledger_says_what_to_do(five_commits: DirectoryWriter, tmp_path: Path, text: str) -> None:
    with iceberg_table(tmp_path).transaction() as transaction:
        transaction.set_properties({LEDGER_KEY: text})
    with pytest.raises(PipelineError, match=r"the ledger warmlog-receipts is damaged .*: in Iceberg, set the property"):
        audited(tmp_path, "iceberg", options_of(five_commits))
