"""Compressed blocks of every codec built field by field: usual and odd ones, as any producer may send them."""

import gzip
import zlib
from collections.abc import Iterator
from struct import pack
from typing import NamedTuple

import cramjam
from lz4 import block as lz4

from tests.protocol.records.handmade import batch, record
from warmlog.protocol.records.compression import compress
from warmlog.protocol.records.layout import Codec

COUNT = 3
RECORDS = b"".join(
    record(offset_delta=number, timestamp_delta=number, key=b"k%d" % number, value=b"value-%d" % number * 3)
    for number in range(COUNT)
)
HALF = 40  # of the bytes of RECORDS, in the middle of a record
XERIAL_MAGIC = b"\x82SNAPPY\0"
XERIAL = XERIAL_MAGIC + pack(">ii", 1, 1)
LZ4_MAGIC = b"\x04\x22\x4d\x18"
ZSTD_SKIPPABLE = 0x184D2A50
AFTER = {
    "a zero": b"\0",
    "3 zeros": bytes(3),
    "4 zeros": bytes(4),
    "18 zeros": bytes(18),
    "30 zeros": bytes(30),
    "garbage": b"garbage " * 9,
}


class Frame(NamedTuple):
    """A block of `COUNT` records, named."""

    name: str
    codec: Codec
    block: bytes

    def batch(self) -> bytes:
        """Return it as a batch."""
        return batch(self.block, attributes=self.codec, record_count=COUNT, max_timestamp=1000 + COUNT - 1)


def frames() -> Iterator[Frame]:
    """Return all of them."""
    built = {Codec.GZIP: gzips, Codec.SNAPPY: snappies, Codec.LZ4: lz4s, Codec.ZSTD: zstds}
    for codec, blocks in built.items():
        for name, block in blocks():
            yield Frame(name, codec, block)
        usual = compress(codec, RECORDS)
        yield Frame("usual", codec, usual)
        for name, after in AFTER.items():
            yield Frame(f"{name} after it", codec, usual + after)
        yield Frame("cut by a byte", codec, usual[:-1])
        yield Frame("cut in the middle", codec, usual[: len(usual) // 2])
        yield Frame("twice", codec, usual + usual)
        yield Frame("half of it again", codec, usual + usual[: len(usual) // 2])
        yield Frame("all but a byte of it again", codec, usual + usual[:-1])


# -- gzip --------------------------------------------------------------------------------------------------------------


def gzip_member(data: bytes, *, flags: int = 0, fields: bytes = b"", method: int = 8, checksum: int = 0) -> bytes:
    """Build a member of RFC 1952; `checksum` is added to the right one."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = deflate.compress(data) + deflate.flush()
    head = b"\x1f\x8b" + bytes([method, flags, 0, 0, 0, 0, 0, 3])
    return head + fields + body + pack("<II", (zlib.crc32(data) + checksum) & 0xFFFFFFFF, len(data))


def gzips() -> Iterator[tuple[str, bytes]]:
    """Return blocks of gzip."""
    usual = gzip_member(RECORDS)
    yield "two members", gzip_member(RECORDS[:HALF]) + gzip_member(RECORDS[HALF:])
    yield "two members and zeros", gzip_member(RECORDS[:HALF]) + gzip_member(RECORDS[HALF:]) + bytes(30)
    yield "an empty member first", gzip_member(b"") + usual
    yield "an empty member last", usual + gzip_member(b"")
    yield "header fields", gzip_member(RECORDS, flags=4 | 8 | 16, fields=pack("<H", 3) + b"abcname\0comment\0")
    head = b"\x1f\x8b\x08\x02\0\0\0\0\0\x03"
    yield "header checksum", gzip_member(RECORDS, flags=2, fields=pack("<H", zlib.crc32(head) & 0xFFFF))
    yield "wrong header checksum", gzip_member(RECORDS, flags=2, fields=b"xx")
    for bit in (5, 6, 7):
        yield f"reserved flag {bit}", gzip_member(RECORDS, flags=1 << bit)
    yield "unknown method", gzip_member(RECORDS, method=7)
    yield "wrong checksum", gzip_member(RECORDS, checksum=1)
    yield "wrong size", usual[:-1] + b"\1"
    yield "no compression", gzip.compress(RECORDS, 0)
    yield "the zlib format", zlib.compress(RECORDS)


# -- snappy ------------------------------------------------------------------------------------------------------------


def snappy_raw(data: bytes) -> bytes:
    """Compress without framing."""
    return bytes(cramjam.snappy.compress_raw(data))


def snappy_chunk(data: bytes) -> bytes:
    """Frame a raw block as a chunk."""
    return pack(">i", len(data)) + data


def snappies() -> Iterator[tuple[str, bytes]]:
    """Return blocks of snappy."""
    raw = snappy_raw(RECORDS)
    first, second = snappy_chunk(snappy_raw(RECORDS[:HALF])), snappy_chunk(snappy_raw(RECORDS[HALF:]))
    yield "raw", raw
    yield "raw, a zero after it", raw + b"\0"
    yield "two chunks", XERIAL + first + second
    yield "two streams", XERIAL + first + XERIAL + second
    for version in (-1, 0, 2):
        yield f"version {version}", XERIAL_MAGIC + pack(">ii", version, 1) + first + second
        yield f"second header of version {version}", XERIAL + first + XERIAL_MAGIC + pack(">ii", version, 1) + second
    yield "compatible with version 5 only", XERIAL_MAGIC + pack(">ii", 1, 5) + first + second
    yield "a chunk that opens to nothing", XERIAL + snappy_chunk(snappy_raw(b"")) + first + second
    yield "an empty chunk", XERIAL + snappy_chunk(b"") + first + second
    yield "a negative chunk", XERIAL + pack(">i", -5) + first + second
    yield "a chunk that is too long", XERIAL + pack(">i", 1000) + raw
    yield "a wrong size", XERIAL + snappy_chunk(bytes([raw[0] + 1]) + raw[1:])
    yield "the header alone", XERIAL
    yield "another framing", bytes(cramjam.snappy.compress(RECORDS))


# -- lz4 ---------------------------------------------------------------------------------------------------------------


def xxh32(data: bytes) -> int:
    """Hash fewer than 16 bytes, with seed 0."""
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & mask

    whole = len(data) & ~3
    digest = prime5 + len(data)
    for at in range(0, whole, 4):
        digest = rotated((digest + int.from_bytes(data[at : at + 4], "little") * prime3) & mask, 17) * prime4 & mask
    for byte in data[whole:]:
        digest = rotated((digest + byte * prime5) & mask, 11) * prime1 & mask
    digest = (digest ^ digest >> 15) * prime2 & mask
    digest = (digest ^ digest >> 13) * prime3 & mask
    return digest ^ digest >> 16


def lz4_block(data: bytes, *, stored: bool = False) -> bytes:
    """Build one block with its size."""
    if stored:
        return pack("<I", len(data) | 1 << 31) + data
    packed = lz4.compress(data, store_size=False)
    return pack("<I", len(packed)) + packed


def lz4_frame(
    *blocks: bytes, flags: int = 0x60, sizes: int = 0x40, fields: bytes = b"", check: int = 0, end: bytes = bytes(4)
) -> bytes:
    """Build a frame; `check` is added to the right checksum of the header."""
    head = bytes([flags, sizes]) + fields
    return LZ4_MAGIC + head + bytes([(xxh32(head) >> 8) + check & 0xFF]) + b"".join(blocks) + end


def lz4s() -> Iterator[tuple[str, bytes]]:
    """Return blocks of lz4."""
    one = lz4_block(RECORDS)
    first, second = lz4_block(RECORDS[:HALF]), lz4_block(RECORDS[HALF:])
    size = pack("<Q", len(RECORDS))
    yield "two blocks", lz4_frame(first, second)
    yield "a stored block", lz4_frame(lz4_block(RECORDS, stored=True))
    yield "content size", lz4_frame(one, flags=0x68, fields=size)
    for wrong in (0, len(RECORDS) - 1, len(RECORDS) + 1, (1 << 64) - 1):
        yield f"content size of {wrong}", lz4_frame(one, flags=0x68, fields=pack("<Q", wrong))
    yield "wrong content checksum", lz4_frame(one, flags=0x64, end=bytes(8))
    yield "no content checksum", lz4_frame(one, flags=0x64)
    yield "wrong block checksum", lz4_frame(one, bytes(4), flags=0x70)
    yield "wrong header checksum", lz4_frame(one, check=1)
    yield "linked blocks, one block", lz4_frame(one, flags=0x40)
    linked = lz4.compress(RECORDS[HALF:], store_size=False, dict=RECORDS[:HALF])
    yield "linked blocks", lz4_frame(first, pack("<I", len(linked)) + linked, flags=0x40)
    yield "linked blocks, said to be independent", lz4_frame(first, pack("<I", len(linked)) + linked)
    yield "dictionary id", lz4_frame(one, flags=0x61, fields=bytes(4))
    yield "reserved flag", lz4_frame(one, flags=0x62)
    for version in (0, 2, 3):
        yield f"version {version}", lz4_frame(one, flags=version << 6 | 0x20)
    for sizes in (0x00, 0x30, 0x50, 0x60, 0x70, 0x80, 0xC0, 0x41, 0x48):
        yield f"block size {sizes:#x}", lz4_frame(one, sizes=sizes)
    yield "a block that opens to nothing first", lz4_frame(b"\1\0\0\0\0", one)
    yield "a block that opens to nothing last", lz4_frame(one, b"\1\0\0\0\0")
    yield "an empty stored block first", lz4_frame(pack("<I", 1 << 31), one)
    yield "an empty stored block as the end", lz4_frame(one, end=pack("<I", 1 << 31))
    yield "no end", lz4_frame(one, end=b"")
    yield "two frames", lz4_frame(first) + lz4_frame(second)
    yield "an empty frame first", lz4_frame() + lz4_frame(one)
    yield "a skippable frame first", pack("<II", ZSTD_SKIPPABLE, 4) + b"abcd" + lz4_frame(one)
    yield "the legacy format", pack("<I", 0x184C2102) + one


# -- zstd --------------------------------------------------------------------------------------------------------------


def zstd_frame(data: bytes, *, descriptor: int = 0x20, fields: bytes | None = None, kind: int = 0) -> bytes:
    """Build a frame of one stored block; without `fields`, the content size in one byte follows the descriptor."""
    head = bytes([len(data)]) if fields is None else fields
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + head + pack("<I", len(data) << 3 | kind << 1 | 1)[:3] + data


def zstds() -> Iterator[tuple[str, bytes]]:
    """Return blocks of zstd."""
    usual, size = zstd_frame(RECORDS), bytes([len(RECORDS)])
    yield "a stored block", usual
    yield "two frames", zstd_frame(RECORDS[:HALF]) + zstd_frame(RECORDS[HALF:])
    yield "an empty frame first", zstd_frame(b"") + usual
    yield "an empty frame last", usual + zstd_frame(b"")
    yield "a skippable frame first", pack("<II", ZSTD_SKIPPABLE, 4) + b"abcd" + usual
    yield "a skippable frame last", usual + pack("<II", ZSTD_SKIPPABLE + 7, 4) + b"abcd"
    yield "a skippable frame last, cut off", usual + pack("<II", ZSTD_SKIPPABLE, 5) + b"abcd"
    yield "wrong content size", zstd_frame(RECORDS, fields=bytes([len(RECORDS) + 1]))
    yield "wrong checksum", zstd_frame(RECORDS, descriptor=0x24) + bytes(4)
    yield "no checksum", zstd_frame(RECORDS, descriptor=0x24)
    yield "dictionary id of 0", zstd_frame(RECORDS, descriptor=0x21, fields=b"\0" + size)
    yield "dictionary id of 5", zstd_frame(RECORDS, descriptor=0x21, fields=b"\5" + size)
    for window_log in (10, 20, 26, 27, 28, 31):
        yield f"window of 2^{window_log}", zstd_frame(RECORDS, descriptor=0, fields=bytes([window_log - 10 << 3]))
    yield "window above 2^27", zstd_frame(RECORDS, descriptor=0, fields=bytes([17 << 3 | 1]))
    yield "reserved flag", zstd_frame(RECORDS, descriptor=0x28)
    yield "unused flag", zstd_frame(RECORDS, descriptor=0x30)
    yield "reserved block type", zstd_frame(RECORDS, kind=3)
    yield "no magic number", usual[4:]
