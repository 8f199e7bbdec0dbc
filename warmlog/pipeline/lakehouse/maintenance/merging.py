"""Rewrite the files of a bin as fewer files, sorted by topic, partition and offset.

1. Each row is copied unchanged, with all its columns. Duplicate rows stay duplicated.
2. A file is read a row group at a time, which is sorted; row groups of a file must follow each other in order, as all
   writers of this package leave them. Memory is bounded by one row group of each file of the bin.
3. Proofs of receipts are checked in the same pass: adjacent proofs that match the rows are merged.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.digest import RowDigest
from warmlog.pipeline.lakehouse.ledger import MergedProof
from warmlog.pipeline.lakehouse.maintenance.planning import Bin
from warmlog.pipeline.lakehouse.reading import ROW_KEYS, DataFile
from warmlog.pipeline.lakehouse.receipts import Proof
from warmlog.pipeline.lakehouse.writing import FileSequence, FileStore, NewFile, ParquetRules
from warmlog.protocol.partitions import TopicPartition

MERGED_ROWS = 1 << 22  # maximum number of rows of a proof: if the digest differs, an audit compares them one by one

RowKey = tuple[str, int, int]  # topic ("" without the column), partition, offset


class UnorderedFileError(PipelineError):
    """The row groups of a file are not in the order of partition and offset."""

    def __init__(self, file: DataFile) -> None:
        super().__init__(f"{file.path} is not in the order of partition and offset")
        self.file = file


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Result of a rewrite: new files, which no commit references yet, their number of rows, and merged proofs."""

    files: tuple[NewFile, ...]
    rows: int
    proofs: tuple[MergedProof, ...]


def rewrite(store: FileStore, part: Bin, *, compression: str, file_bytes: int) -> Merged:
    """Write the rows of a bin to new files. Raises UnorderedFileError, OSError, pyarrow's errors for damaged files."""
    rules = ParquetRules(store=store, schema=part.schema, compression=compression, file_bytes=file_bytes)
    proving = _Proving(part)
    rows = 0
    with ExitStack() as opened, FileSequence(rules) as files:
        sources = [_row_groups(store, file, opened) for file in part.files]
        for table in merged_rows(sources):
            rows += table.num_rows
            for batch in table.to_batches():
                proving.add(batch)
                files.write(batch)
        files.finish()
    return Merged(files=tuple(files.complete), rows=rows, proofs=tuple(proving.finish()))


class SortedRows:
    """Sorted rows of a row group, and the number of rows already taken."""

    def __init__(self, table: Any) -> None:
        self._table = table.sort_by([(name, "ascending") for name in ROW_KEYS if name in table.column_names])
        self._topics = self._table.column("topic") if "topic" in table.column_names else None
        self._partitions = self._table.column("partition").to_numpy()
        self._offsets = self._table.column("offset").to_numpy()
        self._taken = 0

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, at: int) -> RowKey:
        topic = "" if self._topics is None else self._topics[at].as_py()
        return topic, int(self._partitions[at]), int(self._offsets[at])

    @property
    def last(self) -> RowKey:
        """The key of the last row."""
        return self[len(self) - 1]

    def take(self, until: RowKey) -> Any:
        """Return the next rows up to and including a key."""
        first, self._taken = self._taken, bisect_right(self, until, self._taken)
        return self._table.slice(first, self._taken - first)

    @property
    def is_empty(self) -> bool:
        """Whether all rows are taken."""
        return self._taken == len(self)


def _row_groups(store: FileStore, file: DataFile, opened: ExitStack) -> Iterator[SortedRows]:
    from pyarrow import parquet

    source = opened.enter_context(parquet.ParquetFile(opened.enter_context(store.open(file.path))))
    last: RowKey | None = None
    for number in range(source.metadata.num_row_groups):
        rows = SortedRows(source.read_row_group(number))
        if not len(rows):
            continue
        if last is not None and rows[0] < last:
            raise UnorderedFileError(file)
        last = rows.last
        yield rows


def merged_rows(sources: Sequence[Iterator[SortedRows]]) -> Iterator[Any]:
    """Yield the rows of all sources as tables, in order of topic, partition and offset.

    Each step takes the rows up to the least of the last keys in memory, because no source has an earlier key after
    that.
    """
    import pyarrow as pa

    heads = [next(source, None) for source in sources]
    while True:
        there = [(at, head) for at, head in enumerate(heads) if head is not None]
        if not there:
            return
        until = min(head.last for _, head in there)
        taken = []
        for at, head in there:
            taken.append(head.take(until))
            if head.is_empty:
                heads[at] = next(sources[at], None)
        table = pa.concat_tables(taken)
        keys = [(name, "ascending") for name in ROW_KEYS if name in table.column_names]
        yield table.sort_by(keys).combine_chunks()


class _Proving:
    """Checks the proofs of a bin's receipts against its rows, which are added in order."""

    def __init__(self, part: Bin) -> None:
        self._by_key: dict[TopicPartition, list[_Run]] = {}
        low = min((file.bounds["offset"][0] for file in part.files if "offset" in file.bounds), default=0)
        high = max((file.bounds["offset"][1] for file in part.files if "offset" in file.bounds), default=-1)
        listed: dict[tuple[TopicPartition, tuple[str, ...]], list[Proof]] = {}
        for receipt in part.receipts:
            if set(receipt.columns) <= set(part.schema.names):
                for key, proofs in receipt.proofs.items():
                    met = [proof for proof in proofs if proof.end > low and proof.first <= high]
                    listed.setdefault((key, receipt.columns), []).extend(met)
        for (key, columns), among in listed.items():
            self._by_key.setdefault(key, []).append(_Run(key, columns, sorted(among)))
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


class _Run:
    """Merges consecutive proofs of a partition that match the rows. `proofs`: all proofs to check, in order."""

    def __init__(self, key: TopicPartition, columns: tuple[str, ...], proofs: Sequence[Proof]) -> None:
        self._key = key
        self._columns = columns
        self._proofs = proofs
        self._at = 0
        self._rows = RowDigest(columns)  # rows of the current proof
        self._agreed: list[Proof] = []  # matching proofs just before the current one
        self._digest = RowDigest(columns)  # rows of `_agreed`
        self._trial = RowDigest(columns)  # rows of `_agreed` and of the current proof
        self._done: list[MergedProof] = []

    def add(self, rows: Any) -> None:
        """Add the next rows of the partition."""
        import numpy as np

        offsets = rows.column("offset").to_numpy(zero_copy_only=False)
        at = 0
        while at < len(offsets):
            while self._at < len(self._proofs) and self._proofs[self._at].end <= offsets[at]:
                self._check()
            if self._at == len(self._proofs):
                return
            proof = self._proofs[self._at]
            first = at + int(np.searchsorted(offsets[at:], proof.first))
            end = at + int(np.searchsorted(offsets[at:], proof.end))
            if end > first:
                self._rows.add(rows.slice(first, end - first))
                self._trial.add(rows.slice(first, end - first))
            at = end

    def _check(self) -> None:
        """Check the current proof, whose rows are complete, and continue with the next one."""
        proof = self._proofs[self._at]
        self._at += 1
        if (self._rows.rows, self._rows.hexdigest()) != (proof.rows, proof.digest):
            self._close()
        elif not self._agreed or (self._agreed[-1].end == proof.first and self._trial.rows <= MERGED_ROWS):
            self._agreed.append(proof)
            self._digest = self._trial
        else:
            self._close()
            self._agreed, self._digest = [proof], self._rows
        self._rows, self._trial = RowDigest(self._columns), self._digest.copy()

    def _close(self) -> None:
        """Merge the consecutive proofs that matched."""
        if len(self._agreed) > 1:
            first, end = self._agreed[0].first, self._agreed[-1].end
            after = Proof(first, end, self._digest.rows, self._digest.hexdigest())
            self._done.append(MergedProof(key=self._key, before=tuple(self._agreed), after=after))
        self._agreed, self._digest = [], RowDigest(self._columns)

    def finish(self) -> list[MergedProof]:
        """Check the remaining proofs after the last row, and return the merged ones."""
        while self._at < len(self._proofs):
            self._check()
        self._close()
        return self._done
