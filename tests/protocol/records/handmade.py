"""Batches built field by field from the format's description, independent of the code under test."""

from collections.abc import Sequence
from struct import pack


def crc32c_by_bits(data: bytes) -> int:
    """Compute CRC-32C from its definition: the reflected Castagnoli polynomial, one bit at a time."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def varint(number: int) -> bytes:
    """Encode a zig-zag varint: 0, -1, 1, -2 … become 0, 1, 2, 3 …, with seven bits per byte."""
    rest = 2 * number if number >= 0 else -2 * number - 1
    digits = []
    while True:
        rest, digit = divmod(rest, 128)
        digits.append(digit)
        if not rest:
            return bytes([digit | 128 for digit in digits[:-1]] + digits[-1:])


def field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    *,
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    key: bytes | None = None,
    value: bytes | None = b"v",
    headers: Sequence[tuple[bytes, bytes | None]] = (),
    header_count: int | None = None,
    length: int | None = None,
    attributes: int = 0,
    after: bytes = b"",
) -> bytes:
    """Encode one record; `length`, `header_count` and `after` make it invalid."""
    body = bytes([attributes]) + varint(timestamp_delta) + varint(offset_delta) + field(key) + field(value)
    body += varint(len(headers) if header_count is None else header_count)
    for name, content in headers:
        body += field(name) + field(content)
    body += after
    return varint(len(body) if length is None else length) + body


def batch(
    records: bytes,
    *,
    base_offset: int = 0,
    batch_length: int | None = None,
    leader_epoch: int = -1,
    magic: int = 2,
    crc: int | None = None,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = 1000,
    max_timestamp: int = 1000,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    record_count: int = 1,
) -> bytes:
    """Encode one batch around `records`, with a valid CRC unless one is given."""
    last = record_count - 1 if last_offset_delta is None else last_offset_delta
    covered = pack(">h", attributes) + pack(">i", last) + pack(">q", base_timestamp) + pack(">q", max_timestamp)
    covered += pack(">q", producer_id) + pack(">h", producer_epoch) + pack(">i", base_sequence)
    covered += pack(">i", record_count) + records
    before = pack(">i", leader_epoch) + pack(">b", magic)
    before += pack(">I", crc32c_by_bits(covered) if crc is None else crc)
    length = len(before + covered) if batch_length is None else batch_length
    return pack(">q", base_offset) + pack(">i", length) + before + covered
