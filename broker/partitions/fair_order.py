"""Order the work of many sources: the source served least comes first.

This is start-time fair queueing (Goyal, Vin and Cheng, 1996), with service measured afterwards instead of known before.
Each source has a tag, the service that it has received. No tag falls behind the tag of the work in progress, so that an
idle source cannot save up service. Among equal tags the smaller work comes first. So a source with little work waits
only for the work in progress, however much others have.
"""

from collections import deque
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
KEPT_TAGS = 1_000  # number of tags beyond which irrelevant ones are dropped
PROVISIONAL_S = 0.001  # service that counts for work in progress until it is measured


class Work(NamedTuple, Generic[T]):
    """Work in progress, to be reported as `served`."""

    item: T
    source: Hashable
    tag: float


class FairOrder(Generic[T]):
    """Waiting work, by source. Not thread-safe."""

    __slots__ = ("_heap", "_in_progress", "_max_tags", "_number", "_tags", "_virtual", "_waiting")

    def __init__(self) -> None:
        self._virtual = 0.0  # the tag of the last work taken; the largest tag if none is in progress
        self._tags: dict[Hashable, float] = {}
        self._max_tags = KEPT_TAGS
        self._waiting: dict[Hashable, deque[tuple[float, T]]] = {}
        self._heap: list[tuple[float, float, int, Hashable]] = []  # (tag, size, number), one entry per source
        self._number = 0
        self._in_progress = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, source: Hashable, item: T, size: float = 0.0) -> None:
        """Add work. `size` orders sources that have been served equally."""
        waiting = self._waiting.get(source)
        if waiting is None:
            self._waiting[source] = deque([(size, item)])
            self._enter(source, size)
        else:
            waiting.append((size, item))

    def take(self) -> Work[T]:
        """Take the next work, which must exist."""
        tag, size, _, source = heappop(self._heap)
        while tag < self._tags.get(source, 0.0):  # outdated: other work of the source was measured since
            self._enter(source, size)
            tag, size, _, source = heappop(self._heap)
        self._virtual = max(self._virtual, tag)
        waiting = self._waiting[source]
        _, item = waiting.popleft()
        self._tags[source] = tag + PROVISIONAL_S
        if waiting:
            self._enter(source, waiting[0][0])
        else:
            del self._waiting[source]
        self._in_progress += 1
        return Work(item, source, tag)

    def served(self, work: Work[T], seconds: float) -> None:
        """Add the service that work has received; 0 if it was not begun."""
        provisional = self._tags.get(work.source, work.tag + PROVISIONAL_S)
        tag = self._tags[work.source] = max(work.tag, provisional - PROVISIONAL_S) + seconds
        self._in_progress -= 1
        if not self._in_progress and not self._waiting:
            self._virtual = max(self._virtual, tag)
        if len(self._tags) > self._max_tags:
            self._tags = {each: kept for each, kept in self._tags.items() if kept > self._virtual}
            self._max_tags = KEPT_TAGS + 2 * len(self._tags)

    def remove(self, source: Hashable, item: T) -> None:
        """Remove waiting work."""
        waiting = self._waiting[source]
        kept = deque(entry for entry in waiting if entry[1] is not item)
        if kept:
            self._waiting[source] = kept
            return
        del self._waiting[source]
        self._heap = [entry for entry in self._heap if entry[3] != source]
        heapify(self._heap)

    def _enter(self, source: Hashable, size: float) -> None:
        self._number += 1
        heappush(self._heap, (max(self._virtual, self._tags.get(source, 0.0)), size, self._number, source))
