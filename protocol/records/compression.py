"""Compress and decompress the block of a batch, framed as Kafka frames it.

gzip: one or more members of RFC 1952. lz4: the frame format with independent blocks of 64 KiB; Kafka rejects linked
blocks. zstd: one or more frames; Java's omit the content size that one-shot decompressors need. snappy: written in the
framing of the xerial library, as Java clients do; read in that framing, or as one raw block as librdkafka and others
may write it:

    position  size
    0         8     magic 82 "SNAPPY" 00
    8         4     version 1
    12        4     minimum compatible version 1
    16              chunks: int32 length and one raw snappy block; a chunk may be preceded by another header

The libraries are imported on first use to keep startup fast.

Invariants:
1. Decompression never produces more than `max_size` bytes (plus a constant), whatever size a block states; it stops
   there and raises.
2. A truncated block, or trailing bytes that are not a block, raise CompressionError. Bytes after an lz4 frame are
   ignored, as in Kafka.
3. No step holds the GIL for long: a block of more than `STEP` bytes is decompressed in steps into a mapping of its own.
   Python frees a mapping without the GIL, but 128 MiB of bytes with it, which takes tens of milliseconds.

Source: org.apache.kafka.common.compress.
"""

import ctypes
import mmap
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from struct import Struct
from typing import TypeAlias

from warmlog.protocol.errors import CompressionError
from warmlog.protocol.records.layout import Codec
from warmlog.protocol.records.record import Buffer

__all__ = ["DEFAULT_MAX_DECOMPRESSED_SIZE", "Codec", "compress", "decompress"]

# Batches are about 1 MiB by default, and log lines compress by a factor of 50 at best; a larger block is a
# decompression bomb or corrupt.
DEFAULT_MAX_DECOMPRESSED_SIZE = 128 << 20

# wbits for zlib: gzip format, largest window.
_GZIP_WINDOW = 31
_GZIP_MAGIC = b"\x1f\x8b"
# Default level of zstd and of Kafka's compression.zstd.level.
_ZSTD_LEVEL = 3
# Kafka's default level selects the fast lz4 compressor, every other level the high compression one. That one has 12
# levels in the library used here, and 17 in Kafka's.
_LZ4_FAST_LEVEL = 9
_LZ4_MAX_LEVEL = 12

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_LENGTH = Struct(">i")
# Default block size of xerial's SnappyOutputStream.
_XERIAL_CHUNK_SIZE = 32 << 10
# A snappy copy element of 3 bytes produces at most 64, so a raw block cannot exceed this ratio.
_SNAPPY_MAX_RATIO = 22

# Most zstd blocks fit into this size when decompressed.
_USUAL_SIZE = 1 << 20

# Limit of one call's output, which is copied with the GIL held.
STEP = 256 << 10
# Limit of one call's input: what a call does not consume is copied with the GIL held.
INPUT_STEP = 64 << 10

# Expected decompression ratio of an lz4 block; larger output takes further calls.
_LZ4_USUAL_RATIO = 4
_LZ4_LEAST_STEP = 64 << 10


def compress(codec: Codec, data: Buffer, *, level: int | None = None) -> bytes:
    """Compress `data` as one block of `codec`, in the format of Kafka's clients (NONE copies it).

    `level` is Kafka's: gzip -1 (default) or 1 to 9, lz4 1 to 17, zstd -131072 to 22; None is the fastest for lz4 and
    the default for the others. Thread-safe; releases the GIL.
    """
    return _COMPRESSORS[codec](data, level)


def decompress(codec: Codec, data: Buffer, *, max_size: int = DEFAULT_MAX_DECOMPRESSED_SIZE) -> Buffer:
    """Decompress one block of `codec` into new memory.

    Raises CompressionError if the block is invalid, truncated, or larger than `max_size` bytes when decompressed.
    Thread-safe; releases the GIL.
    """
    return _DECOMPRESSORS[codec](memoryview(data), max_size)


def _too_large(max_size: int) -> CompressionError:
    return CompressionError(f"the compressed block exceeds the limit of {max_size} bytes when decompressed")


def _store(data: Buffer, _: int | None) -> bytes:
    return bytes(data)


def _copy(data: memoryview, max_size: int) -> bytes:
    if len(data) > max_size:
        raise _too_large(max_size)
    return bytes(data)


def _gzip(data: Buffer, level: int | None) -> bytes:
    return zlib.compress(data, -1 if level is None else level, wbits=_GZIP_WINDOW)


def _gunzip(data: memoryview, max_size: int) -> Buffer:
    return _gathered(_gunzip_parts(data, min(max_size + 1, STEP)), max_size)


def _gunzip_parts(data: memoryview, step: int) -> Iterator[bytes]:
    position = 0
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW)
        rest: bytes | memoryview = b""
        while not member.eof:
            if not rest:
                rest = data[position : position + INPUT_STEP]
                position += len(rest)
            try:
                part = member.decompress(rest, step)
            except zlib.error as error:
                raise CompressionError(f"invalid gzip block: {error}") from None
            if part:
                yield part
            elif not rest and not member.eof:
                raise CompressionError("the gzip block is truncated")
            rest = member.unconsumed_tail
        position -= len(member.unused_data)
        if position == len(data):
            return


def _gathered(parts: Iterator[Buffer], max_size: int) -> Buffer:
    """Return the parts as one block: joined up to STEP bytes, else in a mapping.

    Raises CompressionError if they take more than `max_size` bytes.
    """
    head: list[Buffer] = []
    size = 0
    for part in parts:
        head.append(part)
        size += len(part)
        if size > STEP:
            break
    if size > max_size:
        raise _too_large(max_size)
    if size <= STEP:
        return head[0] if len(head) == 1 else b"".join(head)
    area = mmap.mmap(-1, max_size)  # only pages written are allocated
    end = 0
    for part in chain(head, parts):
        if len(part) > max_size - end:
            raise _too_large(max_size)
        if part:
            _copy_into(area, end, part)
            end += len(part)
    return memoryview(area)[:end]


def _copy_into(area: mmap.mmap, position: int, part: Buffer) -> None:
    """Copy to a mapping without holding the GIL: its new pages take time, and wait while others are unmapped."""
    source = part if isinstance(part, bytes) else ctypes.addressof(ctypes.c_char.from_buffer(part))
    _memcpy(ctypes.addressof(ctypes.c_char.from_buffer(area, position)), source, len(part))


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
    return _gathered((_unsnappy_raw(chunk, max_size) for chunk in _xerial_chunks(data)), max_size)


def _xerial_chunks(data: memoryview) -> Iterator[memoryview]:
    position = 0
    while position < len(data):
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        start = position + _XERIAL_LENGTH.size
        length = _XERIAL_LENGTH.unpack_from(data, position)[0] if start <= len(data) else -1
        if not 0 <= length <= len(data) - start:
            raise CompressionError(f"the snappy block is truncated, or its chunk at byte {position} has a wrong length")
        yield data[start : start + length]
        position = start + length
    if position > len(data):
        raise CompressionError("the snappy block is truncated in its header")


def _unsnappy_raw(data: memoryview, max_size: int) -> Buffer:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > len(data) * _SNAPPY_MAX_RATIO:
            raise CompressionError(f"a snappy block of {len(data)} bytes cannot hold the {size} bytes it states")
        if size > max_size:
            raise _too_large(max_size)
        if size > STEP:
            area = mmap.mmap(-1, size)
            return memoryview(area)[: cramjam.snappy.decompress_raw_into(data, area)]
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CompressionError(f"invalid snappy block: {error}") from None


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


def _unlz4(data: memoryview, max_size: int) -> Buffer:
    # The library allocates `max_length` up front, so pass the expected size rather than the limit.
    step = min(max(len(data) * _LZ4_USUAL_RATIO, _LZ4_LEAST_STEP), max_size + 1, STEP)
    return _gathered(_unlz4_parts(data, step), max_size)


def _unlz4_parts(data: memoryview, step: int) -> Iterator[bytes]:
    from lz4 import frame

    decompressor = frame.LZ4FrameDecompressor()
    position = 0
    while not decompressor.eof:
        rest: Buffer = b""
        if decompressor.needs_input:
            rest = data[position : position + INPUT_STEP]
            position += len(rest)
            if not rest:
                raise CompressionError("the lz4 block is truncated")
        try:
            part = decompressor.decompress(rest, max_length=step)
        except RuntimeError as error:
            raise CompressionError(f"invalid lz4 block: {error}") from None
        if part:
            yield part


def _zstd(data: Buffer, level: int | None) -> bytes:
    from cramjam import zstd

    return bytes(zstd.compress(data, _ZSTD_LEVEL if level is None else level))


def _unzstd(data: memoryview, max_size: int) -> Buffer:
    import cramjam

    # decompress_into never writes past the end of the buffer it is given. Most blocks fit into a spare buffer, which
    # takes half the time; for the others, map anonymous memory of the maximum size: only pages written are allocated.
    spare = _spare_buffers.pop() if _spare_buffers else memoryview(bytearray(_USUAL_SIZE))
    try:
        with suppress(cramjam.DecompressionError):
            return bytes(spare[: cramjam.zstd.decompress_into(data, spare[:max_size])])
    finally:
        _spare_buffers.append(spare)
    area = mmap.mmap(-1, max(max_size, 1))  # an empty mapping is not possible
    try:
        size = cramjam.zstd.decompress_into(data, area)
    except cramjam.DecompressionError as error:
        raise CompressionError(f"invalid zstd block, or over {max_size} bytes decompressed: {error}") from None
    if size > max_size:
        raise _too_large(max_size)
    return memoryview(area)[:size]  # not copied, because that would hold the GIL


_memcpy = ctypes.CDLL(None).memcpy
_memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcpy.restype = ctypes.c_void_p

# One per concurrently decompressing thread; pop and append of a list are atomic.
_spare_buffers: list[memoryview] = []


_Compressor: TypeAlias = Callable[[Buffer, int | None], bytes]
_Decompressor: TypeAlias = Callable[[memoryview, int], Buffer]
_COMPRESSORS: dict[Codec, _Compressor] = {
    Codec.NONE: _store,
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
