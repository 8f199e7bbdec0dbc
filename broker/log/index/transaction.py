"""The transaction index (`.txnindex`): the aborted transactions whose markers are in a segment.

Entries are in the order of their markers, so their last offsets increase. Most segments have no entries and no file.
The file is not mapped: a fetch reads the few entries of its range, and the block of entries read last is kept, since
the next fetch of a reader usually needs the same one.

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
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.io.disk import Disk, read_file, write_all
from warmlog.broker.log.io.files import File, OpenFiles
from warmlog.broker.log.io.residency import ColdReadError

ENTRY: Final = Struct(">hqqqq")
LAST_OFFSET: Final = Struct(">18xq8x")
VERSION: Final = 0
ENTRIES_PER_BLOCK: Final = 30  # 1 KiB


class AbortedTransaction(NamedTuple):
    """An aborted transaction: consumers skip its producer's records from `first_offset` to `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def read_aborted(disk: Disk, path: str, base_offset: int, *, torn_end: bool = False) -> list[AbortedTransaction]:
    """Return the entries of a file, none if there is no file. Raises IndexCorruptError, OSError.

    `torn_end`: ignore an incomplete entry at the end, as a crash may leave one.
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
    """Drop the entries of transactions that end at or past an offset, and an incomplete last entry. Raises OSError.

    An entry past the end of its log would hide records that the same producer writes there later.
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
    """Encode the content of an index file."""
    return b"".join(ENTRY.pack(VERSION, *transaction) for transaction in transactions)


class TransactionIndex:
    """The transaction index of one segment, as fetches read it."""

    __slots__ = ("_base_offset", "_count", "_file", "_kept", "_kept_block", "_open_files", "_residency")

    def __init__(self, open_files: OpenFiles, path: str, base_offset: int) -> None:
        """Use a file, which may be missing; it is opened at first use."""
        self._base_offset = base_offset
        self._open_files = open_files
        self._residency = open_files.residency
        self._file = File(open_files, path, writable=False)
        self._count: int | None = None
        self._kept_block = -1  # the block of entries that was read last, -1 if none
        self._kept = b""

    def use_names(self, path: str, other_path: str | None) -> None:
        """Follow the file to a new name; `other_path` is the alternative while it is being renamed."""
        self._file.path, self._file.other_path = path, other_path

    @property
    def is_counted(self) -> bool:
        """Whether the file's size is known."""
        return self._count is not None

    def count(self) -> int:
        """Return the number of entries, 0 without a file. Raises IndexCorruptError, OSError; ColdReadError if gated."""
        if self._count is None:
            if self._residency.must_not_wait:
                raise ColdReadError(self.count)
            try:
                size = self._file.descriptor().size()
            except FileNotFoundError:
                size = 0
            if size % ENTRY.size:
                raise self._corrupt(f"is not a multiple of {ENTRY.size} bytes")
            self._count = size // ENTRY.size
        return self._count

    def overlapping(self, offset: int, bound: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the transactions that end at or past `offset` and begin before `bound`.

        The flag is true if no later segment can have such a transaction. Raises as `count` does.
        Source: TransactionIndex.collectAbortedTxns.
        """
        aborted: list[AbortedTransaction] = []
        count = self.count()
        block = self._block_ending_at(offset, count)
        while block * ENTRIES_PER_BLOCK < count:
            entries = self._read(block, count)
            for at in range(_first_ending_at(offset, entries), len(entries) // ENTRY.size):
                version, producer_id, first_offset, last_offset, stable = ENTRY.unpack_from(entries, at * ENTRY.size)
                if version > VERSION:
                    raise self._corrupt("is of another version")
                if first_offset < bound:
                    aborted.append(AbortedTransaction(producer_id, first_offset, last_offset, stable))
                if stable >= bound:
                    return aborted, True
            block += 1
        return aborted, False

    def _block_ending_at(self, offset: int, count: int) -> int:
        """Return the block with the first entry that ends at or past `offset`; one past the last if there is none."""
        low, high = 0, (count + ENTRIES_PER_BLOCK - 1) // ENTRIES_PER_BLOCK
        middle = self._kept_block if 0 <= self._kept_block < high else high // 2
        while low < high:
            entries = self._read(middle, count)
            if _last_offset(entries, len(entries) // ENTRY.size - 1) < offset:
                low = middle + 1
            elif _last_offset(entries, 0) >= offset and middle > low:
                high = middle
            else:
                return middle
            middle = (low + high) // 2
        return low

    def append(self, transactions: Sequence[AbortedTransaction], *, is_new: bool) -> bool:
        """Add entries at the end, or none of them, and return whether the file may be new. Raises OSError.

        `is_new`: the segment has no transaction index, so the content of an existing file belongs to another segment.
        Nothing is synced.
        """
        disk, data = self._open_files.disk, encode_aborted(transactions)
        fd = disk.open(self._file.path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if is_new else 0))
        try:
            end = disk.size(fd) // ENTRY.size * ENTRY.size
            try:
                write_all(disk, fd, [data], end)
            except OSError:
                disk.truncate(fd, end)
                raise
        finally:
            disk.close(fd)
        self._count = end // ENTRY.size + len(transactions)
        self._drop_kept()
        return end == 0

    def forget(self) -> None:
        """Close the file, which was replaced or cut."""
        self._count = None
        self._drop_kept()
        self._file.close()

    def _drop_kept(self) -> None:
        self._kept_block, self._kept = -1, b""

    def _read(self, block: int, count: int) -> bytes:
        """Return the entries of a block, as bytes; `count` is the number of entries in the file."""
        if block == self._kept_block:
            return self._kept
        slot = block * ENTRIES_PER_BLOCK
        file, position = self._file.descriptor(), slot * ENTRY.size
        size = min(ENTRIES_PER_BLOCK, count - slot) * ENTRY.size
        self._residency.need(file, position, size, "index")
        entries = file.pread(size, position)
        if len(entries) < size:
            raise self._corrupt("was cut")
        self._kept_block, self._kept = block, entries
        return entries

    def _corrupt(self, what: str) -> IndexCorruptError:
        return IndexCorruptError(self._base_offset, f"its transaction index {what}")


def _first_ending_at(offset: int, entries: bytes) -> int:
    """Return the slot of the first entry that ends at or past `offset`; the number of entries if there is none."""
    low, high = 0, len(entries) // ENTRY.size
    while low < high:
        middle = (low + high) // 2
        if _last_offset(entries, middle) < offset:
            low = middle + 1
        else:
            high = middle
    return low


def _last_offset(entries: bytes, slot: int) -> int:
    """Return the last offset of an entry."""
    last_offset: int = LAST_OFFSET.unpack_from(entries, slot * ENTRY.size)[0]
    return last_offset
