"""All system calls of the log on files and directories.

Nothing else in the log uses `os` for input or output, so tests replace the disk by overriding these methods: to fail
the nth call, to write short, to lose unsynced data.

All methods raise OSError and may be called from any thread. Paths are strings: building a pathlib.Path costs more than
opening a file.
"""

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from stat import S_ISREG
from typing import NamedTuple


class DirectoryEntry(NamedTuple):
    """A name in a directory; `size` is 0 unless it was requested.

    `is_other`: neither a directory nor a regular file, or a link to nothing.
    """

    name: str
    is_directory: bool
    size: int = 0
    is_other: bool = False


class IrregularFileError(OSError):
    """A directory, FIFO, socket, device or dangling link has the name of a regular file.

    It is a user's mistake, not a sign of a failed disk.
    """

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "not a regular file", path)


class DiskSpace(NamedTuple):
    """A file system's size and the space that this process may still use, in bytes."""

    total_bytes: int
    usable_bytes: int
    is_read_only: bool = False


# Errors of a disk or file system that failed, disappeared or became read-only, without those of a full disk and those
# that the process may have caused itself (descriptors, permissions, memory).
_DISK_FAILURES = frozenset({
    errno.EIO, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ESTALE,
    errno.ESHUTDOWN, errno.EUCLEAN, errno.EREMOTEIO, errno.ENOMEDIUM,
})  # fmt: skip


OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_out_of_space(error: OSError) -> bool:
    """Return whether an error means that the disk or a quota is full."""
    return error.errno in OUT_OF_SPACE


def is_disk_failure(error: OSError) -> bool:
    """Return whether an error on a file that should exist means that its disk has failed, not only this operation."""
    return error.errno in _DISK_FAILURES


_WITHOUT_WAITING = os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO without a writer would never open


class Disk:
    """The real disk."""

    def open(self, path: str, flags: int) -> int:
        """Open a file (O_CLOEXEC is added) and return its descriptor; never waits for a FIFO.

        Raises IrregularFileError for most files that are not regular; the rest is left to `scan` and `size`, because
        checking costs as much as opening.
        """
        try:
            return os.open(path, flags | _WITHOUT_WAITING, 0o644)
        except OSError as error:
            if error.errno in {errno.EISDIR, errno.ENXIO} or (error.errno == errno.ENOENT and os.path.islink(path)):
                raise IrregularFileError(path) from error
            raise

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def size(self, fd: int) -> int:
        """Return the file's size in bytes. Raises IrregularFileError if it is not a regular file."""
        stat = os.fstat(fd)
        if not S_ISREG(stat.st_mode):
            raise IrregularFileError(f"descriptor {fd}")
        return stat.st_size

    def modified_ms(self, path: str) -> int:
        """Return the file's modification time, ms since the epoch."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set the file's modification time, ms since the epoch."""
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        return os.pread(fd, size, position)

    def read_into(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        """Read into a buffer; return the number of bytes read, fewer than its size only at the end of the file."""
        return os.preadv(fd, (buffer,), position)

    def advise_random(self, fd: int) -> None:
        """Switch off the kernel's read-ahead, whose pages count as cached while they are still being read."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def drop_cached(self, fd: int, position: int, length: int) -> None:
        """Evict a range from the page cache, except for dirty and mapped pages."""
        os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)

    def pwritev(self, fd: int, buffers: "Sequence[bytes | bytearray | memoryview]", position: int) -> int:
        """Write the buffers end to end at `position`; return the number of bytes written, which may be fewer."""
        return os.pwritev(fd, buffers, position)

    def truncate(self, fd: int, size: int) -> None:
        """Truncate the file, or extend it with a hole."""
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        """Reserve blocks for the file up to `size` without changing its size, if the file system supports it."""
        keep_size = 1
        if _libc().fallocate(fd, keep_size, ctypes.c_int64(0), ctypes.c_int64(size)):
            code = ctypes.get_errno()
            if code != errno.EOPNOTSUPP:
                raise OSError(code, os.strerror(code))

    def fill(self, fd: int, size: int) -> None:
        """Extend the file to `size` bytes with blocks reserved, or written if the file system cannot reserve them."""
        os.posix_fallocate(fd, 0, size)

    def map(self, fd: int, size: int) -> mmap.mmap:
        """Map the file's first `size` bytes for reading, without read-around (a fault would read 128 KiB)."""
        mapping = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        mapping.madvise(mmap.MADV_RANDOM)
        return mapping

    def sync(self, fd: int) -> None:
        """Flush the file's data and size to the disk (fdatasync)."""
        os.fdatasync(fd)

    def sync_directory(self, path: str) -> None:
        """Flush the names in a directory to the disk."""
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
        """Wait for the exclusive lock on a directory (flock); return a descriptor, which holds it until it is closed.

        On a file system without such locks nothing is locked.
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
        """Return the device and inode of a file or directory, which identify it under any name."""
        stat = os.stat(path)
        return stat.st_dev, stat.st_ino

    def space(self, path: str) -> DiskSpace:
        """Return the space on the file system that holds `path`."""
        stat = os.statvfs(path)
        is_read_only = bool(stat.f_flag & os.ST_RDONLY)
        return DiskSpace(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize, is_read_only)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing an existing file."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file's name; open descriptors keep the file."""
        os.unlink(path)

    def make_directory(self, path: str, mode: int = 0o777) -> None:
        """Create a directory and its parents unless they exist. `mode`: the directory's, less the umask."""
        try:
            os.mkdir(path, mode)
        except (FileExistsError, FileNotFoundError):
            os.makedirs(path, mode, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def scan(self, path: str, *, stat_suffix: str | None = None) -> list[DirectoryEntry]:
        """List a directory in arbitrary order, with the sizes of files whose names end with `stat_suffix`."""
        with os.scandir(path) as entries:
            return [_entry(entry, stat_suffix) for entry in entries]


def _entry(entry: "os.DirEntry[str]", stat_suffix: str | None) -> DirectoryEntry:
    is_directory = entry.is_dir()
    is_other = not is_directory and not entry.is_file()
    if is_other or stat_suffix is None or not entry.name.endswith(stat_suffix):
        return DirectoryEntry(entry.name, is_directory, is_other=is_other)
    return DirectoryEntry(entry.name, is_directory, entry.stat().st_size)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def read_file(disk: Disk, path: str, max_size: int = 1 << 30) -> bytes:
    """Return a small file's whole content. Raises OSError with the file's name."""
    fd = disk.open(path, os.O_RDONLY)
    try:
        return disk.pread(fd, min(disk.size(fd), max_size), 0)
    except IrregularFileError as error:
        raise IrregularFileError(path) from error
    except OSError as error:
        error.filename = error.filename or path
        raise
    finally:
        disk.close(fd)


def sync_file(disk: Disk, path: str) -> None:
    """Flush a file's data and size to the disk. Raises OSError."""
    fd = disk.open(path, os.O_RDWR)
    try:
        disk.sync(fd)
    finally:
        disk.close(fd)


def replace_file(disk: Disk, path: str, content: bytes, *, sync: bool) -> None:
    """Replace a small file so that a crash leaves the old or the new content. Raises OSError."""
    replace_file_by(disk, path, lambda fd: write_all(disk, fd, [content], 0), sync=sync)


def replace_file_by(disk: Disk, path: str, write: Callable[[int], None], *, sync: bool) -> None:
    """Replace a file so that a crash leaves the old or the new content. Raises OSError.

    `write` is called with a descriptor of `<path>.tmp`, which is synced if requested, then renamed. After an error the
    temporary file is removed.
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
    """Write all of the buffers at `position`. Raises OSError.

    After a short write the rest is written in another call, which raises the cause (most often ENOSPC).
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
    """Return the buffers without their first `written` bytes."""
    if written == sum(map(len, buffers)):
        return ()
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []
