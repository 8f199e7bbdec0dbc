"""Compaction of damaged logs, failing disks, and a crash at each step of a swap."""

from concurrent.futures import ThreadPoolExecutor
from shutil import rmtree

import pytest

from tests.broker.log.compaction.compacting import (
    START_MS,
    Bench,
    Contents,
    batch,
    compact,
    contents,
    fill,
    keyed,
    limits,
    swap_steps,
)
from warmlog.broker.log.compaction.plan import SegmentsChangedError
from warmlog.broker.log.compaction.run import Compaction
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.errors import CorruptBatchError, ProtocolError
from warmlog.protocol.records.reader import records_in


def damage(bench: Bench, base_offset: int, position: int) -> None:
    path = bench.path(base_offset, ".log")
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("nth", [0, 4])
@pytest.mark.parametrize("position", [8, 11, 16, 22, 24, 60, 68])
def test_a_damaged_batch_ends_the_run_and_nothing_is_replaced(bench: Bench, nth: int, position: int) -> None:
    log = bench.open(segment_bytes=1000)
    fill(log, keyed(50, 5))
    log.durability.flush()
    damage(bench, 0, nth * len(batch(keyed(1, 1))) + position)
    before = bench.path(0, ".log").read_bytes()
    run = Compaction(log.cleaning.job(log.cleaning.find(None), log.producers.capture(), limits()), lambda _: None)
    with pytest.raises(ProtocolError):
        list(run.run())
    assert bench.path(0, ".log").read_bytes() == before
    assert not list(bench.directory.glob("*.cleaned"))


def test_a_log_that_was_cut_is_told(bench: Bench) -> None:
    log = bench.open(segment_bytes=1000)
    fill(log, keyed(50, 5))
    log.durability.flush()
    job = log.cleaning.job(log.cleaning.find(None), log.producers.capture(), limits())
    bench.path(0, ".log").write_bytes(bench.path(0, ".log").read_bytes()[:-5])
    with pytest.raises(CorruptBatchError):
        list(Compaction(job, lambda _: None).run())


def test_a_disk_that_fails_leaves_nothing_half_made(bench: Bench) -> None:
    log = bench.open(segment_bytes=1000)
    fill(log, keyed(50, 5))
    log.durability.flush()
    job = log.cleaning.job(log.cleaning.find(None), log.producers.capture(), limits())
    for verb in ("open", "pwritev", "sync"):
        for nth in range(1, 6):
            bench.disk.fail(verb, nth=nth)
            run = Compaction(job, lambda _: None, bench.disk)
            try:
                next(run.run())
            except OSError:
                assert not list(bench.directory.glob("*.cleaned"))
            bench.disk._faults.clear()
            for path in bench.directory.glob("*.cleaned"):
                path.unlink()
    assert len(contents(log)) == 50


def test_a_run_waits_for_the_end_of_another_over_the_same_directory(bench: Bench) -> None:
    """A child of a broker that was killed may still be at it when the next one's begins."""
    log = bench.open(segment_bytes=1000)
    fill(log, keyed(50, 5))
    log.durability.flush()
    job = log.cleaning.job(log.cleaning.find(None), log.producers.capture(), limits())
    orphan = Compaction(job, lambda _: None).run()
    next(orphan)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(lambda: next(Compaction(job, lambda _: None).run()))
        with pytest.raises(TimeoutError):
            second.result(timeout=0.05)
        orphan.close()
        assert second.result().sources == (0,)


def test_segments_that_were_removed_meanwhile_are_not_replaced(bench: Bench) -> None:
    log = bench.open(segment_bytes=1000)
    fill(log, keyed(50, 5))
    log.durability.flush()
    run = Compaction(log.cleaning.job(log.cleaning.find(None), log.producers.capture(), limits()), lambda _: None)
    group = next(run.run())
    log.truncation.advance_start(40)
    log.old_segments.rename(log.old_segments.take_out())
    with pytest.raises(SegmentsChangedError):
        log.cleaning.plan_swap(group)


# -- the swap --


def test_readers_find_what_they_mean_at_every_step_of_a_swap(bench: Bench) -> None:
    bench.files.limit = 2  # what is not in use is closed, and opened again by name
    log = bench.open(segment_bytes=700, index_interval_bytes=100)
    fill(log, keyed(60, 4))
    log.durability.flush()
    old = [(offset, log.reads.read(offset, 90, min_one_batch=True)) for offset in (0, 17, 31)]
    expected = contents(log)
    run = Compaction(log.cleaning.job(log.cleaning.find(None), log.producers.capture(), limits()), lambda _: None)
    last = {key: offset for offset, key, _ in expected if offset < log.cleaning.find(None).first_uncleanable_offset}
    for group in run.run():
        swap = log.cleaning.plan_swap(group)
        for step in swap_steps(log, swap):
            found = contents(log)
            if step != "prepared":
                gone = [
                    o for o, k, _ in expected if group.sources[0] <= o < swap.old[-1].end_of_offsets and o != last[k]
                ]
                expected = [record for record in expected if record[0] not in gone]
            assert found == expected
            at = log.reads.offset_for_time(START_MS)
            assert at is not None
            assert at.offset == expected[0][0]
            log.reads.describe()
    for offset, read in old:
        assert read.slice is not None
        assert next(records_in(read.slice.read_all(), from_offset=offset)).offset == offset


def test_a_crash_at_any_step_of_a_swap_leaves_a_whole_log(bench: Bench) -> None:
    """Every rename, unlink and sync of the directory may be the last thing that happens."""
    before: Contents = [(at, *pair) for at, pair in enumerate(keyed(60, 4))]  # type: ignore[misc]
    for verb in ("rename", "unlink", "sync_directory"):
        nth = 1
        while True:
            rmtree(bench.directory, ignore_errors=True)
            log = bench.open(segment_bytes=1200, clean=False)
            fill(log, keyed(60, 4))
            log.durability.flush()
            end = log.cleaning.find(None).first_uncleanable_offset
            last = {key: offset for offset, key, _ in before if offset < end}
            bench.disk.fail(verb, nth=nth)
            crashed = _compact_until_crash(log)
            bench.kill(log)
            bench.disk._faults.clear()
            log = bench.open(clean=False, recovery_point=60)
            found = contents(log)
            assert {(o, k, v) for o, k, v in before if o >= end or last[k] == o} <= set(found) <= set(before)
            assert [offset for offset, _, _ in found] == sorted(offset for offset, _, _ in found)
            assert not [path for path in bench.directory.iterdir() if path.suffix in {".swap", ".cleaned", ".deleted"}]
            compact(log)
            assert [o for o, _, _ in contents(log) if o < end] == sorted(last.values())
            bench.kill(log)
            nth += 1
            if not crashed:
                break
        assert nth > 4


def _compact_until_crash(log: PartitionLog) -> bool:
    try:
        compact(log)
    except OSError:
        return True
    return False


def test_a_swap_that_could_not_be_prepared_leaves_nothing_that_counts(bench: Bench) -> None:
    log = bench.open(segment_bytes=1200)
    fill(log, keyed(60, 4))
    for nth in range(1, 5):
        bench.disk.fail("rename" if nth < 4 else "sync_directory", nth=nth if nth < 4 else 1)
        assert _compact_until_crash(log)
        assert not [path for path in bench.directory.iterdir() if path.suffix in {".swap", ".cleaned"}]
        assert len(contents(log)) == 60


def test_a_swap_that_could_not_be_finished_is_read_and_finished_by_the_next_start(bench: Bench) -> None:
    log = bench.open(segment_bytes=1200)
    fill(log, keyed(60, 4))
    log.durability.flush()
    group = next(
        Compaction(log.cleaning.job(log.cleaning.find(None), log.producers.capture(), limits()), lambda _: None).run()
    )
    steps = swap_steps(log, log.cleaning.plan_swap(group))
    assert [next(steps), next(steps)] == ["prepared", "committed"]
    found = contents(log)
    bench.disk.fail("rename", nth=6)
    with pytest.raises(OSError, match="Input/output"):
        next(steps)
    assert contents(log) == found
    log.close()
    log = bench.open(recovery_point=log.durability.recovery_point)
    assert contents(log) == found
    assert not [path for path in bench.directory.iterdir() if path.suffix in {".swap", ".deleted"}]
