"""Opening after a clean and after an unclean stop, titles after Kafka's tests of its loader (LogLoaderTest)."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.log.descriptions import RecoveryReport
from broker.log.partition_log import PartitionLog
from protocol.records.builder import build_batch

Batch = Callable[..., bytes]
Bench = Any
OffsetsIn = Callable[..., list[int]]

START_MS = 1_700_000_000_000


def fill(log: PartitionLog, batch: Batch, batches: int) -> None:
    for _ in range(batches):
        log.append(batch(timestamp=START_MS + log.log_end_offset))


def report_of(log: PartitionLog) -> RecoveryReport:
    assert log.recovery is not None
    return log.recovery


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


# -- clean -------------------------------------------------------------------------------------------------------------


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
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (0, 5, 5)


@pytest.mark.parametrize("recovery_point", [30, 10, 0])
def test_a_log_that_ends_before_its_start_begins_again_at_its_start(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, recovery_point: int
) -> None:
    """A power cut took the end of a log, records beyond it had been deleted: their offsets are not given out again."""
    log = bench.open(segment_bytes=700)
    fill(log, batch, 30)
    log.close()
    log = bench.open(clean=False, recovery_point=recovery_point, log_start_offset=1000)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1000, 1000, 1000)
    assert (log.first_base_offset, log.segment_count, log.recovery_point) == (1000, 1, 1000)
    report = report_of(log)
    assert report.removed_segments == tuple(range(0, 30, 4))
    assert report.truncated_bytes == 30 * len(batch())
    assert report.truncation_reason == "it ends before its start offset 1000"
    assert sorted(path.name for path in bench.directory.glob("*.log")) == [f"{1000:020d}.log"]
    assert log.append(batch()).base_offset == 1000
    assert offsets_in(bench.reopen(log)) == [1000]


def test_a_log_start_past_the_end_of_a_log_that_was_stopped_cleanly_is_ignored(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    """Its files were replaced: the checkpoint tells of others, and what is there was never deleted."""
    log = bench.open()
    fill(log, batch, 5)
    log.close()
    log = bench.open(recovery_point=1000, log_start_offset=900)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (0, 5, 5)
    assert offsets_in(log) == list(range(5))
    log.close()
    log = bench.open(recovery_point=1000, log_start_offset=3)
    assert log.log_start_offset == 3, "that of the files it was copied with"


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
    assert (log.log_start_offset, log.log_end_offset) == (1000, 1000)


def test_load_an_empty_log_at_its_log_start(bench: Bench, batch: Batch) -> None:
    log = bench.open(log_start_offset=77)
    assert (log.log_start_offset, log.log_end_offset, log.first_base_offset) == (77, 77, 77)
    assert log.append(batch()).base_offset == 77


def test_load_a_partition_directory_with_no_segments(bench: Bench, batch: Batch) -> None:
    bench.directory.mkdir()
    (bench.directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    log = bench.open(clean=False)
    assert (log.log_end_offset, log.recovery) == (0, None)
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


# -- unclean -----------------------------------------------------------------------------------------------------------


def test_after_a_kill_everything_that_was_written_is_there(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 30)
    bench.kill(log)
    log = bench.open(clean=False)
    report = report_of(log)
    assert (report.truncated_bytes, report.truncated_at, report.removed_segments) == (0, None, ())
    assert report.scanned_bytes == log.size
    assert offsets_in(log) == list(range(30))


def test_recovered_indexes_are_those_that_appending_and_rolling_made(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=5000)
    fill(log, batch, 100)
    log.close()
    before = contents(bench.directory)
    log = bench.open(clean=False)
    log.close()
    after = contents(bench.directory)
    before.pop("leader-epoch-checkpoint"), after.pop("leader-epoch-checkpoint")
    assert after == before


def test_index_rebuild(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=5000)
    fill(log, batch, 100)
    log.close()
    before = contents(bench.directory)
    for path in bench.directory.glob("*index"):
        path.unlink()
    log = bench.open(clean=False)
    assert offsets_in(log) == list(range(100))
    for offset in range(100):
        found = log.offset_for_time(START_MS + offset)
        assert found is not None
        assert found.offset == offset
    log.close()
    after = contents(bench.directory)
    before.pop("leader-epoch-checkpoint"), after.pop("leader-epoch-checkpoint")
    assert after == before


def test_corrupt_index_rebuild(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=5000)
    fill(log, batch, 100)
    bench.kill(log)
    for path in bench.directory.glob("*index"):
        path.write_bytes(b"rubbish!rubbish!")
    log = bench.open(clean=False)
    assert offsets_in(log) == list(range(100))


@pytest.mark.parametrize("cut", [1, 16, 61, 100, 169])
def test_a_torn_tail_is_cut(bench: Bench, batch: Batch, offsets_in: OffsetsIn, cut: int) -> None:
    log = bench.open()
    fill(log, batch, 10)
    bench.kill(log)
    os.truncate(bench.path(0, ".log"), 10 * len(batch()) - cut)
    log = bench.open(clean=False)
    report = report_of(log)
    assert (report.truncated_at, report.truncated_bytes) == (9, len(batch()) - cut)
    assert bench.path(0, ".log").stat().st_size == 9 * len(batch())
    fill(log, batch, 1)
    assert offsets_in(log) == list(range(10))


def test_zeros_after_the_last_batch_are_cut(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    fill(log, batch, 10)
    bench.kill(log)
    os.truncate(bench.path(0, ".log"), 1 << 20)
    log = bench.open(clean=False)
    assert report_of(log).truncated_bytes == (1 << 20) - 10 * len(batch())
    assert offsets_in(log) == list(range(10))


@pytest.mark.parametrize("byte", [8, 16, 17, 21, 57, 61, 120, 169])
def test_corrupt_log_is_cut_at_the_first_bad_byte(bench: Bench, batch: Batch, offsets_in: OffsetsIn, byte: int) -> None:
    log = bench.open(segment_bytes=10 * len(batch()))
    fill(log, batch, 35)
    bench.kill(log)
    path = bench.path(10, ".log")
    data = bytearray(path.read_bytes())
    data[4 * len(batch()) + byte] ^= 0x40
    path.write_bytes(data)
    log = bench.open(clean=False)
    report = report_of(log)
    assert report.truncated_at == 14
    assert report.truncation_reason
    assert report.removed_segments == (20, 30)
    assert report.truncated_bytes == (6 + 10 + 5) * len(batch())
    assert offsets_in(log) == list(range(14))
    assert sorted(path.name for path in bench.directory.glob("*.log")) == [f"{0:020d}.log", f"{10:020d}.log"]
    fill(log, batch, 3)
    assert offsets_in(bench.reopen(log)) == list(range(17))


def test_offsets_that_go_back_are_cut(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    fill(log, batch, 5)
    bench.kill(log)
    path = bench.path(0, ".log")
    path.write_bytes(path.read_bytes() + path.read_bytes()[: len(batch())])
    log = bench.open(clean=False)
    assert report_of(log).truncated_at == 5
    assert offsets_in(log) == list(range(5))


def test_recovery_begins_at_the_recovery_point(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=10_000)
    fill(log, batch, 80)
    log.flush()
    fill(log, batch, 10)
    bench.kill(log)
    log = bench.open(clean=False, recovery_point=80)
    report = report_of(log)
    assert report.scanned_segments == 1
    assert 10 * len(batch()) <= report.scanned_bytes <= 16 * len(batch())
    assert log.recovery_point == 80
    assert offsets_in(log) == list(range(90))


def test_an_index_below_the_recovery_point_is_not_believed_if_it_does_not_fit(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = bench.open()
    fill(log, batch, 40)
    log.close()
    expected = bench.path(0, ".index").read_bytes()
    data = bytearray(expected)
    data[7 * 8 + 3] -= 1
    bench.path(0, ".index").write_bytes(data)
    log = bench.open(clean=False, recovery_point=33)
    assert report_of(log).scanned_bytes == log.size
    log.close()
    assert bench.path(0, ".index").read_bytes() == expected


def test_a_recovery_point_past_the_end_recovers_the_active_segment(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 10)
    bench.kill(log)
    log = bench.open(clean=False, recovery_point=1 << 40)
    assert (log.log_end_offset, log.recovery_point) == (10, 10)
    assert (report_of(log).scanned_segments, report_of(log).scanned_bytes) == (1, 2 * len(batch()))


def test_recover_only_last_segment(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 10)
    log.flush()
    bench.kill(log)
    bench.disk.calls.clear()
    bench.open(clean=False, recovery_point=8)
    opened = {Path(str(path)).name[:20] for verb, path in bench.disk.calls if verb == "open"}
    assert opened <= {f"{8:020d}", f"{10:020d}", "leader-epoch-checkpo"}  # 10: the snapshot of its producers


def test_recover_with_an_empty_active_segment(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    fill(log, batch, 5)
    log.roll()
    bench.kill(log)
    log = bench.open(clean=False)
    assert (log.segment_count, log.log_end_offset) == (2, 5)
    fill(log, batch, 1)
    assert offsets_in(log) == list(range(6))


@pytest.mark.parametrize("clean", [True, False])
def test_the_files_of_a_roll_that_never_was_are_removed(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, *, clean: bool
) -> None:
    log = bench.open(segment_bytes=3 * len(batch()))
    fill(log, batch, 3)
    log.prepare_roll(log.plan(batch()))
    log.abandon()
    log.reconfigure(bench.config.__class__())
    fill(log, batch, 2)
    log.close()
    log = bench.open(clean=clean, recovery_point=5)
    assert (log.segment_count, log.log_end_offset) == (1, 5)
    assert offsets_in(log) == list(range(5))


def test_a_log_whose_first_batch_is_bad_is_empty_and_goes_on(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    bench.kill(log)
    bench.path(0, ".log").write_bytes(
        b"not a batch at all, but quite a lot of bytes that stand where a header would be"
    )
    log = bench.open(clean=False)
    assert (log.log_end_offset, log.size) == (0, 0)
    fill(log, batch, 1)
    assert log.log_end_offset == 1


def test_the_largest_time_survives_a_kill(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=2000)
    for time in (10, 500, 30, 40, 20, 15, 16, 17, 18, 900, 7, 8, 9, 11, 12):
        log.append(batch(timestamp=time))
    found = log.largest_timestamp()
    log.flush()
    bench.kill(log)
    for recovery_point in (0, 5, 9, 15):
        log = bench.open(clean=False, recovery_point=recovery_point)
        assert log.largest_timestamp() == found
        bench.kill(log)


# -- gaps --------------------------------------------------------------------------------------------------------------


def with_gaps(bench: Bench, *, segments: int = 5, last_offsets: tuple[int, ...] = (7, 9)) -> list[int]:
    """Make the directory of a log that was compacted, or copied from one: of each segment two batches are left."""
    one = build_batch([(START_MS, b"key", b"v" * 100, ())])
    bench.kill(bench.open())
    offsets = []
    for path in bench.directory.iterdir():
        path.unlink()
    for number in range(segments):
        base = 20 * number
        kept = [base + offset for offset in last_offsets]
        bench.path(base, ".log").write_bytes(b"".join(offset.to_bytes(8) + one[8:] for offset in kept))
        offsets += kept
    return offsets


def make_indexes(log: PartitionLog) -> None:
    """As at the first use of each."""
    for segment in log._segments.snapshot[:-1]:
        log.rebuild_indexes(segment.base_offset)


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
@pytest.mark.parametrize("recovery_point", [0, 5, 8, 10, 25, 1000])
def test_nothing_is_cut_from_a_copied_log_because_offsets_are_missing(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, policy: str, recovery_point: int
) -> None:
    offsets = with_gaps(bench)
    log = bench.open(clean=False, recovery_point=recovery_point, cleanup_policy=policy)
    assert (report_of(log).truncated_bytes, report_of(log).removed_segments) == (0, ())
    make_indexes(log)
    assert offsets_in(log) == offsets
    log.append(build_batch([(START_MS, b"key", b"value", ())]))
    assert offsets_in(bench.reopen(log)) == [*offsets, offsets[-1] + 1]


@pytest.mark.parametrize("recovery_point", [0, 10, 90])
def test_gaps_of_a_copied_log_stay_after_it_has_been_appended_to_and_rolled(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, recovery_point: int
) -> None:
    offsets = with_gaps(bench)
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    bench.kill(log)
    log = bench.open(clean=False, recovery_point=recovery_point)
    assert report_of(log).truncated_bytes == 0
    make_indexes(log)
    assert offsets_in(log) == [*offsets, *range(90, 110)]


@pytest.mark.parametrize("recovery_point", [0, 6, 11, 12])
def test_a_segment_that_has_lost_its_end_ends_the_log(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, recovery_point: int
) -> None:
    """A power cut: the next segment's bytes were on the disk already, and this one's last ones were not."""
    log = bench.open(segment_bytes=4 * len(batch()))
    fill(log, batch, 25)
    bench.kill(log)
    os.truncate(bench.path(12, ".log"), 2 * len(batch()))
    log = bench.open(clean=False, recovery_point=recovery_point)
    report = report_of(log)
    assert report.truncation_reason == "it ends at offset 14, but ended at 16 when the next segment began"
    assert (report.truncated_at, report.removed_segments) == (14, (16, 20, 24))
    assert offsets_in(log) == list(range(14))


def test_a_lost_end_in_a_log_that_was_copied_with_gaps_ends_it_there_and_not_at_the_gaps(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    offsets = with_gaps(bench)
    log = bench.open(segment_bytes=4 * len(batch()))
    fill(log, batch, 25)
    bench.kill(log)
    base = next(base for base in range(90, 100) if bench.path(base, ".log").exists())
    os.truncate(bench.path(base, ".log"), 2 * len(batch()))
    log = bench.open(clean=False)
    assert report_of(log).truncated_at == base + 2
    assert offsets_in(log) == [*offsets, *range(90, base + 2)]


def test_files_that_were_copied_over_those_of_a_clean_stop_are_kept_whole(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    log.close()
    known = (bench.directory / "contiguous-offset-checkpoint").read_bytes()
    offsets = with_gaps(bench)
    (bench.directory / "contiguous-offset-checkpoint").write_bytes(known)
    bench.kill(bench.open(recovery_point=20))
    assert not (bench.directory / "contiguous-offset-checkpoint").exists()
    log = bench.open(clean=False, recovery_point=20)
    make_indexes(log)
    assert offsets_in(log) == offsets


# -- leader epochs -----------------------------------------------------------------------------------------------------


def test_the_leader_epoch_rises_at_an_unclean_start_and_not_at_a_clean_one(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    log = bench.reopen(log)
    assert log.leader_epoch == 0
    bench.kill(log)
    log = bench.open(clean=False)
    assert log.leader_epoch == 1
    assert log.epoch_of(2) == 0
    assert log.epoch_of(3) == 1


def test_log_recovers_for_leader_epoch(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    for epoch in range(1, 6):
        fill(log, batch, 3)
        assert log.raise_leader_epoch() == epoch
    fill(log, batch, 3)
    bench.kill(log)
    (bench.directory / "leader-epoch-checkpoint").unlink(missing_ok=True)
    log = bench.open(clean=False)
    assert [log.epoch_of(offset) for offset in range(18)] == [offset // 3 for offset in range(18)]
    assert log.leader_epoch == 6


def test_epochs_past_the_end_go_and_the_number_stays(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    log.close()
    (bench.directory / "leader-epoch-checkpoint").write_text("0\n3\n0 0\n4 2\n9 100\n")
    log = bench.open()
    assert log.leader_epoch == 9
    assert [log.epoch_of(offset) for offset in range(4)] == [0, 0, 4, 9]


def test_a_malformed_epoch_checkpoint_is_as_good_as_none(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.raise_leader_epoch()
    fill(log, batch, 3)
    log.close()
    (bench.directory / "leader-epoch-checkpoint").write_text("nonsense\nmore\n")
    assert bench.open().leader_epoch == 1


def test_a_crash_in_the_middle_of_recovery_is_recovered_from(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=2000)
    fill(log, batch, 40)
    bench.kill(log)
    os.truncate(bench.path(33, ".log"), 3 * len(batch()) + 7)
    for verb in ("truncate", "pwritev", "open", "unlink"):
        for nth in range(1, 12):
            bench.disk.fail(verb, nth=nth)
            try:
                bench.kill(bench.open(clean=False))
            except OSError:
                continue
            finally:
                bench.disk._faults.clear()
    assert offsets_in(bench.open(clean=False)) == list(range(36))


def test_an_entry_whose_batch_is_torn_goes_with_it_however_far_the_recovery_point_claims(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    """Once such an entry was kept: the log then ended before its first record, with the torn one's time."""
    log = bench.open(index_interval_bytes=0)
    fill(log, batch, 5)
    bench.kill(log)
    os.truncate(bench.path(0, ".log"), 5 * len(batch()) - 1)
    log = bench.open(clean=False, recovery_point=1 << 40)
    assert offsets_in(log) == [0, 1, 2, 3]
    found = log.largest_timestamp()
    assert found is not None
    assert (found.timestamp, found.offset) == (START_MS + 3, 3)
    fill(log, batch, 1)
    assert offsets_in(bench.reopen(log)) == [0, 1, 2, 3, 4]


def test_batches_larger_than_one_read_are_recovered_and_found(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = bench.open(max_message_bytes=1 << 20)
    sizes = [100_000, 300_000, 50, 600_000, 262_144 - 61, 10]
    for offset, size in enumerate(sizes):
        log.append(batch(timestamp=START_MS + offset, size=size))
    bench.kill(log)
    log = bench.open(clean=False)
    assert report_of(log).scanned_bytes == log.size
    assert offsets_in(log) == list(range(6))
    for offset in range(6):
        found = log.offset_for_time(START_MS + offset)
        assert found is not None
        assert found.offset == offset


def test_a_torn_large_batch_is_cut(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(max_message_bytes=1 << 20)
    for _ in range(3):
        log.append(batch(size=300_000))
    bench.kill(log)
    os.truncate(bench.path(0, ".log"), log.size - 20)
    log = bench.open(clean=False)
    assert offsets_in(log) == [0, 1]
