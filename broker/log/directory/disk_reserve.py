"""The disk reserve: space kept free on a data directory's file system, and whether appends are accepted.

On a full disk, deletions, checkpoints, groups and the next startup still have to write a little. The space for that is
reserved as blocks of a file (`.reserve`), so that no append and no other process can take it:

    usable >= a quarter of it    all of it is held; appends are accepted
    below that, or ENOSPC        appends are refused; half of it is released for groups, metadata and checkpoints, which
                                 continue unaffected
    ENOSPC again                 a writer that must succeed releases the other half, retries, and reserves what is left
    startup, shutdown            all of it is released: recovery writes indexes, shutdown writes checkpoints and then
                                 reserves the remaining space for the next startup
    still full after a startup   what recovery has left is reserved, up to half of it
    space is available again     it is reserved again, then appends are accepted

Invariants:
1. Unless all of it is held, appends are refused: the released space is not for them.
2. If a file system cannot reserve blocks, the same number of bytes is counted as if they were held.
"""

import errno
import os
from contextlib import suppress
from threading import Lock
from typing import Final

from warmlog.broker.log.errors import NoSpaceError
from warmlog.broker.log.io.disk import Disk, is_out_of_space

MAX_DEFAULT_SIZE: Final = 16 << 20  # indexes of some segments, thousands of commits, all checkpoints of a large broker
DEFAULT_SHARE: Final = 50  # a fiftieth, 2 %, of a small file system


def default_size(total_bytes: int) -> int:
    """Return the default size of the reserve on a file system of `total_bytes`."""
    return min(MAX_DEFAULT_SIZE, total_bytes // DEFAULT_SHARE)


class SpaceStatus:
    """Whether a data directory has space for appends. Read on every append; set from any thread."""

    __slots__ = ("is_guarded", "is_short", "path", "refused")

    def __init__(self, path: str = "", *, is_guarded: bool = False) -> None:
        """`is_guarded`: a reserve watches the space and will allow appends again."""
        self.path = path
        self.is_guarded = is_guarded
        self.is_short = False
        self.refused = 0  # appends refused because the disk was full

    def ran_out(self, count: int) -> bool:
        """Count appends that failed on a full disk; return whether appends stop until the space was checked again."""
        self.refused += count
        self.is_short = self.is_short or self.is_guarded
        return self.is_short

    def refuse(self) -> NoSpaceError:
        """Count a refused append and return its error."""
        self.refused += 1
        return NoSpaceError(f"data directory {self.path} is full: no appends until there is room again")

    def full(self) -> OSError:
        """Return the error for a write that was planned before the disk filled up."""
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)


class Reserve:
    """The file that reserves `size` bytes; 0 reserves nothing. Blocking; any thread may call it."""

    def __init__(self, disk: Disk, path: str, size: int, space: SpaceStatus) -> None:
        """Release what the last broker reserved. Raises OSError."""
        self.size = size
        self._disk = disk
        self._path = path
        self._space = space
        self._lock = Lock()
        self._held = 0
        self.give_up()

    @property
    def held_bytes(self) -> int:
        """Bytes reserved now."""
        return self._held

    def give_up(self) -> bool:
        """Release all of it, for a write that must succeed; return whether that freed any space. Raises OSError."""
        with self._lock:
            had, self._held = self._held, 0
            if had:
                self._space.is_short = True
            with suppress(FileNotFoundError):
                self._disk.unlink(self._path)
            return had > 0

    def settle(self, usable_bytes: int) -> None:
        """Adjust the reserve to the usable space, and allow or refuse appends."""
        if not self.size:
            self._space.is_short = False
            return
        with self._lock:
            quarter = self.size // 4
            enough = self.size + (2 * quarter if self._space.is_short else quarter)  # hysteresis
            is_short = usable_bytes + self._held < enough
            if is_short:
                self._space.is_short = True  # before any of it is released
            try:
                if is_short:
                    half = self.size // 2
                    wanted = half if self._held else min(half, _most_of(usable_bytes))
                else:
                    wanted = self.size
                self._hold(wanted, usable_bytes)
            except OSError as error:
                is_short = is_short or is_out_of_space(error)  # otherwise it is counted, not held
            self._space.is_short = is_short

    def keep_for_startup(self, usable_bytes: int, *, half: bool = False) -> None:
        """Hold all (or half) of it, or else most of the usable space, so that the next startup can write.

        Raises OSError.
        """
        with self._lock:
            wanted = self.size // 2 if half else self.size
            self._hold(max(self._held, min(wanted, self._held + _most_of(usable_bytes))), usable_bytes)

    def _hold(self, size: int, usable_bytes: int) -> None:
        if size == self._held or size > self._held + usable_bytes:
            return
        fd = self._disk.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            if size > self._held:
                self._fill(fd, size)
            else:
                self._disk.truncate(fd, size)
            self._held = size
        finally:
            self._disk.close(fd)

    def _fill(self, fd: int, size: int) -> None:
        """Extend the file to `size` bytes, or leave it unchanged. Raises OSError."""
        try:
            self._disk.fill(fd, size)
        except OSError:
            self._disk.truncate(fd, self._held)
            raise


def _most_of(usable_bytes: int) -> int:
    """Return all but the last eighth, of which the file system may need some for itself."""
    return usable_bytes // 8 * 7
