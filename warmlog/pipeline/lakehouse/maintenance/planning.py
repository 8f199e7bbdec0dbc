"""Choose which files of a table are merged: bins of small files, each rewritten separately.

1. Only files that warmlog has written, judging by their names or by receipts, are rewritten. Files of other programs
stay as they are, as do files with rows that deletion vectors or delete files remove.
2. Files of a bin have the same columns, down to the types, rows of the same era (`ledger`), and the same partition.
Files that no receipt names any more are merged only with each other, and files of an earlier partition spec stay as
they are.
3. A bin's row groups fit into memory: `OPEN_BYTES`, and at most `OPEN_FILES` files. The merged file may still be small,
and is then a candidate for another bin.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from warmlog.pipeline.lakehouse.arrangement.sorting import Values
from warmlog.pipeline.lakehouse.ledger import eras
from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.schemas.stored import StoredColumns
from warmlog.pipeline.lakehouse.writing import PREFIX, FileStore

OPEN_BYTES = 256 << 20  # maximum size of decoded row groups, one of each file of a bin
OPEN_FILES = 64
SMALL = 0.75  # share of the target size below which a file is rewritten
BIN_TARGETS = 8  # maximum size of a bin, and of a commit, in target sizes; a kill or a conflict repeats this much work
UNKNOWN_ERA = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """Contents of a file's footer.

    `schema`: Arrow's, with field ids and the table's names. `group_bytes`: largest row group, decoded.
    """

    schema: Any
    group_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Files to rewrite together, in commit order, and the receipts that name them."""

    files: tuple[DataFile, ...]
    schema: Any
    receipts: tuple[Receipt, ...]

    @property
    def size(self) -> int:
        """Size of its files in bytes."""
        return sum(file.size for file in self.files)

    @property
    def partition(self) -> Values:
        """The values of the partition fields of its files."""
        return self.files[0].partition or ()


def read_footer(store: FileStore, file: DataFile) -> Footer:
    """Read the footer of a file. Raises OSError, and pyarrow's errors for a damaged file."""
    from pyarrow import parquet

    with store.open(file.path) as stream, parquet.ParquetFile(stream) as opened:
        metadata = opened.metadata
        groups = (metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        columns = StoredColumns.of(opened.schema_arrow.remove_metadata(), file.names)
        return Footer(schema=columns.schema, group_bytes=max(groups, default=0))


def candidates(files: Iterable[DataFile], receipts: Iterable[Receipt], target: int) -> list[DataFile]:
    """Return the files that are small enough to be rewritten. `target`: size of a file, in bytes."""
    named = {name for receipt in receipts for name in receipt.files}
    return [
        file
        for file in files
        if (file.name.startswith(PREFIX) or file.name in named) and not file.hides_rows and file.size < SMALL * target
    ]


def bins(
    files: Sequence[tuple[DataFile, Footer]], receipts: Sequence[Receipt], target: int, skip: Iterable[frozenset[str]]
) -> list[Bin]:
    """Return the bins of candidates. `receipts`: from oldest to newest. `skip`: names of bins to leave as they are."""
    order: dict[str, tuple[int, int]] = {}
    for number, (receipt, era) in enumerate(zip(receipts, eras(receipts), strict=True)):
        for name in receipt.files:
            order[name] = era, number
    groups: dict[tuple[int, bytes, Values | None], list[tuple[int, DataFile, Footer]]] = {}
    for file, footer in files:
        era, number = order.get(file.name, (UNKNOWN_ERA, 0))
        columns = footer.schema.serialize().to_pybytes()
        groups.setdefault((era, columns, file.partition), []).append((number, file, footer))
    made, left_out = [], set(skip)
    for _, listed in sorted(groups.items(), key=lambda item: item[0][:2]):
        listed.sort(key=lambda each: (each[0], each[1].bounds.get("offset", (0, 0))[0], each[1].path))
        for part in parts_of([(file, footer) for _, file, footer in listed], target):
            names = frozenset(file.name for file, _ in part)
            if len(part) - sum(file.size for file, _ in part) / target >= 1 and names not in left_out:
                named = tuple(receipt for receipt in receipts if not names.isdisjoint(receipt.files))
                made.append(Bin(files=tuple(file for file, _ in part), schema=part[0][1].schema, receipts=named))
    return made


def together(planned: Sequence[Bin], target: int) -> Iterator[list[Bin]]:
    """Yield the bins of each commit, in order. Those of a table with many partitions are small."""
    group: list[Bin] = []
    for part in planned:
        if group and sum(each.size for each in group) + part.size > BIN_TARGETS * target:
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def parts_of(files: Sequence[tuple[DataFile, Footer]], target: int) -> list[list[tuple[DataFile, Footer]]]:
    """Divide files, in order, into bins within the limits. `target`: size of a file, in bytes."""
    parts: list[list[tuple[DataFile, Footer]]] = [[]]
    size = memory = 0
    for file, footer in files:
        full = size + file.size > BIN_TARGETS * target or memory + footer.group_bytes > OPEN_BYTES
        if parts[-1] and (full or len(parts[-1]) >= OPEN_FILES):
            parts.append([])
            size = memory = 0
        parts[-1].append((file, footer))
        size += file.size
        memory += footer.group_bytes
    return parts
