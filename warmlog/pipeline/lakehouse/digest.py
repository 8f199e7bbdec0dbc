"""A digest of rows, independent of their division into record batches, files and row groups.

Each column is hashed separately, in row order: numbers and times as 64-bit numbers regardless of their width, so that a
column can be widened; decimals as text; text and bytes as their bytes and their lengths, with -1 for null;
lists and maps as their lengths and their items; structs as their fields. Nulls are hashed by their positions. Fields
that are null in all rows are ignored, so that fields can be added. A null list counts as an empty one, because
pyiceberg writes the latter when it rewrites a file. The digest is the hash of the columns' hashes. Rows that are
missing, duplicated, altered or reordered change it. Only the positions of decoding errors are hashed, because their
texts depend on the versions of libraries, and on the table's columns at that time.
"""

from collections.abc import Sequence
from typing import Any

import xxhash

from warmlog.pipeline.lakehouse.schemas.formats import ERROR_COLUMN


class RowDigest:
    """Digest of the added rows. `columns`: the columns included; others are ignored."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._hashes: dict[tuple[str, str], Any] = {}  # by column (or path within it) and part
        self._counts: dict[str, int] = {}  # number of values so far, nulls included
        self._valued: set[str] = set()  # names of the fields with at least one value
        self.rows = 0

    def add(self, batch: Any) -> None:
        """Add the rows of a record batch with at least these columns."""
        self.rows += batch.num_rows
        for name in self._columns:
            column = batch.column(name)
            self._add(name, column if name != ERROR_COLUMN else column.is_null())

    def _add(self, name: str, array: Any) -> None:
        import pyarrow as pa
        from pyarrow import compute

        kind, kinds = array.type, pa.types
        if kinds.is_map(kind):
            array = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
            kind = array.type
        if kinds.is_list(kind) or kinds.is_large_list(kind):
            lengths = compute.list_value_length(array).fill_null(0)
            self._numbers(name, "lengths", lengths, is_valued=compute.max(lengths).as_py() != 0)
            self._add(f"{name} items", compute.list_flatten(array))  # without the items of null lists
        elif kinds.is_struct(kind):
            self._nulls(name, array)
            for field, part in zip(kind, array.flatten(), strict=True):
                self._add(f"{name} {field.name}", part)
        elif (numbers := _numbers_of(array)) is not None:
            self._numbers(name, "numbers", numbers)
        else:
            data = _data_of(array)
            self._numbers(name, "lengths", compute.binary_length(data))
            self._update(name, "bytes", _bytes_of(data))

    def _nulls(self, name: str, array: Any) -> None:
        """Hash the positions of nulls, and record whether any value is not null."""
        import numpy as np

        count = self._counts.get(name, 0)
        self._counts[name] = count + len(array)
        if array.null_count < len(array):
            self._valued.add(name)
        if array.null_count:
            nulls = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)) + count
            self._update(name, "nulls", nulls)

    def _numbers(self, name: str, part: str, array: Any, *, is_valued: bool = True) -> None:
        import pyarrow as pa

        if is_valued:
            self._nulls(name, array)
        self._update(name, part, array.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False))

    def _update(self, name: str, part: str, data: Any) -> None:
        key = name, part
        if key not in self._hashes:
            self._hashes[key] = xxhash.xxh3_64()
        self._hashes[key].update(data)

    def copy(self) -> "RowDigest":
        """Return an independent copy, to which further rows can be added."""
        other = RowDigest(self._columns)
        other.rows = self.rows
        other._hashes = {key: part.copy() for key, part in self._hashes.items()}
        other._counts = dict(self._counts)
        other._valued = set(self._valued)
        return other

    def hexdigest(self) -> str:
        """Return the digest of the rows so far, or an empty string if there are none."""
        if not self.rows:
            return ""
        whole = xxhash.xxh3_64()
        for (name, part), hashed in sorted(self._hashes.items()):
            if name in self._valued:
                whole.update(f"{name} {part}:{hashed.hexdigest()};".encode())
        return str(whole.hexdigest())


def _numbers_of(array: Any) -> Any:
    """Return fixed-size values as integers, or None for other types."""
    import pyarrow as pa

    kind, kinds = array.type, pa.types
    if kinds.is_timestamp(kind):
        return array.cast(pa.timestamp("us", kind.tz), safe=False)
    if kinds.is_floating(kind):
        return array.cast(pa.float64()).view(pa.int64())
    if kinds.is_date(kind):
        return array.cast(pa.date32()).cast(pa.int32())
    return array if kinds.is_integer(kind) or kinds.is_boolean(kind) or kinds.is_time(kind) else None


def _data_of(array: Any) -> Any:
    """Return values of variable size as text or bytes."""
    import pyarrow as pa

    if pa.types.is_decimal(array.type):
        return array.cast(pa.string())
    return array.cast(pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array


def _bytes_of(array: Any) -> Any:
    """Return the concatenated bytes of all values of a binary or string array."""
    import pyarrow as pa

    if array.null_count:
        array = array.drop_null()  # bytes of a null are undefined
    if not len(array):
        return b""
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    if not wide and not pa.types.is_binary(array.type) and not pa.types.is_string(array.type):
        return _bytes_of(array.cast(pa.large_binary()))  # view types
    _, offsets, data = array.buffers()
    numbers = memoryview(offsets).cast("q" if wide else "i")
    first, end = numbers[array.offset], numbers[array.offset + len(array)]
    return memoryview(data)[first:end] if data is not None else b""
