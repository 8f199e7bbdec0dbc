"""Values of terms for the rows of a table, as columns beside its own.

Times are divided with rounding down, so that times before 1970 are in the right partition, and with numbers of 64 bits,
so that times after the year 9999 have one, too.
"""

from collections.abc import Sequence
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.ordering import OrderKey
from warmlog.pipeline.lakehouse.arrangement.spec import (
    MAX_NUMBER,
    OF_TIMES,
    WITH_NUMBER,
    Arrangement,
    PartitionField,
    Term,
)

UNITS = {"year": "Y", "month": "M", "day": "D", "hour": "h"}  # as numpy has them
LAST_YEAR = 9999  # of Delta's dates
ROW_KEYS = ("topic", "partition", "offset")  # rows that are otherwise equal are in this order


class Terms:
    """Computes the terms of an arrangement for tables. `names`: their columns.

    `partition`: keys of the partition fields; `order`: these, and the keys by which rows of a partition are sorted.
    """

    def __init__(self, arrangement: Arrangement, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._terms: dict[str, tuple[Term, PartitionField | None]] = {}
        self.partition: list[OrderKey] = []
        for number, field in enumerate(arrangement.partition):
            self._terms[f"partition {number}"] = field.term, field
            self.partition.append(OrderKey(f"partition {number}"))
        self.order = list(self.partition)
        for number, each in enumerate(arrangement.sort):
            if each.term.column in self._names:
                self._terms[f"sort {number}"] = each.term, None
                self.order.append(OrderKey(f"sort {number}", descending=each.descending, nulls_last=each.nulls_last))
        self.order += [OrderKey(name) for name in ROW_KEYS if name in self._names]

    def added(self, table: Any) -> Any:
        """Return a table with a column for each term. Raises PipelineError for a value that no partition can have."""
        import pyarrow as pa

        for name, (term, field) in self._terms.items():
            if term.column in self._names:
                column = _combined(table.column(term.column))
                values = transformed(term, column) if field is None else _partition_of(field, column)
            else:
                values = pa.nulls(table.num_rows, pa.int32())
            table = table.append_column(name, values)
        return table

    def removed(self, table: Any) -> Any:
        """Return a table without the columns of terms."""
        return table.select(self._names)


def misplaced(arrangement: Arrangement, partition: Sequence[Any] | None, rows: Any) -> Any:
    """Return for each row of a file whether its times are of another partition, so that queries of theirs miss it.

    `partition`: values of the file's partition fields, None if it has other fields.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute

    wrong = np.zeros(rows.num_rows, bool)
    fields = [] if partition is None else zip(arrangement.partition, partition, strict=True)
    for field, value in fields:
        name = field.term.column
        if field.term.transform in OF_TIMES and name in rows.schema.names and _is_time(rows.schema.field(name).type):
            values = _partition_of(field, rows.column(name))
            if value is None:
                wrong |= values.is_valid().to_numpy(zero_copy_only=False)
            else:
                same = compute.fill_null(compute.equal(values, pa.scalar(value, values.type)), False)
                wrong |= ~same.to_numpy(zero_copy_only=False)
    return wrong


def _partition_of(field: PartitionField, column: Any) -> Any:
    """Return the values of a partition field for a column, as the table has them."""
    values = transformed(field.term, _combined(column))
    return _of_delta(field, values) if field.column else values


def _combined(column: Any) -> Any:
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _is_time(kind: Any) -> bool:
    """Return whether a column still has times: another program may have changed its type."""
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def transformed(term: Term, array: Any) -> Any:
    """Return the values of a term as Iceberg's specification has them; null for null. Raises PipelineError."""
    import numpy as np
    import pyarrow as pa

    kind = array.type
    if term.transform == "identity":
        return array.cast(pa.int32()) if pa.types.is_date32(kind) else array
    if term.transform in WITH_NUMBER:
        return _by_library(term, array)
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", kind.tz))
    numbers = array.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()).fill_null(0)
    unit = "D" if pa.types.is_date32(kind) else "us"
    times = numbers.to_numpy(zero_copy_only=False).astype(f"datetime64[{unit}]")
    values = times.astype(f"datetime64[{UNITS[term.transform]}]").astype(np.int64)
    if len(values) and max(-values.min(), values.max()) > MAX_NUMBER:
        raise PipelineError(f"a row has a {term.column} so far from 1970 that {term} has more than 32 bits")
    return pa.array(values.astype(np.int32), mask=array.is_null().to_numpy(zero_copy_only=False))


def _by_library(term: Term, array: Any) -> Any:
    """Return the values that pyiceberg computes, once for each distinct value."""
    import pyarrow as pa
    from pyiceberg import transforms
    from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, visit_pyarrow

    if pa.types.is_timestamp(array.type):
        distinct = array.cast(pa.int64()).dictionary_encode()
    else:
        distinct = array.dictionary_encode()
    kind = visit_pyarrow(array.type, _ConvertToIcebergWithoutIDs())
    is_bucket = term.transform == "bucket"
    made: Any = transforms.BucketTransform(term.number) if is_bucket else transforms.TruncateTransform(term.number)
    compute_value = made.transform(kind)
    values = [compute_value(value) for value in distinct.dictionary.to_pylist()]
    try:
        transformed = pa.array(values, pa.int32() if is_bucket else array.type)
    except (OverflowError, pa.ArrowInvalid) as error:  # less than the least long, for example
        raise PipelineError(
            f"a row has a {term.column} for which {term} has no value of its type: partition by another column"
        ) from error
    return transformed.take(distinct.indices)


def _of_delta(field: PartitionField, values: Any) -> Any:
    """Return values as a partition column of a Delta table has them: dates, or texts such as 2026-11-29-10."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute

    transform = field.term.transform
    if transform == "identity":
        if pa.types.is_string(values.type) and compute.any(compute.equal(values, "")).as_py():
            raise PipelineError(
                f"a row has an empty {field.term.column}, which Delta tables cannot tell from null as a partition:"
                " partition by another column"
            )
        return values
    mask = values.is_null().to_numpy(zero_copy_only=False)
    times = values.fill_null(0).to_numpy(zero_copy_only=False).astype(f"datetime64[{UNITS[transform]}]")
    years = times.astype("datetime64[Y]").astype(np.int64) + 1970
    mask = mask | (years < 1) | (years > LAST_YEAR)
    if transform == "year":
        return pa.array(years.astype(np.int32), mask=mask)
    if transform == "day":
        return pa.array(times.astype(np.int64).astype(np.int32), mask=mask)
    texts = np.char.replace(np.datetime_as_string(times), "T", "-")
    return pa.array(texts.tolist(), pa.string(), mask=mask)
