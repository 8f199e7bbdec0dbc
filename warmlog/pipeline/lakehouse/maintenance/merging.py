"""Rewrite the files of a bin as fewer files, sorted by the table's order, then by topic, partition and offset.

1. Each row is copied unchanged, with all its columns. Duplicate rows stay duplicated.
2. A file is read a row group at a time, which is sorted; row groups of a file must follow each other in order, as all
   writers of this package leave them. Memory is bounded by one row group of each file of the bin.
3. Proofs of receipts are checked in the same pass, if files have all rows of a proof in the order of offsets: adjacent
   proofs that match the rows are merged. Those of arranged tables are merged by `proving`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.ordering import Key, SortedRows, merged
from warmlog.pipeline.lakehouse.arrangement.spec import PLAIN, Arrangement
from warmlog.pipeline.lakehouse.arrangement.values import Terms
from warmlog.pipeline.lakehouse.ledger import MergedProof
from warmlog.pipeline.lakehouse.maintenance.planning import Bin
from warmlog.pipeline.lakehouse.maintenance.proving import ProofRun
from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.receipts import Proof
from warmlog.pipeline.lakehouse.schemas.stored import StoredColumns
from warmlog.pipeline.lakehouse.writing import FileSequence, FileStore, NewFile, ParquetRules
from warmlog.protocol.partitions import TopicPartition


class UnorderedFileError(PipelineError):
    """The row groups of a file are not in the table's order, or without one in that of partition and offset."""

    def __init__(self, file: DataFile) -> None:
        super().__init__(f"{file.path} is not in order")
        self.file = file


class DamagedFileError(PipelineError):
    """The contents of a file cannot be read. `reason`: why."""

    def __init__(self, file: DataFile, reason: str) -> None:
        super().__init__(f"{file.path} cannot be read: {reason}")
        self.file = file
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Result of a rewrite: new files, which no commit references yet, their number of rows, and merged proofs."""

    files: tuple[NewFile, ...]
    rows: int
    proofs: tuple[MergedProof, ...]


def rewrite(
    store: FileStore, part: Bin, *, compression: str, file_bytes: int, arrangement: Arrangement = PLAIN
) -> Merged:
    """Write the rows of a bin to new files. Raises UnorderedFileError, DamagedFileError, OSError."""
    rules = ParquetRules(store=store, schema=part.schema, compression=compression, file_bytes=file_bytes)
    terms = Terms(Arrangement(sort=arrangement.sort), part.schema.names)  # all files are of the same partition
    proving = _Proving(part if arrangement.is_plain else replace(part, receipts=()))
    rows = 0
    with (
        ExitStack() as opened,
        FileSequence(rules, partition=part.partition, is_sorted=bool(arrangement.sort)) as files,
    ):
        sources = [_row_groups(store, file, terms, opened) for file in part.files]
        for table in merged(sources, terms.order):
            rows += table.num_rows
            for batch in terms.removed(table).to_batches():
                proving.add(batch)
                files.write(batch)
        files.finish()
    return Merged(files=tuple(files.complete), rows=rows, proofs=tuple(proving.finish()))


def _row_groups(store: FileStore, file: DataFile, terms: Terms, opened: ExitStack) -> Iterator[SortedRows]:
    from pyarrow import parquet

    with _damage_of(file):
        source = opened.enter_context(parquet.ParquetFile(opened.enter_context(store.open(file.path))))
        stored = StoredColumns.of(source.schema_arrow, file.names)
    last: Key | None = None
    for number in range(source.metadata.num_row_groups):
        with _damage_of(file):
            table = stored.read(source.read_row_group(number))
        rows = SortedRows(terms.added(table), terms.order)
        if not len(rows):
            continue
        if last is not None and rows[0] < last:
            raise UnorderedFileError(file)
        last = rows.last
        yield rows


@contextmanager
def _damage_of(file: DataFile) -> Iterator[None]:
    """Convert the errors of reading a file; a damaged page is an OSError of pyarrow."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise DamagedFileError(file, " ".join(str(error).split())) from error


class _Proving:
    """Checks the proofs of a bin's receipts against its rows, which are added in order."""

    def __init__(self, part: Bin) -> None:
        self._by_key: dict[TopicPartition, list[ProofRun]] = {}
        low = min((file.bounds["offset"][0] for file in part.files if "offset" in file.bounds), default=0)
        high = max((file.bounds["offset"][1] for file in part.files if "offset" in file.bounds), default=-1)
        listed: dict[tuple[TopicPartition, tuple[str, ...]], list[Proof]] = {}
        for receipt in part.receipts:
            if set(receipt.columns) <= set(part.schema.names):
                for key, proofs in receipt.proofs.items():
                    met = [proof for proof in proofs if proof.end > low and proof.first <= high]
                    listed.setdefault((key, receipt.columns), []).extend(met)
        for (key, columns), among in listed.items():
            self._by_key.setdefault(key, []).append(ProofRun(key, columns, sorted(among)))
        self._topics = {key[0] for key in self._by_key}

    def add(self, batch: Any) -> None:
        """Add the next rows."""
        for key, rows in self._by_partition(batch):
            for run in self._by_key.get(key, ()):
                run.add(rows)

    def _by_partition(self, batch: Any) -> Iterator[tuple[TopicPartition, Any]]:
        """Yield the rows of each partition. Without a topic column, all rows belong to the only topic."""
        import numpy as np

        partitions = batch.column("partition").to_numpy(zero_copy_only=False)
        changes = partitions[1:] != partitions[:-1]
        topics = batch.column("topic") if "topic" in batch.schema.names else None
        if topics is not None:
            from pyarrow import compute

            other = compute.not_equal(topics.slice(1), topics.slice(0, max(len(topics) - 1, 0)))
            changes = changes | other.to_numpy(zero_copy_only=False)
        edges = [0, *(int(at) + 1 for at in np.flatnonzero(changes)), batch.num_rows]
        only = next(iter(self._topics)) if len(self._topics) == 1 else ""
        for first, end in pairwise(edges):
            topic = only if topics is None else topics[first].as_py()
            yield (topic, int(partitions[first])), batch.slice(first, end - first)

    def finish(self) -> Iterator[MergedProof]:
        """Yield the proofs that were merged."""
        for runs in self._by_key.values():
            for run in runs:
                yield from run.finish()
