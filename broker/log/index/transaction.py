"""The transaction index (`.txnindex`): the aborted transactions whose markers lie in a segment.

Owns the format of an entry. Not mapped: it is small, and read as a whole. Must not know the log.

    | at | bytes | field                                                            |
    |----|-------|------------------------------------------------------------------|
    | 0  | 2     | version, 0                                                       |
    | 2  | 8     | producer id                                                      |
    | 10 | 8     | first offset of the transaction                                  |
    | 18 | 8     | last offset: that of its marker                                  |
    | 26 | 8     | the last stable offset once the marker was appended              |

Source: org.apache.kafka.storage.internals.log.TransactionIndex, AbortedTxn.
"""

import os
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from broker.log.errors import IndexCorruptError
from broker.log.io.disk import Disk, read_file

ENTRY = Struct(">hqqqq")
VERSION = 0


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted: what its producer wrote from `first_offset` to `last_offset` is void."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def read_aborted(disk: Disk, path: str, base_offset: int, *, torn_end: bool = False) -> list[AbortedTransaction]:
    """Return the entries of a file, none if there is no file. Raises IndexCorruptError, OSError.

    `torn_end`: part of an entry at the end is left out, as a crash may leave one.
    """
    try:
        data = read_file(disk, path)
    except FileNotFoundError:
        return []
    whole = len(data) // ENTRY.size * ENTRY.size
    if whole < len(data) and not torn_end:
        raise IndexCorruptError(base_offset, f"its transaction index is not a multiple of {ENTRY.size} bytes")
    entries = list(ENTRY.iter_unpack(data[:whole]))
    if any(version > VERSION for version, *_ in entries):
        raise IndexCorruptError(base_offset, "its transaction index is of another version")
    return [AbortedTransaction(*fields) for _, *fields in entries]


def cut_aborted(disk: Disk, path: str, end: int) -> None:
    """Drop the entries of transactions that end at or past an offset, and a torn last one, if there is a file.

    An entry past the end of its log would void what the same producer writes there next. Raises OSError.
    """
    try:
        fd = disk.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        size = disk.size(fd)
        data = disk.pread(fd, size // ENTRY.size * ENTRY.size, 0)
        kept = sum(1 for *_, last_offset, _ in ENTRY.iter_unpack(data) if last_offset < end) * ENTRY.size
        if kept < size:
            disk.truncate(fd, kept)
            disk.sync(fd)
    finally:
        disk.close(fd)


def encode_aborted(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The content of a file."""
    return b"".join(ENTRY.pack(VERSION, *transaction) for transaction in transactions)
