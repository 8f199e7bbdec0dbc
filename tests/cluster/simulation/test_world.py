"""Clusters of the real code survive faults from seeds, and a seed tells the whole run. `make simulate` runs more."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SEEDS = [1, 2, 3, 4]


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


def test_a_seed_gives_the_same_run_in_every_process(tmp_path: Path) -> None:
    traces = []
    for number in range(2):
        path = tmp_path / str(number)
        done = simulate("--faults-s", "5", "--traces", str(path), "--all-traces", "5")
        assert done.returncode == 0, done.stdout + done.stderr
        traces.append((path / "5.trace").read_text())
    assert traces[0].count("\n") > 100
    assert traces[0] == traces[1]
