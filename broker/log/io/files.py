"""Open files and mappings: opened at first use, evicted if they are not used, kept alive by their users.

Invariants:
1. A kernel resource lives as long as an object refers to it: eviction, close, rename and unlink drop the owner's
   reference, and CPython closes the descriptor or unmaps when the last reference goes. So a slice being sent, or a
   lookup in a worker, never loses its file.
2. Owners hold at most `limit` resources; their users bound how many more are in use. Beyond it, the oldest one goes
   that has not been used since it was last considered (the CLOCK algorithm): an approximation of LRU in which a use
   costs nothing but setting a flag.
3. Everything here may be called from any thread.

Opening may read a file's inode from the disk. A sealed segment's files are opened in a worker before the first fetch
uses them (`Segment.find`); evicted files, and the index of a new segment at its first entry, are reopened on use, on
the event loop, too. That took 5 us with the inode in memory, 13 us (p99 92) after inodes and names were evicted, 87 us
(p99 351, maximum of 1,500: 4.7 ms) with nothing cached: about the cost of a round trip to a worker, which would be paid
by every append to a log that was idle.
"""

import os
from collections import OrderedDict
from dataclasses import dataclass
from mmap import mmap
from threading import Lock
from typing import Final

from warmlog.broker.classes import mypyc_attr
from warmlog.broker.log.io.disk import IOV_MAX, Disk, remaining, write_all
from warmlog.broker.log.io.page_faults import PageFaults
from warmlog.broker.log.io.residency import Residency
from warmlog.broker.log.io.unreadable import UnreadableBatches
from warmlog.protocol.records.record import Buffer

DEFAULT_LIMIT: Final = 512  # half of the usual soft limit of 1,024; the broker passes another value
MOST_CONSIDERED: Final = 256  # for each eviction: about 30 us


class Descriptor:
    """An open file, closed when the last reference goes. All methods raise OSError.

    Use the methods instead of `fd`: the number may refer to another file once the object is gone. `fd` is for the
    sender, which keeps the object while it sends.
    """

    __slots__ = ("_identity", "disk", "fd")

    def __init__(self, disk: Disk, fd: int) -> None:
        self.disk = disk
        self._identity: tuple[int, int] | None = None
        self.fd = fd

    def __del__(self) -> None:
        self.disk.close(self.fd)

    def size(self) -> int:
        """Return the file's size in bytes."""
        return self.disk.size(self.fd)

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes at `position`; fewer only at the end of the file."""
        return self.disk.pread(self.fd, size, position)

    def read_into(self, buffer: bytearray | memoryview, position: int) -> int:
        """Read into a buffer; return the number of bytes read, fewer than its size only at the end of the file."""
        return self.disk.read_into(self.fd, buffer, position)

    def identity(self) -> tuple[int, int]:
        """Return the file's device and inode, the same for every name and descriptor of the file."""
        if self._identity is None:
            stat = os.fstat(self.fd)
            self._identity = stat.st_dev, stat.st_ino
        return self._identity

    def drop_cached(self, position: int, length: int) -> None:
        """Evict a range from the page cache, except for dirty and mapped pages. Blocking."""
        self.disk.drop_cached(self.fd, position, length)

    def write_all(self, buffers: tuple[Buffer, ...], position: int) -> None:
        """Write all of the buffers, end to end, at `position`."""
        written = self.disk.pwritev(self.fd, buffers, position) if len(buffers) <= IOV_MAX else 0
        self.write_rest(buffers, position, written)

    def write_rest(self, buffers: tuple[Buffer, ...], position: int, written: int) -> None:
        """Write the rest after the first call, which wrote `written` bytes of the buffers."""
        size = 0
        for buffer in buffers:
            size += len(buffer)
        if written < size:
            write_all(self.disk, self.fd, remaining(buffers, written), position + written)

    def truncate(self, size: int) -> None:
        """Truncate or extend the file."""
        self.disk.truncate(self.fd, size)

    def sync(self) -> None:
        """Flush data and size to the disk."""
        self.disk.sync(self.fd)


@mypyc_attr(acyclic=True)
class FileSlice:
    """`length` bytes of an open file from `position` on, the result of a fetch.

    Encoders use its `len()`, the sender its descriptor. The first `warm_length` bytes have just been checked to be
    resident: if they are sent immediately, no second check is needed. Otherwise immutable.
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
        """Return the bytes, for tests and tools."""
        return self.descriptor.pread(self.length, self.position)


class Resource:
    """An owner of a descriptor or mapping in `held`. `is_used`: since `OpenFiles` last considered to evict it."""

    __slots__ = ("held", "is_used")

    def __init__(self) -> None:
        self.held: Descriptor | mmap | None = None
        self.is_used = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFilesStatistics:
    """Files and mappings held now, and the number evicted since startup."""

    open: int
    mappings: int
    evicted: int


class OpenFiles:
    """The descriptors and mappings that are held: beyond `limit`, one that was not used recently is evicted."""

    def __init__(
        self, *, limit: int = DEFAULT_LIMIT, disk: Disk | None = None, residency: Residency | None = None
    ) -> None:
        """Without `residency`, everything counts as resident."""
        self.limit = limit
        self.disk = disk or Disk()
        self.residency = residency or Residency()
        self.page_faults = PageFaults()
        self.unreadable = UnreadableBatches()
        self._lock = Lock()
        self._resources: OrderedDict[Resource, None] = OrderedDict()  # the next one to consider first
        self._mappings = 0
        self._evicted = 0

    def statistics(self) -> OpenFilesStatistics:
        """Return the current counts."""
        with self._lock:
            return OpenFilesStatistics(
                open=len(self._resources) - self._mappings, mappings=self._mappings, evicted=self._evicted
            )

    def adopt(self, resource: Resource, held: Descriptor | mmap) -> None:
        """Assign an open descriptor or mapping to a resource; evict others so that the limit is kept."""
        dropped: list[object] = []
        with self._lock:
            if resource not in self._resources:
                self._mappings += isinstance(resource, Mapping)
                while self._resources and len(self._resources) >= self.limit:
                    dropped.append(self._evict())
            dropped.append(resource.held)
            resource.held = held
            self._resources[resource] = None
        dropped.clear()  # not with the lock held: closing may block

    def remove(self, resource: Resource) -> None:
        """Release a resource's descriptor or mapping, if it holds one."""
        dropped = None
        with self._lock:
            if resource in self._resources:
                del self._resources[resource]
                dropped = self._release(resource)
        del dropped

    def close_files(self) -> None:
        """Close all files, to be reopened on use: the residency gate has been switched on."""
        for resource in list(self._resources):
            if isinstance(resource, File):
                self.remove(resource)

    def _evict(self) -> object:
        """Release the first resource that has not been used, or the next one after MOST_CONSIDERED used ones."""
        self._evicted += 1
        for _ in range(MOST_CONSIDERED):
            oldest = next(iter(self._resources))
            if not oldest.is_used:
                break
            oldest.is_used = False
            self._resources.move_to_end(oldest)
        oldest, _ = self._resources.popitem(last=False)
        return self._release(oldest)

    def _release(self, resource: Resource) -> object:
        self._mappings -= isinstance(resource, Mapping)
        held, resource.held = resource.held, None
        return held


def open_either(disk: Disk, path: str, other_path: str | None, flags: int) -> int:
    """Open a file by its name or, while it is being renamed, by the other one. Raises OSError."""
    try:
        return disk.open(path, flags)
    except FileNotFoundError:
        if other_path is None:
            raise
        return disk.open(other_path, flags)


class File(Resource):
    """A file by path, opened at first use and again after eviction. The owner creates and removes it."""

    __slots__ = ("_flags", "_open_files", "other_path", "path")

    def __init__(self, open_files: OpenFiles, path: str, *, writable: bool) -> None:
        super().__init__()
        self.path = path
        self.other_path: str | None = None  # the alternative name while it is being renamed
        self._open_files = open_files
        self._flags = os.O_RDWR if writable else os.O_RDONLY

    def descriptor(self) -> Descriptor:
        """Return the open file. Raises OSError."""
        held = self.held
        if held is None:
            return self._open()
        self.is_used = True
        return held  # type: ignore[return-value]  # a file holds descriptors only

    def close(self) -> None:
        """Drop the descriptor; a later use opens the file again."""
        self._open_files.remove(self)

    def _open(self) -> Descriptor:
        # Two threads may do this concurrently: one descriptor is kept, the other lives as long as its user.
        disk = self._open_files.disk
        descriptor = Descriptor(disk, open_either(disk, self.path, self.other_path, self._flags))
        if self._open_files.residency.is_on:
            disk.advise_random(descriptor.fd)
        self._open_files.adopt(self, descriptor)
        return descriptor


class Mapping(Resource):
    """A file mapped for reading, at first use, after eviction, and when more of it is needed than is mapped."""

    __slots__ = ("_open_files", "other_path", "path")

    def __init__(self, open_files: OpenFiles, path: str) -> None:
        super().__init__()
        self.path = path
        self.other_path: str | None = None  # as in File
        self._open_files = open_files

    def view(self, needed_size: int, map_size: int) -> mmap:
        """Return a mapping of at least `needed_size` bytes; a new one has `map_size`, or the file's size if smaller.

        The file must not be empty. Raises OSError, and EOFError if the file is shorter than `needed_size`: touching
        pages past its end would kill the process.
        """
        held = self.held
        if not isinstance(held, mmap) or len(held) < needed_size:
            return self._map(needed_size, map_size)
        self.is_used = True
        return held

    def close(self) -> None:
        """Drop the mapping; a later use maps the file again."""
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
            except ValueError:  # it was trimmed since `size`; the needed part still exists
                if disk.size(fd) >= size:
                    raise
