"""Iceberg tables of which other programs delete rows by delete files."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.iceberg.deletes import delete_equal, delete_positions
from tests.pipeline.lakehouse.iceberg.rolled import opened
from tests.pipeline.lakehouse.tables import copied, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited
from tests.pipeline.lakehouse.test_maintenance import maintained
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, upserted
from warmlog.pipeline.errors import PipelineError, UnavailableError


def rows_of(directory: Path) -> int:
    return int(opened(directory).handle.scan().to_arrow().num_rows)


def test_rows_that_positions_delete_stay_deleted(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    table = opened(tmp_path)
    before = rows_of(tmp_path)
    path = next(iter(table.handle.scan().plan_files())).file.file_path
    delete_positions(table.handle, path, [0, 1])
    assert rows_of(tmp_path) == before - 2
    maintained(tmp_path, "iceberg")
    five_commits.segment([b"later"])
    copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    maintained(tmp_path, "iceberg")
    assert rows_of(tmp_path) == before - 1
    findings = {finding.what for finding in audited(tmp_path, "iceberg", options_of(five_commits)).findings}
    assert findings == {f"rows of {Path(path).name} were deleted by another program"}


def test_equality_deletes_are_named_and_rows_can_be_added(five_commits: DirectoryWriter, tmp_path: Path) -> None:
    delete_equal(opened(tmp_path).handle, "offset", [3])
    five_commits.segment([b"later"])
    (receipt,) = copied(open_in(tmp_path, "iceberg"), options_of(five_commits))
    assert receipt.rows == 1
    message = r"deleted rows by equality deletes.*: rewrite the files first"
    with pytest.raises(PipelineError, match=message):
        audited(tmp_path, "iceberg", options_of(five_commits))
    with pytest.raises(PipelineError, match=message):
        maintained(tmp_path, "iceberg")


def test_upserts_stop_at_equality_deletes(tmp_path: Path) -> None:
    keyed = KeyedWriter(tmp_path / "data")
    keyed.add((b"a", b"1"), (b"b", b"1"))
    upserted(open_in(tmp_path, "iceberg"), keyed)
    table: Any = opened(tmp_path).handle
    delete_equal(table, "key", [b"a"])
    keyed.add((b"b", b"2"))
    with pytest.raises(PipelineError, match="rewrite the files first") as raised:
        upserted(open_in(tmp_path, "iceberg"), keyed)
    assert not isinstance(raised.value, UnavailableError), "a job would try again forever"
