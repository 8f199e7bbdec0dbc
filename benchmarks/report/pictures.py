"""The pictures of `docs/page-cache.md` and `docs/sparse-index.md`, drawn from the data files beside them.

    python -m benchmarks.report.pictures       (or `make figures`)

| picture           | from                                                                               |
|-------------------|------------------------------------------------------------------------------------|
| pages-touched.svg | the search itself                                                                  |
| index-faults.svg  | index-search.csv: `python -m benchmarks.questions.index_search FILE`               |
| live-reader.svg   | live-reader.json: `python -m benchmarks 'live-*' --json FILE`                      |
| sparse-index.svg  | sparse-index.json: `python -m benchmarks.questions.index_question FILE`            |
"""

import csv
import json
import tempfile
from collections.abc import Iterable, Sequence
from mmap import PROT_READ, mmap
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.load.generator import ROOT
from benchmarks.questions.index_search import PER_PAGE, RECORDS_AN_ENTRY, write_index
from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.search import touched_pages

PLACE = ROOT / "docs" / "figures"
WARM, PLAIN, QUIET = "#1f77b4", "#d62728", "#888888"
MOST_PAGES = 40
ALL_UP_TO, STEP = 64, 8  # sizes of an index; more points would overlap
# The same figures give the same bytes, with text as text.
LOOK = {
    "svg.hashsalt": "warmlog",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def pages_touched() -> Any:
    """Draw the pages touched by the lookup of the last entry, as the index grows."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
    with tempfile.TemporaryDirectory() as directory:
        write_index(Path(directory) / "index")
        with (Path(directory) / "index").open("rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as view:
            for panel, search, colour in zip(panels, ("plain", "warm"), (PLAIN, WARM), strict=True):
                for pages in range(1, MOST_PAGES + 1):
                    entries = (pages - 1) * PER_PAGE + 1
                    target = RECORDS_AN_ENTRY * (entries - 1) + 9
                    touched = touched_pages(OffsetIndex.key_column, view, entries, target, search)
                    panel.plot([pages] * len(touched), touched, "s", ms=3, color=colour)
                panel.set_title(f"{search} search")
                panel.set_xlabel("pages of the index")
    panels[0].set_ylabel("pages that the lookup touches")
    return figure


def index_faults(rows: Sequence[dict[str, str]]) -> Any:
    """Draw the major faults of that lookup, over the size of the index."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    rows = [row for row in rows if int(row["pages"]) <= ALL_UP_TO or not int(row["pages"]) % STEP]
    pages = [int(row["pages"]) for row in rows]
    for panel, advice in zip(panels, ("random", "default"), strict=True):
        for search, colour in (("plain", PLAIN), ("warm", WARM)):
            faults = [int(row[f"{search}_{advice}_major_faults"]) for row in rows]
            panel.plot(pages, faults, ".", ms=3, color=colour, label=f"{search} search")
        panel.set_xscale("log", base=2)
        panel.set_title("MADV_RANDOM" if advice == "random" else "the kernel's default")
        panel.set_xlabel("pages of the index")
    panels[0].set_ylabel("major faults of one lookup")
    panels[0].legend(frameon=False)
    return figure


def live_reader(workloads: Sequence[dict[str, Any]]) -> Any:
    """Draw p50 and p99 before and during the replay, for every round of every contestant."""
    figure, panels = plt.subplots(
        1, len(workloads), figsize=(2.6 * len(workloads), 3.8), sharey=True, layout="constrained", squeeze=False
    )
    for panel, workload in zip(panels[0], workloads, strict=True):
        labels = []
        for name, contestant in workload["contestants"].items():
            for share in ("p50", "p99"):
                at = len(labels)
                labels.append(f"{name}, {share}")
                _dots(panel, at - 0.15, (each[f"quiet_{share}_ms"] for each in contestant["rounds"]), QUIET)
                _dots(panel, at + 0.15, (each[f"during_{share}_ms"] for each in contestant["rounds"]), PLAIN)
        panel.set_yscale("log")
        panel.set_xticks(range(len(labels)), labels, fontsize=7, rotation=60)
        panel.set_title(workload["name"])
    panels[0][0].set_ylabel("ms (grey: before, red: meanwhile)")
    return figure


def sparse_index(arrangements: Sequence[dict[str, Any]]) -> Any:
    """Draw maintenance, space, hot lookups and cold pages for each interval, with the trees as horizontal lines."""
    figure, panels = plt.subplots(1, 4, figsize=(10, 3), layout="constrained")
    sparse = [each for each in arrangements if each["name"].startswith("sparse")]
    intervals = [int(each["name"].split()[1]) for each in sparse]
    shown = {
        "maintain_s": "CPU s per million records",
        "size_mb": "MB per million records",
        "hot_us": "us per hot lookup",
        "cold_pages": "pages read by a cold lookup",
    }
    for panel, (figure_name, title) in zip(panels, shown.items(), strict=True):
        panel.plot(intervals, [each[figure_name] for each in sparse], "o-", ms=4, color=WARM, label="sparse")
        for tree, style in (("B+tree", "--"), ("B+tree, rows", ":")):
            (found,) = (each[figure_name] for each in arrangements if each["name"] == tree)
            panel.axhline(found, color=PLAIN, linestyle=style, label=tree)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("interval, KB")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def _dots(panel: Any, at: float, values: Iterable[float], colour: str) -> None:
    found = list(values)
    panel.plot([at] * len(found), found, "o", ms=4, color=colour, alpha=0.7)


def main() -> None:
    """Draw all pictures."""
    mpl.use("svg")
    mpl.rcParams.update(LOOK)
    with (PLACE / "index-search.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    workloads = json.loads((PLACE / "live-reader.json").read_text())["workloads"]
    pictures = {
        "pages-touched": pages_touched(),
        "index-faults": index_faults(rows),
        "live-reader": live_reader(workloads),
        "sparse-index": sparse_index(json.loads((PLACE / "sparse-index.json").read_text())),
    }
    for name, figure in pictures.items():
        figure.savefig(PLACE / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
