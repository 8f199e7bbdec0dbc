"""Compressed blocks: round trips with every codec, framings of other writers, and malicious blocks."""

import gzip
import mmap
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from random import Random
from struct import pack
from typing import Any, ClassVar

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lz4 import frame

from warmlog.protocol.errors import CompressionError
from warmlog.protocol.records import compression
from warmlog.protocol.records.compression import Codec, compress, compressed_parts, decompress, decompressed_parts
from warmlog.protocol.records.formats.frames import STEP
from warmlog.protocol.records.record import Buffer

CODECS = [codec for codec in Codec if codec is not Codec.NONE]
XERIAL = bytes.fromhex("82 53 4e 41 50 50 59 00 00 00 00 01 00 00 00 01")
CONTENTS = [
    b"",
    b"a",
    b"abc" * 50_000,
    bytes(32 << 10),
    bytes((32 << 10) + 1),
    bytes(65536 * 4),
    bytes(i * i % 251 for i in range(70_000)),
]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
class TestEveryCodec:
    def test_compressed_data_is_decompressed(self, codec: Codec, content: bytes) -> None:
        for kind in (bytes, bytearray, memoryview):
            block = compress(codec, kind(content))
            assert type(block) is bytes
            opened = decompress(codec, kind(block))
            assert type(opened) is bytes
            assert opened == content

    def test_the_ceiling_is_exact(self, codec: Codec, content: bytes) -> None:
        block = compress(codec, content)
        assert decompress(codec, block, max_size=len(content)) == content
        if content:
            with pytest.raises(CompressionError):
                decompress(codec, block, max_size=len(content) - 1)


@pytest.mark.parametrize("codec", CODECS)
class TestBrokenBlocks:
    def test_a_block_cut_anywhere_is_refused(self, codec: Codec) -> None:
        block = compress(codec, bytes(i * i % 251 for i in range(500)))
        for end in range(len(block)):
            # xerial's header alone is a valid empty block.
            if codec is Codec.SNAPPY and end == len(XERIAL):
                continue
            with pytest.raises(CompressionError):
                decompress(codec, block[:end], strict=True)

    @pytest.mark.parametrize("strict", [True, False])
    def test_a_changed_byte_raises_only_compression_errors(self, codec: Codec, strict: bool) -> None:
        block = compress(codec, b"some words, and some words again " * 5)
        for position in range(len(block)):
            for byte in (0, 1, 127, 128, 255):
                changed = block[:position] + bytes([byte]) + block[position + 1 :]
                with suppress(CompressionError):
                    assert len(decompress(codec, changed, max_size=1 << 20, strict=strict)) <= 1 << 20

    @given(noise=st.binary(max_size=60), strict=st.booleans())
    def test_noise_raises_only_compression_errors(self, codec: Codec, noise: bytes, strict: bool) -> None:
        with suppress(CompressionError):
            assert len(decompress(codec, noise, max_size=1000, strict=strict)) <= 1000

    @given(noise=st.binary(max_size=60))
    def test_what_strict_reading_accepts_lenient_reading_reads_alike(self, codec: Codec, noise: bytes) -> None:
        for block in (noise, compress(codec, b"ab") + noise, compress(codec, noise)):
            with suppress(CompressionError):
                assert decompress(codec, block) == decompress(codec, block, strict=True)

    @pytest.mark.parametrize("strict", [True, False])
    def test_a_bomb_stops_at_the_ceiling(self, codec: Codec, strict: bool) -> None:
        bomb = compress(codec, bytes(40 << 20))
        with pytest.raises(CompressionError):
            decompress(codec, bomb, max_size=1 << 20, strict=strict)


class RecordedMapping(mmap.mmap):
    """Records the sizes of writes."""

    writes: ClassVar[list[int]] = []

    def __setitem__(self, place: Any, value: Any) -> None:
        self.writes.append(len(value))
        super().__setitem__(place, value)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("content", [bytes(5 << 20), Random(1).randbytes(5 << 20)], ids=["zeros", "noise"])
class TestLargeBlocks:
    def test_a_large_block_is_in_a_mapping_which_is_freed_without_the_gil(self, codec: Codec, content: bytes) -> None:
        opened = decompress(codec, compress(codec, content))
        assert opened == content
        assert isinstance(opened, memoryview)
        assert isinstance(opened.obj, mmap.mmap)

    def test_no_step_returns_more_than_its_limit_and_none_copies_with_the_gil(
        self, codec: Codec, content: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parts: list[int] = []

        def recorded(found: Iterator[Buffer], max_size: int) -> Buffer:
            def noted() -> Iterator[Buffer]:
                for part in found:
                    parts.append(len(part))
                    yield part

            return gathered(noted(), max_size)

        gathered = compression._gathered
        block = compress(codec, content)
        RecordedMapping.writes.clear()
        monkeypatch.setattr(compression, "_gathered", recorded)
        monkeypatch.setattr("warmlog.protocol.records.compression.mmap.mmap", RecordedMapping)
        assert decompress(codec, block) == content
        assert max(parts, default=0) <= STEP
        assert not RecordedMapping.writes
        assert sum(parts) == len(content)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
class TestParts:
    def test_compressed_parts_are_one_block(self, codec: Codec, content: bytes) -> None:
        cuts = [0, 1, 1000, 70_000, 200_000, len(content)]
        block = b"".join(compressed_parts(codec, [content[start:end] for start, end in pairwise(cuts)]))
        assert decompress(codec, block, strict=codec is not Codec.NONE) == content

    def test_the_parts_of_a_block_are_its_content(self, codec: Codec, content: bytes) -> None:
        parts = list(decompressed_parts(codec, compress(codec, content)))
        assert b"".join(parts) == content
        if codec is not Codec.NONE:
            assert max(map(len, parts), default=0) <= STEP


@pytest.mark.parametrize("codec", CODECS)
def test_reading_part_by_part_takes_bounded_memory(codec: Codec) -> None:
    block = b"".join(compressed_parts(codec, [bytes(1 << 20)] * 40))
    tracemalloc.start()
    try:
        size = sum(map(len, decompressed_parts(codec, block)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == 40 << 20
    assert peak < 2 << 20


class TestGzip:
    def test_several_members_are_one_block(self) -> None:
        assert decompress(Codec.GZIP, gzip.compress(b"ab") + gzip.compress(b"") + gzip.compress(b"cd")) == b"abcd"

    def test_the_ceiling_is_over_all_members(self) -> None:
        block = gzip.compress(b"ab") * 3
        assert decompress(Codec.GZIP, block, max_size=6) == b"ababab"
        with pytest.raises(CompressionError, match="limit of 5 bytes"):
            decompress(Codec.GZIP, block, max_size=5)

    @pytest.mark.parametrize("after", [b"xx", bytes(30), gzip.compress(b"cd", mtime=0)[:9], b"garbage " * 9])
    def test_bytes_after_the_last_member_are_refused_from_producers_only(self, after: bytes) -> None:
        block = gzip.compress(b"ab") + after
        assert decompress(Codec.GZIP, block) == b"ab"
        with pytest.raises(CompressionError):
            decompress(Codec.GZIP, block, strict=True)

    def test_reserved_flags_are_refused_from_producers_only(self) -> None:
        block = bytearray(gzip.compress(b"ab", mtime=0))
        block[3] |= 0x80
        assert decompress(Codec.GZIP, block) == b"ab"
        with pytest.raises(CompressionError, match=r"^invalid "):
            decompress(Codec.GZIP, block, strict=True)

    def test_a_wrong_checksum_is_refused(self) -> None:
        block = bytearray(gzip.compress(b"ab"))
        block[-8] ^= 1
        with pytest.raises(CompressionError, match=r"^invalid "):
            decompress(Codec.GZIP, block)

    def test_the_bare_zlib_format_is_refused(self) -> None:
        with pytest.raises(CompressionError):
            decompress(Codec.GZIP, zlib.compress(b"ab"))


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def chunk(data: bytes) -> bytes:
    return pack(">i", len(data)) + data


class TestSnappy:
    def test_it_is_written_as_java_reads_it(self) -> None:
        # Raw snappy of "abc": length 3, a literal of 3 bytes.
        assert compress(Codec.SNAPPY, b"abc") == XERIAL + bytes.fromhex("00000005 03 08 61 62 63")

    def test_chunks_of_all_sizes_fill_a_mapping_exactly(self) -> None:
        large = bytes(range(256)) * 2048
        block = XERIAL + b"".join(chunk(raw_snappy(data)) for data in (b"", large, b"", large, b"end", b""))
        assert decompress(Codec.SNAPPY, block, max_size=2 * len(large) + 3) == large * 2 + b"end"

    def test_long_data_is_cut_into_chunks_of_32_kib(self) -> None:
        block = compress(Codec.SNAPPY, bytes(80_000))
        sizes = []
        position = len(XERIAL)
        while position < len(block):
            length = int.from_bytes(block[position : position + 4], "big")
            sizes.append(cramjam.snappy.decompress_raw_len(block[position + 4 : position + 4 + length]))
            position += 4 + length
        assert sizes == [32768, 32768, 14464]

    def test_a_raw_block_is_decompressed(self) -> None:
        assert decompress(Codec.SNAPPY, raw_snappy(b"abc" * 100)) == b"abc" * 100

    def test_a_header_alone_holds_nothing(self) -> None:
        assert decompress(Codec.SNAPPY, XERIAL) == b""

    def test_concatenated_streams_are_one_block(self) -> None:
        one = XERIAL + chunk(raw_snappy(b"ab")) + chunk(raw_snappy(b""))
        assert decompress(Codec.SNAPPY, one + one) == b"abab"

    @pytest.mark.parametrize("version", [2, 0, -1])
    def test_other_versions_in_the_header_are_read(self, version: int) -> None:
        head = XERIAL[:8] + pack(">ii", version, 1)
        assert decompress(Codec.SNAPPY, head + chunk(raw_snappy(b"ab")), strict=True) == b"ab"

    def test_a_second_header_of_version_0_is_refused_from_producers_only(self) -> None:
        block = XERIAL + chunk(raw_snappy(b"ab")) + XERIAL[:8] + pack(">ii", 0, 1) + chunk(raw_snappy(b"cd"))
        assert decompress(Codec.SNAPPY, block) == b"abcd"
        with pytest.raises(CompressionError, match="version 0"):
            decompress(Codec.SNAPPY, block, strict=True)

    @pytest.mark.parametrize("after", [b"\0", bytes(3)])
    def test_bytes_after_the_last_chunk_are_refused_from_producers_only(self, after: bytes) -> None:
        block = XERIAL + chunk(raw_snappy(b"ab")) + after
        assert decompress(Codec.SNAPPY, block) == b"ab"
        with pytest.raises(CompressionError, match="truncated"):
            decompress(Codec.SNAPPY, block, strict=True)

    @pytest.mark.parametrize("end", range(8, 16))
    def test_a_header_cut_off_is_refused(self, end: int) -> None:
        with pytest.raises(CompressionError, match="truncated in its header"):
            decompress(Codec.SNAPPY, XERIAL[:end])

    @pytest.mark.parametrize("length", [-1, -(2**31), 6, 2**31 - 1])
    def test_a_chunk_length_that_does_not_fit_is_refused(self, length: int) -> None:
        with pytest.raises(CompressionError, match="its chunk at byte 16"):
            decompress(Codec.SNAPPY, XERIAL + pack(">i", length) + raw_snappy(b"abc"))

    def test_a_stated_size_is_not_trusted(self) -> None:
        # A stated size of 4 GiB in six bytes, then 3,000 in six, which is below the limit.
        for announced in ("ffffffff0f", "b817"):
            with pytest.raises(CompressionError, match="cannot hold"):
                decompress(Codec.SNAPPY, bytes.fromhex(announced) + b"\x00")

    def test_the_densest_block_is_accepted(self) -> None:
        # One literal zero, then copies of 64 bytes from one byte back, three bytes each.
        block = bytes.fromhex("81 80 04 00 00".replace(" ", "")) + bytes.fromhex("fe0100") * 1024
        assert decompress(Codec.SNAPPY, block) == bytes(65537)

    def test_the_ceiling_is_over_all_chunks(self) -> None:
        block = XERIAL + chunk(raw_snappy(bytes(1000))) * 3
        assert decompress(Codec.SNAPPY, block, max_size=3000) == bytes(3000)
        with pytest.raises(CompressionError, match="exceeds the limit of"):
            decompress(Codec.SNAPPY, block, max_size=2999)


class TestLz4:
    def test_it_is_written_as_kafkas_reader_takes_it(self) -> None:
        block = compress(Codec.LZ4, bytes(200_000))
        told = frame.get_frame_info(block)
        assert block[:4] == bytes.fromhex("04224d18")
        assert not told["block_linked"]
        assert told["block_size"] == 65536
        assert told["content_size"] == 0

    @pytest.mark.parametrize("store_size", [True, False])
    @pytest.mark.parametrize("checksum", [True, False])
    @pytest.mark.parametrize("size", range(4, 8))
    def test_every_kind_of_frame_is_decompressed(self, store_size: bool, checksum: bool, size: int) -> None:
        for content in (b"some words " * 30_000, Random(1).randbytes(300_000), b""):
            block = frame.compress(
                content,
                block_size=size,
                block_linked=False,
                store_size=store_size,
                content_checksum=checksum,
                block_checksum=checksum,
            )
            assert decompress(Codec.LZ4, block, strict=True) == content
            assert decompress(Codec.LZ4, block) == content

    @pytest.mark.parametrize("checksum", [True, False])
    def test_linked_blocks_are_refused_from_producers_only(self, checksum: bool) -> None:
        content = b"".join(b"word %d " % number for number in range(50_000))
        block = frame.compress(content, block_size=4, block_linked=True, block_checksum=checksum)
        assert decompress(Codec.LZ4, block) == content
        with pytest.raises(CompressionError, match="independent blocks"):
            decompress(Codec.LZ4, block, strict=True)

    @pytest.mark.parametrize("position", [6, 14, -1], ids=["content size", "header checksum", "content checksum"])
    def test_what_is_said_of_the_content_is_verified_from_producers_only(self, position: int) -> None:
        content = b"some words " * 30
        block = bytearray(frame.compress(content, block_linked=False, content_checksum=True, store_size=True))
        block[position] ^= 1
        assert decompress(Codec.LZ4, block) == content
        with pytest.raises(CompressionError, match=r"^invalid "):
            decompress(Codec.LZ4, block, strict=True)

    @pytest.mark.parametrize("empty", ["0100000000", "00000080"], ids=["compressed", "stored"])
    def test_an_empty_block_before_others_is_refused_from_producers_only(self, empty: str) -> None:
        block = compress(Codec.LZ4, b"ab")
        block = block[:7] + bytes.fromhex(empty) + block[7:]
        assert decompress(Codec.LZ4, block) == b"ab"
        with pytest.raises(CompressionError, match="empty block"):
            decompress(Codec.LZ4, block, strict=True)
        block = compress(Codec.LZ4, b"ab")
        block = block[:-4] + bytes.fromhex(empty) + block[-4:]
        assert decompress(Codec.LZ4, block, strict=True) == b"ab"

    def test_bytes_after_the_frame_are_not_looked_at(self) -> None:
        block = compress(Codec.LZ4, b"ab") + b"whatever"
        assert decompress(Codec.LZ4, block) == decompress(Codec.LZ4, block, strict=True) == b"ab"


class TestZstd:
    def test_a_frame_without_its_content_size_is_decompressed(self) -> None:
        content = b"some words " * 30_000
        block = b"".join(compressed_parts(Codec.ZSTD, [content]))
        # The frame header's descriptor: no content size field, not a single segment.
        assert block[4] & 0b1110_0000 == 0
        assert decompress(Codec.ZSTD, block) == content
        assert decompress(Codec.ZSTD, block, max_size=len(content)) == content

    def test_several_frames_are_one_block(self) -> None:
        assert decompress(Codec.ZSTD, compress(Codec.ZSTD, b"ab") + compress(Codec.ZSTD, b"cd")) == b"abcd"

    @pytest.mark.parametrize("after", [b"xxxxx", bytes(3), compress(Codec.ZSTD, b"cd" * 50)[:-1]])
    def test_bytes_after_the_last_frame_are_refused_from_producers_only(self, after: bytes) -> None:
        block = compress(Codec.ZSTD, b"ab") + after
        assert decompress(Codec.ZSTD, block) == b"ab"
        with pytest.raises(CompressionError):
            decompress(Codec.ZSTD, block, strict=True)

    def test_a_content_size_that_lies_is_refused(self) -> None:
        block = bytearray(compress(Codec.ZSTD, b"some words " * 30))
        # A single segment with a content size of two bytes, less 256, after the descriptor.
        assert block[4] & 0b1110_0000 == 0b0110_0000
        block[6] += 100
        with pytest.raises(CompressionError):
            decompress(Codec.ZSTD, block)
