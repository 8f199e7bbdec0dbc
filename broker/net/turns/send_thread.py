"""A thread that sends replies while the event loop prepares the next ones.

The kernel's part of `send` is a third of the cost of a small request. If a turn has several replies, it can run on
another core, without the GIL (`_io_threads`). A lone client's reply is sent directly: waking a thread would cost more.
"""

from collections.abc import Sequence
from contextlib import suppress
from os import sched_getaffinity
from typing import TYPE_CHECKING

from warmlog.broker.net.turns.served import Served
from warmlog.protocol.records.codec import compiled

if TYPE_CHECKING:
    from warmlog.broker._io_threads import SendThread

MIN_REPLIES = 4  # replies of a busy turn
MIN_TURN_S = 0.0002  # time that it took to prepare them

thread_class: "type[SendThread] | None" = None  # only if it is compiled
if compiled:
    with suppress(ImportError):
        from warmlog.broker._io_threads import SendThread as thread_class  # noqa: N813
start = thread_class if len(sched_getaffinity(0)) > 1 else None


class SharedSends:
    """Sends the replies of busy turns in a thread, which starts when first needed. Belongs to the event loop."""

    __slots__ = ("_is_open", "_worker")

    def __init__(self) -> None:
        self._worker: SendThread | None = None
        self._is_open = False

    def __bool__(self) -> bool:
        """Return whether there are, or will be, results to take."""
        return self._worker is not None and len(self._worker) > 0

    def open(self, replies: int, turn_s: float) -> None:
        """Accept the replies of a busy turn, judged by their number and the time that it took to prepare them."""
        self._is_open = replies >= MIN_REPLIES and turn_s > MIN_TURN_S and start is not None

    def close(self) -> None:
        """Accept no more replies."""
        self._is_open = False

    def put(self, owner: "Served", fd: int, data: bytes) -> bool:
        """Let the thread send on a socket, open until the result is taken; return False if that is impossible."""
        if not self._is_open:
            return False
        if self._worker is None:
            assert start is not None, "only open if the thread's module is compiled"
            self._worker = start()
        return self._worker.put(owner, fd, data)

    def take(self, *, wait: bool) -> "Sequence[tuple[Served, int]]":
        """Return the available results, or wait for the next ones: bytes sent, or a negative errno."""
        worker = self._worker
        if worker is None:
            return ()
        if wait:
            worker.wait()
        return worker.take()

    def end(self) -> "Sequence[tuple[Served, int]]":
        """Stop the thread once it has sent everything, and return the last results."""
        worker, self._worker = self._worker, None
        if worker is None:
            return ()
        worker.close()
        return worker.take()
