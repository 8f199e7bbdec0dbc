"""Faults of lookups at an index's tail: the warm search has none, the plain one does, and the table says so."""

import io
from pathlib import Path

import pytest

from benchmarks.questions.index_search import Lookup, every_lookup, look_up, table, write_index, write_rows
from tests.broker.log.io.eviction import needs_cachestat


@pytest.fixture
def index(tmp_path: Path) -> Path:
    needs_cachestat(tmp_path)
    write_index(tmp_path / "index")
    return tmp_path / "index"


@pytest.mark.parametrize("pages", [4, 13, 14, 100, 2560])
def test_the_warm_search_takes_no_major_fault_and_the_plain_one_does(pages: int, index: Path) -> None:
    warm, plain = (look_up(index, pages, search, "random") for search in ("warm", "plain"))
    assert warm.resident_before == plain.resident_before == 3
    assert (warm.major_faults, warm.resident_after) == (0, 3)
    assert plain.major_faults >= 1
    assert plain.resident_after == 3 + plain.major_faults


def test_an_index_of_three_pages_is_in_memory_as_a_whole(index: Path) -> None:
    assert [each.major_faults for each in every_lookup(index, range(1, 4))] == [0] * 12


def test_tables_have_a_row_for_each_size() -> None:
    lookups = [
        Lookup(pages, search, advice, 3, 3 + pages, pages, 1, 12.34)
        for pages in (5, 8)
        for advice in ("random", "default")
        for search in ("warm", "plain")
    ]
    assert table(lookups).splitlines()[2:] == [f"| {n} |{f' {n}; 3 to {3 + n}; 12 us |' * 4}" for n in (5, 8)]
    file = io.StringIO()
    write_rows(file, lookups)
    head, first, second = file.getvalue().splitlines()
    assert head.startswith("pages,resident_before,warm_random_major_faults,warm_random_resident_after,")
    assert first == "5,3" + ",5,8,12" * 4
    assert second == "8,3" + ",8,11,12" * 4
