"""The columns of a table for rows of a topic, with the names and types of the data source."""

from collections.abc import Collection, Iterator
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.schemas.types import normal

NEEDED = ("partition", "offset")  # needed to account for each row

NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


def check_columns(columns: tuple[str, ...], topics: int) -> None:
    """Raise PipelineError unless rows have topic, partition and offset. `topics`: number of topics in the table."""
    needed = NEEDED if topics == 1 else ("topic", *NEEDED)
    missing = [name for name in needed if name not in columns]
    if missing:
        raise PipelineError(f"a table needs the columns {', '.join(missing)}: without them no row can be accounted for")


def check_column(table: str, name: str, actual: Any) -> None:
    """Raise PipelineError unless the table has a column of this name and type. `actual`: its Arrow type, or None."""
    from warmlog.pipeline.source.arrow import TYPES

    if actual is None:
        raise PipelineError(
            f"{table} has no column {name}: add it ({TYPES[name]}), or choose others by -o columns=NAME,...;"
            " decoded rows need the format that they were decoded from (--value-format)"
        )
    if not normal(actual).equals(TYPES[name]):
        raise PipelineError(f"{table}: column {name} is {actual}, and the topic's is {TYPES[name]}")


def check_nulls(table: str, field: Any, written: Collection[str], never_null: Collection[str] = NEVER_NULL) -> None:
    """Raise PipelineError if a column, or a written field in it, must not be null although rows may have no value.

    `field`: the column in the table, as an Arrow field; `written`: names of the columns that rows have; `never_null`:
    paths of those whose values are never null.
    """
    is_written = field.name in written
    required = _required(field, field.name) if is_written or not field.nullable else ()
    for path in required:
        if not is_written or path not in never_null:
            raise PipelineError(
                f"{table}: column {path} must not be null, and rows may have no value for it: make it nullable"
                f" (ALTER TABLE … ALTER COLUMN {path} DROP NOT NULL)"
            )


def _required(field: Any, path: str) -> Iterator[str]:
    """Yield the paths that must not be null, in a field and in those inside of it. Keys of maps always have values."""
    import pyarrow as pa

    if not field.nullable:
        yield path
    kind = field.type
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from _required(inner, f"{path}.{inner.name}")
    elif pa.types.is_map(kind):
        yield from _required(kind.item_field, f"{path}.value")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _required(kind.value_field, f"{path}.element")
