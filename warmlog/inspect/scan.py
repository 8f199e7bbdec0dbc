"""The files of a segment read from their first byte to their last, without a broker and without writing.

Owns: walking the batches of a log file of any size with bounded memory, and telling where it stops making sense. Must
not know: what a batch looks like (`protocol.records`), or what is done with what was found.

1. A file is read up to the size it had when it was opened: a broker may append meanwhile.
2. A batch is given before its CRC is checked: who dumps a damaged file wants to see it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.records.batch import read_header
from protocol.records.layout import HEADER_SIZE, BatchHeader

WINDOW_BYTES = 1 << 22  # large enough that reading costs nothing beside checking; a larger batch is read whole, once


class DamageError(Exception):
    """From `position` on, the file holds no whole batch. `str()` says why.

    `zeros`: nothing but zeros follow, as in a preallocated file. `cut`: the header makes sense, the end is missing, as
    after a crash, or while a broker is writing.
    """

    def __init__(self, position: int, reason: str, *, zeros: bool = False, cut: bool = False) -> None:
        super().__init__(reason)
        self.position = position
        self.zeros = zeros
        self.cut = cut


class StoredBatch(NamedTuple):
    """A batch in a file: its position there, its header, and all of its bytes (`data[start : start + header.size]`)."""

    position: int
    header: BatchHeader
    data: bytes
    start: int


class Window:
    """Part of a file in memory, moved along as it is read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._begin = 0
        self.data = b""

    def locate(self, position: int, size: int) -> int:
        """Have `size` bytes from `position` on in `data`.

        Gives where they begin. Raises EOFError if the file has become shorter.
        """
        start = position - self._begin
        if start < 0 or start + size > len(self.data):
            self.data = os.pread(self._descriptor, max(size, WINDOW_BYTES), position)
            self._begin, start = position, 0
            if len(self.data) < size:
                raise EOFError(f"the file ends at {position + len(self.data)}")
        return start


def scan_batches(descriptor: int, size: int) -> Iterator[StoredBatch]:
    """The batches of an open log file of `size` bytes. Raises DamageError where they stop before the end, OSError."""
    window = Window(descriptor)
    position = 0
    while position < size:
        left = size - position
        try:
            start = window.locate(position, min(left, HEADER_SIZE))
            header = read_header(window.data[start : start + HEADER_SIZE])
            if header.size > left:
                raise DamageError(position, f"a batch of {header.size} bytes is cut off after {left}", cut=True)
            start = window.locate(position, header.size)
        except EOFError as error:
            raise DamageError(position, str(error), cut=True) from error
        except ProtocolError as error:
            zeros = only_zeros(descriptor, position, size)
            reason = f"{left} zero bytes to the end" if zeros else str(error)
            raise DamageError(position, reason, zeros=zeros, cut=left < HEADER_SIZE) from error
        yield StoredBatch(position, header, window.data, start)
        position += header.size


def only_zeros(descriptor: int, position: int, end: int) -> bool:
    """Whether a file holds nothing but zeros between two positions."""
    while position < end:
        piece = os.pread(descriptor, min(WINDOW_BYTES, end - position), position)
        if not piece or piece.count(0) < len(piece):
            return not piece
        position += len(piece)
    return True


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A file's descriptor, for reading. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
