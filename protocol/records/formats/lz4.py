"""Lz4 blocks: one frame, which Kafka reads less strictly than liblz4 does."""

from collections.abc import Iterable, Iterator
from struct import Struct

from warmlog.protocol.errors import CompressionError
from warmlog.protocol.records.formats.frames import read_frame
from warmlog.protocol.records.record import Buffer

# Kafka's default level selects the fast lz4 compressor, every other level the high compression one, which has 12
# levels in the library used here and 17 in Kafka's.
_FAST_LEVEL = 9
_MAX_LEVEL = 12

_MAGIC = b"\x04\x22\x4d\x18"
_INT = Struct("<I")
# The flags of a frame's descriptor: two bits of version, then these.
_VERSION, _VERSION_MASK = 0x40, 0xC0
_INDEPENDENT, _BLOCK_CHECKSUMS, _CONTENT_SIZE, _RESERVED, _DICTIONARY = 0x20, 0x10, 8, 2, 1
_STORED = 1 << 31  # bit in a block's size that marks an uncompressed block
_EMPTY = b"\0"  # the only compressed block without content
_LEAST_SIZE_ID, _LEAST_SIZE = 4, 64 << 10
_HISTORY = 64 << 10  # maximum distance that a linked block refers back
_MAX_RATIO = 255


def compress(data: Buffer, level: int | None) -> bytes:
    """Compress as one block."""
    return b"".join(compressed_parts((data,), level))


def compressed_parts(parts: Iterable[Buffer], level: int | None = None) -> Iterator[bytes]:
    """Compress the parts as one block; yield it in parts."""
    from lz4 import frame

    compressor = frame.LZ4FrameCompressor(
        compression_level=0 if level is None or level == _FAST_LEVEL else min(level, _MAX_LEVEL),
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
    )
    yield compressor.begin()
    for part in parts:
        yield compressor.compress(part)
    yield compressor.flush()


def decompressed_parts(data: memoryview, strict: bool, _: int) -> Iterator[bytes]:
    """Yield the content of a block in parts. `strict`: refuse blocks that Kafka refuses from producers.

    Raises CompressionError.
    """
    return _strict_parts(data) if strict else _lenient_parts(data)


def _strict_parts(data: memoryview) -> Iterator[bytes]:
    """Decompress with liblz4, which verifies sizes and checksums; refuse blocks that Kafka's decoder cannot read."""
    from lz4 import frame

    flags, _, blocks = _blocks(data)
    if flags & (_INDEPENDENT | _RESERVED | _DICTIONARY) != _INDEPENDENT:
        raise CompressionError("an lz4 block must consist of independent blocks, without a dictionary")
    is_over = False
    for size, block in blocks:
        if is_over:
            raise CompressionError("an lz4 frame must not contain an empty block before its last one")
        is_over = size == _STORED or (size == len(_EMPTY) and block == _EMPTY)
    yield from read_frame(data, frame.LZ4FrameDecompressor(), RuntimeError, "lz4")


def _lenient_parts(data: memoryview) -> Iterator[bytes]:
    """Decompress without checking the content's size and checksum, which Kafka does not verify."""
    from lz4 import block as lz4

    flags, block_size, blocks = _blocks(data)
    linked = not flags & _INDEPENDENT
    history = b""
    for size, block in blocks:
        if size & _STORED:
            part = bytes(block)
        else:
            max_bytes = min(block_size, len(block) * _MAX_RATIO)
            try:
                part = lz4.decompress(block, uncompressed_size=max_bytes, **({"dict": history} if linked else {}))
            except lz4.LZ4BlockError as error:
                raise CompressionError(f"invalid lz4 block: {error}") from None
        if linked:
            history = (history + part)[-_HISTORY:]
        yield part


def _blocks(data: memoryview) -> tuple[int, int, Iterator[tuple[int, memoryview]]]:
    """Return a frame's flags and maximum block size, and its blocks as (size including the top bit, content).

    Raises CompressionError, also while the blocks are read.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise CompressionError("the lz4 block does not begin with a frame")
    start = len(_MAGIC) + 3  # flags, block size, checksum of the header
    if len(data) < start:
        raise CompressionError("the lz4 block is truncated in its header")
    flags, sizes = data[len(_MAGIC) : start - 1]
    size_id = sizes >> 4
    if flags & _VERSION_MASK != _VERSION or not _LEAST_SIZE_ID <= size_id < 8:
        raise CompressionError(f"invalid lz4 block: flags {flags:#x}, block size {sizes:#x}")
    start += 8 * bool(flags & _CONTENT_SIZE) + 4 * bool(flags & _DICTIONARY)
    block_size = _LEAST_SIZE << 2 * (size_id - _LEAST_SIZE_ID)
    between = _INT.size * bool(flags & _BLOCK_CHECKSUMS)

    def blocks() -> Iterator[tuple[int, memoryview]]:
        position = start
        while True:
            begin = position + _INT.size
            if begin > len(data):
                raise CompressionError("the lz4 block is truncated")
            (size,) = _INT.unpack_from(data, position)
            end = begin + (size & ~_STORED)
            if not size or (size == _STORED and begin == len(data)):
                return
            if end - begin > block_size or end + between > len(data):
                raise CompressionError(f"the lz4 block is truncated, or its block at byte {position} is too large")
            yield size, data[begin:end]
            position = end + between

    return flags, block_size, blocks()
