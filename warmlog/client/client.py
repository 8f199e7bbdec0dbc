"""The client: one object for producing, reading and looking after topics and groups.

Owns: the face that users see, and the life of what is behind it. Must not know: how any of it is done.
"""

import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Unpack, overload

import anyio

from protocol.errors import ErrorCode
from protocol.groups import ListedGroup
from protocol.native.explain import ExplainRequest, ExplainResponse
from protocol.native.groups import DescribedConsumerGroup
from protocol.request import (
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    NewTopic,
    TopicAlteration,
)
from protocol.response import (
    AlterTopicsResponse,
    CreatedTopic,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeTopicsResponse,
    MetadataResponse,
    TopicDescription,
    TopicMetadata,
    TopicResult,
)
from warmlog.client.batches import Delivery, RecordMetadata
from warmlog.client.cluster import Cluster, Topic
from warmlog.client.errors import broker_error
from warmlog.client.group_options import GroupNames, make_group_reading
from warmlog.client.group_stream import GroupBatchStream, GroupReader, GroupRecordStream
from warmlog.client.groups import Groups
from warmlog.client.membership import Membership
from warmlog.client.producer import GivenHeaders, Message, Producer, Summary, Timestamp
from warmlog.client.reading import ReadingNames, make_reading
from warmlog.client.settings import DEFAULT_ADDRESS, SettingNames, Settings, parse_bootstrap
from warmlog.client.start import Start
from warmlog.client.stream import BatchStream, RecordStream


@asynccontextmanager
async def connect(
    bootstrap: str | Iterable[str] = DEFAULT_ADDRESS, **settings: Unpack[SettingNames]
) -> AsyncIterator["AsyncClient"]:
    """A connected client, for `async with`; on asyncio and on trio.

    `bootstrap`: addresses of one broker or several, "host:port" (also separated by commas). Settings: see
    `warmlog.client.Settings`. Raises ConnectError where no broker answers, ValueError for a bad address or setting.
    Leaving the block sends what was produced and waits for it; leaving it by an exception does not.
    """
    addresses, checked, random = parse_bootstrap(bootstrap), Settings(**settings), Random()  # noqa: S311 - for jitter
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            cluster = Cluster(addresses, tasks, checked, random)
            producer = Producer(cluster, tasks, checked, random, now_ms=_now_ms)
            client = AsyncClient(cluster, producer, checked, random)
            await cluster.start()
            tasks.start_soon(producer.run)
            try:
                yield client
                await producer.flush()
            finally:
                producer.close()
                await client.leave_groups()
                cluster.close()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised below, but not out of the task group, which would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _now_ms() -> int:
    return int(time.time() * 1000)


class AsyncClient:
    """What `connect` gives. Any number of tasks of one event loop may use it at the same time."""

    def __init__(self, cluster: Cluster, producer: Producer, settings: Settings, random: Random) -> None:
        self._cluster = cluster
        self._producer = producer
        self._settings = settings
        self._random = random
        self._groups = Groups(cluster)
        self._memberships: list[Membership] = []

    # -- producing --

    async def produce(
        self,
        topic: str,
        *,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: Timestamp | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Store a record; return where it is when it is acknowledged.

        Calls made at the same time share batches. `value` None with a key is a tombstone. `headers`: a mapping or
        pairs. `timestamp`: ms since the epoch or a datetime, by default now. `partition`: by default the key's (where
        Kafka's clients put it), or for records without a key one that changes with each batch. The topic is created
        on first use, if the broker allows that. A call that is cancelled may still store the record.
        Raises WarmlogError if it is not stored, or if nobody knows; TypeError, ValueError for wrong arguments.
        """
        return await self._producer.produce(topic, Message(value, key, headers, timestamp, partition))

    def produce_nowait(
        self,
        topic: str,
        *,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: Timestamp | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Store a record without waiting; what is given tells later what became of it.

        An error that nobody asks for there is raised by the next `flush`. Arguments as for `produce`. The topic must
        have been used or asked for (`topic`) before. Raises BufferFullError if too much waits already, then `flush`.
        """
        return self._producer.produce_nowait(topic, Message(value, key, headers, timestamp, partition))

    async def produce_many(
        self, topic: str, records: Iterable[Any] | AsyncIterable[Any], *, partition: int | None = None
    ) -> Summary:
        """Store many records, as fast as it goes, and return when all are acknowledged.

        Each is bytes (a value), a tuple (key, value) or a `Message`; an asynchronous iterable may also give lists of
        these. Raises at the first that is not stored; others may be stored then.
        """
        return await self._producer.produce_many(topic, records, partition)

    async def flush(self) -> None:
        """Return when everything produced so far is acknowledged. Raises the first error nobody was told of yet."""
        await self._producer.flush()

    # -- reading --

    @overload
    def consume(
        self, topics: str | Iterable[str], start: Start = ..., *, group: None = None, **options: Unpack[ReadingNames]
    ) -> RecordStream: ...
    @overload
    def consume(
        self, topics: str | Iterable[str], start: Start = ..., *, group: str, **options: Unpack[GroupNames]
    ) -> GroupRecordStream: ...
    def consume(
        self, topics: str | Iterable[str], start: Start = "beginning", *, group: str | None = None, **options: Any
    ) -> RecordStream | GroupRecordStream:
        """Read records: `async for record in client.consume("orders", start="beginning")`.

        `start`: "beginning", "end", an offset, a time (a datetime or ISO 8601 text; without a zone it is local time),
        or a mapping from partition to offset. Options:
        `partitions`: by default all, or those of that mapping.
        `until_end`: stop at the end as it was when the stream was opened; else wait for more, for ever.
        `out_of_range`: where the offset to read is not there (any more), raise OffsetOutOfRangeError ("error"), or go
        on at the "beginning" or the "end".
        `isolation`: "read_uncommitted" or "read_committed".
        `auto_create`: whether a topic that does not exist may be created; by default unless `until_end`.

        The stream is opened at its first step, or by `async with`. It need not be closed: leaving the loop is enough.
        Its steps raise WarmlogError; errors that may pass are tried again for `delivery_timeout_s`.

        With a `group`, the partitions are shared with its other members (also Kafka's), and reading begins where the
        group has committed, at `start` where it has not. Read within `async with`, which leaves the group at its end
        (see `GroupStream`). No `partitions` then, and `out_of_range` goes to an end by default. Further options:
        `auto_commit`: commit every `commit_interval_s`, before partitions go to others, and at the end; a record is
        done when the next one is asked for. Without, call the stream's `commit`.
        `session_timeout_s`: a member that is not heard of for so long is out.
        `rebalance_timeout_s`: so long may one record take while others wait for a share.
        `instance_id`: makes the member a static one, that finds its partitions again after a restart.
        """
        if group is None:
            return RecordStream(self.consume_batches(topics, start, **options))
        return GroupRecordStream(self.group_reader(group, topics, start, **options))

    @overload
    def consume_batches(
        self, topics: str | Iterable[str], start: Start = ..., *, group: None = None, **options: Unpack[ReadingNames]
    ) -> BatchStream: ...
    @overload
    def consume_batches(
        self, topics: str | Iterable[str], start: Start = ..., *, group: str, **options: Unpack[GroupNames]
    ) -> GroupBatchStream: ...
    def consume_batches(
        self, topics: str | Iterable[str], start: Start = "beginning", *, group: str | None = None, **options: Any
    ) -> BatchStream | GroupBatchStream:
        """Read lists of records, as they come: the same as `consume`, with less work for each record."""
        if group is None:
            return BatchStream(self._cluster, self._settings, self._random, make_reading(topics, start, **options))
        return GroupBatchStream(self.group_reader(group, topics, start, **options))

    def group_reader(
        self, group: str, topics: str | Iterable[str], start: Start = "beginning", **options: Unpack[GroupNames]
    ) -> GroupReader:
        """What the streams of a group stand on; for faces of another kind."""
        reading, checked = make_group_reading(group, topics, start, **options)
        reader = GroupReader(self._cluster, self._settings, self._random, reading, checked)
        self._memberships = [one for one in self._memberships if not one.has_ended] + [reader.membership]
        return reader

    async def leave_groups(self) -> None:
        """Leave all groups, without what was read last: nobody can tell whether that is done."""
        for membership in self._memberships:
            membership.stop(with_last=False)
        with anyio.CancelScope(shield=True):  # each has a time limit of its own
            for membership in self._memberships:
                await membership.wait_ended()

    async def offsets(
        self, topic: str, at: Start = "end", *, partitions: Iterable[int] | None = None
    ) -> dict[int, int]:
        """By partition, the offset that a start stands for: the ends, or the first record at or past a time.

        A time past all records gives the end. Raises WarmlogError, ValueError.
        """
        options = ReadingNames(auto_create=False)
        if partitions is not None:
            options["partitions"] = partitions
        async with self.consume_batches(topic, at, **options) as stream:
            return {partition: offset for (_, partition), offset in stream.positions.items()}

    # -- topics --

    async def topic(self, name: str, *, auto_create: bool = True) -> Topic:
        """The topic's id and leaders; creates it if it does not exist and that is allowed. Raises UnknownTopicError."""
        return await self._cluster.topic(name, auto_create=auto_create)

    async def metadata(self, topics: Iterable[str] | None = None) -> MetadataResponse:
        """Brokers and topics (None: all), as the broker tells them; a topic's own error stands in its entry."""
        return await self._cluster.metadata(topics)

    async def list_topics(self) -> tuple[TopicMetadata, ...]:
        """All topics, by name."""
        return (await self._cluster.metadata()).topics

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        if_not_exists: bool = False,
    ) -> CreatedTopic | None:
        """Create a topic. `partitions` -1: the broker's default. None where it exists and `if_not_exists`.

        Raises TopicExistsError and other BrokerErrors. If the connection is lost, nobody knows whether it was created.
        """
        topic = NewTopic(name=name, partitions=partitions, configs=dict(configs or {}))
        request = CreateTopicsRequest(topics=(topic,), validate_only=validate_only)
        (made,) = (await self._cluster.ask(request, CreateTopicsResponse, repeatable=validate_only)).topics
        if made.error is ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
            return None
        if made.error:
            raise broker_error(made.error, made.message)
        return made

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises UnknownTopicError and other BrokerErrors."""
        request = DeleteTopicsRequest(topics=(name,))
        _check((await self._cluster.ask(request, DeleteTopicsResponse, repeatable=False)).topics)
        self._cluster.forget(name)

    async def alter_topic(
        self, name: str, *, configs: Mapping[str, str | None] | None = None, partitions: int | None = None
    ) -> None:
        """Change settings (None takes the topic's own value away), or give it more partitions. Raises BrokerError."""
        topic = TopicAlteration(name=name, configs=dict(configs or {}), partitions=partitions)
        request = AlterTopicsRequest(topics=(topic,))
        _check((await self._cluster.ask(request, AlterTopicsResponse, repeatable=False)).topics)
        self._cluster.forget(name)

    async def describe_topics(self, *names: str) -> tuple[TopicDescription, ...]:
        """Settings, offsets and segments. Raises UnknownTopicError and other BrokerErrors."""
        request = DescribeTopicsRequest(topics=names)
        topics = (await self._cluster.ask(request, DescribeTopicsResponse)).topics
        _check(topics)
        return topics

    async def explain(
        self,
        topic: str,
        partition: int,
        *,
        offset: int | None = None,
        timestamp: int | None = None,
        plain: bool = False,
    ) -> ExplainResponse:
        """The way of a fetch to an offset, or to the first record at or past a time (ms), and what of it is in memory.

        `plain`: with the plain binary search beside the broker's. Raises OffsetOutOfRangeError, UnknownTopicError and
        other BrokerErrors.
        """
        request = ExplainRequest(topic=topic, partition=partition, offset=offset, timestamp=timestamp, plain=plain)
        return await self._cluster.ask(request, ExplainResponse)

    # -- groups --

    async def list_groups(self, *, states: Iterable[str] = ()) -> tuple[ListedGroup, ...]:
        """Groups by name, those in one of these states ("Stable", "Empty" ...) or all."""
        return await self._groups.list(states)

    async def describe_groups(self, *names: str) -> tuple[DescribedConsumerGroup, ...]:
        """Members, who has which partition, what is committed, where logs end. Raises UnknownGroupError."""
        return await self._groups.describe(names)

    async def delete_group(self, name: str) -> None:
        """Delete a group without members, and its offsets. Raises UnknownGroupError, GroupNotEmptyError."""
        await self._groups.delete(name)

    async def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set where a group without members goes on, by (topic, partition). Raises WarmlogError."""
        await self._groups.commit(group, offsets)

    async def delete_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Forget where a group is in these partitions, of topics that no member reads. Raises WarmlogError."""
        await self._groups.forget(group, partitions)


def _check(results: Iterable[TopicResult | TopicDescription]) -> None:
    for result in results:
        if result.error:
            raise broker_error(result.error, result.message)
