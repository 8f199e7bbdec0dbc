"""Batches that were stored with a largest time that cannot be right, as sarama up to 1.45.0 sends compressed ones.

Appends correct it. Directories that hold such batches come from an older broker, or from one that corrects nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.broker.log.compaction.compacting import compact
from tests.broker.log.conftest import START_MS
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.segments.tail import BatchExtent, RollReason, Tail
from warmlog.inspect.checks.partition import PartitionCheck
from warmlog.inspect.checks.segment import CheckContext
from warmlog.inspect.findings import Tally
from warmlog.protocol.records.batch import headers, read_header, rewritten_start
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import HEADER_SIZE, NO_TIMESTAMP, Codec
from warmlog.protocol.records.reader import records_in

Bench = Any
Batch = Callable[..., bytes]

NOW_MS = START_MS
OLD_MS = START_MS - 30 * 24 * 3600 * 1000
HOUR_MS = 3600 * 1000
COMPRESSED = [codec for codec in Codec if codec]


def doubtful(*times: int, codec: Codec = Codec.GZIP, told: int = NO_TIMESTAMP, **identity: int) -> bytes:
    """A batch of records with these times whose header has another for the largest."""
    made = build_batch([(time, b"k", b"v" * 80, ()) for time in times], compression=codec, **identity)
    header = read_header(made)._replace(max_timestamp=told)
    block = made[HEADER_SIZE:]
    return rewritten_start(header, block, base_offset=0, leader_epoch=0) + block


def put(bench: Bench, *segments: Sequence[bytes], times_by_headers: bool) -> list[tuple[int, int]]:
    """Make a log's directory of these batches; gives (offset, time) of every record.

    Its indexes are those that go by what headers say, or there are none.
    """
    bench.kill(bench.open())
    for path in bench.directory.iterdir():
        path.unlink()
    offset, rows = 0, []
    for batches in segments:
        base, log = offset, bytearray()
        tail = Tail(base, bench.config, created_ms=0, jitter_ms=0)
        offsets, times = bytearray(), bytearray()
        for batch in batches:
            log += offset.to_bytes(8) + batch[8:]
            header = read_header(batch)
            entries = tail.add(BatchExtent(offset + header.last_offset_delta, header.max_timestamp, len(batch)))
            if entries:
                offsets += entries.offset_index
                times += entries.time_index
            offset += header.last_offset_delta + 1
        times += tail.last_time_entry()
        rows += [(record.offset, record.timestamp) for record in records_in(bytes(log))]
        bench.path(base, ".log").write_bytes(log)
        if times_by_headers:
            bench.path(base, ".index").write_bytes(offsets)
            bench.path(base, ".timeindex").write_bytes(times)
    return rows


def check_times(log: PartitionLog, rows: Sequence[tuple[int, int]]) -> None:
    """Every time leads to the first record that is not earlier, and the largest is known."""
    for wanted in {time for _, time in rows}:
        found = log.reads.offset_for_time(wanted)
        assert found is not None
        assert (found.offset, found.timestamp) == next((at, time) for at, time in rows if time >= wanted)
    largest = log.reads.largest_timestamp()
    assert largest is not None
    assert largest.timestamp == max(time for _, time in rows)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_an_append_stores_the_largest_time_of_the_records(bench: Bench, codec: Codec) -> None:
    log = bench.open()
    log.appends.append(doubtful(NOW_MS, NOW_MS + 9, NOW_MS + 3, codec=codec))
    ((_, header),) = headers(bench.path(0, ".log").read_bytes())
    assert header.max_timestamp == NOW_MS + 9
    check_times(log, [(0, NOW_MS), (1, NOW_MS + 9), (2, NOW_MS + 3)])


def test_a_segment_of_such_appends_rolls_by_time_and_outlives_retention(bench: Bench) -> None:
    log = bench.open(segment_ms=1000)
    bench.clock.now_ms = NOW_MS + 2000
    rolls = [log.appends.append(doubtful(NOW_MS + time)).roll for time in (0, 1000, 1001)]
    assert rolls == [None, None, RollReason.TIME]
    assert log.old_segments.find().reasons == []


@pytest.mark.parametrize("times_by_headers", [True, False])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("codec", COMPRESSED)
def test_times_of_stored_ones_are_found(bench: Bench, codec: Codec, *, clean: bool, times_by_headers: bool) -> None:
    def some(first: int) -> list[bytes]:
        return [doubtful(NOW_MS + first + at, NOW_MS + first + at + 5, codec=codec) for at in range(0, 300, 10)]

    rows = put(bench, some(0), some(300), some(600), times_by_headers=times_by_headers)
    log = bench.open(clean=clean, recovery_point=len(rows))
    check_times(log, rows)
    log.appends.append(build_batch([(NOW_MS + 5000, b"k", b"v", ())]))
    check_times(bench.reopen(log), [*rows, (len(rows), NOW_MS + 5000)])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("old_at", [[0], [15], [59], [0, 30, 59], [1, 2, 3]])
def test_retention_takes_no_segment_for_what_headers_say(bench: Bench, *, clean: bool, old_at: list[int]) -> None:
    """Records of now, and some that are a month old and have a right header: 61 of 61 went."""

    def some() -> list[bytes]:
        old = build_batch([(OLD_MS, b"k", b"v" * 80, ())])
        return [old if at in old_at else doubtful(NOW_MS + at) for at in range(60)]

    put(bench, some(), some(), [build_batch([(NOW_MS, b"k", b"v", ())])], times_by_headers=True)
    for base in (0, 60, 120):
        bench.disk.set_modified(str(bench.path(base, ".log")), NOW_MS)
    log = bench.open(clean=clean, recovery_point=121, retention_ms=24 * HOUR_MS)
    bench.clock.now_ms = NOW_MS + HOUR_MS
    assert log.old_segments.find().reasons == []
    bench.clock.now_ms = NOW_MS + 25 * HOUR_MS
    assert len(log.old_segments.find().reasons) == 3


@pytest.mark.parametrize("clean", [True, False])
def test_a_stored_one_at_the_start_of_the_active_segment_tells_its_age(bench: Bench, *, clean: bool) -> None:
    put(bench, [doubtful(NOW_MS)], times_by_headers=True)
    log = bench.open(clean=clean, recovery_point=1, segment_ms=1000)
    bench.clock.now_ms = NOW_MS + HOUR_MS
    assert log.appends.append(build_batch([(NOW_MS + 1000, b"k", b"v", ())])).roll is None
    assert log.appends.append(build_batch([(NOW_MS + 1001, b"k", b"v", ())])).roll is RollReason.TIME


def test_a_stored_one_that_cannot_be_opened_counts_with_its_first_time(bench: Bench) -> None:
    header = read_header(doubtful(NOW_MS + 5, NOW_MS + 9))
    block = bytes(header.size - HEADER_SIZE)
    broken = rewritten_start(header, block, base_offset=0, leader_epoch=0) + block
    bench.kill(bench.open())
    bench.path(0, ".log").write_bytes(broken)
    log = bench.open(clean=False)
    assert log._state.segments.active.largest_timestamp() == NOW_MS + 5


def test_compaction_keeps_their_times(bench: Bench) -> None:
    rows = put(
        bench,
        [doubtful(NOW_MS, NOW_MS + 7), doubtful(NOW_MS + 20, NOW_MS + 30)],
        [build_batch([(NOW_MS + 40, b"other", b"v", ())])],
        times_by_headers=True,
    )
    log = bench.open(clean=False, cleanup_policy="compact")
    compact(log)
    check_times(bench.reopen(log), [rows[3], rows[4]])


@pytest.mark.parametrize("clean", [True, False])
def test_verify_finds_nothing_wrong_with_them_once_they_are_served(bench: Bench, *, clean: bool) -> None:
    batches = [doubtful(NOW_MS + at, NOW_MS + at + 5) for at in range(0, 600, 10)]
    rows = put(bench, batches[:30], batches[30:], times_by_headers=True)
    log = bench.open(clean=clean, recovery_point=len(rows))
    check_times(log, rows)
    log.close()
    context = CheckContext(running=False, clean=True, index_interval_bytes=512, progress=lambda *_: None)
    assert list(PartitionCheck(bench.directory, context, Tally()).findings()) == []
