"""Pack small items into tasks: a task of Spark costs as much as reading some megabytes."""

from collections.abc import Callable, Sequence
from typing import TypeVar

TASK_BYTES = 8 << 20  # a task that reads this much takes 0.1 s, twice of what Spark needs to start it
OPEN_BYTES = 128 << 10  # what could be read in the time that an item takes by itself

T = TypeVar("T")


def packed(items: Sequence[T], size: Callable[[T], int], least: int) -> list[tuple[T, ...]]:
    """Return the items of each task, in order: one, or several that are small together.

    `size`: returns how many bytes an item reads. `least`: so many items have a task each; of more, several share a task
    only up to this part of the total.
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
