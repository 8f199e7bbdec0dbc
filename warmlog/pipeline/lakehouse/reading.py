"""Read the rows of a partition from the files of a table, skipping files and row groups by their statistics."""

import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.in_order import GroupSize, ranges
from warmlog.pipeline.lakehouse.schemas.stored import StoredColumns
from warmlog.pipeline.lakehouse.schemas.types import normal
from warmlog.pipeline.lakehouse.writing import FileStore
from warmlog.protocol.partitions import TopicPartition

BATCH_ROWS = 1 << 14
SMALL_BYTES = 8 << 20  # maximum bytes of a cached row group
CACHE_BYTES = 64 << 20  # maximum bytes of all cached rows
SIZE_THREADS = 16  # files whose sizes are determined at the same time
FOOTERS = 16  # maximum number of cached footers
GROUPS = 4096  # maximum number of files whose row groups are known
ROW_KEYS = ("topic", "partition", "offset")  # columns that identify a row's record
NUMBERS = ROW_KEYS[1:]


class UnreadableFileError(PipelineError):
    """A file of a table is gone or damaged. The arguments are its path and the reason."""

    @property
    def path(self) -> str:
        """The path."""
        return str(self.args[0])

    @property
    def reason(self) -> str:
        """The reason, without the path."""
        return str(self.args[1])

    def __str__(self) -> str:
        return f"{self.args[0]} cannot be read: {self.args[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Rows of a partition with these offsets (`end` excluded), and the columns to read."""

    key: TopicPartition
    first: int
    end: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of a table. `bounds`: least and greatest values of columns, if known.

    `hides_rows`: whether a deletion vector or a delete file removes some of its rows. `partition`: values of the
    table's partition fields, None if the file has other fields. `constants`: Arrow scalars of columns that have the
    same value in all rows, and that the file may lack. `names`: the table's columns and fields by id; empty if files
    have its names. `is_keyed`: whether the table says that all rows have a partition and an offset.
    """

    path: str
    size: int
    bounds: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    hides_rows: bool = False
    partition: tuple[Any, ...] | None = ()
    constants: dict[str, Any] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    is_keyed: bool = False

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def may_hold(self, selection: Selection) -> bool:
        """Return whether the bounds allow rows of the selection."""
        topic, partition = selection.key
        return (
            _meet(self.bounds.get("topic"), topic, topic)
            and _meet(self.bounds.get("partition"), partition, partition)
            and _meet(self.bounds.get("offset"), selection.first, selection.end - 1)
        )

    def may_stray(self, topic: str, partitions: Collection[int]) -> bool:
        """Return whether it may have rows of a topic without an offset, or in none of these partitions."""
        if not _meet(self.bounds.get("topic"), topic, topic):
            return False
        low, high = self.bounds.get("partition", (-1, -1))
        least, _ = self.bounds.get("offset", (-1, -1))
        all_known = high - low < len(partitions) and all(number in partitions for number in range(low, high + 1))
        return not self.is_keyed or least < 0 or not all_known


def changed_files(store: FileStore, files: Sequence[DataFile]) -> list[DataFile]:
    """Return the files that are gone, or have another size than the table says. Their contents are not read."""

    def is_changed(file: DataFile) -> bool:
        try:
            with store.open(file.path) as stream:
                return bool(stream.seek(0, os.SEEK_END) != file.size)
        except OSError:
            return True

    with ThreadPoolExecutor(SIZE_THREADS) as threads:
        return [file for file, is_other in zip(files, threads.map(is_changed, files), strict=True) if is_other]


def _meet(bounds: tuple[Any, Any] | None, low: Any, high: Any) -> bool:
    return bounds is None or (bounds[0] <= high and low <= bounds[1])


class TableReader:
    """Reads rows of a table's files. Small row groups are cached for the next selection, up to `CACHE_BYTES`.

    A commit of a thousand partitions may be one file, which a thousand selections read. Not thread-safe.
    """

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, int, tuple[str, ...]], Any] = OrderedDict()
        self._kept_bytes = 0
        self._footers: OrderedDict[str, tuple[Any, StoredColumns]] = OrderedDict()
        self._groups: OrderedDict[str, list[DataFile]] = OrderedDict()

    def rows(self, file: DataFile, selection: Selection) -> Iterator[Any]:
        """Yield record batches of a file's rows in the selection, in stored order. Raises UnreadableFileError."""
        batches = self._rows(file, selection)
        while True:
            try:
                batch = next(batches, None)
            except Exception as error:  # a damaged footer causes errors of any kind
                reason = " ".join(str(error).split()) or type(error).__name__
                raise UnreadableFileError(file.path, reason) from error
            if batch is None:
                return
            yield batch

    def strays(self, file: DataFile, topic: str, partitions: Collection[int]) -> int:
        """Return how many rows of a topic have no offset, or are in none of these partitions.

        Raises UnreadableFileError.
        """
        import pyarrow as pa
        from pyarrow import compute, parquet

        count = 0
        try:
            with self._store.open(file.path) as stream, parquet.ParquetFile(stream) as opened:
                columns = self._keep(file, opened.metadata)
                constants = {name: file.constants[name] for name in file.constants.keys() & set(ROW_KEYS)}
                for batch in opened.iter_batches(BATCH_ROWS, columns=columns.stored_names(ROW_KEYS)):
                    rows = columns.read(batch)
                    rows = with_constants(rows, {name: constants[name] for name in constants.keys() - columns.stored})
                    topics = rows.column("topic") if "topic" in rows.schema.names else pa.repeat(topic, rows.num_rows)
                    in_topic = compute.fill_null(compute.equal(topics, topic), False)
                    known = compute.is_in(rows.column("partition"), pa.array(sorted(partitions), pa.int32()))
                    is_row = compute.and_(known, compute.greater_equal(rows.column("offset"), 0))
                    is_stray = compute.invert(compute.fill_null(is_row, False))
                    count += compute.and_(is_stray, in_topic).true_count
        except Exception as error:  # a damaged footer causes errors of any kind
            raise UnreadableFileError(file.path, " ".join(str(error).split()) or type(error).__name__) from error
        return count

    def ranges(
        self,
        files: Sequence[DataFile],
        selection: Selection,
        failed: Callable[[UnreadableFileError], Any] | None = None,
    ) -> Iterator[tuple[int, int]]:
        """Yield ranges of offsets of a selection (ends excluded) whose rows fit into memory, from all files together.

        `failed`: called with the error of a file that cannot be read, which is left out. Without it, that is raised.
        """
        sizes = []
        for file in files:
            if file.may_hold(selection):
                try:
                    sizes += self._group_sizes(file, selection)
                except UnreadableFileError as error:
                    if failed is None:
                        raise
                    failed(error)
        return ranges(sizes)

    def _group_sizes(self, file: DataFile, selection: Selection) -> list[GroupSize]:
        """Return the sizes of a file's row groups in a selection, as if their rows were spread evenly."""
        if file.path not in self._groups:
            self._groups[file.path] = self._read_groups(file)
            if len(self._groups) > GROUPS:
                self._groups.popitem(last=False)
        sizes = []
        for part in self._groups[file.path]:
            if part.may_hold(selection):
                low, high = part.bounds.get("offset", (selection.first, selection.end - 1))
                first, end = max(low, selection.first), min(high + 1, selection.end)
                if first >= end:
                    continue
                least, most = part.bounds.get("partition", (0, 0))
                share = (end - first) / (high + 1 - low) / (most - least + 1)
                sizes.append(GroupSize(first, end, part.size * share))
        return sizes

    def _read_groups(self, file: DataFile) -> list[DataFile]:
        """Return the row groups of a file, each with its decoded size and its bounds, or the file's if unknown."""
        from pyarrow import parquet

        try:
            with self._store.open(file.path) as stream:
                metadata = parquet.read_metadata(stream)
            columns = self._keep(file, metadata)
            groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
            return [
                replace(file, size=group.total_byte_size, bounds=file.bounds | _part(group, file, columns).bounds)
                for group in groups
                if group.num_rows
            ]
        except Exception as error:  # a damaged footer causes errors of any kind
            raise UnreadableFileError(file.path, " ".join(str(error).split()) or type(error).__name__) from error

    def _rows(self, file: DataFile, selection: Selection) -> Iterator[Any]:
        from pyarrow import parquet

        metadata, columns = self._footers.get(file.path, (None, None))
        if metadata is not None and columns is not None and not _numbers(metadata, file, columns, selection):
            return
        with self._store.open(file.path) as stream, parquet.ParquetFile(stream, metadata=metadata) as opened:
            columns = self._keep(file, opened.metadata)
            there = columns.stored
            for name in NUMBERS:
                if name not in there and name not in file.constants:
                    raise OSError(f"it has no column {name}")
            chosen_names = dict.fromkeys((*selection.columns, *ROW_KEYS))
            names = tuple(name for name in chosen_names if name in there)
            constants = {name: file.constants[name] for name in chosen_names if name in file.constants.keys() - there}
            for number in _numbers(opened.metadata, file, columns, selection):
                for batch in self._group(opened, file, number, columns, names):
                    chosen = _chosen(with_constants(batch, constants), selection)
                    if chosen.num_rows:
                        yield chosen

    def _keep(self, file: DataFile, metadata: Any) -> StoredColumns:
        columns = StoredColumns.of(metadata.schema.to_arrow_schema(), file.names)
        self._footers[file.path] = metadata, columns
        if len(self._footers) > FOOTERS:
            self._footers.popitem(last=False)
        return columns

    def _group(
        self, opened: Any, file: DataFile, number: int, columns: StoredColumns, names: tuple[str, ...]
    ) -> Iterator[Any]:
        key = file.path, number, names
        if key not in self._kept:
            read = opened.iter_batches(BATCH_ROWS, row_groups=[number], columns=columns.stored_names(names))
            batches = (_as_written(columns.read(batch)) for batch in read)
            if opened.metadata.row_group(number).total_byte_size > SMALL_BYTES:
                yield from batches
                return
            self._kept[key] = list(batches)
            self._kept_bytes += sum(batch.nbytes for batch in self._kept[key])
            while self._kept_bytes > CACHE_BYTES and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= sum(batch.nbytes for batch in dropped)
        self._kept.move_to_end(key)
        yield from self._kept[key]


def _numbers(metadata: Any, file: DataFile, columns: StoredColumns, selection: Selection) -> list[int]:
    """Return the numbers of the row groups that may have rows in the selection."""
    return [
        number
        for number in range(metadata.num_row_groups)
        if _part(metadata.row_group(number), file, columns).may_hold(selection)
    ]


def _part(group: Any, file: DataFile, columns: StoredColumns) -> DataFile:
    """Return a row group together with its bounds."""
    bounds = {}
    keys = {columns.stored[name]: name for name in ROW_KEYS if name in columns.stored}
    for number in range(group.num_columns):
        column = group.column(number)
        statistics = column.statistics
        if column.path_in_schema in keys and statistics and statistics.has_min_max:
            bounds[keys[column.path_in_schema]] = (statistics.min, statistics.max)
    return DataFile(path=file.path, size=file.size, bounds=bounds)


def _as_written(batch: Any) -> Any:
    """Return a batch with the types that this package writes; other programs may write large strings or views."""
    import pyarrow as pa

    schema = pa.schema([pa.field(field.name, normal(field.type)) for field in batch.schema])
    return batch if batch.schema.equals(schema) else batch.cast(schema)


def with_constants(batch: Any, constants: Mapping[str, Any]) -> Any:
    """Return a batch with columns that have the same value in all rows."""
    import pyarrow as pa

    for name, value in constants.items():
        batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
    return batch


def _chosen(batch: Any, selection: Selection) -> Any:
    """Return the rows in the selection; the most selective test comes first."""
    from pyarrow import compute

    topic, partition = selection.key
    batch = _filtered(batch, compute.equal(batch.column("partition"), partition))
    if batch.num_rows:
        offsets = batch.column("offset")
        mask = compute.and_(compute.greater_equal(offsets, selection.first), compute.less(offsets, selection.end))
        batch = _filtered(batch, mask)
    if batch.num_rows and "topic" in batch.schema.names:
        batch = _filtered(batch, compute.equal(batch.column("topic"), topic))
    return batch


def _filtered(batch: Any, mask: Any) -> Any:
    return batch if mask.true_count == batch.num_rows else batch.filter(mask)
