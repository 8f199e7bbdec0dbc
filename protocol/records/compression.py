"""Compress and decompress the block of a batch, framed as Kafka frames it.

gzip: one or more members of RFC 1952. lz4: the frame format with independent blocks of 64 KiB. zstd: one or more
frames; Java's omit the content size that one-shot decompressors need. snappy: written in the framing of the xerial
library, as Java clients do; read in that framing, or as one raw block as librdkafka and others may write it:

    position  size
    0         8     magic 82 "SNAPPY" 00
    8         4     version 1
    12        4     minimum compatible version 1
    16              chunks: int32 length and one raw snappy block; a chunk may be preceded by another header

A block is read in one of two ways:

    strict    blocks from producers: refuses what any of Kafka's decoders refuses, and bytes that are no part of a block
    lenient   blocks that are stored: Kafka, or an earlier version, has accepted them. Reads what Kafka's decoders read

| | strict refuses, lenient reads |
|---|---|
| gzip | bytes after a member, which Java ignores unless they are one; reserved flags |
| snappy | up to 3 bytes after the last chunk; a version below 1 in a second header |
| lz4 | a wrong content size or checksum, which Kafka does not verify; linked blocks and dictionary ids |
| zstd | bytes after a frame that are none |

The libraries are imported on first use to keep startup fast.

Invariants:
1. Decompression never produces more than `max_size` bytes (plus a constant), whatever size a block states; it stops
   there and raises.
2. A truncated block raises CompressionError. Bytes after an lz4 frame are ignored, as in Kafka.
3. No step holds the GIL for long: a block of more than `JOINED` bytes is decompressed in steps into a mapping of its
   own. Python frees a mapping without the GIL, but 128 MiB of bytes with it, which takes tens of milliseconds.
4. `decompressed_parts` takes bounded memory, whatever the block opens to: a part has at most `STEP` bytes, or what one
   block of lz4 (4 MiB) or one chunk of snappy (22 times its compressed size) holds.

Source: org.apache.kafka.common.compress; `tests/fixtures/kafka/4.3.1/frames.jsonl` holds Kafka's own verdicts.
"""

import ctypes
import mmap
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from struct import Struct
from types import ModuleType
from typing import Protocol, TypeAlias

from warmlog.protocol.errors import CompressionError, DecompressedSizeError
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

# Of blocks from producers. Batches are about 1 MiB by default, and log lines compress by a factor of 50 at best; a
# larger block is a decompression bomb or corrupt.
DEFAULT_MAX_DECOMPRESSED_SIZE = 128 << 20
# Of stored blocks that are needed whole: Kafka stores blocks that open to any size.
MAX_STORED_SIZE = 1 << 30

# wbits for zlib: gzip format, largest window.
_GZIP_WINDOW = 31
_GZIP_KNOWN_FLAGS = 0x1F
# Default level of zstd and of Kafka's compression.zstd.level.
_ZSTD_LEVEL = 3
# Kafka's default level selects the fast lz4 compressor, every other level the high compression one. That one has 12
# levels in the library used here, and 17 in Kafka's.
_LZ4_FAST_LEVEL = 9
_LZ4_MAX_LEVEL = 12

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_INT = Struct(">i")
# Default block size of xerial's SnappyOutputStream.
_XERIAL_CHUNK_SIZE = 32 << 10
# A snappy copy element of 3 bytes produces at most 64, so a raw block cannot exceed this ratio.
_SNAPPY_MAX_RATIO = 22

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_INT = Struct("<I")
# The flags of a frame's descriptor: two bits of version, then these.
_LZ4_VERSION, _LZ4_VERSION_MASK = 0x40, 0xC0
_LZ4_INDEPENDENT, _LZ4_BLOCK_CHECKSUMS, _LZ4_CONTENT_SIZE, _LZ4_RESERVED, _LZ4_DICTIONARY = 0x20, 0x10, 8, 2, 1
_LZ4_STORED = 1 << 31  # of a block's size: it is not compressed
_LZ4_EMPTY = b"\0"  # the one block that is compressed and holds nothing
_LZ4_LEAST_SIZE_ID, _LZ4_LEAST_SIZE = 4, 64 << 10
_LZ4_HISTORY = 64 << 10  # how far back a linked block reaches
_LZ4_MAX_RATIO = 255

# Limit of one call's output, which is copied with the GIL held; below the size for which malloc maps new pages.
STEP = 64 << 10
# Limit of one call's input: what a call does not consume is copied with the GIL held.
INPUT_STEP = 64 << 10
# Parts up to this size together are joined.
JOINED = 1 << 20

# Yields the parts of a frame, returns its size.
_Frame: TypeAlias = Generator[bytes, None, int]


def compress(codec: Codec, data: Buffer, *, level: int | None = None) -> bytes:
    """Compress `data` as one block of `codec`, in the format of Kafka's clients (NONE copies it).

    `level` is Kafka's: gzip -1 (default) or 1 to 9, lz4 1 to 17, zstd -131072 to 22; None is the fastest for lz4 and
    the default for the others. Thread-safe; releases the GIL.
    """
    return _COMPRESSORS[codec](data, level)


def compressed_parts(codec: Codec, parts: Iterable[Buffer]) -> Iterator[Buffer]:
    """Compress parts as one block of `codec`, at the default level, and yield it in parts. Takes bounded memory."""
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


def _too_large(max_size: int) -> DecompressedSizeError:
    return DecompressedSizeError(f"the compressed block exceeds the limit of {max_size} bytes when decompressed")


def _gathered(parts: Iterator[Buffer], max_size: int) -> Buffer:
    """Return the parts as one block: joined up to JOINED bytes, else in a mapping.

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
        raise _too_large(max_size)
    if size <= JOINED:
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


_memcpy = ctypes.CDLL(None).memcpy
_memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcpy.restype = ctypes.c_void_p


def _store(data: Buffer, _: int | None) -> bytes:
    return bytes(data)


def _copy(data: memoryview, _: bool, max_size: int) -> Iterator[bytes]:
    if len(data) > max_size:
        raise _too_large(max_size)
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


def _frames(data: memoryview, read: Callable[[memoryview], _Frame], *, strict: bool) -> Iterator[bytes]:
    """Yield the parts of all frames. What follows the first one may, unless `strict`, be something else."""
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


def _strict_member(data: memoryview) -> _Frame:
    return _member(data, b"")


def _lenient_member(data: memoryview) -> _Frame:
    """Decompress one gzip member, without its reserved flags: Java ignores them."""
    return _member(data, bytes(data[:3]) + bytes(flags & _GZIP_KNOWN_FLAGS for flags in data[3:4]))


def _member(data: memoryview, start: bytes) -> _Frame:
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

    def read(data: memoryview) -> _Frame:
        return _frame(data, library.ZstdDecompressor(), library.ZstdError, "zstd")

    return _frames(data, read, strict=strict)


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: Buffer, /, max_length: int) -> bytes: ...


def _frame(data: memoryview, decompressor: _Decompressor, failure: type[Exception], name: str) -> _Frame:
    """Decompress one frame of lz4 or zstd."""
    position = 0
    while not decompressor.eof:
        rest: Buffer = b""
        if decompressor.needs_input:
            rest = data[position : position + INPUT_STEP]
            position += len(rest)
            if not rest:
                raise CompressionError(f"the {name} block is truncated")
        try:
            part = decompressor.decompress(rest, max_length=STEP)
        except failure as error:
            raise CompressionError(f"invalid {name} block: {error}") from None
        if part:
            yield part
    return position - len(decompressor.unused_data or b"")


# -- snappy ------------------------------------------------------------------------------------------------------------


def _snappy(data: Buffer, _: int | None) -> bytes:
    return b"".join(_snappy_parts((data,)))


def _snappy_parts(parts: Iterable[Buffer]) -> Iterator[bytes]:
    from cramjam import snappy

    yield _XERIAL_HEADER
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _XERIAL_CHUNK_SIZE):
            chunk = bytes(snappy.compress_raw(view[start : start + _XERIAL_CHUNK_SIZE]))
            yield _XERIAL_INT.pack(len(chunk))
            yield chunk


def _unsnappy(data: memoryview, strict: bool, max_size: int) -> Iterator[Buffer]:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield _unsnappy_raw(data, max_size)
        return
    for chunk in _xerial_chunks(data, strict=strict):
        yield _unsnappy_raw(chunk, max_size)


def _xerial_chunks(data: memoryview, *, strict: bool) -> Iterator[memoryview]:
    position = 0
    while position < len(data):
        start = position + _XERIAL_INT.size
        if start > len(data) and not strict:
            return
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            # Of a first header, xerial's reader does not check the version.
            _check_xerial_header(data[position : position + len(_XERIAL_HEADER)], strict=strict and position > 0)
            position += len(_XERIAL_HEADER)
            continue
        length = _XERIAL_INT.unpack_from(data, position)[0] if start <= len(data) else -1
        if not 0 <= length <= len(data) - start:
            raise CompressionError(f"the snappy block is truncated, or its chunk at byte {position} has a wrong length")
        yield data[start : start + length]
        position = start + length


def _check_xerial_header(header: memoryview, *, strict: bool) -> None:
    if len(header) < len(_XERIAL_HEADER):
        raise CompressionError("the snappy block is truncated in its header")
    (version,) = _XERIAL_INT.unpack_from(header, len(_XERIAL_MAGIC))
    if strict and version < 1:
        raise CompressionError(f"a snappy block of version {version}, which must be at least 1")


def _unsnappy_raw(data: memoryview, max_size: int) -> Buffer:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > len(data) * _SNAPPY_MAX_RATIO:
            raise CompressionError(f"a snappy block of {len(data)} bytes cannot hold the {size} bytes it states")
        if size > max_size:
            raise _too_large(max_size)
        if size > JOINED:
            area = mmap.mmap(-1, size)
            return memoryview(area)[: cramjam.snappy.decompress_raw_into(data, area)]
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CompressionError(f"invalid snappy block: {error}") from None


# -- lz4 ---------------------------------------------------------------------------------------------------------------


def _lz4(data: Buffer, level: int | None) -> bytes:
    return b"".join(_lz4_parts((data,), level))


def _lz4_parts(parts: Iterable[Buffer], level: int | None = None) -> Iterator[bytes]:
    from lz4 import frame

    compressor = frame.LZ4FrameCompressor(
        compression_level=0 if level is None or level == _LZ4_FAST_LEVEL else min(level, _LZ4_MAX_LEVEL),
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
    )
    yield compressor.begin()
    for part in parts:
        yield compressor.compress(part)
    yield compressor.flush()


def _unlz4(data: memoryview, strict: bool, _: int) -> Iterator[bytes]:
    return _strict_unlz4(data) if strict else _lenient_unlz4(data)


def _strict_unlz4(data: memoryview) -> Iterator[bytes]:
    """Decompress with liblz4, which verifies all sizes and checksums, what Kafka's own decoder can read as well."""
    from lz4 import frame

    flags, _, blocks = _lz4_blocks(data)
    if flags & (_LZ4_INDEPENDENT | _LZ4_RESERVED | _LZ4_DICTIONARY) != _LZ4_INDEPENDENT:
        raise CompressionError("an lz4 block must consist of independent blocks, without a dictionary")
    is_over = False
    for size, block in blocks:
        if is_over:
            raise CompressionError("an lz4 block with an empty block before others")
        is_over = size == _LZ4_STORED or (size == len(_LZ4_EMPTY) and block == _LZ4_EMPTY)
    yield from _frame(data, frame.LZ4FrameDecompressor(), RuntimeError, "lz4")


def _lenient_unlz4(data: memoryview) -> Iterator[bytes]:
    """Decompress without regard to sizes and checksums: Kafka does not verify those of the content."""
    from lz4 import block as lz4

    flags, block_size, blocks = _lz4_blocks(data)
    linked = not flags & _LZ4_INDEPENDENT
    history = b""
    for size, block in blocks:
        if size & _LZ4_STORED:
            part = bytes(block)
        else:
            room = min(block_size, len(block) * _LZ4_MAX_RATIO)
            try:
                part = lz4.decompress(block, uncompressed_size=room, **({"dict": history} if linked else {}))
            except lz4.LZ4BlockError as error:
                raise CompressionError(f"invalid lz4 block: {error}") from None
        if linked:
            history = (history + part)[-_LZ4_HISTORY:]
        yield part


def _lz4_blocks(data: memoryview) -> tuple[int, int, Iterator[tuple[int, memoryview]]]:
    """Return the flags and the largest block size of a frame, and its blocks: size with its highest bit, and content.

    Raises CompressionError, also while the blocks are read.
    """
    if data[: len(_LZ4_MAGIC)] != _LZ4_MAGIC:
        raise CompressionError("the lz4 block does not begin with a frame")
    start = len(_LZ4_MAGIC) + 3  # flags, block size, checksum of the header
    if len(data) < start:
        raise CompressionError("the lz4 block is truncated in its header")
    flags, sizes = data[len(_LZ4_MAGIC) : start - 1]
    size_id = sizes >> 4
    if flags & _LZ4_VERSION_MASK != _LZ4_VERSION or not _LZ4_LEAST_SIZE_ID <= size_id < 8:
        raise CompressionError(f"invalid lz4 block: flags {flags:#x}, block size {sizes:#x}")
    start += 8 * bool(flags & _LZ4_CONTENT_SIZE) + 4 * bool(flags & _LZ4_DICTIONARY)
    block_size = _LZ4_LEAST_SIZE << 2 * (size_id - _LZ4_LEAST_SIZE_ID)
    between = _LZ4_INT.size * bool(flags & _LZ4_BLOCK_CHECKSUMS)

    def blocks() -> Iterator[tuple[int, memoryview]]:
        position = start
        while True:
            begin = position + _LZ4_INT.size
            if begin > len(data):
                raise CompressionError("the lz4 block is truncated")
            (size,) = _LZ4_INT.unpack_from(data, position)
            end = begin + (size & ~_LZ4_STORED)
            if not size or (size == _LZ4_STORED and begin == len(data)):
                return
            if end - begin > block_size or end + between > len(data):
                raise CompressionError(f"the lz4 block is truncated, or its block at byte {position} is too large")
            yield size, data[begin:end]
            position = end + between

    return flags, block_size, blocks()


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
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_PART_COMPRESSORS: dict[Codec, _PartCompressor] = {
    Codec.NONE: iter,
    Codec.GZIP: _gzip_parts,
    Codec.SNAPPY: _snappy_parts,
    Codec.LZ4: _lz4_parts,
    Codec.ZSTD: _zstd_parts,
}
_DECOMPRESSORS: dict[Codec, _Opener] = {
    Codec.NONE: _copy,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
