"""The pictures of the page cache's page: drawn from the figures that are kept, and all of them there."""

import csv
import json
import re

import pytest
from matplotlib import pyplot as plt

from benchmarks.load.generator import ROOT
from benchmarks.report.pictures import PLACE, index_faults, live_reader, pages_touched, sparse_index


@pytest.mark.parametrize(("page", "pictures"), [("page-cache.md", 3), ("sparse-index.md", 1)])
def test_every_picture_that_a_page_shows_is_there(page: str, pictures: int) -> None:
    shown = re.findall(r"\]\((figures/[^)]+\.svg)\)", (ROOT / "docs" / page).read_text())
    assert len(shown) == pictures
    assert all((ROOT / "docs" / path).exists() for path in shown)


def test_pictures_are_drawn_from_the_figures_that_are_kept() -> None:
    with (PLACE / "index-search.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["pages"] for row in rows] == [str(pages) for pages in range(1, 2561)]
    workloads = json.loads((PLACE / "live-reader.json").read_text())["workloads"]
    arrangements = json.loads((PLACE / "sparse-index.json").read_text())
    for figure, panels in (
        (index_faults(rows), 2),
        (live_reader(workloads), len(workloads)),
        (pages_touched(), 2),
        (sparse_index(arrangements), 4),
    ):
        assert len(figure.axes) == panels
        assert all(panel.lines for panel in figure.axes)
        plt.close(figure)
