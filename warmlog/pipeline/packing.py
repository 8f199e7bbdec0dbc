"""Pack small items into tasks: a Spark task costs as much as reading a few megabytes."""

from collections.abc import Callable, Sequence
from typing import TypeVar

TASK_BYTES = 8 << 20  # a task that reads this much takes 0.1 s, twice the time Spark needs to start it
OPEN_BYTES = 128 << 10  # bytes that could be read in the fixed time of an item

T = TypeVar("T")


def packed(items: Sequence[T], size: Callable[[T], int], least: int) -> list[tuple[T, ...]]:
    """Return the items of each task, in order: one item, or several small items.

    `size`: returns the number of bytes that an item reads. `least`: up to this many items, each has its own task; with
    more, items share a task only up to this fraction of the total size.
    """
    if len(items) <= least:
        return [(item,) for item in items]
    costs = [OPEN_BYTES + size(item) for item in items]
    most = min(TASK_BYTES, sum(costs) // least)
    packs: list[tuple[T, ...]] = []
    first, taken = 0, 0
    for at, cost in enumerate(costs):
        if at > first and taken + cost > most:
            packs.append(tuple(items[first:at]))
            first, taken = at, 0
        taken += cost
    return [*packs, tuple(items[first:])]
