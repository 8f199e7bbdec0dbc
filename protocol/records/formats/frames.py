"""Parts shared by the formats of compressed blocks: decompression in steps, and the limit on the content."""

from collections.abc import Generator
from typing import Protocol, TypeAlias

from warmlog.protocol.errors import CompressionError, DecompressedSizeError
from warmlog.protocol.records.record import Buffer

# Limit of one call's output, which is copied with the GIL held; below the size for which malloc maps new pages.
STEP = 64 << 10
# Limit of one call's input: bytes that a call does not consume are copied with the GIL held.
INPUT_STEP = 64 << 10
# Parts are joined up to this total size.
JOINED = 1 << 20

# A generator that yields the parts of a frame and returns its size.
Frame: TypeAlias = Generator[bytes, None, int]


def too_large(max_size: int) -> DecompressedSizeError:
    """Return the error for a block whose content exceeds `max_size` bytes."""
    return DecompressedSizeError(f"the compressed block exceeds the limit of {max_size} bytes when decompressed")


class Decompressor(Protocol):
    """The interface that the decompressors of zstd and lz4 share."""

    @property
    def eof(self) -> bool:
        """Whether the frame has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether more output requires more input."""

    @property
    def unused_data(self) -> bytes | None:
        """The input after the end of the frame."""

    def decompress(self, data: Buffer, /, max_length: int) -> bytes:
        """Return up to `max_length` bytes of content."""


def read_frame(data: memoryview, decompressor: Decompressor, failure: type[Exception], name: str) -> Frame:
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
