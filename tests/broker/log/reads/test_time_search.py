"""From a time to a record, titles after Kafka's tests of offsets by time."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from warmlog.broker.log.index.time import TimestampOffset
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import Codec

Batch = Callable[..., bytes]
Bench = Any


def answer(found: TimestampOffset | None) -> tuple[int, int] | None:
    return None if found is None else (found.timestamp, found.offset)


def test_an_empty_log_has_no_offset_for_any_time(bench: Bench) -> None:
    log = bench.open()
    assert log.reads.offset_for_time(0) is None
    assert log.reads.largest_timestamp() is None


def test_find_offset_by_timestamp_over_many_segments(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    for offset in range(40):
        log.appends.append(batch(timestamp=10 * offset))
    for time in range(-5, 395):
        expected = max(0, -(-time // 10))
        assert answer(log.reads.offset_for_time(time)) == ((10 * expected, expected) if expected < 40 else None)


def test_the_answer_is_a_record_inside_a_batch_not_the_batch(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append(batch(10, timestamp=100))
    log.appends.append(batch(10, timestamp=200))
    assert answer(log.reads.offset_for_time(105)) == (105, 5)
    assert answer(log.reads.offset_for_time(110)) == (200, 10)
    assert answer(log.reads.offset_for_time(209)) == (209, 19)
    assert log.reads.offset_for_time(210) is None


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches_are_opened(bench: Bench, codec: Codec) -> None:
    log = bench.open()
    for first in (100, 200, 300):
        log.appends.append(build_batch([(first + i, None, b"v" * 50, ()) for i in range(20)], compression=codec))
    assert answer(log.reads.offset_for_time(207)) == (207, 27)


def test_times_out_of_order_give_the_first_by_offset(bench: Bench) -> None:
    random = Random(3)
    times = [random.randrange(1000) for _ in range(300)]
    log = bench.open(segment_bytes=900, index_interval_bytes=200)
    at = 0
    while at < len(times):
        count = random.randrange(1, 6)
        log.appends.append(build_batch([(time, None, b"x" * 40, ()) for time in times[at : at + count]]))
        at += count
    for log_now in (log, bench.reopen(log)):
        for target in range(-1, 1001, 7):
            expected = next(((time, offset) for offset, time in enumerate(times) if time >= target), None)
            assert answer(log_now.reads.offset_for_time(target)) == expected


def test_the_largest_timestamp_is_the_first_record_that_has_it(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    for timestamp in (5, 70, 3, 90, 20, 90, 7, 8):
        log.appends.append(batch(timestamp=timestamp))
    assert answer(log.reads.largest_timestamp()) == (90, 3)
    assert answer(bench.reopen(log).reads.largest_timestamp()) == (90, 3)


def test_records_without_a_time_are_never_the_answer(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append(batch(timestamp=-1))
    assert log.reads.offset_for_time(0) is None
    assert log.reads.largest_timestamp() is None


def test_the_answer_tells_the_leader_epoch(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append(batch(timestamp=1))
    log.epochs.assign(1, log.offsets.log_end_offset)
    log.appends.append(batch(timestamp=2))
    found = log.reads.offset_for_time(2)
    assert found is not None
    assert found.leader_epoch == 1


def test_nothing_before_the_log_start_or_past_the_bound_is_an_answer(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    for offset in range(20):
        log.appends.append(batch(timestamp=offset))
    log.close()
    log = bench.open(log_start_offset=6)
    assert answer(log.reads.offset_for_time(2)) == (6, 6)
    assert answer(log.reads.offset_for_time(10, isolation_end=11)) == (10, 10)
    assert log.reads.offset_for_time(10, isolation_end=10) is None


def test_the_active_segments_largest_time_is_in_memory(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    for offset in range(20):
        log.appends.append(batch(timestamp=offset))
    log = bench.reopen(log)
    bench.disk.calls.clear()
    assert log.reads.offset_for_time(10**6) is None
    opened = [str(path) for verb, path in bench.disk.calls if verb == "open"]
    assert opened
    assert not [path for path in opened if f"{16:020d}" in path]


def test_an_index_that_is_missing_is_made_anew_on_the_way(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    for offset in range(20):
        log.appends.append(batch(timestamp=offset))
    log.close()
    for suffix in (".index", ".timeindex"):
        bench.path(4, suffix).unlink()
    log = bench.open()
    assert answer(log.reads.offset_for_time(6)) == (6, 6)
    assert bench.path(4, ".timeindex").stat().st_size == 12
