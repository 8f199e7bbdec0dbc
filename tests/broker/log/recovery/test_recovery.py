"""Opening after an unclean stop, titles after Kafka's tests of its loader (LogLoaderTest)."""

import os
from pathlib import Path

import pytest

from tests.broker.log.recovery.logs import START_MS, Batch, Bench, OffsetsIn, contents, fill, report_of
from warmlog.broker.log.directory.accepted_loss import ACCEPT_LOSS
from warmlog.broker.log.errors import MissingFilesError


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
        found = log.reads.offset_for_time(START_MS + offset)
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
    log.durability.flush()
    fill(log, batch, 10)
    bench.kill(log)
    log = bench.open(clean=False, recovery_point=80)
    report = report_of(log)
    assert report.scanned_segments == 1
    assert 10 * len(batch()) <= report.scanned_bytes <= 16 * len(batch())
    assert log.durability.recovery_point == 80
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


def test_a_log_that_ends_before_its_recovery_point_is_opened_if_the_loss_is_accepted(
    bench: Bench, batch: Batch
) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 10)
    bench.kill(log)
    before = contents(bench.directory)
    with pytest.raises(MissingFilesError, match=r"00008\.log was cut or damaged: the log ends at offset 10, but had"):
        bench.open(clean=False, recovery_point=1 << 40)
    assert contents(bench.directory) == before
    (bench.directory / ACCEPT_LOSS).touch()
    log = bench.open(clean=False, recovery_point=1 << 40)
    assert (log.offsets.log_end_offset, log.durability.recovery_point) == (10, 10)
    assert (report_of(log).scanned_segments, report_of(log).scanned_bytes) == (1, 2 * len(batch()))


def test_recover_only_last_segment(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 10)
    log.durability.flush()
    bench.kill(log)
    bench.disk.calls.clear()
    bench.open(clean=False, recovery_point=8)
    opened = {Path(str(path)).name[:20] for verb, path in bench.disk.calls if verb == "open"}
    assert opened <= {f"{8:020d}", f"{10:020d}", "leader-epoch-checkpo"}  # 10: the snapshot of its producers


def test_recover_with_an_empty_active_segment(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    fill(log, batch, 5)
    log.rolls.roll()
    bench.kill(log)
    log = bench.open(clean=False)
    assert (log.segment_count, log.offsets.log_end_offset) == (2, 5)
    fill(log, batch, 1)
    assert offsets_in(log) == list(range(6))


@pytest.mark.parametrize("clean", [True, False])
def test_the_files_of_a_roll_that_never_was_are_removed(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, *, clean: bool
) -> None:
    log = bench.open(segment_bytes=3 * len(batch()))
    fill(log, batch, 3)
    log.rolls.prepare(log.appends.plan(batch()))
    log.appends.abandon()
    log.reconfigure(bench.config.__class__())
    fill(log, batch, 2)
    log.close()
    log = bench.open(clean=clean, recovery_point=5)
    assert (log.segment_count, log.offsets.log_end_offset) == (1, 5)
    assert offsets_in(log) == list(range(5))


def test_a_log_whose_first_batch_is_bad_is_empty_and_goes_on(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    bench.kill(log)
    bench.path(0, ".log").write_bytes(
        b"not a batch at all, but quite a lot of bytes that stand where a header would be"
    )
    log = bench.open(clean=False)
    assert (log.offsets.log_end_offset, log.size) == (0, 0)
    fill(log, batch, 1)
    assert log.offsets.log_end_offset == 1


def test_the_largest_time_survives_a_kill(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=2000)
    for time in (10, 500, 30, 40, 20, 15, 16, 17, 18, 900, 7, 8, 9, 11, 12):
        log.appends.append(batch(timestamp=time))
    found = log.reads.largest_timestamp()
    log.durability.flush()
    bench.kill(log)
    for recovery_point in (0, 5, 9, 15):
        log = bench.open(clean=False, recovery_point=recovery_point)
        assert log.reads.largest_timestamp() == found
        bench.kill(log)


# -- leader epochs --


def test_the_leader_epoch_rises_at_an_unclean_start_and_not_at_a_clean_one(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    log = bench.reopen(log)
    assert log.epochs.current == 0
    bench.kill(log)
    log = bench.open(clean=False)
    assert log.epochs.current == 1
    assert log.epochs.epoch_of(2) == 0
    assert log.epochs.epoch_of(3) == 1


def test_log_recovers_for_leader_epoch(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    for epoch in range(1, 6):
        fill(log, batch, 3)
        log.epochs.assign(epoch, log.offsets.log_end_offset)
    fill(log, batch, 3)
    bench.kill(log)
    (bench.directory / "leader-epoch-checkpoint").unlink(missing_ok=True)
    log = bench.open(clean=False)
    assert [log.epochs.epoch_of(offset) for offset in range(18)] == [offset // 3 for offset in range(18)]
    assert log.epochs.current == 6


def test_epochs_past_the_end_go_and_the_number_stays(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    log.close()
    (bench.directory / "leader-epoch-checkpoint").write_text("0\n3\n0 0\n4 2\n9 100\n")
    log = bench.open()
    assert log.epochs.current == 9
    assert [log.epochs.epoch_of(offset) for offset in range(4)] == [0, 0, 4, 9]


def test_a_malformed_epoch_checkpoint_is_as_good_as_none(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.epochs.assign(1, log.offsets.log_end_offset)
    fill(log, batch, 3)
    log.close()
    (bench.directory / "leader-epoch-checkpoint").write_text("nonsense\nmore\n")
    assert bench.open().epochs.current == 1


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
    (bench.directory / ACCEPT_LOSS).touch()
    log = bench.open(clean=False, recovery_point=1 << 40)
    assert offsets_in(log) == [0, 1, 2, 3]
    found = log.reads.largest_timestamp()
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
        log.appends.append(batch(timestamp=START_MS + offset, size=size))
    bench.kill(log)
    log = bench.open(clean=False)
    assert report_of(log).scanned_bytes == log.size
    assert offsets_in(log) == list(range(6))
    for offset in range(6):
        found = log.reads.offset_for_time(START_MS + offset)
        assert found is not None
        assert found.offset == offset


def test_a_torn_large_batch_is_cut(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(max_message_bytes=1 << 20)
    for _ in range(3):
        log.appends.append(batch(size=300_000))
    bench.kill(log)
    os.truncate(bench.path(0, ".log"), log.size - 20)
    log = bench.open(clean=False)
    assert offsets_in(log) == [0, 1]
