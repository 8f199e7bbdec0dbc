"""Compress and decompress the block of a batch, in Kafka's framing.

gzip: one or more members of RFC 1952. lz4: the frame format with independent blocks of 64 KiB. zstd: one or more
frames; Java's omit the content size that one-shot decompressors need. snappy: written in the framing of the xerial
library, as Java clients do; read in that framing, or as one raw block as librdkafka and others may write it:

    position  size
    0         8     magic 82 "SNAPPY" 00
    8         4     version 1
    12        4     minimum compatible version 1
    16              chunks: int32 length and one raw snappy block; a chunk may be preceded by another header

A block is read in one of two ways:

    strict    blocks from producers: refuses any input that one of Kafka's decoders refuses, and bytes outside the block

| | strict refuses, lenient reads |
|---|---|
| gzip | bytes after a member that are not a member, which Java ignores; reserved flags |
| snappy | up to 3 bytes after the last chunk; a version below 1 in a second header |
| lz4 | a wrong content size or checksum, which Kafka does not verify; linked blocks and dictionary ids |
| zstd | bytes after a frame that are not a frame |

The libraries are imported on first use to keep startup fast.

Invariants:
1. Decompression never produces more than `max_size` bytes (plus a constant), regardless of the size that a block
states; at the limit it stops and raises.
2. A truncated block raises CompressionError. Bytes after an lz4 frame are ignored, as in Kafka.
3. No step holds the GIL for long: a block of more than `JOINED` bytes is decompressed in steps into a separate mapping.
Python frees a mapping without the GIL, but holds the GIL to free 128 MiB of bytes, which takes tens of milliseconds.
4. `decompressed_parts` takes bounded memory, regardless of the decompressed size: a part has at most `STEP` bytes, or
the content of one lz4 block (4 MiB) or one snappy chunk (22 times its compressed size).

Source: org.apache.kafka.common.compress; `tests/fixtures/kafka/4.3.1/frames.jsonl` holds Kafka's own verdicts.
"""

import ctypes
import mmap
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import ModuleType
from typing import TypeAlias

from warmlog.protocol.errors import CompressionError
from warmlog.protocol.records.formats import lz4, snappy
from warmlog.protocol.records.formats.frames import INPUT_STEP, JOINED, STEP, Frame, read_frame, too_large
from warmlog.protocol.records.layout import Codec
from warmlog.protocol.records.record import Buffer

__all__ = [
    "DEFAULT_MAX_DECOMPRESSED_SIZE",
    "MAX_STORED_SIZE",
    "Codec",
    "compress",
    "compressed_parts",
    "decompress",
    "decompressed_parts",
]

# Limit for blocks from producers. Batches are about 1 MiB by default, and log lines compress by a factor of 50 at best;
# a larger block is a decompression bomb or corrupt.
DEFAULT_MAX_DECOMPRESSED_SIZE = 128 << 20
# Limit for stored blocks that are needed whole: Kafka stores blocks whose content has any size.
MAX_STORED_SIZE = 1 << 30

# wbits for zlib: gzip format, largest window.
_GZIP_WINDOW = 31
_GZIP_KNOWN_FLAGS = 0x1F
# Default level of zstd and of Kafka's compression.zstd.level.
_ZSTD_LEVEL = 3


def compress(codec: Codec, data: Buffer, *, level: int | None = None) -> bytes:
    """Compress `data` as one block of `codec`, in the format of Kafka's clients (NONE copies it).

    `level` is Kafka's: gzip -1 (default) or 1 to 9, lz4 1 to 17, zstd -131072 to 22; None is the fastest for lz4 and
    the default for the others. Thread-safe; releases the GIL.
    """
    return _COMPRESSORS[codec](data, level)


def compressed_parts(codec: Codec, parts: Iterable[Buffer]) -> Iterator[Buffer]:
    """Compress parts as one block of `codec` at the default level, and yield the block in parts, in bounded memory."""
    return _PART_COMPRESSORS[codec](parts)


def decompress(
    codec: Codec, data: Buffer, *, max_size: int = DEFAULT_MAX_DECOMPRESSED_SIZE, strict: bool = False
) -> Buffer:
    """Decompress one block of `codec` into new memory.

    Raises CompressionError if the block is invalid or truncated, and DecompressedSizeError if it is larger than
    `max_size` bytes when decompressed.
    Thread-safe; releases the GIL.
    """
    return _gathered(_DECOMPRESSORS[codec](memoryview(data), strict, max_size), max_size)


def decompressed_parts(codec: Codec, data: Buffer) -> Iterator[Buffer]:
    """Decompress one block of `codec` part by part, leniently and without a limit. Raises CompressionError."""
    return _DECOMPRESSORS[codec](memoryview(data), False, sys.maxsize)


def _gathered(parts: Iterator[Buffer], max_size: int) -> Buffer:
    """Return the parts as one block: joined if they have up to JOINED bytes, otherwise in a mapping.

    Raises DecompressedSizeError if they take more than `max_size` bytes.
    """
    head: list[Buffer] = []
    size = 0
    for part in parts:
        head.append(part)
        size += len(part)
        if size > min(JOINED, max_size):
            break
    if size > max_size:
        raise too_large(max_size)
    if size <= JOINED:
        return head[0] if len(head) == 1 else b"".join(head)
    area = mmap.mmap(-1, max_size)  # only written pages are allocated
    end = 0
    for part in chain(head, parts):
        if len(part) > max_size - end:
            raise too_large(max_size)
        if part:
            _copy_into(area, end, part)
            end += len(part)
    return memoryview(area)[:end]


def _copy_into(area: mmap.mmap, position: int, part: Buffer) -> None:
    """Copy to a mapping without the GIL: new pages take time, and block while other mappings are being unmapped."""
    source = part if isinstance(part, bytes) else ctypes.addressof(ctypes.c_char.from_buffer(part))
    _memcpy(ctypes.addressof(ctypes.c_char.from_buffer(area, position)), source, len(part))


_memcpy = ctypes.CDLL(None).memcpy
_memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcpy.restype = ctypes.c_void_p


def _store(data: Buffer, _: int | None) -> bytes:
    return bytes(data)


def _copy(data: memoryview, _: bool, max_size: int) -> Iterator[bytes]:
    if len(data) > max_size:
        raise too_large(max_size)
    yield bytes(data)


# -- gzip and zstd -----------------------------------------------------------------------------------------------------


def _gzip(data: Buffer, level: int | None) -> bytes:
    return zlib.compress(data, -1 if level is None else level, wbits=_GZIP_WINDOW)


def _gzip_parts(parts: Iterable[Buffer]) -> Iterator[bytes]:
    member = zlib.compressobj(wbits=_GZIP_WINDOW)
    for part in parts:
        yield member.compress(part)
    yield member.flush()


def _gunzip(data: memoryview, strict: bool, _: int) -> Iterator[bytes]:
    return _frames(data, _strict_member if strict else _lenient_member, strict=strict)


def _frames(data: memoryview, read: Callable[[memoryview], Frame], *, strict: bool) -> Iterator[bytes]:
    """Yield the parts of all frames. Unless `strict`, the first frame may be followed by other bytes."""
    position = yield from read(data)
    while position < len(data):
        frame = read(data[position:])
        if not strict:
            try:
                yield next(frame)
            except CompressionError:
                return
            except StopIteration as end:
                position += end.value
                continue
        position += yield from frame


def _strict_member(data: memoryview) -> Frame:
    return _member(data, b"")


def _lenient_member(data: memoryview) -> Frame:
    """Decompress one gzip member, clearing its reserved flags, which Java ignores."""
    return _member(data, bytes(data[:3]) + bytes(flags & _GZIP_KNOWN_FLAGS for flags in data[3:4]))


def _member(data: memoryview, start: bytes) -> Frame:
    """Decompress one gzip member, whose first bytes are replaced by `start`."""
    member = zlib.decompressobj(_GZIP_WINDOW)
    rest: Buffer = start
    position = len(start)
    while not member.eof:
        if not rest:
            rest = data[position : position + INPUT_STEP]
            position += len(rest)
        try:
            part = member.decompress(rest, STEP)
        except zlib.error as error:
            raise CompressionError(f"invalid gzip block: {error}") from None
        if part:
            yield part
        elif not rest and not member.eof:
            raise CompressionError("the gzip block is truncated")
        rest = member.unconsumed_tail
    return position - len(member.unused_data)


def _zstd(data: Buffer, level: int | None) -> bytes:
    frame: bytes = _zstd_library().compress(data, _ZSTD_LEVEL if level is None else level)
    return frame


def _zstd_parts(parts: Iterable[Buffer]) -> Iterator[bytes]:
    frame = _zstd_library().ZstdCompressor(_ZSTD_LEVEL)
    for part in parts:
        yield frame.compress(part)
    yield frame.flush()


def _unzstd(data: memoryview, strict: bool, _: int) -> Iterator[bytes]:
    library = _zstd_library()

    def read(data: memoryview) -> Frame:
        return read_frame(data, library.ZstdDecompressor(), library.ZstdError, "zstd")

    return _frames(data, read, strict=strict)


def _zstd_library() -> ModuleType:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


_Compressor: TypeAlias = Callable[[Buffer, int | None], bytes]
_PartCompressor: TypeAlias = Callable[[Iterable[Buffer]], Iterator[Buffer]]
_Opener: TypeAlias = Callable[[memoryview, bool, int], Iterator[Buffer]]
_COMPRESSORS: dict[Codec, _Compressor] = {
    Codec.NONE: _store,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: snappy.compress,
    Codec.LZ4: lz4.compress,
    Codec.ZSTD: _zstd,
}
_PART_COMPRESSORS: dict[Codec, _PartCompressor] = {
    Codec.NONE: iter,
    Codec.GZIP: _gzip_parts,
    Codec.SNAPPY: snappy.compressed_parts,
    Codec.LZ4: lz4.compressed_parts,
    Codec.ZSTD: _zstd_parts,
}
_DECOMPRESSORS: dict[Codec, _Opener] = {
    Codec.NONE: _copy,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: snappy.decompressed_parts,
    Codec.LZ4: lz4.decompressed_parts,
    Codec.ZSTD: _unzstd,
}
