"""Snappy blocks: raw, or the chunks of xerial's SnappyOutputStream."""

import mmap
from collections.abc import Iterable, Iterator
from struct import Struct

from warmlog.protocol.errors import CompressionError
from warmlog.protocol.records.formats.frames import JOINED, too_large
from warmlog.protocol.records.record import Buffer

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_INT = Struct(">i")
# Default block size of xerial's SnappyOutputStream.
_XERIAL_CHUNK_SIZE = 32 << 10
# A snappy copy element of 3 bytes produces at most 64, so a raw block cannot exceed this ratio.
_SNAPPY_MAX_RATIO = 22


def compress(data: Buffer, _: int | None) -> bytes:
    """Compress as one block."""
    return b"".join(compressed_parts((data,)))


def compressed_parts(parts: Iterable[Buffer]) -> Iterator[bytes]:
    """Compress the parts as one block; yield it in parts."""
    from cramjam import snappy

    yield _XERIAL_HEADER
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _XERIAL_CHUNK_SIZE):
            chunk = bytes(snappy.compress_raw(view[start : start + _XERIAL_CHUNK_SIZE]))
            yield _XERIAL_INT.pack(len(chunk))
            yield chunk


def decompressed_parts(data: memoryview, strict: bool, max_size: int) -> Iterator[Buffer]:
    """Yield the content of a block in parts. `strict`: refuse blocks that Kafka refuses from producers.

    Raises CompressionError.
    """
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
            # xerial's reader does not check the version in the first header.
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
            raise too_large(max_size)
        if size > JOINED:
            area = mmap.mmap(-1, size)
            return memoryview(area)[: cramjam.snappy.decompress_raw_into(data, area)]
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CompressionError(f"invalid snappy block: {error}") from None
