"""Answers that wait until the records they depend on are stored."""

import math
from typing import Generic, TypeVar

import trio

A = TypeVar("A")


class PendingAnswer(Generic[A]):
    """An answer that tasks wait for. Belongs to the event loop."""

    __slots__ = ("_settled", "value")

    def __init__(self, value: A) -> None:
        """Begin with `value`, the answer until another one is set."""
        self.value = value
        self._settled = trio.Event()

    @property
    def is_settled(self) -> bool:
        """Whether the answer is known."""
        return self._settled.is_set()

    def settle(self, value: A) -> None:
        """Set the answer, and wake the tasks that wait for it."""
        self.value = value
        self._settled.set()

    async def wait(self, limit_s: float = math.inf) -> A:
        """Wait for the answer, at most for a time, and return it."""
        if not self._settled.is_set():
            with trio.move_on_after(limit_s):
                await self._settled.wait()
        return self.value
