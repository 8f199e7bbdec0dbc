"""The compressed block of a batch: bytes in, bytes out, by codec.

Owns: which library does which codec, how each codec's block is framed as Kafka frames it, and the ceiling on what a
block may become. Must not know: batches and records. The libraries are imported at their first use: a broker never
opens a block while it starts.

    gzip     one or more members, RFC 1952
    snappy   written in the framing of the xerial library, as Java clients do; read so, or raw as librdkafka and others
    may write it:
                 0   8   magic 82 "SNAPPY" 00
                 8   4   version 1
                 12  4   least compatible version 1
                 16      chunks: int32 length, then one raw snappy block; a further header may stand in place of a
                 length
    lz4      the frame format, blocks of 64 KiB, independent: Kafka's reader refuses linked ones
    zstd     one or more frames; Java's carry no content size, which one-shot decompressors ask for

Invariants:
1. No more than `max_size` bytes (and a constant) are ever produced, whatever a block says of itself: decompression
   stops there and raises.
2. A block that ends early, or is followed by bytes that are no block, raises CompressionError. After an lz4 frame
   Kafka's reader looks at nothing more, nor does this one.

Source: org.apache.kafka.common.compress.
"""

import mmap
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from struct import Struct
from typing import TypeAlias

from protocol.errors import CompressionError
from protocol.records.layout import Codec
from protocol.records.record import Buffer

__all__ = ["DEFAULT_MAX_DECOMPRESSED_SIZE", "Codec", "compress", "decompress"]

# A block comes from a batch of a megabyte or so; lines of a log shrink to a fiftieth at best. What becomes larger than
# this is a bomb or a mistake.
DEFAULT_MAX_DECOMPRESSED_SIZE = 128 << 20

# For zlib's functions: deflate in gzip's wrapping, the largest window.
_GZIP_WINDOW = 31
_GZIP_MAGIC = b"\x1f\x8b"
# Kafka's default level (compression.zstd.level), and zstd's own.
_ZSTD_LEVEL = 3
# At its default level Kafka takes lz4's fast compressor, at every other the thorough one; the library here has 12
# levels of that, Kafka's 17.
_LZ4_FAST_LEVEL = 9
_LZ4_MAX_LEVEL = 12

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_LENGTH = Struct(">i")
# What xerial's SnappyOutputStream takes by default; a reader needs no more than this at a time.
_XERIAL_CHUNK_SIZE = 32 << 10
# A snappy element of three bytes copies 64: a raw block that announces more than this factor lies.
_SNAPPY_MAX_RATIO = 22

# What most zstd blocks fit into once they are opened.
_USUAL_SIZE = 1 << 20

# What zlib gives at a time: it joins its pieces with the GIL held.
_GZIP_STEP = 1 << 20

# How much an lz4 block is expected to become, as a factor; more is fetched in further steps.
_LZ4_USUAL_RATIO = 4
_LZ4_LEAST_STEP = 64 << 10


def compress(codec: Codec, data: Buffer, *, level: int | None = None) -> bytes:
    """`data` as one block of `codec`, as Kafka's clients write it (NONE: as it is).

    `level` as Kafka counts them: gzip -1 (usual) or 1 to 9, lz4 1 to 17, zstd -131072 to 22; None for the quickest
    lz4 and the usual of the others. Safe in a thread; gives up the GIL while it works.
    """
    return _COMPRESSORS[codec](data, level)


def decompress(codec: Codec, data: Buffer, *, max_size: int = DEFAULT_MAX_DECOMPRESSED_SIZE) -> Buffer:
    """Return what the block `data` of `codec` holds, in memory of its own.

    Raises CompressionError where it cannot be opened, ends early, or holds more than `max_size` bytes. Safe in a
    thread; gives up the GIL while it works.
    """
    return _DECOMPRESSORS[codec](memoryview(data), max_size)


def _too_large(max_size: int) -> CompressionError:
    return CompressionError(f"a compressed block holds more than the {max_size} bytes that are allowed")


def _stored(data: Buffer, _: int | None) -> bytes:
    return bytes(data)


def _copy(data: memoryview, max_size: int) -> bytes:
    if len(data) > max_size:
        raise _too_large(max_size)
    return bytes(data)


def _gzip(data: Buffer, level: int | None) -> bytes:
    return zlib.compress(data, -1 if level is None else level, wbits=_GZIP_WINDOW)


def _gunzip(data: memoryview, max_size: int) -> bytes:
    parts = []
    room = max_size
    rest: bytes | memoryview = data
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW)
        while not member.eof:
            try:
                part = member.decompress(rest, min(room + 1, _GZIP_STEP))
            except zlib.error as error:
                raise CompressionError(f"a gzip block cannot be opened: {error}") from None
            room -= len(part)
            if room < 0:
                raise _too_large(max_size)
            if not part and not member.eof:
                raise CompressionError("a gzip block ends early")
            parts.append(part)
            rest = member.unconsumed_tail
        rest = member.unused_data
        if not rest:
            return _joined(parts)


def _joined(parts: list[bytes]) -> bytes:
    """Join pieces; more than a megabyte of them without the GIL."""
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _snappy(data: Buffer, _: int | None) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_CHUNK_SIZE):
        chunk = bytes(snappy.compress_raw(view[start : start + _XERIAL_CHUNK_SIZE]))
        parts += (_XERIAL_LENGTH.pack(len(chunk)), chunk)
    return b"".join(parts)


def _unsnappy(data: memoryview, max_size: int) -> Buffer:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _unsnappy_raw(data, max_size)
    parts: list[bytes] = []
    room = max_size
    for chunk in _xerial_chunks(data):
        part = _unsnappy_raw(chunk, room)
        room -= len(part)
        parts.append(bytes(part))
    return b"".join(parts)


def _xerial_chunks(data: memoryview) -> Iterator[memoryview]:
    position = 0
    while position < len(data):
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        start = position + _XERIAL_LENGTH.size
        length = _XERIAL_LENGTH.unpack_from(data, position)[0] if start <= len(data) else -1
        if not 0 <= length <= len(data) - start:
            raise CompressionError(f"a snappy block is cut off, or its chunk at byte {position} has a wrong length")
        yield data[start : start + length]
        position = start + length
    if position > len(data):
        raise CompressionError("a snappy block is cut off in its header")


def _unsnappy_raw(data: memoryview, max_size: int) -> memoryview:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > len(data) * _SNAPPY_MAX_RATIO:
            raise CompressionError(f"a snappy block of {len(data)} bytes cannot hold the {size} that it announces")
        if size > max_size:
            raise _too_large(max_size)
        return memoryview(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CompressionError(f"a snappy block cannot be opened: {error}") from None


def _lz4(data: Buffer, level: int | None) -> bytes:
    from lz4 import frame

    block: bytes = frame.compress(
        data,
        compression_level=0 if level is None or level == _LZ4_FAST_LEVEL else min(level, _LZ4_MAX_LEVEL),
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return block


def _unlz4(data: memoryview, max_size: int) -> bytes:
    from lz4 import frame

    opened = frame.LZ4FrameDecompressor()
    parts: list[bytes] = []
    room = max_size
    # The library takes memory for all that it may give at a time: ask for what such a block usually becomes.
    step = max(len(data) * _LZ4_USUAL_RATIO, _LZ4_LEAST_STEP)
    rest: Buffer = data
    while not opened.eof:
        try:
            part = opened.decompress(rest, max_length=min(step, room + 1))
        except RuntimeError as error:
            raise CompressionError(f"an lz4 block cannot be opened: {error}") from None
        room -= len(part)
        if room < 0:
            raise _too_large(max_size)
        if opened.needs_input and not opened.eof:
            raise CompressionError("an lz4 block ends early")
        parts.append(part)
        rest = b""
    return _joined(parts)


def _zstd(data: Buffer, level: int | None) -> bytes:
    from cramjam import zstd

    return bytes(zstd.compress(data, _ZSTD_LEVEL if level is None else level))


def _unzstd(data: memoryview, max_size: int) -> Buffer:
    import cramjam

    # The library cannot write past the end of what it is given. Most blocks fit into a spare buffer, which takes half
    # the time. For the others, anonymous memory of the ceiling's size costs only what is written of it.
    spare = _spare_buffers.pop() if _spare_buffers else memoryview(bytearray(_USUAL_SIZE))
    try:
        with suppress(cramjam.DecompressionError):
            return bytes(spare[: cramjam.zstd.decompress_into(data, spare[:max_size])])
    finally:
        _spare_buffers.append(spare)
    area = mmap.mmap(-1, max(max_size, 1))  # a ceiling of 0 takes one byte: there is no mapping of none
    try:
        size = cramjam.zstd.decompress_into(data, area)
    except cramjam.DecompressionError as error:
        raise CompressionError(f"a zstd block cannot be opened into {max_size} bytes: {error}") from None
    if size > max_size:
        raise _too_large(max_size)
    return memoryview(area)[:size]  # no copy, which would be made with the GIL held


# One for each thread that decompresses at a time: a list's pop and append are safe among threads.
_spare_buffers: list[memoryview] = []


_Compressor: TypeAlias = Callable[[Buffer, int | None], bytes]
_Decompressor: TypeAlias = Callable[[memoryview, int], Buffer]
_COMPRESSORS: dict[Codec, _Compressor] = {
    Codec.NONE: _stored,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_DECOMPRESSORS: dict[Codec, _Decompressor] = {
    Codec.NONE: _copy,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
