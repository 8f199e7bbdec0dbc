"""The start of a log moves, and its oldest segments go: what they take with them, and what a crash leaves."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from warmlog.broker.log.directory.checkpoint import LEADER_EPOCHS, read_epochs
from warmlog.broker.log.errors import OffsetOutOfRangeError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.retention.rules import RemovalReason

Batch = Callable[..., bytes]
Bench = Any
OffsetsIn = Callable[..., list[int]]

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def fill(log: PartitionLog, batch: Batch, batches: int, *, timestamp: int | None = None, step_ms: int = 1) -> None:
    """Append batches of one record each, whose times go on where the log ends."""
    for _ in range(batches):
        time = START_MS + step_ms * log.offsets.log_end_offset if timestamp is None else timestamp
        log.appends.append(batch(timestamp=time))


def remove(log: PartitionLog) -> list[str]:
    """One round of retention, without the roll of an active segment."""
    found = log.old_segments.find()
    if found.reasons:
        log.truncation.advance_start(found.active_base_offset if found.with_active else found.end_offset)
    return log.old_segments.rename(log.old_segments.take_out())


@pytest.fixture
def segmented(bench: Bench, batch: Batch) -> PartitionLog:
    """A log of 23 records in segments of five: bases 0, 5, 10, 15, 20."""
    log: PartitionLog = bench.open(segment_bytes=5 * len(batch()))
    fill(log, batch, 23)
    return log


# -- the start -------------------------------------------------------------------------------------------------------


def test_the_start_moves_forward_only_and_never_past_the_high_watermark(
    segmented: PartitionLog, offsets_in: OffsetsIn
) -> None:
    log = segmented
    assert log.truncation.advance_start(7)
    assert not log.truncation.advance_start(7)
    assert not log.truncation.advance_start(3)
    assert log.offsets.log_start_offset == 7
    for offset in (24, -1):
        with pytest.raises(OffsetOutOfRangeError):
            log.truncation.advance_start(offset)
    assert offsets_in(log) == list(range(7, 23))
    with pytest.raises(OffsetOutOfRangeError):
        log.reads.read(6, 1000)
    found = log.reads.offset_for_time(0)
    assert found is not None
    assert found.offset == 7
    assert log.truncation.advance_start(23)
    assert offsets_in(log) == []
    assert log.reads.read(23, 1000).slice is None


def test_leader_epochs_are_truncated_from_the_start(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=5 * len(batch()))
    for _ in range(3):
        fill(log, batch, 6)
        log.epochs.assign(log.epochs.current + 1, log.offsets.log_end_offset)
    log.truncation.advance_start(8)
    assert log.epochs.entries == ((1, 8), (2, 12), (3, 18))
    log.durability.checkpoint_epochs()
    bench.kill(log)
    log = bench.open(clean=True, log_start_offset=13)
    log.close()
    assert read_epochs(bench.disk, str(bench.directory / LEADER_EPOCHS)) == [(2, 13), (3, 18)]


# -- which segments go -----------------------------------------------------------------------------------------------


def test_segments_before_the_start_go_and_their_files_are_renamed_then_unlinked(
    bench: Bench, segmented: PartitionLog, offsets_in: OffsetsIn
) -> None:
    log, size = segmented, segmented.size
    log.truncation.advance_start(12)
    bench.path(5, ".snapshot").write_bytes(b"of producers")
    names = remove(log)
    assert log.segment_count == 3
    assert log.old_segments.first_base_offset == 10
    assert log.size < size
    assert offsets_in(log) == list(range(12, 23))
    assert sorted(os.path.basename(name) for name in names) == [
        f"{base:020d}{suffix}.deleted"
        for base, suffixes in (
            (0, (".index", ".log", ".timeindex")),
            (5, (".index", ".log", ".snapshot", ".timeindex")),
        )
        for suffix in suffixes
    ]
    assert all(os.path.exists(name) for name in names)
    log.old_segments.unlink(names)
    assert not list(bench.directory.glob("*.deleted"))
    log.old_segments.unlink(names)  # once more is no harm


def test_by_time_segments_go_once_their_largest_time_is_too_old(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=5 * len(batch()), retention_ms=HOUR_MS)
    fill(log, batch, 23, step_ms=1000)
    bench.clock.now_ms = START_MS + 9000 + HOUR_MS
    assert log.old_segments.find().end_offset == 5
    bench.clock.now_ms += 1
    found = log.old_segments.find()
    assert (found.end_offset, list(found.reasons), found.with_active) == (10, [RemovalReason.TIME] * 2, False)
    bench.clock.now_ms += 10 * HOUR_MS
    found = log.old_segments.find()
    assert (found.end_offset, found.with_active, found.active_base_offset) == (23, True, 20)


def test_where_no_record_has_a_time_the_file_has_one(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=5 * len(batch(timestamp=-1)), retention_ms=HOUR_MS)
    fill(log, batch, 12, timestamp=-1)
    for base in (0, 5):
        os.utime(bench.path(base, ".log"), ns=(0, (START_MS - 10 + base) * 1_000_000))
    bench.clock.now_ms = START_MS + HOUR_MS - 7
    assert log.old_segments.find().end_offset == 5


def test_a_time_in_the_future_keeps_its_segment_and_is_told(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=5 * len(batch()), retention_ms=HOUR_MS)
    fill(log, batch, 6)
    log.appends.append(batch(timestamp=START_MS + 100 * HOUR_MS))
    fill(log, batch, 10)
    bench.clock.now_ms = START_MS + 99 * HOUR_MS
    found = log.old_segments.find()
    assert (found.end_offset, found.from_future) == (5, 5)
    bench.clock.now_ms = START_MS + 101 * HOUR_MS + 1
    found = log.old_segments.find()
    assert (found.end_offset, found.from_future) == (17, None)


@pytest.mark.parametrize("damage", ["zeroed", "emptied", "cut", "missing", "zero-padded", "of another"])
def test_no_segment_goes_by_a_time_index_that_does_not_fit_its_log(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, damage: str
) -> None:
    """KAFKA-10207: an index of zeros dates every record to 1970."""
    log = bench.open(segment_bytes=50 * len(batch()), retention_ms=HOUR_MS, index_interval_bytes=300)
    fill(log, batch, 120, step_ms=60_000)
    log.close()
    first_entry = bench.path(0, ".timeindex").read_bytes()[:12]
    for base in (0, 50):
        path = bench.path(base, ".timeindex")
        content = path.read_bytes()
        path.write_bytes(
            {
                "zeroed": bytes(len(content)),
                "emptied": b"",
                "cut": content[:24],
                "missing": content,
                "zero-padded": content + bytes(1200),
                "of another": first_entry + content[12:24],
            }[damage]
        )
        if damage == "missing":
            path.unlink()
    log = bench.open()
    bench.clock.now_ms = START_MS + 60_000 * 49 + HOUR_MS
    assert log.old_segments.find().reasons == []
    remove(log)
    assert offsets_in(log) == list(range(120))
    bench.clock.now_ms += 1
    assert log.old_segments.find().end_offset == 50


def test_an_active_segment_whose_time_index_lost_its_end_stays(bench: Bench, batch: Batch) -> None:
    log = bench.open(retention_ms=HOUR_MS, index_interval_bytes=300)
    fill(log, batch, 100, step_ms=60_000)
    log.close()
    path = bench.path(0, ".timeindex")
    path.write_bytes(path.read_bytes()[:24])
    log = bench.open()
    bench.clock.now_ms = START_MS + 60_000 * 50 + HOUR_MS
    assert log.old_segments.find().reasons == []


# -- readers ---------------------------------------------------------------------------------------------------------


def test_who_reads_a_removed_segment_finishes(segmented: PartitionLog, batch: Batch) -> None:
    log = segmented
    read = log.reads.read(0, 1 << 20)
    assert read.slice is not None
    whole = read.slice.read_all()
    log.truncation.advance_start(23)
    log.old_segments.unlink(remove(log))
    assert read.slice.read_all() == whole
    assert len(whole) == 5 * len(batch())


def test_a_search_by_time_that_meets_a_removal_begins_again(
    segmented: PartitionLog, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, opens = segmented, bench.disk.open

    def remove_first(path: str, flags: int) -> int:
        monkeypatch.setattr(bench.disk, "open", opens)
        log.truncation.advance_start(12)
        log.old_segments.unlink(remove(log))
        fd: int = opens(path, flags)
        return fd

    monkeypatch.setattr(bench.disk, "open", remove_first)
    found = log.reads.offset_for_time(0)
    assert found is not None
    assert found.offset == 12


def test_a_sync_that_meets_a_removal_is_no_failure(segmented: PartitionLog) -> None:
    log = segmented
    for segment in log._state.segments.snapshot:
        segment.synced = False
    plan = log.durability.begin_flush()
    log.truncation.advance_start(12)
    log.old_segments.unlink(remove(log))
    plan.sync()
    log.durability.finish_flush(plan)
    assert not log.failed
    assert log.durability.recovery_point == 23


def test_a_segment_whose_roll_is_not_finished_stays_for_the_next_time(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=5 * len(batch()))
    fill(log, batch, 5)
    planned = log.appends.plan(batch())
    sealed = log.rolls.commit(log.rolls.prepare(planned))
    log.appends.write([planned])
    log.appends.commit([planned])
    log.truncation.advance_start(6)
    assert log.old_segments.take_out() == []
    log.rolls.finish(sealed)
    assert [segment.base_offset for segment in log.old_segments.take_out()] == [0]


# -- crashes ---------------------------------------------------------------------------------------------------------


def test_a_crash_at_any_step_of_a_removal_leaves_a_log_that_opens(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    """Every rename, unlink and sync may be the last thing that happens."""
    steps = 0
    while True:
        log = bench.open(segment_bytes=5 * len(batch()), clean=False)
        fill(log, batch, 23 if log.offsets.log_end_offset == 0 else 11)
        end = log.offsets.log_end_offset
        log.truncation.advance_start(end - 2)
        verb = ("rename", "unlink", "sync_directory")[steps % 3]
        bench.disk.fail(verb, nth=1 + steps // 3)
        try:
            log.old_segments.unlink(remove(log))
        except OSError:
            crashed = True
        else:
            crashed = False
        assert log.old_segments.first_base_offset <= log.offsets.log_start_offset
        start = log.offsets.log_start_offset
        bench.kill(log)
        bench.disk._faults.clear()
        log = bench.open(clean=False, log_start_offset=start, recovery_point=end)
        assert not list(bench.directory.glob("*.deleted"))
        assert offsets_in(log) == list(range(end - 2, end))
        log.truncation.advance_start(end)
        remove(log)
        fill(log, batch, 1)
        assert offsets_in(log) == [end]
        bench.kill(log)
        steps += 1
        if not crashed and steps > 30:
            break


def test_what_was_deleted_does_not_come_back_when_its_files_could_not_be_renamed(
    bench: Bench, segmented: PartitionLog
) -> None:
    log = segmented
    log.truncation.advance_start(10)
    bench.disk.fail("rename", nth=4)
    with pytest.raises(OSError, match="Input/output"):
        remove(log)
    assert (
        log.old_segments.first_base_offset == 0
    )  # so the checkpoint says where the log begins, though its first segment does
    bench.kill(log)
    log = bench.open(clean=False, log_start_offset=log.offsets.log_start_offset)
    assert (log.offsets.log_start_offset, log.old_segments.first_base_offset) == (10, 5)
