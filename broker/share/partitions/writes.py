"""Store the changes of one share-partition: one write at a time; the next write has all changes that came during it.

Invariants:
1. Changes are stored in the order in which they were decided, so that a retried write never undoes a later one.
2. No write has two changes of the same offset.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

import trio

from warmlog.broker.share.persister import Outcome
from warmlog.protocol.kafka.messages.share.state import StateBatch

Write: TypeAlias = Callable[[Sequence[StateBatch]], Awaitable[Outcome]]
Done: TypeAlias = Callable[[Outcome], Awaitable[None]]


class Stored:
    """Changes that are being stored, and later the outcome."""

    __slots__ = ("_done", "_event", "changes", "is_final", "outcome")

    def __init__(self, changes: Sequence[StateBatch], done: Done | None = None, *, is_final: bool = False) -> None:
        self.changes = changes
        self.is_final = is_final
        self.outcome: Outcome | None = None
        self._done = done
        self._event: trio.Event | None = None

    async def wait(self) -> Outcome:
        """Wait for the outcome."""
        if self.outcome is None:
            if self._event is None:
                self._event = trio.Event()
            await self._event.wait()
        assert self.outcome is not None
        return self.outcome

    async def finish(self, outcome: Outcome) -> None:
        """Act on the outcome, and wake waiting tasks."""
        if self._done is not None:
            await self._done(outcome)
        self.outcome = outcome
        if self._event is not None:
            self._event.set()


class _Round(NamedTuple):
    items: list[Stored]
    changes: list[StateBatch]


class Writes:
    """The queue of one share-partition. Belongs to the event loop."""

    __slots__ = ("_idle", "_is_running", "_queue", "_spawn", "_write")

    def __init__(
        self, write: Write, spawn: Callable[[Callable[[], Awaitable[None]]], None], idle: Callable[[], None]
    ) -> None:
        """Store changes with `write`; `spawn` runs an async function in the background.

        `idle` is called when everything is stored, after the outcomes.
        """
        self._write = write
        self._spawn = spawn
        self._idle = idle
        self._queue: deque[Stored] = deque()
        self._is_running = False

    @property
    def is_idle(self) -> bool:
        """Whether everything is stored."""
        return not self._is_running

    def store(self, changes: Sequence[StateBatch], done: Done, *, is_final: bool) -> Stored:
        """Store changes, at least one, and call `done` with the outcome.

        `is_final`: their offsets may be changed again before they are stored, as they are not in a transition.
        """
        stored = Stored(changes, done, is_final=is_final)
        self._queue.append(stored)
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run)
        return stored

    async def _run(self) -> None:
        try:
            while self._queue:
                items, changes = self._next()
                outcome = await self._write(changes)
                for item in items:
                    await item.finish(outcome)
        finally:
            self._is_running = False
        self._idle()

    def _next(self) -> _Round:
        """Return the changes of the next write: up to the first ones whose offsets may be changed again."""
        items: list[Stored] = []
        changes: list[StateBatch] = []
        while self._queue:
            item = self._queue.popleft()
            items.append(item)
            changes += item.changes
            if item.is_final:
                break
        return _Round(items, changes)
