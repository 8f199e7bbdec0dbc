"""The report about large requests, and the stolen time in it."""

import os
from pathlib import Path

import pytest

from benchmarks.load.stolen_time import stolen_seconds
from benchmarks.questions.large_requests import Held, Outcome, Round


def outcome(*held_ms: float, stolen_s: float = 0.0) -> Outcome:
    rounds = [Round(1.0 + at, 0.01 * at, Held(cpu_ms, cpu_ms, f"broker.task{at}"), stolen_s) for at, cpu_ms in
              enumerate(held_ms)]  # fmt: skip
    return Outcome(rounds, 42)


def test_one_long_step_among_short_ones_is_told_from_steps_that_are_always_long() -> None:
    noisy, long = outcome(2.0, 30.0, 3.0), outcome(28.0, 30.0, 29.0)
    assert (noisy.held_ms, noisy.longest) == (3.0, Held(30.0, 30.0, "broker.task1"))
    assert (long.held_ms, long.longest.cpu_ms) == (29.0, 30.0)


def test_the_stolen_time_is_a_share_of_all_processors_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert outcome(1.0, 1.0, 1.0, stolen_s=2.0).stolen_share == 6.0 / (4 * 6.0)


def test_the_report_has_the_median_the_longest_step_and_its_task() -> None:
    words = " ".join(outcome(2.0, 30.0, 3.0).line("metadata-all").split())
    assert words == "metadata-all 2000.0 ms others 10.0 ms held 3.0 most 30.0 ms stolen 0% 42 bytes task1"


@pytest.mark.parametrize(
    ("content", "ticks"),
    [("cpu  10 20 30 40 50 60 70 80 90 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n", 80), ("cpu  10 20 30 40\n", 0), (None, 0)],
)
def test_the_time_stolen_since_boot_is_read_from_the_kernel(tmp_path: Path, content: str | None, ticks: int) -> None:
    stat = tmp_path / "stat"
    if content is not None:
        stat.write_text(content)
    assert stolen_seconds(stat) == ticks / os.sysconf("SC_CLK_TCK")
