"""Track transactions while compaction walks a log: which records are aborted, and which markers can be removed.

Invariants:
1. The records of an aborted transaction are discarded; those of a committed one are treated like any others.
2. A marker can be removed if no batch of its transaction precedes it. Otherwise readers would consider the rest of the
   transaction open.

Source: kafka.log.CleanedTransactionMetadata.
"""

from collections.abc import Iterable
from heapq import heapify, heappop
from struct import Struct

from warmlog.broker.log.index.transaction import AbortedTransaction
from warmlog.protocol.records.layout import BatchHeader

_MARKER_KEY = Struct(">hh")  # version, type
_ABORT, _COMMIT = 0, 1


class _Aborted:
    """An aborted transaction whose marker is still to come; `was_seen`: the log still has batches of it."""

    __slots__ = ("transaction", "was_seen")

    def __init__(self, transaction: AbortedTransaction) -> None:
        self.transaction = transaction
        self.was_seen = False


class CleanedTransactions:
    """Follows the batches of a log in order. `retained`: the aborted transactions that keep their markers."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = [(transaction.first_offset, transaction) for transaction in aborted]
        heapify(self._coming)
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()
        self.retained: list[AbortedTransaction] = []

    def discards(self, header: BatchHeader) -> bool:
        """Return whether the records of a data batch belong to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        aborted.was_seen = True
        return True

    def can_remove_marker(self, header: BatchHeader, marker_key: bytes | None) -> bool:
        """Return whether a marker can be removed; `marker_key` is its record's key, None if its record was removed."""
        self._begin_up_to(header.last_offset)
        if marker_key is None:
            return True
        kind = _MARKER_KEY.unpack_from(marker_key)[1] if len(marker_key) >= _MARKER_KEY.size else None
        if kind == _ABORT:
            return self._end_aborted(header.producer_id)
        if kind == _COMMIT:
            was_seen = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not was_seen
        return False

    def _end_aborted(self, producer_id: int) -> bool:
        aborted = self._aborted.pop(producer_id, None)
        if aborted is None or not aborted.was_seen:
            return True
        self.retained.append(aborted.transaction)
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            _, transaction = heappop(self._coming)
            self._aborted.setdefault(transaction.producer_id, _Aborted(transaction))
