"""`warmlog pipeline table rewind`."""

import json
from pathlib import Path

from click.testing import CliRunner

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.iceberg.rolled import expire, snapshots
from tests.pipeline.lakehouse.tables import Kind, arguments_of, copied, offsets_in, open_in, options_of
from tests.pipeline.lakehouse.test_exactly_once import BOTH, append_foreign_row
from tests.pipeline.lakehouse.test_rewinding import take_back
from warmlog.cli.root import root


def invoke(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(root, ["pipeline", "table", *arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_the_commands_name_the_rows_and_copy_them_again(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    target = arguments_of(tmp_path, kind)
    source = ["--path", str(writer.directory.parent), "--until-end"]
    open_in(tmp_path, kind)
    append_foreign_row(tmp_path, kind)
    invoke("orders", *target, *source)
    assert invoke("rewind", *target) == "nothing was taken back\n"
    take_back(tmp_path, kind)
    for refusal in (invoke("orders", *target, *source, status=1), invoke("maintain", *target, status=1)):
        assert "took back rows of orders-0 from offset 0, orders-1 from offset 0" in refusal
        assert f"To copy them again: warmlog pipeline table rewind {target[0]}" in refusal
    assert "nothing was changed (--dry-run)" in invoke("rewind", *target, "--dry-run")
    shown = json.loads(invoke("rewind", *target, "--dry-run", "--json"))
    assert shown["partitions"] == [
        {"topic": "orders", "partition": 0, "before": 60, "after": 0},
        {"topic": "orders", "partition": 1, "before": 30, "after": 0},
    ]
    lines = invoke("rewind", *target).splitlines()
    assert lines[0].split() == ["topic", "partition", "offset-before", "offset-after"]
    assert [line.split() for line in lines[1:]] == [["orders", "0", "60", "0"], ["orders", "1", "30", "0"]]
    assert invoke("rewind", *target) == "nothing was taken back\n"
    assert "committed 90 records of 90 offsets" in invoke("orders", *target, *source)
    assert offsets_in(tmp_path, kind) == [*BOTH, (7, 7)]


def test_an_unknown_first_offset_is_empty(writer: DirectoryWriter, tmp_path: Path) -> None:
    open_in(tmp_path, "iceberg")
    append_foreign_row(tmp_path, "iceberg")
    copied(open_in(tmp_path, "iceberg"), options_of(writer))
    take_back(tmp_path, "iceberg")
    expire(tmp_path, snapshots(tmp_path)[1])
    target = arguments_of(tmp_path, "iceberg")
    assert json.loads(invoke("rewind", *target, "--dry-run", "--json"))["partitions"][0]["after"] is None
    assert [line.split() for line in invoke("rewind", *target).splitlines()[1:]] == [
        ["orders", "0", "60"],
        ["orders", "1", "30"],
    ]


def test_a_table_that_does_not_exist_is_named(kind: Kind, tmp_path: Path) -> None:
    target = arguments_of(tmp_path, kind)
    assert f"{target[0]}: no such table" in invoke("rewind", *target, status=1)
