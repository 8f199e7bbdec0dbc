"""The blocking version of a transaction."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from warmlog.client.errors import ClosedError
from warmlog.client.producing.batches import RecordMetadata
from warmlog.client.producing.handoff import BlockingDelivery, Handoff
from warmlog.client.producing.producer import Content, GivenHeaders, Producible, Summary, Timestamp, content
from warmlog.client.transactions.transaction import GroupConsumer, Transaction
from warmlog.protocol.partitions import TopicPartition

ProduceMany = Callable[..., Summary]


class BlockingTransaction:
    """An open transaction: `with client.transaction("id") as transaction`. Methods as those of `Transaction`."""

    def __init__(
        self,
        transaction: Transaction,
        handoff: Handoff,
        call: Callable[..., Any],
        produce_many: ProduceMany,
    ) -> None:
        """`call` awaits a coroutine function in the client's thread.

        `produce_many(produce, topic, records, partition)` passes the records of an iterable to `produce` there.
        """
        self._transaction = transaction
        self._handoff = handoff
        self._call = call
        self._produce_many = produce_many

    @property
    def transactional_id(self) -> str:
        """The id under which the transaction runs."""
        return self._transaction.transactional_id

    @property
    def has_ended(self) -> bool:
        """Whether it was committed or aborted."""
        return self._transaction.has_ended

    def produce(
        self,
        topic: str,
        *,
        value: Content | None,
        key: Content | None = None,
        headers: GivenHeaders = (),
        timestamp: Timestamp | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Produce a record; return its partition and offset once stored. See `Transaction.produce`."""
        self._call(self._handoff.drain)
        produce = partial(self._transaction.produce, topic, value=value, key=key)
        stored: RecordMetadata = self._call(produce, headers=headers, timestamp=timestamp, partition=partition)
        return stored

    def produce_nowait(
        self,
        topic: str,
        *,
        value: Content | None,
        key: Content | None = None,
        headers: GivenHeaders = (),
        timestamp: Timestamp | None = None,
        partition: int | None = None,
    ) -> BlockingDelivery:
        """Produce a record without waiting, as `Client.produce_nowait` does. The commit waits for it."""
        if self.has_ended:
            raise ClosedError("the transaction has ended")
        return self._handoff.put(topic, (content(value), content(key), headers, timestamp, partition))

    def produce_many(self, topic: str, records: Iterable[Producible], *, partition: int | None = None) -> Summary:
        """Produce many records; return when all are stored. See `Client.produce_many`."""
        self._call(self._handoff.drain)
        return self._produce_many(self._transaction.produce_many, topic, records, partition)

    def flush(self) -> None:
        """Wait until every record produced so far is stored."""
        self._call(self._handoff.drain)
        self._call(self._transaction.flush)

    def commit_offsets(
        self, consumer: GroupConsumer | str, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commit offsets of a group with the transaction. See `Transaction.commit_offsets`."""
        self._call(self._transaction.commit_offsets, consumer, offsets)

    def commit(self) -> None:
        """Store the produced records, and commit. See `Transaction.commit`."""
        self._call(self._handoff.drain)
        self._handoff.close()
        self._call(self._transaction.commit)

    def abort(self) -> None:
        """Abort the transaction: none of its records become visible."""
        self._handoff.close()
        self._call(self._transaction.abort)
