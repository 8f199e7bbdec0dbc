"""The types of columns that tables can be partitioned and sorted by."""

from collections.abc import Iterable, Mapping
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.spec import OF_TIMES, Term, listed


def check_partition(table: str, terms: Iterable[Term], types: Mapping[str, Any], *, is_delta: bool) -> None:
    """Raise PipelineError for a term by which rows of a table cannot be partitioned. `types`: Arrow's, by column."""
    for term in terms:
        kind = types[term.column]
        if is_delta and term.transform not in {"identity", *OF_TIMES}:
            raise PipelineError(
                f"{table}: Delta tables have no partitions by {term}: name a column, or year, month, day or hour of a"
                " time, or use an Iceberg table (--catalog)"
            )
        if not _is_possible(term, kind, is_delta=is_delta):
            hint = f", but by day({term.column})" if _is_time(kind) and term.transform == "identity" else ""
            raise PipelineError(f"{table} cannot be partitioned by {term}, because {term.column} is {kind}{hint}")


def check_sort(table: str, terms: Iterable[Term], types: Mapping[str, Any]) -> None:
    """Raise PipelineError for a term by which the rows of a table cannot be sorted."""
    import pyarrow as pa

    for term in terms:
        if pa.types.is_nested(types[term.column]):
            raise PipelineError(f"{table} cannot be sorted by {term}, because it is {types[term.column]}")


def check_known(table: str, option: str, terms: Iterable[Term], types: Mapping[str, Any]) -> None:
    """Raise PipelineError for a term of a column that a new table does not have."""
    for term in terms:
        if term.column not in types:
            raise PipelineError(
                f"{option} {term}: {table} would have no column {term.column}, but {listed(types)}. Columns of schemas"
                " in a registry are known from the first record on: create the table with this column and partition"
                " first, by any other program"
            )


def _is_time(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind))


def _is_possible(term: Term, kind: Any, *, is_delta: bool) -> bool:
    import pyarrow as pa

    types = pa.types
    if term.transform in OF_TIMES:
        return _is_time(kind) or bool(types.is_date(kind) and term.transform != "hour")
    possible = [types.is_integer(kind), types.is_string(kind), types.is_decimal(kind)]
    if term.transform != "truncate":
        possible.append(types.is_date32(kind))
    if term.transform == "bucket":
        possible.append(_is_time(kind))
    if term.transform == "identity":
        possible.append(types.is_boolean(kind))
    if not is_delta:
        possible.append(types.is_binary(kind))
    return any(possible)
