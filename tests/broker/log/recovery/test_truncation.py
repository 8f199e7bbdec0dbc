"""Cutting a log at an offset, titles after Kafka's tests of truncation."""

from collections.abc import Callable
from shutil import rmtree
from typing import Any

import pytest

from warmlog.broker.log.errors import OffsetOutOfRangeError
from warmlog.broker.log.partition_log import PartitionLog

Batch = Callable[..., bytes]
Bench = Any
OffsetsIn = Callable[..., list[int]]

START_MS = 1_700_000_000_000


def filled(bench: Bench, batch: Batch, batches: int = 30, **changes: object) -> PartitionLog:
    log: PartitionLog = bench.open(**({"segment_bytes": 10 * len(batch())} | changes))
    for _ in range(batches):
        log.appends.append(batch(timestamp=START_MS + log.offsets.log_end_offset))
    return log


@pytest.mark.parametrize("offset", range(31))
def test_truncate_to(bench: Bench, batch: Batch, offsets_in: OffsetsIn, offset: int) -> None:
    log = filled(bench, batch)
    log.truncation.truncate_to(offset)
    assert (log.offsets.log_end_offset, log.offsets.high_watermark) == (offset, offset)
    assert log.size == offset * len(batch())
    assert offsets_in(log) == list(range(offset))
    log.appends.append(batch())
    assert offsets_in(log) == list(range(offset + 1))
    log = bench.reopen(log)
    assert log.recovery is None
    assert offsets_in(log) == list(range(offset + 1))


def test_truncating_at_or_past_the_end_changes_nothing(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch)
    for offset in (30, 31, 1 << 40):
        log.truncation.truncate_to(offset)
        assert (log.offsets.log_end_offset, log.epochs.current) == (30, 0)


def test_truncate_inside_a_batch_takes_the_batch_away(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    for _ in range(5):
        log.appends.append(batch(10))
    log.truncation.truncate_to(25)
    assert log.offsets.log_end_offset == 20
    assert offsets_in(log) == list(range(20))


def test_truncate_before_the_first_segment_starts_over_there(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(log_start_offset=100)
    for _ in range(5):
        log.appends.append(batch())
    log.truncation.truncate_to(40)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset, log.old_segments.first_base_offset, log.size) == (
        40,
        40,
        40,
        0,
    )
    log.appends.append(batch())
    assert offsets_in(log) == [40]
    assert offsets_in(bench.reopen(log)) == [40]


def test_truncation_forgets_the_epochs_past_the_end_and_begins_none(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch, 5)
    log.epochs.assign(1, log.offsets.log_end_offset)
    for _ in range(5):
        log.appends.append(batch())
    log.truncation.truncate_to(3)
    assert (log.epochs.current, log.epochs.epoch_of(3), log.epochs.end_offset(1, log.offsets.log_end_offset)) == (
        1,
        0,
        (-1, -1),
    )
    assert (bench.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


@pytest.mark.parametrize("offset", [5, 6])
def test_truncation_at_or_past_the_end_forgets_an_epoch_without_records(
    bench: Bench, batch: Batch, offset: int
) -> None:
    """Otherwise a follower would ask for the end of that epoch again and again (KAFKA-10706)."""
    log = filled(bench, batch, 5)
    log.epochs.assign(3, log.offsets.log_end_offset)
    assert log.epochs.epoch_of(5) == 3
    log.truncation.truncate_to(offset)
    assert (log.offsets.log_end_offset, log.epochs.epoch_of(5)) == (5, 0)
    assert (bench.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_the_epochs_of_a_truncated_copy_are_synced(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch, 5)
    log.follow_replicas()
    log.epochs.assign(5, log.offsets.log_end_offset)
    log.appends.append(batch())
    bench.disk.calls.clear()
    log.truncation.truncate_to(5)
    assert [verb for verb, _ in bench.disk.calls][-4:-1] == ["sync", "rename", "sync_directory"]


def test_reload_largest_timestamp_after_truncation(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch)
    log.truncation.truncate_to(17)
    found = log.reads.largest_timestamp()
    assert found is not None
    assert (found.timestamp, found.offset) == (START_MS + 16, 16)
    assert log.reads.offset_for_time(START_MS + 17) is None


def test_the_index_of_the_segment_that_is_active_again_can_grow(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch)
    assert bench.path(10, ".index").stat().st_size < 4096
    log.truncation.truncate_to(15)
    log.reconfigure(bench.config.__class__(index_interval_bytes=0, segment_index_bytes=4096))
    for _ in range(50):
        log.appends.append(batch(timestamp=START_MS + log.offsets.log_end_offset))
    assert bench.path(10, ".index").stat().st_size == 4096
    assert log.reads.read(60, 100).position == 50 * len(batch())


def test_truncation_moves_the_recovery_point_and_log_start_back(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch)
    log.close()
    log = bench.open(log_start_offset=25, recovery_point=30)
    log.truncation.truncate_to(20)
    assert (log.offsets.log_start_offset, log.durability.recovery_point) == (20, 20)


@pytest.mark.parametrize("offset", range(31))
def test_the_recovery_point_is_lowered_to_where_the_log_will_end(bench: Bench, batch: Batch, offset: int) -> None:
    """A checkpoint is written before the truncation, which removes the whole batch that holds the offset."""
    log = bench.open(segment_bytes=2 * len(batch(5)))
    for _ in range(6):
        log.appends.append(batch(5))
    log.durability.flush()
    log.durability.lower_recovery_point(offset)
    checkpointed = log.durability.recovery_point
    log.truncation.truncate_to(offset)
    assert checkpointed <= log.offsets.log_end_offset


def test_a_kill_after_truncation_and_new_appends(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = filled(bench, batch, index_interval_bytes=0)
    log.durability.flush()
    log.durability.lower_recovery_point(13)
    checkpointed = log.durability.recovery_point
    log.truncation.truncate_to(13)
    for _ in range(3):
        log.appends.append(batch(timestamp=START_MS + log.offsets.log_end_offset))
    bench.kill(log)
    log = bench.open(clean=False, recovery_point=checkpointed)
    assert offsets_in(log) == list(range(16))
    assert log.appends.append(batch()).base_offset == 16


# -- starting anew -----------------------------------------------------------------------------------------------------


def started_anew(log: PartitionLog, offset: int) -> None:
    log.truncation.prepare_truncate_fully(offset)
    log.truncation.truncate_fully(offset)


@pytest.mark.parametrize("offset", [0, 5, 13, 20, 25, 30, 31, 45, 1 << 40])
def test_a_log_starts_anew_anywhere(bench: Bench, batch: Batch, offsets_in: OffsetsIn, offset: int) -> None:
    log = bench.open(log_start_offset=13, segment_bytes=10 * len(batch()))
    for _ in range(17):
        log.appends.append(batch(producer_id=7, producer_epoch=0, base_sequence=log.offsets.log_end_offset - 13))
    log.epochs.assign(4, log.offsets.log_end_offset)
    started_anew(log, offset)
    bounds = (
        log.offsets.log_start_offset,
        log.offsets.high_watermark,
        log.offsets.last_stable_offset,
        log.offsets.log_end_offset,
        log.durability.recovery_point,
    )
    assert bounds == (offset,) * 5
    assert (log.size, log.segment_count, log.epochs.epoch_of(offset), len(log.producers)) == (0, 1, -1, 0)
    names = sorted(path.name for path in bench.directory.iterdir() if "checkpoint" not in path.name)
    assert names == [f"{offset:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]
    log.appends.append(batch())
    assert offsets_in(log) == [offset]
    log = bench.reopen(log)
    assert log.recovery is None
    assert offsets_in(log) == [offset]


def test_a_log_that_starts_anew_keeps_its_leader_epoch_in_memory(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch, 3)
    log.epochs.assign(4, log.offsets.log_end_offset)
    started_anew(log, 50)
    assert (log.epochs.current, log.epochs.end_offset(0, log.offsets.log_end_offset)) == (4, (-1, -1))
    assert (bench.directory / "leader-epoch-checkpoint").read_text() == "0\n0\n"


def test_readers_find_nothing_below_the_start_that_is_announced(bench: Bench, batch: Batch) -> None:
    log = filled(bench, batch, 3)
    log.truncation.prepare_truncate_fully(50)
    assert log.offsets.log_start_offset == 50
    with pytest.raises(OffsetOutOfRangeError):
        log.reads.read(1, 100)


@pytest.mark.parametrize("offset", [0, 5, 12, 30, 45])
def test_a_start_anew_that_fails_is_finished_or_undone_by_the_next_startup(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, offset: int
) -> None:
    for verb in ("unlink", "sync_directory", "open", "truncate", "sync", "rename"):
        for nth in range(1, 20):
            log = filled(bench, batch)
            log.durability.flush()
            log.truncation.prepare_truncate_fully(offset)
            point, start = log.durability.recovery_point, log.offsets.log_start_offset
            bench.disk.fail(verb, nth=nth)
            failed = False
            try:
                log.truncation.truncate_fully(offset)
            except OSError:
                failed = True
                assert log.failed or "leader-epoch" in str(bench.disk.calls[-2:])
            bench.disk.calls.clear()
            bench.disk._faults.clear()
            bench.kill(log)
            log = bench.open(clean=False, recovery_point=point, log_start_offset=start)
            found = offsets_in(log)
            if failed and log.offsets.log_end_offset != offset:
                assert found == list(range(log.offsets.log_start_offset, log.offsets.log_end_offset))
            else:
                assert log.offsets.log_end_offset == offset
                assert found == list(range(log.offsets.log_start_offset, offset))
            bench.kill(log)
            rmtree(bench.directory)
            if not failed:
                break
