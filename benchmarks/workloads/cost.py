"""Workloads: the cost of the residency gate and of metrics when everything is resident, with targets."""

from typing import Any

from benchmarks.harness import Target, Workload
from benchmarks.questions.costs import Comparison
from benchmarks.workloads.native import LARGE, SMALL

FIGURES = ("on_us", "off_us", "cost", "cost_low", "cost_high")


def comparing(title: str, comparison: Comparison) -> Workload[Any]:
    """Return a workload of one broker with and without a feature."""
    return Workload(
        name=comparison.name,
        title=title,
        figures=FIGURES,
        contestants=(comparison,),
        measure=lambda contestant, conditions: contestant.measure(conditions),
        targets=(Target(figure="cost", at_most=0.03),),
    )


COST_WORKLOADS: tuple[Workload[Any], ...] = (
    comparing(
        "1 MiB fetches from memory on 4 connections, with the gate and without",
        Comparison(name="cost-of-gate", what="gate", connections=4, batch=LARGE, fetch_bytes=1 << 20),
    ),
    comparing(
        "1 x 100 B produced, one in flight, with all measuring and without",
        Comparison(name="cost-of-measuring-produce", what="measuring", connections=1, batch=SMALL),
    ),
    comparing(
        "1 x 100 B fetched, one in flight, with all measuring and without",
        Comparison(
            name="cost-of-measuring-fetch", what="measuring", connections=1, batch=SMALL, fetch_bytes=len(SMALL)
        ),
    ),
)
