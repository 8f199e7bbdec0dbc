"""Receipts: written beside the data, bounded in number, and never in the way of a start."""

import errno
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.broker.log.conftest import FaultyDisk
from warmlog.broker.log.descriptions import RecoveryReport
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.directory.receipt import (
    KEPT_RECEIPTS,
    Receipt,
    ReceiptError,
    log_receipt,
    read_receipt,
    read_receipts,
    receipt_names,
    time_of,
    write_receipt,
)
from warmlog.broker.log.io.disk import Disk

REPORT = RecoveryReport(
    recovery_point=40,
    scanned_segments=2,
    scanned_bytes=700,
    truncated_bytes=75,
    truncated_at=42,
    truncation_reason="the last batch is cut",
    removed_segments=(50,),
    rebuilt_indexes=(40,),
    seconds=0.5,
    leftovers=("00000000000000000000.log.deleted",),
)


def receipt(started_ms: int = 1_700_000_000_123) -> Receipt:
    return Receipt(
        started_at=time_of(started_ms),
        reason="no clean stop",
        complete=True,
        seconds=1.5,
        threads=2,
        log_count=3,
        scanned_bytes=700,
        truncated_bytes=75,
        findings=("a checkpoint: malformed",),
        logs=(log_receipt("orders", 0, 42, REPORT),),
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    name = write_receipt(Disk(), str(tmp_path), receipt())
    assert name == "recovery-receipt-20231114T221320123Z.json"
    assert read_receipt(Disk(), str(tmp_path / name)) == receipt()
    (log,) = receipt().logs
    assert (log.truncated_at, log.repairs) == (42, 4)


def test_the_oldest_go_beyond_those_that_are_kept(tmp_path: Path) -> None:
    for number in range(KEPT_RECEIPTS + 3):
        write_receipt(Disk(), str(tmp_path), receipt(1_700_000_000_000 + number * 1000))
    names = receipt_names(Disk(), str(tmp_path))
    assert len(names) == KEPT_RECEIPTS
    assert names[0] == "recovery-receipt-20231114T221323000Z.json"


@pytest.mark.parametrize("verb", ["pwritev", "sync", "rename"])
def test_want_of_room_leaves_nothing_behind(tmp_path: Path, verb: str) -> None:
    disk = FaultyDisk()
    disk.fail(verb, code=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        write_receipt(disk, str(tmp_path), receipt())
    assert list(tmp_path.iterdir()) == []


def test_one_that_cannot_be_understood_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    (tmp_path / "recovery-receipt-20200101T000000000Z.json").write_text('{"version":')
    (tmp_path / "recovery-receipt-20200102T000000000Z.json").write_text("{}")
    write_receipt(Disk(), str(tmp_path), receipt())
    first, second, third = read_receipts(Disk(), str(tmp_path))
    assert isinstance(first, ReceiptError)
    assert isinstance(second, ReceiptError)
    assert str(tmp_path / "recovery-receipt-20200101T000000000Z.json") in str(first)
    assert third == receipt()


def test_one_of_a_later_version_is_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "recovery-receipt-20200101T000000000Z.json"
    write_receipt(Disk(), str(tmp_path), receipt())
    (written,) = tmp_path.iterdir()
    path.write_bytes(written.read_bytes().replace(b'"version":1', b'"version":2'))
    with pytest.raises(ReceiptError, match="version 2, expected 1"):
        read_receipt(Disk(), str(path))


def test_a_data_directory_knows_them_for_its_own(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path, node_id=1) as directory:
        write_receipt(Disk(), str(tmp_path), receipt())
        (tmp_path / "recovery-receipt-20200101T000000000Z.json.tmp").write_text("half")
        (tmp_path / "stranger").write_text("")
        assert directory.foreign_names() == ["stranger"]


def test_a_report_counts_what_had_to_be_put_right() -> None:
    sound = replace(REPORT, truncated_bytes=0, removed_segments=(), rebuilt_indexes=(), leftovers=())
    assert (sound.repairs, sound.did_something) == (0, True)
    assert not replace(sound, scanned_bytes=0).did_something
    assert replace(sound, scanned_bytes=0, rebuilt_epochs=True).did_something
