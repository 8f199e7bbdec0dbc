"""What the commands of `warmlog pipeline` have in common.

Owns: the options that every job takes, how a job is started, and how its report is shown. Must not know: what a job
does (`warmlog.pipeline`).
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import assignment, bootstrap
from warmlog.cli.output import binary_size, print_line
from warmlog.cli.progress import ERASE_LINE

if TYPE_CHECKING:
    from warmlog.pipeline.job_stats import Report
    from warmlog.pipeline.runner import SparkRunner
    from warmlog.pipeline.source.options import ReadOptions

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_PATH = "data"


def master_option(command: Command) -> Command:
    """`--master URL`."""
    return click.option(
        "--master", metavar="URL", help="Spark's master; local[*] by default, or what spark-submit was told."
    )(command)


def report_option(command: Command) -> Command:
    """`--report FILE`."""
    return click.option(
        "--report", "report_file", metavar="FILE", type=click.Path(path_type=Path), help="Write a report as JSON."
    )(command)


def source_options(command: Command) -> Command:
    """`-o NAME=VALUE`, `--topic`, `--path`: what is read of a directory."""
    for option in (
        click.option(
            "-o",
            "--option",
            "assignments",
            metavar="NAME=VALUE",
            type=assignment,
            multiple=True,
            help="An option of the data source, such as startingOffsets, minPartitions, onCorrupt.",
        ),
        click.option("--topic", metavar="TOPICS", required=True, help="A topic, or several separated by commas."),
        click.option("--path", metavar="DIR", help=f"The data directory.  [default: {DEFAULT_PATH}]"),
    ):
        command = option(command)
    return command


def reading_options(command: Command) -> Command:
    """What every job takes that reads a directory."""
    return source_options(report_option(master_option(command)))


def bootstrap_option(command: Command) -> Command:
    """`--bootstrap H:P`."""
    return click.option(
        "--bootstrap",
        metavar="H:P",
        type=bootstrap,
        help="A broker's native listener: what the records come from, unless --path is given as well.",
    )(command)


def job_options(
    path: str | None, topic: str, assignments: tuple[tuple[str, str], ...], **given: str | None
) -> dict[str, str]:
    """The data source's options by name; `given`: further ones, None where not."""
    if path is None and given.get("bootstrap") is None:
        path = DEFAULT_PATH
    named = {"path": None if path is None else str(Path(path).absolute()), "topic": topic, **given}
    return {**{name: text for name, text in named.items() if text is not None}, **dict(assignments)}


def read_job_options(
    path: str | None, topic: str, assignments: tuple[tuple[str, str], ...], **given: str | None
) -> "ReadOptions":
    """The same, checked. Raises PipelineError."""
    from warmlog.pipeline.source.options import read_options

    return read_options(job_options(path, topic, assignments, **given))


@contextmanager
def running(job: str, master: str | None) -> Iterator["SparkRunner"]:
    """What runs a function over splits on Spark, its progress shown on a terminal. Raises PipelineError."""
    from warmlog.pipeline.runner import SparkRunner
    from warmlog.pipeline.session import spark_session

    with TaskProgress(job) as progress, spark_session(job, master) as session:
        yield SparkRunner(session, progress.show if progress.enabled else None)


class TaskProgress:
    """The line that tells how many tasks are done, where a person sees it. A context manager, which erases it."""

    def __init__(self, job: str) -> None:
        self._job = job
        self.enabled = sys.stderr.isatty()

    def show(self, done: int, count: int) -> None:
        """So many tasks of so many are done."""
        sys.stderr.write(f"{ERASE_LINE}{self._job}: {done:,} of {count:,} tasks ({100 * done // max(count, 1)} %)")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.enabled:
            sys.stderr.write(ERASE_LINE)
            sys.stderr.flush()


@contextmanager
def pipeline_errors() -> Iterator[None]:
    """Around a job: what it says is wrong becomes one line. Raises Failure."""
    from warmlog.inspect.errors import InspectError
    from warmlog.pipeline.errors import PipelineError

    try:
        yield
    except (PipelineError, InspectError, OSError) as error:
        raise Failure(str(error)) from error


@contextmanager
def until_terminated(*, is_endless: bool) -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C, and the regular end of a job that has no other: then it does not raise.

    What was not committed is given up. Raises KeyboardInterrupt.
    """
    told = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal told
        told = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if not (told and is_endless):
            raise
    finally:
        signal.signal(signal.SIGTERM, before)


def show_stats(report: "Report", report_file: Path | None, *, quiet: bool = False) -> None:
    """Write the report where one is wanted, and print it in a line. Raises Failure."""
    if report_file is not None:
        try:
            report.write(report_file)
        except OSError as error:
            raise Failure(f"{report_file}: {error.strerror}") from error
    if not quiet:
        print_line(stats_line(report))


def stats_line(report: "Report") -> str:
    """`4.1 s, 980,000 records/s; 400.1 MiB in 40,000 batches, decoding 0.7 s; 1.0 GiB left out by the indexes`."""
    done = report.stats
    parts = [f"{report.elapsed_s:.1f} s, {done.rows / max(report.elapsed_s, 1e-9):,.0f} records/s"]
    times = ((done.read_s, "reading"), (done.decode_s, "decoding"), (done.write_s, "writing"))
    work = [f"{what} {seconds:.1f} s" for seconds, what in times if seconds]
    if done.batches:
        work.insert(0, f"{binary_size(done.bytes)} in {done.batches:,} batches")
    if work:
        parts.append(", ".join(work))
    if done.skipped_bytes:
        parts.append(f"{binary_size(done.skipped_bytes)} left out by the indexes")
    if done.skipped_batches:
        parts.append(f"{done.skipped_batches:,} batches by their headers")
    return "; ".join(parts)
