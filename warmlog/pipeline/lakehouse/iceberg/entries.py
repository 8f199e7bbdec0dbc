"""The entries of files in an Iceberg table's manifests, with bounds of their columns.

pyiceberg reads bounds from a Parquet footer as Python's dates and times, which end with the year 9999. Columns with
values outside of these years have no bounds, so that readers open the file, which is always correct.

Source: the Iceberg specification, "Manifests" (`lower_bounds`, `upper_bounds`).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.writing import NewFile

METRICS = "write.metadata.metrics.column"  # prefix of the properties that choose the statistics of a column
COUNTS = "counts"  # without bounds
DAY_US = 86_400_000_000
PARTITION, SORT_ORDER = 3, 15  # numbers of fields of a manifest entry that pyiceberg computes itself


def data_files_of(table: Any, metadata: Any, files: Iterable[NewFile]) -> Iterator[Any]:
    """Yield the manifest entries of files in the table's data directory, which are arranged as the table says.

    `metadata`: pyiceberg's metadata of the table, with the columns that the files have. Raises PipelineError for a file
    that the table cannot have, OSError.
    """
    import pyarrow as pa
    from pyiceberg.io.pyarrow import parquet_file_to_data_file
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.typedef import Record

    # pyiceberg derives values of partitions from bounds, which not all transforms allow
    plain = {"partition_specs": [UNPARTITIONED_PARTITION_SPEC], "default_spec_id": UNPARTITIONED_PARTITION_SPEC.spec_id}
    location = f"{table.location().rstrip('/')}/data"
    for file in files:
        path = f"{location}/{file.name}"
        try:
            unbounded = {f"{METRICS}.{column}": COUNTS for column in _unbounded(table.io, path)}
            changed = metadata.model_copy(update={"properties": {**metadata.properties, **unbounded}, **plain})
            entry = parquet_file_to_data_file(table.io, changed, path)
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            if isinstance(error, OSError):
                raise
            raise PipelineError(f"{path} does not fit the table: {str(error).splitlines()[0]}") from error
        entry.spec_id = metadata.default_spec_id
        entry[PARTITION] = Record(*file.partition)
        if file.is_sorted:
            entry[SORT_ORDER] = metadata.default_sort_order_id
        yield entry


def partition_of(metadata: Any, entry: Any) -> dict[str, Any]:
    """Return the partition of a manifest entry, as fields of a `DataFile`."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    spec, schema = metadata.specs()[entry.spec_id], metadata.schema()
    values = tuple(entry.partition[at] for at in range(len(spec.fields)))
    constants = {}
    for field, value in zip(spec.fields, values, strict=True):
        name = schema.find_column_name(field.source_id)
        if name is not None and str(field.transform) == "identity":
            kind = schema_to_pyarrow(schema.find_field(field.source_id).field_type)
            plain = pa.scalar(value, pa.int32()) if pa.types.is_date32(kind) else pa.scalar(value, kind)
            constants[name] = plain.cast(kind)
    return {"partition": values if spec.spec_id == metadata.default_spec_id else None, "constants": constants}


def bounds_of(entry: Any, fields: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the least and greatest values of columns, as far as a manifest entry has them."""
    from pyiceberg.conversions import from_bytes

    low, high = entry.lower_bounds or {}, entry.upper_bounds or {}
    return {
        name: (from_bytes(field.field_type, low[field.field_id]), from_bytes(field.field_type, high[field.field_id]))
        for name, field in fields.items()
        if field.field_id in low and field.field_id in high
    }


def names_of(schema: Any) -> dict[int, str]:
    """Return the names of a schema's columns, and of fields inside of them, by id."""
    from pyiceberg.schema import index_by_id

    return {number: field.name for number, field in index_by_id(schema).items()}


def has_values(entry: Any, fields: Iterable[Any]) -> bool:
    """Return whether a manifest entry says that columns have a value in all rows."""
    counts = entry.null_value_counts or {}
    return all(field.field_id in counts and counts[field.field_id] == 0 for field in fields)


def with_ids(field: Any, iceberg_field: Any) -> Any:
    """Return an Arrow field and its nested fields with the ids of an Iceberg field, and as required as that."""
    import pyarrow as pa

    kind, inner = field.type, iceberg_field.field_type
    if pa.types.is_list(kind):
        kind = pa.list_(with_ids(kind.value_field, inner.element_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(with_ids(kind.key_field, inner.key_field), with_ids(kind.item_field, inner.value_field))
    elif pa.types.is_struct(kind):
        ids = {each.name: each for each in inner.fields}
        kind = pa.struct([with_ids(each, ids[each.name]) for each in kind])
    nullable = field.nullable and not iceberg_field.required
    return pa.field(field.name, kind, nullable, metadata={"PARQUET:field_id": str(iceberg_field.field_id)})


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
