"""`warmlog pipeline table maintain`."""

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from warmlog.cli.options import json_option
from warmlog.cli.output import Column, binary_size, counted, print_json, print_line, print_table
from warmlog.cli.pipeline.intervals import duration
from warmlog.cli.pipeline.job import pipeline_errors, until_terminated, warnings_shown
from warmlog.cli.pipeline.target import TableTarget, table_options

if TYPE_CHECKING:
    from warmlog.pipeline.lakehouse.maintenance.job import Maintenance
    from warmlog.pipeline.lakehouse.maintenance.upkeep import Upkeep

MEBIBYTE = 1 << 20
COLUMNS = (
    Column("step"),
    Column("before", number=True),
    Column("after", number=True),
    Column("size before", number=True),
    Column("size after", number=True),
)


@click.command()
@click.argument("target")
@table_options
@click.option(
    "--file-mib",
    metavar="N",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Target size of a file in MiB; files below three quarters of it are merged.",
)
@click.option(
    "--older-than",
    metavar="TIME",
    type=duration,
    default="7d",
    show_default=True,
    help="Age from which Iceberg's snapshots expire, and from which files that no version needs are deleted; these are"
    " kept for 1d at least, because a running job may still commit them.",
)
@click.option(
    "--keep-snapshots",
    metavar="N",
    type=click.IntRange(min=1),
    help="Newest snapshots of an Iceberg table that do not expire, whatever their age.  [default: 1]",
)
@click.option("--compression", type=click.Choice(["zstd", "snappy", "gzip", "none"]), default="zstd", show_default=True)
@click.option("--dry-run", is_flag=True, help="Report what would be done, name the files to delete; change nothing.")
@json_option("One JSON object.")
def maintain(
    target: str,
    catalog: str | None,
    warehouse: str | None,
    storage: tuple[tuple[str, str], ...],
    file_mib: int,
    older_than: float,
    keep_snapshots: int | None,
    compression: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Merge small files of a table, expire old versions, and delete files that no version needs.

    TARGET is named as for `table`. Jobs may write to the table meanwhile. Rows are not changed, only sorted by
    partition and offset, and `audit` has the same result before and after, since receipts of expired versions are
    retained.

    Delta retains its log for delta.logRetentionDuration, 30 days by default: run this command more often.
    """
    if catalog is None and keep_snapshots is not None:
        raise click.UsageError("--keep-snapshots is for Iceberg: Delta's log is kept for delta.logRetentionDuration.")
    where = TableTarget(target=target, catalog=catalog, warehouse=warehouse, storage=storage)
    with pipeline_errors("deltalake", "pyiceberg", "pyarrow", "numpy", extra="lakehouse"):
        from warmlog.pipeline.lakehouse.maintenance.job import MaintenanceJob

        upkeep = _upkeep(where, timedelta(seconds=older_than), keep_snapshots or 1)
        job = MaintenanceJob(upkeep, file_bytes=file_mib * MEBIBYTE, compression=compression, dry_run=dry_run)
        with warnings_shown(), until_terminated(is_endless=False):
            done = job.run()
    if as_json:
        print_json(done.form())
    else:
        _show(done)


def _upkeep(where: TableTarget, older_than: timedelta, keep_snapshots: int) -> "Upkeep":
    from warmlog.pipeline.errors import PipelineError
    from warmlog.pipeline.lakehouse.iceberg.table import IcebergTable
    from warmlog.pipeline.lakehouse.maintenance.delta import DeltaUpkeep
    from warmlog.pipeline.lakehouse.maintenance.iceberg import IcebergUpkeep
    from warmlog.pipeline.lakehouse.maintenance.job import MIN_AGE

    table = where.open(())
    if not table.exists():
        raise PipelineError(f"{table.name}: no such table")
    age = max(older_than, MIN_AGE)
    if isinstance(table, IcebergTable):
        return IcebergUpkeep(table, snapshot_age=older_than, keep_snapshots=keep_snapshots, age=age)
    return DeltaUpkeep(table, age)


def _show(done: "Maintenance") -> None:
    rows: list[tuple[object, ...]] = [
        (
            "merge small files",
            f"{done.merged_files:,}",
            f"{done.new_files:,}",
            binary_size(done.merged_size),
            binary_size(done.new_size),
        ),
        ("expire versions", f"{done.versions + done.kept_versions:,}", f"{done.kept_versions:,}", None, None),
        ("delete unneeded files", f"{done.deleted_files:,}", "0", binary_size(done.deleted_size), binary_size(0)),
    ]
    print_table(COLUMNS, rows)
    if done.left_alone:
        print_line(f"{counted(len(done.left_alone), 'file')} left as they are")
    for path in done.unneeded:
        print_line(f"would delete {path}")
    if done.dry_run:
        print_line("nothing was changed (--dry-run)")
