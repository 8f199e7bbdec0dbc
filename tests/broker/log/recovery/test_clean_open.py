"""Opening after a clean stop, titles after Kafka's tests of its loader (LogLoaderTest)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.log.recovery.logs import Batch, Bench, OffsetsIn, contents, fill, report_of
from warmlog.broker.log.directory.accepted_loss import ACCEPT_LOSS


def test_a_clean_open_looks_into_the_active_segment_alone(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 50)
    log.close()
    bench.disk.calls.clear()
    log = bench.open(recovery_point=50)
    opened = {Path(str(path)).name[:20] for verb, path in bench.disk.calls if verb == "open"}
    assert opened <= {f"{48:020d}", f"{50:020d}", "leader-epoch-checkpo"}  # 50: the snapshot of its producers
    assert log.segment_count == 13
    assert bench.files.statistics().open == bench.files.statistics().mappings == 0


def test_a_clean_open_writes_nothing(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    log.close()
    before = contents(bench.directory)
    bench.open(recovery_point=20)
    assert contents(bench.directory) == before


def test_the_checkpoints_are_clamped_to_what_the_log_holds(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 5)
    log.close()
    log = bench.open(recovery_point=-3, log_start_offset=-3)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset, log.durability.recovery_point) == (0, 5, 5)


@pytest.mark.parametrize("recovery_point", [30, 10, 0])
def test_a_log_that_ends_before_its_start_begins_again_at_its_start(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, recovery_point: int
) -> None:
    """A power cut took the end of a log, records beyond it had been deleted: their offsets are not given out again."""
    log = bench.open(segment_bytes=700)
    fill(log, batch, 30)
    log.close()
    log = bench.open(clean=False, recovery_point=recovery_point, log_start_offset=1000)
    assert (log.offsets.log_start_offset, log.offsets.high_watermark, log.offsets.log_end_offset) == (1000, 1000, 1000)
    assert (log.old_segments.first_base_offset, log.segment_count, log.durability.recovery_point) == (1000, 1, 1000)
    report = report_of(log)
    assert report.removed_segments == tuple(range(0, 30, 4))
    assert report.truncated_bytes == 30 * len(batch())
    assert report.truncation_reason == "it ends before its start offset 1000"
    assert sorted(path.name for path in bench.directory.glob("*.log")) == [f"{1000:020d}.log"]
    assert log.appends.append(batch()).base_offset == 1000
    assert offsets_in(bench.reopen(log)) == [1000]


def test_a_log_start_past_the_end_of_a_log_that_was_stopped_cleanly_is_ignored(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    """Its files were replaced: the checkpoint tells of others, and what is there was never deleted."""
    log = bench.open()
    fill(log, batch, 5)
    log.close()
    log = bench.open(recovery_point=900, log_start_offset=900)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset, log.durability.recovery_point) == (0, 5, 5)
    assert offsets_in(log) == list(range(5))
    log.close()
    (bench.directory / ACCEPT_LOSS).touch()
    log = bench.open(recovery_point=1000, log_start_offset=3)
    assert log.offsets.log_start_offset == 3, "that of the files it was copied with"


def test_a_crash_while_a_log_begins_again_at_its_start_leaves_one_that_does(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 30)
    bench.kill(log)
    for verb in ("unlink", "open", "truncate", "sync_directory"):
        for nth in range(1, 40):
            bench.disk.fail(verb, nth=nth)
            try:
                bench.kill(bench.open(clean=False, log_start_offset=1000))
            except OSError:
                continue
            finally:
                bench.disk._faults.clear()
    log = bench.open(clean=False, log_start_offset=1000)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (1000, 1000)


def test_load_an_empty_log_at_its_log_start(bench: Bench, batch: Batch) -> None:
    log = bench.open(log_start_offset=77)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset, log.old_segments.first_base_offset) == (
        77,
        77,
        77,
    )
    assert log.appends.append(batch()).base_offset == 77


def test_load_a_partition_directory_with_no_segments(bench: Bench, batch: Batch) -> None:
    bench.directory.mkdir()
    (bench.directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    log = bench.open(clean=False)
    assert (log.offsets.log_end_offset, log.recovery) == (0, None)
    assert (bench.directory / "partition.metadata").exists()


def test_bogus_index_segments_are_removed(bench: Bench, batch: Batch) -> None:
    bench.open().close()
    for suffix in (".index", ".timeindex", ".txnindex"):
        bench.path(50, suffix).write_bytes(b"12345678")
    bench.open()
    assert not [path for path in bench.directory.iterdir() if path.name.startswith(f"{50:020d}")]


def test_open_deletes_obsolete_files(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    fill(log, batch, 3)
    log.close()
    for name in (".log.deleted", ".index.deleted", ".log.cleaned", ".timeindex.cleaned"):
        bench.path(0, name).write_bytes(b"old")
    (bench.directory / "leader-epoch-checkpoint.tmp").write_text("half")
    log = bench.open()
    assert not [path for path in bench.directory.iterdir() if path.suffix in {".deleted", ".cleaned", ".tmp"}]
    assert offsets_in(log) == [0, 1, 2]


@pytest.mark.parametrize("name", ["notes.txt", "00000000000000000000.txnindex", "partition.metadata"])
def test_other_files_are_left_alone(bench: Bench, name: str) -> None:
    bench.open().close()
    (bench.directory / name).write_bytes(b"something")
    bench.open().close()
    assert (bench.directory / name).read_bytes() == b"something"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(bytes(len(path.read_bytes()))),
        lambda path: os.truncate(path, 4096),
        lambda path: path.write_bytes(path.read_bytes()[8:] + path.read_bytes()[:8]),
    ],
)
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_bad_index_of_the_active_segment_is_made_anew_even_after_a_clean_stop(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, suffix: str, damage: Callable[[Path], None]
) -> None:
    log = bench.open()
    fill(log, batch, 30)
    log.close()
    before = contents(bench.directory)
    damage(bench.path(0, suffix))
    log = bench.open()
    assert report_of(log).truncated_bytes == 0
    assert offsets_in(log) == list(range(30))
    log.close()
    assert contents(bench.directory) == before


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(bytes(64))])
def test_the_report_tells_which_indexes_did_not_say_what_the_log_says(
    bench: Bench, batch: Batch, suffix: str, damage: Callable[[Path], None]
) -> None:
    log = bench.open(segment_bytes=1700)
    fill(log, batch, 25)
    bench.kill(log)
    damage(bench.path(10, suffix))
    report = report_of(bench.open(clean=False))
    assert report.rebuilt_indexes == ((10,) if suffix == ".index" else ())
    assert report.rebuilt_time_indexes == ((10,) if suffix == ".timeindex" else ())


def test_after_a_kill_sound_indexes_are_not_told_as_rebuilt(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=1700)
    fill(log, batch, 25)
    bench.kill(log)
    report = report_of(bench.open(clean=False))
    assert (report.scanned_segments, report.rebuilt_indexes, report.rebuilt_time_indexes) == (3, (), ())
    assert report.repairs == 0
    assert report.did_something


def test_the_report_tells_of_leftovers_snapshots_and_epochs(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=1700)
    fill(log, batch, 25)
    bench.kill(log)
    for name in (f"{0:020d}.log.deleted", f"{90:020d}.index", f"{10:020d}.log.cleaned", "leader-epoch-checkpoint.tmp"):
        (bench.directory / name).write_bytes(b"x")
    bench.path(20, ".snapshot").write_bytes(b"no snapshot")
    (bench.directory / "leader-epoch-checkpoint").write_text("0\n1\nrubbish\n")
    report = report_of(bench.open(clean=False))
    assert set(report.leftovers) == {
        f"{0:020d}.log.deleted",
        f"{90:020d}.index",
        f"{10:020d}.log.cleaned",
        "leader-epoch-checkpoint.tmp",
    }
    assert report.removed_snapshots == (20,)
    assert report.rebuilt_epochs


def test_a_torn_tail_under_a_clean_marker_is_cut(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    fill(log, batch, 10)
    log.close()
    os.truncate(bench.path(0, ".log"), 10 * len(batch()) - 1)
    log = bench.open()
    assert report_of(log).truncated_at == 9
    assert offsets_in(log) == list(range(9))
