"""A Parquet file that is written a row group at a time, in a thread, while the rows of the next one are buffered.

Compression and encoding hold no GIL, so a task reads and decodes meanwhile. Memory is bounded by two row groups and one
Arrow batch.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROW_GROUP_BYTES = 16 << 20  # large enough for readers of single columns, small enough to buffer
REPEATED = ("topic", "partition", "timestampType")  # columns with few distinct values


class ParquetFile:
    """Buffers record batches, and writes them as row groups. `sink`: a binary file open for writing; remains open."""

    def __init__(self, sink: Any, schema: Any, compression: str) -> None:
        from pyarrow import parquet

        repeated = [name for name in REPEATED if name in schema.names]
        self._sink = sink
        self._schema = schema
        self._writer = parquet.ParquetWriter(sink, schema, compression=compression, use_dictionary=repeated)
        self._waiting: list[Any] = []
        self._thread = ThreadPoolExecutor(1, "warmlog-parquet")  # started by the first full row group
        self._writing: Future[int] | None = None
        self._writing_bytes = 0
        self._written_bytes = int(sink.tell())
        self._waiting_bytes = 0

    def add(self, batch: Any) -> None:
        """Buffer a record batch; begin to write a full row group. Raises OSError of earlier ones."""
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._wait()
            self._writing = self._thread.submit(self._write, self._waiting)
            self._writing_bytes = self._waiting_bytes
            self._waiting, self._waiting_bytes = [], 0

    def has_reached(self, size: int) -> bool:
        """Return whether the row groups begun so far take this many bytes of the file. Raises OSError."""
        if self._written_bytes + self._writing_bytes >= size:  # compressed, they hardly take more
            self._wait()
        return self._written_bytes >= size

    def finish(self) -> None:
        """Write buffered rows and the footer. Raises OSError."""
        self._wait()
        if self._waiting:
            self._write(self._waiting)
        self.close()

    def close(self) -> None:
        """Close without writing buffered rows; the footer lists the row groups that were written. Raises OSError."""
        self._thread.shutdown()
        self._writer.close()

    def _wait(self) -> None:
        """Wait until the row group before is written. Raises OSError if that failed."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            self._writing_bytes = 0
            self._written_bytes = writing.result()

    def _write(self, batches: Sequence[Any]) -> int:
        """Write a row group; return the size of the file so far."""
        import pyarrow as pa

        table = pa.Table.from_batches(batches, self._schema)
        self._writer.write_table(table, row_group_size=table.num_rows)
        return int(self._sink.tell())


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
