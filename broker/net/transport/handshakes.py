"""The handshakes of one TLS listener, in dedicated threads.

A handshake takes 0.6 to 1 ms of processor time, most of it in OpenSSL without the GIL. Each thread polls its sockets,
so the event loop has no work until a handshake is complete, however many there are and however slow.

Limits: a number of concurrent handshakes, a number per address, and `LIMIT_S` for each. A client beyond them replaces
the oldest handshake of its address, or of the address with the most. So clients that open connections and send nothing,
from however many addresses, do not lock out a client whose handshake takes the usual milliseconds.
"""

import logging
import os
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Final

import trio

from warmlog.broker.net.transport.tls import TlsTransport

logger = logging.getLogger(__name__)

LIMIT_S: Final = 10.0
MAX_IN_PROGRESS: Final = 2_048  # about 20 KiB each
MAX_OF_ADDRESS: Final = 1_024  # clients behind one router share an address
THREADS: Final = min(2, len(os.sched_getaffinity(0)))
DELIVER_S: Final = 0.002  # delivered before other tasks run
_READ, _BOTH = select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT

#: Called on the event loop with a transport and the data that followed its handshake, or with the reason of a failure.
Done = Callable[[TlsTransport | None, bytes, str], None]


class _Handshake:
    """A handshake in progress."""

    __slots__ = ("address", "context", "data", "done", "due_at", "failure", "is_shaken", "sock", "transport", "worker")

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, address: str, done: Done, worker: "_Worker"
    ) -> None:
        self.worker = worker
        self.sock = sock
        self.context = context
        self.address = address
        self.done = done
        self.due_at = perf_counter() + LIMIT_S
        self.transport: TlsTransport | None = None
        self.is_shaken = False
        self.data = b""
        self.failure = ""


class Handshakes:
    """The handshakes of one listener. Belongs to the event loop; `close` ends the threads."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._next = 0
        self._in_progress: dict[str, dict[_Handshake, None]] = {}  # by address, the oldest first
        self._count = 0
        self._finished: deque[_Handshake] = deque()
        self._token: trio.lowlevel.TrioToken | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return self._count

    def begin(self, sock: socket.socket, context: ssl.SSLContext, address: str, done: Done) -> bool:
        """Begin a handshake with a client. `done` gets the transport, or the socket is closed.

        If there are too many, the oldest one of this address, or of the address with the most, is ended. Returns
        whether one was.
        """
        if not self._workers:
            self._token = trio.lowlevel.current_trio_token()
            self._workers = [_Worker(self._finish) for _ in range(THREADS)]
        greedy = ""
        if len(self._in_progress.get(address, ())) >= MAX_OF_ADDRESS:
            greedy = address
        elif self._count >= MAX_IN_PROGRESS:
            greedy = max(self._in_progress, key=lambda each: len(self._in_progress[each]))
        if greedy:
            self._end_oldest(greedy)
        self._next = (self._next + 1) % len(self._workers)
        worker = self._workers[self._next]
        handshake = _Handshake(sock, context, address, done, worker)
        self._in_progress.setdefault(address, {})[handshake] = None
        self._count += 1
        worker.put(handshake)
        return bool(greedy)

    def _end_oldest(self, address: str) -> None:
        oldest = next(iter(self._in_progress[address]))
        self._forget(oldest)
        oldest.worker.end(oldest)

    def _forget(self, handshake: _Handshake) -> None:
        """Remove a handshake from those in progress."""
        of_address = self._in_progress.get(handshake.address)
        if of_address is not None and handshake in of_address:
            del of_address[handshake]
            self._count -= 1
            if not of_address:
                del self._in_progress[handshake.address]

    def close(self) -> None:
        """End the threads, and close the sockets of incomplete handshakes."""
        self._is_closed = True
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()
        self._deliver()

    def _finish(self, handshake: _Handshake) -> None:
        """Pass an ended handshake to the event loop. Called by a thread."""
        self._finished.append(handshake)
        assert self._token is not None
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._deliver, idempotent=True)

    def _deliver(self) -> None:
        """Report handshakes that have ended."""
        ends_at = perf_counter() + DELIVER_S
        while self._finished:
            if perf_counter() > ends_at and not self._is_closed:
                assert self._token is not None
                self._token.run_sync_soon(self._deliver, idempotent=True)
                return
            each = self._finished.popleft()
            self._forget(each)
            each.done(each.transport, each.data, each.failure)


class _Worker:
    """A thread and its handshakes."""

    def __init__(self, finish: Callable[[_Handshake], None]) -> None:
        self._finish = finish
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, _READ)
        self._new: deque[_Handshake] = deque()
        self._unwanted: deque[_Handshake] = deque()
        self._served: dict[int, _Handshake] = {}  # by descriptor, the oldest first
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="warmlog-handshakes", daemon=True)
        self._thread.start()

    def put(self, handshake: _Handshake) -> None:
        """Begin a handshake."""
        self._new.append(handshake)
        os.eventfd_write(self._wake, 1)

    def end(self, handshake: _Handshake) -> None:
        """End a handshake if it is still in progress."""
        self._unwanted.append(handshake)
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """End the thread; handshakes in progress fail."""
        self._is_closed = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        for each in [*self._served.values(), *self._new]:
            self._end(each, "the broker stops")
        self._epoll.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._is_closed:
            oldest = next(iter(self._served.values()), None)
            wait_s = -1.0 if oldest is None else max(0.0, oldest.due_at - perf_counter())
            for fd, events in self._epoll.poll(wait_s):
                if fd == self._wake:
                    os.eventfd_read(self._wake)
                    self._begin_new()
                    self._end_unwanted()
                elif (handshake := self._served.get(fd)) is not None:
                    self._step(handshake, events)
            self._end_overdue()

    def _begin_new(self) -> None:
        while self._new:
            each = self._new.popleft()
            try:
                each.transport = TlsTransport(each.sock, each.context)
                self._epoll.register(each.transport.fd, _READ)
                self._served[each.transport.fd] = each
            except OSError as error:
                self._end(each, reason(error))

    def _end_unwanted(self) -> None:
        while self._unwanted:
            each = self._unwanted.popleft()
            if each.transport is not None and self._served.get(each.transport.fd) is each:
                self._end(each, "too many TLS handshakes are in progress, and this is the oldest of its address")

    def _end_overdue(self) -> None:
        now = perf_counter()
        while self._served and (oldest := next(iter(self._served.values()))).due_at <= now:
            self._end(oldest, f"its TLS handshake is not complete after {LIMIT_S:.0f} s")

    def _step(self, each: _Handshake, events: int) -> None:
        transport = each.transport
        assert transport is not None
        try:
            if not each.is_shaken and events & ~select.EPOLLOUT:
                each.is_shaken = transport.shake()
            if not transport.flush():
                self._epoll.modify(transport.fd, select.EPOLLOUT if each.is_shaken else _BOTH)
            elif each.is_shaken:
                each.data = transport.received()
                self._end(each, "")
            elif events & select.EPOLLOUT:
                self._epoll.modify(transport.fd, _READ)
        except Exception as error:  # error boundary of a connection: a defect ends this one only
            if not isinstance(error, OSError):
                logger.exception("%s: unexpected error in a TLS handshake, connection closed", each.address)
            self._end(each, reason(error))

    def _end(self, each: _Handshake, failure: str) -> None:
        transport, each.failure = each.transport, failure
        if transport is not None and self._served.pop(transport.fd, None) is not None:
            self._epoll.unregister(transport.fd)
        if failure:
            each.transport = None
            (each.sock if transport is None else transport).close()
        self._finish(each)


def reason(error: Exception) -> str:
    """Return why a handshake failed, as text."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"TLS handshake failed: {error.reason.replace('_', ' ').lower()}"
    return f"TLS handshake failed: {error}"
