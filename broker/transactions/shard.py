"""The transactional ids of one partition of `__transaction_state`, for one term of that partition.

Source: kafka.coordinator.transaction.TransactionStateManager (TxnMetadataCacheEntry).
"""

from collections.abc import Iterator

from warmlog.broker.coordinator.term import Term, TermState
from warmlog.broker.transactions.effects import EffectSource
from warmlog.broker.transactions.metadata import Metadata, State
from warmlog.broker.transactions.state import Transaction
from warmlog.protocol.kafka.transaction_records import StoredTransaction

FREED_PER_STEP = 1000  # ids between two checkpoints: 2 ms


class TransactionShard:
    """The ids of one log partition. Calls must not be concurrent."""

    __slots__ = ("_closed", "open", "partition_count", "term", "transactions", "waiting")

    def __init__(self, term: Term) -> None:
        """Begin without ids."""
        self.term = term
        self.transactions: dict[str, Transaction] = {}
        self.open: dict[str, Transaction] = {}  # ids with an open transaction, which can time out
        self.waiting: dict[str, Transaction] = {}  # ids with an unanswered request
        self.partition_count = 0  # partitions of all transactions
        self._closed: dict[str, Transaction] = {}

    @property
    def is_serving(self) -> bool:
        """Whether the ids are loaded."""
        return self.term.state is TermState.SERVING

    def create(self, transactional_id: str, metadata: Metadata) -> Transaction:
        """Add an id."""
        transaction = self.transactions[transactional_id] = Transaction(
            EffectSource(transactional_id, self.term), metadata
        )
        return transaction

    def replay(self, name: str, row: StoredTransaction, _offset: int) -> None:
        """Set the latest state of an id."""
        self.create(name, Metadata.restore(row))

    def replay_pending(self, producer_id: int, name: str, row: StoredTransaction, offset: int) -> None:
        """Ignore a transactional record: no coordinator writes states in transactions."""

    def changed(self, transaction: Transaction) -> None:
        """Update the counts after each call of an id's automaton."""
        count = transaction.partition_count
        self.partition_count += count - transaction.counted_partitions
        transaction.counted_partitions = count
        name = transaction.source.transactional_id
        for belongs, there in (
            (transaction.metadata.state is State.ONGOING, self.open),
            (transaction.has_waiter, self.waiting),
        ):
            if belongs:
                there[name] = transaction
            else:
                there.pop(name, None)

    def close(self) -> list[Transaction]:
        """Stop serving the ids; return those with a waiting request."""
        waiting = list(self.waiting.values())
        self._closed = self._closed or self.transactions
        self.transactions, self.open, self.waiting, self.partition_count = {}, {}, {}, 0
        return waiting

    def free(self) -> Iterator[None]:
        """Free the ids in steps, after `close`."""
        while self._closed:
            for _ in range(min(len(self._closed), FREED_PER_STEP)):
                self._closed.popitem()
            yield
