"""When and how a new segment begins, titles after Kafka's tests of rolling."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from warmlog.broker.log.index.time import TimeIndex
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.segments.tail import RollReason
from warmlog.protocol.records.layout import CRC_POSITION, CRC_START, LAST_OFFSET_DELTA_POSITION

Batch = Callable[..., bytes]
Bench = Any
OffsetsIn = Callable[..., list[int]]

START_MS = 1_700_000_000_000


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.reads.describe().segments]


def test_size_based_log_roll(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=3 * len(batch()))
    reasons = [log.appends.append(batch()).roll for _ in range(8)]
    assert reasons == [None, None, None, RollReason.SIZE, None, None, RollReason.SIZE, None]
    assert bases(log) == [0, 3, 6]


def test_time_based_log_roll_during_append(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_ms=1000)
    times = [0, 1000, 1001, 500, 2001, 2002, 3003]
    rolls = [log.appends.append(batch(timestamp=START_MS + time)).roll for time in times]
    assert [i for i, reason in enumerate(rolls) if reason is RollReason.TIME] == [2, 5, 6]


def test_replayed_old_data_does_not_roll_by_the_wall_clock(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_ms=1000)
    for i in range(5):
        bench.clock.now_ms += 10_000
        assert log.appends.append(batch(timestamp=1000 + i)).roll is None


def test_records_without_a_time_roll_by_the_age_of_the_segment(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_ms=1000)
    log.appends.append(batch(timestamp=-1))
    bench.clock.now_ms += 1000
    assert log.appends.append(batch(timestamp=-1)).roll is None
    bench.clock.now_ms += 1
    assert log.appends.append(batch(timestamp=-1)).roll is RollReason.TIME


def test_time_based_log_roll_jitter(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_ms=1000, segment_jitter_ms=600)
    ages = []
    for _ in range(10):
        first_ms = START_MS + 10_000 * len(ages)
        log.rolls.roll()
        log.appends.append(batch(timestamp=first_ms))
        ages.append(next(age for age in range(2000) if log.appends.append(batch(timestamp=first_ms + age)).roll))
    assert all(1000 - 600 < age <= 1001 for age in ages)
    assert len(set(ages)) > 1, "each segment has its own jitter"


def test_the_age_of_a_segment_survives_a_restart(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_ms=1000)
    log.appends.append(batch(timestamp=START_MS))
    log.appends.append(batch(timestamp=START_MS + 10))
    log = bench.reopen(log)
    assert log.appends.append(batch(timestamp=START_MS + 1000)).roll is None
    assert log.appends.append(batch(timestamp=START_MS + 1001)).roll is RollReason.TIME


@pytest.mark.parametrize("entries", [3, 5])
def test_a_full_offset_index_rolls(bench: Bench, batch: Batch, entries: int, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_index_bytes=8 * entries, index_interval_bytes=0)
    for _ in range(20):
        log.appends.append(batch(timestamp=-1))
    assert bases(log) == list(range(0, 20, entries + 1))
    assert offsets_in(log) == list(range(20))


def test_a_full_time_index_rolls_one_entry_early_and_the_roll_uses_the_last_slot(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_index_bytes=12 * 3, index_interval_bytes=0)
    for i in range(12):
        log.appends.append(batch(timestamp=START_MS + i))
    assert bases(log) == [0, 3, 6, 9]
    stored = bench.path(0, ".timeindex").read_bytes()
    assert list(TimeIndex.entry.iter_unpack(stored)) == [(START_MS + 1, 1), (START_MS + 2, 2)]


def test_an_index_too_small_for_any_entry_gives_every_append_a_segment_but_never_an_empty_one(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = bench.open(segment_index_bytes=4, index_interval_bytes=0)
    for _ in range(4):
        log.appends.append(batch() + batch())
    assert bases(log) == [0, 2, 4, 6]
    assert offsets_in(log) == list(range(8))


def test_a_relative_offset_past_31_bits_rolls(bench: Bench, batch: Batch) -> None:
    bench.open().close()
    bench.path(0, ".log").write_bytes(what_compaction_left(batch(), last_offset_delta=2**31 - 4))
    log = bench.open()
    rolls = [log.appends.append(batch()).roll for _ in range(5)]
    assert rolls == [None, None, None, RollReason.OFFSET_RANGE, None]
    assert bases(log) == [0, 2**31]


def what_compaction_left(batch: bytes, *, last_offset_delta: int) -> bytes:
    """A batch of one record that once had many: the last offset delta stays when records go."""
    crafted = bytearray(batch)
    crafted[LAST_OFFSET_DELTA_POSITION : LAST_OFFSET_DELTA_POSITION + 4] = last_offset_delta.to_bytes(4, "big")
    crafted[CRC_POSITION : CRC_POSITION + 4] = crc32c(crafted[CRC_START:]).to_bytes(4, "big")
    return bytes(crafted)


def test_a_roll_in_the_middle_of_a_queue(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=3 * len(batch()))
    plans = [log.appends.plan(batch()) for _ in range(8)]
    assert [plan.roll for plan in plans] == [None, None, None, RollReason.SIZE, None, None, RollReason.SIZE, None]
    assert [plan.position // len(batch()) for plan in plans] == [0, 1, 2, 0, 1, 2, 0, 1]
    for group in (plans[:3], plans[3:6], plans[6:]):
        if group[0].roll:
            log.rolls.finish(log.rolls.commit(log.rolls.prepare(group[0])))
        log.appends.write(group)
        log.appends.commit(group)
    assert bases(log) == [0, 3, 6]
    assert offsets_in(log) == list(range(8))


def test_rolling_seals_the_old_segment(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=20 * len(batch()))
    for i in range(21):
        log.appends.append(batch(timestamp=START_MS + i))
    assert bench.path(0, ".index").stat().st_size == 4 * 8
    times = list(TimeIndex.entry.iter_unpack(bench.path(0, ".timeindex").read_bytes()))
    assert times[-1] == (START_MS + 19, 19), "the largest time is told once more on roll"
    assert bench.path(20, ".index").stat().st_size == 4096
    assert bench.path(20, ".timeindex").stat().st_size == 4092


def test_log_rolls_on_request_but_never_empty(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    log.rolls.roll()
    assert log.segment_count == 1
    log.appends.append(batch(3))
    log.rolls.roll()
    log.rolls.roll()
    assert bases(log) == [0, 3]
    log.appends.append(batch(2))
    assert offsets_in(log) == [0, 1, 2, 3, 4]


def test_rolling_over_files_that_are_there_replaces_them(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    for suffix in (".log", ".index", ".timeindex"):
        bench.path(2, suffix).write_bytes(b"rubbish" * 1000)
    for _ in range(3):
        log.appends.append(batch())
    assert offsets_in(log) == [0, 1, 2]
    assert bench.path(2, ".log").stat().st_size == len(batch())


def test_new_segments_after_a_restart_go_on(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    for _ in range(5):
        log.appends.append(batch())
        log = bench.reopen(log)
    assert bases(log) == [0, 2, 4]
    assert offsets_in(log) == list(range(5))


def test_an_empty_active_segment_is_opened_again(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    log.appends.append(batch(3))
    log.rolls.roll()
    log = bench.reopen(log)
    assert (log.recovery, bases(log), log.offsets.log_end_offset) == (None, [0, 3], 3)
    log.appends.append(batch())
    assert offsets_in(log) == [0, 1, 2, 3]


def test_preallocated_segments_are_as_long_as_their_data(bench: Bench, batch: Batch) -> None:
    log = bench.open(preallocate=True, segment_bytes=1 << 20)
    log.appends.append(batch())
    path = bench.path(0, ".log")
    assert path.stat().st_size == len(batch())
    assert _blocks(path) >= 1 << 20
    log.close()
    assert _blocks(path) <= 8192
    assert path.stat().st_size == len(batch())


def _blocks(path: Path) -> int:
    return os.stat(path).st_blocks * 512


def test_nothing_of_a_sealed_segment_stays_open(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    for _ in range(20):
        log.appends.append(batch())
    held = bench.files.statistics()
    assert held.open <= 3
    assert held.mappings == 0


def test_a_roll_that_was_not_finished_is_finished_by_a_clean_stop(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=10 * len(batch()))
    for _ in range(25):
        planned = log.appends.plan(batch())
        if planned.roll:
            log.rolls.commit(log.rolls.prepare(planned))
        log.appends.write([planned])
        log.appends.commit([planned])
    assert bench.path(0, ".index").stat().st_size == 4096
    log.close()
    assert bench.path(0, ".index").stat().st_size == 2 * 8
    assert bench.path(10, ".timeindex").stat().st_size == 12


def test_a_roll_finished_twice_is_no_harm(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=10 * len(batch()))
    for _ in range(10):
        log.appends.append(batch())
    planned = log.appends.plan(batch())
    sealed = log.rolls.commit(log.rolls.prepare(planned))
    log.appends.write([planned])
    log.appends.commit([planned])
    log.rolls.finish(sealed)
    log.rolls.finish(sealed)
    assert offsets_in(bench.reopen(log)) == list(range(11))


def test_settings_that_change_while_a_roll_is_under_way_hold_for_the_new_segment(bench: Bench, batch: Batch) -> None:
    """Its end was made by the old ones, and an abandoned plan goes back to it."""
    log = bench.open(segment_bytes=2 * len(batch()))
    for _ in range(2):
        log.appends.append(batch())
    planned = log.appends.plan(batch())
    prepared = log.rolls.prepare(planned)
    log.reconfigure(bench.config.__class__(segment_bytes=4 * len(batch())))
    log.rolls.commit(prepared)
    log.appends.write([planned])
    log.appends.commit([planned])
    log.appends.plan(batch())
    log.appends.abandon()
    assert [log.appends.append(batch()).roll for _ in range(4)] == [None, None, None, RollReason.SIZE]


@pytest.mark.parametrize("interval", [0, 1 << 20])
@pytest.mark.parametrize("entries", [3, 1000])
def test_settings_that_change_between_plan_and_commit_leave_indexes_as_they_were_planned(
    bench: Bench, batch: Batch, interval: int, entries: int
) -> None:
    log = bench.open(index_interval_bytes=(1 << 20) - interval)
    for _ in range(3):
        log.appends.append(batch(timestamp=START_MS + log.offsets.log_end_offset))
    planned = [log.appends.plan(batch(timestamp=START_MS + 3 + number)) for number in range(4)]
    log.reconfigure(bench.config.__class__(index_interval_bytes=interval, segment_index_bytes=12 * entries))
    log.appends.write(planned)
    log.appends.commit(planned)
    log.rolls.roll()
    offsets = list(struct.iter_unpack(">ii", bench.path(0, ".index").read_bytes()))
    times = list(struct.iter_unpack(">qi", bench.path(0, ".timeindex").read_bytes()))
    assert offsets == sorted(set(offsets))
    assert times == sorted(set(times))
    assert times[-1] == (START_MS + 6, 6)
    assert [log.reads.read(offset, 1, min_one_batch=True).slice is not None for offset in range(7)] == [True] * 7


def test_settings_that_change_before_a_prepared_roll_is_committed_hold_for_the_new_indexes(
    bench: Bench, batch: Batch
) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    for _ in range(2):
        log.appends.append(batch())
    planned = log.appends.plan(batch())
    prepared = log.rolls.prepare(planned)
    log.reconfigure(bench.config.__class__(segment_index_bytes=120, index_interval_bytes=7))
    log.rolls.commit(prepared)
    assert prepared.segment.offset_index.max_entries == 120 // 8
    assert prepared.segment.time_index.max_entries == 120 // 12
    assert prepared.segment.index_interval_bytes == 7
