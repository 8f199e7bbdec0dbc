"""`warmlog pipeline replay`."""

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import json_option, native_option
from warmlog.cli.output import Column, binary_size, counted, print_json, print_line, print_table
from warmlog.cli.pipeline.job import (
    JobOptions,
    bootstrap_option,
    job_options,
    login_options,
    pipeline_errors,
    running,
    show_stats,
)
from warmlog.cli.pipeline.target import TableTarget, table_options

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
@job_options
@bootstrap_option
@native_option
@click.option(
    "--table",
    metavar="TARGET",
    help="Delta or Iceberg table to read the records from, named as for `table`.",
)
@table_options
@click.option("--to-topic", metavar="TOPIC", help="Target topic. Default for a table: the records' own topic.")
@click.option("--keep-partitions", is_flag=True, help="Keep each record's partition, whatever its key.")
@click.option("--rate", metavar="N", type=click.FloatRange(min=0, min_open=True), help="At most N records per second.")
@click.option("--id", "replay_id", metavar="NAME", help="Id of a failed replay, to continue it.")
@click.option("--dry-run", is_flag=True, help="Read and count records without sending them.")
@json_option("One JSON object per partition.")
def replay(
    bootstrap: str | None,
    native: str,
    table: str | None,
    catalog: str | None,
    warehouse: str | None,
    storage: tuple[tuple[str, str], ...],
    to_topic: str | None,
    keep_partitions: bool,
    rate: float | None,
    replay_id: str | None,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Send the records of a table or a topic to a topic.

    Keys, values, headers and timestamps are preserved. Select a part by `-o startingTimestamp=…`, `-o
    endingTimestamp=…`, `-o startingOffsets=…`, `-o endingOffsets=…`. The records of a partition are sent in order. A
    missing topic is created with the same number of partitions. A failed replay can be continued by its --id: records
    that are already stored are not sent again.
    """
    job = JobOptions(**given)
    if table is not None and (job.path is not None or bootstrap is not None):
        raise click.UsageError("--table cannot be combined with --path or --bootstrap.")
    if table is None and (catalog is not None or warehouse is not None or storage):
        raise click.UsageError("--catalog, --warehouse and --storage are for --table, which is missing.")
    if table is None and to_topic is None:
        raise click.UsageError("--to-topic is missing: it is optional only with --table.")
    name = replay_id or uuid4().hex[:12]
    with pipeline_errors("pyarrow"):
        from warmlog.pipeline.errors import PipelineError
        from warmlog.pipeline.job_stats import Reporter
        from warmlog.pipeline.jobs.replay import ReplayRules, prepare_target, sink_options, size_of_task
        from warmlog.pipeline.jobs.replay import replay as replay_tasks
        from warmlog.pipeline.source.input import size_of

        where = (
            None if table is None else TableTarget(target=table, catalog=catalog, warehouse=warehouse, storage=storage)
        )
        options = _read_options(job, bootstrap, where)
        target = to_topic or job.topic
        if "," in target:
            raise click.UsageError("--to-topic is missing: replay several topics into one topic, or one at a time.")
        tasks = _tasks(options, where)
        write = None if dry_run else sink_options(native, target, login_options())
        reporter = Reporter("replay")
        size = (lambda: size_of(options)) if table is None else (lambda: sum(map(size_of_task, tasks)))
        with running("replay", job, size, reporter) as run:
            rules = ReplayRules(
                write=write,
                replay_id=name,
                keep_partitions=keep_partitions,
                rate=None if rate is None else rate / max(min(len(tasks), run.parallelism), 1),
            )
            created = (
                None if write is None else prepare_target(write.brokers, target, tasks, keep_partitions=keep_partitions)
            )
            if created is not None and not as_json:
                print_line(f"created topic {target} with {counted(created, 'partition')}")
            try:
                done = replay_tasks(run, tasks, rules, options, reporter)
            except PipelineError as error:
                if dry_run:
                    raise
                raise Failure(f"{error} (continue it with --id {name})") from error
            report = reporter.report()
    if as_json:
        print_json(*({**_form(replayed), "id": name} for replayed in done))
    else:
        _show(done, target, dry_run=dry_run)
    show_stats(report, job.report_file, quiet=as_json)


def _read_options(job: JobOptions, bootstrap: str | None, where: TableTarget | None) -> "ReadOptions":
    """Return the read options; partitions without records after the starting timestamp are empty."""
    common = {"includeHeaders": "true", "startingOffsetsByTimestampStrategy": "latest"}
    if where is None:
        return job.read_options(bootstrap=bootstrap, **common)
    return job.read_options(path=where.target, **common)


def _tasks(options: "ReadOptions", where: TableTarget | None) -> "list[ReplayTask]":
    from warmlog.pipeline.errors import PipelineError
    from warmlog.pipeline.jobs.replay import plan_from_log, plan_from_table
    from warmlog.pipeline.session import check_libraries

    if where is None:
        return plan_from_log(options)
    check_libraries("deltalake", "pyiceberg", "pyarrow", extra="lakehouse")
    table = where.open(())
    if not table.exists():
        raise PipelineError(f"{table.name} is not a table")
    table.refresh()
    return plan_from_table(table, options)


def _form(replayed: "Replayed") -> dict[str, object]:
    names = ("topic", "partition", "records", "bytes", "stored_before", "first_offset", "last_offset")
    return {name: getattr(replayed, name) for name in names}


def _show(done: "list[Replayed]", target: str, *, dry_run: bool) -> None:
    rows = [
        (
            replayed.topic,
            replayed.partition,
            f"{replayed.records:,}",
            binary_size(replayed.bytes),
            replayed.first_offset,
            replayed.last_offset,
        )
        for replayed in done
    ]
    print_table(COLUMNS, rows)
    records = sum(replayed.records for replayed in done)
    before = sum(replayed.stored_before for replayed in done)
    if dry_run:
        print_line(f"{counted(records, 'record')} would be sent to {target}")
        return
    print_line(f"{counted(records - before, 'record')} sent to {target}")
    if before:
        print_line(f"{counted(before, 'record')} were already stored")
