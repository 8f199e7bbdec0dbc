"""Open files and mappings: opened at first use, given up when they are too many, kept alive by who uses them.

Owns: the one LRU of descriptors and mappings, and the slice of a file that a fetch hands to the sender. Must not know
what the files hold.

Invariants:
1. A kernel resource lives as long as someone refers to it: eviction, close, rename and unlink drop the owner's
   reference, and CPython closes the descriptor or unmaps when the last one goes. So a slice being sent, or a lookup in
   a worker, never loses its file.
2. At most `limit` resources are held by owners; what is in use beyond that is bounded by its users.
3. Everything here may be called from any thread.

Opening may read a file's inode from the disk. A sealed segment's files are opened by a thread before the first fetch
looks into them (`Segment.find`); what the LRU has given up, and the index of a new segment at its first entry, is
opened where it is needed, on the loop, too. On the disk of the figures that took 5 us with the inode in memory, 13 us
(99 of 100 below 92) once the kernel had let go of inodes and names, 87 us (351; the worst of 1,500: 4.7 ms) with
nothing left in memory: about what it takes to ask a thread and come back, for every append to a log that was idle.
"""

import os
from collections import OrderedDict
from dataclasses import dataclass
from mmap import mmap
from threading import Lock
from typing import Protocol

from broker.log.io.disk import IOV_MAX, Disk, remaining, write_all
from broker.log.io.page_faults import PageFaults
from broker.log.io.residency import Residency
from protocol.records.record import Buffer

DEFAULT_LIMIT = 512  # half of the usual soft limit of 1,024; the broker gives its own


class Descriptor:
    """An open file; closed when the last reference goes.

    Ask it for what is to be done with the file: whoever takes the number out and lets go of the object may find another
    file behind the number. `fd` is for the sender, which holds the object while it sends. The verbs raise OSError.
    """

    __slots__ = ("_disk", "_identity", "fd")

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk = disk
        self._identity: tuple[int, int] | None = None
        self.fd = fd

    def __del__(self) -> None:
        self._disk.close(self.fd)

    def size(self) -> int:
        """The file's size in bytes."""
        return self._disk.size(self.fd)

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes at `position`; fewer only at the end of the file."""
        return self._disk.pread(self.fd, size, position)

    def read_into(self, buffer: bytearray | memoryview, position: int) -> int:
        """Read into a buffer; how many bytes came, fewer than it holds only at the end of the file."""
        return self._disk.read_into(self.fd, buffer, position)

    def identity(self) -> tuple[int, int]:
        """What tells the file from others, whatever it is called and however often it is open: device and inode."""
        if self._identity is None:
            stat = os.fstat(self.fd)
            self._identity = stat.st_dev, stat.st_ino
        return self._identity

    def drop_cached(self, position: int, length: int) -> None:
        """Let go of a range's pages in memory where nothing keeps them there. For a worker."""
        self._disk.drop_cached(self.fd, position, length)

    def write_all(self, buffers: list[Buffer], position: int) -> None:
        """Write all of the buffers, end to end, at `position`."""
        disk, fd = self._disk, self.fd
        written = disk.pwritev(fd, buffers, position) if len(buffers) <= IOV_MAX else 0
        size = 0
        for buffer in buffers:
            size += len(buffer)
        if written < size:
            write_all(disk, fd, remaining(buffers, written), position + written)

    def truncate(self, size: int) -> None:
        """Cut or extend the file."""
        self._disk.truncate(self.fd, size)

    def sync(self) -> None:
        """Wait until data and size are on the disk."""
        self._disk.sync(self.fd)


class FileSlice:
    """`length` bytes of an open file from `position` on: what a fetch yields.

    Immutable but for `warm_length`; encoders use its `len()`, the sender its descriptor. So many bytes of its start
    were just seen to be in memory: whoever sends at once need not ask again.
    """

    __slots__ = ("descriptor", "length", "position", "warm_length")

    def __init__(self, descriptor: Descriptor, position: int, length: int) -> None:
        self.descriptor = descriptor
        self.position = position
        self.length = length
        self.warm_length = 0

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"FileSlice(fd={self.descriptor.fd}, position={self.position}, length={self.length})"

    def read_all(self) -> bytes:
        """The bytes themselves, for tests and tools."""
        return self.descriptor.pread(self.length, self.position)


class Resource(Protocol):
    """What the LRU knows: an owner with something of the kernel's in `held`."""

    held: Descriptor | mmap | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFilesStatistics:
    """How many resources are held now, and how many were given up since the start because there were too many."""

    open: int
    mappings: int
    evicted: int


class OpenFiles:
    """The LRU: knows who holds a descriptor or a mapping; beyond `limit`, the one longest unused gives it up."""

    def __init__(
        self, *, limit: int = DEFAULT_LIMIT, disk: Disk | None = None, residency: Residency | None = None
    ) -> None:
        """Without a `residency` everything counts as in memory."""
        self.limit = limit
        self.disk = disk or Disk()
        self.residency = residency or Residency()
        self.page_faults = PageFaults()
        self._lock = Lock()
        self._resources: OrderedDict[Resource, None] = OrderedDict()
        self._mappings = 0
        self._evicted = 0

    def statistics(self) -> OpenFilesStatistics:
        """What is held now."""
        with self._lock:
            return OpenFilesStatistics(
                open=len(self._resources) - self._mappings, mappings=self._mappings, evicted=self._evicted
            )

    def touch(self, resource: Resource) -> None:
        """Make this one the last to be given up. One atomic step of a C container: no lock."""
        try:
            self._resources.move_to_end(resource)
        except KeyError:
            return  # given up meanwhile; who is using it keeps it alive

    def adopt(self, resource: Resource, held: Descriptor | mmap) -> None:
        """Let a resource hold this from now on, and have the oldest beyond the limit give theirs up."""
        dropped: list[object] = []  # closed when this returns, not with the lock held: closing may wait
        with self._lock:
            if resource not in self._resources:
                self._mappings += isinstance(resource, Mapping)
            dropped.append(resource.held)
            resource.held = held
            self._resources[resource] = None
            while len(self._resources) > self.limit and len(self._resources) > 1:
                oldest, _ = self._resources.popitem(last=False)
                dropped.append(self._give_up(oldest))
                self._evicted += 1

    def remove(self, resource: Resource) -> None:
        """Have a resource give up what it holds; nothing happens if that is nothing."""
        dropped = None
        with self._lock:
            if resource in self._resources:
                del self._resources[resource]
                dropped = self._give_up(resource)
        del dropped

    def close_files(self) -> None:
        """Have what is open be opened anew when it is used: the residency gate has come into force."""
        for resource in list(self._resources):
            if isinstance(resource, File):
                self.remove(resource)

    def _give_up(self, resource: Resource) -> object:
        self._mappings -= isinstance(resource, Mapping)
        held, resource.held = resource.held, None
        return held


def open_either(disk: Disk, path: str, other_path: str | None, flags: int) -> int:
    """Open a file that has one of two names, the first of which it may just lose. Raises OSError."""
    try:
        return disk.open(path, flags)
    except FileNotFoundError:
        if other_path is None:
            raise
        return disk.open(other_path, flags)


class File:
    """A file by path, opened at first use and again after eviction.

    Creating and removing it is the owner's business.
    """

    __slots__ = ("_flags", "_open_files", "held", "other_path", "path")

    def __init__(self, open_files: OpenFiles, path: str, *, writable: bool) -> None:
        self.path = path
        self.other_path: str | None = None  # what it is called if it is not `path`: it is just being renamed
        self.held: Descriptor | mmap | None = None
        self._open_files = open_files
        self._flags = os.O_RDWR if writable else os.O_RDONLY

    def descriptor(self) -> Descriptor:
        """The open file. Raises OSError."""
        held = self.held
        if held is None:
            return self._open()
        self._open_files.touch(self)
        return held  # type: ignore[return-value]  # a file holds descriptors only

    def close(self) -> None:
        """Drop the descriptor; a later use opens the file again."""
        self._open_files.remove(self)

    def _open(self) -> Descriptor:
        """Two threads may open it at once: one descriptor stays, the other lives as long as its user."""
        disk = self._open_files.disk
        descriptor = Descriptor(disk, open_either(disk, self.path, self.other_path, self._flags))
        if self._open_files.residency.is_on:
            disk.advise_random(descriptor.fd)
        self._open_files.adopt(self, descriptor)
        return descriptor


class Mapping:
    """A file mapped for reading.

    Mapped at first use and again after eviction or when more of the file is needed than is mapped.
    """

    __slots__ = ("_open_files", "held", "other_path", "path")

    def __init__(self, open_files: OpenFiles, path: str) -> None:
        self.path = path
        self.other_path: str | None = None  # as a File's
        self._open_files = open_files
        self.held: Descriptor | mmap | None = None

    def view(self, needed_size: int, map_size: int) -> mmap:
        """The mapping, of at least `needed_size` bytes; made with `map_size`, or all of the file if that is less.

        Not of an empty file. Raises OSError, and EOFError if the file is shorter than what is needed: touching it there
        would end the process.
        """
        held = self.held
        if not isinstance(held, mmap) or len(held) < needed_size:
            return self._map(needed_size, map_size)
        self._open_files.touch(self)
        return held

    def close(self) -> None:
        """Drop the mapping; a later use makes a new one."""
        self._open_files.remove(self)

    def _map(self, needed_size: int, map_size: int) -> mmap:
        open_files = self._open_files
        disk = open_files.disk
        fd = open_either(disk, self.path, self.other_path, os.O_RDONLY)
        try:
            mapped = self._map_open(disk, fd, needed_size, map_size)
        finally:
            disk.close(fd)
        open_files.adopt(self, mapped)
        return mapped

    def _map_open(self, disk: Disk, fd: int, needed_size: int, map_size: int) -> mmap:
        while True:
            size = min(disk.size(fd), map_size)
            if size < needed_size:
                raise EOFError(f"{self.path} has {size} bytes, not {needed_size}")
            try:
                return disk.map(fd, size)
            except ValueError:  # it was trimmed since it was measured: what is needed of it is still there
                if disk.size(fd) >= size:
                    raise
