"""Cutting a log at an offset, titles after Kafka's tests of truncation."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.log.partition_log import PartitionLog

Batch = Callable[..., bytes]
Bench = Any
OffsetsIn = Callable[..., list[int]]

START_MS = 1_700_000_000_000


def filled(bench: Bench, batch: Batch, batches: int = 30, **changes: object) -> PartitionLog:
    log: PartitionLog = bench.open(**({"segment_bytes": 10 * len(batch())} | changes))
    for _ in range(batches):
        log.append(batch(timestamp=START_MS + log.log_end_offset))
    return log


@pytest.mark.parametrize("offset", range(31))
def test_truncate_to(bench: Bench, batch: Batch, offsets_in: OffsetsIn, offset: int) -> None:
    log = filled(bench, batch)
    log.truncate_to(offset)
    assert (log.log_end_offset, log.high_watermark) == (offset, offset)
    assert log.size == offset * len(batch())
    assert offsets_in(log) == list(range(offset))
    log.append(batch())
    assert offsets_in(log) == list(range(offset + 1))
    log = bench.reopen(log)
    assert log.recovery is None
    assert offsets_in(log) == list(range(offset + 1))


def test_truncating_at_or_past_the_end_changes_nothing(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch)
    for offset in (30, 31, 1 << 40):
        log.truncate_to(offset)
        assert (log.log_end_offset, log.leader_epoch) == (30, 0)


def test_truncate_inside_a_batch_takes_the_batch_away(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    for _ in range(5):
        log.append(batch(10))
    log.truncate_to(25)
    assert log.log_end_offset == 20
    assert offsets_in(log) == list(range(20))


def test_truncate_before_the_first_segment_starts_over_there(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(log_start_offset=100)
    for _ in range(5):
        log.append(batch())
    log.truncate_to(40)
    assert (log.log_start_offset, log.log_end_offset, log.first_base_offset, log.size) == (40, 40, 40, 0)
    log.append(batch())
    assert offsets_in(log) == [40]
    assert offsets_in(bench.reopen(log)) == [40]


def test_truncation_forgets_the_epochs_past_the_end_and_begins_none(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch, 5)
    log.assign_epoch(1)
    for _ in range(5):
        log.append(batch())
    log.truncate_to(3)
    assert (log.leader_epoch, log.epoch_of(3), log.end_offset_of_epoch(1)) == (1, 0, (-1, -1))
    assert (bench.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


@pytest.mark.parametrize("offset", [5, 6])
def test_truncation_at_or_past_the_end_forgets_an_epoch_without_records(
    bench: Bench, batch: Batch, offset: int
) -> None:
    """Otherwise a follower would ask for the end of that epoch again and again (KAFKA-10706)."""
    log = filled(bench, batch, 5)
    log.assign_epoch(3)
    assert log.epoch_of(5) == 3
    log.truncate_to(offset)
    assert (log.log_end_offset, log.epoch_of(5)) == (5, 0)
    assert (bench.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_a_truncated_log_keeps_its_epochs_when_power_is_cut(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch, 5)
    log.assign_epoch(5)
    log.append(batch())
    bench.disk.calls.clear()
    log.truncate_to(5)
    verbs = [verb for verb, what in bench.disk.calls if verb == "sync" or "leader-epoch" in str(what)]
    assert verbs[-3:] == ["open", "sync", "rename"]


def test_reload_largest_timestamp_after_truncation(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch)
    log.truncate_to(17)
    found = log.largest_timestamp()
    assert found is not None
    assert (found.timestamp, found.offset) == (START_MS + 16, 16)
    assert log.offset_for_time(START_MS + 17) is None


def test_the_index_of_the_segment_that_is_active_again_can_grow(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch)
    assert bench.path(10, ".index").stat().st_size < 4096
    log.truncate_to(15)
    log.reconfigure(bench.config.__class__(index_interval_bytes=0, segment_index_bytes=4096))
    for _ in range(50):
        log.append(batch(timestamp=START_MS + log.log_end_offset))
    assert bench.path(10, ".index").stat().st_size == 4096
    assert log.read(60, 100).position == 50 * len(batch())


def test_truncation_moves_the_recovery_point_and_log_start_back(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch)
    log.close()
    log = bench.open(log_start_offset=25, recovery_point=30)
    log.truncate_to(20)
    assert (log.log_start_offset, log.recovery_point) == (20, 20)


@pytest.mark.parametrize("offset", range(31))
def test_the_recovery_point_is_lowered_to_where_the_log_will_end(bench: Bench, batch: Batch, offset: int) -> None:
    """A checkpoint is written before the truncation, which removes the whole batch that holds the offset."""
    log = bench.open(segment_bytes=2 * len(batch(5)))
    for _ in range(6):
        log.append(batch(5))
    log.flush()
    log.lower_recovery_point(offset)
    checkpointed = log.recovery_point
    log.truncate_to(offset)
    assert checkpointed <= log.log_end_offset


def test_a_kill_after_truncation_and_new_appends(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = filled(bench, batch, index_interval_bytes=0)
    log.flush()
    log.truncate_to(13)
    for _ in range(3):
        log.append(batch(timestamp=START_MS + log.log_end_offset))
    bench.kill(log)
    log = bench.open(clean=False, recovery_point=30)
    assert offsets_in(log) == list(range(16))
    assert log.append(batch()).base_offset == 16
