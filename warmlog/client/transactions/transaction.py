"""The public interface of a transaction, and the transactional producers of a client."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Protocol

from warmlog.client.connection.background import TaskStarter
from warmlog.client.connection.cluster import Cluster
from warmlog.client.errors import ClosedError
from warmlog.client.groups.group_offsets import Member
from warmlog.client.groups.group_stream import GroupReader
from warmlog.client.producing.batches import Delivery, RecordMetadata
from warmlog.client.producing.handoff import ClientThread, Handoff
from warmlog.client.producing.producer import (
    Content,
    GivenHeaders,
    Message,
    Producer,
    Producible,
    Summary,
    Timestamp,
    content,
)
from warmlog.client.settings import Settings
from warmlog.client.transactions.transactional_producer import TransactionalProducer
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.transactions import DEFAULT_TRANSACTION_TIMEOUT_MS

DEFAULT_TIMEOUT_S = DEFAULT_TRANSACTION_TIMEOUT_MS / 1000


class GroupConsumer(Protocol):
    """A stream of a group's records, async or blocking."""

    @property
    def reader(self) -> GroupReader:
        """The reader behind the stream."""


class Transaction:
    """An open transaction. Tasks of one event loop may share it. Raises ClosedError once it has ended."""

    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer
        self._has_ended = False

    @property
    def transactional_id(self) -> str:
        """The id under which the transaction runs."""
        return self._producer.transactional_id

    @property
    def has_ended(self) -> bool:
        """Whether it was committed or aborted."""
        return self._has_ended or not self._producer.is_open

    async def produce(
        self,
        topic: str,
        *,
        value: Content | None,
        key: Content | None = None,
        headers: GivenHeaders = (),
        timestamp: Timestamp | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Produce a record as `AsyncClient.produce` does; it becomes visible when the transaction is committed."""
        return await self._records.produce(topic, Message(content(value), content(key), headers, timestamp, partition))

    def produce_nowait(
        self,
        topic: str,
        *,
        value: Content | None,
        key: Content | None = None,
        headers: GivenHeaders = (),
        timestamp: Timestamp | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Produce a record without waiting, as `AsyncClient.produce_nowait` does. The commit waits for it."""
        return self._records.produce_nowait(topic, Message(content(value), content(key), headers, timestamp, partition))

    async def produce_many(
        self,
        topic: str,
        records: Iterable[Producible] | AsyncIterable[Producible | Sequence[Producible]],
        *,
        partition: int | None = None,
    ) -> Summary:
        """Produce many records as `AsyncClient.produce_many` does."""
        return await self._records.produce_many(topic, records, partition)

    def handoff(self, thread: ClientThread) -> Handoff:
        """Return a queue into the transaction for other threads. `thread`: the client's thread."""
        return self._producer.handoff(thread)

    async def flush(self) -> None:
        """Wait until every record produced so far is stored. Raises the first error that no caller has seen."""
        await self._records.flush()

    async def commit_offsets(
        self, consumer: GroupConsumer | str, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commit offsets of a group with the transaction, by (topic, partition).

        `consumer`: a group's stream, opened with `auto_commit=False`; by default the offsets after all records taken
        from it. Or the name of a group without members. Raises GroupMovedOnError if the partitions were reassigned, and
        other WarmlogErrors; then the transaction can only be aborted. ValueError for a stream with auto_commit.
        """
        self._check_open()
        if isinstance(consumer, str):
            if offsets is None:
                raise ValueError("offsets must be given with the name of a group")
            await self._producer.commit_offsets(Member(consumer), offsets)
        else:
            await self._producer.commit_offsets(*consumer.reader.transactional_commit(offsets))

    async def commit(self) -> None:
        """Store the produced records, and commit. If that fails, abort the transaction and raise the reason.

        After ConnectionLostError and RequestTimeoutError the outcome is unknown. The end of the block commits
        automatically.
        """
        self._check_open()
        self._has_ended = True
        await self._producer.commit()

    async def abort(self) -> None:
        """Abort the transaction: none of its records become visible. An exception that leaves the block also aborts."""
        self._check_open()
        self._has_ended = True
        await self._producer.abort()

    @property
    def _records(self) -> Producer:
        self._check_open()
        return self._producer.records

    def _check_open(self) -> None:
        if self.has_ended:
            raise ClosedError("the transaction has ended")


class TransactionalProducers:
    """The producers of a client by transactional id. `close` it at the end."""

    def __init__(
        self, cluster: Cluster, tasks: TaskStarter, settings: Settings, random: Random, *, now_ms: Callable[[], int]
    ) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._settings = settings
        self._random = random
        self._now_ms = now_ms
        self._producers: dict[str, TransactionalProducer] = {}

    @asynccontextmanager
    async def transaction(self, transactional_id: str, timeout_s: float) -> AsyncIterator[Transaction]:
        """Begin a transaction; commit it at the end of the block, or abort it if an exception leaves the block."""
        producer = self._producer(transactional_id)
        await producer.begin(timeout_s)
        transaction = Transaction(producer)
        try:
            yield transaction
            if not transaction.has_ended:
                await transaction.commit()
        except BaseException as error:
            await producer.leave(error)
            raise

    def close(self) -> None:
        """Fail every record that is not settled."""
        for producer in self._producers.values():
            producer.close()

    def _producer(self, transactional_id: str) -> TransactionalProducer:
        if not transactional_id:
            raise ValueError("a transactional id has at least one character")
        producer = self._producers.get(transactional_id)
        if producer is None:
            producer = self._producers[transactional_id] = TransactionalProducer(
                self._cluster, self._tasks, self._settings, self._random, transactional_id, now_ms=self._now_ms
            )
            self._tasks.start_soon(producer.run)
        return producer
