"""Drop-behind: find pages that were read from the disk for lagging consumers and have been sent to all of them.

If dropped pages must be read again, the file has readers far apart, or one that starts over. For some minutes nothing
of such a file is dropped, and the kernel decides what stays in memory.

Invariants:
1. Only pages that were read for lagging consumers are ever dropped; other resident pages stay.
2. A range is dropped once, when it was sent to every known consumer of its file.
3. The most recently used files with undropped ranges are kept here; each is held open until no consumer has used it for
   a while.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeAlias

from warmlog.broker.log.io.residency import OpenFile

MAX_FILES = 128  # in addition to the files that the broker keeps open: as many as one response may use
KEEP_ROUNDS = 5  # in calls of `close_idle`, that is minutes

Identity: TypeAlias = tuple[int, int]
Range = tuple[OpenFile, int, int]


class _Lagging:
    """One file: its descriptor, the ranges read ([start, end), in order), and the position of each consumer."""

    __slots__ = ("consumers", "descriptor", "is_idle", "ranges")

    def __init__(self, descriptor: OpenFile) -> None:
        self.descriptor = descriptor
        self.ranges: list[tuple[int, int]] = []
        self.consumers: dict[Hashable, int] = {}
        self.is_idle = False  # unused since the last call of `close_idle`

    def add(self, start: int, end: int) -> None:
        """Add a range that was read."""
        self.ranges = _merged(self.ranges, start, end)

    def take_passed(self, position: int) -> list[Range]:
        """Remove and return the ranges before a position."""
        taken = [(start, min(end, position)) for start, end in self.ranges if start < position]
        self.ranges = [(max(start, position), end) for start, end in self.ranges if end > position]
        return [(self.descriptor, start, end) for start, end in taken]


def _merged(ranges: list[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return sorted ranges with one more range, merging those that touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*ranges, (start, end)]):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return merged


class DropBehind:
    """The files that lagging consumers read."""

    def __init__(self) -> None:
        self._files: OrderedDict[Identity, _Lagging] = OrderedDict()
        # Ranges dropped in this round of `close_idle`, and in the previous one. A new file may reuse the inode of a
        # removed one; then its pages are kept unnecessarily, which is harmless.
        self._dropped: OrderedDict[Identity, list[tuple[int, int]]] = OrderedDict()
        self._dropped_before: OrderedDict[Identity, list[tuple[int, int]]] = OrderedDict()
        self._kept: dict[Identity, int] = {}  # files whose pages are kept, with the number of remaining rounds

    def __bool__(self) -> bool:
        return bool(self._files)

    def knows(self, descriptor: OpenFile) -> bool:
        """Return whether a file has ranges that are not yet dropped."""
        return descriptor.identity() in self._files

    def brought(self, consumer: Hashable, descriptor: OpenFile, start: int, end: int) -> None:
        """Add a range read from the disk for a consumer; set the consumer's position if it is new."""
        identity = descriptor.identity()
        if identity in self._kept:
            return
        dropped = *self._dropped.get(identity, ()), *self._dropped_before.get(identity, ())
        if any(start < last and first < end for first, last in dropped):
            if len(self._kept) < MAX_FILES:
                self._kept[identity] = KEEP_ROUNDS
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
        """Set the position of a consumer that is new to a file, so that pages it needs are not dropped."""
        lagging = self._files.get(descriptor.identity())
        if lagging is not None:
            lagging.is_idle = False
            lagging.consumers.setdefault(consumer, position)

    def passed(self, consumer: Hashable, descriptor: OpenFile, position: int) -> list[Range]:
        """Set the position up to which a file was sent to a consumer, and return the ranges to drop."""
        lagging = self._files.get(descriptor.identity())
        if lagging is None:
            return []
        lagging.is_idle = False
        lagging.consumers[consumer] = position
        return self._taken(descriptor.identity(), min(lagging.consumers.values()))

    def forget(self, consumer: Hashable) -> list[Range]:
        """Remove a consumer; return the ranges up to its position that were kept only for it."""
        ranges: list[Range] = []
        for identity, lagging in list(self._files.items()):
            position = lagging.consumers.pop(consumer, None)
            if position is None:
                continue
            ranges += self._taken(identity, min(lagging.consumers.values(), default=position))
            if not lagging.consumers:
                self._files.pop(identity, None)
        return ranges

    def close_idle(self) -> None:
        """Close the files that no consumer has used since the last call.

        An open file occupies disk space even if it was removed. The pages of closed files stay in memory.
        """
        self._dropped_before, self._dropped = self._dropped, OrderedDict()
        self._kept = {identity: left - 1 for identity, left in self._kept.items() if left > 1}
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
