"""Clusters of the real code survive faults from seeds, and a seed tells the whole run. `make simulate` runs more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.simulation.directed import SCRIPTS

ROOT = Path(__file__).parents[3]
SEEDS = [1, 2, 3, 4]
ENOUGH = [str(seed) for seed in range(1, 31)]
NOTICED = {  # rules, and the faults in which their removal shows with at least one seed in six
    "the-high-watermark-waits-for-proposed-isrs": "join-unseen",
    "proposals-are-pending-until-the-key-moves": "join-unseen",
    "isr-changes-compare-every-member": "shrink-late",
    "fetches-of-earlier-lives-are-ignored": "fetch-late",
    "every-directory-is-the-newest": "old-directory",
}


def simulate(*arguments: str, timeout_s: float = 240.0) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.cluster.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def test_clusters_survive_the_faults_of_some_seeds() -> None:
    done = simulate(*map(str, SEEDS))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", NOTICED)
def test_the_removal_of_a_rule_is_noticed(rule: str, tmp_path: Path) -> None:
    done = simulate("--without", rule, "--script", NOTICED[rule], "--traces", str(tmp_path), *ENOUGH)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "problems with " in done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_clusters_survive_a_script_of_faults(script: str) -> None:
    done = simulate("--script", script, "--faults-s", "10", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_gives_the_same_run_in_every_process(tmp_path: Path) -> None:
    traces = []
    for number in range(2):
        path = tmp_path / str(number)
        done = simulate("--faults-s", "5", "--traces", str(path), "--all-traces", "5")
        assert done.returncode == 0, done.stdout + done.stderr
        traces.append((path / "5.trace").read_text())
    assert traces[0].count("\n") > 100
    assert traces[0] == traces[1]
