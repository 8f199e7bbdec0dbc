"""Where the rows of a partition end in a table of which commits were taken back.

Receipts say which rows a commit added, but not whether another program has brought these rows back since. If positions
and the remaining commits disagree, the rows in files that no remaining receipt names decide:

    remaining receipts   |---- 0 to 40 ----|
    taken back                             |- 40 to 80 -|- 80 to 120 -|
    position                                                          ^
    rows there           |-----------------|------------|               they end at offset 80

1. The receipts that were taken back say how many rows each of their stretches had. A stretch counts if the table has
   that many of its offsets.
2. Rows after the first stretch that does not count are an error: copying the hole again would double them.
3. Rows of an earlier topic of the same name have the same offsets. If another program has rewritten them, files that no
   receipt names do not say of which topic their rows are, which is an error.
4. In a table with one row for each key, rows do not say up to which offset they were copied: commits decide.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.reading import DataFile, Selection, TableReader
from warmlog.pipeline.lakehouse.receipts import Proof, Receipt
from warmlog.pipeline.lakehouse.writing import FileStore
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.record import MAX_INT64


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentRows:
    """The rows of a table. `named`: the names of files in the receipts that remain.

    `rewritten`: by partition, ids of the topics of which rows are no longer in the files that these receipts name.
    """

    table: str
    store: FileStore
    files: Sequence[DataFile]
    named: frozenset[str]
    rewritten: Mapping[TopicPartition, frozenset[str | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, table: str, store: FileStore, files: Sequence[DataFile], receipts: Iterable[Receipt]) -> "PresentRows":
        """Return the rows of a table with these files. `receipts`: those that remain."""
        live = {file.name for file in files}
        named: set[str] = set()
        rewritten: dict[TopicPartition, frozenset[str | None]] = {}
        for receipt in receipts:
            named |= set(receipt.files)
            if not receipt.files or not live.issuperset(receipt.files):
                for key, proofs in receipt.proofs.items():
                    if any(proof.rows for proof in proofs):
                        rewritten[key] = rewritten.get(key, frozenset()) | {receipt.spans[key].end.topic_id}
        return cls(table=table, store=store, files=files, named=frozenset(named), rewritten=rewritten)

    def end(
        self, key: TopicPartition, remaining: Position, before: Position, taken: Sequence[Receipt]
    ) -> Position | None:
        """Return where the rows of a partition end; None if that is its position, `before`.

        `remaining`: where they end according to the receipts that remain. `taken`: the receipts that were taken back,
        newest first. Raises PipelineError if rows have a hole, or cannot be read.
        """
        if remaining.topic_id != before.topic_id or any(receipt.upsert for receipt in taken):
            return remaining
        if remaining.offset > before.offset:
            return remaining if self._has_any(key, before.offset, remaining.offset, self.files) else None
        others = [file for file in self.files if file.name not in self.named]
        if not self._has_any(key, remaining.offset, before.offset, others):
            return remaining
        if self.rewritten.get(key, frozenset()) - {before.topic_id}:
            raise PipelineError(
                f"{self.table} has rows of {key[0]}-{key[1]} from offset {remaining.offset} on in files that no receipt"
                " names, and another program has rewritten those of an earlier topic of this name, too: it is unknown"
                " of which topic they are. Delete the rows of the earlier topic, or copy the topic to a new table"
            )
        at = remaining
        for proof, end in _stretches(key, remaining, before, taken):
            if self._count(key, proof.first, proof.end, others) != proof.rows:
                break
            at = end
        else:
            return None
        if self._has_any(key, at.offset, before.offset, others):
            raise PipelineError(
                f"{self.table} has some of the rows of {key[0]}-{key[1]} from offset {at.offset} to"
                f" {before.offset - 1} that were taken back, but not all of them: delete these rows, or bring back the"
                " others, too"
            )
        return at

    def check_end(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Raise PipelineError for rows at or after positions in files that no receipt names."""
        others = [file for file in self.files if file.name not in self.named]
        for key, position in positions.items():
            if self._has_any(key, position.offset, MAX_INT64, others):
                raise PipelineError(
                    f"{self.table} has rows of {key[0]}-{key[1]} from offset {position.offset} on that no receipt"
                    " names, and they would be copied again: delete them first"
                )

    def _has_any(self, key: TopicPartition, first: int, end: int, files: Sequence[DataFile]) -> bool:
        return any(True for _ in self._offsets(key, first, end, files))

    def _count(self, key: TopicPartition, first: int, end: int, files: Sequence[DataFile]) -> int:
        """Return how many of these offsets have a row."""
        import numpy as np

        parts = list(self._offsets(key, first, end, files))
        return len(np.unique(np.concatenate(parts))) if parts else 0

    def _offsets(self, key: TopicPartition, first: int, end: int, files: Sequence[DataFile]) -> Iterator[Any]:
        """Yield the offsets of rows in batches."""
        wanted = Selection(key=key, first=first, end=end, columns=())
        reader = TableReader(self.store)
        for file in files:
            if not file.may_hold(wanted):
                continue
            if file.hides_rows:
                raise PipelineError(
                    f"{self.table}: another program has only marked rows of {file.path} as deleted:"
                    " rewrite the file first (OPTIMIZE of Delta, rewrite_data_files of Iceberg)"
                )
            for batch in reader.rows(file, wanted):
                yield batch.column("offset").to_numpy()


def _stretches(
    key: TopicPartition, remaining: Position, before: Position, taken: Sequence[Receipt]
) -> Iterator[tuple[Proof, Position]]:
    """Yield the stretches between two positions, in order, each with the position after it.

    If receipts are missing, the last one yielded is a stretch that no table has.
    """
    chain: list[Receipt] = []
    at = before
    for receipt in taken:  # newest first; those that an earlier restore took back are passed over
        span = receipt.spans[key]
        if (span.end.offset, span.end.topic_id) == (at.offset, at.topic_id) and at.offset > remaining.offset:
            chain.append(receipt)
            at = Position(offset=span.first, topic_id=span.end.topic_id)
    if at.offset == remaining.offset:
        for receipt in reversed(chain):
            span, proofs = receipt.spans[key], sorted(receipt.proofs.get(key, ()))
            for number, proof in enumerate(proofs):
                is_last = number == len(proofs) - 1
                end = span.end if is_last else Position(offset=proof.end, topic_id=span.end.topic_id)
                yield proof, end
        return
    yield Proof(remaining.offset, before.offset, -1, ""), before
