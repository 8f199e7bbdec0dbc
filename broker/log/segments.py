"""The segments of a log by base offset.

Owns: the sorted map, with `floor` and `higher`, and the sum of the sizes. Must not know what a segment does.

Invariants:
1. There is always at least one segment; the last one is the active one.
2. The map changes on the loop only. `snapshot` is replaced, never changed: a worker may keep it for as long as it
   likes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from broker.log.segment import Segment


class Segments:
    """A sorted map of segments. Source: org.apache.kafka.storage.internals.log.LogSegments."""

    __slots__ = ("_bases", "_sealed_size", "active", "snapshot")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._set(segments)

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
        slot = bisect_right(self._bases, offset) - 1
        return self.snapshot[slot] if slot >= 0 else None

    def higher(self, base_offset: int) -> Segment | None:
        """The segment with the smallest base offset above `base_offset`, or None."""
        slot = bisect_right(self._bases, base_offset)
        return self.snapshot[slot] if slot < len(self._bases) else None

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """The segment that holds `offset` and all after it, oldest first; all if it lies before the first."""
        slot = max(0, bisect_right(self._bases, offset) - 1)
        return self.snapshot[slot:]

    def get(self, base_offset: int) -> Segment | None:
        """The segment with exactly this base offset, or None."""
        slot = bisect_left(self._bases, base_offset)
        is_there = slot < len(self._bases) and self._bases[slot] == base_offset
        return self.snapshot[slot] if is_there else None

    def add(self, segment: Segment) -> None:
        """Add a segment; the one with the greatest base offset is the active one."""
        self._set([*self.snapshot, segment])

    def remove(self, *segments: Segment) -> None:
        """Take segments out. One must be left."""
        gone = {segment.base_offset for segment in segments}
        self._set([segment for segment in self.snapshot if segment.base_offset not in gone])

    def replace(self, old: Iterable[Segment], new: Segment) -> None:
        """Put one segment in the place of others."""
        gone = {segment.base_offset for segment in old}
        self._set([*[segment for segment in self.snapshot if segment.base_offset not in gone], new])

    def touch(self) -> None:
        """Have who holds a snapshot know that it is an old one: files have other names."""
        self._set(list(self.snapshot))

    def _set(self, segments: Iterable[Segment]) -> None:
        self.snapshot: tuple[Segment, ...] = tuple(sorted(segments, key=_base_offset))
        self._bases = [segment.base_offset for segment in self.snapshot]
        self.active = self.snapshot[-1]
        self._sealed_size = sum(segment.size for segment in self.snapshot[:-1])


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
