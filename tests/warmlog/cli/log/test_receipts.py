"""`warmlog log receipts`: over receipts as a broker leaves them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.broker.log.directory.test_receipt import receipt
from warmlog.broker.log.directory.receipt import write_receipt
from warmlog.broker.log.io.disk import Disk
from warmlog.cli.root import root


def receipts(*arguments: Path | str) -> Result:
    return CliRunner().invoke(root, ["log", "receipts", *map(str, arguments)])


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory with two receipts."""
    for started_ms in (1_700_000_000_000, 1_700_086_400_000):
        write_receipt(Disk(), str(tmp_path), receipt(started_ms))
    return tmp_path


def test_a_table_and_the_repairs_of_each_log(data_dir: Path) -> None:
    result = receipts(data_dir)
    assert result.exit_code == 0
    header, first, second, *rest = result.stdout.splitlines()
    assert header.split() == ["started", "seconds", "logs", "checked", "truncated", "repaired", "reason"]
    assert first.split() == [
        "2023-11-14T22:13:20.000Z",
        "1.500",
        "3",
        "700",
        "B",
        "75",
        "B",
        "1",
        "no",
        "clean",
        "stop",
    ]
    assert second.startswith("2023-11-15T22:13:20.000Z")
    assert rest[:2] == ["", "2023-11-14T22:13:20.000Z"]
    assert "  a checkpoint: malformed" in rest
    assert "  orders-0: 75 bytes truncated at offset 42: the last batch is cut" in rest
    assert "  orders-0: later segments removed: 50" in rest
    assert "  orders-0: offset indexes rebuilt for segments: 40" in rest
    assert "  orders-0: leftovers of interrupted changes resolved: 00000000000000000000.log.deleted" in rest


def test_json_for_scripts_oldest_first_or_the_newest_alone(data_dir: Path) -> None:
    lines = [json.loads(line) for line in receipts(data_dir, "--json").stdout.splitlines()]
    assert [line["started_at"] for line in lines] == ["2023-11-14T22:13:20.000Z", "2023-11-15T22:13:20.000Z"]
    assert lines[0]["logs"][0]["truncation_reason"] == "the last batch is cut"
    (newest,) = receipts(data_dir, "--json", "-n", "1").stdout.splitlines()
    assert json.loads(newest) == lines[1]


def test_no_receipts(tmp_path: Path) -> None:
    result = receipts(tmp_path)
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)
    assert result.stdout.startswith("no receipts")
    assert receipts(tmp_path, "--json").stdout == ""


def test_a_damaged_receipt_is_reported_and_the_others_are_shown(data_dir: Path) -> None:
    (data_dir / "recovery-receipt-20300101T000000000Z.json").write_text("rubbish")
    result = receipts(data_dir)
    assert result.exit_code == 1
    assert "2023-11-15T22:13:20.000Z" in result.stdout
    assert "recovery-receipt-20300101T000000000Z.json: no receipt of this version" in result.stderr


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_a_path_that_is_not_a_directory_is_reported_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    result = receipts(tmp_path / name)
    assert result.exit_code == 2
    assert str(tmp_path / name) in result.output
    assert len(result.output.splitlines()) == 1


def test_verify_accepts_receipts(data_dir: Path) -> None:
    result = CliRunner().invoke(root, ["log", "verify", str(data_dir), "--json"])
    assert "receipt" not in result.stdout
