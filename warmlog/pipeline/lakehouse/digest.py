"""A digest of rows, the same whatever record batches, files and row groups they come in.

Each column is hashed by itself, in the order of the rows: fixed columns as 64-bit numbers; keys and values as their
bytes, and their lengths with -1 for null; headers as the lengths of their lists, and of these the keys and values. A
null list counts as an empty one, because pyiceberg writes the latter when it rewrites a file. The digest is the hash of
the columns' hashes. Rows that are missing, doubled, altered or in another order change it.
"""

from collections.abc import Sequence
from typing import Any

import xxhash

DIGEST_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


class RowDigest:
    """Digest of the rows that were added. `columns`: those that count; others are ignored."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = [name for name in DIGEST_COLUMNS if name in columns]
        self._hashes: dict[str, Any] = {}
        self.rows = 0

    def add(self, batch: Any) -> None:
        """Add the rows of a record batch with at least these columns."""
        self.rows += batch.num_rows
        for name in self._columns:
            self._add(name, batch.column(name))

    def _add(self, name: str, array: Any) -> None:
        import pyarrow as pa
        from pyarrow import compute

        kind = array.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            self._numbers(f"{name} lengths", compute.list_value_length(array).fill_null(0))
            pairs = compute.list_flatten(array)  # without those of null lists
            for field in pairs.type:
                self._add(f"{name} {field.name}", compute.struct_field(pairs, field.name))
        elif pa.types.is_timestamp(kind):
            self._numbers(name, array.cast(pa.timestamp("us", kind.tz), safe=False))
        elif pa.types.is_integer(kind):
            self._numbers(name, array)
        else:
            self._numbers(f"{name} lengths", compute.binary_length(array))
            self._update(f"{name} bytes", _data_of(array))

    def _numbers(self, name: str, array: Any) -> None:
        import pyarrow as pa

        self._update(name, array.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False))

    def _update(self, name: str, data: Any) -> None:
        if name not in self._hashes:
            self._hashes[name] = xxhash.xxh3_64()
        self._hashes[name].update(data)

    def copy(self) -> "RowDigest":
        """Return a digest of the same rows, to which others can be added."""
        other = RowDigest(self._columns)
        other.rows = self.rows
        other._hashes = {name: part.copy() for name, part in self._hashes.items()}
        return other

    def hexdigest(self) -> str:
        """Return the digest of the rows so far; empty without rows."""
        if not self.rows:
            return ""
        whole = xxhash.xxh3_64()
        for name, part in sorted(self._hashes.items()):
            whole.update(f"{name}:{part.hexdigest()};".encode())
        return str(whole.hexdigest())


def _data_of(array: Any) -> Any:
    """Return the bytes of all values of a binary or string array, one after the other."""
    import pyarrow as pa

    if array.null_count:
        array = array.drop_null()  # bytes below a null are undefined
    if not len(array):
        return b""
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    if not wide and not pa.types.is_binary(array.type) and not pa.types.is_string(array.type):
        return _data_of(array.cast(pa.large_binary()))  # views
    _, offsets, data = array.buffers()
    numbers = memoryview(offsets).cast("q" if wide else "i")
    first, end = numbers[array.offset], numbers[array.offset + len(array)]
    return memoryview(data)[first:end] if data is not None else b""
