"""Spans: consecutive offsets in the same state, instead of an object per record.

    start offset                                             next offset
    │ 100-149 acquired by a │ 150-150 available, 2 │ 151-199 … │
    └───────────────────────┴──────────────────────┴───────────┘  never delivered

Invariants:
1. Spans are disjoint and ascending, and none is empty. A gap between two has no records: compaction removed them.
2. Splitting a span, or joining two equal ones, does not change the meaning of their offsets.
3. A span with a pending transition has the state after it; `undo` has the previous one.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from sortedcontainers import SortedDict

NO_MEMBER = ""
NEVER_S = float("inf")


class RecordState(IntEnum):
    """State of a record for a share group, with Kafka's numbers (org.apache.kafka.server.share.fetch.RecordState)."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3  # no longer delivered; a dead letter is being written (KIP-1191)
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """Whether the record is finished: it is never delivered again, and nothing is left to do."""
        return self is RecordState.ACKNOWLEDGED or self is RecordState.ARCHIVED


class Unit(NamedTuple):
    """The offsets, both inclusive, of records that were first delivered together; throttling divides them."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.last - self.first + 1


class Before(NamedTuple):
    """The state before a pending transition."""

    state: RecordState
    member: str


class Span:
    """Offsets `first` to `last`, both inclusive.

    `deliveries`: how often they were delivered. `member` holds them until `deadline_s` if they are acquired.
    """

    __slots__ = ("deadline_s", "deliveries", "first", "last", "member", "pending", "state", "undo", "unit")

    def __init__(self, first: int, last: int, state: RecordState, deliveries: int, unit: Unit) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.deliveries = deliveries
        self.unit = unit
        self.member = NO_MEMBER
        self.deadline_s = NEVER_S
        self.pending: object | None = None  # the pending transition
        self.undo: Before | None = None

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.last - self.first + 1

    @property
    def is_available(self) -> bool:
        """Whether the records may be acquired now."""
        return self.state is RecordState.AVAILABLE and self.pending is None

    def split(self, at: int) -> "Span":
        """Split the span before an offset, and return the second part."""
        other = Span(at, self.last, self.state, self.deliveries, self.unit)
        other.member, other.deadline_s = self.member, self.deadline_s
        other.pending, other.undo = self.pending, self.undo
        self.last = at - 1
        return other

    def is_like(self, other: "Span") -> bool:
        """Return whether `other` follows and differs only in its offsets."""
        return (
            self.last + 1 == other.first
            and self.state is other.state
            and self.deliveries == other.deliveries
            and self.member == other.member
            and self.deadline_s == other.deadline_s
            and self.pending is other.pending is None
            and self.unit == other.unit
        )


class Spans:
    """The spans of a share-partition, by first offset."""

    __slots__ = ("_by_first",)

    def __init__(self) -> None:
        self._by_first: SortedDict[int, Span] = SortedDict()

    def __len__(self) -> int:
        return len(self._by_first)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._by_first.values())

    @property
    def first(self) -> Span:
        """The first span, which must exist."""
        span: Span = self._by_first.peekitem(0)[1]
        return span

    @property
    def last(self) -> Span:
        """The last span, which must exist."""
        span: Span = self._by_first.peekitem(-1)[1]
        return span

    def add(self, span: Span) -> None:
        """Add a span that overlaps with no other."""
        self._by_first[span.first] = span

    def pop_first(self) -> Span:
        """Remove and return the first span."""
        span: Span = self._by_first.popitem(0)[1]
        return span

    def from_offset(self, offset: int) -> Iterator[Span]:
        """Yield the spans that end at or past an offset. Splits, joins and removals are allowed during this.

        Offsets of a yielded span are not yielded again.
        """
        by_first = self._by_first
        index = by_first.bisect_right(offset) - 1
        span = by_first.peekitem(index)[1] if index >= 0 else None
        if span is not None and span.last >= offset:
            offset = span.last + 1
            yield span
        while (index := by_first.bisect_left(offset)) < len(by_first):
            span = by_first.peekitem(index)[1]
            offset = span.last + 1
            yield span

    def seen_from(self, offset: int) -> Iterator[Span]:
        """Yield the spans that end at or past an offset, faster than `from_offset`. None may change during this."""
        by_first = self._by_first
        index = by_first.bisect_right(offset) - 1
        if index >= 0 and (span := by_first.peekitem(index)[1]).last >= offset:
            offset = span.first
        for first in by_first.irange(offset):
            yield by_first[first]

    def within(self, first: int, last: int) -> Iterator[Span]:
        """Yield the spans that have offsets from `first` to `last`."""
        for span in self.from_offset(first):
            if span.first > last:
                return
            yield span

    def cut(self, span: Span, first: int, last: int) -> Span:
        """Split a span so that a part has no offsets outside of `first` to `last`, and return that part."""
        if span.first < first:
            span = span.split(first)
            self._by_first[span.first] = span
        if span.last > last:
            rest = span.split(last + 1)
            self._by_first[rest.first] = rest
        return span

    def join(self, span: Span) -> None:
        """Join a span with the previous and the next one, where they are equal."""
        by_first = self._by_first
        index = by_first.bisect_left(span.first)
        if index + 1 < len(by_first):
            following = by_first.peekitem(index + 1)[1]
            if span.is_like(following):
                del by_first[following.first]
                span.last = following.last
        if index:
            former = by_first.peekitem(index - 1)[1]
            if former.is_like(span):
                del by_first[span.first]
                former.last = span.last
