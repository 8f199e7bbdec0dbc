"""Logs that copy another log's batches, as followers do."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.log.producers.transactions import NOW_MS, committed, marker, opened, send, transactional
from warmlog.broker.log.compaction.run import CleanerLimits, Compaction
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.protocol.errors import CorruptBatchError, InvalidRecordError, ProtocolError
from warmlog.protocol.records.batch import headers, stamp
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.compaction.offset_map import OffsetMap
from warmlog.protocol.records.crc import crc32c
from warmlog.protocol.records.markers import EndMarker, Outcome, marker_batch

Batch = Callable[..., bytes]
Bench = Any

SMALL = LogConfig(segment_bytes=900, index_interval_bytes=150, segment_index_bytes=240)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[PartitionLog]:
    log = opened(tmp_path / "source" / "words-0", SMALL)
    assign_epoch(log, records_lost=False)
    yield log
    log.close(clean=False)


def at(offset: int, data: bytes, *, epoch: int = 0) -> bytes:
    """A batch as a leader has it."""
    moved = bytearray(data)
    stamp(moved, base_offset=offset, leader_epoch=epoch)
    return bytes(moved)


def follower(directory: Path, config: LogConfig = SMALL, **how: Any) -> PartitionLog:
    return opened(directory / "words-0", config, **how)


def bytes_of(log: PartitionLog) -> bytes:
    """All batches."""
    return b"".join(path.read_bytes() for path in sorted(log.directory.glob("*.log")))


def files_of(log: PartitionLog) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(log.directory.iterdir()) if "checkpoint" not in path.name}


def fill(log: PartitionLog) -> None:
    """Idempotent and transactional batches, several epochs, aborted and open transactions."""
    for number in range(12):
        rows = [(NOW_MS + number, b"k%d" % (number % 3), b"v" * 40, ()) for _ in range(number % 3 + 1)]
        log.appends.append(build_batch(rows, producer_id=5, producer_epoch=0, base_sequence=next_sequence(log, 5)))
        if number % 4 == 3:
            log.epochs.assign(log.epochs.current + 2, log.offsets.log_end_offset)
    send(log, 7, 0, 2)
    send(log, 8, 0)
    log.appends.append_marker(marker(7, Outcome.ABORT))
    send(log, 7, 2)
    log.appends.append_marker(marker(8, Outcome.COMMIT))
    log.appends.append_marker(marker(7, Outcome.ABORT))
    send(log, 8, 1)


def next_sequence(log: PartitionLog, producer_id: int) -> int:
    state = log.producers.get(producer_id)
    return 0 if state is None else state.last_sequence + 1


@pytest.mark.parametrize("size", [100, 250, 1000, 1 << 20])
def test_a_copy_has_the_same_batches_offsets_epochs_producers_and_transactions(
    source: PartitionLog, tmp_path: Path, size: int
) -> None:
    fill(source)
    copy = follower(tmp_path)
    content = bytes_of(source)
    begin = 0
    while begin < len(content):
        planned = copy.appends.append_copy(content[begin : begin + size])
        if not planned:  # the first batch is larger
            size *= 2
        begin += sum(each.size for each in planned)
    assert bytes_of(copy) == content
    assert copy.offsets.log_end_offset == source.offsets.log_end_offset
    assert copy.epochs.entries == source.epochs.entries
    assert list(copy.producers.capture()) == list(source.producers.capture())
    assert copy.offsets.last_stable_offset == source.offsets.last_stable_offset < source.offsets.log_end_offset
    assert committed(copy) == committed(source)
    source.close()
    copy.close()
    assert files_of(copy) == files_of(source), "segments, indexes, transaction indexes and snapshots, too"


def test_a_transaction_index_is_written_as_its_marker_is_copied(source: PartitionLog, tmp_path: Path) -> None:
    fill(source)
    copy = follower(tmp_path)
    copy.appends.append_copy(bytes_of(source))
    written = {path.name: path.read_bytes() for path in copy.directory.glob("*.txnindex")}
    assert written == {path.name: path.read_bytes() for path in source.directory.glob("*.txnindex")}
    assert any(written.values())


def test_a_copy_that_was_killed_recovers_what_its_source_has(source: PartitionLog, tmp_path: Path) -> None:
    fill(source)
    copy = follower(tmp_path)
    copy.appends.append_copy(bytes_of(source))
    copy.close(clean=False)
    copy = follower(tmp_path, clean=False)
    assert (copy.epochs.entries, copy.epochs.current) == (source.epochs.entries, source.epochs.current)
    assert {each.producer_id: each.last_sequence for each in copy.producers.capture()} == {
        each.producer_id: each.last_sequence for each in source.producers.capture()
    }
    assert committed(copy) == committed(source)


def test_duplicates_are_recognized_by_a_copy_that_leads(source: PartitionLog, tmp_path: Path) -> None:
    source.appends.append(build_batch([(NOW_MS, None, b"1", ())], producer_id=5, producer_epoch=0, base_sequence=0))
    sent = build_batch([(NOW_MS, None, b"2", ())], producer_id=5, producer_epoch=0, base_sequence=1)
    source.appends.append(sent)
    copy = follower(tmp_path)
    copy.appends.append_copy(bytes_of(source))
    copy.epochs.assign(1, copy.offsets.log_end_offset)
    planned = copy.appends.append(sent)
    assert (planned.is_duplicate, planned.base_offset, copy.offsets.log_end_offset) == (True, 1, 2)


def test_batches_that_a_leader_would_refuse_are_followed(tmp_path: Path) -> None:
    """Out of sequence, of an older epoch, in a transaction that nobody has verified: the leader has taken them."""
    copy = follower(tmp_path)
    copy.appends.append_copy(at(0, transactional(7, 40, epoch=3)))
    copy.appends.append_copy(at(1, transactional(7, 10, epoch=3)))
    copy.appends.append_copy(at(2, transactional(7, 5, epoch=2)))
    state = copy.producers.get(7)
    assert state is not None
    assert (state.epoch, state.last_sequence, state.transaction_first_offset) == (2, 5, 0)
    copy.appends.append_copy(at(3, marker_batch(7, 2, EndMarker(Outcome.ABORT, 0, NOW_MS))))
    assert copy.offsets.last_stable_offset == 4
    assert committed(copy) == []


def test_several_transactions_of_a_producer_come_in_one_piece(tmp_path: Path) -> None:
    copy = follower(tmp_path)
    abort, commit = (marker_batch(7, 0, EndMarker(outcome, 0, NOW_MS)) for outcome in (Outcome.ABORT, Outcome.COMMIT))
    pieces = [transactional(7, 0), abort, transactional(7, 1), commit, transactional(7, 2), abort, transactional(7, 3)]
    copy.appends.append_copy(b"".join(at(offset, piece) for offset, piece in enumerate(pieces)))
    assert (copy.offsets.last_stable_offset, copy.offsets.log_end_offset) == (6, 7)
    assert committed(copy) == [2]


def test_gaps_of_a_compacted_source_stay(bench: Bench, batch: Batch, offsets_in: Callable[..., list[int]]) -> None:
    log = bench.open(segment_bytes=2 * len(batch(2)))
    log.appends.append_copy(at(5, batch(2)) + at(20, batch(2)) + at(100, batch(2)) + at(150, batch(2)))
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (0, 152)
    assert offsets_in(log) == [5, 6, 20, 21, 100, 101, 150, 151]
    assert bench.path(22, ".log").exists(), "a segment begins where the log ends, whatever comes next"
    bench.kill(log)
    log = bench.open(clean=False)
    assert offsets_in(log) == [5, 6, 20, 21, 100, 101, 150, 151]
    assert log.recovery is not None
    assert log.recovery.truncated_bytes == 0
    assert offsets_in(bench.reopen(log)) == [5, 6, 20, 21, 100, 101, 150, 151]


@pytest.mark.parametrize("begin", [0, 7])
def test_gaps_larger_than_a_segment_can_span(
    bench: Bench, batch: Batch, offsets_in: Callable[..., list[int]], begin: int
) -> None:
    log, far = bench.open(), 5 << 32
    if begin:
        log.appends.append_copy(at(begin, batch()))
    log.appends.append_copy(at(far, batch()) + at(3 * far, batch()))
    expected = [begin, far, 3 * far] if begin else [far, 3 * far]
    assert offsets_in(log) == expected
    bench.kill(log)
    log = bench.open(clean=False)
    assert (offsets_in(log), log.offsets.log_end_offset) == (expected, 3 * far + 1)
    assert offsets_in(bench.reopen(log)) == expected


def test_a_lost_end_is_noticed_although_gaps_are_allowed(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    for offset in range(0, 50, 10):
        log.appends.append_copy(at(offset, batch()))
    bench.kill(log)
    path = bench.path(11, ".log")
    path.write_bytes(path.read_bytes()[: len(batch())])
    log = bench.open(clean=False)
    assert log.offsets.log_end_offset == 21


def test_what_a_compaction_has_left_is_copied(source: PartitionLog, tmp_path: Path) -> None:
    fill(source)
    source.appends.append_marker(marker(8, Outcome.COMMIT))
    source.rolls.roll()
    source.durability.flush()
    cleaning = source.cleaning
    limits = CleanerLimits(
        dedupe_buffer_bytes=10_000 * OffsetMap.ENTRY_SIZE,
        load_factor=0.9,
        io_buffer_bytes=0,
        max_bytes_per_second=1e300,
    )
    job = cleaning.job(cleaning.find(None), source.producers.capture(), limits)
    before = bytes_of(source)
    for group in Compaction(job, lambda _: None, source._state.context.disk).run():
        swap = cleaning.plan_swap(group)
        cleaning.prepare_swap(swap)
        cleaning.commit_swap(swap)
        names = cleaning.finish_swap(swap)
        cleaning.end_swap(swap)
        source.old_segments.unlink(names)
    content = bytes_of(source)
    assert len(content) < len(before)
    copy = follower(tmp_path)
    copy.appends.append_copy(content)
    assert bytes_of(copy) == content
    assert copy.offsets.log_end_offset == source.offsets.log_end_offset
    assert committed(copy) == committed(source)
    assert {each.producer_id: each.last_sequence for each in copy.producers.capture()} == {
        each.producer_id: each.last_sequence for each in source.producers.capture()
    }


def test_a_batch_that_is_cut_is_left_out(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    content = at(0, batch()) + at(1, batch())
    for end in range(len(batch())):
        assert log.appends.plan_copy(content[:end]) == []
    (planned,) = log.appends.append_copy(content[:-1])
    assert (planned.size, log.offsets.log_end_offset) == (len(batch()), 1)
    log.appends.append_copy(content[planned.size :])
    assert log.offsets.log_end_offset == 2


def test_batches_of_later_epochs_than_the_leaders_are_left_out(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append_copy(at(0, batch(), epoch=3) + at(1, batch(), epoch=4) + at(2, batch(), epoch=3), leader_epoch=3)
    assert (log.offsets.log_end_offset, log.epochs.current) == (1, 3)


def test_epochs_of_batches_are_kept_and_none_is_begun(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append_copy(at(0, batch(2), epoch=3) + at(2, batch(), epoch=3) + at(3, batch(), epoch=9))
    log.appends.append_copy(at(4, batch(), epoch=9))
    assert log.epochs.entries == ((3, 0), (9, 3))
    assert [header.leader_epoch for _, header in headers(bytes_of(log))] == [3, 3, 9, 9]


def test_a_batch_larger_than_a_segment_is_copied(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=len(batch()))
    planned = log.appends.append_copy(at(0, batch()) + at(1, batch(20)) + at(21, batch()))
    assert [each.base_offset for each in planned] == [0, 1, 21]
    assert log.segment_count == 3


def spoilt(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda batch: at(9, batch()), InvalidRecordError),
        (lambda batch: at(0, batch()), InvalidRecordError),
        (lambda batch: at(12, batch(2)) + at(13, batch()), InvalidRecordError),
        (lambda batch: at(-5, batch()), InvalidRecordError),
        (lambda batch: at((1 << 63) - 1, batch()), InvalidRecordError),
        (lambda batch: at(10, batch()) + spoilt(at(11, batch())), CorruptBatchError),
        (lambda batch: at(10, batch()) + bytes(100), ProtocolError),
        (lambda batch: b"\xff" * 200, ProtocolError),
    ],
)
def test_what_does_not_follow_or_is_damaged_is_refused_as_a_whole(
    bench: Bench, batch: Batch, make: Callable[[Batch], bytes], error: type[Exception]
) -> None:
    log = bench.open()
    log.appends.append_copy(at(0, batch(10)))
    before = bytes_of(log)
    with pytest.raises(error):
        log.appends.append_copy(make(batch))
    assert (log.offsets.log_end_offset, bytes_of(log)) == (10, before)
    log.appends.append_copy(at(10, batch()))
    assert log.offsets.log_end_offset == 11


def test_a_control_batch_that_cannot_be_decoded_changes_no_producer(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    bad = bytearray(at(1, marker_batch(7, 0, EndMarker(Outcome.ABORT, 0, NOW_MS))))
    bad[61] = 0x7F  # the length of its record
    with pytest.raises(ProtocolError):
        log.appends.append_copy(at(0, transactional(7, 0)) + resealed(bytes(bad)))
    assert (log.offsets.log_end_offset, log.producers.get(7), log.producers.planned) == (0, None, {})


def resealed(data: bytes) -> bytes:
    """The batch with the CRC of its bytes."""
    return data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]


def test_an_append_that_fails_leaves_nothing_of_a_copy(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    bench.disk.fail("pwritev", code=28)
    with pytest.raises(OSError, match="space"):
        log.appends.append_copy(at(0, transactional(7, 0), epoch=4))
    assert (log.offsets.log_end_offset, log.producers.get(7), log.epochs.current) == (0, None, 0)
    log.appends.append_copy(at(0, transactional(7, 0), epoch=4))
    assert (log.offsets.log_end_offset, log.offsets.last_stable_offset, log.epochs.current) == (1, 0, 4)
