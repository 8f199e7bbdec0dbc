"""Decoding fetched bytes: complete and truncated batches, control batches, start offsets."""

import pytest

from tests.protocol.records.handmade import batch, record
from warmlog.protocol.errors import CompressionError, CorruptBatchError, InvalidRecordError, UnsupportedCompressionError
from warmlog.protocol.records.batch import read_header
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import CONTROL_BIT, DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT, Codec
from warmlog.protocol.records.reader import decode_batch, decoded_batches, records_in
from warmlog.protocol.records.record import Record


def rows(*values: bytes) -> list[tuple[int, None, bytes, tuple[()]]]:
    return [(1000, None, value, ()) for value in values]


def built(base_offset: int, *values: bytes, codec: Codec = Codec.NONE, attributes: int = 0) -> bytes:
    return build_batch(rows(*values), base_offset=base_offset, compression=codec, attributes=attributes)


FETCHED = built(10, b"a", b"b") + built(12, b"c", b"d", codec=Codec.ZSTD) + built(14, b"e")


class TestDecodeBatch:
    @pytest.mark.parametrize("codec", list(Codec))
    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_a_batch_inside_a_buffer_is_read(self, codec: Codec, kind: type) -> None:
        buffer = kind(b"??" + built(7, b"a", b"b", codec=codec) + b"??")
        assert decode_batch(buffer, 2, read_header(buffer, 2)) == [
            Record(7, 1000, None, b"a"),
            Record(8, 1000, None, b"b"),
        ]

    def test_records_have_the_append_time_if_the_batch_is_marked_so(self) -> None:
        content = batch(record(timestamp_delta=5), attributes=LOG_APPEND_TIME_BIT, max_timestamp=7777)
        assert [found.timestamp for found in decode_batch(content, 0, read_header(content))] == [7777]

    def test_times_count_from_the_delete_horizon_where_it_is_set(self) -> None:
        content = batch(record(timestamp_delta=-5), attributes=DELETE_HORIZON_BIT, base_timestamp=5000)
        assert [found.timestamp for found in decode_batch(content, 0, read_header(content))] == [4995]

    def test_a_batch_that_compaction_thinned_is_read(self) -> None:
        content = batch(
            record(offset_delta=3) + record(offset_delta=9), base_offset=100, record_count=2, last_offset_delta=12
        )
        header = read_header(content)
        assert [found.offset for found in decode_batch(content, 0, header)] == [103, 109]
        assert header.next_offset == 113

    def test_a_batch_that_compaction_emptied_holds_nothing(self) -> None:
        content = batch(b"", record_count=0, last_offset_delta=4)
        assert decode_batch(content, 0, read_header(content)) == []

    def test_a_cut_batch_is_corrupt(self) -> None:
        content = built(0, b"abc")
        with pytest.raises(CorruptBatchError, match="is cut off after 70"):
            decode_batch(content[:70], 0, read_header(content))

    @pytest.mark.parametrize("codec", [5, 6, 7])
    def test_an_unknown_codec_is_refused(self, codec: int) -> None:
        content = batch(record(), attributes=codec)
        with pytest.raises(UnsupportedCompressionError):
            decode_batch(content, 0, read_header(content))

    @pytest.mark.parametrize("count", [-1, 0, 1, 3, 2**31 - 1])
    def test_a_count_that_lies_is_refused_also_inside_a_compressed_block(self, count: int) -> None:
        for codec in Codec:
            content = built(0, b"a", b"b", codec=codec)
            lying = read_header(content)._replace(record_count=count)
            with pytest.raises(InvalidRecordError):
                decode_batch(content, 0, lying)

    def test_a_decompression_bomb_is_rejected(self) -> None:
        content = built(0, bytes(1 << 20), codec=Codec.ZSTD)
        assert len(decode_batch(content, 0, read_header(content), max_decompressed_size=1 << 21)) == 1
        with pytest.raises(CompressionError):
            decode_batch(content, 0, read_header(content), max_decompressed_size=1 << 20)

    def test_a_consumer_makes_its_own_records(self) -> None:
        content = built(7, b"a")
        made = decode_batch(content, 0, read_header(content), make=lambda *fields: fields, prefix=("topic", 3))
        assert made == [("topic", 3, 7, 1000, None, b"a", ())]


class TestManyBatches:
    def test_every_record_of_every_batch_is_yielded_in_order(self) -> None:
        assert [(found.offset, found.value) for found in records_in(FETCHED)] == [
            (10, b"a"),
            (11, b"b"),
            (12, b"c"),
            (13, b"d"),
            (14, b"e"),
        ]

    def test_a_cut_tail_is_left_for_the_next_fetch(self) -> None:
        for cut in range(1, len(built(14, b"e")) + 1):
            assert [found.offset for found in records_in(FETCHED[:-cut])] == [10, 11, 12, 13]
        assert list(records_in(FETCHED[:60])) == []
        assert list(records_in(b"")) == []

    @pytest.mark.parametrize("first", range(9, 17))
    def test_records_below_the_offset_asked_for_are_left_out(self, first: int) -> None:
        found = list(records_in(FETCHED, from_offset=first))
        assert [one.offset for one in found] == list(range(max(first, 10), 15))

    def test_batches_entirely_below_the_offset_are_not_decoded(self) -> None:
        broken = batch(b"?", attributes=4, base_offset=0, crc=1)
        assert [found.offset for found in records_in(broken + FETCHED, from_offset=13)] == [13, 14]

    def test_control_batches_come_without_records_but_with_their_header(self) -> None:
        fetched = built(0, b"a") + built(1, b"\0\0\0\0\0\0", attributes=CONTROL_BIT) + built(2, b"b")
        assert [found.offset for found in records_in(fetched)] == [0, 2]
        assert [(header.next_offset, len(found)) for header, found in decoded_batches(fetched)] == [
            (1, 1),
            (2, 0),
            (3, 1),
        ]

    def test_the_crc_is_checked_unless_disabled(self) -> None:
        flipped = bytearray(FETCHED)
        flipped[-2] ^= 4
        found = records_in(flipped)
        assert [next(found).offset for _ in range(4)] == [10, 11, 12, 13]
        with pytest.raises(CorruptBatchError):
            next(found)
        assert len(list(records_in(flipped, check_crc=False))) == 5

    def test_a_consumer_makes_its_own_records(self) -> None:
        ((_, made),) = decoded_batches(built(7, b"a"), make=lambda *fields: fields, prefix=("topic",))
        assert made == [("topic", 7, 1000, None, b"a", ())]
