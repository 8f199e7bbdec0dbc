"""`warmlog pipeline table migrate`."""

from dataclasses import asdict
from pathlib import Path
from shlex import quote

import click

from warmlog.cli.options import json_option
from warmlog.cli.output import counted, print_json, print_line
from warmlog.cli.pipeline.job import TaskProgress, pipeline_errors


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@json_option("One JSON object.")
def migrate(directory: Path, as_json: bool) -> None:
    """Convert an archive to a Delta table in the same directory, without copying its files.

    DIRECTORY is an archive that `warmlog pipeline archive` of version 0.1 or 0.2 has written. Its rows are read once,
    to check them and for their digests. Rows and positions are in the table's first version; until it is committed, the
    directory remains an archive. An archive by day or hour becomes a table partitioned by day(timestamp) or
    hour(timestamp). Running the command again changes nothing.
    """
    with pipeline_errors("deltalake", "pyarrow", "numpy", extra="lakehouse"), TaskProgress("migrate") as progress:
        from warmlog.pipeline.lakehouse.migration.job import migrate_archive
        from warmlog.pipeline.runner import LocalRunner

        run = LocalRunner(progress.show if progress.enabled else None)
        done = migrate_archive(run, directory.absolute())
    if as_json:
        print_json(asdict(done))
    elif done.is_new:
        print_line(
            f"{done.table} is a Delta table now: {counted(done.rows, 'row')} in {counted(done.files, 'file')} of"
            f" {counted(done.batches, 'commit')}"
        )
        options = f"-o columns={','.join(done.columns)} -o isolationLevel=read_uncommitted"
        print_line(f"continue it with: warmlog pipeline table TOPIC {quote(str(directory))} {options}")
    else:
        print_line(f"{done.table} is a Delta table already")
