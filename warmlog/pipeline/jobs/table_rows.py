"""Read the rows of a partition of a table in the order in which they were written.

1. If offsets restart (the topic was recreated, or its log truncated), rows of the earlier log come first: files are
distinguished by the receipts that name them. Files that no receipt names belong to the last log.
2. Offsets are read in ranges, from all files that may have their rows, and sorted, because files may overlap (those of
several partitions do), and have another order. Memory is bounded by a range.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.in_order import by_offset
from warmlog.pipeline.lakehouse.ledger import lives_of
from warmlog.pipeline.lakehouse.reading import DataFile, Selection, TableReader
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.lakehouse.writing import FileStore
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.record import MAX_INT64


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Rows of a partition. `lives`: the files of each log, earliest log first; `store` opens them."""

    key: TopicPartition
    store: FileStore
    lives: tuple[tuple[DataFile, ...], ...]

    @property
    def size(self) -> int:
        """Size in bytes of the files, which other partitions may share."""
        return sum(file.size for files in self.lives for file in files)


def table_rows(table: Table) -> dict[TopicPartition, TableRows]:
    """Return the rows of each partition that the receipts of a table name. The table must have been read.

    Raises PipelineError for files of other programs that cannot be read in order.
    """
    receipts = [commit.receipt for commit in table.commits()][::-1]
    files = table.files()
    for file in files:
        if file.hides_rows:
            raise PipelineError(
                f"{table.name}: another program has only marked rows of {file.path} as deleted:"
                " rewrite the file first (OPTIMIZE of Delta, rewrite_data_files of Iceberg)"
            )
        if "offset" not in file.bounds:
            raise PipelineError(f"{table.name}: {file.path} has no statistics of the column offset: rewrite the file")
    store = table.store()
    keys = sorted({key for receipt in receipts for key in receipt.spans})
    return {key: TableRows(key=key, store=store, lives=_lives(key, receipts, files)) for key in keys}


def _lives(
    key: TopicPartition, receipts: Sequence[Receipt], files: Sequence[DataFile]
) -> tuple[tuple[DataFile, ...], ...]:
    named = [receipt for receipt in receipts if key in receipt.spans]
    owners: dict[str, set[int]] = {}
    last = 0
    for receipt, life in zip(named, lives_of(receipt.spans[key] for receipt in named), strict=True):
        last = life
        for name in receipt.files:
            owners.setdefault(name, set()).add(life)
    everything = Selection(key=key, first=0, end=MAX_INT64, columns=())
    there = [file for file in files if file.may_hold(everything)]
    return tuple(tuple(file for file in there if life in owners.get(file.name, {last})) for life in range(last + 1))


def read_rows(rows: TableRows, columns: Sequence[str], *, first: int = 0, end: int | None = None) -> Iterator[Any]:
    """Yield record batches with these offsets (end excluded). Raises OSError, and pyarrow's errors."""
    reader = TableReader(rows.store)
    for files in rows.lives:
        whole = Selection(key=rows.key, first=first, end=MAX_INT64 if end is None else end, columns=tuple(columns))
        for low, high in reader.ranges(files, whole):
            part = replace(whole, first=low, end=high)
            there = (file for file in files if file.may_hold(part))
            yield from by_offset(batch for file in there for batch in reader.rows(file, part))
