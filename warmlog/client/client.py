"""The public async client: `connect` and `AsyncClient`."""

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any, Unpack, overload

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from warmlog.client.administration import Administration
from warmlog.client.connection.background import BackgroundTasks
from warmlog.client.connection.cluster import Cluster
from warmlog.client.consuming.record_stream import RecordStream
from warmlog.client.consuming.stream import BatchStream
from warmlog.client.consuming.subscription import ConsumeOptions, Start, make_subscription
from warmlog.client.errors import ClosedError
from warmlog.client.groups.group_stream import GroupBatchStream, GroupReader, GroupRecordStream
from warmlog.client.groups.member_options import GroupConsumeOptions, Topics, make_group_subscription, named
from warmlog.client.groups.membership import Membership
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
from warmlog.client.settings import DEFAULT_ADDRESS, SettingNames, Settings, parse_bootstrap
from warmlog.client.share.options import ShareStart, make_share_options
from warmlog.client.share.stream import ShareStream
from warmlog.client.transactions.admin import DEFAULT_MAX_TIMEOUT_S, OpenTransaction, TransactionAdmin
from warmlog.client.transactions.transaction import DEFAULT_TIMEOUT_S, Transaction, TransactionalProducers
from warmlog.protocol.native.share import DEFAULT_MAX_RECORDS
from warmlog.protocol.transactions import DescribedTransaction, ListedTransaction


@asynccontextmanager
async def connect(
    bootstrap: str | Iterable[str] = DEFAULT_ADDRESS, **settings: Unpack[SettingNames]
) -> AsyncIterator["AsyncClient"]:
    """Connect to a cluster, on asyncio or trio; use it with `async with`.

    `bootstrap`: "host:port" of one broker or several (comma-separated or an iterable). Settings: see
    `warmlog.client.Settings`. Raises ConnectError if no broker answers, ValueError for an invalid address or setting.
    Leaving the block flushes produced records, unless an exception leaves it.
    """
    addresses, checked, random = parse_bootstrap(bootstrap), Settings(**settings), Random()  # noqa: S311 - for jitter
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        tasks = BackgroundTasks(group)
        try:
            cluster = Cluster(addresses, tasks, checked, random)
            producer = Producer(cluster, tasks, checked, random, now_ms=_now_ms)
            transactions = TransactionalProducers(cluster, tasks, checked, random, now_ms=_now_ms)
            client = AsyncClient(cluster, producer, transactions, checked, random)
            await cluster.start()
            tasks.start_soon(producer.run)
            try:
                yield client
                await producer.flush()
            finally:
                producer.close()
                transactions.close()
                await client.leave_groups()
                cluster.close()
        except anyio.get_cancelled_exc_class():
            raise
        except ClosedError as error:
            # A cancelled connection may fail its waiters before they are cancelled themselves.
            await checkpoint_if_cancelled()
            failure = error
        except BaseException as error:  # noqa: BLE001 - raised below, outside the task group, which would wrap it
            failure = error
        tasks.cancel()
    if failure is not None:
        raise failure


def _now_ms() -> int:
    return int(time.time() * 1000)


class AsyncClient(Administration):
    """The client that `connect` returns. Tasks of one event loop may share it."""

    def __init__(
        self,
        cluster: Cluster,
        producer: Producer,
        transactions: TransactionalProducers,
        settings: Settings,
        random: Random,
    ) -> None:
        super().__init__(cluster)
        self._producer = producer
        self._transactions = transactions
        self._settings = settings
        self._random = random
        self._transaction_admin = TransactionAdmin(cluster)
        self._memberships: list[Membership] = []
        self._share_streams: list[ShareStream] = []

    # -- producing --

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
        """Produce a record; return its partition and offset once acknowledged.

        Concurrent calls share batches. Key and value are bytes, bytearray or memoryview; `value` None with a key is a
        tombstone. `headers`: a mapping or pairs.
        `timestamp`: ms since the epoch or a datetime, by default now. `partition`: by default chosen by the key (as in
        Kafka's clients); records without a key stick to one partition per batch. The topic is created on first use if
        the broker allows that. A cancelled call may still store the record. Raises WarmlogError if the record is not
        stored, or if the outcome is unknown; TypeError, ValueError for invalid arguments.
        """
        return await self._producer.produce(topic, Message(content(value), content(key), headers, timestamp, partition))

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
        """Produce a record without waiting; the returned `Delivery` holds the result later.

        Arguments as for `produce`. The topic must be in the metadata cache: produce to it or call `topic` first. An
        error that is not read from the `Delivery` is raised by the next `flush`. Raises BufferFullError if
        `buffer_bytes` are unacknowledged.
        """
        return self._producer.produce_nowait(
            topic, Message(content(value), content(key), headers, timestamp, partition)
        )

    async def produce_many(
        self,
        topic: str,
        records: Iterable[Producible] | AsyncIterable[Producible | Sequence[Producible]],
        *,
        partition: int | None = None,
        on_stored: Callable[[int], None] | None = None,
    ) -> Summary:
        """Produce many records as fast as they are acknowledged; return when all are acknowledged.

        Each record is bytes (a value), a tuple (key, value) or a `Message`; an async iterable may also yield lists of
        these. Raises the error of the first record that is not stored; others may be stored. `on_stored`: called
        repeatedly with the number of records acknowledged since the last call.
        """
        return await self._producer.produce_many(topic, records, partition, on_stored)

    def handoff(self, thread: ClientThread) -> Handoff:
        """Return a queue into the producer for other threads. `thread`: the client's thread."""
        return Handoff(self._producer, self._cluster, self._settings.buffer_bytes, thread)

    async def flush(self) -> None:
        """Wait until every record produced so far is acknowledged. Raises the first error that no caller has seen."""
        await self._producer.flush()

    # -- transactions --

    def transaction(
        self, transactional_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> AbstractAsyncContextManager[Transaction]:
        """Produce to several partitions and commit a group's offsets atomically.

        `async with client.transaction("transfers") as transaction`: leaving the block commits; an exception that leaves
        it aborts. Readers with `isolation="read_committed"` see either all of a transaction or nothing. Another client
        that begins a transaction with the same id fences this one, which then gets ProducerFencedError: give each
        running instance of a program its own id, and reuse it after restarts. The broker aborts a transaction that is
        open for longer than `timeout_s`.

        Entering raises RuntimeError if a transaction with this id is open in this client, ProducerFencedError and other
        WarmlogErrors; ValueError for an empty id.
        """
        return self._transactions.transaction(transactional_id, timeout_s)

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        min_duration_s: float | None = None,
        pattern: str | None = None,
    ) -> tuple[ListedTransaction, ...]:
        """Return transactions sorted by transactional id: all, or those that match every filter.

        `states`: such as "Ongoing". `min_duration_s`: only transactions that have been open for longer than this.
        `pattern`: a regular expression that must match the whole id. Raises ValueError for an unknown state,
        WarmlogError.
        """
        return await self._transaction_admin.select(states, producer_ids, min_duration_s, pattern)

    async def describe_transactions(self, *ids: str) -> tuple[DescribedTransaction, ...]:
        """Return states, producers and partitions of transactional ids. Raises BrokerError for an unknown one."""
        return await self._transaction_admin.describe(ids)

    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of an id. Its producer gets ProducerFencedError. Raises BrokerError."""
        await self._transaction_admin.abort(transactional_id)

    async def find_hanging_transactions(
        self,
        topics: Iterable[str] | None = None,
        *,
        partition: int | None = None,
        max_timeout_s: float = DEFAULT_MAX_TIMEOUT_S,
    ) -> tuple[OpenTransaction, ...]:
        """Return transactions that are open in partitions and that no coordinator will end.

        `topics`: by default all. `max_timeout_s`: the broker's `transaction.max.timeout.ms`; a transaction whose
        producer has written within this time does not count. Raises WarmlogError.
        """
        return await self._transaction_admin.find_hanging(topics, partition, max_timeout_s)

    async def abort_hanging_transaction(self, topic: str, partition: int, start_offset: int) -> OpenTransaction:
        """Abort a transaction that hangs in a partition since `start_offset`; return it. Raises BrokerError.

        The coordinator is not consulted: use it only for results of `find_hanging_transactions`.
        """
        return await self._transaction_admin.abort_hanging(topic, partition, start_offset)

    # -- consuming --

    @overload
    def consume(
        self, topics: str | Iterable[str], start: Start = ..., *, group: None = None, **options: Unpack[ConsumeOptions]
    ) -> RecordStream: ...
    @overload
    def consume(
        self, topics: Topics, start: Start = ..., *, group: str, **options: Unpack[GroupConsumeOptions]
    ) -> GroupRecordStream: ...
    def consume(
        self, topics: Topics, start: Start = "beginning", *, group: str | None = None, **options: Any
    ) -> RecordStream | GroupRecordStream:
        """Consume records: `async for record in client.consume("orders", start="beginning")`.

        `start`: "beginning", "end", an offset, a time (a datetime; local time without a zone), or a mapping from
        partition to offset. Options:
        `partitions`: by default all, or the keys of that mapping.
        `until_end`: stop at the log end as of opening the stream; otherwise wait for more records forever.
        `out_of_range`: if the offset does not (or no longer) exist, raise OffsetOutOfRangeError ("error"), or continue
        at the "beginning" or the "end".
        `isolation`: "read_uncommitted" or "read_committed".
        `auto_create`: whether to create a missing topic; by default unless `until_end`.

        The stream opens at its first step or by `async with`, and need not be closed: leaving the loop is enough. Its
        steps raise WarmlogError; retriable errors are retried for `delivery_timeout_s`.

        With a `group`, its members (also clients of Kafka's protocol) share the partitions, and reading starts at the
        committed offset, or at `start` if there is none. Read inside `async with`, which leaves the group (see
        `GroupStream`). `partitions` is not allowed then, and `out_of_range` defaults to an end. Further options:
        `auto_commit`: commit every `commit_interval_s`, before a rebalance and at the end; a record is processed when
        the next one is requested. Otherwise call the stream's `commit`.
        `group_protocol`: "consumer" (KIP-848), "classic", or "auto": consumer unless the group has classic members.
        `session_timeout_s`: a classic member without heartbeats for this long is removed; for others the broker's
        timeout applies.
        `rebalance_timeout_s`: how long processing one record may take during a rebalance.
        `instance_id`: makes this a static member, which gets its partitions back after a restart.
        `on_assigned`, `on_revoked`, `on_lost`: called between two steps with the (topic, partition) pairs that the
        member gets, is about to give up, or has already lost to other members; functions or async functions.
        `on_revoked` may commit, and is also called instead of a missing `on_lost`. A classic member gives up all
        partitions in each rebalance.
        `topics` may be a pattern such as `re.compile("orders-.*")`, which must match the whole name of a topic. Topics
        are looked up every `topics_interval_s`.
        """
        if group is None:
            return RecordStream(self.consume_batches(named(topics), start, **options))
        return GroupRecordStream(self.group_reader(group, topics, start, **options))

    @overload
    def consume_batches(
        self, topics: str | Iterable[str], start: Start = ..., *, group: None = None, **options: Unpack[ConsumeOptions]
    ) -> BatchStream: ...
    @overload
    def consume_batches(
        self, topics: Topics, start: Start = ..., *, group: str, **options: Unpack[GroupConsumeOptions]
    ) -> GroupBatchStream: ...
    def consume_batches(
        self, topics: Topics, start: Start = "beginning", *, group: str | None = None, **options: Any
    ) -> BatchStream | GroupBatchStream:
        """Consume lists of records: like `consume`, with less overhead per record."""
        if group is None:
            return BatchStream(
                self._cluster, self._settings, self._random, make_subscription(named(topics), start, **options)
            )
        return GroupBatchStream(self.group_reader(group, topics, start, **options))

    def group_reader(
        self,
        group: str,
        topics: Topics,
        start: Start = "beginning",
        **options: Unpack[GroupConsumeOptions],
    ) -> GroupReader:
        """Return the reader behind a group's streams, on which other interfaces are built."""
        subscription, member_options = make_group_subscription(group, topics, start, **options)
        reader = GroupReader(self._cluster, self._settings, self._random, subscription, member_options)
        self._memberships = [each for each in self._memberships if not each.has_ended] + [reader.membership]
        return reader

    def share(
        self,
        topics: str | Iterable[str],
        *,
        group: str,
        start: ShareStart | None = None,
        max_jobs: int = DEFAULT_MAX_RECORDS,
        auto_accept: bool = False,
        auto_create: bool = True,
    ) -> ShareStream:
        """Take jobs from a queue: `async with client.share("jobs", group="workers") as jobs: async for job in jobs`.

        The members of a share group (KIP-932), which may use this protocol or Kafka's, get the records of its topics
        one by one, regardless of the number of partitions. Each is held until `job.accept()`, `release()` or
        `reject()`, or until its lock expires. A released record, or one whose lock has expired, is delivered again, up
        to `group.share.delivery.count.limit` times. Use it inside `async with`: leaving the block releases jobs that
        are not acknowledged, and leaves the group. `start`: where a group starts to read a new topic, "beginning" or
        "end"; by default as set by `share.auto.offset.reset`, which defaults to the end. `max_jobs`: limit of jobs to
        acquire from a broker at a time; fewer are acquired if they are processed slowly. `auto_accept`: requesting the
        next job accepts the last one, unless it was acknowledged. `auto_create`: whether to create a missing topic;
        otherwise the first step raises UnknownTopicError.

        Steps raise WarmlogError; retriable errors are retried for `delivery_timeout_s`. Raises ValueError.
        """
        options = make_share_options(topics, group=group, start=start, max_jobs=max_jobs, auto_create=auto_create)
        stream = ShareStream(self._cluster, self._settings, self._random, options, auto_accept=auto_accept)
        self._share_streams = [each for each in self._share_streams if not each.has_ended] + [stream]
        return stream

    async def leave_groups(self) -> None:
        """Leave all groups. Records taken last do not count as processed, since they may not have been processed."""
        for membership in self._memberships:
            membership.stop(include_last=False)
        with anyio.CancelScope(shield=True):  # each wait has its own timeout
            for membership in self._memberships:
                await membership.wait_ended()
            for stream in self._share_streams:
                await stream.aclose(is_good=False)

    async def offsets(
        self, topic: str, at: Start = "end", *, partitions: Iterable[int] | None = None
    ) -> dict[int, int]:
        """Return by partition the offset of a start position: an end, or the first record at or after a time.

        For a time after all records, the offset is the end. Raises WarmlogError, ValueError.
        """
        options = ConsumeOptions(auto_create=False)
        if partitions is not None:
            options["partitions"] = partitions
        async with self.consume_batches(topic, at, **options) as stream:
            return {partition: offset for (_, partition), offset in stream.positions.items()}
