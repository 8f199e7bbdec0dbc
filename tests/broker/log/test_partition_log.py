"""Append and read, titles after Kafka's tests of its log (UnifiedLogTest, LocalLogTest, LogSegmentTest)."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from warmlog.broker.log.descriptions import LogRead
from warmlog.broker.log.errors import LogFailedError, OffsetOutOfRangeError, RecordListTooLargeError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.segments.tail import RollReason
from warmlog.protocol.errors import BatchTooLargeError, CorruptBatchError, InvalidRecordError, UnsupportedMagicError
from warmlog.protocol.records.batch import headers

Batch = Callable[..., bytes]
Bench = Any
OffsetsIn = Callable[..., list[int]]

START_MS = 1_700_000_000_000


def fill(log: PartitionLog, batch: Batch, batches: int, **how: int) -> None:
    for _ in range(batches):
        log.appends.append(batch(**how))


# -- append ------------------------------------------------------------------------------------------------------------


def test_a_new_log_is_empty_and_has_one_segment(bench: Bench) -> None:
    log = bench.open()
    assert (
        log.offsets.log_start_offset,
        log.offsets.log_end_offset,
        log.offsets.high_watermark,
        log.durability.recovery_point,
    ) == (0, 0, 0, 0)
    assert (log.size, log.segment_count, log.epochs.current, log.failed) == (0, 1, 0, False)
    assert sorted(os.listdir(bench.directory)) == [f"{0:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]


def test_appended_batches_get_consecutive_offsets_and_their_bytes_are_kept(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    sent = [batch(3), batch(1), batch(5)]
    planned = [log.appends.append(data) for data in sent]
    assert [(each.base_offset, each.last_offset) for each in planned] == [(0, 2), (3, 3), (4, 8)]
    assert (log.offsets.log_end_offset, log.offsets.high_watermark, log.size) == (9, 9, sum(map(len, sent)))
    stored = bench.path(0, ".log").read_bytes()
    assert [header.base_offset for _, header in headers(stored)] == [0, 3, 4]
    position = 0
    for data in sent:
        assert stored[position + 16 : position + len(data)] == data[16:], "all but offset, length and epoch is as sent"
        position += len(data)


def test_several_batches_in_one_append_stay_together(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    planned = log.appends.append(batch(2) + batch(3))
    assert (planned.base_offset, planned.last_offset, planned.size) == (0, 4, len(batch(2)) + len(batch(3)))
    assert offsets_in(log) == [0, 1, 2, 3, 4]


def test_a_memoryview_is_appended_like_bytes_and_never_changed(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    received = bytearray(batch(2))
    before = bytes(received)
    fill(log, batch, 2)
    log.appends.append(memoryview(received))
    assert received == before


def test_plans_queue_and_go_out_together(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    first, second, third = log.appends.plan(batch(2)), log.appends.plan(batch(1)), log.appends.plan(batch(4))
    assert [each.base_offset for each in (first, second, third)] == [0, 2, 3]
    assert log.offsets.log_end_offset == 0
    log.appends.write([first, second])
    assert log.offsets.log_end_offset == 0, "written is not yet committed"
    assert log.reads.read(0, 1000).slice is None
    log.appends.commit([first, second])
    assert log.offsets.log_end_offset == 3
    log.appends.write([third])
    log.appends.commit([third])
    assert offsets_in(log) == list(range(7))


def test_abandoned_plans_leave_no_trace(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    log.appends.append(batch(2))
    log.appends.plan(batch(3))
    log.appends.plan(batch(3))
    log.appends.abandon()
    assert log.appends.append(batch(1)).base_offset == 2
    assert offsets_in(log) == [0, 1, 2]


def test_batches_are_stamped_with_the_leader_epoch(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append(batch())
    log.epochs.assign(1, log.offsets.log_end_offset)
    assert log.epochs.current == 1
    log.appends.append(batch())
    assert [header.leader_epoch for _, header in headers(bench.path(0, ".log").read_bytes())] == [0, 1]
    assert [log.epochs.epoch_of(offset) for offset in (0, 1)] == [0, 1]
    assert log.epochs.end_offset(0, log.offsets.log_end_offset) == (0, 1)
    assert log.epochs.end_offset(1, log.offsets.log_end_offset) == (1, 2)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: data[:-1], CorruptBatchError),
        (lambda data: data + b"\0", CorruptBatchError),
        (lambda data: b"", InvalidRecordError),
        (lambda data: data[:70] + bytes([data[70] ^ 1]) + data[71:], CorruptBatchError),
        (lambda data: data[:16] + b"\1" + data[17:], UnsupportedMagicError),
        (lambda data: b"\0\0\0\0\0\0\0\1" + data[8:], InvalidRecordError),
    ],
)
def test_what_is_no_sound_batch_is_refused_and_nothing_is_stored(
    bench: Bench, batch: Batch, damage: Callable[[bytes], bytes], error: type[Exception]
) -> None:
    log = bench.open()
    log.appends.append(batch())
    with pytest.raises(error):
        log.appends.append(damage(batch()))
    assert log.offsets.log_end_offset == 1
    assert log.appends.append(batch()).base_offset == 1


def test_message_size_check(bench: Bench, batch: Batch) -> None:
    log = bench.open(max_message_bytes=len(batch(1)))
    log.appends.append(batch(1))
    with pytest.raises(BatchTooLargeError):
        log.appends.append(batch(2))
    log.appends.append(batch(1) + batch(1))


def test_message_set_size_check(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    log.appends.append(batch() + batch())
    with pytest.raises(RecordListTooLargeError):
        log.appends.append(batch() + batch() + batch())
    assert log.offsets.log_end_offset == 2


def test_settings_can_change_while_the_log_is_open(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 4)
    log.reconfigure(bench.config.__class__(segment_bytes=2 * len(batch()), index_interval_bytes=0))
    assert log.config.index_interval_bytes == 0
    assert log.appends.append(batch()).roll is RollReason.SIZE


# -- read --------------------------------------------------------------------------------------------------------------


def test_append_and_read_with_sequential_offsets(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 50)
    for offset in range(50):
        piece = log.reads.read(offset, 1, min_one_batch=True).slice
        assert piece is not None
        assert [header.base_offset for _, header in headers(piece.read_all())] == [offset]


@pytest.mark.parametrize("offset", [-1, 11, 1 << 40])
def test_read_out_of_range(bench: Bench, batch: Batch, offset: int) -> None:
    log = bench.open()
    fill(log, batch, 10)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        log.reads.read(offset, 1000)
    error = caught.value
    assert (error.offset, error.log_start_offset, error.log_end_offset) == (offset, 0, 10)


def test_read_before_the_log_start_is_out_of_range(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 10)
    log = bench.reopen(log)
    log.close()
    log = bench.open(log_start_offset=4)
    with pytest.raises(OffsetOutOfRangeError):
        log.reads.read(3, 1000)
    assert log.reads.read(4, 1000).slice is not None


def test_read_at_the_log_end_is_empty_with_the_position(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 10)
    found = log.reads.read(10, 1000)
    active = log.reads.describe().segments[-1]
    assert (found.slice, found.segment_base_offset, found.position) == (None, active.base_offset, active.size)
    assert not found.first_batch_incomplete


def test_read_on_an_empty_log_is_empty(bench: Bench) -> None:
    assert bench.open().reads.read(0, 1000) == LogRead(None, 0, 0)


def test_read_inside_a_batch_begins_with_the_whole_batch(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 5, count=10)
    found = log.reads.read(25, 1 << 20)
    assert found.slice is not None
    assert next(headers(found.slice.read_all()))[1].base_offset == 20


def test_a_slice_may_end_inside_a_batch(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 5)
    size = len(batch())
    found = log.reads.read(1, size + 30)
    assert found.slice is not None
    assert (found.slice.position, len(found.slice), found.first_batch_incomplete) == (size, size + 30, False)


def test_read_with_min_message_gives_the_first_batch_whole(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    size = len(batch())
    for max_bytes in (0, 1, size - 1):
        found = log.reads.read(0, max_bytes, min_one_batch=True)
        assert found.slice is not None
        assert (len(found.slice), found.first_batch_incomplete) == (size, False)


def test_read_with_too_small_max_length_marks_the_first_batch_incomplete(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    found = log.reads.read(1, 20)
    assert found.slice is not None
    assert (len(found.slice), found.first_batch_incomplete) == (20, True)


def test_a_max_size_of_zero_is_an_empty_slice_and_a_negative_one_an_error(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    found = log.reads.read(1, 0)
    assert (found.slice, found.position, found.first_batch_incomplete) == (None, len(batch()), False)
    with pytest.raises(ValueError, match="negative"):
        log.reads.read(1, -1)


def test_fetch_up_to_the_high_watermark(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    size = len(batch())
    for bound in range(21):
        for offset in range(21):
            found = log.reads.read(offset, 1 << 20, isolation_end=bound)
            if offset >= bound:
                assert found.slice is None
                assert (found.segment_base_offset, found.position) == log.reads.read(offset, 0)[1:3]
            else:
                assert found.slice is not None
                base = found.segment_base_offset
                assert found.slice.position == (offset - base) * size
                assert found.slice.position + len(found.slice) == min(bound - base, 4) * size


def test_a_bound_inside_a_batch_leaves_the_batch_out(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3, count=10)
    found = log.reads.read(0, 1 << 20, isolation_end=25)
    assert found.slice is not None
    assert len(found.slice) == 2 * len(batch(10))
    assert log.reads.read(20, 1 << 20, isolation_end=25, min_one_batch=True).slice is None


def test_a_bound_past_the_log_end_is_the_log_end(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    found = log.reads.read(0, 1 << 20, isolation_end=1 << 40)
    assert found.slice is not None
    assert len(found.slice) == log.size


def test_a_slice_outlives_truncation_deletion_and_eviction(bench: Bench, batch: Batch) -> None:
    bench.files.limit = 1
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    piece = log.reads.read(0, 1 << 20).slice
    assert piece is not None
    before = piece.read_all()
    log.reads.read(10, 100)
    moved = log.delete()
    for path in moved.iterdir():
        path.unlink()
    assert piece.read_all() == before


def test_reading_says_which_section_of_the_index_led_there(bench: Bench, batch: Batch) -> None:
    log = bench.open(index_interval_bytes=0, segment_index_bytes=1 << 20)
    fill(log, batch, 1, size=10)
    assert log.reads.read(0, 100).section is None
    fill(log, batch, 1499, size=10)
    assert log.reads.read(1499, 100).section == "warm"
    assert log.reads.read(5, 100).section == "cold"
    log.reconfigure(bench.config.__class__(index_search="plain"))
    assert log.reads.read(1499, 100).section == "cold"


def test_known_by_heart_or_scanned_a_batch_is_found_at_the_same_place(bench: Bench, batch: Batch) -> None:
    log = bench.open(index_interval_bytes=300, segment_bytes=1 << 20)
    places = []
    for count in (1, 5, 2, 7, 1, 1, 3, 9, 2, 2, 4, 1, 8, 2):
        planned = log.appends.append(batch(count))
        places += [planned.position] * count
        for offset in range(log.offsets.log_end_offset):
            assert log.reads.read(offset, 10).position == places[offset]


# -- ends --------------------------------------------------------------------------------------------------------------


def test_a_clean_stop_and_start_changes_nothing(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=700)
    for _ in range(3):
        fill(log, batch, 7)
        log = bench.reopen(log)
        assert log.recovery is None
        assert log.durability.recovery_point == log.offsets.log_end_offset
    assert offsets_in(log) == list(range(21))


def test_closing_trims_the_indexes_and_is_idempotent(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 20)
    log.close()
    log.close()
    assert bench.path(0, ".index").stat().st_size == 4 * 8
    assert bench.path(0, ".timeindex").stat().st_size == 12
    assert bench.files.statistics().open == bench.files.statistics().mappings == 0


def test_a_closed_log_refuses_to_be_used(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.close()
    assert not log.failed
    with pytest.raises(LogFailedError, match="closed"):
        log.appends.plan(batch())
    with pytest.raises(LogFailedError, match="closed"):
        log.reads.read(0, 100)


def test_deleting_moves_the_directory_to_kafkas_name(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    log.appends.append(batch())
    moved = log.delete()
    assert moved.parent == bench.directory.parent
    assert moved.name.startswith("words-0.")
    assert moved.name.endswith("-delete")
    assert not bench.directory.exists()
    assert bench.open().offsets.log_end_offset == 0


def test_leader_epochs_are_checkpointed_when_they_change(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    path = bench.directory / "leader-epoch-checkpoint"
    log.durability.checkpoint_epochs()
    assert path.read_text() == "0\n1\n0 0\n"
    log.appends.append(batch(3))
    log.epochs.assign(1, log.offsets.log_end_offset)
    path.unlink()
    log.durability.checkpoint_epochs()
    assert path.read_text() == "0\n2\n0 0\n1 3\n"
    path.unlink()
    log.durability.checkpoint_epochs()
    assert not path.exists()
    log = bench.reopen(log)
    assert log.epochs.current == 0, "without its checkpoint, the epochs are those of the batches"


def test_leader_epochs_that_could_not_be_written_are_at_the_next_checkpoint(bench: Bench) -> None:
    log = bench.open()
    bench.disk.fail("rename")
    with pytest.raises(OSError, match="Input/output"):
        log.durability.checkpoint_epochs()
    log.durability.checkpoint_epochs()
    assert (bench.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_description_tells_offsets_sizes_and_times(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    for i in range(10):
        log.appends.append(batch(timestamp=1000 + i))
    log.durability.flush()
    found = log.reads.describe()
    assert (found.topic, found.partition, found.log_end_offset, found.recovery_point) == ("words", 0, 10, 10)
    assert [(s.base_offset, s.next_offset, s.max_timestamp, s.active) for s in found.segments] == [
        (0, 4, 1003, False),
        (4, 8, 1007, False),
        (8, 10, 1009, True),
    ]
    assert found.size == sum(segment.size for segment in found.segments) == log.size
    assert all(segment.modified_ms > 0 for segment in found.segments)


def test_an_empty_log_has_no_times(bench: Bench) -> None:
    assert bench.open().reads.describe().segments[0].max_timestamp is None


def test_a_log_file_that_is_damaged_under_readers_is_told(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    log = bench.reopen(log)
    data = bytearray(bench.path(4, ".log").read_bytes())
    data[len(batch()) + 8 : len(batch()) + 12] = b"\0\0\0\1"
    bench.path(4, ".log").write_bytes(data)
    with pytest.raises(CorruptBatchError, match="batch length of 1"):
        log.reads.read(6, 100)


def test_a_log_file_truncated_under_readers_is_an_error_and_skips_no_records(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    for offset in range(10):
        log.appends.append(batch(timestamp=START_MS + offset))
    log = bench.reopen(log)
    log.reads.read(1, 100)
    os.truncate(bench.path(0, ".log"), 2 * len(batch()))
    assert log.reads.read(1, 100).position == len(batch())
    with pytest.raises(CorruptBatchError, match="ends near position 340"):
        log.reads.read(3, 100)
    with pytest.raises(CorruptBatchError, match="ends near position 340"):
        log.reads.offset_for_time(START_MS + 3)
