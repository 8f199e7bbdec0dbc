from collections.abc import Callable

import pytest

from warmlog.broker.log.appends.planned import extents, stamped, whole
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.time import TimeIndex
from warmlog.broker.log.segments.tail import BatchExtent, RollReason, Tail, joined
from warmlog.protocol.errors import InvalidRecordError
from warmlog.protocol.records.batch import headers, verify_crc
from warmlog.protocol.records.validation import check_batches

CONFIG = LogConfig(segment_bytes=10_000, segment_ms=1000, segment_index_bytes=24 * 4, index_interval_bytes=100)
Batch = Callable[..., bytes]
FAR_FUTURE = 1 << 60  # ms: by this clock every segment is old


def tail(base_offset: int = 0, *, jitter_ms: int = 0, config: LogConfig = CONFIG) -> Tail:
    return Tail(base_offset, config, created_ms=5000, jitter_ms=jitter_ms)


def offsets_of(data: bytes) -> list[tuple[int, int]]:
    return list(OffsetIndex.entry.iter_unpack(data))


def test_the_first_batch_has_no_entry_and_later_ones_have_one_past_the_interval() -> None:
    end, found = tail(), []
    for offset in range(10):
        entries = end.add(BatchExtent(offset, 1000 + offset, 60))
        found += offsets_of(entries.offset_index) if entries else []
    assert found == [(2, 120), (4, 240), (6, 360), (8, 480)]


def test_exactly_the_interval_is_not_past_it() -> None:
    end = tail()
    assert end.add(BatchExtent(0, 1, 100)) is None
    assert end.add(BatchExtent(1, 1, 1)) is None
    assert end.add(BatchExtent(2, 1, 1)) is not None


def test_a_time_entry_comes_with_an_offset_entry_if_it_is_later() -> None:
    end = tail()
    times = [10, 30, 20, 25, 40, 5, 6, 7]
    entries = [end.add(BatchExtent(offset, time, 101)) for offset, time in enumerate(times)]
    found = [list(TimeIndex.entry.iter_unpack(each.time_index)) for each in entries if each]
    assert found == [[(30, 1)], [], [], [(40, 4)], [], [], []]


def test_the_last_time_entry_tells_the_largest_time_once() -> None:
    end = tail()
    end.add(BatchExtent(3, 77, 10))
    assert list(TimeIndex.entry.iter_unpack(end.last_time_entry())) == [(77, 3)]
    assert end.last_time_entry() == b""


def test_records_without_a_time_leave_the_time_index_alone() -> None:
    end = tail()
    entries = [end.add(BatchExtent(offset, -1, 200)) for offset in range(3)]
    assert [each.time_index for each in entries if each] == [b"", b""]
    assert end.last_time_entry() == b""


def test_a_full_index_gets_no_more_entries_within_one_append() -> None:
    end = tail(config=LogConfig(segment_index_bytes=16, index_interval_bytes=0))
    added = [end.add(BatchExtent(offset, offset, 10)) for offset in range(6)]
    entries = joined([each for each in added if each is not None])
    assert offsets_of(entries.offset_index) == [(1, 10), (2, 20)]
    assert entries.time_index == b"", "its only slot is for the roll"


def test_an_empty_segment_is_not_rolled_for_size_or_time() -> None:
    assert tail().roll_reason(BatchExtent(0, 1 << 50, 9_999_999), FAR_FUTURE) is None


def test_it_rolls_when_the_size_would_exceed_segment_bytes() -> None:
    end = tail()
    end.add(BatchExtent(0, 1, 9000))
    assert end.roll_reason(BatchExtent(1, 1, 1000), FAR_FUTURE) is None
    assert end.roll_reason(BatchExtent(1, 1, 1001), FAR_FUTURE) is RollReason.SIZE


def test_it_rolls_by_the_batches_own_times_and_replayed_old_data_does_not_roll() -> None:
    end = tail()
    end.add(BatchExtent(0, 100, 10))
    assert end.roll_reason(BatchExtent(1, 1100, 10), FAR_FUTURE) is None
    assert end.roll_reason(BatchExtent(1, 1101, 10), FAR_FUTURE) is RollReason.TIME
    assert end.roll_reason(BatchExtent(1, -1, 10), FAR_FUTURE) is None


def test_jitter_rolls_earlier() -> None:
    end = tail(jitter_ms=300)
    end.add(BatchExtent(0, 100, 10))
    assert end.roll_reason(BatchExtent(1, 800, 10), FAR_FUTURE) is None
    assert end.roll_reason(BatchExtent(1, 801, 10), FAR_FUTURE) is RollReason.TIME


def test_the_clock_counts_where_the_first_batch_has_no_time() -> None:
    end = tail()
    end.add(BatchExtent(0, -1, 10))
    assert end.roll_reason(BatchExtent(1, -1, 10), 6000) is None
    assert end.roll_reason(BatchExtent(1, 1, 10), 6001) is RollReason.TIME


def test_it_rolls_when_the_offset_index_is_full() -> None:
    config = LogConfig(segment_index_bytes=16, index_interval_bytes=0)
    end = tail(config=config)
    for offset in range(3):
        assert end.offset_entries < 2
        end.add(BatchExtent(offset, -1, 10))
    assert end.roll_reason(BatchExtent(3, -1, 10), 5000) is RollReason.INDEX_FULL


def test_it_rolls_when_the_time_index_is_full_one_entry_early() -> None:
    config = LogConfig(segment_index_bytes=36, index_interval_bytes=0)
    end = tail(config=config)
    for offset in range(3):
        assert end.roll_reason(BatchExtent(offset, offset, 10), FAR_FUTURE) is None
        end.add(BatchExtent(offset, offset, 10))
    assert (end.offset_entries, end.time_entries) == (2, 2)
    assert end.roll_reason(BatchExtent(3, 3, 10), FAR_FUTURE) is RollReason.INDEX_FULL


def test_it_rolls_when_a_relative_offset_would_not_fit_31_bits() -> None:
    end = tail(100)
    end.add(BatchExtent(100, 1, 10))
    assert end.roll_reason(BatchExtent(100 + (1 << 31) - 1, 1, 10), FAR_FUTURE) is None
    assert end.roll_reason(BatchExtent(100 + (1 << 31), 1, 10), FAR_FUTURE) is RollReason.OFFSET_RANGE


def test_an_empty_segment_is_rolled_if_offsets_would_not_fit() -> None:
    assert tail(0).roll_reason(BatchExtent(1 << 31, 1, 10), FAR_FUTURE) is RollReason.OFFSET_RANGE


def test_a_copy_goes_its_own_way() -> None:
    end = tail()
    end.add(BatchExtent(0, 1, 10))
    other = end.copy()
    other.add(BatchExtent(5, 9, 10))
    assert (end.next_offset, end.size, end.max_timestamp) == (1, 10, 1)
    assert (other.next_offset, other.size, other.max_timestamp) == (6, 20, 9)


def test_offsets_go_on_from_batch_to_batch(batch: Batch) -> None:
    data = batch(3) + batch(1) + batch(5)
    found = extents(check_batches(data), 100)
    assert [each.last_offset for each in found] == [102, 103, 108]
    assert whole(found).last_offset == 108
    assert whole(found).size == len(data)


def test_a_producer_may_count_through_the_batches_of_one_request(batch: Batch) -> None:
    data = batch(3) + batch(2, base_offset=3)
    assert [each.last_offset for each in extents(check_batches(data), 0)] == [2, 4]


@pytest.mark.parametrize("wrong", [(1, 0), (0, 1), (0, 4), (0, -1)])
def test_another_sequence_of_base_offsets_is_refused(batch: Batch, wrong: tuple[int, int]) -> None:
    first, second = wrong
    data = batch(3, base_offset=first) + batch(2, base_offset=second)
    with pytest.raises(InvalidRecordError):
        extents(check_batches(data), 50)


def test_stamping_copies_headers_and_leaves_the_received_bytes_alone(batch: Batch) -> None:
    data = batch(3) + batch(2)
    before = bytes(data)
    written = b"".join(stamped(memoryview(data), check_batches(data), 1000, 7))
    assert data == before
    found = list(headers(written))
    assert [(header.base_offset, header.leader_epoch) for _, header in found] == [(1000, 7), (1003, 7)]
    for position, header in found:
        verify_crc(written, position, header)
    assert len(written) == len(data)
