"""After a rollback of an Iceberg table, `rewind` has the rows copied again that were taken back, each once."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.iceberg.rolled import (
    append_nothing,
    ends,
    expire,
    expire_others,
    make_current,
    refused,
    rewound,
    roll_back,
    snapshots,
)
from tests.pipeline.lakehouse.tables import copied, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited
from tests.pipeline.lakehouse.test_exactly_once import BOTH, Watched, append_foreign_row, iceberg_table, once
from tests.pipeline.lakehouse.test_maintenance import LATER, maintained
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, model_in, upserted
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.runner import LocalRunner

WritePartition = Callable[..., DirectoryWriter]


def completed(directory: Path, writer: DirectoryWriter) -> None:
    """Copy what is missing: each offset is there once, by a scan of pyiceberg, too, before and after maintenance."""
    copied(open_in(directory, "iceberg"), options_of(writer))
    assert rewound(directory) == []
    for is_maintained in (False, True):
        if is_maintained:
            maintained(directory, "iceberg", after=LATER)
        assert [row for row in offsets_in(directory, "iceberg") if row != (7, 7)] == BOTH
        scanned = iceberg_table(directory).scan(selected_fields=("partition", "offset")).to_arrow()
        rows = zip(scanned["partition"].to_pylist(), scanned["offset"].to_pylist(), strict=True)
        assert sorted(row for row in rows if row != (7, 7)) == BOTH
        result = audited(directory, "iceberg", options_of(writer))
        assert (result.findings, [each.proved.in_log for each in result.partitions]) == ([], [60, 30])
        assert [each.unaccounted for each in result.partitions] == [0, 0]


def test_what_was_taken_back_is_named_and_copied_again(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    roll_back(tmp_path, 1)
    left, snapshot = ends(tmp_path), snapshots(tmp_path)[1]
    assert refused(tmp_path, five_commits) == (
        f"db.orders was rolled back to an earlier snapshot, which took back rows of orders-0 from offset {left[0]},"
        f" orders-1 from offset {left[1]} (snapshot {snapshot})."
        " To copy them again: warmlog pipeline table rewind db.orders --catalog URL"
    )
    expected = [(0, 60, left[0]), (1, 30, left[1])]
    assert rewound(tmp_path, dry_run=True) == expected
    assert "took back rows" in refused(tmp_path, five_commits)
    assert rewound(tmp_path) == expected
    assert offsets_in(tmp_path, "iceberg") == [(number, at) for number in (0, 1) for at in range(left[number])]
    completed(tmp_path, five_commits)


def test_a_table_without_rows_is_copied_from_the_first_offset(writer: DirectoryWriter, tmp_path: Path) -> None:
    open_in(tmp_path, "iceberg")
    append_foreign_row(tmp_path, "iceberg")
    copied(open_in(tmp_path, "iceberg"), options_of(writer, maxOffsetsPerTrigger=20))
    roll_back(tmp_path, 0)
    assert "orders-0 from offset 0, orders-1 from offset 0" in refused(tmp_path, writer)
    assert rewound(tmp_path) == [(0, 60, 0), (1, 30, 0)]
    completed(tmp_path, writer)


def test_a_table_whose_branch_was_removed_is_copied_from_the_first_offset(
    five_commits: DirectoryWriter, tmp_path: Path
) -> None:
    table = iceberg_table(tmp_path)
    table.manage_snapshots().remove_branch("main").commit()
    assert iceberg_table(tmp_path).metadata.current_snapshot_id is None
    assert "orders-0 from offset 0, orders-1 from offset 0 (no snapshot)" in refused(tmp_path, five_commits)
    assert rewound(tmp_path) == [(0, 60, 0), (1, 30, 0)]
    copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    assert offsets_in(tmp_path, "iceberg") == BOTH


def test_rows_that_come_back_are_not_copied_twice(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    """The positions were set back before."""
    roll_back(tmp_path, 1)
    left = ends(tmp_path)
    rewound(tmp_path)
    roll_back(tmp_path, 4)
    assert (
        f"which brought back rows of orders-0 from offset {left[0]}, orders-1 from offset {left[1]} (snapshot"
        in refused(tmp_path, five_commits)
    )
    assert rewound(tmp_path) == [(0, left[0], 60), (1, left[1], 30)]
    completed(tmp_path, five_commits)


def test_a_rollback_that_was_undone_is_no_matter(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    roll_back(tmp_path, 1)
    roll_back(tmp_path, 4)
    completed(tmp_path, five_commits)


def test_rows_that_were_copied_again_may_be_taken_back_again(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    roll_back(tmp_path, 2)
    rewound(tmp_path)
    copied(open_in(tmp_path, "iceberg"), options_of(five_commits, maxOffsetsPerTrigger=20))
    copied_again = [snapshots(tmp_path)[number] for number in (6, 2)]
    for snapshot in copied_again:
        make_current(tmp_path, snapshot)
        assert "took back rows" in refused(tmp_path, five_commits)
    left = ends(tmp_path)
    assert [after for _, _, after in rewound(tmp_path)] == [left[number] for number in sorted(left)]
    completed(tmp_path, five_commits)


def test_the_rows_of_whole_commits_that_came_back_count(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    roll_back(tmp_path, 2)
    more = iceberg_table(tmp_path).scan().to_arrow()
    roll_back(tmp_path, 1)
    left = ends(tmp_path)
    rows = zip(more["partition"].to_pylist(), more["offset"].to_pylist(), strict=True)
    iceberg_table(tmp_path).append(more.filter([at >= left[number] for number, at in rows]))
    assert "took back rows" in refused(tmp_path, five_commits)
    after = ends(tmp_path)
    assert sum(after.values()) == 60
    assert rewound(tmp_path) == [(0, 60, after[0]), (1, 30, after[1])]
    (receipt,) = copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    assert receipt.rows == 30
    completed(tmp_path, five_commits)


def test_a_running_job_ends_and_one_after_a_rewind_continues(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    job = TableJob(options_of(five_commits), open_in(tmp_path, "iceberg"), TableSettings())
    assert job.step(LocalRunner()) is None
    roll_back(tmp_path, 2)
    with pytest.raises(PipelineError, match="took back rows of"):
        job.step(LocalRunner())
    rewound(tmp_path)
    receipt = job.step(LocalRunner())
    assert receipt is not None
    assert receipt.rows == 30
    completed(tmp_path, five_commits)


def test_a_batch_that_a_rollback_and_a_rewind_overtake_is_written_again(
    five_commits: DirectoryWriter, tmp_path: Path
) -> None:
    five_commits.segment([b"z"] * 5)

    def overtake() -> None:
        roll_back(tmp_path, 2)
        rewound(tmp_path)

    copied(Watched(open_in(tmp_path, "iceberg"), once("before commit", overtake)), options_of(five_commits))
    assert offsets_in(tmp_path, "iceberg") == sorted([*BOTH, *((0, offset) for offset in range(60, 65))])


def test_another_topic_keeps_its_position(
    five_commits: DirectoryWriter, write_partition: WritePartition, tmp_path: Path
) -> None:
    write_partition("others").segment([b"o"] * 10)
    others = options_of(five_commits, topic="others")
    before = snapshots(tmp_path)[-1]
    copied(open_in(tmp_path, "iceberg"), others)
    kept = snapshots(tmp_path)[-1]
    five_commits.segment([b"z"] * 5)
    copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    make_current(tmp_path, kept)
    assert "took back rows of orders-0 from offset 60 (" in refused(tmp_path, five_commits)
    assert copied(open_in(tmp_path, "iceberg"), others) == []
    make_current(tmp_path, before)
    assert rewound(tmp_path) == [(0, 65, 60), (0, 10, 0)]
    for options, rows in ((options_of(five_commits), 5), (others, 10)):
        assert [receipt.rows for receipt in copied(open_in(tmp_path, "iceberg"), options)] == [rows]
    assert len(offsets_in(tmp_path, "iceberg")) == 105


def test_rows_by_key_are_taken_back_and_copied_again(tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    for number in range(3):
        gone = {0, 1} if number == 2 else set()
        writer.add(*((b"k%d" % key, None if key in gone else b"%d-%d" % (number, key)) for key in range(10)))
        upserted(open_in(tmp_path, "iceberg"), writer)
    newest = dict(writer.model)
    roll_back(tmp_path, 1)
    assert len(model_in(tmp_path, "iceberg")) == 10
    with pytest.raises(PipelineError, match="took back rows of orders-0 from offset 20 "):
        upserted(open_in(tmp_path, "iceberg"), writer)
    assert rewound(tmp_path) == [(0, 30, 20)]
    upserted(open_in(tmp_path, "iceberg"), writer)
    assert model_in(tmp_path, "iceberg") == newest
    assert audited(tmp_path, "iceberg", options_of(writer)).findings == []
    roll_back(tmp_path, 0)
    expire(tmp_path, *snapshots(tmp_path)[1:])
    assert rewound(tmp_path) == [(0, 30, 10)]
    upserted(open_in(tmp_path, "iceberg"), writer)
    assert model_in(tmp_path, "iceberg") == newest


# -- snapshots that have expired ---------------------------------------------------------------------------------------


def test_the_snapshots_that_were_taken_back_suffice(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    """Those before the rollback's own are gone, and the current one has no receipt."""
    append_nothing(tmp_path)
    five_commits.segment([b"z"] * 5)
    copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    listed = snapshots(tmp_path)
    make_current(tmp_path, listed[-2])
    expire(tmp_path, *listed[:5])
    assert rewound(tmp_path) == []  # as an expired history that is complete looks the same, if positions fit
    make_current(tmp_path, listed[-1])


def test_the_snapshots_that_remain_suffice(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    roll_back(tmp_path, 1)
    expire(tmp_path, *snapshots(tmp_path)[2:])
    left = ends(tmp_path)
    assert rewound(tmp_path) == [(0, 60, left[0]), (1, 30, left[1])]
    completed(tmp_path, five_commits)


def test_without_both_it_does_not_guess(
    writer: DirectoryWriter, write_partition: WritePartition, tmp_path: Path
) -> None:
    """The snapshot of partition 0 has expired, and the current one is of partition 1."""
    for number in (0, 1):
        options = options_of(writer, topic=None, assign=f'{{"orders":[{number}]}}')
        copied(open_in(tmp_path, "iceberg"), options)
    writer.segment([b"z"] * 5)
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    roll_back(tmp_path, 1)
    listed = snapshots(tmp_path)
    expire(tmp_path, listed[0], listed[2])
    message = (
        "db.orders was rolled back to an earlier snapshot, and the snapshots that say where its rows of orders-0 end"
        " have expired: roll it forward again, or copy the topic to a new table"
    )
    assert refused(tmp_path, writer) == message
    with pytest.raises(PipelineError, match="its rows of orders-0 end have expired"):
        rewound(tmp_path)


def test_a_partition_without_any_receipt_is_copied_from_its_first_offset(
    writer: DirectoryWriter, tmp_path: Path
) -> None:
    for number in (0, 1):
        options = options_of(writer, topic=None, assign=f'{{"orders":[{number}]}}')
        copied(open_in(tmp_path, "iceberg"), options)
    roll_back(tmp_path, 0)
    expire(tmp_path, snapshots(tmp_path)[1])
    assert "took back rows of orders-1 from its first offset" in refused(tmp_path, writer)
    assert rewound(tmp_path) == [(1, 30, None)]
    completed(tmp_path, writer)


def test_a_topic_without_any_receipt_is_copied_from_its_first_offset(writer: DirectoryWriter, tmp_path: Path) -> None:
    open_in(tmp_path, "iceberg")
    append_foreign_row(tmp_path, "iceberg")
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    roll_back(tmp_path, 0)
    expire(tmp_path, snapshots(tmp_path)[1])
    assert rewound(tmp_path) == [(0, 60, None), (1, 30, None)]
    assert "warmlog.orders" not in iceberg_table(tmp_path).properties
    completed(tmp_path, writer)


def test_a_ledger_says_where_rows_end(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    maintained(tmp_path, "iceberg", after=LATER)
    (mark,) = snapshots(tmp_path)
    logs = [five_commits.segment([b"z"] * 5) for _ in range(2)]
    copied(open_in(tmp_path, "iceberg"), options_of(five_commits, maxOffsetsPerTrigger=5))
    make_current(tmp_path, mark)
    expire_others(tmp_path)
    assert rewound(tmp_path) == [(0, 70, 60)]
    for log in logs:
        os.unlink(log)
    five_commits.next_offset = 60
    completed(tmp_path, five_commits)


def test_rows_behind_a_ledger_that_came_back_count(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    maintained(tmp_path, "iceberg", after=LATER)
    (mark,) = snapshots(tmp_path)
    five_commits.segment([b"z"] * 5)
    copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    rows = iceberg_table(tmp_path).scan().to_arrow()
    make_current(tmp_path, mark)
    iceberg_table(tmp_path).append(rows.filter([at >= 60 for at in rows["offset"].to_pylist()]))
    assert rewound(tmp_path) == []
    assert copied(open_in(tmp_path, "iceberg"), options_of(five_commits)) == []
    assert len(offsets_in(tmp_path, "iceberg")) == 95
