"""The columns that a table has for a topic: those of the source, and those that follow from schemas.

A decoded key is in the column `key`. Each field of a value that is a record is a column with the field's name; with
`nest_value`, or if the value is not a record, the value is in the column `value`. Rows that do not fit have their bytes
in `rawKey` or `rawValue`, and the reason in `decodeError`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from warmlog.pipeline.lakehouse.schemas.formats import ERROR_COLUMN, RAW_COLUMNS, Formats, Side
from warmlog.pipeline.lakehouse.schemas.types import SchemaError
from warmlog.pipeline.source.options import COLUMNS


class Layout:
    """The columns of a topic's rows. `columns`: the chosen columns of the source."""

    def __init__(self, formats: Formats, columns: Sequence[str]) -> None:
        self.formats = formats
        self.source = tuple(columns)
        self.decoded: tuple[Side, ...] = tuple(side for side in formats.decoded if side in columns)

    @property
    def plain(self) -> tuple[str, ...]:
        """The columns that are copied from the source unchanged."""
        return tuple(name for name in self.source if name not in self.decoded)

    def errors(self) -> list[Any]:
        """Return the columns for rows that do not fit: none unless such rows are stored."""
        import pyarrow as pa

        if self.formats.on_bad_row != "null" or not self.decoded:
            return []
        return [
            pa.field(ERROR_COLUMN, pa.string()),
            *(pa.field(RAW_COLUMNS[side], pa.binary()) for side in self.decoded),
        ]

    def is_spread(self, side: Side, kind: Any) -> bool:
        """Return whether each field of a side's type is a separate column."""
        import pyarrow as pa

        return side == "value" and pa.types.is_struct(kind) and not self.formats.nest_value

    def fields(self, side: Side, kind: Any) -> list[Any]:
        """Return the columns for a side's type. Raises SchemaError for a name that another column has."""
        import pyarrow as pa

        if not self.is_spread(side, kind):
            return [pa.field(side, kind)]
        taken = {name.casefold(): name for name in (*COLUMNS, ERROR_COLUMN, *RAW_COLUMNS.values()) if name != side}
        for field in kind:
            if field.name.casefold() in taken:
                raise SchemaError(
                    f"field {field.name} of the value has the name of the column {taken[field.name.casefold()]}:"
                    " --nest-value keeps the fields of values in one column"
                )
        return list(kind)

    def schema(self, sides: Sequence[Sequence[Any]], stored: Callable[[Any], Any]) -> Any:
        """Return the schema of rows. `sides`: the columns of decoded sides; `stored`: converts types to the table's."""
        import pyarrow as pa

        from warmlog.pipeline.source.arrow import arrow_schema

        decoded = {field.name: field for fields in sides for field in fields}
        own = {field.name: field for field in arrow_schema(self.source)}
        ordered = [decoded.pop(name, None) if name in self.decoded else own[name] for name in self.source]
        fields = [*(field for field in ordered if field is not None), *decoded.values(), *self.errors()]
        return pa.schema([pa.field(field.name, stored(field.type)) for field in fields])
