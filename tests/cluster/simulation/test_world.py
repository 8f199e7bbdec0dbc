"""Clusters of the real code survive faults from seeds, and a seed tells the whole run.

`make test` runs an example of each kind, `make interop` the others, and `make simulate` other seeds.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.simulation.__main__ import HASH_SEED
from tests.cluster.simulation.directed import SCRIPTS
from tests.cluster.simulation.groups.population import KINDS

pytestmark = pytest.mark.timeout(300)  # more than a simulation has
ROOT = Path(__file__).parents[3]
SEEDS = range(1, 4)  # one of each kind of group, and without one
MORE_SEEDS = range(4, 7)
ENOUGH = range(1, 31)
NOTICED = {  # rules, the faults in which their removal shows, and a seed of `ENOUGH` that showed it; it is tried first
    "the-high-watermark-waits-for-proposed-isrs": ("join-unseen", 1),
    "proposals-are-pending-until-the-key-moves": ("join-unseen", 1),
    "isr-changes-compare-every-member": ("shrink-late", 13),
    "fetches-of-earlier-lives-are-ignored": ("fetch-late", 3),
    "every-directory-is-the-newest": ("old-directory", 3),
}
NOTICED_BY_MEMBERS = {  # rules of groups, and a seed that showed it
    "acknowledgements-are-stored-before-answers": 1,
    "records-are-locked-for-their-time": 1,
    "deliveries-are-stored": 2,
    "deliveries-are-limited": 1,
    "gaps-in-stored-state-are-delivered": 1,
    "records-are-archived-after-their-dead-letters": 2,
    "partitions-are-given-when-nobody-has-them": 1,
    "members-give-up-partitions-before-others-get-them": 2,
    "commits-are-of-members": 4,
}


BUSY_MACHINE = """
import time
calls, clock = iter(range(10**12)), time.perf_counter
time.perf_counter = lambda: clock() + next(calls) / 50  # between two calls, 20 ms pass
"""

QUICK = {  # examples for `make test`
    "fetches-of-earlier-lives-are-ignored",
    "commits-are-of-members",
    "join-unseen",
    "fetch-late",
    "share",
}


def examples(names: Iterable[str]) -> list[Any]:
    """Return parameters, those that are not quick for `make interop`."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.interop) for name in names]


def simulate(*arguments: str, path: Path = ROOT, timeout_s: float = 240.0) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.cluster.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{path}:{ROOT}", "PYTHONHASHSEED": HASH_SEED},
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.mark.parametrize(
    "seeds", [pytest.param(SEEDS, id="some"), pytest.param(MORE_SEEDS, id="more", marks=pytest.mark.interop)]
)
def test_clusters_survive_the_faults_of_some_seeds(seeds: range) -> None:
    done = simulate(*map(str, seeds))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", examples(NOTICED))
def test_the_removal_of_a_rule_is_noticed(rule: str, tmp_path: Path) -> None:
    script, seed = NOTICED[rule]
    seeds = map(str, [seed, *ENOUGH])
    done = simulate("--without", rule, "--script", script, "--jobs", "1", "--traces", str(tmp_path), *seeds)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "problems with " in done.stdout


@pytest.mark.parametrize("rule", examples(NOTICED_BY_MEMBERS))
def test_members_notice_the_removal_of_a_rule(rule: str, tmp_path: Path) -> None:
    seeds = map(str, [NOTICED_BY_MEMBERS[rule], *ENOUGH])
    done = simulate("--without", rule, "--jobs", "1", "--traces", str(tmp_path), *seeds)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "problems with " in done.stdout


@pytest.mark.parametrize("script", examples(SCRIPTS))
def test_clusters_survive_a_script_of_faults(script: str) -> None:
    done = simulate("--script", script, "--faults-s", "10", "1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("members", examples(KINDS))
def test_a_seed_gives_the_same_run_in_every_process(members: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BUSY_MACHINE)
    traces = []
    for path in (ROOT, tmp_path):
        to = tmp_path / f"traces-{len(traces)}"
        options = ("--faults-s", "5", "--traces", str(to), "--all-traces", "--members", members)
        done = simulate(*options, "5", path=path)
        assert done.returncode == 0, done.stdout + done.stderr
        traces.append((to / "5.trace").read_text())
    assert traces[0].count("\n") > 100
    assert traces[0] == traces[1]
