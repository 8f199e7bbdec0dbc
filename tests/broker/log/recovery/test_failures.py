"""What a failing disk does to a log: nothing half done, nothing lost that was committed."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from warmlog.broker.log.errors import LogFailedError
from warmlog.broker.log.partition_log import PartitionLog

Batch = Callable[..., bytes]
Bench = Any
OffsetsIn = Callable[..., list[int]]

START_MS = 1_700_000_000_000
OUT_OF_SPACE = [errno.ENOSPC, errno.EDQUOT]


def fill(log: PartitionLog, batch: Batch, batches: int) -> None:
    for _ in range(batches):
        log.appends.append(batch())


@pytest.mark.parametrize("code", OUT_OF_SPACE)
def test_a_full_disk_refuses_an_append_and_the_log_goes_on_when_there_is_room(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, code: int
) -> None:
    log = bench.open()
    fill(log, batch, 3)
    bench.disk.fail("pwritev", code=code)
    with pytest.raises(OSError, match=r".") as caught:
        log.appends.append(batch(5))
    assert caught.value.errno == code
    assert not log.failed
    assert offsets_in(log) == [0, 1, 2]
    assert log.appends.append(batch(2)).base_offset == 3
    assert offsets_in(log) == [0, 1, 2, 3, 4]


def test_a_short_write_is_cut_back_to_the_last_whole_batch(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    fill(log, batch, 3)
    bench.disk.write_short(100)
    with pytest.raises(OSError, match="no space"):
        log.appends.append(batch(5))
    assert bench.path(0, ".log").stat().st_size == log.size == 3 * len(batch())
    fill(log, batch, 1)
    assert offsets_in(log) == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [0, 1, 61, 170, 171, 400])
def test_a_short_write_of_a_group_stores_nothing_of_it(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, size: int
) -> None:
    log = bench.open()
    fill(log, batch, 2)
    group = [log.appends.plan(batch()) for _ in range(3)]
    bench.disk.write_short(size)
    with pytest.raises(OSError, match="no space"):
        log.appends.write(group)
    log.appends.abandon()
    assert bench.path(0, ".log").stat().st_size == log.size
    fill(log, batch, 1)
    assert offsets_in(log) == [0, 1, 2]


def test_any_other_write_error_puts_the_log_out_of_service_but_not_its_readers(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = bench.open()
    fill(log, batch, 3)
    bench.disk.fail("pwritev", code=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        log.appends.append(batch())
    assert log.failed
    with pytest.raises(LogFailedError, match="Input/output"):
        log.appends.append(batch())
    assert offsets_in(log) == [0, 1, 2]


def test_a_log_that_cannot_be_cut_back_is_out_of_service(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    bench.disk.write_short(50)
    bench.disk.fail("truncate")
    with pytest.raises(OSError, match="no space"):
        log.appends.append(batch())
    assert log.failed


def test_a_failed_log_recovers_when_it_is_opened_anew(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    fill(log, batch, 3)
    bench.disk.write_short(50)
    bench.disk.fail("truncate")
    with pytest.raises(OSError, match="no space"):
        log.appends.append(batch())
    log.close()
    assert bench.path(0, ".log").stat().st_size == 3 * len(batch()) + 50
    log = bench.open(clean=False)
    assert log.recovery is not None
    assert log.recovery.truncated_bytes == 50
    fill(log, batch, 1)
    assert offsets_in(log) == [0, 1, 2, 3]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("code", OUT_OF_SPACE)
def test_an_index_entry_that_cannot_be_written_undoes_the_append(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, nth: int, code: int
) -> None:
    log = bench.open(index_interval_bytes=0)
    fill(log, batch, 3)
    group = [log.appends.plan(batch(timestamp=START_MS + 5 + i)) for i in range(2)]
    log.appends.write(group)
    bench.disk.fail("pwritev", nth=nth, code=code)
    with pytest.raises(OSError, match=r"."):
        log.appends.commit(group)
    log.appends.abandon()
    assert not log.failed
    assert bench.path(0, ".log").stat().st_size == log.size == 3 * len(batch())
    before = log.reads.describe().segments[0]
    assert (before.offset_index_entries, before.time_index_entries) == (2, 1)
    fill(log, batch, 3)
    assert offsets_in(log) == [0, 1, 2, 3, 4, 5]
    log = bench.reopen(log)
    assert log.recovery is None
    assert log.reads.offset_for_time(START_MS + 5) is None


def test_a_roll_that_cannot_make_its_files_is_no_roll(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    fill(log, batch, 2)
    for nth in (1, 2, 3):
        bench.disk.fail("open", nth=nth, code=errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            log.appends.append(batch())
        assert not bench.path(2, ".log").exists()
        assert not log.failed
    fill(log, batch, 1)
    assert log.segment_count == 2
    assert offsets_in(log) == [0, 1, 2]


def test_a_roll_that_cannot_tell_the_last_time_is_no_roll(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    fill(log, batch, 2)
    bench.disk.fail("pwritev", code=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.appends.append(batch())
    assert log.segment_count == 1
    assert not bench.path(2, ".log").exists()
    fill(log, batch, 1)
    assert offsets_in(log) == [0, 1, 2]
    assert bench.path(0, ".timeindex").stat().st_size == 12


def test_a_failed_sync_puts_the_log_out_of_service_and_is_not_tried_again(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    bench.disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        log.durability.flush()
    assert log.failed
    assert log.durability.recovery_point == 0
    bench.disk.calls.clear()
    log.close()
    assert not [call for call in bench.disk.calls if call[0] == "sync"]


def test_a_sync_that_fails_after_a_roll_puts_the_log_out_of_service(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    fill(log, batch, 2)
    bench.disk.fail("sync", nth=2)  # the first one is that of the offset up to which nothing is missing
    with pytest.raises(OSError, match="Input/output"):
        log.appends.append(batch())
    assert log.failed


@pytest.mark.parametrize("verb", ["sync", "rename", "sync_directory"])
def test_a_first_roll_that_cannot_be_announced_is_no_roll(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, verb: str
) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    fill(log, batch, 2)
    bench.disk.fail(verb)
    with pytest.raises(OSError, match="Input/output"):
        log.appends.append(batch())
    assert not log.failed
    assert log.segment_count == 1
    fill(log, batch, 1)
    assert log.segment_count == 2
    assert offsets_in(log) == [0, 1, 2]


def test_a_close_that_fails_still_lets_go_of_the_files(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    bench.disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        log.close()
    assert log.failed
    assert bench.files.statistics().open == 0


def test_every_single_write_may_fail_and_what_was_acknowledged_is_there(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = bench.open(index_interval_bytes=0, segment_bytes=5 * len(batch()))
    acknowledged = 0
    for nth in range(1, 40):
        bench.disk.fail("pwritev", nth=1 + nth % 4, code=errno.ENOSPC)
        for _ in range(3):
            try:
                planned = log.appends.append(batch())
            except OSError:
                continue
            assert planned.base_offset == acknowledged
            acknowledged += 1
        assert not log.failed
    assert offsets_in(log) == list(range(acknowledged))
    log.close(clean=False)
    log = bench.open(clean=False)
    assert offsets_in(log) == list(range(acknowledged))
