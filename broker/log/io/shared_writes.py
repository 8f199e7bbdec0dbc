"""Writes to many files, shared between the event loop and a thread.

A quarter of the cost of a small append is the kernel's part of its write. If a turn writes many files, that part can
run on another core, without the GIL (`_io_threads`), while the loop prepares the next writes and commits finished ones.
A few files are written by the loop alone: waking a thread would cost more.
"""

import os
from contextlib import suppress
from os import sched_getaffinity
from typing import TYPE_CHECKING, Final

from warmlog.broker.classes import mypyc_attr
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import Descriptor
from warmlog.protocol.records.codec import compiled
from warmlog.protocol.records.record import Buffer

if TYPE_CHECKING:
    from warmlog.broker._io_threads import WriteThread

MIN_FILES = 12  # files of a turn
BY_THE_LOOP: Final = -1  # in place of a number of the thread's

thread_class: "type[WriteThread] | None" = None  # only if it is compiled
if compiled:
    with suppress(ImportError):
        from warmlog.broker._io_threads import WriteThread as thread_class  # noqa: N813
start = thread_class if len(sched_getaffinity(0)) > 1 else None


@mypyc_attr(acyclic=True)
class FileWrite:
    """A write that has begun: `buffers` end to end at `position`. They must not change until its end."""

    __slots__ = ("buffers", "file", "number", "position")

    def __init__(self, file: Descriptor, buffers: tuple[Buffer, ...], position: int, number: int) -> None:
        self.file = file
        self.buffers = buffers
        self.position = position
        self.number = number


class SharedWrites:
    """Begins and ends writes. The thread is started when it is first needed. Belongs to the event loop."""

    __slots__ = ("_is_open", "_worker")

    def __init__(self) -> None:
        self._worker: WriteThread | None = None
        self._is_open = False

    def open(self, files: int) -> None:
        """Share writes that begin from now on, if the number of files makes it worthwhile."""
        self._is_open = files >= MIN_FILES and start is not None

    def close(self) -> None:
        """Stop sharing writes, and publish the rest of them to the thread."""
        self._is_open = False
        if self._worker is not None:
            self._worker.publish()

    def begin(self, file: Descriptor, buffers: tuple[Buffer, ...], position: int) -> FileWrite:
        """Begin to write buffers end to end; `end` must follow. Only writes to the real disk are shared."""
        number = BY_THE_LOOP
        if self._is_open and type(file.disk) is Disk:
            if self._worker is None:
                assert start is not None, "only open if the thread's module is compiled"
                self._worker = start()
            number = self._worker.put(file.fd, buffers, position)
        return FileWrite(file, buffers, position, number)

    def end(self, write: FileWrite) -> None:
        """Complete a write. Raises OSError."""
        if write.number == BY_THE_LOOP:
            write.file.write_all(write.buffers, write.position)
            return
        assert self._worker is not None
        written = self._worker.result(write.number)
        if written < 0:
            raise OSError(-written, os.strerror(-written))
        write.file.write_rest(write.buffers, write.position, written)

    def stop(self) -> None:
        """Stop the thread. Every write must have ended."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
