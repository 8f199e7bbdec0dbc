"""`warmlog pipeline table rewind`."""

from dataclasses import asdict

import click

from warmlog.cli.options import json_option
from warmlog.cli.output import Column, print_json, print_line, print_table
from warmlog.cli.pipeline.job import pipeline_errors, until_terminated, warnings_shown
from warmlog.cli.pipeline.target import TableTarget, table_options

COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    Column("offset before", number=True),
    Column("offset after", number=True),
)


@click.command()
@click.argument("target")
@table_options
@click.option("--dry-run", is_flag=True, help="Report what would be done, and change nothing.")
@json_option("One JSON object.")
def rewind(
    target: str,
    catalog: str | None,
    warehouse: str | None,
    storage: tuple[tuple[str, str], ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Copy again what a restore of a Delta table, or a rollback of an Iceberg table, took back.

    TARGET is named as for `table`. Other programs take back rows, but not the offsets up to which topics were copied,
    so jobs refuse the table. This command sets the offsets to the end of the remaining rows: the next job copies the
    others again, each once. Rows are not changed, nor are offsets that agree with the rows.
    """
    where = TableTarget(target=target, catalog=catalog, warehouse=warehouse, storage=storage)
    with pipeline_errors("deltalake", "pyiceberg", "pyarrow", "numpy", extra="lakehouse"):
        from warmlog.pipeline.errors import PipelineError
        from warmlog.pipeline.lakehouse.rewinding import rewind as rewind_table

        table = where.open(())
        if not table.exists():
            raise PipelineError(f"{table.name}: no such table")
        with warnings_shown(), until_terminated(is_endless=False):
            done = rewind_table(table, dry_run=dry_run)
    if as_json:
        print_json({"table": table.name, "dry_run": dry_run, "partitions": [asdict(each) for each in done]})
        return
    if not done:
        print_line("nothing was taken back")
        return
    print_table(COLUMNS, [(each.topic, each.partition, each.before, each.after) for each in done])
    if dry_run:
        print_line("nothing was changed (--dry-run)")
