"""The columns of a table's Parquet file, by the table's present names.

Iceberg identifies columns by ids. A column that was renamed has its earlier name in files written before, and one that
was dropped and added again is another one, which these files lack. Delta tables with column mapping are refused, so
files have the table's names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ID = b"PARQUET:field_id"
GONE = "\0"  # prefix of fields in structs that the table no longer has


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """Columns of a file. `schema`: Arrow's, with the table's names; `stored`: the name in the file of each of them.

    `names`: the table's names by id; empty if they are the file's.
    """

    schema: Any
    stored: Mapping[str, str]
    names: Mapping[int, str]

    @classmethod
    def of(cls, schema: Any, names: Mapping[int, str]) -> "StoredColumns":
        """Return the columns of a file with this Arrow schema.

        Columns that the table no longer has are left out. A field without an id keeps its name.
        """
        import pyarrow as pa

        renamed = [_renamed(field, names) for field in schema]
        pairs = [pair for pair in zip(renamed, schema, strict=True) if not pair[0].name.startswith(GONE)]
        kept = pa.schema([after.with_type(_without_gone(after.type)) for after, _ in pairs])
        stored = {after.name: before.name for after, before in pairs}
        return cls(kept, stored, {} if kept.equals(schema) else names)

    def stored_names(self, wanted: Iterable[str]) -> list[str]:
        """Return the names in the file of columns, as far as it has them."""
        return [self.stored[name] for name in wanted if name in self.stored]

    def read(self, rows: Any) -> Any:
        """Return a record batch or table of the file with the table's names, and without fields that are gone."""
        import pyarrow as pa

        if not self.names:
            return rows
        rows = rows.select([name for name in rows.schema.names if name in set(self.stored.values())])
        renamed = [_renamed(field, self.names) for field in rows.schema]
        schema = pa.schema([field.with_type(_without_gone(field.type)) for field in renamed])
        columns = [
            _with_names(column, field.type).cast(kind)
            for column, field, kind in zip(rows.columns, renamed, schema.types, strict=True)
        ]
        return type(rows).from_arrays(columns, schema=schema)


class _Renamed:
    """An array whose type has other names. Arrow's C interface takes type and values separately."""

    def __init__(self, array: Any, kind: Any) -> None:
        self._array = array
        self._kind = kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return self._kind.__arrow_c_schema__(), self._array.__arrow_c_array__(requested_schema)[1]


def _with_names(column: Any, kind: Any) -> Any:
    import pyarrow as pa

    if column.type.equals(kind):
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([pa.array(_Renamed(chunk, kind)) for chunk in column.chunks], kind)
    return pa.array(_Renamed(column, kind))


def _renamed(field: Any, names: Mapping[int, str]) -> Any:
    """Return a field, and fields inside of it, with the table's names."""
    import pyarrow as pa

    if not names:
        return field
    kind, kinds = field.type, pa.types
    if kinds.is_struct(kind):
        kind = pa.struct([_renamed(each, names) for each in kind])
    elif kinds.is_list(kind):
        kind = pa.list_(_inside(kind.value_field, names))
    elif kinds.is_large_list(kind):
        kind = pa.large_list(_inside(kind.value_field, names))
    elif kinds.is_map(kind):
        kind = pa.map_(_inside(kind.key_field, names), _inside(kind.item_field, names))
    number = (field.metadata or {}).get(ID)
    name = field.name if number is None else names.get(int(number), f"{GONE}{int(number)}")
    return pa.field(name, kind, field.nullable, field.metadata)


def _inside(field: Any, names: Mapping[int, str]) -> Any:
    """Return the field of a list's or map's values: its name is that of the format."""
    return _renamed(field, names).with_name(field.name)


def _without_gone(kind: Any) -> Any:
    """Return a type without the fields that the table no longer has."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_struct(kind):
        left = [each for each in kind if not each.name.startswith(GONE)]
        return pa.struct([each.with_type(_without_gone(each.type)) for each in left])
    if kinds.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_gone(kind.value_type)))
    if kinds.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_without_gone(kind.value_type)))
    if kinds.is_map(kind):
        item = kind.item_field.with_type(_without_gone(kind.item_type))
        return pa.map_(kind.key_field.with_type(_without_gone(kind.key_type)), item)
    return kind
