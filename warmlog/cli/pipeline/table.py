"""`warmlog pipeline table`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.options import json_option
from warmlog.cli.output import counted, print_json, print_line
from warmlog.cli.pipeline.formats import format_options
from warmlog.cli.pipeline.intervals import Interval, duration
from warmlog.cli.pipeline.job import (
    JobOptions,
    bootstrap_option,
    job_options,
    pipeline_errors,
    reported,
    running,
    until_terminated,
    warnings_shown,
)
from warmlog.cli.pipeline.target import TableTarget, table_options

if TYPE_CHECKING:
    from warmlog.pipeline.lakehouse.job import TableJob
    from warmlog.pipeline.lakehouse.receipts import Receipt

MEBIBYTE = 1 << 20
MAX_PORT = 65535
JOB_NAMES = tuple(field.name for field in fields(JobOptions))
TOPIC_ARGUMENT = click.argument("topic", metavar="TOPIC")


def metrics_address(value: str) -> tuple[str, int]:
    """Split `HOST:PORT` or `PORT`."""
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or int(port) > MAX_PORT:
        raise click.BadParameter(f"{value!r} is not a port such as 9464, or HOST:PORT.")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextmanager
def _metrics_served(job: "TableJob", address: tuple[str, int] | None) -> Iterator[None]:
    if address is None:
        yield
        return
    from warmlog.pipeline.copying.metrics import served

    host, port = address
    with served(job.metrics, host, port) as chosen:
        click.echo(f"warmlog: metrics at http://{host}:{chosen}/metrics", err=True)
        yield


@click.command()
@partial(job_options, topic=TOPIC_ARGUMENT)
@click.argument("target")
@bootstrap_option
@table_options
@format_options
@click.option(
    "--upsert",
    is_flag=True,
    help="Keep the newest record of each key of a partition as one row; records without a value delete it.",
)
@click.option(
    "--envelope",
    type=click.Choice(["none", "debezium"]),
    default="none",
    show_default=True,
    help="With --upsert: values are changes of a database, and the row is what follows from them.",
)
@click.option("--group", metavar="GROUP", help="Commit the copied offsets to this consumer group.")
@click.option("--until-end", is_flag=True, help="Copy the records that exist now, then stop.")
@click.option(
    "--every",
    metavar="TIME",
    type=duration,
    default="10s",
    show_default=True,
    help="Interval between checks for new records.",
)
@click.option(
    "--commit-rows",
    metavar="N",
    type=click.IntRange(min=1),
    default=10_000_000,
    show_default=True,
    help="Maximum rows per commit.",
)
@click.option(
    "--commit-mib",
    metavar="N",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="Target size of a commit's files in MiB.",
)
@click.option(
    "--commit-time",
    metavar="TIME",
    type=duration,
    default="60s",
    show_default=True,
    help="Target time of a commit.",
)
@click.option(
    "--file-mib",
    metavar="N",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Target size of a file in MiB.",
)
@click.option(
    "--partition-by",
    metavar="TERM,...",
    multiple=True,
    help="Partition a new table by columns, or year, month, day or hour(COLUMN); Iceberg also by bucket(N, COLUMN) and"
    " truncate(N, COLUMN).",
)
@click.option("--sort-by", metavar="COLUMN,...", multiple=True, help="Sort the rows of each file of a new table.")
@click.option(
    "--metrics",
    metavar="[H:]P",
    type=metrics_address,
    help="Serve metrics for Prometheus at http://H:P/metrics, H is 127.0.0.1 by default. Port 0 chooses one.",
)
@click.option("--compression", type=click.Choice(["zstd", "snappy", "gzip", "none"]), default="zstd", show_default=True)
@json_option("One JSON object per commit.")
def table(
    target: str,
    bootstrap: str | None,
    catalog: str | None,
    warehouse: str | None,
    storage: tuple[tuple[str, str], ...],
    group: str | None,
    until_end: bool,
    every: float,
    commit_rows: int,
    commit_mib: int,
    commit_time: float,
    file_mib: int,
    partition_by: tuple[str, ...],
    sort_by: tuple[str, ...],
    metrics: tuple[str, int] | None,
    compression: str,
    upsert: bool,
    envelope: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Copy a topic to a Delta or Iceberg table, each record exactly once.

    TARGET is the directory or URL of a Delta table, or with --catalog an Iceberg table such as db.orders. A table that
    does not exist is created. Offsets are committed with the rows: a run continues where the table ends, even if the
    previous run was killed, and two concurrent runs add no row twice. Records of aborted transactions are omitted.

    With --upsert the table has one row for each key of a partition: its newest record.
    """
    job = JobOptions(**{name: given.pop(name) for name in JOB_NAMES})
    with pipeline_errors("deltalake", "pyiceberg", "pyarrow", "numpy", extra="lakehouse"):
        from warmlog.pipeline.lakehouse.arrangement.spec import wanted_of
        from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
        from warmlog.pipeline.lakehouse.pace import Targets
        from warmlog.pipeline.lakehouse.schemas.formats import formats_of
        from warmlog.pipeline.lakehouse.schemas.layout import Layout
        from warmlog.pipeline.session import check_libraries
        from warmlog.pipeline.source.options import COLUMNS

        options = job.read_options(
            bootstrap=bootstrap, group=group, isolationLevel="read_committed", columns=",".join(COLUMNS)
        )
        targets = Targets(rows=commit_rows, bytes=commit_mib * MEBIBYTE, seconds=commit_time)
        formats = formats_of(**given, brokers=options.brokers, upsert=upsert, envelope=envelope)
        if formats.dead_letters is not None:
            formats.dead_letters.check()
        settings = TableSettings(
            targets=targets, file_bytes=file_mib * MEBIBYTE, compression=compression, formats=formats
        )
        where = TableTarget(target=target, catalog=catalog, warehouse=warehouse, storage=storage)
        opened = where.open(Layout(formats, options.columns).plain, wanted_of(partition_by, sort_by))
        if upsert:
            check_libraries("duckdb", extra="lakehouse")
            from warmlog.pipeline.lakehouse.upserts.job import UpsertJob
        copying = (UpsertJob if upsert else TableJob)(options, opened, settings)
        copying.create_table()
        with (
            warnings_shown(),
            _metrics_served(copying, metrics),
            running("table", job, copying.pending_bytes, copying.reporter) as run,
            until_terminated(is_endless=not until_end),
            reported(copying, job.report_file, as_json=as_json),
        ):
            for receipt in copying.run_until_end(run) if until_end else copying.run_every(run, Interval(every).wait):
                _show(receipt, as_json=as_json)


def _show(receipt: "Receipt", *, as_json: bool) -> None:
    """Print one commit."""
    if as_json:
        print_json(receipt.form())
        return
    offsets = sum(span.end.offset - span.first for span in receipt.spans.values())
    print_line(
        f"committed {counted(receipt.rows, 'record')} of {counted(offsets, 'offset')} in"
        f" {counted(len(receipt.spans), 'partition')}"
    )
    if receipt.upsert:
        print_line(
            ", ".join(
                f"{counted(count, 'row')} {what}" for what, count in receipt.upsert.items() if what != "elsewhere"
            )
        )
        if elsewhere := receipt.upsert["elsewhere"]:
            print_line(f"{counted(elsewhere, 'row')} of other partitions have one of these keys, too")
    dead = sum(end - first for runs in receipt.dead_letters.values() for first, end in runs)
    if dead:
        print_line(f"{counted(dead, 'record')} became dead letters")
    for damaged in receipt.damaged:
        print_line(f"skipped: {damaged}")
    if receipt.lost:
        print_line(f"{counted(receipt.lost, 'offset')} were deleted before they were copied")
