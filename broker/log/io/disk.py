"""The seam between the log and the operating system.

Owns: every system call that the log makes on files and directories. Must not know what is in them. A test stands in for
the disk by overriding these verbs (to fail the nth of them, to write short, to lose what was not synced); nothing above
it imports `os` for input or output.

All verbs raise OSError and may be called from any thread. Paths are strings: building a pathlib.Path costs more than
opening a file.
"""

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple


class DirectoryEntry(NamedTuple):
    """A name in a directory; its size only where that was asked for, else 0."""

    name: str
    is_directory: bool
    size: int = 0


class DiskSpace(NamedTuple):
    """Bytes of a file system: all of them, and those that a file of ours may still take."""

    total_bytes: int
    usable_bytes: int
    is_read_only: bool = False


# What a disk or a file system says that fails, is not there any more, or takes nothing any more. Want of room is not
# among them, nor is anything that may be the process's own fault (descriptors, permissions, memory).
_DISK_FAILURES = frozenset({
    errno.EIO, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ESTALE,
    errno.ESHUTDOWN, errno.EUCLEAN, errno.EREMOTEIO, errno.ENOMEDIUM,
})  # fmt: skip


OUT_OF_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_out_of_room(error: OSError) -> bool:
    """Whether an error says that the disk, or what one may have of it, is full."""
    return error.errno in OUT_OF_ROOM


def is_disk_failure(error: OSError) -> bool:
    """Whether an error under a file that ought to be there says that its disk fails, and not only this operation."""
    return error.errno in _DISK_FAILURES


class Disk:
    """The real one."""

    def open(self, path: str, flags: int) -> int:
        """Open a file (O_CLOEXEC is added) and return its descriptor."""
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def size(self, fd: int) -> int:
        """The file's size in bytes."""
        return os.fstat(fd).st_size

    def modified_ms(self, path: str) -> int:
        """When the file was last written, ms since the epoch."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Say when the file was last written, ms since the epoch."""
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        return os.pread(fd, size, position)

    def read_into(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        """Read into a buffer; returns how many bytes came, fewer than it holds only at the end of the file."""
        return os.preadv(fd, (buffer,), position)

    def advise_random(self, fd: int) -> None:
        """Switch off the kernel's read-ahead: its pages count as cached while they are still being read."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def drop_cached(self, fd: int, position: int, length: int) -> None:
        """Let go of a range's pages in memory, but for those that are not written yet or that somebody has mapped."""
        os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)

    def pwritev(self, fd: int, buffers: "Sequence[bytes | bytearray | memoryview]", position: int) -> int:
        """Write the buffers end to end at `position`; returns how many bytes went, which may be fewer."""
        return os.pwritev(fd, buffers, position)

    def truncate(self, fd: int, size: int) -> None:
        """Cut or extend (with a hole) the file."""
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        """Reserve blocks for the file up to `size` without changing its size, where the file system can."""
        keep_size = 1
        if _libc().fallocate(fd, keep_size, ctypes.c_int64(0), ctypes.c_int64(size)):
            code = ctypes.get_errno()
            if code != errno.EOPNOTSUPP:
                raise OSError(code, os.strerror(code))

    def fill(self, fd: int, size: int) -> None:
        """Make the file `size` bytes long, all of which have their blocks; where the system cannot, by writing them."""
        os.posix_fallocate(fd, 0, size)

    def map(self, fd: int, size: int) -> mmap.mmap:
        """Map the file's first `size` bytes for reading, without read-around.

        A fault would read 128 KiB for one page.
        """
        mapping = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        mapping.madvise(mmap.MADV_RANDOM)
        return mapping

    def sync(self, fd: int) -> None:
        """Wait until the file's data and size are on the disk (fdatasync)."""
        os.fdatasync(fd)

    def sync_directory(self, path: str) -> None:
        """Wait until the names in a directory are on the disk."""
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            self.close(fd)

    def try_lock(self, fd: int) -> bool:
        """Take the process's exclusive lock on a file (fcntl, as Java does); False if another process has it."""
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def lock_directory(self, path: str) -> int:
        """Wait for the exclusive lock on a directory (flock), held until the descriptor that this gives is closed.

        Where the file system has no such locks, nothing is locked.
        """
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in {errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOLCK}:
                self.close(fd)
                raise
        return fd

    def identity(self, path: str) -> tuple[int, int]:
        """What tells one file or directory from another, whatever it is called: device and inode."""
        stat = os.stat(path)
        return stat.st_dev, stat.st_ino

    def space(self, path: str) -> DiskSpace:
        """How much room there is on the file system that holds `path`."""
        stat = os.statvfs(path)
        is_read_only = bool(stat.f_flag & os.ST_RDONLY)
        return DiskSpace(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize, is_read_only)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing a file of the new name."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file's name; who has it open keeps it."""
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, if they are not there."""
        try:
            os.mkdir(path)
        except (FileExistsError, FileNotFoundError):
            os.makedirs(path, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def scan(self, path: str, *, stat_suffix: str | None = None) -> list[DirectoryEntry]:
        """The names in a directory, in no order.

        With size and time for the files whose name ends with `stat_suffix`.
        """
        with os.scandir(path) as entries:
            return [_entry(entry, stat_suffix) for entry in entries]


def _entry(entry: "os.DirEntry[str]", stat_suffix: str | None) -> DirectoryEntry:
    if stat_suffix is None or not entry.name.endswith(stat_suffix):
        return DirectoryEntry(entry.name, entry.is_dir())
    return DirectoryEntry(entry.name, entry.is_dir(), entry.stat().st_size)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def read_file(disk: Disk, path: str, max_size: int = 1 << 30) -> bytes:
    """A small file's whole content."""
    fd = disk.open(path, os.O_RDONLY)
    try:
        return disk.pread(fd, min(disk.size(fd), max_size), 0)
    finally:
        disk.close(fd)


def sync_file(disk: Disk, path: str) -> None:
    """Wait until a file's data and size are on the disk. Raises OSError."""
    fd = disk.open(path, os.O_RDWR)
    try:
        disk.sync(fd)
    finally:
        disk.close(fd)


def replace_file(disk: Disk, path: str, content: bytes, *, sync: bool) -> None:
    """Write a small file so that a crash leaves the old content or the new. Raises OSError."""
    replace_file_by(disk, path, lambda fd: write_all(disk, fd, [content], 0), sync=sync)


def replace_file_by(disk: Disk, path: str, write: Callable[[int], None], *, sync: bool) -> None:
    """Replace a file by what a function writes into a descriptor, so that a crash leaves the old content or the new.

    To `<path>.tmp`, synced if asked for, then renamed. Where that fails, nothing is left that takes room.
    """
    temporary = f"{path}.tmp"
    try:
        fd = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write(fd)
            if sync:
                disk.sync(fd)
        finally:
            disk.close(fd)
        disk.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            disk.unlink(temporary)
        raise


def write_all(disk: Disk, fd: int, buffers: "Sequence[bytes | bytearray | memoryview]", position: int) -> None:
    """Write all of the buffers at `position`.

    A short write goes on with the rest, which then says why (ENOSPC, most often).
    """
    for first in range(0, len(buffers), IOV_MAX):
        pending = buffers[first : first + IOV_MAX] if len(buffers) > IOV_MAX else buffers
        while pending:
            written = disk.pwritev(fd, pending, position)
            position += written
            pending = remaining(pending, written)


IOV_MAX = 1024  # Linux's UIO_MAXIOV: more buffers in one call are refused


def remaining(
    buffers: "Sequence[bytes | bytearray | memoryview]", written: int
) -> "Sequence[bytes | bytearray | memoryview]":
    """Return the rest of the buffers after so many bytes of them."""
    if written == sum(map(len, buffers)):
        return ()
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []
