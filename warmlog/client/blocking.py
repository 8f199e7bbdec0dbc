"""The blocking client, for programs without an event loop.

An event loop in a separate thread runs an `AsyncClient`. Passing a call between the threads takes about 100 µs, so
records are passed in lists, and the next list is prepared while the caller processes the last one.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, islice
from time import perf_counter
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from anyio.streams.memory import MemoryObjectReceiveStream

from warmlog.client.client import AsyncClient, connect
from warmlog.client.connection.cluster import Topic
from warmlog.client.consuming.stream import BatchStream, ConsumedRecord
from warmlog.client.consuming.subscription import ConsumeOptions, Start, make_subscription
from warmlog.client.errors import ClosedError
from warmlog.client.groups.blocking_stream import BlockingGroupStream
from warmlog.client.groups.member_options import CALLBACKS, GroupConsumeOptions, Topics, named
from warmlog.client.groups.rebalance_callbacks import in_thread
from warmlog.client.producing.batches import RecordMetadata
from warmlog.client.producing.handoff import BlockingDelivery, ClientThread, Handoff
from warmlog.client.producing.producer import Content, GivenHeaders, Producible, Summary, Timestamp, content
from warmlog.client.settings import DEFAULT_ADDRESS, SettingNames, Settings, parse_bootstrap
from warmlog.client.share.blocking_stream import BlockingShareStream
from warmlog.client.share.options import ShareStart
from warmlog.client.transactions.admin import DEFAULT_MAX_TIMEOUT_S, OpenTransaction
from warmlog.client.transactions.blocking import BlockingTransaction
from warmlog.client.transactions.transaction import DEFAULT_TIMEOUT_S, Transaction
from warmlog.protocol.explanation import Explanation
from warmlog.protocol.groups import ListedGroup
from warmlog.protocol.native.groups import DescribedConsumerGroup
from warmlog.protocol.native.mirrors import DescribeMirrorResponse
from warmlog.protocol.native.share import DEFAULT_MAX_RECORDS
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.response import CreatedTopic, MetadataResponse, TopicDescription, TopicMetadata
from warmlog.protocol.transactions import DescribedTransaction, ListedTransaction

P = ParamSpec("P")
T = TypeVar("T")

# Records per call into the other thread; more would hardly lower the cost per record.
MAX_CHUNK_RECORDS = 2000
# A source that takes longer for a chunk is slow: its records are sent without waiting for more.
SLOW_CHUNK_S = 0.005
NOT_OPEN = "client not open: use it as `with Client(...) as client`"


class Client:
    """The blocking client: `with Client("127.0.0.1:9091") as client`. Thread-safe.

    Arguments as for `warmlog.connect`; methods as those of `AsyncClient`. Entering the block raises
    ConnectError if no broker answers. Leaving it flushes produced records, unless an exception leaves the block.
    """

    def __init__(self, bootstrap: str | Iterable[str] = DEFAULT_ADDRESS, **settings: Unpack[SettingNames]) -> None:
        self._bootstrap = bootstrap if isinstance(bootstrap, str) else tuple(bootstrap)
        self._settings = settings
        parse_bootstrap(self._bootstrap)
        Settings(**settings)
        self._stack = ExitStack()
        self._running: tuple[BlockingPortal, AsyncClient] | None = None
        self._handing: Handoff | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio", name="warmlog-client"))
            connected = portal.wrap_async_context_manager(connect(self._bootstrap, **self._settings))
            self._running = portal, stack.enter_context(connected)
            stack.callback(self._mark_closed)
            thread = ClientThread(portal.call(_call_soon), portal.start_task_soon)
            self._handing = stack.enter_context(self._handing_off(self._client, thread))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def _mark_closed(self) -> None:
        self._running = None

    @contextmanager
    def _handing_off(self, producer: AsyncClient | Transaction, thread: ClientThread) -> Iterator[Handoff]:
        """Yield a running queue; leaving the block, unless by an exception, hands over its remaining records."""
        handoff = self._portal.call(producer.handoff, thread)
        try:
            self._start(handoff.run)
            yield handoff
            self._call(handoff.drain)
        finally:
            handoff.close()

    # -- producing --

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
        """Produce a record; return its partition and offset once acknowledged. See `AsyncClient.produce`."""
        self._call(self._handoff.drain)
        produce = partial(self._client.produce, topic, value=value, key=key)
        return self._call(produce, headers=headers, timestamp=timestamp, partition=partition)

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
        """Produce a record without waiting; the returned `BlockingDelivery` is like a future of the result.

        The topic is created on first use, as for `produce`. An error that is not read from a delivery is raised by the
        next `flush`. Raises BufferFullError if `buffer_bytes` are unacknowledged: `flush`, then repeat the call.
        """
        return self._handoff.put(topic, (content(value), content(key), headers, timestamp, partition))

    def produce_many(self, topic: str, records: Iterable[Producible], *, partition: int | None = None) -> Summary:
        """Produce many records; return when all are acknowledged. See `AsyncClient.produce_many`.

        `records` is iterated in the calling thread. It may be slow: earlier records are sent meanwhile.
        """
        self._call(self._handoff.drain)
        return self._produce_chunks(self._client.produce_many, topic, records, partition)

    def _produce_chunks(
        self, produce: Callable[..., Awaitable[Summary]], topic: str, records: Iterable[Any], partition: int | None
    ) -> Summary:
        """Pass the records in lists to a `produce_many` in the client's thread."""
        send, receive = anyio.create_memory_object_stream[list[Any]](1)
        summary = self._start(_produce_from, produce, topic, receive, partition)
        try:
            for chunk in _chunks(records):
                self._call(send.send, chunk)
        except anyio.BrokenResourceError:
            pass  # producing failed; reading the summary raises the error
        finally:
            self._call(send.aclose)
        return summary.result()

    def flush(self) -> None:
        """Wait until every record produced so far is acknowledged. Raises the first error that no caller has seen."""
        self._call(self._handoff.drain)
        self._call(self._client.flush)

    # -- transactions --

    @contextmanager
    def transaction(
        self, transactional_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Iterator[BlockingTransaction]:
        """Produce to several partitions and commit a group's offsets atomically.

        `with client.transaction("transfers") as transaction`. See `AsyncClient.transaction`.
        """
        opened = self._portal.call(partial(self._client.transaction, transactional_id, timeout_s=timeout_s))
        thread = self._handoff.thread
        with (
            self._portal.wrap_async_context_manager(opened) as transaction,
            self._handing_off(transaction, thread) as handoff,
        ):
            yield BlockingTransaction(transaction, handoff, self._call, self._produce_chunks)

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        min_duration_s: float | None = None,
        pattern: str | None = None,
    ) -> tuple[ListedTransaction, ...]:
        """Return transactional ids by name. See `AsyncClient.list_transactions`."""
        listed = partial(self._client.list_transactions, states=states, producer_ids=producer_ids)
        return self._call(listed, min_duration_s=min_duration_s, pattern=pattern)

    def describe_transactions(self, *ids: str) -> tuple[DescribedTransaction, ...]:
        """Return states, producers and partitions of transactional ids."""
        return self._call(self._client.describe_transactions, *ids)

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of an id. See `AsyncClient.abort_transaction`."""
        self._call(self._client.abort_transaction, transactional_id)

    def find_hanging_transactions(
        self,
        topics: Iterable[str] | None = None,
        *,
        partition: int | None = None,
        max_timeout_s: float = DEFAULT_MAX_TIMEOUT_S,
    ) -> tuple[OpenTransaction, ...]:
        """Return transactions that no coordinator will end. See `AsyncClient.find_hanging_transactions`."""
        find = self._client.find_hanging_transactions
        return self._call(find, topics, partition=partition, max_timeout_s=max_timeout_s)

    def abort_hanging_transaction(self, topic: str, partition: int, start_offset: int) -> OpenTransaction:
        """End a transaction that hangs in a partition. See `AsyncClient.abort_hanging_transaction`."""
        return self._call(self._client.abort_hanging_transaction, topic, partition, start_offset)

    # -- consuming --

    @overload
    def consume(
        self, topics: str | Iterable[str], start: Start = ..., *, group: None = None, **options: Unpack[ConsumeOptions]
    ) -> Iterator[ConsumedRecord]: ...
    @overload
    def consume(
        self, topics: Topics, start: Start = ..., *, group: str, **options: Unpack[GroupConsumeOptions]
    ) -> BlockingGroupStream: ...
    def consume(
        self, topics: Topics, start: Start = "beginning", *, group: str | None = None, **options: Any
    ) -> Iterator[ConsumedRecord] | BlockingGroupStream:
        """Consume records: `for record in client.consume("orders")`. Arguments as for `AsyncClient.consume`.

        Callbacks of a group run in another thread while the caller waits for the stream; they may use it.
        Without a group, the next records are fetched and decoded while the caller processes the last ones.
        """
        if group is None:
            return chain.from_iterable(self.consume_batches(named(topics), start, **options))
        topics = topics if isinstance(topics, str | re.Pattern) else tuple(topics)
        options |= {name: in_thread(options[name]) for name in CALLBACKS if options.get(name)}
        reader = self._portal.call(partial(self._client.group_reader, group, topics, start, **options))
        return BlockingGroupStream(reader, self._call, self._start)

    def consume_batches(
        self, topics: str | Iterable[str], start: Start = "beginning", **options: Unpack[ConsumeOptions]
    ) -> Iterator[list[ConsumedRecord]]:
        """Consume lists of records as they arrive."""
        topics = topics if isinstance(topics, str) else tuple(topics)
        make_subscription(topics, start, **options)  # raises here, not at the first step
        return self._batches(partial(self._client.consume_batches, topics, start, **options))

    def _batches(self, open_stream: Callable[[], BatchStream]) -> Iterator[list[ConsumedRecord]]:
        stream = self._portal.call(open_stream)
        next_batch = self._start(_next_batch, stream)
        try:
            while (batch := next_batch.result()) is not None:
                next_batch = self._start(_next_batch, stream)
                yield batch
        finally:
            next_batch.cancel()
            if self._running is not None:  # otherwise the client was closed first and has closed the stream
                self._portal.call(stream.close)

    def share(
        self,
        topics: str | Iterable[str],
        *,
        group: str,
        start: ShareStart | None = None,
        max_jobs: int = DEFAULT_MAX_RECORDS,
        auto_accept: bool = False,
        auto_create: bool = True,
    ) -> BlockingShareStream:
        """Take jobs from a queue: `with client.share("jobs", group="workers") as jobs: for job in jobs`.

        Arguments as for `AsyncClient.share`.
        """
        names = topics if isinstance(topics, str) else tuple(topics)
        share = partial(self._client.share, names, group=group, start=start, max_jobs=max_jobs, auto_create=auto_create)
        return BlockingShareStream(self._portal.call(share), self._call, self._start, auto_accept=auto_accept)

    def offsets(self, topic: str, at: Start = "end", *, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """Return by partition the offset of a start position. See `AsyncClient.offsets`."""
        return self._call(self._client.offsets, topic, at, partitions=partitions)

    # -- topics --

    def topic(self, name: str, *, auto_create: bool = True) -> Topic:
        """Return the topic's id and leaders. See `AsyncClient.topic`."""
        return self._call(self._client.topic, name, auto_create=auto_create)

    def metadata(self, topics: Iterable[str] | None = None) -> MetadataResponse:
        """Return brokers and topics. See `AsyncClient.metadata`."""
        return self._call(self._client.metadata, topics)

    def list_topics(self) -> tuple[TopicMetadata, ...]:
        """Return all topics by name."""
        return self._call(self._client.list_topics)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        if_not_exists: bool = False,
    ) -> CreatedTopic | None:
        """Create a topic. See `AsyncClient.create_topic`."""
        create = partial(self._client.create_topic, name, partitions=partitions, configs=configs)
        create = partial(create, replication_factor=replication_factor)
        return self._call(create, validate_only=validate_only, if_not_exists=if_not_exists)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        self._call(self._client.delete_topic, name)

    def alter_topic(
        self, name: str, *, configs: Mapping[str, str | None] | None = None, partitions: int | None = None
    ) -> None:
        """Change settings or add partitions. See `AsyncClient.alter_topic`."""
        self._call(self._client.alter_topic, name, configs=configs, partitions=partitions)

    def describe_topics(self, *names: str) -> tuple[TopicDescription, ...]:
        """Return settings, offsets and segments."""
        return self._call(self._client.describe_topics, *names)

    def explain(
        self,
        topic: str,
        partition: int,
        *,
        offset: int | None = None,
        timestamp: int | None = None,
        plain: bool = False,
    ) -> Explanation:
        """Explain how a fetch would be served, and which pages are resident. See `AsyncClient.explain`."""
        return self._call(self._client.explain, topic, partition, offset=offset, timestamp=timestamp, plain=plain)

    # -- mirrors --

    def describe_mirror(self) -> DescribeMirrorResponse:
        """Return the mirrored topics and the progress of their copies."""
        return self._call(self._client.describe_mirror)

    def promote_topic(self, name: str) -> dict[int, int]:
        """Stop mirroring a topic, and make it writable. See `AsyncClient.promote_topic`."""
        return self._call(self._client.promote_topic, name)

    # -- groups --

    def list_groups(self, *, states: Iterable[str] = ()) -> tuple[ListedGroup, ...]:
        """Return groups by name. See `AsyncClient.list_groups`."""
        return self._call(self._client.list_groups, states=states)

    def describe_groups(self, *names: str) -> tuple[DescribedConsumerGroup, ...]:
        """Return members, assignments, committed offsets and log end offsets. See `AsyncClient.describe_groups`."""
        return self._call(self._client.describe_groups, *names)

    def delete_group(self, name: str) -> None:
        """Delete a group without members, and its offsets."""
        self._call(self._client.delete_group, name)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the committed offsets of a group without members. See `AsyncClient.commit_offsets`."""
        self._call(self._client.commit_offsets, group, offsets)

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete a group's committed offsets. See `AsyncClient.delete_offsets`."""
        self._call(self._client.delete_offsets, group, partitions)

    def alter_group(self, name: str, *, configs: Mapping[str, str | None]) -> None:
        """Change settings of a group. See `AsyncClient.alter_group`."""
        self._call(self._client.alter_group, name, configs=configs)

    def reset_share_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Deliver records again, starting at these offsets. See `AsyncClient.reset_share_group`."""
        self._call(self._client.reset_share_group, group, offsets)

    # -- the client's thread --

    @property
    def _client(self) -> AsyncClient:
        if self._running is None:
            raise ClosedError(NOT_OPEN)
        return self._running[1]

    @property
    def _handoff(self) -> Handoff:
        if self._running is None or self._handing is None:
            raise ClosedError(NOT_OPEN)
        return self._handing

    @property
    def _portal(self) -> BlockingPortal:
        if self._running is None:
            raise ClosedError
        return self._running[0]

    def _call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function in the client's thread and wait for it."""
        return self._portal.call(partial(function, *args, **kwargs))

    def _start(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Start a coroutine function in the client's thread."""
        return self._portal.start_task_soon(partial(function, *args, **kwargs))


async def _call_soon() -> Callable[[Callable[[], object]], object]:
    """Return a function with which other threads call functions in this thread."""
    return asyncio.get_running_loop().call_soon_threadsafe


async def _produce_from(
    produce: Callable[..., Awaitable[Summary]],
    topic: str,
    records: MemoryObjectReceiveStream[list[Any]],
    partition: int | None,
) -> Summary:
    async with records:
        return await produce(topic, records, partition=partition)


async def _next_batch(stream: BatchStream) -> list[ConsumedRecord] | None:
    return await anext(stream, None)


def _chunks(records: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the records in lists. Lists grow with the rate of records, so that a slow source is not delayed."""
    items, size = iter(records), 1
    while True:
        began_at = perf_counter()
        chunk = list(islice(items, size))
        if not chunk:
            return
        size = min(2 * size, MAX_CHUNK_RECORDS) if perf_counter() - began_at < SLOW_CHUNK_S else 1
        yield chunk
