import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.log.errors import IndexCorruptError, IndexFullError, IndexOrderError
from warmlog.broker.log.index.time import NO_TIMESTAMP, TimeIndex, TimestampOffset
from warmlog.broker.log.io.files import OpenFiles

BASE = 345
Make = Callable[..., TimeIndex]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[TimeIndex] = []

    def make(capacity_size: int = 30 * 12, *, create: bool = True) -> TimeIndex:
        index = TimeIndex(OpenFiles(), str(tmp_path / "345.timeindex"), BASE, capacity_size=capacity_size)
        if create:
            index.create()
        made.append(index)
        return index

    yield make
    for index in made:
        index.close()


def fill(index: TimeIndex, count: int) -> None:
    for i in range(1, count + 1):
        index.append(i * 10, BASE + i * 10)


def test_lookup_gives_the_greatest_entry_not_later(make: Make) -> None:
    index = make()
    assert index.lookup(100)[:2] == (NO_TIMESTAMP, BASE)
    fill(index, 9)
    assert index.lookup(9)[:2] == (NO_TIMESTAMP, BASE)
    assert index.lookup(25)[:2] == (20, BASE + 20)
    assert index.lookup(30)[:2] == (30, BASE + 30)
    assert index.lookup(1000)[:2] == (90, BASE + 90)


@given(st.sets(st.integers(0, 3000), min_size=1, max_size=100), st.lists(st.integers(-5, 3010), max_size=20))
def test_lookup_is_the_floor_of_bisect(times: set[int], targets: list[int]) -> None:
    ordered = sorted(times)
    with TemporaryDirectory() as directory:
        index = TimeIndex(OpenFiles(), f"{directory}/0.timeindex", 0, capacity_size=12 * 200)
        index.create()
        for place, time in enumerate(ordered):
            index.append(time, place)
        for target in [*targets, *ordered[:10]]:
            slot = bisect_right(ordered, target) - 1
            expected = (ordered[slot], slot) if slot >= 0 else (NO_TIMESTAMP, 0)
            assert index.lookup(target)[:2] == index.lookup(target, "plain")[:2] == expected
        index.close()


def test_an_entry_is_eight_bytes_of_time_and_four_of_relative_offset(make: Make) -> None:
    index = make()
    index.append(1 << 40, BASE + 258)
    assert Path(index.path).read_bytes()[:12] == bytes([0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2])
    assert index.entry_at(0) == TimestampOffset(1 << 40, BASE + 258)
    with pytest.raises(IndexError):
        index.entry_at(1)


def test_a_time_that_is_no_news_adds_nothing(make: Make) -> None:
    index = make()
    index.append(10, BASE + 10)
    index.append(10, BASE + 10)
    index.append(9, BASE + 20)
    assert index.entries == 1
    index.append(11, BASE + 20)
    assert index.last() == TimestampOffset(11, BASE + 20)


def test_an_offset_before_the_last_ones_is_refused(make: Make) -> None:
    index = make()
    fill(index, 5)
    with pytest.raises(IndexOrderError):
        index.append(1000, BASE + 9)


def test_an_offset_that_is_not_relative_in_31_bits_is_refused(make: Make) -> None:
    with pytest.raises(IndexOrderError):
        make().append(10, BASE + (1 << 31))


def test_it_is_full_one_entry_early_and_the_last_slot_is_for_the_roll(make: Make) -> None:
    index = make(capacity_size=5 * 12)
    fill(index, 4)
    assert index.is_full
    with pytest.raises(IndexFullError):
        index.append(1000, BASE + 1000)
    index.append(1000, BASE + 1000, at_roll=True)
    assert index.last() == TimestampOffset(1000, BASE + 1000)


def test_last_entry_of_an_empty_index_is_no_time_at_the_base(make: Make) -> None:
    assert make().last() == TimestampOffset(NO_TIMESTAMP, BASE)


def test_truncate_drops_entries_at_or_past_an_offset(make: Make) -> None:
    index = make()
    fill(index, 9)
    index.truncate_to(BASE + 1000)
    assert index.entries == 9
    index.truncate_to(BASE + 50)
    assert index.last() == TimestampOffset(40, BASE + 40)
    index.truncate_to(BASE + 45)
    assert index.last() == TimestampOffset(40, BASE + 40)
    index.truncate_to(BASE)
    assert index.entries == 0


def test_the_capacity_can_be_changed(make: Make) -> None:
    index = make(capacity_size=3 * 12)
    fill(index, 2)
    assert index.is_full
    index.set_capacity(10 * 12)
    assert not index.is_full
    index.append(1000, BASE + 1000)
    assert os.path.getsize(index.path) == 10 * 12
    assert index.lookup(1000)[:2] == (1000, BASE + 1000)


class TestSanityCheck:
    """On a sealed index of (10, base + 10), (20, base + 20) in a segment that ends before base + 30."""

    @pytest.fixture
    def path(self, make: Make) -> Path:
        index = make()
        fill(index, 2)
        index.seal()
        index.trim()
        index.close()
        return Path(index.path)

    def check(self, make: Make, next_base_offset: int = BASE + 30) -> None:
        make(create=False).sanity_check(next_base_offset)

    def test_a_sound_index_passes(self, make: Make, path: Path) -> None:
        self.check(make)

    def test_a_size_that_is_no_multiple_of_an_entry_is_corrupt(self, make: Make, path: Path) -> None:
        os.truncate(path, 23)
        with pytest.raises(IndexCorruptError, match="multiple"):
            self.check(make)

    def test_a_zero_padded_index_is_corrupt_lest_retention_believes_it(self, make: Make, path: Path) -> None:
        os.truncate(path, 30 * 12)
        with pytest.raises(IndexCorruptError, match="not greater"):
            self.check(make)

    def test_an_offset_of_the_next_segment_is_corrupt(self, make: Make, path: Path) -> None:
        with pytest.raises(IndexCorruptError, match="outside"):
            self.check(make, next_base_offset=BASE + 20)

    def test_a_last_time_before_the_first_is_corrupt(self, make: Make, path: Path) -> None:
        path.write_bytes(TimeIndex.entry.pack(20, 10) + TimeIndex.entry.pack(10, 20))
        with pytest.raises(IndexCorruptError, match="not greater"):
            self.check(make)

    def test_an_offset_below_the_base_is_corrupt(self, make: Make, path: Path) -> None:
        path.write_bytes(TimeIndex.entry.pack(20, -1))
        with pytest.raises(IndexCorruptError, match="outside"):
            self.check(make)
