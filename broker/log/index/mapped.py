"""A sparse index in a memory-mapped file, the base of the offset index and the time index.

    file   |entry 0|entry 1| ... |entry n-1| hole, up to the capacity while the segment is active |
    entry  |key, greater than the one before|value, greater than the one before|     big-endian

Invariants:
1. Keys and values increase strictly. It is an error to append to a full index or an entry that does not increase.
2. Entries are written with pwrite and read through the mapping; Linux keeps the two coherent. The first store through a
   mapping of a fresh sparse file took 22 ms, the first pwrite 14 us.
3. A search touches nothing at or past `entries`, where there is a hole, or the file ends. Until the entries of an
   existing file are checked, they are read with pread (`stored`, `stored_ends`), because some of them may be a hole: on
   a full tmpfs a page fault in a hole kills the process.
4. A file is trimmed only after `seal()` or `close()` has dropped its mapping, and later mappings cover only the
   entries. Truncated entries are overwritten with zeros instead, so that readers of the old length stay inside the
   file.
5. With a residency gate, a page of the mapping is touched only if it is known to be resident: a page fault holds the
   GIL, and an I/O error in one kills the process. Every lookup checks, because the file may have been truncated by
   another process since the last one.
6. `entries` is raised after the entry is in the file: a worker may search while the event loop appends.
"""

import os
from collections.abc import Callable, Iterator
from errno import ENODATA
from functools import partial
from mmap import mmap
from struct import Struct
from typing import Any, ClassVar, Final

from warmlog.broker.log.config import SearchName
from warmlog.broker.log.errors import IndexCorruptError, IndexFullError, IndexOrderError
from warmlog.broker.log.index.search import (
    PAGE_SIZE,
    Column,
    Section,
    bisect_slots,
    first_warm_slot,
    floor_slot,
    touched_pages,
)
from warmlog.broker.log.io.files import Descriptor, File, Mapping, OpenFiles, open_either
from warmlog.broker.log.io.residency import PageKind

# Entries hold offsets relative to the segment's base as signed 32-bit numbers.
MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
STORED_STEP: Final = 8192  # entries per read of `stored`


class MappedIndex:
    """One index file, opened at first use. Subclasses define the entries; `base_offset` is the segment's."""

    entry: ClassVar[Struct]
    key_column: ClassVar[Column]
    value_column: ClassVar[Column]
    kind: ClassVar[PageKind]  # the metric label of its cold pages

    def __init__(
        self, open_files: OpenFiles, path: str, base_offset: int, *, capacity_size: int, entries: int | None = None
    ) -> None:
        """Use an existing file. `entries` is derived from the file's size unless given."""
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
        """Create the file at full size, as a hole without blocks, replacing an existing one. Raises OSError."""
        fd = self._disk.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            self._disk.truncate(fd, self.max_entries * self.stride)
        finally:
            self._disk.close(fd)
        self._known_entries = 0
        self._extended = True

    def use_names(self, path: str, other_path: str | None) -> None:
        """Follow the file to a new name; `other_path` is the alternative while it is being renamed."""
        self.path = path
        for named in (self._file, self._mapping):
            named.path, named.other_path = path, other_path

    # -- entries ------------------------------------------------------------------------------------------------------

    @property
    def entries(self) -> int:
        """The number of entries. Raises IndexCorruptError if there is no file."""
        if self._known_entries is None:
            self._known_entries = self.file_size() // self.stride
        return self._known_entries

    @property
    def known_entries(self) -> int | None:
        """The number of entries; None if the file's size was not read yet. Memory only."""
        return self._known_entries

    @property
    def is_full(self) -> bool:
        """Whether there is no slot for another entry."""
        return self.entries >= self.max_entries

    def file_size(self) -> int:
        """Return the file's size in bytes. Raises IndexCorruptError if there is no file, OSError."""
        return self._open().size()

    def _open(self) -> Descriptor:
        try:
            return Descriptor(self._disk, open_either(self._disk, self.path, self._file.other_path, os.O_RDONLY))
        except FileNotFoundError as error:
            raise IndexCorruptError(self.base_offset, f"{os.path.basename(self.path)} is missing") from error

    def stored(self) -> Iterator[tuple[int, int]]:
        """Read all entries from the file with pread. Raises IndexCorruptError, OSError."""
        file, entries = self._open(), self.entries
        for slot in range(0, entries, STORED_STEP):
            yield from self._read(file, slot, min(STORED_STEP, entries - slot))

    def stored_ends(self) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Check the file's size and read the first and the last entry with pread; None for an empty index.

        Raises IndexCorruptError, OSError.
        """
        file = self._open()
        size = file.size()
        if size % self.stride:
            raise IndexCorruptError(self.base_offset, f"its size is not a multiple of {self.stride}")
        if self._known_entries is None:
            self._known_entries = size // self.stride
        if not self._known_entries:
            return None
        return self._read(file, 0, 1)[0], self._read(file, self._known_entries - 1, 1)[0]

    def _read(self, file: Descriptor, slot: int, count: int) -> list[tuple[int, int]]:
        position, size = slot * self.stride, count * self.stride
        if self._residency.is_on:
            self._need(file, position, size, partial(self._read, file, slot, count))
        data = file.pread(size, position)
        if len(data) < size:
            raise IndexCorruptError(self.base_offset, f"{os.path.basename(self.path)} ends before its entries")
        return list(self.entry.iter_unpack(data))

    def fields(self, slot: int) -> tuple[int, int]:
        """Return an entry's key and value as stored (offsets relative to the base offset).

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
        """Return the mapping of a non-empty index.

        Raises IndexCorruptError if the file is shorter than its entries, OSError.
        """
        used = self.entries * self.stride
        map_size = used if self._sealed else max(used, self.max_entries * self.stride)
        try:
            return self._mapping.view(used, map_size)
        except (EOFError, FileNotFoundError) as error:
            raise IndexCorruptError(self.base_offset, str(error)) from error

    def key_floor(self, key: int, search: SearchName = "warm") -> tuple[int, Section | None]:
        """Return the slot of the last entry with a key <= `key`, or -1, and the section searched (None if empty)."""
        entries = self.entries
        if not entries:
            return -1, None
        if self._residency.is_on:
            return self._gated_floor(self.key_column, entries, key, search)
        return floor_slot(self.key_column, self.view(), entries, key, search)

    def value_floor(self, value: int) -> int:
        """Return the slot of the last entry with a value <= `value`, or -1."""
        entries = self.entries
        if not entries:
            return -1
        if self._residency.is_on:
            return self._gated_floor(self.value_column, entries, value, "warm")[0]
        return floor_slot(self.value_column, self.view(), entries, value, "warm")[0]

    def _gated_floor(self, column: Column, entries: int, target: int, search: SearchName) -> tuple[int, Section]:
        """Search as `floor_slot` does, touching only resident pages.

        Residency is queried once for the warm section and once for the rest; if the rest is not all resident, once per
        page that the search touches. Raises ColdReadError in the gated thread; other threads read those pages first.
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
        """Ensure that a range is resident. Raises IndexCorruptError (file truncated), OSError, ColdReadError."""
        try:
            self._residency.need(file, position, length, self.kind, again)
        except OSError as error:
            if error.errno != ENODATA:
                raise
            raise IndexCorruptError(self.base_offset, f"{os.path.basename(self.path)}: {error.strerror}") from error

    def _checked_read(
        self, column: Column, file: Descriptor, size: int, again: Callable[[], object]
    ) -> Callable[[mmap, int], tuple[Any, ...]]:
        """Return a `Column.read` that ensures residency of each page before touching it."""
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
        """Return the slot of the first entry with a value >= `value`; the number of entries if there is none."""
        slot = self.value_floor(value)
        return slot if slot >= 0 and self.fields(slot)[1] == value else slot + 1

    def key_pages(self, key: int, search: SearchName = "warm") -> list[int]:
        """Return the pages of the file that `key_floor` touches, each once, in the order of the first touch."""
        entries = self.entries
        return touched_pages(self.key_column, self.view(), entries, key, search) if entries else []

    def pages_of(self, slot: int) -> range:
        """Return the pages of the file that hold an entry."""
        return range(slot * self.stride // PAGE_SIZE, ((slot + 1) * self.stride - 1) // PAGE_SIZE + 1)

    # -- growth -------------------------------------------------------------------------------------------------------

    def append_encoded(self, data: bytes) -> None:
        """Append encoded entries in one pwrite; the caller ensures that they increase. Raises OSError."""
        entries = self.entries
        file = self._file.descriptor()
        if not self._extended:
            self._extend(file)
        self._dirty = True
        file.write_all((data,), entries * self.stride)
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
        """Return the offset relative to the base. Raises IndexOrderError if it does not fit into 31 bits."""
        relative = offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET:
            raise IndexOrderError(f"offset {offset} cannot be expressed relative to {self.base_offset}")
        return relative

    def keep_entries(self, count: int) -> None:
        """Drop all entries from `count` on, overwriting them with zeros. Raises OSError."""
        dropped = self.entries - count
        if dropped > 0:
            self._known_entries = count
            self._dirty = True
            self._file.descriptor().write_all((bytes(dropped * self.stride),), count * self.stride)

    def trust_entries(self, count: int) -> None:
        """Treat the first `count` entries as the whole index, for recovery. Memory only."""
        self._known_entries = count

    def trust_entries_of(self, other: "MappedIndex") -> None:
        """Copy the number of entries from another index object of the same file. Memory only."""
        self._known_entries = other.known_entries

    def set_capacity(self, capacity_size: int) -> None:
        """Change the capacity in bytes; the file is extended by the next append."""
        self.max_entries = capacity_size // self.stride
        self._extended = False

    def _extend(self, file: Descriptor) -> None:
        capacity = self.max_entries * self.stride
        if file.size() < capacity:
            file.truncate(capacity)
        self._extended = True

    # -- end ----------------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """End appends and drop the mapping, so that the file can be trimmed. Memory only."""
        self._sealed = True
        self._mapping.close()

    def trim(self) -> None:
        """Truncate a sealed index's file to its entries. Blocking. Raises OSError."""
        assert self._sealed, "only a sealed index is trimmed"
        self._dirty = True
        self._file.descriptor().truncate(self.entries * self.stride)

    def sync(self) -> None:
        """Flush the entries to disk. Blocking. Raises OSError."""
        if self._dirty:
            self._dirty = False  # before the sync: entries appended during it are left to the next one
            self._file.descriptor().sync()

    def doubt(self) -> None:
        """Mark the file as possibly unsynced, so that the next `sync` flushes it. Memory only."""
        self._dirty = True

    def close_writer(self) -> None:
        """Drop the descriptor for appending; it is reopened on use."""
        self._file.close()

    def close(self) -> None:
        """Drop the file and the mapping; they are reopened on use."""
        self._mapping.close()
        self._file.close()
