"""Carry out the effects of automatons, in the order of their decisions."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

E = TypeVar("E")


class EffectLoop(Generic[E]):
    """Carries out effects, one after the other. Belongs to the event loop."""

    def __init__(self, carry_out: Callable[[E], None]) -> None:
        self._carry_out = carry_out
        self._queue: deque[E] = deque()
        self._is_running = False

    def put(self, effects: Iterable[E]) -> None:
        """Carry out effects, and the effects that follow from them.

        If an effect calls this while it is being carried out, the new effects follow those already queued.
        """
        self._queue.extend(effects)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._queue:
                self._carry_out(self._queue.popleft())
        finally:
            self._is_running = False
