"""`warmlog pipeline count` and `archive`."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import json_option
from warmlog.cli.output import Column, binary_size, counted, print_json, print_line, print_table
from warmlog.cli.pipeline.job import (
    JobOptions,
    bootstrap_option,
    job_options,
    pipeline_errors,
    reported,
    running,
    show_stats,
    until_terminated,
    warnings_shown,
)

if TYPE_CHECKING:
    from warmlog.pipeline.archive.job import ArchiveJob
    from warmlog.pipeline.archive.store import Commit
    from warmlog.pipeline.jobs.count import Counted
    from warmlog.pipeline.runner import Runner

COUNT_COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    Column("records", number=True),
    Column("batches", number=True),
    Column("bytes", number=True),
    Column("first offset", number=True),
    Column("end offset", number=True),
)


@click.command()
@job_options
@json_option("One JSON object per partition.")
def count(as_json: bool, **given: Any) -> None:
    """Count the records of topics using only batch headers."""
    from warmlog.pipeline.job_stats import Reporter
    from warmlog.pipeline.jobs.count import count_records
    from warmlog.pipeline.source.input import size_of

    job = JobOptions(**given)
    with pipeline_errors():
        options = job.read_options()
        if options.path is None:
            raise click.UsageError("count reads directories: give --path.")
        reporter = Reporter("count")
        with running("count", job, lambda: size_of(options), reporter) as run:
            results = count_records(run, options, reporter)
            report = reporter.report()
    if as_json:
        print_json(*results)
    else:
        print_table(COUNT_COLUMNS, [_count_row(each) for each in results])
        print_line(f"{counted(sum(each.records for each in results), 'record')}")
    show_stats(report, job.report_file, quiet=as_json)


def _count_row(counted: "Counted") -> tuple[object, ...]:
    numbers = (
        f"{counted.records:,}",
        f"{counted.batches:,}",
        binary_size(counted.bytes),
        counted.first_offset,
        counted.end_offset,
    )
    return (counted.topic, counted.partition, *numbers)


def duration(value: str) -> float:
    """Parse `10s`, `500ms`, `5m` or `1h` into seconds."""
    from warmlog.pipeline.options import duration_ms

    milliseconds = 0
    with suppress(ValueError, KeyError):
        milliseconds = duration_ms(value, default_unit="")
    if not milliseconds:
        raise click.BadParameter(f"{value!r} is not a duration like 10s, 500ms, 5m or 1h.")
    return milliseconds / 1000


@click.command()
@job_options
@bootstrap_option
@click.option("--group", metavar="GROUP", help="Commit the archived offsets to this consumer group.")
@click.option("--to", "target", required=True, metavar="DIR", help="Directory of the archive; created if needed.")
@click.option(
    "--partition-by",
    type=click.Choice(["none", "day", "hour"]),
    default="none",
    show_default=True,
    help="Create a directory for each day or hour of the records' timestamps (UTC).",
)
@click.option(
    "--compression", type=click.Choice(["zstd", "snappy", "lz4", "gzip", "none"]), default="zstd", show_default=True
)
@click.option("--once", is_flag=True, help="Archive the records that exist now, then stop (default).")
@click.option(
    "--every",
    metavar="TIME",
    type=duration,
    help="Run until stopped, checking for new records at this interval (10s, 5m).",
)
@json_option("One JSON object per commit.")
def archive(
    bootstrap: str | None,
    group: str | None,
    target: str,
    partition_by: Any,
    compression: str,
    once: bool,
    every: float | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Write records to Parquet files, each record exactly once.

    A run continues from the last commit, even if the previous run was killed. Each batch is added to the archive
    atomically. Read the archive with `spark.read.parquet(DIR)` or any other reader of Parquet.
    """
    if once and every is not None:
        raise click.UsageError("--once and --every exclude each other.")
    job = JobOptions(**given)
    with pipeline_errors("pyarrow"):
        from warmlog.pipeline.archive.job import ArchiveJob, ArchiveSettings
        from warmlog.pipeline.archive.store import ArchiveStore

        options = job.read_options(bootstrap=bootstrap, group=group)
        if partition_by != "none" and "timestamp" not in options.columns:
            raise click.UsageError(f"--partition-by {partition_by} needs the column timestamp.")
        settings = ArchiveSettings(partition_by=partition_by, compression=compression)
        store = ArchiveStore(Path(target).absolute())
        with warnings_shown(), store.locked():
            archiving = ArchiveJob(options, store, settings)
            with (
                running("archive", job, archiving.pending_bytes, archiving.reporter) as run,
                until_terminated(is_endless=every is not None),
                reported(archiving, job.report_file, as_json=as_json),
            ):
                for commit in _commits(archiving, run, every):
                    _show_commit(commit, as_json=as_json)
    if archiving.is_stopped:
        raise Failure("stopped before a damaged batch (-o onCorrupt=skip continues after it)")


def _commits(job: "ArchiveJob", run: "Runner", every_s: float | None) -> "Iterator[Commit]":
    from warmlog.pipeline.archive.job import run_every

    return job.run_once(run) if every_s is None else run_every(job, run, Interval(every_s).wait)


class Interval:
    """Waits for points in time at equal intervals; missed ones are skipped."""

    def __init__(
        self,
        every_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._every_s = every_s
        self._clock = clock
        self._sleep = sleep
        self._next = clock() + every_s

    def wait(self) -> None:
        """Wait for the next point in time."""
        now = self._clock()
        if now < self._next:
            self._sleep(self._next - now)
        self._next = max(self._next, now) + self._every_s


def _show_commit(commit: "Commit", *, as_json: bool) -> None:
    """Print one commit."""
    if as_json:
        print_json(asdict(commit))
        return
    files = counted(len(commit.files), "file")
    print_line(f"batch {commit.number}: {counted(commit.rows, 'record')} in {files}")
    for damaged in commit.damaged:
        print_line(f"skipped: {damaged}")
    if commit.lost_offsets:
        print_line(f"{counted(commit.lost_offsets, 'offset')} were deleted before they were archived")
