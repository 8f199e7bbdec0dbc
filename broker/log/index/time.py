"""The time index (`.timeindex`): maps a timestamp to an offset.

Entry format:

    | at | bytes | field                                                                                    |
    |----|-------|------------------------------------------------------------------------------------------|
    | 0  | 8     | the largest timestamp in the segment so far, ms (the key)                                  |
    | 8  | 4     | the LAST offset of the first batch that has it, relative to the segment's base (the value) |

An entry (t, o) means: no record up to and including offset o is later than t. One is written with each offset index
entry if its timestamp is greater than the last one's, and once more on roll and on close; the last slot is reserved for
that, so the index is full one entry early. Source: org.apache.kafka.storage.internals.log.TimeIndex.
"""

from struct import Struct
from typing import Final, NamedTuple

from warmlog.broker.log.config import SearchName
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.mapped import MappedIndex
from warmlog.broker.log.index.search import Column, Section

NO_TIMESTAMP: Final = -1


class TimestampOffset(NamedTuple):
    """A timestamp (ms) and an offset; the leader epoch and the index section of the lookup, if known."""

    timestamp: int
    offset: int
    leader_epoch: int = -1
    section: Section | None = None


class TimeIndex(MappedIndex):
    """The time index of one segment."""

    entry = Struct(">qi")
    key_column = Column(Struct(">q").unpack_from, 0, 12, 8)
    value_column = Column(Struct(">i").unpack_from, 8, 12, 4)
    kind = "time_index"

    @property
    def is_full(self) -> bool:
        """Whether only the slot reserved for the roll is left."""
        return self.entries >= self.max_entries - 1

    def entry_at(self, slot: int) -> TimestampOffset:
        """Return the entry in a slot. Raises IndexError, IndexCorruptError, OSError."""
        timestamp, relative = self.fields(slot)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def last(self) -> TimestampOffset:
        """Return the last entry, or (NO_TIMESTAMP, base offset)."""
        return self.entry_at(self.entries - 1) if self.entries else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def lookup(self, timestamp: int, search: SearchName = "warm") -> TimestampOffset:
        """Return the last entry with a timestamp <= `timestamp`, or (NO_TIMESTAMP, base offset).

        No record before its offset is later.
        """
        slot, section = self.key_floor(timestamp, search)
        if slot < 0:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset, section=section)
        timestamp_of_slot, relative = self.fields(slot)
        return TimestampOffset(timestamp_of_slot, self.base_offset + relative, section=section)

    def pages_touched(self, timestamp: int, search: SearchName = "warm") -> list[int]:
        """Return the pages of the file that `lookup` touches, each once, in the order of the first touch."""
        return self.key_pages(timestamp, search)

    def append(self, timestamp: int, offset: int, *, at_roll: bool = False) -> None:
        """Add an entry if its timestamp is greater than the last one's; otherwise do nothing.

        An offset before the last entry's is an error. Raises IndexFullError (not `at_roll`), IndexOrderError, OSError.
        """
        if not at_roll:
            self.check_not_full()
        relative = self.relative(offset)
        last = self.last()
        if timestamp > last.timestamp:
            self.check_increases(timestamp, relative)
            self.append_encoded(self.entry.pack(timestamp, relative))

    def truncate_to(self, offset: int) -> None:
        """Drop all entries at or past `offset`."""
        self.keep_entries(self.value_floor(offset - 1 - self.base_offset) + 1)

    def sanity_check(self, next_base_offset: int) -> None:
        """Check size, first and last entry, in O(1). Raises IndexCorruptError, OSError.

        A zero-padded index ends in (0, base offset) and fails this check: it would date every record to 1970 and make
        retention delete them (KAFKA-10207).
        """
        ends = self.stored_ends()
        if ends is None:
            return
        (first, first_offset), (last, last_offset) = ends
        if self.entries > 1 and (last <= first or last_offset <= first_offset):
            raise IndexCorruptError(self.base_offset, "its last entry is not greater than its first")
        if first < 0 or first_offset < 0 or self.base_offset + last_offset >= next_base_offset:
            raise IndexCorruptError(self.base_offset, "an entry lies outside the segment")
