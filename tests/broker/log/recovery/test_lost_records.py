"""A log that has lost records that were flushed is not opened as if it were whole, until the loss is accepted."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.log.recovery.logs import Batch, Bench, OffsetsIn, contents, fill, report_of
from warmlog.broker.log.directory.accepted_loss import ACCEPT_LOSS
from warmlog.broker.log.errors import IndexCorruptError, MissingFilesError
from warmlog.broker.log.io.disk import IrregularFileError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.errors import CorruptBatchError

RECORDS = 30
ACTIVE = 28  # the base offset of the last of the segments, which have 4 records each

Damage = Callable[[Path], object]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_one_byte(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(1, 256)) * (path.stat().st_size // 255 + 1))


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def filled(bench: Bench, batch: Batch, *, clean: bool, **changes: object) -> PartitionLog:
    """Leave a log of some segments, all of it flushed, as a clean stop or a kill does."""
    log: PartitionLog = bench.open(**{"segment_bytes": 700, "index_interval_bytes": 200, **changes})
    fill(log, batch, RECORDS)
    log.durability.flush()
    log.close(clean=clean)
    return log


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [cut, cut_one_byte, empty, garbage, zeros])
def test_a_log_that_lost_its_end_is_not_opened_until_the_loss_is_accepted(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, damage: Damage, *, clean: bool
) -> None:
    filled(bench, batch, clean=clean)
    damage(bench.path(ACTIVE, ".log"))
    before = contents(bench.directory)
    for _ in range(2):
        with pytest.raises(MissingFilesError, match=f"{ACTIVE}.log was cut or damaged.*{ACCEPT_LOSS}"):
            bench.open(clean=clean, recovery_point=RECORDS, known_end=RECORDS)
        assert contents(bench.directory) == before
    (bench.directory / ACCEPT_LOSS).touch()
    log = bench.open(clean=clean, recovery_point=RECORDS, known_end=RECORDS)
    kept = offsets_in(log)
    assert kept == list(range(len(kept)))
    assert ACTIVE <= len(kept) < RECORDS
    assert log.appends.append(batch()).base_offset == RECORDS, "no offset is assigned again"
    bench.kill(log)
    for end in (RECORDS + 1, RECORDS + 2):
        log = bench.open(clean=False, recovery_point=RECORDS)
        assert [*offsets_in(log)] == [*kept, *range(RECORDS, end)]
        log.appends.append(batch())
        bench.kill(log)


def test_records_that_were_not_flushed_may_be_lost_after_a_kill(bench: Bench, batch: Batch) -> None:
    filled(bench, batch, clean=False)
    empty(bench.path(ACTIVE, ".log"))
    log = bench.open(clean=False, recovery_point=ACTIVE)
    assert log.offsets.log_end_offset == ACTIVE


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_sealed_segment_that_is_empty_is_missed(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, *, clean: bool, indexed: bool
) -> None:
    filled(bench, batch, clean=clean)
    empty(bench.path(8, ".log"))
    if not indexed:
        for suffix in (".index", ".timeindex"):
            empty(bench.path(8, suffix))
    with pytest.raises(MissingFilesError, match=r"08\.log is empty, but held the records from 8 to 11: put it back"):
        bench.open(clean=clean, recovery_point=RECORDS)
    (bench.directory / ACCEPT_LOSS).touch()
    log = bench.open(clean=clean, recovery_point=RECORDS)
    left = [*range(8), *range(12, RECORDS)]
    assert offsets_in(log) == left
    bench.kill(log)
    assert offsets_in(bench.open(clean=False)) == left, "the gap is no damage any more"


def test_a_segment_of_deleted_records_is_not_missed(bench: Bench, batch: Batch) -> None:
    filled(bench, batch, clean=True)
    empty(bench.path(0, ".log"))
    assert bench.open(recovery_point=RECORDS, log_start_offset=4).offsets.log_start_offset == 4


def test_an_empty_segment_of_which_nothing_is_known_is_not_missed(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    """Compaction has removed its last record."""
    filled(bench, batch, clean=True)
    (bench.directory / "contiguous-offset-checkpoint").unlink()
    for suffix in (".log", ".index", ".timeindex"):
        empty(bench.path(8, suffix))
    assert offsets_in(bench.open(recovery_point=RECORDS)) == [*range(8), *range(12, RECORDS)]


@pytest.mark.parametrize("damage", [cut, cut_one_byte, lambda path: os.truncate(path, path.stat().st_size // 4 * 3)])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("interval", [0, 200, 4096])
def test_readers_get_an_error_where_a_sealed_segment_was_cut(
    bench: Bench, batch: Batch, damage: Damage, interval: int, *, clean: bool
) -> None:
    """In a batch or between two: neither a part of a batch without an error, nor the records of the next segment."""
    filled(bench, batch, clean=clean, index_interval_bytes=interval)
    damage(bench.path(8, ".log"))
    log = bench.open(clean=clean, recovery_point=RECORDS)
    try:
        log.reads.read(8, 700)
    except IndexCorruptError:  # rebuilt then, as the broker does it
        log.reads.rebuild_indexes(8)
    left = bench.path(8, ".log").stat().st_size // len(batch())
    assert log.reads.read(8, 700).slice is not None
    for offset in range(8 + left, 12):
        with pytest.raises(CorruptBatchError, match=rf"08\.log was cut or damaged: the records from {8 + left} to 11"):
            log.reads.read(offset, 700, min_one_batch=True)
    assert log.reads.read(12, 700).slice is not None


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot"])
@pytest.mark.parametrize("base", [8, ACTIVE])
@pytest.mark.parametrize("kind", ["directory", "fifo", "socket", "device", "dangling link"])
@pytest.mark.parametrize("clean", [True, False])
def test_something_else_than_a_file_is_refused_by_name(
    bench: Bench, batch: Batch, suffix: str, base: int, kind: str, *, clean: bool
) -> None:
    filled(bench, batch, clean=clean)
    put(kind, bench.path(base, suffix))
    with pytest.raises(IrregularFileError) as caught:
        bench.open(clean=clean, recovery_point=RECORDS)
    assert caught.value.filename == str(bench.path(base, suffix))


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "contiguous-offset-checkpoint", "partition.metadata"])
@pytest.mark.parametrize("kind", ["directory", "fifo", "socket", "device", "dangling link"])
def test_something_else_than_a_checkpoint_is_refused_by_name(bench: Bench, batch: Batch, name: str, kind: str) -> None:
    filled(bench, batch, clean=True)
    put(kind, bench.directory / name)
    with pytest.raises(IrregularFileError) as caught:
        bench.open(recovery_point=RECORDS)
    assert caught.value.filename == str(bench.directory / name)


def put(kind: str, path: Path) -> None:
    """Put something in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/nonexistent/file")


@pytest.mark.parametrize("damage", [cut, cut_one_byte, empty, garbage, zeros])
@pytest.mark.parametrize("base", [8, ACTIVE])
def test_a_recovery_reports_whatever_it_lost(bench: Bench, batch: Batch, damage: Damage, base: int) -> None:
    filled(bench, batch, clean=False)
    damage(bench.path(base, ".log"))
    log = bench.open(clean=False, known_end=RECORDS)
    assert report_of(log).lost_records
    assert report_of(log).lost_offsets == RECORDS - log.offsets.log_end_offset


def test_a_recovery_without_a_loss_reports_none(bench: Bench, batch: Batch) -> None:
    filled(bench, batch, clean=False)
    assert not report_of(bench.open(clean=False, known_end=RECORDS)).lost_records


def test_the_indexes_of_removed_segments_show_how_many_offsets_were_lost(bench: Bench, batch: Batch) -> None:
    filled(bench, batch, clean=False, index_interval_bytes=0)
    cut_one_byte(bench.path(8, ".log"))
    report = report_of(bench.open(clean=False))
    assert (report.truncated_at, report.lost_offsets) == (11, RECORDS - 11)


def test_the_index_shows_that_a_log_was_longer(bench: Bench, batch: Batch) -> None:
    filled(bench, batch, clean=False, index_interval_bytes=0)
    empty(bench.path(ACTIVE, ".log"))
    assert report_of(bench.open(clean=False)).lost_offsets == 2
