"""The offset index (`.index`): maps an offset to a position in the log file.

Entry format:

    | at | bytes | field                                                                       |
    |----|-------|-----------------------------------------------------------------------------|
    | 0  | 4     | the LAST offset of a batch, relative to the segment's base offset (the key)   |
    | 4  | 4     | the position of that batch's first byte in the log file (the value)           |

A batch gets an entry if more than `index.interval.bytes` were written since the last entry; a segment's first batch
has none. Source: org.apache.kafka.storage.internals.log.OffsetIndex.
"""

from struct import Struct
from typing import NamedTuple

from warmlog.broker.log.config import SearchName
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.mapped import MappedIndex
from warmlog.broker.log.index.search import Column, Section


class OffsetPosition(NamedTuple):
    """An offset index entry, and the section of the index in which a lookup found it."""

    offset: int
    position: int
    section: Section | None = None


class OffsetIndex(MappedIndex):
    """The offset index of one segment."""

    entry = Struct(">ii")
    key_column = Column(Struct(">i").unpack_from, 0, 8, 4)
    value_column = Column(Struct(">i").unpack_from, 4, 8, 4)
    kind = "index"

    def entry_at(self, slot: int) -> OffsetPosition:
        """Return the entry in a slot. Raises IndexError, IndexCorruptError, OSError."""
        relative, position = self.fields(slot)
        return OffsetPosition(self.base_offset + relative, position)

    def last(self) -> OffsetPosition:
        """Return the last entry, or (base offset, 0)."""
        return self.entry_at(self.entries - 1) if self.entries else OffsetPosition(self.base_offset, 0)

    def lookup(self, offset: int, search: SearchName = "warm") -> OffsetPosition:
        """Return the last entry with an offset <= `offset`, or (base offset, 0): the start of a scan for the offset."""
        base_offset = self.base_offset
        slot, section = self.key_floor(offset - base_offset, search)
        if slot < 0:
            return OffsetPosition(base_offset, 0, section)
        relative, position = self.entry.unpack_from(self.view(), slot * 8)
        return OffsetPosition(base_offset + relative, position, section)

    def upper_bound(self, position: int, size: int) -> OffsetPosition | None:
        """Return the first entry at or past `position + size`, or None: an offset beyond a read of that size.

        Exact, unlike Kafka's fetchUpperBoundOffset, which may return the next entry on a match.
        """
        slot = self.value_ceiling(position + size)
        return self.entry_at(slot) if slot < self.entries else None

    def pages_touched(self, offset: int, search: SearchName = "warm") -> list[int]:
        """Return the pages of the file that `lookup` touches, each once, in the order of the first touch."""
        return self.key_pages(offset - self.base_offset, search)

    def append(self, offset: int, position: int) -> None:
        """Add an entry. Raises IndexFullError, IndexOrderError (both fields must increase), OSError."""
        self.check_not_full()
        relative = self.relative(offset)
        self.check_increases(relative, position)
        self.append_encoded(self.entry.pack(relative, position))

    def truncate_to(self, offset: int) -> None:
        """Drop all entries at or past `offset`."""
        slot, _ = self.key_floor(offset - 1 - self.base_offset)
        self.keep_entries(slot + 1)

    def sanity_check(self, next_base_offset: int, log_size: int) -> None:
        """Check size, first and last entry, in O(1). Raises IndexCorruptError, OSError.

        All offsets of the segment lie below `next_base_offset`. A preallocated index that was never trimmed ends in
        zeros and fails this check, as intended.
        """
        ends = self.stored_ends()
        if ends is None:
            return
        (first, first_position), (last, last_position) = ends
        if self.entries > 1 and (last <= first or last_position <= first_position):
            raise IndexCorruptError(self.base_offset, "its last entry is not greater than its first")
        if first <= 0 or self.base_offset + last >= next_base_offset:
            raise IndexCorruptError(self.base_offset, "an offset lies outside the segment")
        if first_position < 0 or last_position >= log_size:
            raise IndexCorruptError(self.base_offset, "a position lies outside the log file")
