"""`warmlog pipeline replay`: records back into a topic.

Owns: its options on the command line and how results are shown. Must not know: how records are sent
(`warmlog.pipeline.replay`).
"""

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import json_option, native_option
from warmlog.cli.output import Column, binary_size, counted, print_json, print_line, print_table
from warmlog.cli.pipeline_jobs import (
    bootstrap_option,
    pipeline_errors,
    read_job_options,
    reading_options,
    running,
    show_stats,
)

if TYPE_CHECKING:
    from warmlog.pipeline.jobs.replay import Replayed, ReplayTask
    from warmlog.pipeline.source.options import ReadOptions

COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    Column("records", number=True),
    Column("bytes", number=True),
    Column("first offset", number=True),
    Column("last offset", number=True),
)


@click.command()
@reading_options
@bootstrap_option
@native_option
@click.option("--table", metavar="DIR", type=click.Path(path_type=Path), help="An archive that the records come from.")
@click.option("--to-topic", metavar="TOPIC", help="Where to; from an archive by default the topic they come from.")
@click.option("--keep-partitions", is_flag=True, help="Each record into the partition it comes from, not by its key.")
@click.option("--rate", metavar="N", type=click.FloatRange(min=0, min_open=True), help="At most N records a second.")
@click.option(
    "--id", "replay_id", metavar="NAME", help="Run again under the name of one that failed, to go on with it."
)
@click.option("--dry-run", is_flag=True, help="Read and count, and send nothing.")
@json_option("One object a partition.")
def replay(
    path: str | None,
    topic: str,
    assignments: tuple[tuple[str, str], ...],
    master: str | None,
    report_file: Path | None,
    bootstrap: str | None,
    native: str,
    table: Path | None,
    to_topic: str | None,
    keep_partitions: bool,
    rate: float | None,
    replay_id: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send records of an archive, or of a part of a topic, into a topic once more.

    Keys, values, headers and times stay. Which part: `-o startingTimestamp=…`, `-o endingTimestamp=…`, `-o
    startingOffsets=…`, `-o endingOffsets=…`. The records of a partition are sent in their order. One that failed can be
    run again under its --id: what is stored is not sent once more.
    """
    from warmlog.pipeline.errors import PipelineError
    from warmlog.pipeline.job_stats import Reporter
    from warmlog.pipeline.jobs.replay import ReplayRules, sink_options
    from warmlog.pipeline.jobs.replay import replay as replay_tasks

    if table is not None and (path is not None or bootstrap is not None):
        raise click.UsageError("--table and --path or --bootstrap exclude each other.")
    if table is None and to_topic is None:
        raise click.UsageError("--to-topic: a topic is not replayed into itself unless it comes from --table.")
    name = replay_id or uuid4().hex[:12]
    with pipeline_errors():
        options = _source_options(path, topic, assignments, bootstrap, table)
        target = to_topic or topic
        if "," in target:
            raise click.UsageError("--to-topic: several topics are replayed into one, or one at a time.")
        with running("replay", master) as run:
            tasks = _tasks(options, table)
            rules = ReplayRules(
                write=None if dry_run else sink_options(native, target),
                replay_id=name,
                keep_partitions=keep_partitions,
                rate=None if rate is None else rate / max(min(len(tasks), run.parallelism), 1),
            )
            reporter = Reporter("replay")
            try:
                done = replay_tasks(run, tasks, rules, options, reporter)
            except PipelineError as error:
                if dry_run:
                    raise
                raise Failure(f"{error} (go on with it by --id {name})") from error
            report = reporter.report()
    if as_json:
        print_json(*({**_form(one), "id": name} for one in done))
    else:
        _show(done, target, dry_run=dry_run)
    show_stats(report, report_file, quiet=as_json)


def _source_options(
    path: str | None, topic: str, assignments: tuple[tuple[str, str], ...], bootstrap: str | None, table: Path | None
) -> "ReadOptions":
    given = str(table.absolute()) if table is not None else path
    return read_job_options(given, topic, (*assignments, ("includeHeaders", "true")), bootstrap=bootstrap)


def _tasks(options: "ReadOptions", table: Path | None) -> "list[ReplayTask]":
    from warmlog.pipeline.jobs.replay import plan_from_log, plan_from_table

    return plan_from_log(options) if table is None else plan_from_table(table.absolute(), options)


def _form(one: "Replayed") -> dict[str, object]:
    names = ("topic", "partition", "records", "bytes", "stored_before", "first_offset", "last_offset")
    return {name: getattr(one, name) for name in names}


def _show(done: "list[Replayed]", target: str, *, dry_run: bool) -> None:
    rows = [
        (one.topic, one.partition, f"{one.records:,}", binary_size(one.bytes), one.first_offset, one.last_offset)
        for one in done
    ]
    print_table(COLUMNS, rows)
    records = sum(one.records for one in done)
    before = sum(one.stored_before for one in done)
    if dry_run:
        print_line(f"{counted(records, 'record')} would be sent to {target}")
        return
    print_line(f"{counted(records - before, 'record')} sent to {target}")
    if before:
        print_line(f"{counted(before, 'record')} were there already")
