"""The check of `make bench-guard`: the cost of serving, compared with bare system calls in the same run.

All figures are CPU time of the server process, not rates, so other processes have little influence. The remaining
influence affects both sides of a ratio and cancels out.

| workload     | the broker                                   | compared with                           |
|--------------|----------------------------------------------|-----------------------------------------|
| guard-alone  | small Produce requests of one connection     | an echo of the same bytes, by turns     |
| guard-turns  | small Produce requests of 200 connections    | the same                                |
| guard-wide   | 20 partitions in each request, 8 connections | the same                                |
| guard-reads  | 20 partitions in each fetch, 8 connections   | an echo of the requests, by turns       |
| guard-append | 1 MB batches of 4 connections                | a loop that appends them to a file      |
| guard-fetch  | 1 MiB fetches of 4 connections from memory   | a loop that sends a file                |

`docs/performance.md` explains the bounds.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.harness import Conditions, Figures, Target, Workload
from benchmarks.servers.contestants import ECHO_BY_TURNS, AppendLoop, SendfileLoop
from benchmarks.servers.kafka import WARMLOG_KAFKA
from benchmarks.serving.loads import Crowd, WideFetches
from benchmarks.workloads.kafka import FETCH_FOUR, PUSHING

FETCHED_SCALE = 0.25  # 64 MiB are written for each measurement


def guarding(
    name: str, title: str, measure: Callable[[Any, Conditions], Figures], limit: Any, target: Target
) -> Workload[Any]:
    """Return a workload whose cost is compared with a reference's."""
    return Workload(
        name=f"guard-{name}",
        title=title,
        figures=(target.figure,),
        contestants=(WARMLOG_KAFKA, limit),
        measure=measure,
        targets=(target,),
    )


def at_most(bound: float, figure: str, limit: Any) -> Target:
    """Return a target: at most `bound` times the reference's cost."""
    return Target(figure=figure, against=limit.name, at_most=bound)


def crowded(name: str, title: str, crowd: Crowd, bound: float) -> Workload[Any]:
    """Return a workload of small requests, compared with an echo of the same bytes."""
    return guarding(name, title, crowd.measure, ECHO_BY_TURNS, at_most(bound, "cpu_us_record", ECHO_BY_TURNS))


GUARD_WORKLOADS: tuple[Workload[Any], ...] = (
    crowded("alone", "small requests of one connection", Crowd(connections=1, version=11), 12),
    crowded("turns", "small requests of 200 connections", Crowd(connections=200, version=11), 12),
    crowded("wide", "20 partitions in each request", Crowd(connections=8, version=7, partitions=20), 95),
    guarding(
        "reads",
        "fetches of 20 partitions",
        WideFetches(connections=8, partitions=20).measure,
        ECHO_BY_TURNS,
        at_most(90, "cpu_us_record", ECHO_BY_TURNS),
    ),
    guarding(
        "append",
        "1 MB batches",
        lambda contestant, conditions: contestant.produce(PUSHING, conditions),
        AppendLoop(),
        at_most(9, "cpu_us_mb", AppendLoop()),
    ),
    guarding(
        "fetch",
        "1 MiB fetches",
        lambda contestant, conditions: contestant.fetch(
            FETCH_FOUR, replace(conditions, scale=FETCHED_SCALE * conditions.scale)
        ),
        SendfileLoop(),
        at_most(14, "cpu_us_mb", SendfileLoop()),
    ),
)
