"""Columns of a table that rows of a topic go into: by name, with the types of the data source."""

from typing import Any

from warmlog.pipeline.errors import PipelineError

NEEDED = ("partition", "offset")  # without which no row could be accounted for


def check_columns(columns: tuple[str, ...], topics: int) -> None:
    """Raise PipelineError unless each row says where it is from. `topics`: how many go into the table."""
    needed = NEEDED if topics == 1 else ("topic", *NEEDED)
    missing = [name for name in needed if name not in columns]
    if missing:
        raise PipelineError(f"a table needs the columns {', '.join(missing)}: without them no row can be accounted for")


def check_column(table: str, name: str, actual: Any) -> None:
    """Raise PipelineError unless the table has a column of this name and type. `actual`: Arrow's type, None without."""
    from warmlog.pipeline.source.arrow import TYPES

    if actual is None:
        raise PipelineError(
            f"{table} has no column {name}: add it ({TYPES[name]}), or choose others by -o columns=NAME,..."
        )
    if not same_type(actual, TYPES[name]):
        raise PipelineError(f"{table}: column {name} is {actual}, and the topic's is {TYPES[name]}")


def same_type(actual: Any, wanted: Any) -> bool:
    """Whether two of Arrow's types hold the same values: large and small offsets are equal, names of items too."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_list(wanted):
        return (kinds.is_list(actual) or kinds.is_large_list(actual)) and same_type(
            actual.value_type, wanted.value_type
        )
    if kinds.is_struct(wanted):
        return (
            kinds.is_struct(actual)
            and [field.name for field in actual] == [field.name for field in wanted]
            and all(same_type(inner.type, other.type) for inner, other in zip(actual, wanted, strict=True))
        )
    if kinds.is_binary(wanted):
        return bool(kinds.is_binary(actual) or kinds.is_large_binary(actual) or actual == pa.binary_view())
    if kinds.is_string(wanted):
        return bool(kinds.is_string(actual) or kinds.is_large_string(actual) or actual == pa.string_view())
    return bool(actual == wanted)
