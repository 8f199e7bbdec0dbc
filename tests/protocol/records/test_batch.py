"""Finding, checking and stamping batches. Each rule of `check_batches` is tested with a batch violating only that."""

from contextlib import suppress
from struct import pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.records.handmade import batch, crc32c_by_bits, record
from warmlog.protocol.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    ErrorCode,
    InvalidRecordError,
    InvalidTimestampError,
    ProtocolError,
    UnsupportedCompressionError,
    UnsupportedMagicError,
)
from warmlog.protocol.records.batch import headers, read_header, stamp, verify_crc
from warmlog.protocol.records.validation import BatchRules, NeedsReencodingError, check_batches

ONE = batch(record(value=b"x" * 100))
THREE = batch(b"".join(record(offset_delta=delta) for delta in range(3)), record_count=3, base_offset=5)


def test_the_handmade_crc_is_castagnolis() -> None:
    # The check value of CRC-32C, and the one of RFC 3720 (B.4) for 32 zeros.
    assert crc32c_by_bits(b"123456789") == 0xE3069283
    assert crc32c_by_bits(bytes(32)) == 0x8A9136AA


class TestReadHeader:
    def test_a_header_is_read_at_its_position(self) -> None:
        assert read_header(b"??" + THREE, 2).base_offset == 5
        assert read_header(memoryview(b"??" + THREE), 2).record_count == 3

    def test_fewer_bytes_than_a_header_are_corrupt(self) -> None:
        for size in (0, 1, 16, 17, 60):
            with pytest.raises(CorruptBatchError, match=f"{size} bytes are too few"):
                read_header(ONE[:size])
        with pytest.raises(CorruptBatchError):
            read_header(b"??" + ONE[:60], 2)

    @pytest.mark.parametrize("length", [48, 0, -1, -(2**31)])
    def test_a_length_smaller_than_a_header_is_corrupt(self, length: int) -> None:
        with pytest.raises(CorruptBatchError, match=f"the batch length of {length} bytes"):
            read_header(batch(b"", batch_length=length))

    @pytest.mark.parametrize("magic", [0, 1])
    def test_an_old_format_is_refused(self, magic: int) -> None:
        with pytest.raises(UnsupportedMagicError, match=f"message format version {magic} is not supported") as old:
            read_header(batch(b"", magic=magic))
        assert old.value.code == ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("magic", [3, -1, 127])
    def test_a_format_that_there_is_not_is_damage(self, magic: int) -> None:
        with pytest.raises(CorruptBatchError, match=f"unknown message format version {magic}"):
            read_header(batch(b"", magic=magic))

    def test_an_old_batch_shorter_than_a_header_is_refused_for_its_magic(self) -> None:
        with pytest.raises(UnsupportedMagicError, match="message format version 1"):
            read_header(bytes(16) + b"\x01" + bytes(20))


class TestHeaders:
    def test_complete_batches_are_found_one_after_the_other(self) -> None:
        found = list(headers(ONE + THREE + ONE))
        assert [position for position, _ in found] == [0, len(ONE), len(ONE) + len(THREE)]
        assert [header.record_count for _, header in found] == [1, 3, 1]

    def test_a_cut_tail_ends_them(self) -> None:
        for cut in range(1, len(THREE) + 1):
            assert len(list(headers((ONE + THREE)[:-cut]))) == 1

    def test_they_begin_and_end_where_asked(self) -> None:
        both = ONE + THREE
        assert [position for position, _ in headers(both, len(ONE))] == [len(ONE)]
        assert [position for position, _ in headers(both, 0, len(both) - 1)] == [0]
        assert list(headers(both, len(both))) == []
        assert list(headers(b"")) == []

    def test_a_broken_header_is_raised_when_it_is_reached(self) -> None:
        found = headers(ONE + batch(b"", magic=0))
        assert next(found)[0] == 0
        with pytest.raises(UnsupportedMagicError):
            next(found)


class TestVerifyCrc:
    def test_an_intact_batch_passes(self) -> None:
        verify_crc(b"??" + THREE, 2, read_header(THREE))

    def test_the_crc_covers_every_byte_from_the_attributes_on(self) -> None:
        for position in range(21, len(THREE)):
            for bit in range(8):
                flipped = bytearray(THREE)
                flipped[position] ^= 1 << bit
                with pytest.raises(CorruptBatchError, match="the CRC of the batch is"):
                    verify_crc(flipped, 0, read_header(flipped))

    def test_a_cut_batch_is_corrupt(self) -> None:
        with pytest.raises(CorruptBatchError, match=f"a batch of {len(THREE)} bytes is cut off after 70"):
            verify_crc(THREE[:70], 0, read_header(THREE))

    def test_large_batches_are_checked_alike(self) -> None:
        large = batch(record(value=bytes(1 << 16)) * 1) + bytes(0)
        verify_crc(large, 0, read_header(large))


class TestCheckBatches:
    def test_it_gives_where_each_batch_is(self) -> None:
        found = check_batches(ONE + THREE, BatchRules(max_batch_size=len(ONE)))
        assert [(position, header.base_offset, header.record_count) for position, header in found] == [
            (0, 0, 1),
            (len(ONE), 5, 3),
        ]

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_it_takes_every_kind_of_buffer(self, kind: type) -> None:
        assert check_batches(kind(ONE)) == [(0, read_header(ONE))]

    def test_no_bytes_are_an_error(self) -> None:
        with pytest.raises(InvalidRecordError, match="no batches to append"):
            check_batches(b"")

    def test_a_batch_cut_anywhere_is_corrupt(self) -> None:
        for end in range(1, len(ONE)):
            with pytest.raises(CorruptBatchError):
                check_batches(ONE[:end])
            with pytest.raises(CorruptBatchError):
                check_batches(THREE + ONE[:end])

    def test_a_flipped_bit_is_always_detected(self) -> None:
        # The CRC does not cover base offset and leader epoch, which the broker overwrites, and the magic.
        for position in (*range(8, 12), *range(16, len(ONE))):
            for bit in range(8):
                flipped = bytearray(ONE)
                flipped[position] ^= 1 << bit
                with pytest.raises(ProtocolError):
                    check_batches(flipped)

    def test_a_batch_over_the_limit_is_refused_and_at_the_limit_taken(self) -> None:
        check_batches(ONE, BatchRules(max_batch_size=len(ONE)))
        with pytest.raises(BatchTooLargeError, match=r"exceeds max\.message\.bytes") as refused:
            check_batches(ONE, BatchRules(max_batch_size=len(ONE) - 1))
        assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE

    @pytest.mark.parametrize(
        "fields",
        [
            {"record_count": 0},
            {"record_count": 0, "last_offset_delta": 0},
            {"record_count": -1, "last_offset_delta": 0},
            {"record_count": -(2**31), "last_offset_delta": 2**31 - 1},
            {"record_count": 1, "last_offset_delta": 1},
            {"record_count": 1, "last_offset_delta": -1},
            {"record_count": 2, "last_offset_delta": 0},
        ],
    )
    def test_the_count_is_the_last_offset_delta_and_one(self, fields: dict[str, int]) -> None:
        with pytest.raises(InvalidRecordError, match="does not match the last offset delta"):
            check_batches(batch(record(), **fields), BatchRules(walk=False))

    @pytest.mark.parametrize("count", [2, 1000, 2**31 - 1])
    def test_a_count_that_the_size_cannot_hold_is_refused(self, count: int) -> None:
        with pytest.raises(InvalidRecordError, match=f"8 bytes cannot hold {count} records"):
            check_batches(batch(record(), record_count=count), BatchRules(walk=False))

    def test_a_compressed_batch_without_a_byte_is_refused(self) -> None:
        with pytest.raises(InvalidRecordError, match="an empty compressed block"):
            check_batches(batch(b"", attributes=1))

    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    def test_a_compressed_batch_is_not_decompressed_here(self, codec: int) -> None:
        sent = batch(b"?", attributes=codec, record_count=100)
        check_batches(sent, BatchRules(walk=False))
        check_batches(sent, reencoded=True)
        with pytest.raises(NeedsReencodingError):
            check_batches(sent)

    @pytest.mark.parametrize("codec", [5, 6, 7])
    def test_an_unknown_codec_is_refused(self, codec: int) -> None:
        with pytest.raises(UnsupportedCompressionError, match=f"codec {codec}") as refused:
            check_batches(batch(record(), attributes=codec))
        assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE

    @pytest.mark.parametrize(
        ("bit", "error"), [(1 << 3, InvalidTimestampError), (1 << 5, InvalidRecordError), (1 << 6, InvalidRecordError)]
    )
    def test_attributes_reserved_for_the_broker_are_rejected(self, bit: int, error: type[ProtocolError]) -> None:
        for codec in (0, 4):
            with pytest.raises(error, match=r"^only "):
                check_batches(batch(record(), attributes=bit | codec))

    def test_a_transactional_batch_and_unused_bits_are_taken(self) -> None:
        check_batches(batch(record(), attributes=1 << 4, producer_id=1, producer_epoch=0, base_sequence=0))
        check_batches(batch(record(), attributes=1 << 9))

    def test_no_time_at_all_is_taken(self) -> None:
        check_batches(batch(record(), base_timestamp=-1, max_timestamp=-1))

    @pytest.mark.parametrize("fields", [{"producer_epoch": 0}, {"base_sequence": 0}, {}])
    def test_a_producer_without_epoch_or_sequence_is_refused(self, fields: dict[str, int]) -> None:
        with pytest.raises(InvalidRecordError, match="producer id 9"):
            check_batches(batch(record(), producer_id=9, **fields))

    @pytest.mark.parametrize(
        "records",
        [
            record(length=50),
            record(after=b"x"),
            record(offset_delta=1),
            record(header_count=100, after=bytes(10)),
            record() + b"xxx",
            bytes(20),
        ],
    )
    def test_broken_records_are_refused_unless_walking_is_off(self, records: bytes) -> None:
        broken = batch(records)
        with pytest.raises(InvalidRecordError):
            check_batches(broken)
        check_batches(broken, BatchRules(walk=False))

    def test_it_is_all_or_nothing(self) -> None:
        with pytest.raises(CorruptBatchError):
            check_batches(ONE + batch(record(), crc=0))
        with pytest.raises(InvalidRecordError):
            check_batches(ONE + batch(record(length=50)) + ONE)

    @given(noise=st.binary(max_size=200))
    def test_noise_is_never_taken(self, noise: bytes) -> None:
        with pytest.raises(ProtocolError):
            check_batches(noise)

    @given(fields=st.binary(min_size=40, max_size=40), records=st.binary(max_size=40))
    def test_a_right_crc_around_noise_is_refused_or_taken_but_nothing_else(self, fields: bytes, records: bytes) -> None:
        covered = fields + records
        content = bytearray(batch(b"", crc=crc32c_by_bits(covered), batch_length=9 + len(covered))[:21] + covered)
        with suppress(ProtocolError):
            check_batches(content)


class TestStamp:
    def test_a_stamped_batch_is_whole_and_nothing_else_changed(self) -> None:
        stamped = bytearray(b"??" + THREE)
        stamp(stamped, base_offset=2**40, leader_epoch=6, position=2)
        ((_, header),) = check_batches(stamped[2:])
        assert (header.base_offset, header.leader_epoch) == (2**40, 6)
        pack_into(">q", stamped, 2, 5)
        pack_into(">i", stamped, 2 + 12, -1)
        assert stamped == b"??" + THREE

    def test_a_copy_of_the_header_alone_can_be_stamped(self) -> None:
        head = bytearray(THREE[:61])
        stamp(memoryview(head), base_offset=9, leader_epoch=0)
        check_batches(bytes(head) + THREE[61:])
