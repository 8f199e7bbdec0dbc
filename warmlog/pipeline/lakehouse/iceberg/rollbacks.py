"""What a rollback took back from an Iceberg table.

A rollback makes an earlier snapshot the current one, and leaves properties as they are: positions and the ledger.

    S1 - S2 - S3 - S4 - S5       positions are those of S5
         ^ current               S3 to S5 were taken back: the rows end where S2, or the newest receipt before it, says

1. Positions name the receipt that they are of. They fit if it is the newest of their topic in the lineage. If not, the
   newest receipt of each partition in the lineage says where its rows end, or the ledger, if it continues the lineage.
2. If snapshots of the lineage have expired, and such a receipt with them, the oldest receipt that was taken back says
   the same by its first offset, as long as all snapshots from S5 to the lineage exist. A partition that none of these
   names has all its rows.
3. If all receipts of the lineage exist, a partition without any has no rows.
4. Otherwise nothing says where rows end, and they are not guessed.
5. If no receipt of a topic is left in the lineage, because others have expired its snapshots, positions count, unless
   the ledger contradicts: it ends elsewhere (1), or it is of a snapshot that was taken back. That is so if its mark
   exists but is not in the lineage, or if it is later than the oldest snapshot there.
6. Other programs may have brought rows back. Then the rows decide (`present`), except in a table with one row for each
   key.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.iceberg.history import NO_SNAPSHOT, SNAPSHOT, Chain, History
from warmlog.pipeline.lakehouse.present import PresentRows
from warmlog.pipeline.lakehouse.receipts import Receipt, Span, new_id
from warmlog.pipeline.lakehouse.table import Committed
from warmlog.pipeline.lakehouse.taken_back import TakenBack, end_of, is_other
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

NOTHING = Receipt(id="", spans={})
NO_COMMIT = Committed(version=NO_SNAPSHOT, receipt=NOTHING)
OPTIONS = " --catalog URL"


class Rollbacks:
    """Decides about one version of a table. `rows`: returns its rows; None in a table with one row for each key."""

    def __init__(self, table: str, history: History, rows: Callable[[], PresentRows] | None) -> None:
        self._table = table
        self._history = history
        self._rows = rows

    def taken_back(
        self, topic: str, receipt_id: str, before: Mapping[TopicPartition, Position], version: int
    ) -> TakenBack | None:
        """Return what was taken back from a topic. Raises PipelineError if that is unknown, or if rows have a hole.

        `receipt_id`, `before`: of the table's property. `version`: id of the current snapshot.
        """
        ledger = self._history.ledger()
        newest = next(of_topic(self._history.ancestors(), topic), NO_COMMIT)
        if newest is None and not self._history.is_whole() and not self._history.is_beyond(ledger):
            return None
        if newest is not None and newest.receipt.id == receipt_id:
            return None
        chain = self._history.taken_back(receipt_id)
        ends, newest_receipt = self._ends(topic)
        taken = {key: [receipt for receipt in chain.receipts if key in receipt.spans] for key in before}
        remaining = {key: self._end(key, position, ends, chain) for key, position in before.items()}
        positions = {key: end_of(before[key], at, key, taken[key]) for key, at in remaining.items()}
        changed = {key: at for key, at in positions.items() if at is None or not is_same(at, before[key])}
        if not changed:
            return None
        result = TakenBack(
            how="rolled back to an earlier snapshot",
            where=f"snapshot {version}" if version else "no snapshot",
            before=before,
            positions=changed,
            newest=newest_receipt or next(iter(chain.receipts), NOTHING),
            taken=taken,
            kept={key: at for key, at in before.items() if key not in changed},
            earlier=frozenset(key for key, at in remaining.items() if at is not None and is_other(at, before[key])),
            options=OPTIONS,
        )
        return result if self._rows is None else result.without_present(self._rows())

    def _ends(self, topic: str) -> tuple[dict[TopicPartition, Position], Receipt | None]:
        """Return where rows end by the receipts without a gap below the current snapshot, and the newest of these."""
        ends: dict[TopicPartition, Position] = {}
        newest: Receipt | None = None
        for receipt in self._remaining():
            listed = {key: at for key, at in receipt.positions().items() if key[0] == topic}
            newest = newest or (receipt if listed else None)
            ends = listed | ends
        return ends, newest

    def _remaining(self) -> Iterator[Receipt]:
        """Yield the receipts of the lineage, newest first, up to the first snapshot that has expired."""
        ledger = self._history.ledger()
        if ledger.marks.get(SNAPSHOT, 0) in list(self._history.lineage()):
            yield from (commit.receipt for commit in self._history.commits())
        else:
            yield from (commit.receipt for commit in takewhile(bool, self._history.ancestors()) if commit is not None)

    def _end(
        self, key: TopicPartition, before: Position, ends: Mapping[TopicPartition, Position], chain: Chain
    ) -> Position | None:
        """Return where the rows of a partition end; None if it has none. Raises PipelineError if that is unknown."""
        if key in ends:
            return ends[key]
        taken = [receipt for receipt in chain.receipts if key in receipt.spans]
        if chain.is_complete:
            return start_of(key, taken[-1]) if taken else before
        if self._history.is_whole():
            return None if before.offset else before
        ledger = self._history.ledger()
        older = [each.spans[key].end for each in ledger.receipts if key in each.spans]
        if older and not self._history.is_beyond(ledger) and is_same(older[-1], before):
            return before
        raise PipelineError(
            f"{self._table} was rolled back to an earlier snapshot, and the snapshots that say where its rows of"
            f" {key[0]}-{key[1]} end have expired: roll it forward again, or copy the topic to a new table"
        )


def of_topic(commits: Iterable[Committed | None], topic: str) -> Iterator[Committed | None]:
    """Yield the commits that name a topic, and None for expired ones."""
    return (each for each in commits if each is None or any(key[0] == topic for key in each.receipt.spans))


def is_same(first: Position, second: Position) -> bool:
    """Return whether two positions are at the same offset of the same topic."""
    return (first.offset, first.topic_id) == (second.offset, second.topic_id)


def start_of(key: TopicPartition, receipt: Receipt) -> Position:
    """Return where the rows of a partition begin in a receipt."""
    span = receipt.spans[key]
    return Position(offset=span.first, topic_id=span.end.topic_id)


def accepted(receipts: Sequence[Receipt], positions: Mapping[TopicPartition, Position]) -> list[Receipt]:
    """Return the receipts of a ledger that ends at these positions.

    If other programs have brought back rows that were taken back, a receipt of no offsets follows: without it, the
    ledger would say that these rows are missing.
    """
    ends: dict[TopicPartition, Position] = {}
    for receipt in receipts:
        ends |= receipt.positions()
    spans = {
        key: Span(first=position.offset, end=position)
        for key, position in positions.items()
        if key not in ends or not is_same(ends[key], position)
    }
    if not spans:
        return list(receipts)
    last = receipts[-1]
    return [*receipts, Receipt(id=new_id(), spans=spans, columns=last.columns, formats=last.formats)]
