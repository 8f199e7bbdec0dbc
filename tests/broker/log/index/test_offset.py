import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.log.io.eviction import needs_cachestat
from warmlog.broker.log.errors import IndexCorruptError, IndexFullError, IndexOrderError
from warmlog.broker.log.index.offset import OffsetIndex, OffsetPosition
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.io.page_cache import Cachestat
from warmlog.broker.log.io.residency import Residency

BASE = 45
Make = Callable[..., OffsetIndex]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[OffsetIndex] = []

    def make(base_offset: int = BASE, capacity_size: int = 30 * 8, *, create: bool = True) -> OffsetIndex:
        path = str(tmp_path / f"{base_offset}.index")
        index = OffsetIndex(OpenFiles(), path, base_offset, capacity_size=capacity_size)
        if create:
            index.create()
        made.append(index)
        return index

    yield make
    for index in made:
        index.close()


def test_offset_23_is_found_by_the_entry_at_22(make: Make) -> None:
    index = make(0)
    for offset, position in ((14, 328), (22, 656), (31, 984)):
        index.append(offset, position)
    assert index.lookup(23)[:2] == (22, 656)


def test_offset_268_in_base_251_is_relative_17_and_found_by_entry_14(make: Make) -> None:
    index = make(251)
    for relative, position in ((6, 150), (14, 328), (22, 656)):
        index.append(251 + relative, position)
    assert index.relative(268) == 17
    assert index.lookup(268)[:2] == (251 + 14, 328)


def test_offset_35_in_base_32_is_relative_3(make: Make) -> None:
    assert make(32).relative(35) == 3


def test_random_lookup_gives_the_greatest_entry_not_above(make: Make) -> None:
    index = make()
    entries = [(BASE + 3 * i, 100 * i) for i in range(1, 31)]
    for entry in entries:
        index.append(*entry)
    for offset in range(BASE, BASE + 100):
        below = [entry for entry in entries if entry[0] <= offset]
        assert index.lookup(offset)[:2] == (below[-1] if below else (BASE, 0))


def test_lookup_extreme_cases(make: Make) -> None:
    index = make()
    assert index.lookup(BASE)[:2] == (BASE, 0)
    for i in range(index.max_entries):
        index.append(BASE + i + 1, i + 1)
    assert index.lookup(BASE)[:2] == (BASE, 0)
    assert index.lookup(BASE + index.max_entries)[:2] == (BASE + index.max_entries, index.max_entries)
    assert index.lookup(BASE + 10 * index.max_entries)[:2] == (BASE + index.max_entries, index.max_entries)


def test_an_entry_is_eight_big_endian_bytes_relative_to_the_base(make: Make) -> None:
    index = make()
    index.append(BASE + 1, 258)
    assert Path(index.path).read_bytes()[:8] == bytes([0, 0, 0, 1, 0, 0, 1, 2])
    assert index.entry_at(0) == OffsetPosition(BASE + 1, 258)


def test_entry_past_the_last_is_refused(make: Make) -> None:
    index = make()
    index.append(BASE + 1, 1)
    with pytest.raises(IndexError):
        index.entry_at(1)
    with pytest.raises(IndexError):
        index.entry_at(-1)


def test_appending_too_many_is_refused(make: Make) -> None:
    index = make()
    for i in range(index.max_entries):
        assert not index.is_full
        index.append(BASE + i + 1, i + 1)
    assert index.is_full
    with pytest.raises(IndexFullError):
        index.append(BASE + 1000, 1000)


@pytest.mark.parametrize("entry", [(BASE + 5, 20), (BASE + 4, 20), (BASE + 6, 10), (BASE + 6, 9)])
def test_appending_what_does_not_increase_is_refused(make: Make, entry: tuple[int, int]) -> None:
    index = make()
    index.append(BASE + 5, 10)
    with pytest.raises(IndexOrderError):
        index.append(*entry)
    assert index.entries == 1


@pytest.mark.parametrize("offset", [BASE - 1, BASE + (1 << 31)])
def test_an_offset_that_is_not_relative_in_31_bits_is_refused(make: Make, offset: int) -> None:
    with pytest.raises(IndexOrderError):
        make().append(offset, 1)


def test_the_greatest_relative_offset_fits(make: Make) -> None:
    index = make()
    index.append(BASE + (1 << 31) - 1, 1)
    assert index.last().offset == BASE + (1 << 31) - 1


def test_upper_bound_is_the_first_entry_at_or_past(make: Make) -> None:
    index = make()
    assert index.upper_bound(0, 5) is None
    for offset, position in ((BASE + 1, 10), (BASE + 2, 23), (BASE + 4, 37)):
        index.append(offset, position)
    assert index.upper_bound(0, 5) == (BASE + 1, 10, None)
    assert index.upper_bound(0, 10) == (BASE + 1, 10, None)
    assert index.upper_bound(0, 23) == (BASE + 2, 23, None)
    assert index.upper_bound(10, 14) == (BASE + 4, 37, None)
    assert index.upper_bound(0, 38) is None


@given(
    st.sets(st.integers(1, 5000), max_size=200),
    st.lists(st.integers(-10, 5010), max_size=20),
)
def test_floor_and_ceiling_are_those_of_bisect(keys: set[int], targets: list[int]) -> None:
    ordered = sorted(keys)
    with TemporaryDirectory() as directory:
        index = OffsetIndex(OpenFiles(), f"{directory}/0.index", 0, capacity_size=8 * 200)
        index.create()
        for key in ordered:
            index.append(key, 7 * key)
        for target in [*targets, *ordered[:10], *ordered[-10:]]:
            floor = bisect_right(ordered, target) - 1
            expected = (ordered[floor], 7 * ordered[floor]) if floor >= 0 else (0, 0)
            assert index.lookup(target)[:2] == index.lookup(target, "plain")[:2] == expected
            ceiling = bisect_left(ordered, target)
            bound = index.upper_bound(7 * target, 0)
            assert (bound and bound.offset) == (ordered[ceiling] if ceiling < len(ordered) else None)
        index.close()


def test_reopening_finds_the_entries_and_appends_go_on(make: Make) -> None:
    index = make()
    index.append(BASE + 5, 10)
    index.append(BASE + 9, 20)
    index.seal()
    index.trim()
    index.close()
    assert os.path.getsize(index.path) == 16
    again = make(create=False)
    assert again.last() == OffsetPosition(BASE + 9, 20)
    again.append(BASE + 10, 30)
    assert [again.entry_at(i)[0] for i in range(3)] == [BASE + 5, BASE + 9, BASE + 10]
    assert os.path.getsize(again.path) == 30 * 8


def test_a_new_index_is_as_large_as_it_may_become_and_takes_no_room(make: Make) -> None:
    index = make(capacity_size=10 << 20)
    stat = os.stat(index.path)
    assert stat.st_size == 10 << 20
    assert stat.st_blocks == 0


def test_the_capacity_is_rounded_down_to_whole_entries(make: Make) -> None:
    index = make(capacity_size=67)
    assert index.max_entries == 8
    assert os.path.getsize(index.path) == 64


def test_truncate_drops_what_is_at_or_past_an_offset(make: Make) -> None:
    def filled() -> OffsetIndex:
        index = make()
        for i in range(1, 10):
            index.append(BASE + 2 * i, 10 * i)
        return index

    index = filled()
    index.truncate_to(BASE + 19)
    assert index.entries == 9
    index.truncate_to(BASE + 10)
    assert index.last().offset == BASE + 8
    index.truncate_to(BASE + 7)
    assert index.last().offset == BASE + 6
    index.truncate_to(BASE)
    assert index.entries == 0
    index.append(BASE + 1, 1)
    assert index.entry_at(0) == OffsetPosition(BASE + 1, 1)


def test_what_truncation_drops_becomes_zeros_under_readers(make: Make) -> None:
    index = make()
    for i in range(1, 5):
        index.append(BASE + i, i)
    view = index.view()
    index.truncate_to(BASE + 3)
    assert view[:32] == Path(index.path).read_bytes()[:32]
    assert view[16:32] == bytes(16)


def test_an_index_that_does_not_exist_is_corrupt(make: Make) -> None:
    with pytest.raises(IndexCorruptError, match="missing"):
        make(create=False).sanity_check(BASE + 100, 1000)


def test_an_index_cut_short_under_us_is_an_error_and_no_signal(make: Make) -> None:
    index = make()
    for i in range(1, 5):
        index.append(BASE + i, i)
    index.close()
    os.truncate(index.path, 8)
    with pytest.raises(IndexCorruptError):
        index.lookup(BASE + 4)


class TestSanityCheck:
    """On a sealed index of two entries; the segment ends before base + 20, its log file after 300 bytes."""

    @pytest.fixture
    def path(self, make: Make) -> Path:
        index = make()
        index.append(BASE + 5, 100)
        index.append(BASE + 9, 200)
        index.seal()
        index.trim()
        index.close()
        return Path(index.path)

    def check(self, make: Make, next_base_offset: int = BASE + 20, log_size: int = 300) -> None:
        make(create=False).sanity_check(next_base_offset, log_size)

    def test_a_sound_index_passes(self, make: Make, path: Path) -> None:
        self.check(make)

    def test_an_empty_index_passes(self, make: Make, path: Path) -> None:
        path.write_bytes(b"")
        self.check(make)

    def test_a_size_that_is_no_multiple_of_an_entry_is_corrupt(self, make: Make, path: Path) -> None:
        path.write_bytes(path.read_bytes() + b"\0")
        with pytest.raises(IndexCorruptError, match="multiple"):
            self.check(make)

    def test_an_index_that_was_never_trimmed_is_corrupt(self, make: Make, path: Path) -> None:
        os.truncate(path, 30 * 8)
        with pytest.raises(IndexCorruptError):
            self.check(make)

    def test_an_index_of_zeros_is_corrupt(self, make: Make, path: Path) -> None:
        path.write_bytes(bytes(8))
        with pytest.raises(IndexCorruptError, match="outside"):
            self.check(make)

    def test_an_offset_of_the_next_segment_is_corrupt(self, make: Make, path: Path) -> None:
        with pytest.raises(IndexCorruptError, match="outside"):
            self.check(make, next_base_offset=BASE + 9)

    def test_a_position_past_the_log_is_corrupt(self, make: Make, path: Path) -> None:
        with pytest.raises(IndexCorruptError, match="outside the log file"):
            self.check(make, log_size=200)

    def test_a_last_entry_below_the_first_is_corrupt(self, make: Make, path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[8:] + data[:8])
        with pytest.raises(IndexCorruptError, match="not greater"):
            self.check(make)


def test_an_index_cut_under_its_mapping_is_corrupt(tmp_path: Path) -> None:
    """Whose pages the gate finds missing, and the disk does not have: a touch would end the process."""
    needs_cachestat(tmp_path)
    files, path = OpenFiles(residency=Residency(method=Cachestat())), tmp_path / "0.index"
    path.write_bytes(b"".join(OffsetIndex.entry.pack(number, 100 * number) for number in range(1, 11)))
    index = OffsetIndex(files, str(path), 0, capacity_size=80)
    assert index.entries == 10
    index.view()
    os.truncate(path, 0)
    with pytest.raises(IndexCorruptError, match=r"0\.index: the file was truncated: bytes 0 to "):
        index.lookup(5)
    with pytest.raises(IndexCorruptError):
        index.fields(3)
    index.close()
