"""Compare rows of a table with records of the log, one by one.

If a topic was deleted and created again, and another program has rewritten its rows, files have rows of both topics at
the same offsets. The log of the present topic says which of these are its own.
"""

from typing import Any

from warmlog.pipeline.lakehouse.digest import RowDigest
from warmlog.pipeline.lakehouse.schemas.formats import ERROR_COLUMN


def own_rows(rows: Any, log: Any, columns: tuple[str, ...], others: int) -> Any:
    """Return the rows that are of the topic with this log, in the order of offsets.

    `others`: how many rows of an offset may be of other topics. One row that is equal to the record is of this topic.
    Rows beyond it and `others` are returned as well: they are too many.
    """
    import numpy as np

    offsets = rows.column("offset").to_numpy()
    same = _is_logged(rows, log, columns)
    order = np.lexsort((~same, offsets))  # first of each offset: a row that is equal to its record
    rows, offsets, same = rows.take(order), offsets[order], same[order]
    _, first, counts = np.unique(offsets, return_index=True, return_counts=True)
    spare = np.where(same[first], counts - 1, counts)  # rows besides the record's own
    own = same[first] + np.maximum(spare - others, 0)
    number = np.arange(len(offsets)) - np.repeat(first, counts)
    return rows.take(np.flatnonzero(number < np.repeat(own, counts)))


def without_records(rows: Any, log: Any, columns: tuple[str, ...]) -> Any:
    """Return rows, sorted by offset, without one that is equal to the log's record at each offset."""
    import numpy as np

    offsets = rows.column("offset").to_numpy()
    equal = np.flatnonzero(_is_logged(rows, log, columns))
    _, first = np.unique(offsets[equal], return_index=True)
    kept = np.ones(len(offsets), bool)
    kept[equal[first]] = False
    return rows.take(np.flatnonzero(kept))


def digest_of(rows: Any, columns: tuple[str, ...]) -> RowDigest:
    """Return the digest of a table's rows; an empty one if it lacks columns."""
    digest = RowDigest(columns)
    if set(columns) <= set(rows.column_names):
        for batch in rows.combine_chunks().to_batches():
            digest.add(batch)
    return digest


def _is_logged(rows: Any, log: Any, columns: tuple[str, ...]) -> Any:
    """Return for each row whether it is equal to the log's record at its offset."""
    import numpy as np

    offsets = rows.column("offset").to_numpy()
    same = np.zeros(len(offsets), bool)
    if log is None or not len(offsets):
        return same
    logged = log.column("offset").to_numpy()
    at = np.minimum(np.searchsorted(logged, offsets), len(logged) - 1)
    there = np.flatnonzero(logged[at] == offsets)
    same[there] = equal_rows(log.take(at[there]), rows.take(there), columns)
    return same


def equal_rows(log: Any, table: Any, columns: tuple[str, ...]) -> Any:
    """Return for each row whether all columns are equal; null equals null."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute

    same = np.ones(log.num_rows, bool)
    for name in columns:
        left = log.column(name).combine_chunks()
        if name not in table.column_names:
            same &= left.is_null().to_numpy(zero_copy_only=False)
            continue
        right = table.column(name).combine_chunks()
        if name == ERROR_COLUMN:  # its text depends on the versions at the time of writing
            left, right = left.is_null(), right.is_null()
        if pa.types.is_nested(left.type):
            values = zip(left.to_pylist(), right.to_pylist(), strict=True)
            same &= np.array([_present(record) == _present(row) for record, row in values])
            continue
        if right.type != left.type:
            try:
                right = right.cast(left.type)
            except pa.ArrowException:  # another program changed the column
                return np.zeros(log.num_rows, bool)
        if pa.types.is_floating(left.type):  # NaN equals NaN
            left, right = (each.cast(pa.float64()).view(pa.int64()) for each in (left, right))
        equal = compute.fill_null(compute.equal(left, right), False)
        same &= compute.or_(equal, compute.and_(left.is_null(), right.is_null())).to_numpy(zero_copy_only=False)
    return same


def _present(value: Any) -> Any:
    """Return a nested value without nulls and empty lists, since fields may have been added after it was written."""
    if isinstance(value, dict):
        return {name: each for name, inner in value.items() if (each := _present(inner)) is not None}
    if isinstance(value, list | tuple):
        return [_present(each) for each in value] or None
    return repr(value) if value != value else value  # noqa: PLR0124 - NaN
