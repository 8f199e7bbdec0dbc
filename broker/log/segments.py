"""The segments of a log by base offset.

Owns: the sorted map, with `floor` and `higher`, and the sum of the sizes. Must not know what a segment does.

Invariants:
1. There is always at least one segment; the last one is the active one.
2. The map changes on the loop only. `snapshot` is replaced, never changed: a worker may keep it for as long as it
   likes.
"""

from collections.abc import Iterable

from sortedcontainers import SortedDict

from broker.log.segment import Segment


class Segments:
    """A sorted map of segments. Source: org.apache.kafka.storage.internals.log.LogSegments."""

    __slots__ = ("_by_base", "_sealed_size", "active", "snapshot")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._by_base: SortedDict[int, Segment] = SortedDict((segment.base_offset, segment) for segment in segments)
        self._changed()

    def __len__(self) -> int:
        return len(self.snapshot)

    @property
    def first(self) -> Segment:
        """The oldest segment."""
        return self.snapshot[0]

    @property
    def size(self) -> int:
        """The bytes of all log files together."""
        return self._sealed_size + self.active.size

    def floor(self, offset: int) -> Segment | None:
        """The segment with the greatest base offset not above `offset`, or None."""
        if offset >= self.active.base_offset:
            return self.active
        slot = self._by_base.bisect_right(offset) - 1
        return self._by_base.peekitem(slot)[1] if slot >= 0 else None

    def higher(self, base_offset: int) -> Segment | None:
        """The segment with the smallest base offset above `base_offset`, or None."""
        slot = self._by_base.bisect_right(base_offset)
        return self._by_base.peekitem(slot)[1] if slot < len(self._by_base) else None

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """The segment that holds `offset` and all after it, oldest first; all if it lies before the first."""
        slot = max(0, self._by_base.bisect_right(offset) - 1)
        return self.snapshot[slot:]

    def get(self, base_offset: int) -> Segment | None:
        """The segment with exactly this base offset, or None."""
        segment: Segment | None = self._by_base.get(base_offset)
        return segment

    def add(self, segment: Segment) -> None:
        """Add a segment; the one with the greatest base offset is the active one."""
        self._by_base[segment.base_offset] = segment
        self._changed()

    def remove(self, *segments: Segment) -> None:
        """Take segments out. One must be left."""
        for segment in segments:
            del self._by_base[segment.base_offset]
        self._changed()

    def replace(self, old: Iterable[Segment], new: Segment) -> None:
        """Put one segment in the place of others."""
        for segment in old:
            del self._by_base[segment.base_offset]
        self._by_base[new.base_offset] = new
        self._changed()

    def touch(self) -> None:
        """Have who holds a snapshot know that it is an old one: files have other names."""
        self._changed()

    def _changed(self) -> None:
        self.snapshot: tuple[Segment, ...] = tuple(self._by_base.values())
        self.active = self.snapshot[-1]
        self._sealed_size = sum(segment.size for segment in self.snapshot[:-1])
