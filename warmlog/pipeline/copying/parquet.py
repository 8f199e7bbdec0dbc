"""A Parquet file that is written a row group at a time; memory is bounded by one row group and one Arrow batch."""

import os
from pathlib import Path
from typing import Any

ROW_GROUP_BYTES = 16 << 20  # large enough for readers of single columns, small enough to buffer
REPEATED = ("topic", "partition", "timestampType")  # columns with few distinct values


class ParquetFile:
    """Buffers record batches, and writes them as row groups. `sink`: a path, or a binary file open for writing."""

    def __init__(self, sink: Any, schema: Any, compression: str) -> None:
        from pyarrow import parquet

        repeated = [name for name in REPEATED if name in schema.names]
        self._schema = schema
        self._writer = parquet.ParquetWriter(sink, schema, compression=compression, use_dictionary=repeated)
        self._waiting: list[Any] = []
        self.waiting_bytes = 0

    def add(self, batch: Any) -> None:
        """Buffer a record batch; write a row group if there is enough for one. Raises OSError."""
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write buffered rows as one row group. Raises OSError."""
        if self._waiting:
            import pyarrow as pa

            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting, self.waiting_bytes = [], 0

    def finish(self) -> None:
        """Write buffered rows and the footer. Raises OSError."""
        self.flush()
        self._writer.close()

    def close(self) -> None:
        """Close without writing buffered rows."""
        self._writer.close()


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    sync(temporary)
    os.replace(temporary, path)


def sync(path: Path) -> None:
    """Flush a file or directory to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
