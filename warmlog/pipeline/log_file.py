"""One log file, read beside whoever else reads or writes it.

Owns: reading headers and whole batches at positions, with one buffer that is used again. Must not know: which file, or
what is done with the batches.

1. Memory is bounded by the window, or by the largest batch.
2. Reading is by `preadv`, never through a mapping: a file that shrinks under a mapping ends the process.
3. Bytes that were given are valid until the next call.
"""

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from protocol.errors import CorruptBatchError
from protocol.records.batch import BatchHeader, read_header, verify_crc
from protocol.records.layout import HEADER_SIZE

WINDOW_BYTES = 4 << 20  # reading costs nothing beside decoding from a megabyte on


class CutError(CorruptBatchError):
    """The file ends inside a batch."""


class LogFile:
    """An open log file, a context manager. `window_bytes`: what is read at a time. Raises OSError throughout."""

    def __init__(self, path: str, *, window_bytes: int = WINDOW_BYTES) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._memory = bytearray(window_bytes)
        self._begin = self._end = 0
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        self.identity = (status.st_dev, status.st_ino)

    def header(self, position: int) -> BatchHeader:
        """The header at a position, its length and magic checked. Raises ProtocolError, CutError."""
        start = self._locate(position, HEADER_SIZE)
        return read_header(self._memory, start)

    def batch(self, position: int, header: BatchHeader) -> tuple[memoryview, int]:
        """A buffer and where in it the whole batch stands, its CRC checked. Raises CorruptBatchError, CutError."""
        start = self._locate(position, header.size)
        view = memoryview(self._memory)
        verify_crc(view, start, header)
        return view, start

    def headers(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of each batch from one position to another. Raises ProtocolError, CutError."""
        while position < end:
            header = self.header(position)
            yield position, header
            position += header.size

    def _locate(self, position: int, size: int) -> int:
        """Have so many bytes from a position on in memory; where they begin there."""
        if position < self._begin or position + size > self._end:
            if size > self.size - position:
                raise CutError(f"a batch is cut off: {max(self.size - position, 0)} of {size} bytes are there")
            self._fill(position, size)
        return position - self._begin

    def _fill(self, position: int, size: int) -> None:
        if size > len(self._memory):
            self._memory = bytearray(size)  # a new one: views of the old may live
        view = memoryview(self._memory)
        self._begin, filled = position, 0
        while filled < size:
            count = os.preadv(self._descriptor, [view[filled:]], position + filled)
            if not count:
                self._end = position + filled
                raise CutError(f"the file ends at {position + filled}")
            filled += count
        self._end = position + filled

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
