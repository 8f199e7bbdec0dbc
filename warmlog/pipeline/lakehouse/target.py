"""Open the table named by a command."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.spec import NOTHING_WANTED, Wanted
from warmlog.pipeline.lakehouse.delta.storage import check_storage
from warmlog.pipeline.lakehouse.delta.table import DeltaTable, delta_uri
from warmlog.pipeline.lakehouse.iceberg.catalog import open_catalog
from warmlog.pipeline.lakehouse.iceberg.table import IcebergTable
from warmlog.pipeline.lakehouse.migration.archive import is_archive

ESCAPED = re.compile(r"%[0-9A-Fa-f]{2}")  # deltalake reads it as another character


def open_table(
    target: str,
    columns: Sequence[str],
    *,
    catalog: str | None = None,
    warehouse: str | None = None,
    storage: Mapping[str, str] | None = None,
    wanted: Wanted = NOTHING_WANTED,
) -> DeltaTable | IcebergTable:
    """Return the Delta table in a directory or at a URL, or with a catalog the Iceberg table with this name.

    The table is not read yet. `storage`: options of the object store, or properties of the catalog. `wanted`: the
    arrangement of a new table. Raises PipelineError.
    """
    if not target.strip():
        raise PipelineError("the table has no name: a directory, a URL, or with a catalog NAMESPACE.TABLE")
    if catalog is None:
        if warehouse is not None:
            raise PipelineError(
                "a warehouse is where an Iceberg catalog creates tables: name the catalog, too (--catalog)"
            )
        uri = delta_uri(target)
        if storage and "://" not in uri:
            names = ", ".join(sorted(storage))
            raise PipelineError(f"{target} is a local directory: storage options ({names}) are for object stores")
        if "://" not in uri and is_archive(Path(uri)):
            raise PipelineError(f"{uri} is an archive of an earlier version: warmlog pipeline table migrate {uri}")
        if "://" not in uri and ESCAPED.search(uri):
            raise PipelineError(
                f"{uri}: deltalake cannot open directories with %20 and the like in their path: rename it"
            )
        check_storage(uri, storage or {})
        return DeltaTable(uri, columns, storage or {}, wanted)
    return IcebergTable(open_catalog(catalog, warehouse, storage or {}), target, columns, wanted)
