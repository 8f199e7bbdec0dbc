"""A failed log that is opened again in place, on real files and a disk that fails on demand."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.log.conftest import Bench, FaultyDisk
from tests.broker.log.producers.transactions import committed, marker, opened, send
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.directory.checkpoint import CONTIGUOUS_OFFSET
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.idle import ProducerBudget
from warmlog.broker.log.recovery.reopen import Reopened
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.markers import Outcome

Batch = Callable[..., bytes]
OffsetsIn = Callable[..., list[int]]

START_MS = 1_700_000_000_000


def fill(log: PartitionLog, batch: Batch, batches: int, **how: int) -> None:
    for _ in range(batches):
        log.appends.append(batch(**how))


def reopen(log: PartitionLog) -> Reopened:
    reopened = log.begin_reopening().make()
    log.finish_reopening(reopened)
    if reopened.reason is not None:
        assign_epoch(log, records_lost=True)
    reopened.close_replaced()
    return reopened


def fail_sync(bench: Bench, log: PartitionLog) -> None:
    bench.disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        log.durability.flush()
    assert log.failed


def plain(size: int = 1) -> bytes:
    return build_batch([(START_MS, None, b"x" * size, ())])


def roll(log: PartitionLog) -> None:
    prepared = log.rolls.prepare_early()
    plan = log.durability.begin_flush()
    log.rolls.finish(log.rolls.commit_early(prepared))
    plan.sync()
    log.durability.finish_flush(plan)


def inode(path: Path) -> int:
    return path.stat().st_ino


def names(bench: Bench) -> list[str]:
    return sorted(name for name in os.listdir(bench.directory) if not name.endswith(".snapshot"))


def test_what_lies_past_the_recovery_point_is_copied_and_the_log_goes_on(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = bench.open()
    fill(log, batch, 3)
    log.durability.flush()
    fill(log, batch, 4)
    before = names(bench)
    stored, failed_inode = bench.path(0, ".log").read_bytes(), inode(bench.path(0, ".log"))
    fail_sync(bench, log)
    reopened = reopen(log)
    assert (reopened.copied_bytes, reopened.truncated_bytes, reopened.reason) == (len(stored), 0, None)
    assert (log.failed, log.failure) == (False, None)
    assert (
        log.durability.recovery_point,
        log.offsets.high_watermark,
        log.offsets.log_end_offset,
        log.durability.unflushed_bytes,
    ) == (7, 7, 7, 0)
    assert bench.path(0, ".log").read_bytes() == stored
    assert inode(bench.path(0, ".log")) != failed_inode
    assert names(bench) == before
    assert log.epochs.current == 0
    fill(log, batch, 2)
    assert offsets_in(log) == list(range(9))
    log = bench.reopen(log)
    assert log.recovery is None
    assert offsets_in(log) == list(range(9))


def test_no_file_that_failed_is_synced_again_and_all_new_ones_and_the_names_are(bench: Bench, batch: Batch) -> None:
    log = bench.open(index_interval_bytes=0)
    fill(log, batch, 5)
    fail_sync(bench, log)
    old = {inode(path) for path in bench.directory.iterdir()}
    synced: list[int] = []
    bench.disk.sync = lambda fd: synced.append(os.fstat(fd).st_ino)  # type: ignore[method-assign]
    bench.disk.calls.clear()
    reopen(log)
    assert not old & set(synced)
    assert {inode(bench.path(0, suffix)) for suffix in (".log", ".index", ".timeindex")} == set(synced)
    verbs = [call[0] for call in bench.disk.calls if call[0] in {"rename", "sync_directory"}]
    assert verbs == [*["rename"] * (len(verbs) - 1), "sync_directory"]


def test_the_indexes_are_as_appending_made_them(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(index_interval_bytes=200)
    for number in range(12):
        log.appends.append(batch(timestamp=START_MS + 10 * number))
        if number == 5:
            log.durability.flush()
    before = [bench.path(0, suffix).read_bytes().rstrip(b"\0") for suffix in (".index", ".timeindex")]
    fail_sync(bench, log)
    reopen(log)
    assert [bench.path(0, suffix).read_bytes().rstrip(b"\0") for suffix in (".index", ".timeindex")] == before
    found = log.reads.offset_for_time(START_MS + 75)
    assert found is not None
    assert found.offset == 8
    fill(log, batch, 5, timestamp=START_MS + 500)
    assert offsets_in(log) == list(range(17))
    log = bench.reopen(log)
    assert log.recovery is None


def test_a_log_whose_file_could_not_be_cut_back_after_a_write_is_cut_by_the_copy(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = bench.open()
    fill(log, batch, 3)
    bench.disk.write_short(50)
    bench.disk.fail("truncate")
    with pytest.raises(OSError, match="no space"):
        log.appends.append(batch())
    assert log.failed
    reopen(log)
    assert bench.path(0, ".log").stat().st_size == 3 * len(batch())
    fill(log, batch, 1)
    assert offsets_in(log) == [0, 1, 2, 3]


def test_a_log_that_would_end_before_its_start_begins_again_at_its_start(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = bench.open(segment_bytes=3 * len(batch()))
    fill(log, batch, 2)
    log.durability.flush()
    fill(log, batch, 5)
    log.truncation.advance_start(7)
    fail_sync(bench, log)
    with bench.path(6, ".log").open("r+b") as file:
        file.seek(70)
        file.write(bytes(50))
    reopened = reopen(log)
    assert reopened.reason is not None
    assert (reopened.truncated_bytes, reopened.copied_bytes) == (7 * len(batch()), 0)
    assert (
        log.offsets.log_start_offset,
        log.offsets.high_watermark,
        log.offsets.log_end_offset,
        log.durability.recovery_point,
    ) == (7, 7, 7, 7)
    files = [f"{7:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]
    assert names(bench) == [*files, CONTIGUOUS_OFFSET]
    assert log.epochs.current == 1
    fill(log, batch, 2)
    assert offsets_in(log) == [7, 8]
    log = bench.reopen(log)
    assert log.recovery is None
    assert offsets_in(log) == [7, 8]


def test_a_page_that_is_lost_ends_the_log_before_it_and_begins_a_leader_epoch(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = bench.open()
    fill(log, batch, 2)
    log.durability.flush()
    fill(log, batch, 5)
    fail_sync(bench, log)
    with bench.path(0, ".log").open("r+b") as file:  # what the disk has of it, once the page is given up
        file.seek(4 * len(batch()) + 70)
        file.write(bytes(50))
    reopened = reopen(log)
    assert reopened.reason is not None
    assert reopened.truncated_bytes == 3 * len(batch())
    assert (
        log.offsets.log_end_offset,
        log.offsets.high_watermark,
        log.durability.recovery_point,
        log.epochs.current,
    ) == (4, 4, 4, 1)
    assert log.epochs.end_offset(0, log.offsets.log_end_offset) == (0, 4)
    fill(log, batch, 1)
    assert offsets_in(log) == [0, 1, 2, 3, 4]
    log = bench.reopen(log)
    assert (log.recovery, log.epochs.current) == (None, 1)


def test_a_file_that_lost_its_end_ends_the_log_there(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    fill(log, batch, 5)
    fail_sync(bench, log)
    os.truncate(bench.path(0, ".log"), 3 * len(batch()))
    reopened = reopen(log)
    assert reopened.reason == f"the file has {3 * len(batch())} bytes of {5 * len(batch())}"
    assert offsets_in(log) == [0, 1, 2]
    assert log.epochs.current == 1


def test_what_lies_below_the_recovery_point_is_not_held_against_anything(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    """It was synced; a bit that flipped there is for `log verify` to find, and no reason to cut the log."""
    log = bench.open(index_interval_bytes=0)
    fill(log, batch, 4)
    log.durability.flush()
    fill(log, batch, 4)
    fail_sync(bench, log)
    with bench.path(0, ".log").open("r+b") as file:
        file.seek(len(batch()) + 100)
        file.write(b"?")
    reopened = reopen(log)
    assert (reopened.reason, log.offsets.log_end_offset) == (None, 8)


def rolled(bench: Bench, batch: Batch) -> PartitionLog:
    """Segments of two batches each, at 0, 2, 4, 6; nothing of them is synced."""
    log = bench.open(segment_bytes=2 * len(batch()))
    for _ in range(8):
        planned = log.appends.plan(batch())
        if planned.roll:
            log.rolls.commit(log.rolls.prepare(planned))
        log.appends.write([planned])
        log.appends.commit([planned])
    return log


def test_all_segments_that_are_not_synced_are_copied_and_the_others_are_not(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn
) -> None:
    log = rolled(bench, batch)
    first, second = log._state.segments.snapshot[:2]
    log.rolls.finish(first)
    log.rolls.finish(second)
    kept = [inode(bench.path(base, ".log")) for base in (0, 2)]
    log.fail("a sync of the third one failed")
    reopened = reopen(log)
    assert reopened.copied_bytes == 4 * len(batch())
    assert [inode(bench.path(base, ".log")) for base in (0, 2)] == kept
    assert offsets_in(log) == list(range(8))
    assert all(segment.synced for segment in log._state.segments.snapshot)
    fill(log, batch, 3)
    assert offsets_in(log) == list(range(11))
    log = bench.reopen(log)
    assert log.recovery is None


def test_segments_past_one_that_was_cut_go(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = rolled(bench, batch)
    log.fail("a sync failed")
    with bench.path(2, ".log").open("r+b") as file:
        file.seek(len(batch()) + 70)
        file.write(bytes(50))
    reopened = reopen(log)
    assert reopened.truncated_bytes == 5 * len(batch())
    assert (log.offsets.log_end_offset, log.active_base_offset, log.epochs.current) == (3, 2, 1)
    assert not bench.path(4, ".log").exists()
    assert not bench.path(6, ".log").exists()
    fill(log, batch, 3)
    assert offsets_in(log) == list(range(6))
    bench.kill(log)
    log = bench.open(clean=False, recovery_point=3)
    assert offsets_in(log) == list(range(6))


def test_readers_go_on_while_and_after_files_take_each_others_place(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 5)
    early = log.reads.read(2, 10_000).slice
    fail_sync(bench, log)
    reopening = log.begin_reopening()
    reopened = reopening.make()
    between = log.reads.read(2, 10_000).slice
    log.finish_reopening(reopened)
    reopened.close_replaced()
    late = log.reads.read(2, 10_000).slice
    assert early is not None
    assert between is not None
    assert late is not None
    assert early.read_all() == between.read_all() == late.read_all()


def test_idempotent_producers_are_known_as_before(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    sent = batch(2, producer_id=7, producer_epoch=0, base_sequence=0)
    log.appends.append(sent)
    fail_sync(bench, log)
    reopen(log)
    assert log.appends.plan(sent).is_duplicate
    assert not log.appends.plan(batch(1, producer_id=7, producer_epoch=0, base_sequence=2)).is_duplicate


def test_producers_whose_batches_were_cut_begin_where_the_log_ends(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append(batch(2, producer_id=7, producer_epoch=0, base_sequence=0))
    lost = batch(2, producer_id=7, producer_epoch=0, base_sequence=2)
    log.appends.append(lost)
    fail_sync(bench, log)
    os.truncate(bench.path(0, ".log"), log.size - 1)
    reopen(log)
    assert log.appends.append(lost).base_offset == 2


def test_batches_before_a_snapshot_are_known_although_the_end_was_cut(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    sent = [batch(1, producer_id=7, producer_epoch=0, base_sequence=sequence) for sequence in range(5)]
    for each in sent[:3]:
        log.appends.append(each)
    log.rolls.roll()
    for each in sent[3:]:
        log.appends.append(each)
    fail_sync(bench, log)
    os.truncate(bench.path(3, ".log"), bench.path(3, ".log").stat().st_size - 1)
    reopen(log)
    assert [log.appends.append(each).is_duplicate for each in sent] == [True] * 4 + [False]


@pytest.mark.parametrize("segment_bytes", [700, 1 << 20])
@pytest.mark.parametrize("verb", ["open", "truncate", "sync", "unlink", "sync_directory"])
def test_whatever_step_of_a_truncation_fails_the_log_comes_back_as_far_as_it_is_there(
    bench: Bench, batch: Batch, verb: str, segment_bytes: int
) -> None:
    for nth in range(1, 40):
        log = bench.open(segment_bytes=segment_bytes)
        log.follow_replicas()
        for sequence in range(10):
            log.appends.append(batch(1, producer_id=7, producer_epoch=0, base_sequence=sequence))
        log.durability.lower_recovery_point(4)
        bench.disk.fail(verb, nth=nth)
        with suppress(OSError):
            log.truncation.truncate_to(4)
        bench.disk.forget_faults()
        if log.failed:
            reopen(log)
        end = log.offsets.log_end_offset
        assert (log.producers.get(7).last_offset, log.producers.get(7).last_sequence) == (end - 1, end - 1)
        assert log.appends.append(batch(1, producer_id=7, producer_epoch=0, base_sequence=end)).base_offset == end
        log.close(clean=False)
        shutil.rmtree(bench.directory)


@pytest.mark.parametrize("offset", [5, 100])
@pytest.mark.parametrize("verb", ["open", "sync", "unlink", "sync_directory"])
def test_whatever_step_of_a_start_anew_fails_the_log_comes_back(
    bench: Bench, batch: Batch, verb: str, offset: int
) -> None:
    for nth in range(1, 20):
        log = bench.open(segment_bytes=700)
        log.follow_replicas()
        fill(log, batch, 10)
        log.truncation.prepare_truncate_fully(offset)
        bench.disk.fail(verb, nth=nth)
        with suppress(OSError):
            log.truncation.truncate_fully(offset)
        bench.disk.forget_faults()
        if log.failed:
            reopen(log)
        assert log.offsets.log_start_offset <= log.offsets.log_end_offset
        assert log.appends.append(batch()).base_offset == log.offsets.log_end_offset - 1
        log.close(clean=False)
        shutil.rmtree(bench.directory)


def test_a_log_with_a_transaction_behind_a_clean_stop_comes_back(tmp_path: Path) -> None:
    """The snapshot of the stop lies inside of the active segment, whose copy is not in use while it is read."""
    directory, config = tmp_path / "words-0", LogConfig()
    log = opened(directory, config)
    log.appends.append(plain())
    log.close()
    log = opened(directory, config, recovery_point=log.durability.recovery_point)
    for _ in range(10):
        log.appends.append(plain(3000))
    log.durability.flush()
    send(log, 7, 0)
    log.fail(OSError(errno.EIO, "Input/output error"))
    reopen(log)
    log.appends.append_marker(marker(7, Outcome.ABORT))
    assert committed(log) == list(range(11))


def test_transactions_are_followed_through_segments_that_are_synced(tmp_path: Path) -> None:
    """The first segment is not known to be synced, the second one is, and the flush behind the third one has failed."""
    directory = tmp_path / "words-0"
    files = OpenFiles(disk=FaultyDisk())
    log = opened(directory, LogConfig(), files=files)
    log.appends.append(plain())
    send(log, 1, 0, 2)
    roll(log)
    log.appends.append(plain())
    log.close(clean=False)
    log = opened(directory, LogConfig(), clean=False, recovery_point=3, files=files)
    log.appends.append_marker(marker(1, Outcome.COMMIT))
    send(log, 2, 0, 2)
    prepared = log.rolls.prepare_early()
    log.rolls.finish(log.rolls.commit_early(prepared))
    log.appends.append_marker(marker(2, Outcome.ABORT))
    send(log, 1, 2)
    log.appends.append_marker(marker(1, Outcome.ABORT))
    log.appends.append(plain())
    before = committed(log)
    log.fail(OSError(errno.EIO, "Input/output error"))
    reopen(log)
    assert committed(log) == before == [0, 1, 2, 3, 10]


def test_producers_of_attempts_that_fail_are_not_counted(bench: Bench, batch: Batch) -> None:
    budget = ProducerBudget()
    log = bench.open(budget=budget)
    for producer_id in range(5):
        log.appends.append(batch(1, producer_id=producer_id, producer_epoch=0, base_sequence=0))
    fail_sync(bench, log)
    os.truncate(bench.path(0, ".log"), log.size - 1)
    for _ in range(3):
        bench.disk.fail("sync_directory", nth=2)
        with pytest.raises(OSError, match="Input/output"):
            reopen(log)
        assert budget.count == 5
    bench.disk.forget_faults()
    reopen(log)
    assert budget.count == len(log.producers) == 4


def test_an_attempt_that_is_called_off_changes_nothing(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    fill(log, batch, 3)
    fail_sync(bench, log)
    before = names(bench)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log.begin_reopening().make(stop)
    assert (log.failed, names(bench)) == (True, before)
    reopen(log)
    assert offsets_in(log) == [0, 1, 2]


def test_a_disk_without_room_for_the_copy_is_not_filled(
    bench: Bench, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.open()
    fill(log, batch, 3)
    fail_sync(bench, log)
    space = bench.disk.space(str(bench.directory))
    monkeypatch.setattr(bench.disk, "space", lambda _: space._replace(usable_bytes=log.size - 1))
    bench.disk.calls.clear()
    with pytest.raises(OSError, match="No space left on device: 510 bytes needed for copies"):
        log.begin_reopening().make()
    assert not bench.disk.calls


VERBS = ("open", "pwritev", "truncate", "sync", "rename", "sync_directory")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("lost", [False, True])
def test_every_single_step_may_fail_and_the_next_attempt_or_a_start_finds_everything(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, verb: str, lost: bool
) -> None:
    log = rolled(bench, batch)
    log.fail("a sync failed")
    kept = list(range(8))
    if lost:
        os.truncate(bench.path(4, ".log"), 2 * len(batch()) - 1)
        kept = list(range(5))
    for nth in range(1, 100):
        bench.disk.fail(verb, nth=nth)
        try:
            reopened = log.begin_reopening().make()
        except OSError:
            assert log.failed
            assert not [name for name in names(bench) if name.endswith(".cleaned")]
            if nth % 3 == 0:  # the process ends there
                bench.kill(log)
                log = bench.open(clean=False)
                assert offsets_in(log) == kept
                log.fail("again")
            continue
        break
    else:
        pytest.fail("it never succeeded")
    log.finish_reopening(reopened)
    bench.disk._faults.clear()
    fill(log, batch, 1)
    assert offsets_in(log) == [*kept, len(kept)]


@given(data=st.data())
def test_whatever_the_disk_lost_past_the_recovery_point_a_whole_prefix_of_batches_stays(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    bench = Bench(tmp_path_factory.mktemp("log"))
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=12))
    flushed = data.draw(st.integers(0, len(counts)))
    log = bench.open(segment_bytes=data.draw(st.sampled_from([600, 1 << 20])), index_interval_bytes=100)
    ends = [0]
    for number, count in enumerate(counts):
        log.appends.append(_batch(count))
        ends.append(ends[-1] + count)
        if number + 1 == flushed:
            log.durability.flush()
    point = log.durability.recovery_point
    log.fail("a sync failed")
    active = bench.path(log.active_base_offset, ".log")
    damage = data.draw(st.integers(0, active.stat().st_size))
    os.truncate(active, damage)
    reopened = reopen(log)
    assert log.offsets.log_end_offset in ends
    assert (log.offsets.log_end_offset == ends[-1]) == (reopened.reason is None)
    assert log.offsets.log_end_offset >= min(point, log.active_base_offset)
    assert log.appends.append(_batch(1)).base_offset == log.offsets.log_end_offset - 1
    bench.close()


def _batch(count: int) -> bytes:
    from warmlog.protocol.records.builder import build_batch

    return build_batch([(START_MS + i, None, b"v" * 100, ()) for i in range(count)])


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_a_log_that_failed_by_a_write_comes_back(bench: Bench, batch: Batch, offsets_in: OffsetsIn, code: int) -> None:
    log = bench.open()
    fill(log, batch, 3)
    bench.disk.fail("pwritev", code=code)
    with pytest.raises(OSError, match=r"."):
        log.appends.append(batch())
    reopen(log)
    fill(log, batch, 1)
    assert offsets_in(log) == [0, 1, 2, 3]
