"""Combine batches of delivery states: of several that cover an offset, the most deliveries win, then the highest state.

    stored      [0 ......... 9]  state 0, 1 delivery
    written           [4 .. 6]   state 2, 1 delivery
    combined    [0..3][4 .. 6][7..9]

A combined list is sorted, without overlaps, and as short as possible. A write changes a few of its batches; only those
are combined again, so the cost depends on the change.

Source: org.apache.kafka.coordinator.share.PersisterStateBatchCombiner.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter

from warmlog.protocol.kafka.messages.share.state import UNKNOWN_OFFSET, StateBatch

_FIRST, _LAST = itemgetter(0), itemgetter(1)


def combine(combined: Sequence[StateBatch], added: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Return a combined list with other batches, in any order, added to it.

    Offsets below the start offset are omitted, unless that is -1.
    """
    kept = _from_offset(combined, start_offset)
    changed = [each for batch in added if (each := _clipped(batch, start_offset)) is not None]
    if not changed:
        return tuple(kept)
    first, last = min(map(_FIRST, changed)), max(map(_LAST, changed))
    start = bisect_left(kept, first - 1, key=_LAST)  # batches adjacent to changed ones may be joined with them
    end = bisect_right(kept, last + 1, lo=start, key=_FIRST)
    return (*kept[:start], *_combined([*kept[start:end], *changed]), *kept[end:])


def _from_offset(combined: Sequence[StateBatch], start_offset: int) -> Sequence[StateBatch]:
    if start_offset == UNKNOWN_OFFSET or not combined or combined[0].first_offset >= start_offset:
        return combined
    kept = combined[bisect_left(combined, start_offset, key=_LAST) :]
    first = _clipped(kept[0], start_offset) if kept else None
    return kept if first is None else (first, *kept[1:])


def _clipped(batch: StateBatch, start_offset: int) -> StateBatch | None:
    """Return the part of a batch from the start offset on."""
    if start_offset == UNKNOWN_OFFSET or batch.first_offset >= start_offset:
        return batch
    return None if batch.last_offset < start_offset else batch._replace(first_offset=start_offset)


def _combined(batches: Sequence[StateBatch]) -> Iterator[StateBatch]:
    """Yield the batch that wins for each offset, with equal neighbours joined."""
    ordered = sorted(batches)
    return _joined(ordered if not has_overlaps(ordered) else _separated(ordered))


def _separated(ordered: Sequence[StateBatch]) -> Iterator[StateBatch]:
    """Yield batches without overlaps. `ordered` is sorted; only overlapping batches are examined together."""
    best, overlapping, last = ordered[0], [ordered[0]], ordered[0][1]
    is_same = True  # all overlapping batches cover the same offsets
    for batch in ordered[1:]:
        if batch[0] > last:
            if is_same:
                yield best
            else:
                yield from _swept(overlapping)
            best, overlapping, last, is_same = batch, [batch], batch[1], True
            continue
        overlapping.append(batch)
        if batch[0] != best[0] or batch[1] != last:
            is_same = False
            last = max(last, batch[1])
        elif batch[3] > best[3] or (batch[3] == best[3] and batch[2] > best[2]):
            best = batch
    if is_same:
        yield best
    else:
        yield from _swept(overlapping)


def _swept(ordered: Sequence[StateBatch]) -> Iterator[StateBatch]:
    """Yield the batch that wins for each offset of overlapping batches. `ordered` is sorted."""
    bounds = sorted({each.first_offset for each in ordered} | {each.last_offset + 1 for each in ordered})
    covering: list[tuple[int, int, int]] = []  # a heap of (-deliveries, -state, last offset)
    position = 0
    for bound, following in pairwise(bounds):
        while position < len(ordered) and ordered[position].first_offset <= bound:
            _, last, state, deliveries = ordered[position]
            heapq.heappush(covering, (-deliveries, -state, last))
            position += 1
        while covering[0][2] < bound:
            heapq.heappop(covering)
        yield StateBatch(bound, following - 1, -covering[0][1], -covering[0][0])


def has_overlaps(batches: Sequence[StateBatch]) -> bool:
    """Return whether some of the batches overlap, or are not in order."""
    return any(later[0] <= earlier[1] for earlier, later in pairwise(batches))


def _joined(batches: Iterable[StateBatch]) -> Iterator[StateBatch]:
    """Yield batches that do not overlap, with equal neighbours joined."""
    pending: StateBatch | None = None
    for batch in batches:
        if pending is None:
            pending = batch
        elif pending[1] + 1 == batch[0] and pending[2:] == batch[2:]:
            pending = pending._replace(last_offset=batch.last_offset)
        else:
            yield pending
            pending = batch
    if pending is not None:
        yield pending
