"""`python -m benchmarks`: run workloads, print the table, write it into a page and the JSON into a file.

Workloads are selected by name or pattern (`kafka-*`); by default, all that need only warmlog are run.
"""

import argparse
import json
import os
import sys
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.harness import Plan, Workload, run
from benchmarks.load.generator import LoadError
from benchmarks.load.native import SetupError
from benchmarks.report.document import document, machine_sentence, put_figures, table
from benchmarks.servers.contestants import StartError
from benchmarks.servers.nodes import WARMLOG_NODES
from benchmarks.serving.guard import GUARD_WORKLOADS
from benchmarks.serving.workloads import SERVING_WORKLOADS
from benchmarks.workloads.cluster import BOTH as CLUSTERS
from benchmarks.workloads.cluster import CLUSTER_WORKLOADS
from benchmarks.workloads.cost import COST_WORKLOADS
from benchmarks.workloads.index import INDEX_WORKLOADS
from benchmarks.workloads.kafka import KAFKA_WORKLOADS
from benchmarks.workloads.live import LIVE_WORKLOADS, STANDING
from benchmarks.workloads.native import WORKLOADS
from benchmarks.workloads.nodes import NODES_WORKLOADS
from benchmarks.workloads.upkeep import UPKEEP_WORKLOADS
from warmlog.compilation import stale_modules

QUICK_SECONDS = 0.2
EVERY = (
    *WORKLOADS,
    *KAFKA_WORKLOADS,
    *CLUSTER_WORKLOADS,
    *NODES_WORKLOADS,
    *SERVING_WORKLOADS,
    *GUARD_WORKLOADS,
    *LIVE_WORKLOADS,
    *UPKEEP_WORKLOADS,
    *COST_WORKLOADS,
    *INDEX_WORKLOADS,
)
QUICK_SCALE = 0.02  # 20 partitions for 1,000, 5 MiB for 256


def arguments() -> argparse.Namespace:
    """Return the parser of the command line."""
    names = [workload.name for workload in EVERY]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"workloads to run: {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (3)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a measurement, after a warm-up (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write every round to")
    parser.add_argument("--page", type=Path, metavar="FILE", help="Markdown page to write the table into")
    parser.add_argument("--directory", type=Path, default="/var/tmp", help="where to measure the disk (/var/tmp)")
    parser.add_argument("--kept", type=Path, metavar="DIR", help="directory to keep expensive data in, for later runs")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a target is missed")
    parser.add_argument("--quick", action="store_true", help="one round of a fifth of a second, as a smoke test")
    chosen = parser.parse_args()
    unknown = [pattern for pattern in chosen.workloads if not any(fnmatchcase(name, pattern) for name in names)]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(names)}")
    return chosen


def chosen_workloads(patterns: list[str]) -> list[Workload[Any]]:
    """Return the workloads that match a pattern, in the order of the tables."""
    if not patterns:
        return list(WORKLOADS)
    return [workload for workload in EVERY if any(fnmatchcase(workload.name, pattern) for pattern in patterns)]


def plan_of(chosen: argparse.Namespace) -> Plan:
    """Return the length and number of the rounds."""
    if chosen.quick:
        return Plan(
            rounds=1,
            seconds=QUICK_SECONDS,
            warmup_s=QUICK_SECONDS / 4,
            directory=chosen.directory,
            scale=QUICK_SCALE,
            kept=chosen.kept,
        )
    warmup_s = min(1.0, chosen.seconds / 3)
    return Plan(
        rounds=chosen.rounds,
        seconds=chosen.seconds,
        warmup_s=warmup_s,
        directory=chosen.directory,
        kept=chosen.kept,
    )


def main() -> int:
    """Run the workloads; return 1 if a measurement failed, and with --strict also if a target is missed."""
    chosen = arguments()
    stale = stale_modules()
    if stale and not os.environ.get("WARMLOG_PURE"):
        print(f"{len(stale)} modules changed after they were compiled: run `make setup` first", file=sys.stderr)
        return 1
    plan = plan_of(chosen)
    outcomes = []
    try:
        with ExitStack() as standing:
            for server in (*STANDING, WARMLOG_NODES.standing, *(cluster.standing for cluster in CLUSTERS)):
                standing.callback(server.close)
            for workload in chosen_workloads(chosen.workloads):
                outcomes.append(run(workload, plan, progress=lambda line: print(line, file=sys.stderr)))
    except (StartError, SetupError, LoadError) as error:
        print(f"{workload.name}: {error}", file=sys.stderr)
        return 1
    finally:
        if outcomes:
            figures = f"{machine_sentence(plan)}\n\n{table(outcomes)}"
            print(figures)
            if chosen.page:
                chosen.page.write_text(put_figures(chosen.page.read_text(), figures))
            if chosen.json:
                chosen.json.write_text(json.dumps(document(outcomes, plan), indent=1) + "\n")
    missed = [outcome.workload.name for outcome in outcomes if not outcome.meets_targets]
    if chosen.strict and missed:
        print(f"targets missed: {', '.join(missed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
