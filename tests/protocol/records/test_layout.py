"""Batch headers: each field at its position in the format, each property from its bits."""

import pytest

from warmlog.protocol.records import layout
from warmlog.protocol.records.layout import HEADER, BatchHeader, Codec, TimestampType

# Every field has a different value, so that swapped fields are detected.
HEADER_BYTES = bytes.fromhex(
    "0102030405060708"  # base offset
    "00000064"  # batch length 100
    "0000000a"  # leader epoch
    "02"  # magic
    "fedcba98"  # crc, unsigned
    "0014"  # attributes: transactional, zstd
    "00000004"  # last offset delta
    "0000018bcfe56800"  # base timestamp 2023-11-14T22:13:20Z
    "0000018bcfe568ff"  # max timestamp
    "0000000000001388"  # producer id
    "0007"  # producer epoch
    "00000063"  # base sequence
    "00000005"  # record count
)


def header(**fields: int) -> BatchHeader:
    return BatchHeader._make(HEADER.unpack(HEADER_BYTES))._replace(**fields)


def test_every_field_is_read_from_its_place() -> None:
    assert header() == BatchHeader(
        base_offset=0x0102030405060708,
        batch_length=100,
        leader_epoch=10,
        magic=2,
        crc=0xFEDCBA98,
        attributes=0x14,
        last_offset_delta=4,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_255,
        producer_id=5000,
        producer_epoch=7,
        base_sequence=99,
        record_count=5,
    )


@pytest.mark.parametrize(
    ("field", "position", "size"),
    [
        ("base_offset", layout.BASE_OFFSET_POSITION, 8),
        ("batch_length", layout.BATCH_LENGTH_POSITION, 4),
        ("leader_epoch", layout.LEADER_EPOCH_POSITION, 4),
        ("magic", layout.MAGIC_POSITION, 1),
        ("crc", layout.CRC_POSITION, 4),
        ("attributes", layout.ATTRIBUTES_POSITION, 2),
        ("last_offset_delta", layout.LAST_OFFSET_DELTA_POSITION, 4),
        ("base_timestamp", layout.BASE_TIMESTAMP_POSITION, 8),
        ("max_timestamp", layout.MAX_TIMESTAMP_POSITION, 8),
        ("producer_id", layout.PRODUCER_ID_POSITION, 8),
        ("producer_epoch", layout.PRODUCER_EPOCH_POSITION, 2),
        ("base_sequence", layout.BASE_SEQUENCE_POSITION, 4),
        ("record_count", layout.RECORD_COUNT_POSITION, 4),
    ],
)
def test_the_positions_and_the_struct_agree(field: str, position: int, size: int) -> None:
    assert getattr(header(), field) == int.from_bytes(HEADER_BYTES[position : position + size], "big")


def test_sizes_and_offsets_follow_from_the_fields() -> None:
    assert header().size == 112
    assert header(base_offset=40).last_offset == 44
    assert header(base_offset=40).next_offset == 45


@pytest.mark.parametrize("codec", list(Codec))
def test_the_low_three_bits_are_the_codec(codec: Codec) -> None:
    assert header(attributes=0x78 | codec).codec is codec
    assert header(attributes=0x78 | codec).is_compressed == (codec is not Codec.NONE)


def test_bits_without_a_codec_are_a_value_error() -> None:
    for bits in (5, 6, 7):
        with pytest.raises(ValueError, match="is not a valid Codec"):
            _ = header(attributes=bits).codec


def test_each_attribute_bit_has_one_meaning() -> None:
    plain = header(attributes=0, max_timestamp=77, base_timestamp=55)
    assert not plain.is_control
    assert not plain.is_transactional
    assert plain.timestamp_type is TimestampType.CREATE_TIME
    assert plain.append_time_ms is None
    assert plain.delete_horizon_ms is None
    stamped = plain._replace(attributes=1 << 3)
    assert stamped.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert stamped.append_time_ms == 77
    assert plain._replace(attributes=1 << 4).is_transactional
    assert plain._replace(attributes=1 << 5).is_control
    assert plain._replace(attributes=1 << 6).delete_horizon_ms == 55
