"""One quick run, as a person would start it."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.load.generator import ROOT


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
    )


def test_a_quick_run_measures_warmlog_and_what_it_is_compared_with(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = benchmarks("produce-1x16", "--quick", "--json", str(file), "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "small batches, 1 connection, 16 in flight" in done.stdout
    (workload,) = json.loads(file.read_text())["workloads"]
    assert workload["contestants"]["warmlog"]["median"]["requests_per_s"] > 0
    assert workload["contestants"]["trio echo"]["ratios"]["requests_per_s"] > 0
    assert list(tmp_path.iterdir()) == [file]


def test_an_unknown_workload_is_named_with_those_there_are() -> None:
    done = benchmarks("produce-1x17")
    assert done.returncode == 2
    assert "unknown: produce-1x17; known are produce-1x16, " in done.stderr
