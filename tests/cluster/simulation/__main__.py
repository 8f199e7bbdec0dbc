"""Simulate clusters from many seeds on all cores; `make simulate` calls this.

    python -m tests.cluster.simulation                  random seeds until interrupted
    python -m tests.cluster.simulation --seconds 60     for a minute
    python -m tests.cluster.simulation 17 18            these seeds
    python -m tests.cluster.simulation --long           ten simulated hours for each seed, with quiet stretches

The trace of a run with a problem is written. Exits with 1 after the first one (`--keep-going`: at the end).
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from multiprocessing import Pool
from pathlib import Path

from tests.cluster.simulation.directed import SCRIPTS
from tests.cluster.simulation.groups.mutations import MEMBERS_OF
from tests.cluster.simulation.groups.population import KINDS, NONE
from tests.cluster.simulation.mutations import RULES, SCRIPT_OF, without
from tests.cluster.simulation.tempo import LONG, SHORT
from tests.cluster.simulation.world import Report, simulate

SHOWN = 5  # problems of a seed
HASH_SEED = "0"  # sets of strings have the same order in every process


def main() -> int:
    """Run seeds, print what they show, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--seconds", type=float, default=None, help="begin no seed after this time")
    parser.add_argument("--first", type=int, default=None, help="the first of consecutive seeds")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep-going", action="store_true", help="go on after a problem")
    parser.add_argument("--without", choices=sorted(RULES), help="a rule to remove: the simulation must notice")
    parser.add_argument("--script", choices=SCRIPTS, help="the faults of every seed; default: random ones")
    parser.add_argument("--long", action="store_true", help="ten simulated hours with longer pauses and waits")
    parser.add_argument("--members", choices=KINDS, help="kind of the group of every seed; default: in turns")
    parser.add_argument("--faults-s", type=float, default=None, help="simulated time during which faults begin")
    parser.add_argument("--traces", type=Path, default=Path("build/simulation"), help="where traces are written")
    parser.add_argument("--all-traces", action="store_true", help="write the traces of sound runs, too")
    chosen = parser.parse_args()
    first = chosen.first if chosen.first is not None else int(time.time()) % 1_000_000 * 1_000
    ends_at = None if chosen.seconds is None else time.monotonic() + chosen.seconds
    seeds = chosen.seeds or _until(ends_at, count(first))
    return _run(seeds, chosen)


def _until(ends_at: float | None, seeds: Iterable[int]) -> Iterator[int]:
    for seed in seeds:
        if ends_at is not None and time.monotonic() > ends_at:
            return
        yield seed


def _run(seeds: Iterable[int], chosen: argparse.Namespace) -> int:
    began, total, failed = time.monotonic(), Total(), []
    with Pool(chosen.jobs, maxtasksperchild=20) as pool:
        for report in _reports(pool, seeds, chosen):
            total.add(report)
            if report.problems or chosen.all_traces:
                _write(report, chosen.traces)
            if report.problems:
                failed.append(report.seed)
                _show(report)
                if not chosen.keep_going:
                    break
            elif chosen.long:
                print(f"seed {report.seed} is sound; in all: {total}", flush=True)
    print(f"{total}, in {time.monotonic() - began:.0f} s")
    if failed:
        print(f"problems with {len(failed)} seeds: {failed}")
    return 1 if failed else 0


@dataclass
class Total:
    """What has happened with all seeds."""

    seeds: int = 0
    simulated_s: float = 0.0
    faults: int = 0
    changes: int = 0
    elections: int = 0
    stored: int = 0
    delivered: int = 0
    processor_s: float = 0.0

    def add(self, report: Report) -> None:
        """Add what has happened with one seed."""
        self.seeds += 1
        for name in ("simulated_s", "faults", "changes", "elections", "stored", "delivered", "processor_s"):
            setattr(self, name, getattr(self, name) + getattr(report, name))

    def __str__(self) -> str:
        """Return one line for users."""
        return (
            f"{self.seeds} seeds, {self.simulated_s / 3600:.2f} simulated hours, {self.faults} faults, "
            f"{self.changes} changes by operators, {self.elections} elections, {self.stored} records stored, "
            f"{self.delivered} deliveries to groups, "
            f"{self.processor_s:.0f} s of processor time"
        )


def _reports(pool: "Pool", seeds: Iterable[int], chosen: argparse.Namespace) -> Iterator[Report]:  # type: ignore[valid-type]
    """Keep all jobs busy, without asking for more seeds than that needs."""
    running = []
    for seed in seeds:
        running.append(pool.apply_async(_simulate, (seed, chosen)))  # type: ignore[attr-defined]
        while len(running) >= chosen.jobs:
            done = [each for each in running if each.ready()]
            running = [each for each in running if each not in done]
            yield from [each.get() for each in done]
            if not done:
                running[0].wait(0.05)
    for each in running:
        yield each.get()


def _simulate(seed: int, chosen: argparse.Namespace) -> Report:
    began, rule = time.process_time(), chosen.without
    script = chosen.script or SCRIPT_OF.get(rule)
    if chosen.members is not None:
        members = chosen.members
    elif rule is not None or script is not None or chosen.long:
        members = MEMBERS_OF.get(rule, NONE)
    else:
        members = KINDS[seed % len(KINDS)]
    tempo = LONG if chosen.long else SHORT
    with without(rule):
        report = simulate(seed, faults_s=chosen.faults_s, script=script, tempo=tempo, members=members)
    gc.collect()  # closes the files of the brokers
    report.processor_s = time.process_time() - began
    return report


def _write(report: Report, traces: Path) -> None:
    traces.mkdir(parents=True, exist_ok=True)
    (traces / f"{report.seed}.trace").write_text("\n".join(report.trace) + "\n")


def _show(report: Report) -> None:
    print(f"seed {report.seed}: {len(report.problems)} problems; again: make simulate ARGS={report.seed}")
    for problem in report.problems[:SHOWN]:
        print(f"    {problem}")
    sys.stdout.flush()


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.cluster.simulation", *sys.argv[1:]])
    sys.exit(main())
