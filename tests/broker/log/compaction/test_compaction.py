"""Compaction of a log on real files: what stays, several passes, groups, transactions, and a crash at each step."""

import random
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.log.compaction.plan import SegmentsChangedError
from broker.log.compaction.run import CleanerLimits, Compaction, CompactionSummary
from broker.log.config import LogConfig
from broker.log.index.transaction import AbortedTransaction, encode_aborted, read_aborted
from broker.log.io.files import OpenFiles
from broker.log.partition_log import PartitionLog
from broker.log.recovery.swap import Swap
from protocol.errors import CorruptBatchError, ProtocolError
from protocol.records.batch import headers
from protocol.records.builder import build_batch
from protocol.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, Codec
from protocol.records.offset_map import OffsetMap
from protocol.records.reader import records_in

Bench = Any
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
Pair = tuple[str | None, str | None]
Contents = list[tuple[int, str, str | None]]


def batch(pairs: list[Pair], *, timestamp: int = START_MS, **header: Any) -> bytes:
    rows = [
        (timestamp + at, None if key is None else key.encode(), None if value is None else value.encode(), ())
        for at, (key, value) in enumerate(pairs)
    ]
    return build_batch(rows, **header)


def limits(*, entries: int = 1000, io_buffer_bytes: int = 0) -> CleanerLimits:
    """With room for so many keys."""
    return CleanerLimits(
        dedupe_buffer_bytes=entries * 10 * OffsetMap.ENTRY_SIZE,
        load_factor=0.1,
        io_buffer_bytes=io_buffer_bytes,
        max_bytes_per_second=1e300,
    )


def swap_steps(log: PartitionLog, swap: Swap) -> Iterator[str]:
    """The steps of a swap, one after the other; what is yielded was done."""
    cleaning = log.cleaning
    cleaning.prepare_swap(swap)
    yield "prepared"
    cleaning.commit_swap(swap)
    yield "committed"
    names = cleaning.finish_swap(swap)
    yield "finished"
    cleaning.end_swap(swap)
    yield "ended"
    log.old_segments.unlink(names)


def compact(log: PartitionLog, checkpoint: int | None = None, **room: int) -> CompactionSummary | None:
    """One run, as the broker does it; None if there is nothing to do."""
    log.flush()
    cleanable = log.cleaning.find(checkpoint)
    if not cleanable.cleanable_bytes:
        return None
    run = Compaction(log.cleaning.job(cleanable, log.producers.capture(), limits(**room)), lambda _: None)
    for group in run.run():
        for _ in swap_steps(log, log.cleaning.plan_swap(group)):
            pass
    return run.summary()


def contents(log: PartitionLog) -> Contents:
    """Every record as consumers read it, with (offset, key, value)."""
    found: Contents = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 700, min_one_message=True).slice
        if piece is None:
            break
        data = piece.read_all()
        for record in records_in(data, from_offset=offset):
            value = None if record.value is None else record.value.decode()
            found.append((record.offset, (record.key or b"").decode(), value))
        offset = max(header.next_offset for _, header in headers(data))
    return found


def fill(log: PartitionLog, pairs: list[Pair], *, size: int = 1, **header: Any) -> None:
    """Append batches of so many records."""
    for at in range(0, len(pairs), size):
        log.append(batch(pairs[at : at + size], timestamp=START_MS + log.log_end_offset, **header))


def keyed(count: int, keys: int) -> list[Pair]:
    return [(f"k{at % keys}", f"v{at:03}") for at in range(count)]


# -- what stays --------------------------------------------------------------------------------------------------------


def test_nine_records_of_which_six_remain(bench: Bench) -> None:
    """The worked example; the active segment is left out."""
    log = bench.open(cleanup_policy="compact")
    keys = ["k1", "k2", "k1", "k3", "k4", "k5", "k5", "k2", "k6"]
    fill(log, [(key, f"v{at}") for at, key in enumerate(keys)])
    log.roll()
    fill(log, [("k1", "active")])
    summary = compact(log)
    assert summary is not None
    assert (summary.clean_offset, summary.records_read, summary.records_kept) == (9, 9, 6)
    assert contents(log) == [
        (2, "k1", "v2"), (3, "k3", "v3"), (4, "k4", "v4"), (6, "k5", "v6"), (7, "k2", "v7"), (8, "k6", "v8"),
        (9, "k1", "active"),
    ]  # fmt: skip
    assert log.read(0, 1000).position == 0
    log = bench.reopen(log)
    assert len(contents(log)) == 7


def test_small_segments_become_one_as_far_as_they_fit(bench: Bench) -> None:
    log = bench.open(segment_bytes=10 * len(batch(keyed(1, 1))))
    fill(log, keyed(105, 3))
    assert log.segment_count == 11
    compact(log)
    assert log.segment_count == 11  # what they were before counts
    compact(log, 0)
    assert [segment.base_offset for segment in log._segments.snapshot] == [0, 100]
    assert [offset for offset, _, _ in contents(log)] == [97, 98, 99, *range(100, 105)]


def test_several_runs_where_the_map_does_not_suffice(bench: Bench) -> None:
    log = bench.open(segment_bytes=2000)
    fill(log, keyed(200, 50), size=7)
    log.roll()
    checkpoint, runs = 0, 0
    while True:
        summary = compact(log, checkpoint, entries=20)
        if summary is None:
            break
        assert summary.clean_offset > checkpoint
        assert summary.map_utilization <= 1
        checkpoint, runs = summary.clean_offset, runs + 1
    assert checkpoint == 200
    assert runs > 8
    assert [offset for offset, _, _ in contents(log)] == list(range(150, 200))


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_of_every_codec(bench: Bench, codec: Codec) -> None:
    log = bench.open(segment_bytes=3000)
    fill(log, keyed(500, 20), size=25, compression=codec)
    log.roll()
    compact(log)
    assert [offset for offset, _, _ in contents(log)] == list(range(480, 500))
    for segment in log._segments.snapshot:
        assert all(header.codec == codec or not header.record_count for _, header in headers(_log_of(bench, segment)))


def _log_of(bench: Bench, segment: Any) -> bytes:
    found: bytes = bench.path(segment.base_offset, ".log").read_bytes()
    return found


def test_batches_larger_than_a_read(bench: Bench) -> None:
    log = bench.open(max_message_bytes=1 << 20)
    for at in range(4):
        log.append(batch([("small", f"{at}")]))
        log.append(batch([("large", "x" * 200_000)], compression=Codec.NONE))
        log.append(batch([("packed", str(list(range(50_000))))], compression=Codec.GZIP))
    log.roll()
    compact(log)
    assert [(offset, key) for offset, key, _ in contents(log)] == [(9, "small"), (10, "large"), (11, "packed")]


def test_tombstones_go_after_their_time(bench: Bench) -> None:
    log = bench.open(delete_retention_ms=DAY_MS)
    fill(log, [("a", "1"), ("b", "1"), ("a", None), ("c", "1")])
    log.roll()
    compact(log)
    assert contents(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    bench.clock.now_ms += DAY_MS
    fill(log, [("d", "1")])
    log.roll()
    compact(log, 4)
    assert contents(log) == [(1, "b", "1"), (3, "c", "1"), (4, "d", "1")]


def test_the_last_batch_of_a_producer_and_of_a_run_stay_as_headers(bench: Bench) -> None:
    log = bench.open()
    log.append(batch([("a", "1")], producer_id=7, producer_epoch=0, base_sequence=0))
    log.append(batch([("a", "2"), ("b", "2")], producer_id=7, producer_epoch=0, base_sequence=1))
    log.append(batch([("a", "3"), ("b", "3")]))
    log.append(batch([(None, "without a key")]))
    log.roll()
    compact(log)
    found = [header for _, header in headers(_log_of(bench, log._segments.first))]
    assert [(header.base_offset, header.last_offset, header.record_count) for header in found] == [
        (1, 2, 0), (3, 4, 2), (5, 5, 0),
    ]  # fmt: skip
    assert (found[0].producer_id, found[0].base_sequence) == (7, 1)
    log = bench.reopen(log)
    assert contents(log) == [(3, "a", "3"), (4, "b", "3")]
    assert log.offset_for_time(0).offset == 3
    duplicate = log.plan(batch([("a", "2"), ("b", "2")], producer_id=7, producer_epoch=0, base_sequence=1))
    assert duplicate.base_offset in {1, 6}
    log.abandon()


def test_time_and_offset_indexes_are_right_after_compaction(bench: Bench) -> None:
    log = bench.open(index_interval_bytes=200, segment_bytes=4000)
    fill(log, keyed(300, 90), size=3)
    log.roll()
    compact(log)
    log = bench.reopen(log)
    for offset, _, _ in contents(log):
        found = log.offset_for_time(START_MS + offset)
        assert found is not None
        assert (found.offset, found.timestamp) == (offset, START_MS + offset)
        piece = log.read(offset, 10, min_one_message=True).slice
        assert piece is not None
        assert next(records_in(piece.read_all(), from_offset=offset)).offset == offset
    assert log.recovery is None


def test_records_before_the_start_and_a_start_inside_a_segment(bench: Bench) -> None:
    log = bench.open(segment_bytes=1000)
    fill(log, keyed(60, 10))
    log.roll()
    log.advance_start(25)
    summary = compact(log, 3)
    assert summary is not None
    assert [offset for offset, _, _ in contents(log)] == list(range(50, 60))


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_log_that_was_compacted_once_is_not_cut_whatever_its_policy_is_now(bench: Bench, policy: str) -> None:
    """Its recovery point is unknown: gaps that compaction left look like ends that a power cut took."""
    log = bench.open(segment_bytes=500)
    fill(log, keyed(60, 7))
    log.roll()
    compact(log, 1)
    fill(log, keyed(60, 7))
    expected = contents(log)
    log.close(clean=False)
    log = bench.open(clean=False, recovery_point=0, cleanup_policy=policy)
    assert log.recovery is not None
    assert log.recovery.truncated_bytes == 0
    assert contents(log) == expected


def test_a_transaction_index_that_a_killed_run_left_is_not_adopted(bench: Bench) -> None:
    log = bench.open(segment_bytes=500)
    fill(log, keyed(20, 2))
    log.roll()
    bench.path(0, ".txnindex.cleaned").write_bytes(encode_aborted([AbortedTransaction(1, 0, 5, 6)]))
    compact(log)
    assert not list(bench.directory.glob("*.txnindex*"))


def test_the_files_keep_the_time_of_the_newest_they_stand_for(bench: Bench) -> None:
    log = bench.open(segment_bytes=500)
    fill(log, keyed(20, 2))
    log.roll()
    newest = log._segments.snapshot[-2].modified_ms()
    bench.clock.now_ms += 1000
    compact(log)
    compact(log, 0)
    assert log._segments.snapshot[-2].modified_ms() == newest


# -- what may be cleaned -----------------------------------------------------------------------------------------------


def test_what_is_cleanable(bench: Bench) -> None:
    one = len(batch([("k0", "v0")]))
    log = bench.open(segment_bytes=5 * one)
    fill(log, [(f"k{at % 5}", f"v{at % 9}") for at in range(23)])
    assert log.cleaning.find(None).cleanable_bytes == 0  # nothing of it is on the disk for sure
    log.flush()
    found = log.cleaning.find(None)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, 20)
    assert (found.clean_bytes, found.cleanable_bytes, found.ratio) == (0, 20 * one, 1.0)
    found = log.cleaning.find(15)
    assert (found.clean_bytes, found.cleanable_bytes, found.ratio) == (15 * one, 5 * one, 0.25)
    assert not found.is_due(log.config)
    assert found.is_due(LogConfig(min_cleanable_dirty_ratio=0.2))
    assert not found.is_due(LogConfig(min_cleanable_dirty_ratio=0.25))
    for nonsense in (-5, 99):
        assert log.cleaning.find(nonsense) == log.cleaning.find(None)
    log.advance_start(7)
    assert log.cleaning.find(3).first_dirty_offset == 7


def test_the_lags_keep_young_segments_out_and_have_old_ones_cleaned(bench: Bench) -> None:
    log = bench.open(segment_bytes=5 * len(batch([("k0", "v0")])), min_compaction_lag_ms=1000)
    fill(log, [(f"k{at % 5}", f"v{at % 9}") for at in range(23)])
    log.flush()
    bench.clock.now_ms = START_MS + 1000 + 9
    assert log.cleaning.find(None).first_uncleanable_offset == 10
    bench.clock.now_ms = START_MS + 1000
    assert log.cleaning.find(None).first_uncleanable_offset == 0
    log.reconfigure(LogConfig(max_compaction_lag_ms=500, min_cleanable_dirty_ratio=1.0))
    found = log.cleaning.find(10)
    assert found.delay_ms == 1000 - 500 - 10
    assert found.is_due(log.config)
    assert log.cleaning.find(20).delay_ms == 0


def test_the_lag_of_segments_without_times_is_that_of_their_files(bench: Bench) -> None:
    record = build_batch([(-1, b"k", b"v", ())])
    log = bench.open(segment_bytes=5 * len(record), min_compaction_lag_ms=1000)
    for _ in range(23):
        log.append(record)
    log.flush()
    for at, base in enumerate(range(0, 20, 5)):
        bench.disk.set_modified(str(bench.path(base, ".log")), START_MS + at)
    bench.clock.now_ms = START_MS + 1001
    assert log.cleaning.find(None).first_uncleanable_offset == 10
    bench.clock.now_ms = START_MS + 999
    assert log.cleaning.find(None).first_uncleanable_offset == 0


# -- transactions ------------------------------------------------------------------------------------------------------

COMMIT, ABORT = 1, 0


def marker(kind: int, producer_id: int) -> bytes:
    return build_batch(
        [(START_MS, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), ())],
        attributes=CONTROL_BIT | TRANSACTIONAL_BIT, producer_id=producer_id, producer_epoch=0,
    )  # fmt: skip


def transactional(pairs: list[Pair], producer_id: int, base_sequence: int = 0) -> bytes:
    return batch(
        pairs, producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence, attributes=TRANSACTIONAL_BIT
    )


def write_raw(bench: Bench, base_offset: int, *batches: bytes) -> None:
    """A segment as a broker with transactions leaves it; offsets are stamped here."""
    log, offset = b"", base_offset
    for each in batches:
        log += offset.to_bytes(8) + each[8:]
        offset += next(header.last_offset_delta for _, header in headers(each)) + 1
    bench.directory.mkdir(exist_ok=True)
    bench.path(base_offset, ".log").write_bytes(log)


def copied(bench: Bench) -> PartitionLog:
    """A directory that another broker wrote: two transactions, one aborted, and an empty active segment."""
    write_raw(
        bench, 0,
        batch([("a", "before"), ("b", "before")]),
        transactional([("a", "aborted")], 1),
        transactional([("b", "committed")], 2),
        marker(ABORT, 1),
        marker(COMMIT, 2),
        batch([("c", "after")]),
    )  # fmt: skip
    bench.path(0, ".txnindex").write_bytes(encode_aborted([AbortedTransaction(1, 2, 4, 3)]))
    write_raw(bench, 7, batch([("d", "active")]))
    log: PartitionLog = bench.open(clean=False)
    return log


def kinds(bench: Bench, base_offset: int) -> list[tuple[int, int, bool, bool]]:
    """(base offset, records, control, horizon set) of each batch."""
    return [
        (header.base_offset, header.record_count, header.is_control, header.delete_horizon_ms is not None)
        for _, header in headers(bench.path(base_offset, ".log").read_bytes())
    ]


def test_aborted_records_go_first_and_markers_after_their_time(bench: Bench) -> None:
    log = copied(bench)
    for _ in range(2):
        log.producers.age(0)
    log.producers.forget_idle(START_MS, most=100)  # else the last batch of each would stay
    assert compact(log) is not None
    assert contents(log) == [(0, "a", "before"), (3, "b", "committed"), (6, "c", "after"), (7, "d", "active")]
    first = kinds(bench, 0)
    assert (4, 1, True, False) in first  # its transaction was still there when this began
    assert read_aborted(bench.disk, str(bench.path(0, ".txnindex")), 0) == [AbortedTransaction(1, 2, 4, 3)]
    bench.clock.now_ms = START_MS + 1
    log.roll()
    fill(log, [("e", "1")])
    compact(log, 7)
    assert (4, 1, True, True) in kinds(bench, 0)  # nothing is left of it: the horizon begins
    assert (5, 1, True, False) in kinds(bench, 0)  # a committed record is left
    assert not bench.path(0, ".txnindex").exists()
    bench.clock.now_ms += DAY_MS
    log.roll()
    fill(log, [("f", "1")])
    compact(log, 8)
    assert [(base, count) for base, count, control, _ in kinds(bench, 0) if control and base == 4] in (
        [],
        [(4, 0)],
    )
    assert [key for _, key, _ in contents(log)] == ["a", "b", "c", "d", "e", "f"]


def test_an_open_transaction_bounds_what_is_cleanable(bench: Bench) -> None:
    write_raw(bench, 0, batch([("a", "1")]))
    write_raw(bench, 1, batch([("a", "2")]), transactional([("a", "open")], 1))
    write_raw(bench, 3, batch([("a", "3")]))
    write_raw(bench, 4)
    log = bench.open(clean=False)
    log.flush()
    assert log.cleaning.find(None).first_uncleanable_offset == 1


# -- what is not sound -------------------------------------------------------------------------------------------------


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
    log.flush()
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
    log.flush()
    job = log.cleaning.job(log.cleaning.find(None), log.producers.capture(), limits())
    bench.path(0, ".log").write_bytes(bench.path(0, ".log").read_bytes()[:-5])
    with pytest.raises(CorruptBatchError):
        list(Compaction(job, lambda _: None).run())


def test_a_disk_that_fails_leaves_nothing_half_made(bench: Bench) -> None:
    log = bench.open(segment_bytes=1000)
    fill(log, keyed(50, 5))
    log.flush()
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
    log.flush()
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
    log.flush()
    run = Compaction(log.cleaning.job(log.cleaning.find(None), log.producers.capture(), limits()), lambda _: None)
    group = next(run.run())
    log.advance_start(40)
    log.old_segments.rename(log.old_segments.take_out())
    with pytest.raises(SegmentsChangedError):
        log.cleaning.plan_swap(group)


# -- the swap ----------------------------------------------------------------------------------------------------------


def test_readers_find_what_they_mean_at_every_step_of_a_swap(bench: Bench) -> None:
    bench.files.limit = 2  # what is not in use is closed, and opened again by name
    log = bench.open(segment_bytes=700, index_interval_bytes=100)
    fill(log, keyed(60, 4))
    log.flush()
    old = [(offset, log.read(offset, 90, min_one_message=True)) for offset in (0, 17, 31)]
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
            at = log.offset_for_time(START_MS)
            assert at is not None
            assert at.offset == expected[0][0]
            log.describe()
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
            log.flush()
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
    log.flush()
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
    log = bench.open(recovery_point=log.recovery_point)
    assert contents(log) == found
    assert not [path for path in bench.directory.iterdir() if path.suffix in {".swap", ".deleted"}]


# -- against a dictionary ----------------------------------------------------------------------------------------------

PAIRS = st.tuples(st.sampled_from([f"k{at}" for at in range(6)]), st.none() | st.text("abc", max_size=5))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(PAIRS, min_size=1, max_size=9)),
        st.tuples(st.just("compact"), st.integers(2, 8)),
        st.tuples(st.just("roll"), st.none()),
        st.tuples(st.just("wait"), st.integers(1, 60)),
        st.tuples(st.just("reopen"), st.booleans()),
    ),
    min_size=3,
    max_size=25,
)


@given(steps=STEPS, size=st.integers(1, 4), codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]))
@settings(max_examples=60, deadline=None)
def test_against_a_dictionary(steps: list[tuple[str, Any]], size: int, codec: Codec) -> None:
    root = Path(mkdtemp())
    try:
        _Checked(root, size, codec).run(steps)
    finally:
        rmtree(root)


class _Checked:
    """A log and what a reader of it must find: always the last value of each key, in the order of offsets."""

    def __init__(self, root: Path, size: int, codec: Codec) -> None:
        self.directory = root / "words-0"
        self.now_ms = START_MS
        self.size, self.codec = size, codec
        self.config = LogConfig(segment_bytes=600, index_interval_bytes=100, delete_retention_ms=100)
        self.everything: dict[int, Pair] = {}
        self.checkpoint = 0
        self.log = self.open(clean=True)

    def open(self, *, clean: bool, recovery_point: int = 0) -> PartitionLog:
        return PartitionLog.open(
            self.directory, topic="words", partition=0, config=self.config, files=OpenFiles(), random=random.Random(1),
            clock=lambda: self.now_ms, recovery_point=recovery_point, clean=clean,
        )  # fmt: skip

    def run(self, steps: list[tuple[str, Any]]) -> None:
        do: dict[str, Callable[[Any], None]] = {
            "append": self.append, "compact": self.compact, "roll": lambda _: self.log.roll(), "wait": self.wait,
            "reopen": self.reopen,
        }  # fmt: skip
        for name, argument in steps:
            do[name](argument)
            self.check()
        self.log.close(clean=False)

    def append(self, pairs: list[Pair]) -> None:
        for at, pair in enumerate(pairs):
            self.everything[self.log.log_end_offset + at] = pair
        fill(self.log, pairs, size=self.size, compression=self.codec)

    def compact(self, entries: int) -> None:
        summary = compact(self.log, self.checkpoint, entries=entries)
        if summary is not None:
            assert summary.clean_offset > self.checkpoint
            self.checkpoint = summary.clean_offset

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def reopen(self, clean: bool) -> None:
        self.log.close(clean=clean)
        self.log = self.open(clean=clean, recovery_point=self.log.recovery_point)

    def check(self) -> None:
        found = contents(self.log)
        assert all(self.everything[offset] == (key, value) for offset, key, value in found)
        assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
        last = {key: offset for offset, (key, _) in self.everything.items()}
        kept = {offset for offset, _, _ in found}
        for key, offset in last.items():
            assert offset in kept or (self.everything[offset][1] is None and offset < self.checkpoint), key
        assert kept >= set(range(self.log._segments.active.base_offset, self.log.log_end_offset))
        clean = [key for offset, key, _ in found if offset < self.checkpoint]
        assert len(clean) == len(set(clean))
