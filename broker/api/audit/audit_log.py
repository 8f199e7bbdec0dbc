"""Write events as lines of JSON to a file, in a worker thread.

Invariants:
1. A request that changes something is answered after its event is in the file (not: on the disk). Such events are
   never left out, unless the file cannot be written; then the broker serves on, logs it and counts it.
2. Logins and refusals do not wait for the file. At most MAX_WAITING_BYTES of them wait; further ones are counted.
3. A refusal that is repeated within REPEAT_S is counted, and the next event of its kind has the count. The memory for
   that is bounded.
"""

import errno
import json
import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from warmlog.broker.api.audit import events
from warmlog.broker.api.audit.events import Event
from warmlog.broker.api.context import Context, Session
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.metrics.requests import wall_clock_ms

MAX_WAITING_BYTES: Final = 16 << 20
MAX_KEPT: Final = 10_000  # kinds of refusals of which repetitions are counted
REPEAT_S: Final = 60.0
LOG_PAUSE_S: Final = 60.0

logger = logging.getLogger(__name__)


class AuditLog:
    """The audit log of a broker. Belongs to the event loop; `run` writes."""

    def __init__(self, path: Path, *, max_bytes: int, files: int, metrics: Metrics) -> None:
        """Open the file. Raises OSError."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = _Lines(path, max_bytes=max_bytes, files=files)
        self._waiting: list[Event] = []
        self._waiting_bytes = 0
        self._changed = trio.Event()
        self._written = trio.Event()
        self._recent: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._failed_at = -LOG_PAUSE_S
        metrics.counter(
            "warmlog_audit_events_total",
            "Events for the audit log: written, repeated (counted in a later one), dropped, failed.",
            lambda: [((result,), self._counts[result]) for result in ("written", "repeated", "dropped", "failed")],
            ("result",),
        )

    async def run(self) -> None:
        """Write what is added, until cancelled; then write what is left."""
        try:
            while True:
                await self._changed.wait()
                await self._write()
        finally:
            with trio.CancelScope(shield=True):
                await self._write()
                self._lines.close()

    async def _write(self) -> None:
        taken, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._changed, written, self._written = trio.Event(), self._written, trio.Event()
        if taken:
            try:
                await trio.to_thread.run_sync(self._lines.write, taken)
                self._counts["written"] += len(taken)
            except OSError as error:
                self._counts["failed"] += len(taken)
                self._report(error)
        written.set()

    def _report(self, error: OSError) -> None:
        now = trio.current_time()
        if now - self._failed_at >= LOG_PAUSE_S:
            self._failed_at = now
            logger.error("audit log: cannot write %s: %s", self._path, error.strerror)

    # -- events --------------------------------------------------------------------------------------------------------

    def login(self, session: Session, user: str, mechanism: str, *, is_ok: bool, reason: str = "") -> None:
        """Add a login."""
        event = events.login(session, user, mechanism, is_ok=is_ok, reason=reason, time_ms=wall_clock_ms())
        self._add(event)

    async def changed(self, api: str, request: Any, response: Any, context: Context) -> None:
        """Add a request of an API in CHANGES that was answered, and wait until it is written."""
        self._waiting.append(events.change(api, request, response, context.session, time_ms=wall_clock_ms()))
        self._changed.set()
        await context.wait(self._written.wait())

    def refused(self, api: str, request: Any, response: Any, session: Session) -> None:
        """Add a request of which something may have been refused for lack of rights."""
        event = events.denied(api, request, response, session, time_ms=wall_clock_ms())
        if event is not None:
            self._add(event)

    def _add(self, event: Event) -> None:
        if event["status_id"] != 1 and self._is_repeated(event):
            self._counts["repeated"] += 1
            return
        size = events.size_of(event)
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            self._counts["dropped"] += 1
            return
        self._waiting_bytes += size
        self._waiting.append(event)
        self._changed.set()

    def _is_repeated(self, event: Event) -> bool:
        """Return whether to count an event only. An event that is written gets the count of the ones before it."""
        key = events.kind_of(event)
        now = trio.current_time()
        since, count = self._recent.get(key, (-REPEAT_S, 0))
        if now - since < REPEAT_S:
            self._recent[key] = since, count + 1
            return True
        if count:
            event["count"] = count + 1
        self._recent[key] = now, 0
        self._recent.move_to_end(key)
        if len(self._recent) > MAX_KEPT:
            self._recent.popitem(last=False)
        return False


class _Lines:
    """A file of lines; when it is full, it is renamed and another one begins. Used in one thread at a time."""

    def __init__(self, path: Path, *, max_bytes: int, files: int) -> None:
        """Open the file, and keep so many older ones. Raises OSError."""
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        self._descriptor = self._opened()

    def _opened(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, taken: Sequence[Event]) -> None:
        """Append events. Raises OSError; the file has whole lines all the same."""
        for event in taken:
            line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
            size = os.fstat(self._descriptor).st_size
            if size and size + len(line) > self._max_bytes:
                self._begin_another()
                size = 0
            written = os.write(self._descriptor, line)
            if written < len(line):  # the disk is full
                os.ftruncate(self._descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _begin_another(self) -> None:
        for number in range(self._files - 1, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(self._path, f"{self._path}.1")
        opened = self._opened()
        os.close(self._descriptor)
        self._descriptor = opened

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
