"""`warmlog pipeline`: jobs on Spark, over the partition directories.

Owns: the jobs' options on the command line and how results are shown. Must not know: how a job is done
(`warmlog.pipeline.jobs`).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import assignment, json_option
from warmlog.cli.output import Column, binary_size, counted, print_json, print_line, print_table

if TYPE_CHECKING:
    from warmlog.pipeline.archive import Commit
    from warmlog.pipeline.count import Counted
    from warmlog.pipeline.options import ReadOptions

Command = TypeVar("Command", bound=Callable[..., Any])

COUNT_COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    Column("records", number=True),
    Column("batches", number=True),
    Column("bytes", number=True),
    Column("first offset", number=True),
    Column("end offset", number=True),
)


def reading_options(command: Command) -> Command:
    """What every job takes: the directory, topics, further options of the data source, and where Spark runs."""
    for option in (
        click.option(
            "--master", metavar="URL", help="Spark's master; local[*] by default, or what spark-submit was told."
        ),
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
        click.option("--path", default="data", show_default=True, metavar="DIR", help="The data directory."),
    ):
        command = option(command)
    return command


@click.command()
@reading_options
@json_option("One object a partition.")
def count(path: str, topic: str, assignments: tuple[tuple[str, str], ...], master: str | None, as_json: bool) -> None:
    """Count the records of topics by batch headers alone."""
    from warmlog.pipeline.jobs import count_records

    with pipeline_errors():
        options = read_job_options(path, topic, assignments)
        with runner("count", master) as run:
            found = count_records(run, options)
    if as_json:
        print_json(*found)
        return
    print_table(COUNT_COLUMNS, [_count_row(one) for one in found])
    print_line(f"{counted(sum(one.records for one in found), 'record')}")


def _count_row(one: "Counted") -> tuple[object, ...]:
    numbers = (f"{one.records:,}", f"{one.batches:,}", binary_size(one.bytes), one.first_offset, one.end_offset)
    return (one.topic, one.partition, *numbers)


@click.command()
@reading_options
@click.option("--to", "target", required=True, metavar="DIR", help="The archive's directory; made where it is not.")
@click.option(
    "--partition-by",
    type=click.Choice(["none", "day", "hour"]),
    default="none",
    show_default=True,
    help="A directory for each day or hour of the records' times, in UTC.",
)
@click.option(
    "--compression", type=click.Choice(["zstd", "snappy", "lz4", "gzip", "none"]), default="zstd", show_default=True
)
@json_option("The commit as one object.")
def archive(
    path: str,
    topic: str,
    assignments: tuple[tuple[str, str], ...],
    master: str | None,
    target: str,
    partition_by: Any,
    compression: str,
    as_json: bool,
) -> None:
    """Write what is new in topics into Parquet files, each record once.

    A run goes on where the last one has committed, however that ended. Read the archive with
    `spark.read.parquet(DIR)`, or with anything else that reads Parquet.
    """
    from warmlog.pipeline.archive import Archive, ArchiveRules
    from warmlog.pipeline.jobs import archive_new

    started = time.monotonic()
    with pipeline_errors():
        options = read_job_options(path, topic, assignments)
        if partition_by != "none" and "timestamp" not in options.columns:
            raise click.UsageError(f"--partition-by {partition_by} needs the column timestamp.")
        directory = str(Path(target).absolute())
        rules = ArchiveRules(
            directory=directory, columns=options.columns, partition_by=partition_by, compression=compression
        )
        store = Archive(Path(directory))
        with store.locked(), runner("archive", master) as run:
            commit = archive_new(run, options, store, rules)
    show_commit(commit, time.monotonic() - started, as_json=as_json)


def show_commit(commit: "Commit | None", elapsed_s: float, *, as_json: bool) -> None:
    """What a run has archived."""
    if as_json:
        print_json(commit)
        return
    if commit is None:
        print_line("nothing new")
        return
    print_line(f"{counted(commit.rows, 'record')} in {counted(len(commit.files), 'file')}, {elapsed_s:.1f} s")
    for damaged in commit.damaged:
        print_line(f"left out: {damaged}")
    if commit.lost_offsets:
        print_line(f"{counted(commit.lost_offsets, 'offset')} were gone before they were archived")


def read_job_options(path: str, topic: str, assignments: tuple[tuple[str, str], ...]) -> "ReadOptions":
    """The data source's options. Raises PipelineError."""
    from warmlog.pipeline.options import read_options

    return read_options({"path": str(Path(path).absolute()), "topic": topic, **dict(assignments)})


@contextmanager
def runner(job: str, master: str | None) -> Iterator[Any]:
    """What runs a function over splits, on Spark. Raises PipelineError."""
    from warmlog.pipeline.session import run_over, spark_session

    with spark_session(job, master) as session:
        yield partial(run_over, session)


@contextmanager
def pipeline_errors() -> Iterator[None]:
    """Around a job: what it says is wrong becomes one line, also where a worker said it."""
    from warmlog.pipeline.errors import PipelineError

    try:
        yield
    except (PipelineError, OSError) as error:
        raise Failure(str(error)) from error
    except Exception as error:
        told = worker_error(str(error))
        if told is None:
            raise
        raise Failure(told) from error


def worker_error(text: str) -> str | None:
    """What a pipeline's error in a worker said, out of the trace that Spark makes of it; None for any other error."""
    for line in text.splitlines():
        kind, colon, said = line.strip().partition(": ")
        if colon and kind.startswith("warmlog.pipeline.errors."):
            return said
    return None
