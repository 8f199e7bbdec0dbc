from collections.abc import Callable
from typing import Any

import pytest

Batch = Callable[..., bytes]
Bench = Any
OffsetsIn = Callable[..., list[int]]

START_MS = 1_700_000_000_000


def test_log_flush_moves_the_recovery_point(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append(batch(3))
    assert (log.durability.recovery_point, log.durability.unflushed_bytes) == (0, log.size)
    log.durability.flush()
    assert (log.durability.recovery_point, log.durability.unflushed_bytes) == (3, 0)


def test_what_comes_during_a_sync_is_not_counted_as_synced(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append(batch(3))
    plan = log.durability.begin_flush()
    log.appends.append(batch(2))
    plan.sync()
    log.durability.finish_flush(plan)
    assert log.durability.recovery_point == 3
    assert log.durability.unflushed_bytes == len(batch(2))


def test_a_sync_overtaken_by_a_later_one_does_not_take_the_recovery_point_back(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append(batch(3))
    early = log.durability.begin_flush()
    log.appends.append(batch(2))
    log.durability.flush()
    log.durability.finish_flush(early)
    assert (log.durability.recovery_point, log.durability.unflushed_bytes) == (5, 0)


def test_a_sync_covers_segments_that_were_rolled_since_the_last(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    sealed = []
    for _ in range(5):
        planned = log.appends.plan(batch())
        if planned.roll:
            sealed.append(log.rolls.commit(log.rolls.prepare(planned)))
        log.appends.write([planned])
        log.appends.commit([planned])
    bench.disk.calls.clear()
    log.durability.flush()
    assert log.durability.recovery_point == 5
    synced = [call for call in bench.disk.calls if call[0] == "sync"]
    assert len(synced) == 2 * 2 + 1, "two sealed logs with their time indexes, and the active log"
    assert ("sync_directory", str(bench.directory)) in bench.disk.calls
    bench.disk.calls.clear()
    for segment in sealed:
        log.rolls.finish(segment)
    log.durability.flush()
    assert ("sync_directory", str(bench.directory)) not in bench.disk.calls


def test_a_roll_during_a_sync_leaves_its_names_for_the_next(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append(batch())
    plan = log.durability.begin_flush()
    log.rolls.roll()
    plan.sync()
    log.durability.finish_flush(plan)
    bench.disk.calls.clear()
    log.durability.flush()
    assert ("sync_directory", str(bench.directory)) in bench.disk.calls


def test_indexes_are_synced_only_when_they_have_changed(bench: Bench, batch: Batch) -> None:
    log = bench.open(index_interval_bytes=4096)
    log.appends.append(batch())
    log.durability.flush()
    bench.disk.calls.clear()
    log.appends.append(batch())
    log.durability.flush()
    assert len([call for call in bench.disk.calls if call[0] == "sync"]) == 1


def test_a_sync_from_before_a_truncation_covers_nothing(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    for _ in range(5):
        log.appends.append(batch())
    plan = log.durability.begin_flush()
    log.truncation.truncate_to(2)
    for _ in range(5):
        log.appends.append(batch())
    plan.sync()
    log.durability.finish_flush(plan)
    assert log.durability.recovery_point == 0


def test_flushing_an_empty_active_segment(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.durability.flush()
    assert log.durability.recovery_point == 0
    log.appends.append(batch(2))
    log.rolls.roll()
    log.durability.flush()
    assert log.durability.recovery_point == 2


def test_a_sync_that_a_roll_overtook_moves_nothing_before_the_roll_is_over(bench: Bench, batch: Batch) -> None:
    """The indexes of the segment that was sealed are not on the disk yet, and nobody would look at them again."""
    log = bench.open()
    log.appends.append(batch())
    overtaken = log.durability.begin_flush()
    rolling = log.durability.begin_flush()
    sealed = log.rolls.commit_early(log.rolls.prepare_early())
    overtaken.sync()
    log.durability.finish_flush(overtaken)
    assert log.durability.recovery_point == 0
    log.rolls.finish(sealed)
    rolling.sync()
    log.durability.finish_flush(rolling)
    assert log.durability.recovery_point == 1


def test_indexes_of_the_active_segment_are_synced_once_in_a_while(
    bench: Bench, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would be a wait of its own, in most rounds of a log that syncs every append."""
    monkeypatch.setattr("warmlog.broker.log.segments.segment_files.INDEXES_SYNCED_BYTES", 10 * len(batch()))
    log = bench.open(index_interval_bytes=0)
    syncs = []
    for number in range(25):
        bench.disk.calls.clear()
        log.appends.append(batch(timestamp=START_MS + number))
        log.durability.flush()
        syncs.append(len([call for call in bench.disk.calls if call[0] == "sync"]))
    assert [number for number, count in enumerate(syncs) if count == 3] == [9, 19]
    assert syncs.count(1) == 23


def test_index_entries_that_a_power_cut_took_are_made_from_the_log(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = bench.open(index_interval_bytes=200)
    for number in range(20):
        log.appends.append(batch(timestamp=START_MS + number))
    log.durability.flush()
    expected = [bench.path(0, suffix).read_bytes().rstrip(b"\0") for suffix in (".index", ".timeindex")]
    bench.kill(log)
    for suffix in (".index", ".timeindex"):
        bench.path(0, suffix).write_bytes(bytes(4096))
    log = bench.open(clean=False, recovery_point=20)
    assert offsets_in(log) == list(range(20))
    found = [bench.path(0, suffix).read_bytes().rstrip(b"\0") for suffix in (".index", ".timeindex")]
    assert found == expected


def test_a_sync_that_comes_after_one_that_failed_counts_for_nothing(bench: Bench, batch: Batch) -> None:
    """Linux told the first one. The loop hears of it once the whole round is over; a roll may end before that."""
    log = bench.open(segment_bytes=2 * len(batch()))
    log.appends.append(batch(2))
    in_a_round, rolling = log.durability.begin_flush(), log.durability.begin_flush()
    sealed = log.rolls.commit_early(log.rolls.prepare_early())
    bench.disk.fail("sync")
    with pytest.raises(OSError, match="Input/output error"):
        in_a_round.sync()
    assert log.failed
    with pytest.raises(OSError, match="not synced"):
        log.rolls.finish(sealed)
    with pytest.raises(OSError, match="not synced"):
        rolling.sync()
    assert log.durability.recovery_point == 0
    reopened = log.begin_reopening().make()
    log.finish_reopening(reopened)
    assert sealed in reopened.replaced
    assert (log.failed, log.durability.recovery_point) == (False, 2)


def test_a_sync_whose_segment_was_sealed_and_removed_meanwhile_has_nothing_to_wait_for(
    bench: Bench, batch: Batch
) -> None:
    """Retention by size can be quicker than the end of a roll: the log failed because of it."""
    log = bench.open(segment_bytes=2 * len(batch()))
    for _ in range(2):
        log.appends.append(batch())
    planned = log.appends.plan(batch())
    prepared, plan = log.rolls.prepare(planned), log.durability.begin_flush()
    sealed = log.rolls.commit(prepared)
    log.appends.write([planned])
    log.appends.commit([planned])
    log.rolls.finish(sealed)
    log.truncation.advance_start(2)
    log.old_segments.rename(log.old_segments.take_out())
    plan.sync()
    assert not log.failed
    log.durability.finish_flush(plan)
    log.durability.flush()
    assert log.durability.recovery_point == 3


def test_a_file_that_vanished_while_the_log_has_it_is_a_failure(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    for _ in range(2):
        log.appends.append(batch())
    planned = log.appends.plan(batch())
    prepared, plan = log.rolls.prepare(planned), log.durability.begin_flush()
    sealed = log.rolls.commit(prepared)
    log.appends.write([planned])
    log.appends.commit([planned])
    log.rolls.finish(sealed)
    sealed.close()
    min(bench.directory.glob("*.log")).unlink()
    with pytest.raises(FileNotFoundError):
        plan.sync()
    assert log.failed
