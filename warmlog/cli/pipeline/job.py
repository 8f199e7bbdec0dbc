"""Common parts of the `warmlog pipeline` commands: options, choice of engine, progress, errors and reports."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import click

from warmlog.cli.connection.login import (
    DELEGATION_TOKEN,
    MECHANISM,
    PASSWORD,
    PASSWORD_FILE,
    TOKEN,
    TOKEN_FILE,
    TOKEN_URL,
    USER,
)
from warmlog.cli.connection.tls import CA, CERTIFICATE, SYSTEM
from warmlog.cli.failure import CannotStart, Failure
from warmlog.cli.options import assignment, bootstrap
from warmlog.cli.output import binary_size, print_line
from warmlog.cli.progress import ERASE_LINE

if TYPE_CHECKING:
    from warmlog.pipeline.job_stats import Report, Reporter
    from warmlog.pipeline.runner import Engine, Runner
    from warmlog.pipeline.source.options import ReadOptions

Command = TypeVar("Command", bound=Callable[..., Any])
Assignments = tuple[tuple[str, str], ...]

DEFAULT_PATH = "data"
TOPIC_OPTION = click.option("--topic", metavar="TOPICS", required=True, help="A topic, or several separated by commas.")
_FILES = frozenset({"tlsCa", "tlsCertificate", "passwordFile", "tokenFile"})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of every job. `assignments`: options of the data source by name."""

    topic: str
    path: str | None
    assignments: Assignments
    engine: "Engine"
    master: str | None
    report_file: Path | None

    def __post_init__(self) -> None:
        if self.engine == "local" and self.master is not None:
            raise click.UsageError("--master is for --engine spark.")

    def source_options(self, **given: str | None) -> dict[str, str]:
        """Return the options of the data source. `given`: defaults of options that are not assigned; None omits one."""
        path = self.path
        if path is None and given.get("bootstrap") is None:
            path = DEFAULT_PATH
        assigned = {name.lower() for name, _ in self.assignments}
        topic = None if assigned & {"assign", "subscribe", "subscribepattern"} else self.topic
        login = login_options() if given.get("bootstrap") is not None or "bootstrap" in assigned else {}
        named = {"path": None if path is None else _absolute(path), "topic": topic, **login, **given}
        kept = {name: text for name, text in named.items() if text is not None and name.lower() not in assigned}
        return {**kept, **dict(self.assignments)}

    def read_options(self, **given: str | None) -> "ReadOptions":
        """Return the options of the data source, parsed. Raises PipelineError."""
        from warmlog.pipeline.source.options import read_options

        return read_options(self.source_options(**given))


def login_options() -> dict[str, str]:
    """Return the TLS and login options of `warmlog` as options of the data source.

    Raises CannotStart for a login that tasks in other processes could not repeat.
    """
    environ = os.environ
    for name in (TOKEN, TOKEN_URL):
        if environ.get(name):
            raise CannotStart(f"{name}: jobs of the pipeline take a token from --token-file only")
    names = {
        "tlsCa": CA, "tlsCertificate": CERTIFICATE, "user": USER, "mechanism": MECHANISM, "tokenFile": TOKEN_FILE,
        "delegationToken": DELEGATION_TOKEN,
    }  # fmt: skip
    options = {name: environ[variable] for name, variable in names.items() if environ.get(variable)}
    if environ.get(PASSWORD_FILE):
        options["passwordFile"] = environ[PASSWORD_FILE]
    elif environ.get(PASSWORD) and USER in environ:
        options["password"] = environ[PASSWORD]
    for name in _FILES & options.keys():
        if options[name] != SYSTEM:
            options[name] = str(Path(options[name]).absolute())
    return options


def _absolute(path: str) -> str:
    """Make one or several paths (separated by commas) absolute, since Spark's workers may have another directory."""
    parts = [path] if Path(path).exists() else path.split(",")
    return ",".join(str(Path(part.strip()).absolute()) for part in parts)


def job_options(command: Command, *, topic: Callable[[Command], Command] = TOPIC_OPTION) -> Command:
    """Add the options of every job, the fields of JobOptions. `topic`: the option or argument for the topic."""
    for option in reversed(
        (
            topic,
            click.option(
                "--path",
                metavar="DIR",
                help=f"The data directory, or several separated by commas.  [default: {DEFAULT_PATH}]",
            ),
            click.option(
                "-o",
                "--option",
                "assignments",
                metavar="NAME=VALUE",
                type=assignment,
                multiple=True,
                help="Option of the data source, such as startingOffsets, minPartitions, onCorrupt.",
            ),
            click.option(
                "--engine",
                type=click.Choice(["auto", "local", "spark"]),
                default="auto",
                show_default=True,
                help="local: in this process; spark: as Spark tasks; auto: local up to 2 GiB.",
            ),
            click.option("--master", metavar="URL", help="Spark's master; local[*] unless spark-submit names one."),
            click.option(
                "--report",
                "report_file",
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="Write a report as JSON.",
            ),
        )
    ):
        command = option(command)
    return command


def bootstrap_option(command: Command) -> Command:
    """Add `--bootstrap H:P`."""
    return click.option(
        "--bootstrap",
        metavar="H:P",
        type=bootstrap,
        help="Address of a broker's native listener, to read from unless --path is given.",
    )(command)


@contextmanager
def running(name: str, job: JobOptions, size: Callable[[], int], reporter: "Reporter") -> Iterator["Runner"]:
    """Yield a runner for the job's tasks, with progress on a terminal. Raises PipelineError.

    `size`: returns the number of bytes that the job reads; called only if needed.
    """
    from warmlog.pipeline.runner import LocalRunner, SparkRunner, choose_engine
    from warmlog.pipeline.session import SUBMITTED, spark_session

    for_spark = job.master is not None or SUBMITTED in os.environ
    reads = size() if job.engine == "auto" and not for_spark else 0
    engine, note = choose_engine(job.engine, reads, for_spark=for_spark)
    if note is not None:
        click.echo(f"warmlog: {note}", err=True)
    reporter.set_details(engine=engine)
    with TaskProgress(name) as progress:
        watch = progress.show if progress.enabled else None
        if engine == "local":
            yield LocalRunner(watch)
            return
        with spark_session(name, job.master) as session:
            yield SparkRunner(session, watch)


class TaskProgress:
    """Shows the number of finished tasks in a terminal line; a context manager that erases the line."""

    def __init__(self, job: str) -> None:
        self._job = job
        self.enabled = sys.stderr.isatty()

    def show(self, done: int, count: int) -> None:
        """Show that `done` of `count` tasks are finished."""
        sys.stderr.write(f"{ERASE_LINE}{self._job}: {done:,} of {count:,} tasks ({100 * done // max(count, 1)} %)")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.enabled:
            sys.stderr.write(ERASE_LINE)
            sys.stderr.flush()


@contextmanager
def pipeline_errors(*libraries: str, extra: str = "spark") -> Iterator[None]:
    """Convert a job's errors to a one-line Failure. `libraries`: the optional imports of its modules, from `extra`."""
    from warmlog.inspect.errors import InspectError
    from warmlog.pipeline.errors import PipelineError
    from warmlog.pipeline.session import check_libraries

    try:
        if libraries:
            check_libraries(*libraries, extra=extra)
        yield
    except (PipelineError, InspectError, OSError) as error:
        raise Failure(str(error)) from error


@contextmanager
def until_terminated(*, is_endless: bool) -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C. For an endless job it is the regular end and does not raise.

    Uncommitted work is discarded. Raises KeyboardInterrupt.
    """
    terminated = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if not (terminated and is_endless):
            raise
    finally:
        signal.signal(signal.SIGTERM, before)


class CommittingJob(Protocol):
    """A job that commits batches."""

    reporter: "Reporter"
    commits: int


@contextmanager
def reported(job: CommittingJob, report_file: Path | None, *, as_json: bool) -> Iterator[None]:
    """Print the report when the job ends, even if it fails or is interrupted."""
    try:
        yield
        if not job.commits and not as_json:
            print_line("nothing new")
    finally:
        show_stats(job.reporter.report(), report_file, quiet=as_json or not job.commits)


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Print the job's warnings as lines on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("warmlog: %(message)s"))
    logger = logging.getLogger("warmlog.pipeline")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def show_stats(report: "Report", report_file: Path | None, *, quiet: bool = False) -> None:
    """Write the report to a file if a path is given, and print it as a line. Raises Failure."""
    if report_file is not None:
        try:
            report.write(report_file)
        except OSError as error:
            raise Failure(f"{report_file}: {error.strerror}") from error
    if not quiet:
        print_line(stats_line(report))


def stats_line(report: "Report") -> str:
    """Format as `4.1 s, 980,000 records/s; 400.1 MiB in 40,000 batches, decoding 0.7 s; 1.0 GiB skipped by indexes`."""
    done = report.stats
    parts = [f"{report.elapsed_s:.1f} s, {done.rows / max(report.elapsed_s, 1e-9):,.0f} records/s"]
    times = ((done.read_s, "reading"), (done.decode_s, "decoding"), (done.write_s, "writing"))
    work = [f"{what} {seconds:.1f} s" for seconds, what in times if seconds]
    if done.batches:
        work.insert(0, f"{binary_size(done.bytes)} in {done.batches:,} batches")
    if work:
        parts.append(", ".join(work))
    if done.skipped_bytes:
        parts.append(f"{binary_size(done.skipped_bytes)} skipped by indexes")
    if done.skipped_batches:
        parts.append(f"{done.skipped_batches:,} batches skipped by their headers")
    return "; ".join(parts)
