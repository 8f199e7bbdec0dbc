"""Tables for tests: opened, filled, and read as by programs that know nothing of receipts."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import duckdb

from tests.pipeline.conftest import DirectoryWriter
from warmlog.pipeline.lakehouse.arrangement.spec import NOTHING_WANTED, Wanted
from warmlog.pipeline.lakehouse.delta.table import DeltaTable
from warmlog.pipeline.lakehouse.iceberg.table import IcebergTable
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.lakehouse.target import open_table
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import COLUMNS, ReadOptions, read_options

Kind: TypeAlias = Literal["delta", "iceberg"]
AnyTable: TypeAlias = DeltaTable | IcebergTable
KINDS: tuple[Kind, ...] = ("delta", "iceberg")


def catalog_of(directory: Path) -> dict[str, str]:
    directory.mkdir(parents=True, exist_ok=True)
    return {"catalog": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}


def arguments_of(directory: Path, kind: Kind) -> list[str]:
    """The command line's target."""
    if kind == "delta":
        return [str(directory / "delta")]
    where = catalog_of(directory)
    return ["db.orders", "--catalog", where["catalog"], "--warehouse", where["warehouse"]]


def open_in(directory: Path, kind: Kind, columns: Sequence[str] = COLUMNS, wanted: Wanted = NOTHING_WANTED) -> AnyTable:
    """Each call gives a table object of its own, as each process has."""
    if kind == "delta":
        table = open_table(str(directory / "delta"), columns, wanted=wanted)
    else:
        table = open_table("db.orders", columns, wanted=wanted, **catalog_of(directory))
    table.create()
    table.refresh()
    return table


def files_of(directory: Path, kind: Kind) -> list[str]:
    """The data files of the newest version, as the libraries list them."""
    if kind == "delta":
        import deltalake

        return deltalake.DeltaTable(str(directory / "delta")).file_uris()
    from pyiceberg.catalog import load_catalog

    where = catalog_of(directory)
    catalog = load_catalog("default", type="sql", uri=where["catalog"], warehouse=where["warehouse"])
    return [task.file.file_path for task in catalog.load_table("db.orders").scan().plan_files()]


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """A database in memory for all queries of the process: making one takes much longer than a query."""
    database = duckdb.connect()
    database.execute("SET GLOBAL timezone = 'UTC'")
    database.execute("SET GLOBAL enable_external_file_cache = false")  # tests write files again
    return database


def query(directory: Path, kind: Kind, sql: str) -> list[tuple[Any, ...]]:
    """What DuckDB answers about the table's files, `data`."""
    files = files_of(directory, kind)
    if not files:
        return []
    with _database().cursor() as connection:
        connection.execute(
            f"CREATE TEMP VIEW data AS SELECT * FROM read_parquet({[file.removeprefix('file://') for file in files]!r})"
        )
        return connection.sql(sql).fetchall()


def offsets_in(directory: Path, kind: Kind) -> list[tuple[int, int]]:
    """(partition, offset) of every row, in order."""
    return query(directory, kind, 'SELECT "partition", "offset" FROM data ORDER BY ALL')


def options_of(writer: DirectoryWriter, **options: Any) -> ReadOptions:
    given = {
        "path": str(writer.directory.parent),
        "topic": "orders",
        "isolationLevel": "read_committed",
        "includeHeaders": "true",
        **options,
    }
    return read_options({name: str(value) for name, value in given.items() if value is not None})


def copied(
    table: Table,
    options: ReadOptions,
    settings: TableSettings | None = None,
    run: Any = None,
    pause: Callable[[float], Any] = lambda _: None,
) -> list[Receipt]:
    job = TableJob(options, table, settings or TableSettings(), pause=pause)
    return list(job.run_until_end(run or LocalRunner()))
