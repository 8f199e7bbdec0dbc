"""Rows that a restore took back, and that another program has brought back: the rows that are there decide."""

from pathlib import Path
from typing import Any
from uuid import UUID

import deltalake
import pyarrow as pa
import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.delta.restored import delta, rewound
from tests.pipeline.lakehouse.tables import copied, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited
from tests.pipeline.lakehouse.test_exactly_once import BOTH
from tests.pipeline.lakehouse.test_maintenance import LATER, maintained
from tests.pipeline.lakehouse.test_table import recreate
from warmlog.pipeline.errors import PipelineError


def restored(directory: Path, version: int) -> Any:
    """Restore a version; return the rows that are gone."""
    before = delta(directory).to_pyarrow_table()
    delta(directory).restore(version)
    remaining = set(offsets_in(directory, "delta"))
    keys = zip(before["partition"].to_pylist(), before["offset"].to_pylist(), strict=True)
    return before.filter(pa.array([key not in remaining for key in keys]))


def append(directory: Path, rows: Any) -> None:
    deltalake.write_deltalake(str(directory / "delta"), rows, mode="append")


def is_complete(directory: Path, writer: DirectoryWriter) -> bool:
    """Whether the table has each row once, is no alarm, and is continued after them, also after maintenance."""
    assert copied(open_in(directory, "delta"), options_of(writer)) == []
    assert rewound(directory) == []
    for is_maintained in (False, True):
        if is_maintained:
            maintained(directory, "delta", after=LATER)
        assert audited(directory, "delta", options_of(writer)).findings == []
        writer.segment([b"new"] * 5)
        assert [receipt.rows for receipt in copied(open_in(directory, "delta"), options_of(writer))] == [5]
    return offsets_in(directory, "delta") == sorted([*BOTH, *((0, offset) for offset in range(60, 70))])


def test_rows_that_were_appended_again_are_not_copied_again(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    append(tmp_path, restored(tmp_path, 2))
    assert is_complete(tmp_path, five_commits)


def test_a_table_that_was_overwritten_with_all_rows_is_continued(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    rows = delta(tmp_path).to_pyarrow_table()
    delta(tmp_path).restore(1)
    deltalake.write_deltalake(str(tmp_path / "delta"), rows, mode="overwrite")
    assert is_complete(tmp_path, five_commits)


def test_rows_of_a_whole_commit_count(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    delta(tmp_path).restore(3)
    of_three = set(offsets_in(tmp_path, "delta"))
    delta(tmp_path).restore(5)
    gone = restored(tmp_path, 2)
    keys = zip(gone["partition"].to_pylist(), gone["offset"].to_pylist(), strict=True)
    append(tmp_path, gone.filter(pa.array([key in of_three for key in keys])))
    with pytest.raises(PipelineError, match="took back rows of orders-0 from offset"):
        copied(open_in(tmp_path, "delta"), options_of(five_commits))
    changes = rewound(tmp_path)
    assert [after for _, _, after in changes] == [
        sum(partition == each for partition, _ in of_three) for each, _, _ in changes
    ]
    assert [receipt.rows for receipt in copied(open_in(tmp_path, "delta"), options_of(five_commits))] == [30]
    assert is_complete(tmp_path, five_commits)


@pytest.mark.parametrize("kept", ["first", "last"])
def test_rows_with_a_hole_are_refused(five_commits: DirectoryWriter, tmp_path: Path, kept: str) -> None:
    gone = restored(tmp_path, 2).sort_by("offset")
    ours = gone.filter(pa.compute.equal(gone["partition"], 0))
    append(tmp_path, ours.slice(0, 3) if kept == "first" else ours.slice(len(ours) - 3))
    first = ours["offset"][0].as_py()
    message = f"has some of the rows of orders-0 from offset {first} to 59 that were taken back, but not all of them"
    for act in (
        lambda: copied(open_in(tmp_path, "delta"), options_of(five_commits)),
        lambda: rewound(tmp_path),
        lambda: audited(tmp_path, "delta", options_of(five_commits)),
        lambda: maintained(tmp_path, "delta"),
    ):
        with pytest.raises(PipelineError, match=message):
            act()
    delta(tmp_path).delete(f'"partition" = 0 AND "offset" >= {first}')
    rewound(tmp_path)
    assert [receipt.rows for receipt in copied(open_in(tmp_path, "delta"), options_of(five_commits))] == [50]
    assert is_complete(tmp_path, five_commits)


def test_rows_of_a_deleted_topic_are_not_taken_for_others(writer: DirectoryWriter, tmp_path: Path) -> None:
    """They have the same offsets; receipts name their files."""
    recreate(writer, UUID(int=1))
    copied(open_in(tmp_path, "delta"), options_of(writer))
    recreate(writer, UUID(int=2))
    again = options_of(writer, failOnDataLoss="false", maxOffsetsPerTrigger=30)
    copied(open_in(tmp_path, "delta"), again)
    delta(tmp_path).restore(delta(tmp_path).version() - 1)
    with pytest.raises(PipelineError, match="took back rows of orders-0 from offset"):
        copied(open_in(tmp_path, "delta"), again)
    assert [before for _, before, _ in rewound(tmp_path)][:1] == [60]
    copied(open_in(tmp_path, "delta"), again)
    assert offsets_in(tmp_path, "delta") == sorted([*BOTH, *((0, offset) for offset in range(60))])


def test_rows_that_came_back_and_were_deleted_are_copied(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    delta(tmp_path).restore(2)
    remaining = set(offsets_in(tmp_path, "delta"))
    rewound(tmp_path)
    delta(tmp_path).restore(5)
    with pytest.raises(PipelineError, match="brought back rows"):
        copied(open_in(tmp_path, "delta"), options_of(five_commits))
    for partition in (0, 1):
        first = sum(each == partition for each, _ in remaining)
        delta(tmp_path).delete(f'"partition" = {partition} AND "offset" >= {first}')
    assert sum(receipt.rows for receipt in copied(open_in(tmp_path, "delta"), options_of(five_commits))) == 50
    assert offsets_in(tmp_path, "delta") == BOTH
