"""Room on a data directory's file system: what is kept of it for when the disk is full, and whether appends have any.

Owns: the file that keeps blocks from everybody else, and the rules by which it is given up and taken again. Must not
know: who needs the room, or who looks at the clock.

On a full disk, deletions, checkpoints, groups and the next start still have to write a little. What they need is held
as blocks of a file (`.reserve`), which no append and no other process can take, however fast the disk fills up:

    usable >= a quarter of it    all of it is held; appends go on
    below that, or ENOSPC        appends are refused; one half is given up, for groups, metadata and checkpoints, which
                                 go on without noticing
    ENOSPC again                 who must write has the other half given up, too, and writes again
    start, stop                  all of it is given up: a recovery makes indexes, a stop writes what it knows, and then
                                 takes again what there is, for the next start
    there is room again          it is taken again, then appends go on

Invariants:
1. While not all of it is held, appends are refused: what was given up is not for them.
2. Where a file system cannot hold blocks, the same bytes are counted as if they were held.
"""

import errno
import os
from contextlib import suppress
from threading import Lock

from broker.log.errors import NoRoomError
from broker.log.io.disk import Disk, is_out_of_room

MAX_DEFAULT_SIZE = 16 << 20  # indexes of some segments, thousands of commits, every checkpoint of a large broker
DEFAULT_SHARE = 50  # a fiftieth, 2 %, of a small file system


def default_size(total_bytes: int) -> int:
    """How much is kept of a file system of so many bytes."""
    return min(MAX_DEFAULT_SIZE, total_bytes // DEFAULT_SHARE)


class Room:
    """Whether a directory has room for appends. Read on every append; set from any thread."""

    __slots__ = ("is_guarded", "is_short", "path", "refused")

    def __init__(self, path: str = "", *, is_guarded: bool = False) -> None:
        """`is_guarded`: somebody watches over it, and lets appends go on again."""
        self.path = path
        self.is_guarded = is_guarded
        self.is_short = False
        self.refused = 0  # appends, for want of room

    def ran_out(self, count: int) -> bool:
        """So many appends found no room; whether none is to be tried before somebody has looked."""
        self.refused += count
        self.is_short = self.is_short or self.is_guarded
        return self.is_short

    def refuse(self) -> NoRoomError:
        """The error for an append that is not tried."""
        self.refused += 1
        return NoRoomError(f"data directory {self.path} is full: no appends until there is room again")

    def full(self) -> OSError:
        """The error for a write that was planned before the room ran out."""
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)


class Reserve:
    """The file that keeps `size` bytes. For workers, any of them. 0 keeps nothing."""

    def __init__(self, disk: Disk, path: str, size: int, room: Room) -> None:
        """Take over what the last broker left. Raises OSError."""
        self.size = size
        self._disk = disk
        self._path = path
        self._room = room
        self._lock = Lock()
        self._held = 0
        self.give_up()

    @property
    def held_bytes(self) -> int:
        """How much it keeps now."""
        return self._held

    def give_up(self) -> bool:
        """Let go of all of it, for who must write on a full disk; whether that made any room. Raises OSError."""
        with self._lock:
            had, self._held = self._held, 0
            if had:
                self._room.is_short = True
            with suppress(FileNotFoundError):
                self._disk.unlink(self._path)
            return had > 0

    def settle(self, usable_bytes: int) -> None:
        """Keep as much as is right with so much room besides, and let appends go on or not."""
        if not self.size:
            self._room.is_short = False
            return
        with self._lock:
            quarter = self.size // 4
            enough = self.size + (2 * quarter if self._room.is_short else quarter)  # not there and back all the time
            is_short = usable_bytes + self._held < enough
            if is_short:
                self._room.is_short = True  # before anything is given up
            try:
                self._hold(self.size // 2 if is_short else self.size, usable_bytes)
            except OSError as error:
                is_short = is_short or is_out_of_room(error)  # else it is counted, not held
            self._room.is_short = is_short

    def keep_for_startup(self, usable_bytes: int) -> None:
        """Hold all of it, or else most of what is usable, so that the next startup can write. Raises OSError."""
        with self._lock:
            # not the last eighth: the file system may need some of it to hold the rest
            self._hold(min(self.size, self._held + usable_bytes // 8 * 7), usable_bytes)

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
        """All of it or nothing more than before."""
        try:
            self._disk.fill(fd, size)
        except OSError:
            self._disk.truncate(fd, self._held)
            raise
