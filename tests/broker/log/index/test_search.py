from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import pytest

from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.search import PAGE_SIZE, WARM_SIZE, Section
from warmlog.broker.log.index.time import TimeIndex
from warmlog.broker.log.io.files import OpenFiles

ENTRY = Struct(">ii")
ENTRIES_PER_PAGE = 512
FULL_13_PAGES = 13 * ENTRIES_PER_PAGE
FULL_14_PAGES = 14 * ENTRIES_PER_PAGE


@pytest.fixture
def index(tmp_path: Path) -> Iterator[OffsetIndex]:
    index = OffsetIndex(OpenFiles(), str(tmp_path / "0.index"), 0, capacity_size=1 << 20)
    index.create()
    yield index
    index.close()


def fill(index: OffsetIndex, count: int) -> int:
    """Let the index hold `count` entries; gives the last one's offset."""
    index.keep_entries(0)
    index.append_encoded(b"".join(ENTRY.pack(10 * (i + 1), 4096 * (i + 1)) for i in range(count)))
    return 10 * count


@pytest.mark.parametrize(
    ("entries", "pages"),
    [
        (FULL_13_PAGES, [0, 6, 9, 11, 12]),
        (FULL_13_PAGES + 1, [0, 6, 9, 11, 12, 13]),
        (FULL_14_PAGES, [0, 7, 10, 12, 13]),
    ],
)
def test_the_plain_search_for_the_last_entry_wanders_over_cold_pages(
    index: OffsetIndex, entries: int, pages: list[int]
) -> None:
    last = fill(index, entries)
    assert index.pages_touched(last, "plain") == pages


@pytest.mark.parametrize(
    ("entries", "pages"),
    [(FULL_13_PAGES, [10, 11, 12]), (FULL_13_PAGES + 1, [11, 12, 13]), (FULL_14_PAGES, [11, 12, 13])],
)
def test_the_warm_search_for_the_last_entry_touches_the_last_three_pages(
    index: OffsetIndex, entries: int, pages: list[int]
) -> None:
    last = fill(index, entries)
    assert index.pages_touched(last, "warm") == pages


def test_no_warm_lookup_leaves_the_last_three_pages_while_the_index_grows_by_a_page(index: OffsetIndex) -> None:
    for entries in range(FULL_13_PAGES, FULL_14_PAGES + 1, 37):
        last = fill(index, entries)
        last_page = (entries * 8 - 1) // PAGE_SIZE
        assert set(index.pages_touched(last, "warm")) <= {last_page - 2, last_page - 1, last_page}


def test_every_lookup_in_the_upper_half_of_the_warm_section_touches_all_of_its_pages(index: OffsetIndex) -> None:
    last = fill(index, FULL_14_PAGES)
    first_warm = FULL_14_PAGES - 1 - WARM_SIZE // 8
    warm_pages = {(first_warm + i) * 8 // PAGE_SIZE for i in range(WARM_SIZE // 8 + 1)}
    upper_half = 10 * (first_warm + 1 + WARM_SIZE // 16)
    for offset in range(upper_half + 1, last + 1, 173):
        assert index.lookup(offset).section is Section.WARM
        assert set(index.pages_touched(offset)) == warm_pages


def test_the_first_entry_of_the_warm_section_itself_is_cold(index: OffsetIndex) -> None:
    fill(index, FULL_14_PAGES)
    first_warm = 10 * (FULL_14_PAGES - WARM_SIZE // 8)
    assert index.lookup(first_warm).section is Section.COLD
    assert index.lookup(first_warm).offset == first_warm
    assert index.lookup(first_warm + 1).section is Section.WARM


def test_a_cold_lookup_begins_at_the_warm_sections_first_entry_and_entry_zero(index: OffsetIndex) -> None:
    fill(index, FULL_14_PAGES)
    assert index.pages_touched(10)[:2] == [11, 0]
    assert index.lookup(9).section is Section.COLD


def test_both_searches_find_the_same_entry(index: OffsetIndex) -> None:
    last = fill(index, 3000)
    for offset in range(0, last + 20, 7):
        assert index.lookup(offset, "plain")[:2] == index.lookup(offset, "warm")[:2]


def test_a_small_index_is_warm_but_for_its_first_entry(index: OffsetIndex) -> None:
    fill(index, 3)
    assert [index.lookup(offset).section for offset in (5, 10, 11, 30)] == ["cold", "cold", "warm", "warm"]


def test_an_empty_index_has_no_section_and_touches_no_page(index: OffsetIndex) -> None:
    assert index.lookup(5).section is None
    assert index.pages_touched(5) == []


def test_the_warm_section_of_a_time_index_has_682_entries(tmp_path: Path) -> None:
    index = TimeIndex(OpenFiles(), str(tmp_path / "0.timeindex"), 0, capacity_size=1 << 20)
    index.create()
    index.append_encoded(b"".join(TimeIndex.entry.pack(i + 1, i) for i in range(2000)))
    first_warm = 2000 - 1 - 682
    assert index.lookup(first_warm + 1).section is Section.COLD
    assert index.lookup(first_warm + 2).section is Section.WARM


def test_a_time_that_crosses_the_edge_of_a_page_touches_both(tmp_path: Path) -> None:
    """Entry 341 of 12 bytes begins 4 bytes before the end of page 0: its time ends on page 1."""
    index = TimeIndex(OpenFiles(), str(tmp_path / "0.timeindex"), 0, capacity_size=1 << 20)
    index.create()
    index.append_encoded(b"".join(TimeIndex.entry.pack(i + 1, i) for i in range(683)))
    assert index.pages_touched(342, "plain") == [0, 1]
    index.keep_entries(342)
    assert index.pages_touched(342) == [0, 1]
