"""Ranges of offsets whose rows fit into memory."""

import random
from itertools import pairwise

from warmlog.pipeline.lakehouse.arrangement.in_order import GroupSize, ranges

GROUP = 16.0


def test_nothing_has_no_range() -> None:
    assert list(ranges([])) == []


def test_row_groups_in_order_are_read_once() -> None:
    """Each range begins at the edge of a row group."""
    groups = [GroupSize(first, first + 100, GROUP) for first in range(0, 1000, 100)]
    assert list(ranges(groups, 2 * GROUP)) == [(first, first + 200) for first in range(0, 1000, 200)]


def test_row_groups_of_the_same_offsets_are_read_together() -> None:
    groups = [GroupSize(0, 100, GROUP), GroupSize(0, 100, GROUP), GroupSize(100, 200, GROUP)]
    assert list(ranges(groups, 4 * GROUP)) == [(0, 200)]
    assert list(ranges(groups, 2 * GROUP)) == [(0, 100), (100, 200)]


def test_row_groups_in_no_order_are_divided() -> None:
    groups = [GroupSize(0, 1000, GROUP) for _ in range(10)]
    parts = list(ranges(groups, 2 * GROUP))
    assert parts == [(first, first + 200) for first in range(0, 1000, 200)]


def test_an_offset_is_a_range_at_least() -> None:
    assert list(ranges([GroupSize(5, 8, 1000.0)], 1.0)) == [(5, 6), (6, 7), (7, 8)]


def test_ranges_cover_all_extents_in_order_and_fit() -> None:
    chance = random.Random(7)
    for _ in range(200):
        extents = []
        for _ in range(chance.randrange(1, 12)):
            first = chance.randrange(1000)
            extents.append(GroupSize(first, first + chance.randrange(1, 500), chance.uniform(0.1, 50.0)))
        parts = list(ranges(extents, 20.0))
        assert parts[0][0] == min(extent.first for extent in extents)
        assert parts[-1][1] == max(extent.end for extent in extents)
        assert all(before[1] == after[0] for before, after in pairwise(parts))
        for first, end in parts:
            size = sum(
                each.bytes * max(min(end, each.end) - max(first, each.first), 0) / (each.end - each.first)
                for each in extents
            )
            assert size <= 20.1 or end - first == 1
