"""The entries of files in an Iceberg table's manifests, with bounds of their columns.

pyiceberg reads bounds from a Parquet footer as Python's dates and times, which end with the year 9999. Columns with
values outside of these years have no bounds, so that readers open the file, which is always correct.

Source: the Iceberg specification, "Manifests" (`lower_bounds`, `upper_bounds`).
"""

from collections.abc import Iterable, Iterator
from typing import Any

from warmlog.pipeline.errors import PipelineError

METRICS = "write.metadata.metrics.column"  # prefix of the properties that choose the statistics of a column
COUNTS = "counts"  # without bounds
DAY_US = 86_400_000_000


def data_files_of(table: Any, metadata: Any, names: Iterable[str]) -> Iterator[Any]:
    """Yield the manifest entries of files in the table's data directory.

    `metadata`: pyiceberg's metadata of the table, with the columns that the files have. Raises PipelineError for a file
    that the table cannot have, OSError.
    """
    import pyarrow as pa
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    location = f"{table.location().rstrip('/')}/data"
    for name in names:
        path = f"{location}/{name}"
        try:
            unbounded = {f"{METRICS}.{column}": COUNTS for column in _unbounded(table.io, path)}
            changed = metadata.model_copy(update={"properties": {**metadata.properties, **unbounded}})
            yield parquet_file_to_data_file(table.io, changed, path)
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            if isinstance(error, OSError):
                raise
            raise PipelineError(f"{path} does not fit the table: {str(error).splitlines()[0]}") from error


def _unbounded(files: Any, path: str) -> set[str]:
    """Return the columns of a file with a bound that has no Python object, or none with the same value."""
    from pyarrow import parquet

    with files.new_input(path).open() as stream:
        metadata = parquet.read_metadata(stream)
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    columns = (group.column(number) for group in groups for number in range(group.num_columns))
    return {column.path_in_schema for column in columns if not _has_bounds(column.statistics)}


def _has_bounds(statistics: Any) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True  # pyiceberg leaves these out itself
    if statistics.logical_type.type == "TIME":  # pyarrow wraps times of day around midnight
        return bool(statistics.min_raw >= 0 and statistics.max_raw < DAY_US)
    try:
        return statistics.min is not None and statistics.max is not None
    except (OverflowError, ValueError):
        return False
    except NotImplementedError:
        return True  # pyiceberg leaves these out itself
