"""Merge proofs of neighbouring offsets, after each of them agreed with its rows.

Rows of a partitioned or sorted table are read in the order of offsets for that, from all files. Each time that a table
is maintained, proofs become fewer only where `MIN_PROOFS` of them follow each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warmlog.pipeline.lakehouse.arrangement.in_order import by_offset
from warmlog.pipeline.lakehouse.digest import RowDigest
from warmlog.pipeline.lakehouse.ledger import MergedProof, eras
from warmlog.pipeline.lakehouse.reading import DataFile, Selection, TableReader, UnreadableFileError
from warmlog.pipeline.lakehouse.receipts import Proof, Receipt
from warmlog.pipeline.lakehouse.writing import FileStore
from warmlog.protocol.partitions import TopicPartition

MERGED_ROWS = 1 << 22  # maximum number of rows of a proof: if the digest differs, an audit compares them one by one
MIN_PROOFS = 8


class ProofRun:
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


@dataclass(frozen=True, slots=True)
class _Neighbours:
    """Proofs of adjacent offsets of a partition, and the files that may have their rows."""

    key: TopicPartition
    columns: tuple[str, ...]
    proofs: tuple[Proof, ...]
    files: tuple[DataFile, ...]


def merged_proofs(
    store: FileStore, files: Sequence[DataFile], receipts: Sequence[Receipt], *, min_proofs: int = MIN_PROOFS
) -> list[MergedProof]:
    """Return the merged proofs of a table. Files that cannot be read prove nothing.

    `receipts`: from oldest to newest.
    """
    reader = TableReader(store)
    done = []
    for each in _neighbours(files, receipts, min_proofs):
        run = ProofRun(each.key, each.columns, each.proofs)
        whole = Selection(key=each.key, first=each.proofs[0].first, end=each.proofs[-1].end, columns=each.columns)
        try:
            for first, end in reader.ranges(each.files, whole):
                part = replace(whole, first=first, end=end)
                there = (file for file in each.files if file.may_hold(part))
                for batch in by_offset(batch for file in there for batch in reader.rows(file, part)):
                    run.add(batch)
        except UnreadableFileError:
            continue
        done += run.finish()
    return done


def _neighbours(files: Sequence[DataFile], receipts: Sequence[Receipt], min_proofs: int) -> Iterator[_Neighbours]:
    """Yield the proofs that may become one, of each partition and era."""
    listed: dict[tuple[int, TopicPartition, tuple[str, ...]], list[Proof]] = {}
    names: dict[int, set[str]] = {}
    for receipt, era in zip(receipts, eras(receipts), strict=True):
        names.setdefault(era, set()).update(receipt.files)
        for key, proofs in receipt.proofs.items():
            listed.setdefault((era, key, receipt.columns), []).extend(proofs)
    for (era, key, columns), together in listed.items():
        there = tuple(file for file in files if file.name in names[era])
        group: list[Proof] = []
        for proof in [*sorted(together), None]:
            fits = proof is not None and sum(each.rows for each in group) + proof.rows <= MERGED_ROWS
            if proof is not None and group and proof.first == group[-1].end and fits:
                group.append(proof)
                continue
            if len(group) >= min_proofs:
                yield _Neighbours(key, columns, tuple(group), there)
            group = [] if proof is None else [proof]
