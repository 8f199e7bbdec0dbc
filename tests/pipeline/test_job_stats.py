"""What a job reports, and how its commands read times and end."""

import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from warmlog.cli.pipeline.intervals import Interval, duration
from warmlog.cli.pipeline.job import stats_line, until_terminated
from warmlog.pipeline.errors import DataLossError, PipelineError, UnavailableError
from warmlog.pipeline.job_stats import JobStats, Reporter, Stopwatch, added
from warmlog.pipeline.runner import worker_error
from warmlog.pipeline.source.reading import Damage, Tally


def test_what_tasks_have_done_is_added_up() -> None:
    tally = Tally(batches=3, bytes=300, skipped_batches=1, lost_offsets=2)
    tally.damaged.append(Damage(path="a.log", position=7, reason="broken"))
    one = JobStats(rows=10, tasks=1, decode_s=0.25)
    one.add_tally(tally)
    whole = added([one, one, JobStats(write_s=1.5)])
    assert whole == JobStats(
        rows=20,
        tasks=2,
        batches=6,
        bytes=600,
        skipped_batches=2,
        lost_offsets=4,
        damaged=2,
        decode_s=0.5,
        write_s=1.5,
    )


def test_a_stopwatch_counts_what_it_is_told_to_also_where_that_fails() -> None:
    ticks = iter(range(100))
    watch = Stopwatch(clock=lambda: float(next(ticks)))
    assert watch.timed(len)([1, 2]) == 2
    with pytest.raises(ZeroDivisionError):
        watch.timed(lambda: 1 // 0)()
    assert list(watch.steps(iter("ab"))) == ["a", "b"]
    assert watch.seconds == 5  # five calls, the one that finds the end among them


def test_a_report_is_json_and_a_line(tmp_path: Path) -> None:
    times = iter([100.0, 102.0])
    reporter = Reporter("table", clock=lambda: next(times), now=lambda: datetime(2026, 11, 21, 10, tzinfo=UTC))
    reporter.add(JobStats(rows=1000, batches=4, bytes=2048, decode_s=0.12345, skipped_batches=2))
    reporter.add_skipped_bytes(1 << 20)
    reporter.set_details(commits=1)
    report = reporter.report()
    path = tmp_path / "report.json"
    path.write_text("an older one")
    report.write(path)
    told = json.loads(path.read_text())
    assert (told["job"], told["started"], told["elapsed_s"]) == ("table", "2026-11-21T10:00:00Z", 2.0)
    assert (told["rows_per_s"], told["decode_s"], told["skipped_bytes"], told["commits"]) == (500, 0.123, 1 << 20, 1)
    assert stats_line(report) == (
        "2.0 s, 500 records/s; 2.0 KiB in 4 batches, decoding 0.1 s; 1.0 MiB skipped by indexes; "
        "2 batches skipped by their headers"
    )
    assert os.listdir(tmp_path) == ["report.json"]


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10), ("500ms", 0.5), ("1.5 m", 90), ("1h", 3600)])
def test_times_as_people_write_them(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "s", "0s", "-1s", "10 days"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration like 10s"):
        duration(text)


def test_a_missed_interval_is_skipped() -> None:
    now = 0.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    interval = Interval(10, clock=lambda: now, sleep=sleep)
    now = 4
    interval.wait()
    now = 37
    interval.wait()
    interval.wait()
    assert slept == [6, 10]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("warmlog.pipeline.errors.PipelineError: a.log: damaged", PipelineError),
        ("warmlog.pipeline.errors.DataLossError: offsets are gone", DataLossError),
        ("  warmlog.pipeline.errors.UnavailableError: cannot connect", UnavailableError),
        ("warmlog.inspect.errors.SegmentGoneError: gone", PipelineError),
    ],
)
def test_what_a_worker_says_is_raised_as_it_was_there(line: str, error: type[PipelineError]) -> None:
    told = worker_error(f"Traceback (most recent call last):\n  File x\n{line}\n\n\tat org.apache.spark")
    assert type(told) is error
    assert str(told) == line.partition(": ")[2]


def test_other_errors_of_a_worker_stay_what_they_are() -> None:
    assert worker_error("ValueError: warmlog.pipeline.errors.PipelineError") is None


def test_sigterm_ends_an_endless_job_and_interrupts_any_other() -> None:
    with until_terminated(is_endless=True):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it went on")
    with pytest.raises(KeyboardInterrupt), until_terminated(is_endless=False):
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), until_terminated(is_endless=True):
        raise KeyboardInterrupt
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
