"""Replies that a thread sends while the event loop prepares the next ones.

The kernel's part of `send` is a third of what a small request costs. Where a turn has several replies, it can run on
another core, without the GIL (`_io_threads`). A lone client's reply is sent at once: waking a thread would cost more.
"""

from collections.abc import Sequence
from contextlib import suppress
from os import sched_getaffinity
from typing import TYPE_CHECKING

from warmlog.broker.net.turns.served import Served
from warmlog.protocol.records.codec import compiled

if TYPE_CHECKING:
    from warmlog.broker._io_threads import SendThread

MIN_REPLIES = 4  # of a turn
MIN_TURN_S = 0.0002  # that it took to prepare them

thread_class: "type[SendThread] | None" = None  # if it is compiled
if compiled:
    with suppress(ImportError):
        from warmlog.broker._io_threads import SendThread as thread_class  # noqa: N813
start = thread_class if len(sched_getaffinity(0)) > 1 else None


class SharedSends:
    """Lets a thread send replies of busy turns. It is started when it is first needed. Belongs to the event loop."""

    __slots__ = ("_is_open", "_worker")

    def __init__(self) -> None:
        self._worker: SendThread | None = None
        self._is_open = False

    def __bool__(self) -> bool:
        """Whether there are results to take back, now or later."""
        return self._worker is not None and len(self._worker) > 0

    def open(self, replies: int, turn_s: float) -> None:
        """Accept the replies of a turn if it is a busy one: so many replies, and so long to prepare them."""
        self._is_open = replies >= MIN_REPLIES and turn_s > MIN_TURN_S and start is not None

    def close(self) -> None:
        """Accept no more replies."""
        self._is_open = False

    def put(self, owner: "Served", fd: int, data: bytes) -> bool:
        """Let the thread send on a socket, which must stay open until the result is back; return False if not."""
        if not self._is_open:
            return False
        if self._worker is None:
            assert start is not None, "it is not open without"
            self._worker = start()
        return self._worker.put(owner, fd, data)

    def take(self, *, wait: bool) -> "Sequence[tuple[Served, int]]":
        """Return the results there are, or wait for the next ones: bytes sent, or a negative errno."""
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
