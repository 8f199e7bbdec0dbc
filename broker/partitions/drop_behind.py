"""What was read from the disk for consumers that lag, and may go from memory when the last of them has passed it.

Owns: which ranges of which files were brought in, and how far each consumer has come in them. Must not know: who reads,
or how pages are dropped.

What had to be read again after it was dropped is wanted by more than those who passed it, readers who follow each other
at a distance or go round: of such a file nothing is dropped for a while, and the kernel decides what stays.

Invariants:
1. Only what was brought in here is ever given to be dropped: what was in memory for other reasons stays.
2. A range is given when every consumer of its file that is known here has passed it, and once.
3. Only files are known of which something was brought in and not yet passed, and the latest of them, for as long as
   somebody moves in them: each is held open.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeAlias

from broker.log.io.residency import OpenFile

MAX_FILES = 128  # beyond what the broker keeps open for itself: as many as one reply may hold
WANTED_ROUNDS = 5  # minutes, as `ReadAhead.run` calls

Identity: TypeAlias = tuple[int, int]
Range = tuple[OpenFile, int, int]


class _Lagging:
    """One file: its descriptor, what was brought in ([start, end), in order), and where each consumer is."""

    __slots__ = ("consumers", "descriptor", "is_idle", "ranges")

    def __init__(self, descriptor: OpenFile) -> None:
        self.descriptor = descriptor
        self.ranges: list[tuple[int, int]] = []
        self.consumers: dict[Hashable, int] = {}
        self.is_idle = False  # since `let_go_of_idle` was called last

    def add(self, start: int, end: int) -> None:
        """A range was brought in."""
        self.ranges = _merged(self.ranges, start, end)

    def take_passed(self, position: int) -> list[Range]:
        """What lies before a position, which is forgotten."""
        taken = [(start, min(end, position)) for start, end in self.ranges if start < position]
        self.ranges = [(max(start, position), end) for start, end in self.ranges if end > position]
        return [(self.descriptor, start, end) for start, end in taken]


def _merged(ranges: list[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """With one more range, in order; those that touch become one."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*ranges, (start, end)]):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return merged


class PassedPages:
    """Of all files that somebody lags in."""

    def __init__(self) -> None:
        self._files: OrderedDict[Identity, _Lagging] = OrderedDict()
        # In this round of `let_go_of_idle`, and in the one before. A file that gets a removed one's inode is taken for
        # it, which costs nothing but that its pages stay, too.
        self._dropped: OrderedDict[Identity, list[tuple[int, int]]] = OrderedDict()
        self._dropped_before: OrderedDict[Identity, list[tuple[int, int]]] = OrderedDict()
        self._wanted: dict[Identity, int] = {}  # whose pages stay, for so many more calls of `let_go_of_idle`

    def __bool__(self) -> bool:
        return bool(self._files)

    def knows(self, descriptor: OpenFile) -> bool:
        """Whether something of a file was brought in and is not passed yet."""
        return descriptor.identity() in self._files

    def brought(self, consumer: Hashable, descriptor: OpenFile, start: int, end: int) -> None:
        """A range was read from the disk for a consumer, which begins there if it is not known yet."""
        identity = descriptor.identity()
        if identity in self._wanted:
            return
        dropped = *self._dropped.get(identity, ()), *self._dropped_before.get(identity, ())
        if any(start < last and first < end for first, last in dropped):
            if len(self._wanted) < MAX_FILES:
                self._wanted[identity] = WANTED_ROUNDS
            self._files.pop(identity, None)
            return
        lagging = self._files.get(identity)
        if lagging is None:
            lagging = self._files[identity] = _Lagging(descriptor)
            if len(self._files) > MAX_FILES:
                self._files.popitem(last=False)
        lagging.is_idle = False
        lagging.add(start, end)
        lagging.consumers.setdefault(consumer, start)

    def follow(self, consumer: Hashable, descriptor: OpenFile, position: int) -> None:
        """A consumer is about to be sent what begins at a position: what it may need is not to go."""
        lagging = self._files.get(descriptor.identity())
        if lagging is not None:
            lagging.is_idle = False
            lagging.consumers.setdefault(consumer, position)

    def passed(self, consumer: Hashable, descriptor: OpenFile, position: int) -> list[Range]:
        """A consumer was sent what lies before a position; gives what may go now."""
        lagging = self._files.get(descriptor.identity())
        if lagging is None:
            return []
        lagging.is_idle = False
        lagging.consumers[consumer] = position
        return self._taken(descriptor.identity(), min(lagging.consumers.values()))

    def forget(self, consumer: Hashable) -> list[Range]:
        """A consumer has gone; gives what only it had not passed. What it has not been sent stays."""
        ranges: list[Range] = []
        for identity, lagging in list(self._files.items()):
            position = lagging.consumers.pop(consumer, None)
            if position is None:
                continue
            ranges += self._taken(identity, min(lagging.consumers.values(), default=position))
            if not lagging.consumers:
                self._files.pop(identity, None)
        return ranges

    def let_go_of_idle(self) -> None:
        """Close the files in which nobody has moved since this was called last: who lagged there is elsewhere by now.

        A file that was removed takes room for as long as it is open. What was brought in stays in memory. What was
        dropped before is forgotten, too.
        """
        self._dropped_before, self._dropped = self._dropped, OrderedDict()
        self._wanted = {identity: left - 1 for identity, left in self._wanted.items() if left > 1}
        for identity, lagging in list(self._files.items()):
            if lagging.is_idle:
                del self._files[identity]
            lagging.is_idle = True

    def _taken(self, identity: tuple[int, int], position: int) -> list[Range]:
        lagging = self._files[identity]
        taken = lagging.take_passed(position)
        for _, start, end in taken:
            self._dropped[identity] = _merged(self._dropped.get(identity, []), start, end)
        while len(self._dropped) > MAX_FILES:
            self._dropped.popitem(last=False)
        if not lagging.ranges:
            del self._files[identity]
        return taken
