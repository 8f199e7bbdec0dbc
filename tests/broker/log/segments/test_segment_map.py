from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.segment_map import Segments

FILES = OpenFiles()


def segment(base_offset: int, size: int = 10) -> Segment:
    return Segment(FILES, "/nowhere", base_offset, size=size, next_base_offset=None, index_interval_bytes=4096)


def segments(*bases: int) -> Segments:
    return Segments(segment(base) for base in bases)


def test_offset_350_among_hundreds_lies_in_the_segment_at_300() -> None:
    found = segments(0, 100, 200, 300, 400, 500).floor(350)
    assert found is not None
    assert found.base_offset == 300
    assert found.path(".log").endswith("/00000000000000000300.log")


def test_floor_below_the_first_segment_is_none() -> None:
    assert segments(10, 20).floor(9) is None


def test_higher_is_the_next_segment_or_none() -> None:
    by_base = segments(0, 10, 25)
    assert [found and found.base_offset for found in map(by_base.higher, (-1, 0, 9, 10, 24, 25, 99))] == [
        0,
        10,
        10,
        25,
        25,
        None,
        None,
    ]


@given(st.sets(st.integers(0, 1000), min_size=1, max_size=50), st.lists(st.integers(-5, 1005), min_size=1))
def test_floor_and_higher_are_those_of_bisect(bases: set[int], offsets: list[int]) -> None:
    ordered, by_base = sorted(bases), segments(*bases)
    for offset in offsets:
        slot = bisect_right(ordered, offset)
        floor, higher = by_base.floor(offset), by_base.higher(offset)
        assert (floor and floor.base_offset) == (ordered[slot - 1] if slot else None)
        assert (higher and higher.base_offset) == (ordered[slot] if slot < len(ordered) else None)


def test_the_last_one_is_active_and_sizes_are_summed_over_large_logs() -> None:
    by_base = Segments(segment(base, size=2**31 - 1) for base in (0, 10, 20))
    assert by_base.active.base_offset == 20
    assert by_base.first.base_offset == 0
    assert by_base.size == 3 * (2**31 - 1)
    by_base.active.size += 5
    assert by_base.size == 3 * (2**31 - 1) + 5


def test_adding_and_removing_leaves_older_snapshots_alone() -> None:
    by_base = segments(0, 10)
    before = by_base.snapshot
    by_base.add(segment(20))
    by_base.remove(by_base.first)
    assert [each.base_offset for each in before] == [0, 10]
    assert [each.base_offset for each in by_base.snapshot] == [10, 20]
    assert by_base.active.base_offset == 20
    assert len(by_base) == 2


@pytest.mark.parametrize(
    ("offset", "bases"), [(-1, [0, 10, 20]), (0, [0, 10, 20]), (10, [10, 20]), (19, [10, 20]), (99, [20])]
)
def test_from_offset_begins_with_the_segment_that_holds_it(offset: int, bases: list[int]) -> None:
    assert [each.base_offset for each in segments(0, 10, 20).from_offset(offset)] == bases
