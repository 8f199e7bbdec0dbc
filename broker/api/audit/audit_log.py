"""Write events as lines of JSON to a file, in a worker thread.

Invariants:
1. A request that changes something is answered after its event is in the file (not yet on the disk). Such events are
   omitted only if the file cannot be written; then the broker continues to serve, and logs and counts the failure.
2. Logins and refused requests are answered without waiting for the file. At most MAX_WAITING_BYTES of their events
   are queued; further ones are only counted.
3. A refusal or a failed login that is repeated within REPEAT_S is counted, and written with the count afterwards. In
   that time, at most MAX_OF_SENDER refusals and as many logins are written for each user at an address (for failed
   logins, which have no user: for each address), and for all senders beyond MAX_SENDERS together. Further ones are only
   counted, so that clients cannot fill the file or memory.
4. With a topic, events are queued for it once they are in the file, or could not be written there.
"""

import errno
import logging
import math
import os
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from warmlog.broker.api.audit import events
from warmlog.broker.api.audit.events import DENIED_ACTION, SUCCESS, Event, Line
from warmlog.broker.api.context import Context, Session
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.metrics.requests import wall_clock_ms

if TYPE_CHECKING:
    from warmlog.broker.api.audit.topic import AuditTopic, Lost  # imported only with a topic

MAX_WAITING_BYTES: Final = 16 << 20
MAX_KEPT: Final = 2_000  # kinds of refusals whose repetitions are counted, about 3 KiB each
MAX_OF_SENDER: Final = 100
MAX_SENDERS: Final = 2_000
REPEAT_S: Final = 60.0
STOP_S: Final = 2.0  # time that a stopping broker waits until its events are in the topic
LOG_PAUSE_S: Final = 60.0

logger = logging.getLogger(__name__)


class AuditLog:
    """The audit log of a broker. Belongs to the event loop; `run` writes."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        files: int,
        metrics: Metrics,
        broker: int = 0,
        topic: "AuditTopic | None" = None,
    ) -> None:
        """Open the file. `broker`: this broker's id; `topic`: also receives the events. Raises OSError."""
        self._path = path
        self._broker = broker
        self._topic = topic
        if topic is not None:
            topic.on_lost = self._wake
        self._ids = f"{broker}-{wall_clock_ms():x}-"
        self._next_id = 1
        self._lines = _Lines(path, max_bytes=max_bytes, files=files)
        self._waiting: list[Event] = []
        self._waiting_bytes = 0
        self._changed = trio.Event()
        self._written = trio.Event()
        self._recent: OrderedDict[bytes, _Repeated] = OrderedDict()
        self._senders: OrderedDict[tuple[int, str, str], _Sender] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._failed_at = -LOG_PAUSE_S
        self._has_failed = False
        metrics.counter(
            "warmlog_audit_events_total",
            "Events for the audit log: written, repeated (counted in a later one), dropped, failed.",
            lambda: [((result,), self._counts[result]) for result in ("written", "repeated", "dropped", "failed")],
            ("result",),
        )

    async def run(self) -> None:
        """Write added events until cancelled; then write the rest."""
        async with trio.open_nursery() as nursery:
            if self._topic is not None:
                nursery.start_soon(self._topic.run)
            await self._run()

    async def finish(self) -> None:
        """Wait briefly until the topic has the added events, because the broker is about to stop."""
        if self._topic is not None:
            self._flush(math.inf)
            if self._waiting:
                self._wake()
                await self._written.wait()
            await self._topic.drain(STOP_S)

    def _wake(self) -> None:
        self._changed.set()

    async def _run(self) -> None:
        try:
            while True:
                with trio.move_on_after(REPEAT_S / 4):
                    await self._changed.wait()
                self._flush(trio.current_time() - REPEAT_S)
                await self._write()
        finally:
            with trio.CancelScope(shield=True):
                self._flush(math.inf)
                await self._write()
                if self._topic is not None and (lost := self._topic.take_rest()) is not None:
                    self._add_lost(lost)
                    await self._write()
                self._lines.close()

    def _flush(self, before: float) -> None:
        """Write the counts of refusals and logins first seen before a time, and drop these counts."""
        while self._recent and next(iter(self._recent.values())).since <= before:
            _, repeated = self._recent.popitem(last=False)
            if repeated.count:
                self._append({**repeated.event, "time": wall_clock_ms(), "count": repeated.count})
        while self._senders and next(iter(self._senders.values())).since <= before:
            _, sender = self._senders.popitem(last=False)
            if sender.event is not None:
                kind = "logins" if sender.event["status_id"] == SUCCESS else "refusals"
                about = {"time": wall_clock_ms(), "count": sender.more, "resources": [], "message": f"further {kind}"}
                self._append({**sender.event, **about})
        if self._topic is not None and (lost := self._topic.take_lost()) is not None:
            self._add_lost(lost)

    def _add_lost(self, lost: "Lost") -> None:
        self._waiting.append(events.lost(*lost, time_ms=wall_clock_ms()))
        self._wake()

    async def _write(self) -> None:
        taken, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._changed, written, self._written = trio.Event(), self._written, trio.Event()
        if taken:
            with trio.CancelScope(shield=True):  # events already taken are still written
                lines, error = await trio.to_thread.run_sync(self._store, taken, self._next_id)
            self._next_id += len(taken)
            if error is not None:
                self._counts["failed"] += len(taken)
                self._report(error)
            else:
                self._counts["written"] += len(taken)
                if self._has_failed:
                    self._has_failed = False
                    logger.info("audit log: %s is written again", self._path)
            if self._topic is not None:
                self._topic.put(lines)
        written.set()

    def _store(self, taken: Sequence[Event], first_id: int) -> tuple[list[Line], OSError | None]:
        """Encode events and write them to the file; return the lines, and the reason if not all were written."""
        lines = [
            events.as_line(event, f"{self._ids}{number}", self._broker) for number, event in enumerate(taken, first_id)
        ]
        try:
            self._lines.write([line.text for line in lines])
        except OSError as error:
            return lines, error
        return lines, None

    def _report(self, error: OSError) -> None:
        now = trio.current_time()
        self._has_failed = True
        if now - self._failed_at >= LOG_PAUSE_S:
            self._failed_at = now
            logger.error("audit log: cannot write %s: %s", self._path, error.strerror)

    # -- events --------------------------------------------------------------------------------------------------------

    def login(self, session: Session, user: str, mechanism: str, *, is_ok: bool, reason: str = "") -> None:
        """Add a login."""
        event = events.login(session, user, mechanism, is_ok=is_ok, reason=reason, time_ms=wall_clock_ms())
        self._add(event)

    async def changed(self, api: str, request: Any, response: Any, context: Context) -> None:
        """Add an answered request of an API in CHANGES, and wait until it is written.

        A request that was refused as a whole has changed nothing, and counts as a refusal.
        """
        subject, context.subject = context.subject, ""
        event = events.change(api, request, response, context.session, subject=subject, time_ms=wall_clock_ms())
        if event["action_id"] == DENIED_ACTION:
            self._add(event)
            return
        self._waiting.append(event)
        self._changed.set()
        await context.wait(self._written.wait())

    def refused(self, api: str, request: Any, response: Any, session: Session) -> None:
        """Add a request that may have been refused, entirely or in part, for lack of rights."""
        event = events.denied(api, request, response, session, time_ms=wall_clock_ms())
        if event is not None:
            self._add(event)

    def _add(self, event: Event) -> None:
        """Add an event without waiting until it is written."""
        is_repeated = event["status_id"] != SUCCESS and self._is_repeated(event)
        if is_repeated or self._is_excess(event):
            self._counts["repeated"] += 1
        else:
            self._append(event)

    def _append(self, event: Event) -> None:
        size = events.size_of(event)
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            self._counts["dropped"] += 1
            return
        self._waiting_bytes += size
        self._waiting.append(event)
        self._changed.set()

    def _is_repeated(self, event: Event) -> bool:
        """Return whether an event of this kind was added recently; if so, count it."""
        self._flush(trio.current_time() - REPEAT_S)
        key = events.kind_of(event)
        known = self._recent.get(key)
        if known is not None:
            known.count += 1
            known.event = event
            return True
        if len(self._recent) < MAX_KEPT:
            self._recent[key] = _Repeated(event, trio.current_time())
        return False

    def _is_excess(self, event: Event) -> bool:
        """Return whether its sender had too many events recently; if so, count it."""
        now = trio.current_time()
        self._flush(now - REPEAT_S)
        status = event["status_id"]
        key = status, event["actor"]["user"]["name"], event["src_endpoint"]["ip"]
        if key not in self._senders and len(self._senders) >= MAX_SENDERS:
            key = status, "", ""  # shared by all further senders
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = _Sender(now)
        sender.events += 1
        if sender.events <= MAX_OF_SENDER:
            return False
        sender.event = {name: event[name] for name in event if name not in {"resources", "api"}}
        sender.more += 1
        return True


class _Repeated:
    """An event, the time of the first one of its kind, and the number of repetitions."""

    __slots__ = ("count", "event", "since")

    def __init__(self, event: Event, since: float) -> None:
        self.event = event
        self.since = since
        self.count = 0


class _Sender:
    """The number of a sender's events since a time, and of further ones that were only counted, with the last one."""

    __slots__ = ("event", "events", "more", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.events = self.more = 0
        self.event: Event | None = None


class _Lines:
    """A file of lines, which is renamed and replaced when it is full. Used by one thread at a time."""

    def __init__(self, path: Path, *, max_bytes: int, files: int) -> None:
        """Open the file, and keep up to `files` older files. Raises OSError."""
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        self._descriptor = self._opened()

    def _opened(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, lines: Sequence[bytes]) -> None:
        """Append lines. Raises OSError; the file has whole lines even then."""
        if not self._is_current():
            opened = self._opened()
            os.close(self._descriptor)
            self._descriptor = opened
        for line in lines:
            size = os.fstat(self._descriptor).st_size
            if size and size + len(line) > self._max_bytes:
                self._begin_another()
                size = 0
            written = os.write(self._descriptor, line)
            if written < len(line):  # the disk is full
                os.ftruncate(self._descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_current(self) -> bool:
        """Return whether the file still has the path at which it was opened; it may have been moved or removed."""
        try:
            current, own = os.stat(self._path), os.fstat(self._descriptor)
        except FileNotFoundError:
            return False
        return (current.st_dev, current.st_ino) == (own.st_dev, own.st_ino)

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
