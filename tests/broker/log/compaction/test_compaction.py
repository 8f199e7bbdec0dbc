"""Compaction of a log on real files: which records stay, and which segments can be cleaned."""

from typing import Any

import pytest

from tests.broker.log.compaction.compacting import (
    DAY_MS,
    START_MS,
    Bench,
    batch,
    compact,
    contents,
    fill,
    keyed,
)
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.index.transaction import AbortedTransaction, encode_aborted
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import Codec
from warmlog.protocol.records.reader import records_in


def test_nine_records_of_which_six_remain(bench: Bench) -> None:
    """The worked example; the active segment is left out."""
    log = bench.open(cleanup_policy="compact")
    keys = ["k1", "k2", "k1", "k3", "k4", "k5", "k5", "k2", "k6"]
    fill(log, [(key, f"v{at}") for at, key in enumerate(keys)])
    log.rolls.roll()
    fill(log, [("k1", "active")])
    summary = compact(log)
    assert summary is not None
    assert (summary.clean_offset, summary.records_read, summary.records_kept) == (9, 9, 6)
    assert contents(log) == [
        (2, "k1", "v2"), (3, "k3", "v3"), (4, "k4", "v4"), (6, "k5", "v6"), (7, "k2", "v7"), (8, "k6", "v8"),
        (9, "k1", "active"),
    ]  # fmt: skip
    assert log.reads.read(0, 1000).position == 0
    log = bench.reopen(log)
    assert len(contents(log)) == 7


def test_small_segments_become_one_as_far_as_they_fit(bench: Bench) -> None:
    log = bench.open(segment_bytes=10 * len(batch(keyed(1, 1))))
    fill(log, keyed(105, 3))
    assert log.segment_count == 11
    compact(log)
    assert log.segment_count == 11  # what they were before counts
    compact(log, 0)
    assert [segment.base_offset for segment in log._state.segments.snapshot] == [0, 100]
    assert [offset for offset, _, _ in contents(log)] == [97, 98, 99, *range(100, 105)]


def test_several_runs_where_the_map_does_not_suffice(bench: Bench) -> None:
    log = bench.open(segment_bytes=2000)
    fill(log, keyed(200, 50), size=7)
    log.rolls.roll()
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
    log.rolls.roll()
    compact(log)
    assert [offset for offset, _, _ in contents(log)] == list(range(480, 500))
    for segment in log._state.segments.snapshot:
        assert all(header.codec == codec or not header.record_count for _, header in headers(_log_of(bench, segment)))


def _log_of(bench: Bench, segment: Any) -> bytes:
    found: bytes = bench.path(segment.base_offset, ".log").read_bytes()
    return found


def test_batches_larger_than_a_read(bench: Bench) -> None:
    log = bench.open(max_message_bytes=1 << 20)
    for at in range(4):
        log.appends.append(batch([("small", f"{at}")]))
        log.appends.append(batch([("large", "x" * 200_000)], compression=Codec.NONE))
        log.appends.append(batch([("packed", str(list(range(50_000))))], compression=Codec.GZIP))
    log.rolls.roll()
    compact(log)
    assert [(offset, key) for offset, key, _ in contents(log)] == [(9, "small"), (10, "large"), (11, "packed")]


def test_tombstones_go_after_their_time(bench: Bench) -> None:
    log = bench.open(delete_retention_ms=DAY_MS)
    fill(log, [("a", "1"), ("b", "1"), ("a", None), ("c", "1")])
    log.rolls.roll()
    compact(log)
    assert contents(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    bench.clock.now_ms += DAY_MS
    fill(log, [("d", "1")])
    log.rolls.roll()
    compact(log, 4)
    assert contents(log) == [(1, "b", "1"), (3, "c", "1"), (4, "d", "1")]


def test_the_last_batch_of_a_producer_and_of_a_run_stay_as_headers(bench: Bench) -> None:
    log = bench.open()
    log.appends.append(batch([("a", "1")], producer_id=7, producer_epoch=0, base_sequence=0))
    log.appends.append(batch([("a", "2"), ("b", "2")], producer_id=7, producer_epoch=0, base_sequence=1))
    log.appends.append(batch([("a", "3"), ("b", "3")]))
    log.appends.append(batch([(None, "without a key")]))
    log.rolls.roll()
    compact(log)
    found = [header for _, header in headers(_log_of(bench, log._state.segments.first))]
    assert [(header.base_offset, header.last_offset, header.record_count) for header in found] == [
        (1, 2, 0), (3, 4, 2), (5, 5, 0),
    ]  # fmt: skip
    assert (found[0].producer_id, found[0].base_sequence) == (7, 1)
    log = bench.reopen(log)
    assert contents(log) == [(3, "a", "3"), (4, "b", "3")]
    assert log.reads.offset_for_time(0).offset == 3
    duplicate = log.appends.plan(batch([("a", "2"), ("b", "2")], producer_id=7, producer_epoch=0, base_sequence=1))
    assert duplicate.base_offset in {1, 6}
    log.appends.abandon()


def test_time_and_offset_indexes_are_right_after_compaction(bench: Bench) -> None:
    log = bench.open(index_interval_bytes=200, segment_bytes=4000)
    fill(log, keyed(300, 90), size=3)
    log.rolls.roll()
    compact(log)
    log = bench.reopen(log)
    for offset, _, _ in contents(log):
        found = log.reads.offset_for_time(START_MS + offset)
        assert found is not None
        assert (found.offset, found.timestamp) == (offset, START_MS + offset)
        piece = log.reads.read(offset, 10, min_one_batch=True).slice
        assert piece is not None
        assert next(records_in(piece.read_all(), from_offset=offset)).offset == offset
    assert log.recovery is None


def test_records_before_the_start_and_a_start_inside_a_segment(bench: Bench) -> None:
    log = bench.open(segment_bytes=1000)
    fill(log, keyed(60, 10))
    log.rolls.roll()
    log.truncation.advance_start(25)
    summary = compact(log, 3)
    assert summary is not None
    assert [offset for offset, _, _ in contents(log)] == list(range(50, 60))


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_log_that_was_compacted_once_is_not_cut_whatever_its_policy_is_now(bench: Bench, policy: str) -> None:
    """Its recovery point is unknown: gaps that compaction left look like ends that a power cut took."""
    log = bench.open(segment_bytes=500)
    fill(log, keyed(60, 7))
    log.rolls.roll()
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
    log.rolls.roll()
    bench.path(0, ".txnindex.cleaned").write_bytes(encode_aborted([AbortedTransaction(1, 0, 5, 6)]))
    compact(log)
    assert not list(bench.directory.glob("*.txnindex*"))


def test_the_files_keep_the_time_of_the_newest_they_stand_for(bench: Bench) -> None:
    log = bench.open(segment_bytes=500)
    fill(log, keyed(20, 2))
    log.rolls.roll()
    newest = log._state.segments.snapshot[-2].modified_ms()
    bench.clock.now_ms += 1000
    compact(log)
    compact(log, 0)
    assert log._state.segments.snapshot[-2].modified_ms() == newest


# -- what can be cleaned --


def test_what_is_cleanable(bench: Bench) -> None:
    one = len(batch([("k0", "v0")]))
    log = bench.open(segment_bytes=5 * one)
    fill(log, [(f"k{at % 5}", f"v{at % 9}") for at in range(23)])
    assert log.cleaning.find(None).cleanable_bytes == 0  # nothing of it is on the disk for sure
    log.durability.flush()
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
    log.truncation.advance_start(7)
    assert log.cleaning.find(3).first_dirty_offset == 7


def test_the_lags_keep_young_segments_out_and_have_old_ones_cleaned(bench: Bench) -> None:
    log = bench.open(segment_bytes=5 * len(batch([("k0", "v0")])), min_compaction_lag_ms=1000)
    fill(log, [(f"k{at % 5}", f"v{at % 9}") for at in range(23)])
    log.durability.flush()
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
        log.appends.append(record)
    log.durability.flush()
    for at, base in enumerate(range(0, 20, 5)):
        bench.disk.set_modified(str(bench.path(base, ".log")), START_MS + at)
    bench.clock.now_ms = START_MS + 1001
    assert log.cleaning.find(None).first_uncleanable_offset == 10
    bench.clock.now_ms = START_MS + 999
    assert log.cleaning.find(None).first_uncleanable_offset == 0
