"""The newest record of each key in a batch, and the rows that it replaces.

DuckDB compares keys as they are, and continues on disk when they exceed `MEMORY_BYTES`. A key belongs to its partition:
only there does Kafka order the records of a key.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

import duckdb

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.reading import DataFile, UnreadableFileError, with_constants
from warmlog.pipeline.lakehouse.schemas.stored import StoredColumns
from warmlog.pipeline.lakehouse.schemas.types import conformed, normal
from warmlog.pipeline.lakehouse.upserts.changes import Changes
from warmlog.pipeline.lakehouse.writing import FileStore
from warmlog.protocol.partitions import TopicPartition

MEMORY_BYTES = 512 << 20
BATCH_ROWS = 1 << 16

NEWEST = """
CREATE TABLE newest AS
SELECT topic, "partition", key, max("offset") AS "offset", arg_max(deleted, "offset") AS deleted
FROM changes GROUP BY ALL
"""
SUPERSEDED = """
SELECT 0 AS file, topic, "partition", changes."offset" AS "offset"
FROM changes JOIN newest USING (topic, "partition", key)
WHERE changes."offset" < newest."offset" AND NOT changes.deleted
"""
REPLACED = """
SELECT rows.file, rows.topic, rows."partition", rows."offset", newest.deleted,
    rows."partition" <> newest."partition" AS elsewhere
FROM rows JOIN newest ON rows.topic = newest.topic AND rows.key = newest.key
"""

Offsets: TypeAlias = Mapping[TopicPartition, Any]  # sorted arrays of offsets


@dataclass(slots=True)
class Replacement:
    """Rows to leave out of files of the table: offsets by number of the file and partition.

    `updated`, `deleted`: number of keys whose row is replaced or deleted. `elsewhere`: number of rows in other
    partitions that have a key of the batch.
    """

    offsets: Mapping[int, Offsets] = field(default_factory=dict)
    updated: int = 0
    deleted: int = 0
    elsewhere: int = 0


class _Collected:
    """Offsets of rows by file and partition."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[TopicPartition, list[Any]]] = {}

    def add(self, rows: Any) -> None:
        """Add the rows of a record batch: file, topic, partition and offset."""
        import numpy as np

        topics = rows.column("topic").dictionary_encode()
        names = topics.dictionary.to_pylist()
        files, partitions = rows.column("file").to_numpy(), rows.column("partition").to_numpy()
        labels = np.stack([files, topics.indices.to_numpy(), partitions])
        offsets = rows.column("offset").to_numpy()
        groups, numbers = np.unique(labels, axis=1, return_inverse=True)
        for group, (file, topic, partition) in enumerate(groups.T.tolist()):
            parts = self._parts.setdefault(file, {}).setdefault((names[topic], partition), [])
            parts.append(offsets[numbers.ravel() == group])

    def offsets(self) -> dict[int, Offsets]:
        """Return the distinct offsets by number of the file."""
        import numpy as np

        return {
            file: {key: np.unique(np.concatenate(parts)) for key, parts in listed.items()}
            for file, listed in self._parts.items()
        }


def open_database(scratch: Path) -> duckdb.DuckDBPyConnection:
    """Return a database in memory that continues in a directory when it is full."""
    settings: dict[str, Any] = {
        "memory_limit": f"{MEMORY_BYTES >> 20}MiB",
        "temp_directory": str(scratch / "duckdb"),
        "preserve_insertion_order": False,
    }
    return duckdb.connect(config=settings)


@contextmanager
def database_errors() -> Iterator[None]:
    """Convert errors of DuckDB, such as a full disk, to the pipeline's."""
    try:
        yield
    except duckdb.Error as error:
        raise PipelineError(f"keys cannot be compared: {str(error).splitlines()[0]}") from error


class BatchKeys:
    """The keys of a batch. A context manager. Methods raise PipelineError."""

    def __init__(self, scratch: Path, changes: Changes) -> None:
        self._changes = changes
        self._key_type = changes.key_type
        self._database = open_database(scratch)
        self._database.register("changes", changes.reader())
        self._database.execute(NEWEST)

    def _run(self, query: str, name: str, rows: Any) -> Any:
        """Run a query about rows, a RecordBatchReader; return its result as another one."""
        self._database.register(name, rows)
        return self._database.sql(query).to_arrow_reader(BATCH_ROWS)

    def rows(self) -> int:
        """Return the number of keys that have a row after the batch."""
        (count,) = self._database.execute("SELECT count(*) FROM newest WHERE NOT deleted").fetchall()[0]
        return int(count)

    def _bounds(self) -> tuple[Any, Any] | None:
        """Return the least and the greatest key, if Parquet's statistics order keys of this type as DuckDB does."""
        import pyarrow as pa

        kinds = pa.types
        if not (kinds.is_integer(self._key_type) or kinds.is_binary(self._key_type) or kinds.is_string(self._key_type)):
            return None
        low, high = self._database.execute("SELECT min(key), max(key) FROM newest").fetchall()[0]
        return None if low is None else (low, high)

    def superseded(self) -> Offsets:
        """Return the offsets of records with a value that another record of the batch replaces."""
        collected = _Collected()
        for batch in self._run(SUPERSEDED, "changes", self._changes.reader()):
            collected.add(batch)
        return collected.offsets().get(0, {})

    def replaced(self, store: FileStore, files: Sequence[DataFile], topic: str | None) -> Replacement:
        """Return the rows of files that the batch replaces. `topic`: of rows without this column.

        Raises UnreadableFileError.
        """
        from pyarrow import compute

        replacement, collected = Replacement(), _Collected()
        failures: list[UnreadableFileError] = []

        def fail(file: DataFile, reason: str) -> None:
            failures.append(UnreadableFileError(file.path, reason))

        rows = rows_of(store, files, topic, self._key_type, unreadable=fail, bounds=self._bounds())
        for batch in self._run(REPLACED, "rows", rows):
            elsewhere = batch.column("elsewhere")
            gone = batch.filter(compute.invert(elsewhere)) if elsewhere.true_count else batch
            deleted = gone.column("deleted").true_count
            replacement.elsewhere += elsewhere.true_count
            replacement.deleted += deleted
            replacement.updated += gone.num_rows - deleted
            collected.add(gone)
        if failures:
            raise failures[0]
        replacement.offsets = collected.offsets()
        return replacement

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()


def rows_of(
    store: FileStore,
    files: Iterable[DataFile],
    topic: str | None,
    key_type: Any,
    *,
    unreadable: Callable[[DataFile, str], Any],
    bounds: tuple[Any, Any] | None = None,
) -> Any:
    """Return the keys of all rows of files as a RecordBatchReader: number of the file, topic, partition, key, offset.

    `unreadable`: called with each file that cannot be read, and the reason. `bounds`: least and greatest of the wanted
    keys; row groups without any of these are skipped.
    """
    import pyarrow as pa

    kinds = {"topic": pa.string(), "partition": pa.int32(), "key": key_type, "offset": pa.int64()}
    schema = pa.schema([("file", pa.int32()), *kinds.items()])

    def batches() -> Iterator[Any]:
        for number, file in enumerate(files):
            try:
                for batch in _batches(store, file, list(kinds), bounds):
                    columns = {name: batch.column(name) for name in batch.schema.names}
                    columns.setdefault("topic", pa.repeat(pa.scalar(topic, pa.string()), batch.num_rows))
                    arrays = [conformed(_as_normal(columns[name]), kind) for name, kind in kinds.items()]
                    numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
                    yield pa.RecordBatch.from_arrays([numbers, *arrays], schema=schema)
            except UnreadableFileError as error:  # DuckDB would not raise it as it is
                unreadable(file, error.reason)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _batches(store: FileStore, file: DataFile, names: Sequence[str], bounds: tuple[Any, Any] | None) -> Iterator[Any]:
    """Yield record batches of these columns, as far as a file has them. Raises UnreadableFileError."""
    from pyarrow import parquet

    try:
        with store.open(file.path) as stream, parquet.ParquetFile(stream) as opened:
            columns = StoredColumns.of(opened.schema_arrow, file.names)
            there = columns.stored
            count = opened.metadata.num_row_groups
            groups = [at for at in range(count) if _may_have(opened.metadata.row_group(at), there.get("key"), bounds)]
            constants = {name: file.constants[name] for name in names if name in file.constants.keys() - there}
            for batch in opened.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns.stored_names(names)):
                yield with_constants(columns.read(batch), constants)
    except Exception as error:  # a damaged footer causes errors of any kind
        raise UnreadableFileError(file.path, " ".join(str(error).split()) or type(error).__name__) from error


def _may_have(group: Any, name: str | None, bounds: tuple[Any, Any] | None) -> bool:
    """Return whether the statistics of a row group allow a key within the bounds. `name`: of keys in the file."""
    if bounds is None:
        return True
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == name and column.statistics is not None and column.statistics.has_min_max:
            low, high = column.statistics.min, column.statistics.max
            return type(low) is not type(bounds[0]) or bool(low <= bounds[1] and bounds[0] <= high)
    return True


def _as_normal(array: Any) -> Any:
    kind = normal(array.type)
    return array if array.type.equals(kind) else array.cast(kind)
