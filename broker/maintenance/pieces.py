"""Iterate over all partitions without holding the event loop: there may be tens of thousands."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeVar

import trio

T = TypeVar("T")
PIECE = 1000  # partitions; examining one takes up to 1 us


async def in_pieces(items: Iterable[T]) -> AsyncIterator[Sequence[T]]:
    """Yield the items that exist now, `PIECE` at a time, and let other tasks run before each further piece."""
    listed = list(items)
    for start in range(0, len(listed), PIECE):
        if start:
            await trio.lowlevel.checkpoint()
        yield listed[start : start + PIECE]
