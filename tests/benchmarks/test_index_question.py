"""The sparse index beside a B+tree, in small: every arrangement finds every record it is asked for."""

from pathlib import Path

from benchmarks.questions.index_question import INTERVALS_KB, measure, table
from tests.broker.log.io.eviction import needs_cachestat

RECORDS = 5_000


def test_every_arrangement_finds_its_records_and_is_in_the_table(tmp_path: Path) -> None:
    needs_cachestat(tmp_path)
    found = {each.name: each for each in measure(tmp_path, RECORDS)}
    assert list(found) == [*(f"sparse, {kb} KB" for kb in INTERVALS_KB), "B+tree", "B+tree, rows"]
    sizes = [found[f"sparse, {kb} KB"].size_mb for kb in INTERVALS_KB]
    assert sizes == sorted(sizes, reverse=True)
    assert found["B+tree"].size_mb > 10 * found["sparse, 4 KB"].size_mb
    assert all(each.cold_pages > 0 for each in found.values())
    assert len(table(list(found.values())).splitlines()) == 2 + len(found)
