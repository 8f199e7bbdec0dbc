"""`warmlog pipeline count`."""

from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.options import json_option
from warmlog.cli.output import Column, binary_size, counted, print_json, print_line, print_table
from warmlog.cli.pipeline.job import JobOptions, job_options, pipeline_errors, running, show_stats

if TYPE_CHECKING:
    from warmlog.pipeline.jobs.count import Counted

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
