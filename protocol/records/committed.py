"""Filter fetched batches for readers of committed records.

A broker sends whole batches together with the aborted transactions that overlap them. A transaction begins at its
first offset and ends with the next control batch of its producer.

Source: org.apache.kafka.clients.consumer.internals.CompletedFetch; KIP-98.
"""

from collections.abc import Iterable

from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.response import AbortedTransaction


class AbortedFilter:
    """Identifies the aborted batches of a fetched partition. Batches must be passed in order, each once."""

    __slots__ = ("_aborted_producers", "_coming")

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(transactions, key=_first_offset, reverse=True)
        self._aborted_producers: set[int] = set()

    def discards(self, header: BatchHeader) -> bool:
        """Return whether a batch must be skipped: it holds control records or belongs to an aborted transaction."""
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            self._aborted_producers.add(self._coming.pop().producer_id)
        if header.is_control:
            self._aborted_producers.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._aborted_producers


def _first_offset(transaction: AbortedTransaction) -> int:
    return transaction.first_offset
