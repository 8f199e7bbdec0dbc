"""Merge tables that are sorted by the same keys.

Equal keys stay in the order of their sources. NaN is after all numbers, before or after nulls.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OrderKey:
    """A column by which rows are sorted."""

    column: str
    descending: bool = False
    nulls_last: bool = False


class _Descending:
    """A value that is less than those below it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: "_Descending") -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]


def sorted_by(table: Any, keys: Sequence[OrderKey]) -> Any:
    """Return a table's rows in order. Arrow has the same order of nulls for all keys, so nulls are keys themselves."""
    import pyarrow as pa
    from pyarrow import compute

    arrays, orders = [], []
    for key in keys:
        column = table.column(key.column)
        if column.null_count:
            arrays.append(column.is_null())
            orders.append("ascending" if key.nulls_last else "descending")
        arrays.append(column)
        orders.append("descending" if key.descending else "ascending")
    names = [str(number) for number in range(len(arrays))]
    indices = compute.sort_indices(pa.Table.from_arrays(arrays, names), sort_keys=list(zip(names, orders, strict=True)))
    return table.take(indices)


class SortedRows:
    """The sorted rows of a table, and the number of rows already taken."""

    def __init__(self, table: Any, keys: Sequence[OrderKey]) -> None:
        self._table = sorted_by(table, keys)
        self._columns = [(_plain(self._table.column(key.column)), key) for key in keys]
        self._taken = 0

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, at: int) -> Key:
        return tuple(_comparable(column[at].as_py(), key) for column, key in self._columns)

    @property
    def last(self) -> Key:
        """The last key."""
        return self[len(self) - 1]

    def take(self, until: Key) -> Any:
        """Return the next rows up to and including a key."""
        first, self._taken = self._taken, bisect_right(self, until, self._taken)
        return self._table.slice(first, self._taken - first)

    @property
    def is_empty(self) -> bool:
        """Whether all rows were taken."""
        return self._taken == len(self)


def merged(sources: Sequence[Iterator[SortedRows]], keys: Sequence[OrderKey]) -> Iterator[Any]:
    """Yield the rows of all sources in order, as tables.

    Each step takes the rows up to the least of the last keys in memory, because no source has an earlier key after
    that. Memory is bounded by one `SortedRows` of each source.
    """
    import pyarrow as pa

    heads = [next(source, None) for source in sources]
    while True:
        there = [(at, head) for at, head in enumerate(heads) if head is not None]
        if not there:
            return
        until = min(head.last for _, head in there)
        taken = []
        for at, head in there:
            taken.append(head.take(until))
            if head.is_empty:
                heads[at] = next(sources[at], None)
        parts = [table for table in taken if table.num_rows]
        yield parts[0] if len(parts) == 1 else sorted_by(pa.concat_tables(parts), keys).combine_chunks()


def _plain(column: Any) -> Any:
    """Return a column whose values have Python objects with the same order: times as numbers."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(kind) or pa.types.is_time64(kind) else column


def _comparable(value: Any, key: OrderKey) -> Key:
    if value is None:
        return (2 if key.nulls_last else 0,)
    if value != value:  # noqa: PLR0124 - NaN
        return 1, 1
    return 1, 0, _Descending(value) if key.descending else value
