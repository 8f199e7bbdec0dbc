"""The options that select a Delta or Iceberg table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from warmlog.cli.options import assignment

if TYPE_CHECKING:
    from warmlog.pipeline.lakehouse.arrangement.spec import Wanted
    from warmlog.pipeline.lakehouse.delta.table import DeltaTable
    from warmlog.pipeline.lakehouse.iceberg.table import IcebergTable

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTarget:
    """A table: a directory or URL, or a name in a catalog."""

    target: str
    catalog: str | None
    warehouse: str | None
    storage: tuple[tuple[str, str], ...]

    def open(self, columns: Sequence[str], wanted: "Wanted | None" = None) -> "DeltaTable | IcebergTable":
        """Return the table without reading it. `columns`: the columns to write. `wanted`: the arrangement of a new one.

        Raises PipelineError.
        """
        from warmlog.pipeline.lakehouse.arrangement.spec import NOTHING_WANTED
        from warmlog.pipeline.lakehouse.target import open_table

        return open_table(
            self.target,
            columns,
            catalog=self.catalog,
            warehouse=self.warehouse,
            storage=dict(self.storage),
            wanted=wanted or NOTHING_WANTED,
        )


def table_options(command: Command) -> Command:
    """Add the fields of TableTarget, except `target`."""
    for option in (
        click.option(
            "--storage",
            "storage",
            metavar="NAME=VALUE",
            type=assignment,
            multiple=True,
            help="Option of the object store (as deltalake names it) or property of the catalog.",
        ),
        click.option("--warehouse", metavar="URL", help="Where an Iceberg catalog creates tables."),
        click.option(
            "--catalog",
            metavar="URL",
            help="Iceberg catalog: sqlite:///FILE, postgresql://..., http://..., thrift://... (Hive), or a name in"
            " .pyiceberg.yaml.",
        ),
    ):
        command = option(command)
    return command
