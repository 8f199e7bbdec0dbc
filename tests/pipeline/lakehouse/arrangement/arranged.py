"""Partitioned and sorted tables for tests, and what libraries say of their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from tests.pipeline.lakehouse.tables import AnyTable, Kind, catalog_of, open_in
from warmlog.pipeline.lakehouse.arrangement.spec import wanted_of
from warmlog.pipeline.source.options import COLUMNS


def arranged_in(
    directory: Path, kind: Kind, partition_by: str = "", sort_by: str = "", columns: Sequence[str] = COLUMNS
) -> AnyTable:
    """A table that is created with an arrangement, unless it exists."""
    wanted = wanted_of([partition_by] if partition_by else [], [sort_by] if sort_by else [])
    return open_in(directory, kind, columns, wanted)


@dataclass(frozen=True)
class File:
    """A file, its partition as the library says, and its rows."""

    path: Path
    partition: dict[str, Any]
    rows: pa.Table

    def values(self, column: str) -> list[Any]:
        return self.rows[column].to_pylist()


def listed(directory: Path, kind: Kind) -> list[File]:
    """The files of a table, as its library lists them."""
    if kind == "delta":
        import deltalake

        table = deltalake.DeltaTable(str(directory / "delta"))
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return [
            _file(
                directory / "delta" / action["path"],
                {name.removeprefix("partition."): value for name, value in action.items() if "partition." in name},
            )
            for action in actions
        ]
    handle = open_in(directory, "iceberg", ()).handle
    spec = handle.spec()
    return [
        _file(
            Path(task.file.file_path.removeprefix("file://")),
            {field.name: task.file.partition[at] for at, field in enumerate(spec.fields)},
        )
        for task in handle.scan().plan_files()
    ]


def _file(path: Path, partition: dict[str, Any]) -> File:
    return File(path, partition, parquet.read_table(path, partitioning=None))


def read(directory: Path, kind: Kind, filtered: Any = None) -> pa.Table:
    """The rows as the library reads them. `filtered`: a row filter, as the library takes it."""
    if kind == "delta":
        import deltalake

        return deltalake.DeltaTable(str(directory / "delta")).to_pyarrow_table(filters=filtered)
    handle = open_in(directory, "iceberg", ()).handle
    return handle.scan(**({} if filtered is None else {"row_filter": filtered})).to_arrow()


def create(directory: Path, kind: Kind, schema: Any, partition_by: Sequence[str]) -> None:
    """Create a table as another program does."""
    if kind == "delta":
        import deltalake

        deltalake.DeltaTable.create(str(directory / "delta"), schema=schema, partition_by=list(partition_by))
        return
    catalog = iceberg_catalog(directory)
    catalog.create_namespace_if_not_exists("db")
    table = catalog.create_table("db.orders", schema)
    with table.update_spec() as spec:
        for name in partition_by:
            spec.add_identity(name)


def iceberg_catalog(directory: Path) -> Any:
    """The catalog of a directory, as another program opens it."""
    from pyiceberg.catalog import load_catalog

    where = catalog_of(directory)
    return load_catalog("default", type="sql", uri=where["catalog"], warehouse=where["warehouse"])
