"""A disk that can lose its power: what is written is live, what was synced is durable, and a crash leaves the one or
the other of every block and name.

The live image is a real directory; beside it this keeps, of every file, its content at the last sync and the changes
since, and of every directory the changes of names since the last sync. `crash` makes a new directory of them:

    content   block by block as it was after some number of the changes; blocks never written are zeros
    length    as it was after some number of the changes
    names     the first so many of the changes of a directory (a journal), or any of them (none)

A file whose sync has failed is never durable again: Linux marks its pages clean, so a second sync says nothing.
"""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

from warmlog.broker.log.io.disk import Disk

Fault = Literal["crash before", "crash after", "EIO", "ENOSPC", "short"]
FAULTS: tuple[Fault, ...] = ("crash before", "crash after", "EIO", "ENOSPC", "short")
BLOCK_SIZE = 512
MAX_STATES = 64  # of one file between two syncs: more changes are taken together


class MachineGone(BaseException):
    """The power is cut: nothing that handles errors of a disk handles this."""


class _Change(NamedTuple):
    """Bytes at a position; or, with none, the file's new size."""

    position: int
    data: bytes | None

    def apply_to(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.position :]
        content += bytes(max(0, self.position - len(content)))
        if self.data is not None:
            content[self.position : self.position + len(self.data)] = self.data


@dataclass(slots=True, eq=False)
class _Node:
    """A file."""

    durable: bytes = b""
    changes: list[_Change] = field(default_factory=list)
    is_lost: bool = False  # a sync failed

    def sync(self) -> None:
        if not self.is_lost and self.changes:
            content = bytearray(self.durable)
            for change in self.changes:
                change.apply_to(content)
            self.durable = bytes(content)
            self.changes.clear()

    def states(self) -> list[bytes]:
        """Its content after none, some, and all of the changes."""
        found = [self.durable]
        step = len(self.changes) // MAX_STATES + 1
        for at in range(0, len(self.changes), step):
            content = bytearray(found[-1])
            for change in self.changes[at : at + step]:
                change.apply_to(content)
            found.append(bytes(content))
        return found

    def after_crash(self, random: Random) -> bytes:
        states = self.states()
        how = random.choice(["old", "new", "some", "torn", "torn"])
        if how != "torn":
            return states[{"old": 0, "new": -1, "some": random.randrange(len(states))}[how]]
        size = len(random.choice(states))
        blocks = [
            random.choice(states)[at : at + BLOCK_SIZE].ljust(BLOCK_SIZE, b"\0") for at in range(0, size, BLOCK_SIZE)
        ]
        return b"".join(blocks)[:size]


class _Renaming(NamedTuple):
    """One change of a directory: what each of these paths is from now on, or where a directory in it has moved."""

    directory: str
    becomes: dict[str, _Node | None]
    moved: tuple[str, str] | None = None  # from, to

    def apply(self, names: dict[str, _Node], directories: set[str]) -> None:
        """Change what there is accordingly."""
        for path, node in self.becomes.items():
            if node is None:
                names.pop(path, None)
            else:
                names[path] = node
        if self.moved is not None and self.moved[0] in directories:
            source, target = self.moved
            directories.remove(source)
            directories.add(target)
            for path in [path for path in names if path.startswith(f"{source}/")]:
                names[target + path.removeprefix(source)] = names.pop(path)


class CrashingDisk(Disk):
    """A disk over the directory `root`, which exists. Everything in it is durable at first."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.steps: list[tuple[str, str]] = []  # every change asked for: verb, and the name of what it is about
        self.gone = False
        self._fault: tuple[int, Fault] | None = None
        self._out_of_space = False
        self._open: dict[int, tuple[_Node, str]] = {}
        self._names: dict[str, _Node] = {}
        self._directories = {str(root)}
        self._durable_directories = {str(root)}
        for directory, _, files in os.walk(root):
            self._directories.add(directory)
            for name in files:
                path = f"{directory}/{name}"
                with open(path, "rb") as file:
                    self._names[path] = _Node(durable=file.read())
        self._names = dict(sorted(self._names.items()))  # a seed draws the same for the same files
        self._durable_directories |= self._directories
        self._durable_names = dict(self._names)
        self._renamings: list[_Renaming] = []

    # -- faults --------------------------------------------------------------------------------------------------------

    def fail_at(self, step: int, fault: Fault) -> None:
        """Let the step of this number (0 is the next one) fail."""
        self._fault = (len(self.steps) + step, fault)

    def forget_lost_syncs(self) -> None:
        """A new process takes what is in memory for what is in the files; what becomes of that is not played here."""
        for node in self._names.values():
            node.is_lost = False

    def _begin(self, verb: str, path: str) -> Fault | None:
        """Count a step; gives "short" or "crash after" where that is what it comes to."""
        if self.gone:
            raise MachineGone
        number = len(self.steps)
        self.steps.append((verb, path.rpartition("/")[2]))
        if self._fault is None or self._fault[0] != number:
            return None
        fault = self._fault[1]
        if fault == "crash before":
            self._cut_power()
        if fault in {"EIO", "ENOSPC"}:
            code = getattr(errno, fault)
            raise OSError(code, os.strerror(code), path)
        return fault

    def _end(self, fault: Fault | None) -> None:
        if fault == "crash after":
            self._cut_power()

    def _cut_power(self) -> None:
        self.gone = True
        raise MachineGone

    def crash(self, target: Path, random: Random, *, journal: bool = True) -> None:
        """Make of the directory `target`, which does not exist, what is left when the power is cut now."""
        target.mkdir(parents=True)
        names, directories = dict(self._durable_names), set(self._durable_directories)
        counts = {each.directory: 0 for each in self._renamings}
        for directory in counts:
            counts[directory] = random.randint(0, sum(each.directory == directory for each in self._renamings))
        for renaming in self._renamings:
            counts[renaming.directory] -= 1
            if counts[renaming.directory] >= 0 if journal else random.random() < 0.5:
                renaming.apply(names, directories)
        length = len(str(self.root))
        directories.discard(str(self.root))
        for directory in sorted(directories):
            os.mkdir(f"{target}{directory[length:]}")
        directories.add(str(self.root))
        for path, node in names.items():
            if path.rpartition("/")[0] in directories:
                with open(f"{target}{path[length:]}", "wb", buffering=0) as file:
                    file.write(node.after_crash(random))

    # -- files ---------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        is_new = path not in self._names and bool(flags & os.O_CREAT)
        is_change = is_new or bool(flags & os.O_TRUNC)
        fault = self._begin("open", path) if is_change else None
        fd = super().open(path, flags)
        if path in self._directories:
            return fd
        if is_new:
            self._rename({path: _Node()})
        node = self._names[path]
        if flags & os.O_TRUNC and not is_new:
            node.changes.append(_Change(0, None))
        self._open[fd] = (node, path)
        try:
            self._end(fault)
        except MachineGone:
            self.close(fd)
            raise
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        super().close(fd)

    def pwritev(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        node, path = self._open[fd]
        if self._out_of_space:
            self._out_of_space = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        fault = self._begin("pwritev", path)
        data = b"".join(bytes(buffer) for buffer in buffers)
        if fault == "short":
            data = data[: len(data) // 2]
            self._out_of_space = True
        node.changes.append(_Change(position, data))
        written = super().pwritev(fd, [data], position)
        self._end(fault)
        return written

    def truncate(self, fd: int, size: int) -> None:
        node, path = self._open[fd]
        fault = self._begin("truncate", path)
        node.changes.append(_Change(size, None))
        super().truncate(fd, size)
        self._end(fault)

    def allocate(self, fd: int, size: int) -> None:
        self._end(self._begin("allocate", self._open[fd][1]))

    def set_modified(self, path: str, modified_ms: int) -> None:
        self._end(self._begin("set_modified", path))
        super().set_modified(path, modified_ms)

    def sync(self, fd: int) -> None:
        node, path = self._open[fd]
        try:
            fault = self._begin("sync", path)
        except OSError:
            node.is_lost = True
            raise
        node.sync()
        self._end(fault)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _rename(self, becomes: dict[str, _Node | None]) -> None:
        for path, node in becomes.items():
            if node is None:
                del self._names[path]
            else:
                self._names[path] = node
        self._renamings.append(_Renaming(os.path.dirname(next(iter(becomes))), becomes))

    def rename(self, source: str, target: str) -> None:
        if source in self._directories:
            self._move_directory(source, target)
            return
        if source not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        fault = self._begin("rename", target)
        super().rename(source, target)
        self._rename({target: self._names[source], source: None})
        self._end(fault)

    def _move_directory(self, source: str, target: str) -> None:
        fault = self._begin("rename", target)
        super().rename(source, target)
        moving = _Renaming(os.path.dirname(source), {}, (source, target))
        moving.apply(self._names, self._directories)
        for at, each in enumerate(self._renamings):
            if each.directory == source:
                becomes = {target + path.removeprefix(source): node for path, node in each.becomes.items()}
                self._renamings[at] = _Renaming(target, becomes)
        self._renamings.append(moving)
        self._end(fault)

    def unlink(self, path: str) -> None:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        fault = self._begin("unlink", path)
        super().unlink(path)
        self._rename({path: None})
        self._end(fault)

    def make_directory(self, path: str, mode: int = 0o777) -> None:
        if path not in self._directories:
            fault = self._begin("make_directory", path)
            super().make_directory(path, mode)
            self._directories.add(path)
            self._end(fault)

    def remove_directory(self, path: str) -> None:
        fault = self._begin("remove_directory", path)
        super().remove_directory(path)
        self._directories.discard(path)
        self._durable_directories.discard(path)
        self._end(fault)

    def sync_directory(self, path: str) -> None:
        fault = self._begin("sync_directory", path)
        self._make_names_durable({path})
        self._end(fault)

    def _make_names_durable(self, directories: set[str]) -> None:
        for renaming in self._renamings:
            if renaming.directory in directories:
                renaming.apply(self._durable_names, self._durable_directories)
        self._renamings = [each for each in self._renamings if each.directory not in directories]
        self._durable_directories |= {
            each for each in self._directories if each in directories or os.path.dirname(each) in directories
        }
