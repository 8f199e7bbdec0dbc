"""The segments of a log, sorted by base offset.

Invariants:
1. There is always at least one segment; the last one is active.
2. Only the event loop changes the map. `snapshot` is replaced, never modified, so that workers may keep it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import partial

from warmlog.broker.log.io.residency import ColdReadError
from warmlog.broker.log.segments.segment import Segment


class Segments:
    """A sorted map of segments. Source: org.apache.kafka.storage.internals.log.LogSegments."""

    __slots__ = ("_bases", "_sealed_size", "_with_aborted", "active", "snapshot")

    _with_aborted: Sequence[Segment] | None

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
        """Total bytes of all log files."""
        return self._sealed_size + self.active.size

    def floor(self, offset: int) -> Segment | None:
        """Return the segment with the greatest base offset not above `offset`, or None."""
        if offset >= self.active.base_offset:
            return self.active
        slot = bisect_right(self._bases, offset) - 1
        return self.snapshot[slot] if slot >= 0 else None

    def higher(self, base_offset: int) -> Segment | None:
        """Return the segment with the smallest base offset above `base_offset`, or None."""
        slot = bisect_right(self._bases, base_offset)
        return self.snapshot[slot] if slot < len(self._bases) else None

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """Return the segment that contains `offset` and all after it; all segments if it lies before the first."""
        slot = max(0, bisect_right(self._bases, offset) - 1)
        return self.snapshot[slot:]

    def get(self, base_offset: int) -> Segment | None:
        """Return the segment with exactly this base offset, or None."""
        slot = bisect_left(self._bases, base_offset)
        is_there = slot < len(self._bases) and self._bases[slot] == base_offset
        return self.snapshot[slot] if is_there else None

    def is_untrimmed(self, base_offset: int) -> bool:
        """Return whether a segment is active, or sealed and not trimmed yet (`LogRolls.finish`)."""
        segment = self.get(base_offset)
        return segment is not None and (segment.next_base_offset is None or segment.is_untrimmed)

    def with_aborted(self, base_offset: int) -> Sequence[Segment]:
        """Return the segments from a base offset on that have a transaction index, oldest first.

        Raises IndexCorruptError, OSError; ColdReadError if files would have to be opened on the event loop.
        """
        cached = self._with_aborted
        if cached is None:
            cached = self._with_aborted = self._find_aborted()
        if not cached or cached[-1].base_offset < base_offset:
            return ()
        return [segment for segment in cached if segment.base_offset >= base_offset]

    def _find_aborted(self) -> Sequence[Segment]:
        candidates = [segment for segment in self.snapshot if segment.may_have_aborted]
        unknown = [segment for segment in candidates if not segment.transaction_index.is_counted]
        if unknown and unknown[0].open_files.residency.must_not_wait:
            raise ColdReadError(partial(_count_aborted, unknown))
        _count_aborted(unknown)
        return tuple([segment for segment in candidates if segment.may_have_aborted])

    def forget_aborted(self) -> None:
        """Drop the cached result of `with_aborted`, after a segment got a transaction index."""
        self._with_aborted = None

    def add(self, segment: Segment) -> None:
        """Add a segment; the one with the greatest base offset is active."""
        self._set([*self.snapshot, segment])

    def remove(self, *segments: Segment) -> None:
        """Remove segments. At least one must remain."""
        gone = {segment.base_offset for segment in segments}
        self._set([segment for segment in self.snapshot if segment.base_offset not in gone])

    def replace(self, old: Iterable[Segment], new: Segment) -> None:
        """Replace several segments by one."""
        gone = {segment.base_offset for segment in old}
        self._set([*[segment for segment in self.snapshot if segment.base_offset not in gone], new])

    def touch(self) -> None:
        """Replace the snapshot by an equal one, so that its holders see that files were renamed."""
        self._set(list(self.snapshot))

    def _set(self, segments: Iterable[Segment]) -> None:
        self.snapshot: tuple[Segment, ...] = tuple(sorted(segments, key=_base_offset))
        self._bases = [segment.base_offset for segment in self.snapshot]
        self.active = self.snapshot[-1]
        self._with_aborted = None
        self._sealed_size = sum(segment.size for segment in self.snapshot[:-1])


def _count_aborted(segments: Sequence[Segment]) -> None:
    """Read the transaction indexes, and mark the segments that have no aborted transactions."""
    for segment in segments:
        if not segment.transaction_index.count():
            segment.may_have_aborted = False
            segment.transaction_index.forget()


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
