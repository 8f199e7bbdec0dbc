"""The indexes of closed segments: nothing is opened before it is used, and nothing is believed before it is checked."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from warmlog.broker.log.descriptions import LogRead
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.reads.time_search import first_at_or_past

Batch = Callable[..., bytes]
Bench = Any
OffsetsIn = Callable[..., list[int]]

START_MS = 1_700_000_000_000


@pytest.fixture
def log(bench: Bench, batch: Batch) -> PartitionLog:
    """A reopened log of 5 segments of 20 batches each, the last one active."""
    log: PartitionLog = bench.open(segment_bytes=20 * len(batch()))
    for _ in range(100):
        log.appends.append(batch(timestamp=START_MS + log.offsets.log_end_offset))
    return bench.reopen(log)


def opened_files(bench: Bench) -> set[str]:
    return {Path(str(path)).name for verb, path in bench.disk.calls if verb == "open"}


def test_a_segment_is_opened_when_it_is_read(bench: Bench, log: PartitionLog) -> None:
    bench.disk.calls.clear()
    assert log.reads.read(45, 100).position == 5 * 170
    assert opened_files(bench) == {f"{40:020d}.index", f"{40:020d}.log"}
    bench.disk.calls.clear()
    log.reads.read(46, 100)
    assert opened_files(bench) == set()
    assert bench.files.statistics().mappings == 1


def test_mappings_are_bounded(bench: Bench, log: PartitionLog) -> None:
    bench.files.limit = 2
    for offset in range(100):
        assert log.reads.read(offset, 100).position == offset % 20 * 170
    held = bench.files.statistics()
    assert held.open + held.mappings <= 2
    assert held.evicted > 0


def flip(path: Path, at: int) -> None:
    """Alter one byte of an entry that the O(1) check does not look at."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "odd size": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "never trimmed": lambda path: os.truncate(path, 4096 // 24 * 24),
    "zeros": lambda path: path.write_bytes(bytes(len(path.read_bytes()))),
    "an entry altered": lambda path: flip(path, 7 if path.suffix == ".index" else 2 * 12 + 7),
    "shuffled": lambda path: path.write_bytes(path.read_bytes()[24:] + path.read_bytes()[:24]),
    "last entry altered": lambda path: path.write_bytes(path.read_bytes()[:-5] + b"\x01\x02\x03\x04\x05"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_bad_offset_index_is_told_at_its_first_use_and_made_anew(
    bench: Bench, log: PartitionLog, offsets_in: OffsetsIn, damage: Callable[[Path], object]
) -> None:
    path = bench.path(40, ".index")
    sound = path.read_bytes()
    damage(path)
    for _ in range(2):
        with pytest.raises(IndexCorruptError) as caught:
            log.reads.read(45, 100)
    assert caught.value.base_offset == 40
    log.reads.rebuild_indexes(40)
    assert path.read_bytes() == sound
    assert log.reads.read(45, 100).position == 5 * 170
    assert offsets_in(log) == list(range(100))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_bad_time_index_is_made_anew_before_it_is_believed(
    bench: Bench, log: PartitionLog, damage: Callable[[Path], object]
) -> None:
    path = bench.path(40, ".timeindex")
    sound = path.read_bytes()
    damage(path)
    for offset in (39, 40, 55, 59, 60):
        found = log.reads.offset_for_time(START_MS + offset)
        assert found is not None
        assert (found.timestamp, found.offset) == (START_MS + offset, offset)
    assert path.read_bytes() == sound
    assert [segment.max_timestamp for segment in log.reads.describe().segments] == [
        START_MS + last for last in (19, 39, 59, 79, 99)
    ]


def test_a_zero_padded_time_index_does_not_date_a_segment_to_1970(bench: Bench, log: PartitionLog) -> None:
    os.truncate(bench.path(40, ".timeindex"), 10 << 20)
    assert log.reads.describe().segments[2].max_timestamp == START_MS + 59


def test_the_active_segment_and_unknown_ones_are_not_rebuilt(bench: Bench, log: PartitionLog) -> None:
    bench.disk.calls.clear()
    log.reads.rebuild_indexes(80)
    log.reads.rebuild_indexes(33)
    assert bench.disk.calls == []


def test_rebuilding_keeps_what_readers_hold(bench: Bench, log: PartitionLog) -> None:
    log.reads.read(45, 100)
    index = log._state.segments.get(40).offset_index
    view = index.view()
    before = bytes(view)
    log.reads.rebuild_indexes(40)
    assert bytes(view) == before
    assert log.reads.read(45, 100).position == 5 * 170


def test_one_large_batch_needs_no_entry_in_the_offset_index(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append(batch(count=100))
    log.rolls.roll()
    log.appends.append(batch())
    log = bench.reopen(log)
    assert bench.path(0, ".index").stat().st_size == 0
    assert log.reads.read(50, 100).position == 0


def test_an_empty_closed_segment_between_others_is_read_over(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    """Compaction leaves such segments."""
    log = bench.open()
    for _ in range(3):
        log.appends.append(batch())
        log.rolls.roll()
    log.appends.append(batch())
    log.close()
    for suffix in (".log", ".index", ".timeindex"):
        bench.path(1, suffix).write_bytes(b"")
    log = bench.open()
    assert log.recovery is None
    found = log.reads.read(1, 1000)
    assert (found.segment_base_offset, found.position) == (2, 0)
    assert offsets_in(log) == [0, 2, 3]
    assert log.reads.offset_for_time(START_MS) is not None


def test_a_log_that_ends_in_a_gap_reads_empty_at_its_end(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append(batch())
    log.rolls.roll()
    log.appends.append(batch())
    log.rolls.roll()
    log.close()
    for suffix in (".log", ".index", ".timeindex"):
        bench.path(1, suffix).write_bytes(b"")
    log = bench.open()
    assert log.offsets.log_end_offset == 2
    assert log.reads.read(1, 1000) == LogRead(None, 2, 0)


def test_read_from_a_gap_inside_a_segment_begins_after_it(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    for _ in range(10):
        log.appends.append(batch())
    log.close()
    size = len(batch())
    data = bench.path(0, ".log").read_bytes()
    bench.path(0, ".log").write_bytes(data[: 2 * size] + data[6 * size :])
    for suffix in (".index", ".timeindex"):
        bench.path(0, suffix).unlink()
    log = bench.open()
    assert log.offsets.log_end_offset == 10
    for offset in range(2, 7):
        assert log.reads.read(offset, 1000).position == 2 * size
    assert log.reads.read(7, 1000).position == 3 * size
    assert log.reads.read(4, 1000, isolation_end=5).slice is None, "what comes after the gap lies past the bound"


def bit_flips(path: Path) -> Iterator[None]:
    """Flip each bit of a file, one after the other; the file is left as it was."""
    sound = path.read_bytes()
    for bit in range(8 * len(sound)):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        yield
    path.write_bytes(sound)


def test_no_flipped_bit_of_an_offset_index_gives_a_wrong_answer(bench: Bench, log: PartitionLog) -> None:
    segment, told = log._state.segments.get(40), 0
    assert segment is not None
    for _ in bit_flips(bench.path(40, ".index")):
        segment.forget_indexes()
        for offset in range(40, 60):
            try:
                found = log.reads.read(offset, 100)
            except IndexCorruptError:
                told += 1
            else:
                assert (found.segment_base_offset, found.position) == (40, (offset - 40) * 170)
    assert told > 0


def test_no_flipped_bit_of_a_time_index_gives_a_wrong_answer(bench: Bench, log: PartitionLog) -> None:
    segment, told = log._state.segments.get(40), 0
    assert segment is not None
    for _ in bit_flips(bench.path(40, ".timeindex")):
        segment.forget_indexes()
        for offset in range(40, 60):
            try:
                found = first_at_or_past(log.reads._time_view(None), START_MS + offset)
            except IndexCorruptError:
                told += 1
            else:
                assert found is not None
                assert (found.timestamp, found.offset) == (START_MS + offset, offset)
    assert told > 0
