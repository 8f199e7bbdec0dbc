"""Workloads: lookups at the end of an index of which only the last three pages are resident, with targets."""

from typing import Any

from benchmarks.harness import Target, Workload
from benchmarks.questions.index_search import Searching

INDEX_WORKLOADS: tuple[Workload[Any], ...] = (
    Workload(
        name="index-search",
        title="the first lookup after each new page of an index of 1 to 2,560 pages",
        figures=("major_mean", "major_max", "read_pages_mean", "lookup_us"),
        contestants=(
            Searching(search="warm", advice="random"),
            Searching(search="plain", advice="random"),
            Searching(search="warm", advice="default"),
            Searching(search="plain", advice="default"),
        ),
        measure=lambda contestant, conditions: contestant.measure(conditions),
        targets=(Target(figure="major_max", at_most=0, every_round=True),),
    ),
)
