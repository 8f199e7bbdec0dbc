"""Blocks read part by part: the same records as when they are read at once, in bounded memory."""

import tracemalloc
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.records.handmade import batch, record, varint
from warmlog.protocol.errors import InvalidRecordError, ProtocolError
from warmlog.protocol.records import windows
from warmlog.protocol.records.batch import read_header, verify_crc
from warmlog.protocol.records.codec import Record, decode_records
from warmlog.protocol.records.compaction.filtering import FilterRules, OffsetMap, add_batch, filter_batch
from warmlog.protocol.records.compression import Codec, compress, compressed_parts
from warmlog.protocol.records.layout import DELETE_HORIZON_BIT
from warmlog.protocol.records.reader import batch_windows, decode_batch, offsets_and_times, with_sound_timestamp
from warmlog.protocol.records.record import Buffer
from warmlog.protocol.records.windows import record_windows

SMALL = 100  # bytes of a window in these tests
NOW_MS = 1_700_000_000_000
CODECS = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW", SMALL)


def parts_of(data: bytes, size: int) -> Iterator[Buffer]:
    return (memoryview(data)[start : start + size] for start in range(0, len(data), size))


def decoded(data: Buffer, count: int) -> list[Record]:
    return decode_records(data, 0, len(data), count, 0, 0)


def rows(sizes: list[int | None], *, keys: list[bytes | None] | None = None) -> bytes:
    """Encode records whose values have these sizes, or are null."""
    return b"".join(
        record(
            offset_delta=number,
            timestamp_delta=number * 7,
            key=b"k%d" % number if keys is None else keys[number],
            value=None if size is None else b"v" * size,
            headers=[(b"h", b"x")] if number % 3 == 0 else [],
        )
        for number, size in enumerate(sizes)
    )


VALUE_SIZES = st.lists(st.one_of(st.none(), st.integers(0, 20), st.integers(60, 300)), min_size=1, max_size=40)


@pytest.mark.usefixtures("small_windows")
class TestSmallWindows:
    @given(sizes=VALUE_SIZES, part_size=st.integers(1, 150))
    def test_windows_hold_all_records_in_order(self, sizes: list[int | None], part_size: int) -> None:
        data, count = rows(sizes), len(sizes)
        found: list[Record] = []
        raw = b""
        for window in record_windows(parts_of(data, part_size), count):
            found += decoded(window.records, window.count)
            raw += bytes(window.records) if window.large is None else b"".join(window.large.parts())
        assert raw == data
        expected = decoded(data, count)
        assert [each.offset for each in found] == [each.offset for each in expected]
        assert [(each.timestamp, each.key) for each in found] == [(each.timestamp, each.key) for each in expected]
        assert [each.value is None for each in found] == [each.value is None for each in expected]

    @given(sizes=VALUE_SIZES, part_size=st.integers(1, 150))
    def test_large_records_may_be_left_unread(self, sizes: list[int | None], part_size: int) -> None:
        count = 0
        for window in record_windows(parts_of(rows(sizes), part_size), len(sizes)):
            count += window.count
            if window.large is not None:
                next(window.large.parts())
        assert count == len(sizes)

    @given(data=st.data(), sizes=VALUE_SIZES, change=st.integers(-3, 3))
    def test_another_count_is_refused(self, data: st.DataObject, sizes: list[int | None], change: int) -> None:
        content = rows(sizes)
        end = data.draw(st.integers(0, len(content)))
        count = len(sizes) + change
        if count < 0 or (count <= len(sizes) and content[:end] == rows(sizes[:count])):
            return
        with pytest.raises(InvalidRecordError):
            for window in record_windows(parts_of(content[:end], 64), count):
                decoded(window.records, window.count)

    @given(noise=st.binary(max_size=400), count=st.integers(0, 50), before=VALUE_SIZES)
    def test_noise_raises_nothing_else(self, noise: bytes, count: int, before: list[int | None]) -> None:
        for content in (noise, rows(before) + noise):
            try:
                for window in record_windows(parts_of(content, 64), count):
                    decoded(window.records, window.count)
                    for _ in window.large.parts() if window.large else ():
                        pass
            except InvalidRecordError:
                pass

    def test_a_large_key_is_kept_whole(self) -> None:
        data = rows([None, 5], keys=[b"k" * 1000, b"x"])
        first, second, *_ = record_windows(parts_of(data, 30), 2)
        assert decoded(first.records, 1)[0].key == b"k" * 1000
        assert first.large is not None
        assert decoded(second.records, second.count)[0].offset == 1

    @pytest.mark.parametrize(
        "fields",
        [
            b"\0\0\0" + varint(-2) + b"x" * 500,  # the key's length
            b"\0\0\0" + varint(600) + b"x" * 500,
            b"\0\0\0" + varint(-1) + varint(600) + b"x" * 500,  # the value's
            b"\0\0\0" + varint(-1) + varint(-2) + b"x" * 500,
            b"\0" + b"\xff" * 11 + b"x" * 500,  # the timestamp
        ],
    )
    def test_impossible_fields_of_a_large_record_are_refused(self, fields: bytes) -> None:
        with pytest.raises(InvalidRecordError):
            list(record_windows(parts_of(varint(len(fields)) + fields, 30), 1))

    @pytest.mark.parametrize("codec", CODECS)
    @given(sizes=VALUE_SIZES, seed=st.integers())
    def test_compaction_keeps_the_same_records(self, codec: Codec, sizes: list[int | None], seed: int) -> None:
        content, count = rows(sizes), len(sizes)
        stored = batch(
            b"".join(compressed_parts(codec, [content])),
            attributes=codec,
            record_count=count,
            base_timestamp=NOW_MS,
            max_timestamp=NOW_MS + 7 * (count - 1),
        )
        superseded = [b"k%d" % number for number in Random(seed).sample(range(count), count // 2)]
        later = batch(
            b"".join(record(offset_delta=number, key=key) for number, key in enumerate(superseded)),
            base_offset=count,
            record_count=len(superseded),
        )
        outcomes = []
        for size in (SMALL, 1 << 20):
            windows.WINDOW = size
            known = OffsetMap(1 << 16)
            header = read_header(stored)
            add_batch(known, stored, header, 0)
            assert known.latest_offset == count - 1
            if superseded:
                add_batch(known, later, read_header(later), 0)
            outcomes.append(bytes(filter_batch(known, stored, header, FilterRules(NOW_MS, 1000, frozenset()))))
        windows.WINDOW = SMALL
        by_parts, at_once = outcomes
        assert bool(by_parts) == bool(at_once)
        if at_once:
            assert read_header(by_parts)._replace(crc=0, batch_length=0) == read_header(at_once)._replace(
                crc=0, batch_length=0
            )
            verify_crc(by_parts, 0, read_header(by_parts))
            assert decode_batch(by_parts, 0, read_header(by_parts)) == decode_batch(at_once, 0, read_header(at_once))

    def test_a_large_tombstone_sets_the_delete_horizon(self) -> None:
        content = rows([5, None], keys=[b"a", b"k" * 1000])
        stored = batch(compress(Codec.GZIP, content), attributes=1, record_count=2, base_timestamp=NOW_MS)
        known = OffsetMap(1 << 16)
        filtered = filter_batch(known, stored, read_header(stored), FilterRules(NOW_MS, 1000, frozenset()))
        header = read_header(filtered)
        assert header.attributes & DELETE_HORIZON_BIT
        assert header.base_timestamp == NOW_MS + 1000
        assert decode_batch(filtered, 0, header) == decode_batch(stored, 0, read_header(stored))


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_that_opens_to_140_mib_is_read_and_compacted_in_bounded_memory(codec: Codec) -> None:
    def parts() -> Iterator[bytes]:
        yield record(key=b"a", value=b"1")
        body = b"\0\0" + varint(1) + varint(1) + b"b" + varint(140 << 20)
        yield varint(len(body) + (140 << 20) + 1) + body
        for _ in range(140):
            yield bytes(1 << 20)
        yield b"\0" + record(offset_delta=2, timestamp_delta=5, key=b"c", value=b"3")

    # The fields around the block are packed by hand: the CRC by bits would take minutes.
    block = b"".join(compressed_parts(codec, parts()))
    header = read_header(batch(b"", attributes=codec, record_count=3, crc=0))
    header = header._replace(batch_length=49 + len(block), base_timestamp=NOW_MS)
    stored = bytes(61) + block
    known = OffsetMap(1 << 16)
    tracemalloc.start()
    try:
        assert list(offsets_and_times(stored, 0, header)) == [(0, NOW_MS), (1, NOW_MS), (2, NOW_MS + 5)]
        assert with_sound_timestamp(stored, 0, header._replace(max_timestamp=-1)).max_timestamp == NOW_MS + 5
        add_batch(known, stored, header, 0)
        later = batch(record(key=b"a"), base_offset=3)
        add_batch(known, later, read_header(later), 0)
        filtered = filter_batch(known, stored, header, FilterRules(NOW_MS, 1000, frozenset()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    kept = read_header(filtered)
    assert [offset for offset, _ in offsets_and_times(filtered, 0, kept)] == [1, 2]
    assert peak < (32 << 20) + 3 * len(block)


def test_an_uncompressed_batch_is_one_window() -> None:
    stored = batch(rows([1, 2]), record_count=2)
    (window,) = batch_windows(stored, 0, read_header(stored))
    assert decoded(window.records, window.count) == decoded(rows([1, 2]), 2)


def test_an_unknown_codec_is_refused_with_an_error_of_the_protocol() -> None:
    stored = batch(rows([1]), attributes=5)
    with pytest.raises(ProtocolError, match="unknown compression codec 5"):
        batch_windows(stored, 0, read_header(stored))
