"""A disk for dry runs: changes are kept in memory over the real disk, which is only read.

    a file    [0, kept) as on the real disk | written bytes | zeros up to its size

Invariants:
1. Nothing on the real disk changes, including modification times: files are opened for reading, except to lock one.
2. Unchanged data is read from the real disk when it is needed.
3. A mapping shows later writes, as the kernel's mappings do.

Supported: creating, writing, truncating, renaming and removing files; creating directories and removing empty ones.
"""

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from weakref import WeakSet

from warmlog.broker.log.io.disk import DirectoryEntry, Disk

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class _File:
    """A changed file. Its first `kept` bytes are those of the real file `base`; None: it was created here."""

    def __init__(self, base: str | None, size: int, modified_ms: int) -> None:
        self.base = base
        self.kept = self.size = size
        self.written = bytearray()
        self.modified_ms = modified_ms
        self.mappings: WeakSet[mmap.mmap] = WeakSet()

    def read(self, fd: int, size: int, position: int) -> bytes:
        """Read up to `size` bytes; `fd` is the real file's."""
        size = max(0, min(size, self.size - position))
        kept = os.pread(fd, max(0, min(size, self.kept - position)), position)
        begin = position + len(kept) - self.kept
        data = kept + bytes(self.written[begin : begin + size - len(kept)])
        return data + bytes(size - len(data))

    def write(self, fd: int, data: bytes, position: int) -> None:
        """Write bytes; from there on the content no longer comes from the real file."""
        if not data:
            return
        if position < self.kept:
            self.written[:0] = os.pread(fd, self.kept - position, position)
            self.kept = position
        begin = position - self.kept
        self.written.extend(bytes(max(0, begin - len(self.written))))
        self.written[begin : begin + len(data)] = data
        self.size = max(self.size, position + len(data))
        for mapping in self.mappings:
            part = data[: max(0, len(mapping) - position)]
            mapping[position : position + len(part)] = part

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it with zeros."""
        self.kept = min(self.kept, size)
        del self.written[max(0, size - self.kept) :]
        self.size = size


class OverlayDisk(Disk):
    """A disk whose changes stay in memory. For one thread."""

    def __init__(self) -> None:
        self._files: dict[str, _File | None] = {}  # None: removed
        self._directories: dict[str, bool] = {}  # created (True) or removed
        self._open: dict[int, _File] = {}

    def contents(self) -> Iterator[tuple[str, bytes | None]]:
        """Yield each changed file's path and content; None: it would be removed."""
        for path, file in sorted(self._files.items()):
            if file is None:
                yield path, None
                continue
            fd = self._open_base(file)
            try:
                yield path, file.read(fd, file.size, 0)
            finally:
                os.close(fd)

    # -- files ---------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        """Open a file; writes go to memory."""
        path = os.path.normpath(path)
        if path not in self._files and not flags & _WRITING:
            return super().open(path, flags)
        file = self._files.get(path) or self._touched(path, makes=bool(flags & os.O_CREAT))
        self._files[path] = file
        if flags & os.O_TRUNC:
            file.truncate(0)
        fd = self._open_base(file)
        self._open[fd] = file
        return fd

    def _touched(self, path: str, *, makes: bool) -> _File:
        """Return a changeable version of the real file, or a new one if `makes`. Raises FileNotFoundError."""
        if path not in self._files:
            try:
                stat = os.stat(path)
            except FileNotFoundError:
                pass
            else:
                return _File(path, stat.st_size, stat.st_mtime_ns // 1_000_000)
        if not makes or not self._is_directory(os.path.dirname(path)):
            raise _missing(path)
        return _File(None, 0, 0)

    def _open_base(self, file: _File) -> int:
        return super().open(file.base or os.devnull, os.O_RDONLY)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        self._open.pop(fd, None)
        super().close(fd)

    def size(self, fd: int) -> int:
        """Return the file's size in bytes."""
        file = self._open.get(fd)
        return super().size(fd) if file is None else file.size

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Read up to `size` bytes."""
        file = self._open.get(fd)
        return super().pread(fd, size, position) if file is None else file.read(fd, size, position)

    def read_into(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        """Read into a buffer; return the number of bytes read."""
        file = self._open.get(fd)
        if file is None:
            return super().read_into(fd, buffer, position)
        data = file.read(fd, len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def pwritev(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        """Write to memory; return the number of bytes written, which is all."""
        data = b"".join(buffers)
        self._open[fd].write(fd, data, position)
        return len(data)

    def truncate(self, fd: int, size: int) -> None:
        """Truncate or extend the file in memory."""
        self._open[fd].truncate(size)

    def allocate(self, fd: int, size: int) -> None:
        """Do nothing: memory is allocated on writes."""

    def map(self, fd: int, size: int) -> mmap.mmap:
        """Map the file; the mapping of a changed file is a copy that later writes update."""
        file = self._open.get(fd)
        if file is None:
            return super().map(fd, size)
        mapping = mmap.mmap(-1, size)
        mapping[:] = file.read(fd, size, 0).ljust(size, b"\0")
        file.mappings.add(mapping)
        return mapping

    def sync(self, fd: int) -> None:
        """Do nothing."""

    def sync_directory(self, path: str) -> None:
        """Do nothing."""

    def try_lock(self, fd: int) -> bool:
        """Lock the real file; a file that exists only here is never locked by another process."""
        file = self._open.get(fd)
        if file is None or file.base is None:
            return True
        writable = super().open(file.base, os.O_RDWR)
        os.dup2(writable, fd, inheritable=False)
        super().close(writable)  # before locking: closing a descriptor releases the process's lock
        return super().try_lock(fd)

    # -- names ---------------------------------------------------------------------------------------------------------

    def modified_ms(self, path: str) -> int:
        """Return the file's modification time, ms since the epoch."""
        path = os.path.normpath(path)
        if path not in self._files:
            return super().modified_ms(path)
        return self._changed(path).modified_ms

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set the file's modification time in memory."""
        path = os.path.normpath(path)
        file = self._files.get(path) or self._touched(path, makes=False)
        self._files[path] = file
        file.modified_ms = modified_ms

    def identity(self, path: str) -> tuple[int, int]:
        """Return the file's device and inode; a file that was created here has a pair that no real file has."""
        path = os.path.normpath(path)
        file = self._files.get(path)
        if path in self._files and (file is None or file.base is None):
            return -1, id(self._changed(path))
        return super().identity(path)

    def rename(self, source: str, target: str) -> None:
        """Rename a file in memory; directories cannot be renamed."""
        source, target = os.path.normpath(source), os.path.normpath(target)
        file = self._files.get(source) or self._touched(source, makes=False)
        self._files[source], self._files[target] = None, file

    def unlink(self, path: str) -> None:
        """Remove a file in memory."""
        path = os.path.normpath(path)
        if path in self._files:
            self._changed(path)
        elif not os.path.lexists(path):
            raise _missing(path)
        self._files[path] = None

    def _changed(self, path: str) -> _File:
        file = self._files[path]
        if file is None:
            raise _missing(path)
        return file

    def make_directory(self, path: str, mode: int = 0o777) -> None:
        """Create a directory in memory unless it exists; it has no mode."""
        del mode
        path = os.path.normpath(path)
        if not self._is_directory(path):
            self._directories[path] = True

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory in memory."""
        path = os.path.normpath(path)
        if self.scan(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._directories[path] = False

    def _is_directory(self, path: str) -> bool:
        return self._directories[path] if path in self._directories else os.path.isdir(path)

    def scan(self, path: str, *, stat_suffix: str | None = None) -> list[DirectoryEntry]:
        """List a directory, including changes."""
        path = os.path.normpath(path)
        if not self._is_directory(path):
            raise _missing(path)
        is_real = os.path.isdir(path)
        entries = {entry.name: entry for entry in super().scan(path, stat_suffix=stat_suffix)} if is_real else {}
        for changed, file in self._files.items():
            directory, name = os.path.split(changed)
            if directory == path:
                entries.pop(name, None)
                if file is not None:
                    wants_size = stat_suffix is not None and name.endswith(stat_suffix)
                    entries[name] = DirectoryEntry(name, is_directory=False, size=file.size if wants_size else 0)
        for changed, is_there in self._directories.items():
            directory, name = os.path.split(changed)
            if directory == path:
                entries.pop(name, None)
                if is_there:
                    entries[name] = DirectoryEntry(name, is_directory=True)
        return list(entries.values())


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
