"""Load and unload the transactional ids of a log partition, as this broker begins and ceases to lead it.

Source: kafka.coordinator.transaction.TransactionStateManager (loadTransactionsForTxnTopicPartition,
removeTransactionsForTxnTopicPartition).
"""

import logging
from collections.abc import Callable, Iterator

import trio

from warmlog.broker.coordinator_log.replay import Replay
from warmlog.broker.coordinator_log.term import Term
from warmlog.broker.transactions.coordinator import TransactionCoordinator
from warmlog.broker.transactions.replay import ReplayedTransactions
from warmlog.broker.transactions.topic import TOPIC
from warmlog.protocol.kafka.transaction_records import StoredTransaction

logger = logging.getLogger(__name__)


class LoadedIds:
    """The `Shards` of the transaction coordinator, which keeps the ids itself."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        apply_effects: Callable[[], None],
        partition_of: Callable[[str], int],
        clock: Callable[[], int],
    ) -> None:
        """`apply_effects` carries out the coordinator's effects; `clock` returns ms since the epoch."""
        self._coordinator = coordinator
        self._apply_effects = apply_effects
        self._partition_of = partition_of
        self._clock = clock
        self._loads: dict[Term, int] = {}

    def begin(self, term: Term) -> None:
        """Begin to load the ids of a log partition; serve it at once if it is empty."""
        number = self._coordinator.begin_loading(term.index)
        if term.is_empty:
            for _ in self._coordinator.load(number, term.index, term.leader_epoch, (), self._clock()):
                pass
        else:
            self._loads[term] = number
        self._apply_effects()

    async def load(self, term: Term, replay: Replay) -> bool:
        """Load the ids of a log partition, and complete decided transactions; return False if the term is over.

        An id whose records are all malformed is served as a new one: its producers are not fenced, and a transaction of
        it stays open. Raises OSError, LogError, ProtocolError, StorageError.
        """
        stored = ReplayedTransactions(replay.latest, term.index, self._partition_of)
        rows = await trio.to_thread.run_sync(lambda: list(stored))  # a record of many partitions takes long
        if len(stored.damage):
            again = await stored.damage.replay_without(term.partition, replay.end, f"{TOPIC}-{term.index}")
            rows += ReplayedTransactions(again.latest, term.index, self._partition_of)
        number = self._loads.pop(term, None)
        if number is None:
            return False  # the term is over
        for _ in self._coordinator.load(number, term.index, term.leader_epoch, _taken(rows), self._clock()):
            self._apply_effects()
            await trio.lowlevel.checkpoint()
        self._apply_effects()
        if stored.misplaced:
            logger.warning(
                "%s-%d: ignored %d transactional ids that belong to another partition: they were written to a topic "
                "with another number of partitions (transaction.state.log.num.partitions)",
                TOPIC,
                term.index,
                stored.misplaced,
            )
        if stored.foreign:
            logger.info("%s-%d: ignored %d records of unknown types", TOPIC, term.index, stored.foreign)
        return True

    def end(self, term: Term) -> None:
        """Serve the ids of a log partition no more; waiting requests get NOT_COORDINATOR."""
        self._loads.pop(term, None)
        self._coordinator.unload(term.index)
        self._apply_effects()


def _taken(rows: list[tuple[str, StoredTransaction]]) -> Iterator[tuple[str, StoredTransaction]]:
    """Yield the rows, and remove them: freeing all of them at once would hold the event loop."""
    while rows:
        yield rows.pop()
