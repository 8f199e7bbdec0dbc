"""The indexes beside a log file, as hints: nothing of them is believed before the log itself has confirmed it.

Owns: finding entries in an `.index` and a `.timeindex` that a broker may be writing, or may have left torn. Must not
know: what is looked for. (Formats: `broker.log.offset_index`, `broker.log.time_index`.)

1. Zeros after the last entry are padding of an active segment's file; a search does not look at them.
2. What a search gives may be garbage where the file is: its user holds it against the log.
"""

from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple

from broker.log.directory_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from broker.log.offset_index import OffsetIndex
from broker.log.time_index import TimeIndex


class IndexedPosition(NamedTuple):
    """An entry of the offset index: a batch's LAST offset, and where it begins in the log file."""

    last_offset: int
    position: int


class IndexedTime(NamedTuple):
    """An entry of the time index: nothing up to and including the offset is later (ms)."""

    timestamp: int
    offset: int


class OffsetEntries:
    """The entries of a segment's offset index; none where there is no file."""

    def __init__(self, log_path: str, base_offset: int) -> None:
        self._base_offset = base_offset
        self._entries = _read(log_path, OFFSET_INDEX_SUFFIX, OffsetIndex.entry.size)
        self._count = len(self._entries) // OffsetIndex.entry.size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, slot: int) -> IndexedPosition:
        relative, position = OffsetIndex.entry.unpack_from(self._entries, slot * OffsetIndex.entry.size)
        return IndexedPosition(self._base_offset + relative, position)

    def slot_before_offset(self, offset: int) -> int:
        """The slot of the last entry whose batch ends before the offset, -1 if there is none."""
        return bisect_left(range(self._count), offset, key=lambda slot: self[slot].last_offset) - 1

    def slot_at_position(self, position: int) -> int:
        """The slot of the first entry at or past the position; the number of entries if there is none."""
        return bisect_left(range(self._count), position, key=lambda slot: self[slot].position)


class TimeEntries:
    """The entries of a segment's time index; none where there is no file."""

    def __init__(self, log_path: str, base_offset: int) -> None:
        self._base_offset = base_offset
        self._entries = _read(log_path, TIME_INDEX_SUFFIX, TimeIndex.entry.size)
        self._count = len(self._entries) // TimeIndex.entry.size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, slot: int) -> IndexedTime:
        timestamp, relative = TimeIndex.entry.unpack_from(self._entries, slot * TimeIndex.entry.size)
        return IndexedTime(timestamp, self._base_offset + relative)

    def last_before(self, timestamp: int) -> IndexedTime | None:
        """The last entry whose time is earlier: the first record at or past the time comes after its offset."""
        slot = bisect_left(range(self._count), timestamp, key=lambda slot: self[slot].timestamp) - 1
        return self[slot] if slot >= 0 else None


def _read(log_path: str, suffix: str, entry_size: int) -> bytes:
    """The whole entries of an index file, without the padding."""
    try:
        stem, _, state = log_path.rpartition(LOG_SUFFIX)
        data = Path(f"{stem}{suffix}{state}").read_bytes()
    except FileNotFoundError:
        return b""
    used = -(-len(data.rstrip(b"\0")) // entry_size) * entry_size
    return data[: min(used, len(data) // entry_size * entry_size)]
