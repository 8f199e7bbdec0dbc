"""`warmlog pipeline table migrate`."""

from dataclasses import asdict
from pathlib import Path

import click

from warmlog.cli.options import json_option
from warmlog.cli.output import counted, print_json, print_line
from warmlog.cli.pipeline.job import pipeline_errors


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@json_option("One JSON object.")
def migrate(directory: Path, as_json: bool) -> None:
    """Convert an archive to a Delta table in the same directory, without copying its files.

    DIRECTORY is an archive written by `warmlog pipeline archive`. Its rows are read once, for their digests. Rows and
    positions are in the table's first version; until it is committed, the directory remains an archive. Running the
    command again changes nothing.
    """
    with pipeline_errors("deltalake", "pyarrow", "numpy", extra="lakehouse"):
        from warmlog.pipeline.jobs.archive_migration import migrate_archive

        done = migrate_archive(directory.absolute())
    if as_json:
        print_json(asdict(done))
    elif done.is_new:
        print_line(
            f"{done.table} is a Delta table now: {counted(done.rows, 'row')} in {counted(done.files, 'file')} of"
            f" {counted(done.batches, 'commit')}"
        )
        print_line(f"continue it with: warmlog pipeline table TOPIC {directory} -o columns={','.join(done.columns)}")
    else:
        print_line(f"{done.table} is a Delta table already")
