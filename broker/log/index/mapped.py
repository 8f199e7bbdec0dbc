"""A sparse index on a mapped file: what the offset index and the time index have in common.

Owns: the table of fixed-size entries in a file, its growth, its trimming, and the search in it. Must not know what keys
and values mean (the two kinds do), nor the log that it indexes.

    file   |entry 0|entry 1| ... |entry n-1| hole, up to the capacity while the segment is active |
    entry  |key, greater than the one before|value, greater than the one before|     big-endian

Invariants:
1. Keys and values increase strictly. Appending to a full index, or an entry that does not increase, is an error.
2. Entries are written with pwrite and read through the mapping; Linux keeps the two coherent. The first store through a
   mapping of a fresh sparse file took 22 ms, the first pwrite 14 us.
3. A search touches nothing at or past `entries`: what lies there is a hole, or has been cut off.
4. A file is cut only after `seal()` or `close()` has dropped its mapping, and mappings made later cover the entries
   alone. An entry that truncation takes away is overwritten with zeros instead, so a reader of the old length finds the
   file as long as it was.
5. Where there is a residency gate, a page of the mapping is touched only once it is known to be in memory: a fault
   there holds the GIL, and an error ends the process. It is asked at every lookup: what was there a moment ago may lie
   past the end of a file that somebody has cut.
6. `entries` goes up after the entry is in the file: a worker may search while the loop appends.
"""

import os
from collections.abc import Callable
from errno import ENODATA
from functools import partial
from mmap import mmap
from struct import Struct
from typing import Any, ClassVar, Final

from broker.log.config import SearchName
from broker.log.errors import IndexCorruptError, IndexFullError, IndexOrderError
from broker.log.index.search import PAGE_SIZE, Column, Section, bisect_slots, first_warm_slot, floor_slot, touched_pages
from broker.log.io.files import Descriptor, File, Mapping, OpenFiles, open_either
from broker.log.io.residency import Place

# Entries hold offsets relative to the segment's base as signed 32-bit numbers.
MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1


class MappedIndex:
    """One index file. The kinds say what an entry is; `base_offset` is the segment's.

    Nothing is opened before it is needed.
    """

    entry: ClassVar[Struct]
    key_column: ClassVar[Column]
    value_column: ClassVar[Column]
    place: ClassVar[Place]  # as what its pages are counted that are not in memory

    def __init__(
        self, open_files: OpenFiles, path: str, base_offset: int, *, capacity_size: int, entries: int | None = None
    ) -> None:
        """An index that is in a file already.

        `entries` where the caller knows the count, else the file's size says it.
        """
        self.path = path
        self.base_offset = base_offset
        self.stride = self.entry.size
        self.max_entries = capacity_size // self.stride
        self._disk = open_files.disk
        self._residency = open_files.residency
        self._file = File(open_files, path, writable=True)
        self._mapping = Mapping(open_files, path)
        self._known_entries = entries
        self._sealed = False
        self._extended = False
        self._dirty = False

    def create(self) -> None:
        """Make the file, empty and of full size (a hole: it takes no blocks). An existing one is replaced.

        Raises OSError.
        """
        fd = self._disk.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            self._disk.truncate(fd, self.max_entries * self.stride)
        finally:
            self._disk.close(fd)
        self._known_entries = 0
        self._extended = True

    def use_names(self, path: str, other_path: str | None) -> None:
        """The file is called so from now on, or `other_path` while it is being renamed. What is open stays open."""
        self.path = path
        for named in (self._file, self._mapping):
            named.path, named.other_path = path, other_path

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def entries(self) -> int:
        """How many entries there are. Raises IndexCorruptError if there is no file."""
        if self._known_entries is None:
            self._known_entries = self.file_size() // self.stride
        return self._known_entries

    @property
    def known_entries(self) -> int | None:
        """The same; None where the file has not been asked yet. Memory only."""
        return self._known_entries

    @property
    def is_full(self) -> bool:
        """Whether there is no slot for another entry."""
        return self.entries >= self.max_entries

    def file_size(self) -> int:
        """The file's size in bytes. Raises IndexCorruptError if there is no file, OSError."""
        try:
            fd = open_either(self._disk, self.path, self._file.other_path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise IndexCorruptError(self.base_offset, f"{os.path.basename(self.path)} is missing") from error
        try:
            return self._disk.size(fd)
        finally:
            self._disk.close(fd)

    def fields(self, slot: int) -> tuple[int, int]:
        """Key and value as they stand in the file, both relative where they are offsets.

        Raises IndexError, IndexCorruptError, OSError.
        """
        if not 0 <= slot < self.entries:
            raise IndexError(f"entry {slot} of {self.entries}")
        view, position = self.view(), slot * self.stride
        if self._residency.is_on:
            self._need(self._file.descriptor(), position, self.stride, partial(self.fields, slot))
        key, value = self.entry.unpack_from(view, position)
        return key, value

    # -- search -------------------------------------------------------------------------------------------------------

    def view(self) -> mmap:
        """The mapping of a non-empty index.

        Raises IndexCorruptError if the file is shorter than its entries, OSError.
        """
        used = self.entries * self.stride
        map_size = used if self._sealed else max(used, self.max_entries * self.stride)
        try:
            return self._mapping.view(used, map_size)
        except (EOFError, FileNotFoundError) as error:
            raise IndexCorruptError(self.base_offset, str(error)) from error

    def key_floor(self, key: int, search: SearchName = "warm") -> tuple[int, Section | None]:
        """The slot of the last entry with a key not greater, or -1.

        And the section searched (None in an empty index).
        """
        entries = self.entries
        if not entries:
            return -1, None
        if self._residency.is_on:
            return self._gated_floor(self.key_column, entries, key, search)
        return floor_slot(self.key_column, self.view(), entries, key, search)

    def value_floor(self, value: int) -> int:
        """The slot of the last entry with a value not greater, or -1."""
        entries = self.entries
        if not entries:
            return -1
        if self._residency.is_on:
            return self._gated_floor(self.value_column, entries, value, "warm")[0]
        return floor_slot(self.value_column, self.view(), entries, value, "warm")[0]

    def _gated_floor(self, column: Column, entries: int, target: int, search: SearchName) -> tuple[int, Section]:
        """As `floor_slot`, touching only what is in memory: one question for the warm section.

        One for all the rest, if there is more; where not all of it is there, one for each page that the search comes
        to. Raises ColdReadError in a thread that must not wait; any other reads those pages, one after the other.
        """
        view, file, size = self.view(), self._file.descriptor(), entries * self.stride
        is_resident = self._residency.is_resident
        if search == "warm":
            first = first_warm_slot(column, entries)
            seen = first * self.stride
            if not is_resident(file, seen, size - seen):
                again = partial(self._gated_floor, column, entries, target, search)
                self._need(file, seen, size - seen, again)
            if not first:
                return floor_slot(column, view, entries, target, search)
            if column.read(view, seen + column.at)[0] < target:
                return bisect_slots(column, view, first, entries - 1, target), Section.WARM
        if not is_resident(file, 0, size):
            again = partial(self._gated_floor, column, entries, target, search)
            column = column._replace(read=self._checked_read(column, file, size, again))
        return floor_slot(column, view, entries, target, search)

    def _need(self, file: Descriptor, position: int, length: int, again: Callable[[], object]) -> None:
        """Return when a range may be touched.

        Raises IndexCorruptError where the file was cut under its mapping, OSError, ColdReadError.
        """
        try:
            self._residency.need(file, position, length, self.place, again)
        except OSError as error:
            if error.errno != ENODATA:
                raise
            raise IndexCorruptError(self.base_offset, f"{os.path.basename(self.path)}: {error.strerror}") from error

    def _checked_read(
        self, column: Column, file: Descriptor, size: int, again: Callable[[], object]
    ) -> Callable[[mmap, int], tuple[Any, ...]]:
        """The column's way to read a field, which asks for each page before it touches it."""
        known: set[int] = set()

        def read(view: mmap, position: int) -> tuple[Any, ...]:
            for page in column.pages(position):
                if page not in known:
                    start = page * PAGE_SIZE
                    self._need(file, start, min(PAGE_SIZE, size - start), again)
                    known.add(page)
            return column.read(view, position)

        return read

    def value_ceiling(self, value: int) -> int:
        """The slot of the first entry with a value not smaller; the count of entries if there is none."""
        slot = self.value_floor(value)
        return slot if slot >= 0 and self.fields(slot)[1] == value else slot + 1

    def key_pages(self, key: int, search: SearchName = "warm") -> list[int]:
        """The pages of the file that `key_floor` touches, each once, in the order of the first touch."""
        entries = self.entries
        return touched_pages(self.key_column, self.view(), entries, key, search) if entries else []

    def pages_of(self, slot: int) -> range:
        """The pages of the file on which an entry lies."""
        return range(slot * self.stride // PAGE_SIZE, ((slot + 1) * self.stride - 1) // PAGE_SIZE + 1)

    # -- growth -------------------------------------------------------------------------------------------------------

    def append_encoded(self, data: bytes) -> None:
        """Add whole entries that the caller has made to increase. One pwrite, after which `entries` counts them.

        Raises OSError.
        """
        entries = self.entries
        file = self._file.descriptor()
        if not self._extended:
            self._extend(file)
        self._dirty = True
        file.write_all([data], entries * self.stride)
        self._known_entries = entries + len(data) // self.stride

    def check_increases(self, key: int, value: int) -> None:
        """Raise IndexOrderError unless both are greater than the last entry's."""
        if self.entries:
            last_key, last_value = self.fields(self.entries - 1)
            if key <= last_key or value <= last_value:
                raise IndexOrderError(
                    f"entry ({key}, {value}) does not increase on ({last_key}, {last_value}) in {self.path}"
                )

    def check_not_full(self) -> None:
        """Raise IndexFullError if `is_full`."""
        if self.is_full:
            raise IndexFullError(f"{self.path} is full with {self.entries} entries")

    def relative(self, offset: int) -> int:
        """The offset relative to the base. Raises IndexOrderError if it does not fit into 31 bits."""
        relative = offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET:
            raise IndexOrderError(f"offset {offset} cannot be expressed relative to {self.base_offset}")
        return relative

    def keep_entries(self, count: int) -> None:
        """Drop all entries from `count` on; their bytes become zeros. Raises OSError."""
        dropped = self.entries - count
        if dropped > 0:
            self._known_entries = count
            self._dirty = True
            self._file.descriptor().write_all([bytes(dropped * self.stride)], count * self.stride)

    def believe(self, count: int) -> None:
        """For recovery: take the first so many entries for all there are. Memory only."""
        self._known_entries = count

    def believe_as(self, other: "MappedIndex") -> None:
        """Take as many entries for all there are as another one over the same file knows of. Memory only."""
        self._known_entries = other.known_entries

    def set_capacity(self, capacity_size: int) -> None:
        """Change how much the index may hold; the file follows at the next append."""
        self.max_entries = capacity_size // self.stride
        self._extended = False

    def _extend(self, file: Descriptor) -> None:
        capacity = self.max_entries * self.stride
        if file.size() < capacity:
            file.truncate(capacity)
        self._extended = True

    # -- end ----------------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """No more entries will come: drop the mapping, so that the file can be trimmed. Memory only."""
        self._sealed = True
        self._mapping.close()

    def trim(self) -> None:
        """Cut a sealed index's file to its entries. For a worker. Raises OSError."""
        assert self._sealed, "only a sealed index is trimmed"
        self._dirty = True
        self._file.descriptor().truncate(self.entries * self.stride)

    def sync(self) -> None:
        """Wait until the entries are on the disk. For a worker. Raises OSError."""
        if self._dirty:
            self._dirty = False  # before the sync: what is appended during it waits for the next
            self._file.descriptor().sync()

    def doubt(self) -> None:
        """Nobody knows what of the file is on the disk: the next `sync` sees to it. Memory only."""
        self._dirty = True

    def close_writer(self) -> None:
        """Drop the descriptor for appending; it comes back if it is used again."""
        self._file.close()

    def close(self) -> None:
        """Drop file and mapping; they come back if they are used again."""
        self._mapping.close()
        self._file.close()
