"""The client's view of the cluster: broker addresses, topics, partition leaders and coordinators.

One control connection serves metadata and administration requests. Each further broker that must answer such requests
gets a connection for them. The producer and each stream open their own connections: replies come in request order, so
a long poll would delay all later replies.

Any broker is assumed to be the coordinator of a group or transactional id until it reports that it is not.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Any, TypeVar

import anyio
from msgspec import structs

from warmlog.client.connection.background import TaskStarter
from warmlog.client.connection.connection import Connection
from warmlog.client.connection.kafka_probe import speaks_kafka
from warmlog.client.connection.outage import Outage
from warmlog.client.connection.request_parts import parts
from warmlog.client.errors import ClosedError, ConnectError, ConnectionLostError, WarmlogError, broker_error
from warmlog.client.settings import DEFAULT_PORT, Settings
from warmlog.protocol.backoff import delays_s
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import CoordinatorType, FindCoordinatorRequest, FindCoordinatorResponse
from warmlog.protocol.native.messages import FIRST_WITH_COORDINATORS, NativeRequest
from warmlog.protocol.request import MetadataRequest, Value
from warmlog.protocol.response import MetadataResponse, TopicMetadata

R = TypeVar("R", bound=Value)
T = TypeVar("T")

MAX_AGE_S = 300  # Kafka's metadata.max.age.ms: maximum time until a new partition is noticed
NO_LEADER = -1
# The broker has not carried out the request, so even a non-idempotent one can be retried.
_NOT_DONE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic's metadata. `leaders`: node id of each partition's leader, or NO_LEADER."""

    name: str
    topic_id: str | None
    leaders: tuple[int, ...]
    fetched_at: float

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.leaders)


class Lookup:
    """A request for a topic's metadata, and its outcome for all waiting callers."""

    __slots__ = ("ended", "error", "topic")

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.topic: Topic | None = None
        self.error: WarmlogError | None = None

    async def wait(self) -> Topic:
        """Wait for the outcome. Raises WarmlogError."""
        await self.ended.wait()
        if self.topic is None:
            raise self.error.with_traceback(None) if self.error else ClosedError  # each waiter gets its own traceback
        return self.topic


class Cluster:
    """Metadata and connections. Call `start` first. Not thread-safe.

    `retry_s`: how long requests are retried, by default `request_timeout_s`; 0 for a caller that retries them itself.
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        tasks: TaskStarter,
        settings: Settings,
        random: Random,
        *,
        retry_s: float | None = None,
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self._tasks = tasks
        self._settings = settings
        self._retry_s = settings.request_timeout_s if retry_s is None else retry_s
        self._random = random
        self._connection: Connection | None = None
        self._connecting = anyio.Lock()
        self._brokers: dict[int, tuple[str, int]] = {}
        self._coordinators: dict[tuple[CoordinatorType, str], tuple[str, int]] = {}
        self._to_brokers: dict[tuple[str, int], Connection] = {}
        self._topics: dict[str, Topic] = {}
        self._lookups: dict[tuple[str, bool], Lookup] = {}  # in progress; the bool: whether to create the topic
        self.outage = Outage()
        self._closed = False

    async def start(self) -> None:
        """Connect, without retries, so that a wrong address fails immediately. Raises ConnectError, BrokerError."""
        try:
            await self._control_connection()
        except ConnectError as error:
            if isinstance(error.__cause__, ConnectionLostError):  # a program listens at the address
                await self._report_kafka(error)
            raise

    async def _report_kafka(self, error: ConnectError) -> None:
        """Raise a final ConnectError if an address is that of a Kafka listener."""
        for host, port in self._bootstrap:
            if await speaks_kafka(host, port):
                failure = ConnectError(
                    f"{host}:{port} is a Kafka listener. warmlog's client uses the native protocol: connect to a"
                    f" warmlog broker's native listener (port {DEFAULT_PORT} by default), or use a client of Kafka's"
                )
                failure.is_final = True
                raise failure from error

    def close(self) -> None:
        """Refuse new connections. Open connections end with the task group."""
        self._closed = True

    # -- requests --

    async def ask(
        self, request: NativeRequest, response_type: type[R], *, repeatable: bool = True, since: int = 1
    ) -> R:
        """Send a request to any broker and return the reply. Raises WarmlogError.

        Retries for `retry_s`: always if no broker was reached, and with `repeatable` also after a lost reply or a
        retriable error. `since`: the protocol version that the request needs.
        """

        async def attempt() -> R:
            connection = await self._control_connection()
            if connection.version < since:
                raise broker_error(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{request.api} needs version {since} of the native protocol here, and the broker has "
                    f"{connection.version}: update the broker",
                )
            return await connection.ask(request, response_type)

        return await self.retry(attempt, repeatable=repeatable)

    async def ask_coordinator(
        self,
        kind: CoordinatorType,
        key: str,
        request: NativeRequest,
        response_type: type[R],
        *,
        check: Callable[[R], None] | None = None,
        repeatable: bool = True,
    ) -> R:
        """Send a request to the coordinator of a group or transactional id, and return the reply. Raises WarmlogError.

        `check` raises the errors that the reply has for this key. Retries like `ask`.
        """

        async def attempt() -> R:
            address = self._coordinators.get((kind, key))
            try:
                connection = await (self._control_connection() if address is None else self._connection_to(address))
                reply = await connection.ask(request, response_type)
                if check is not None:
                    check(reply)
            except WarmlogError as error:
                await self.lose_coordinator(kind, key, error)
                raise
            return reply

        return await self.retry(attempt, repeatable=repeatable)

    async def ask_leader(
        self,
        topic: str,
        partition: int,
        request: NativeRequest,
        response_type: type[R],
        *,
        check: Callable[[R], None] | None = None,
    ) -> R:
        """Send a request to a partition's leader and return the reply. Raises WarmlogError.

        `check` raises the error that the reply has for this partition. Retries like `ask`.
        """

        async def attempt() -> R:
            metadata = await self.topic(topic, auto_create=False)
            if not 0 <= partition < metadata.partitions:
                message = f"topic {topic!r} has partitions 0 to {metadata.partitions - 1}, not {partition}"
                error = broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
                error.is_final = True
                raise error
            try:
                reply = await self.ask_broker(metadata.leaders[partition], request, response_type)
                if check is not None:
                    check(reply)
            except WarmlogError as error:
                if error.is_retriable:
                    self.forget_leaders(topic)
                raise
            return reply

        return await self.retry(attempt)

    async def ask_broker(self, node_id: int, request: NativeRequest, response_type: type[R]) -> R:
        """Send a request to a broker once, or to any broker if its address is unknown. Raises WarmlogError."""
        address = self._brokers.get(node_id)
        connection = await (self._control_connection() if address is None else self._connection_to(address))
        return await connection.ask(request, response_type)

    async def ask_each(self, request: NativeRequest, response_type: type[R]) -> list[R]:
        """Send a request to every broker and return the replies. Retries like `ask`. Raises WarmlogError."""

        async def attempt() -> list[R]:
            await self.metadata(())
            return [await self.ask_broker(node_id, request, response_type) for node_id in self._brokers]

        return await self.retry(attempt)

    async def open_coordinator(self, kind: CoordinatorType, key: str, tasks: TaskStarter | None = None) -> Connection:
        """Open a connection to a coordinator, like `open_any`. Pass its errors to `lose_coordinator`."""
        address = self._coordinators.get((kind, key))
        if address is not None:
            try:
                return await self._connect(address, tasks)
            except ConnectError:
                del self._coordinators[kind, key]
        return await self._connect_any(tasks)

    async def lose_coordinator(
        self, kind: CoordinatorType, key: str, error: WarmlogError, tasks: TaskStarter | None = None
    ) -> None:
        """Look up the coordinator again if the error shows that it has moved, or may have moved.

        `tasks`: as for `open_any`.
        """
        if error.code is not ErrorCode.NOT_COORDINATOR:
            if isinstance(error, ConnectError | ConnectionLostError):
                self._coordinators.pop((kind, key), None)
            return
        self._coordinators.pop((kind, key), None)
        control = await (self._control_connection() if tasks is None else self._connect_any(tasks))
        try:
            if control.version < FIRST_WITH_COORDINATORS:
                return
            request = FindCoordinatorRequest(keys=(key,), key_type=kind)
            (coordinator,) = (await control.ask(request, FindCoordinatorResponse)).coordinators
        finally:
            if tasks is not None:
                control.close()
        if coordinator.error is ErrorCode.NONE:
            self._coordinators[kind, key] = coordinator.host, coordinator.port

    async def open(self, node_id: int) -> Connection:
        """Open a connection to a broker; the caller closes it. Raises WarmlogError."""
        address = self._brokers.get(node_id)
        if address is None:
            raise broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"the address of broker {node_id} is unknown")
        return await self._connect(address)

    async def open_any(self, tasks: TaskStarter | None = None) -> Connection:
        """Open a connection to any broker; the caller closes it. Raises WarmlogError.

        `tasks`: the task group of the connection; by default the client's. In another group it outlives a cancelled
        client.
        """
        return await self._connect_any(tasks)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The native addresses of the brokers in the latest metadata."""
        return tuple(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._brokers.values())

    @property
    def has_several_brokers(self) -> bool:
        """Whether the latest metadata has more than one broker."""
        return len(self._brokers) > 1

    def start_soon(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task in the client's task group."""
        self._tasks.start_soon(function)

    async def retry(self, attempt: Callable[[], Awaitable[T]], *, repeatable: bool = True) -> T:
        """Call `attempt` until it succeeds. Raises its last error if that is final or the time for retries is over.

        Unless `repeatable`, it is called again only if the request cannot have been carried out.
        """
        deadline = anyio.current_time() + self._retry_s
        for number, delay_s in enumerate(delays_s(self._random)):
            try:
                result = await attempt()
            except WarmlogError as error:
                is_undone = isinstance(error, ConnectError) or error.code in _NOT_DONE
                can_retry = error.is_retriable if repeatable else is_undone
                if not can_retry or anyio.current_time() + delay_s > deadline:
                    raise
                self.outage.attempt_failed(error)
            else:
                if number:
                    self.outage.end()
                return result
            await anyio.sleep(delay_s)
        raise AssertionError("unreachable: the delays are endless")

    async def _control_connection(self) -> Connection:
        async with self._connecting:
            if self._connection is None or self._connection.closed:
                self._connection = await self._connect_any()
            return self._connection

    async def _connection_to(self, address: tuple[str, int]) -> Connection:
        """Return a connection to a broker at this address for requests that are answered soon. Raises WarmlogError."""
        control = await self._control_connection()
        if control.address == "{}:{}".format(*address):
            return control
        connection = self._to_brokers.get(address)
        if connection is None or connection.closed:
            connection = self._to_brokers[address] = await self._connect(address)
        return connection

    async def _connect_any(self, tasks: TaskStarter | None = None) -> Connection:
        error: WarmlogError | None = None
        for address in dict.fromkeys((*self._bootstrap, *self._brokers.values())):
            try:
                return await self._connect(address, tasks)
            except ConnectError as problem:
                error = error or problem
        raise error or ConnectError("no broker address given")

    async def _connect(self, address: tuple[str, int], tasks: TaskStarter | None = None) -> Connection:
        if self._closed:
            raise ClosedError
        try:
            connection = await Connection.open(*address, tasks or self._tasks, self._settings)
        except ConnectError as error:
            self.outage.attempt_failed(error)
            raise
        self.outage.end()
        return connection

    # -- metadata --

    def cached_topic(self, name: str) -> Topic | None:
        """Return the cached topic; None if it is missing or older than MAX_AGE_S."""
        topic = self._topics.get(name)
        if topic is None or anyio.current_time() > topic.fetched_at + MAX_AGE_S:
            return None
        return topic

    def last_known_topic(self, name: str) -> Topic:
        """Return the topic from the last metadata, regardless of its age. Raises UnknownTopicError without one."""
        topic = self._topics.get(name)
        if topic is None:
            message = f"topic {name!r} is not in the metadata cache: `await client.topic({name!r})` first"
            raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        return topic

    async def topic(self, name: str, *, auto_create: bool = True) -> Topic:
        """Return the topic, from the cache or from a broker. Raises UnknownTopicError and other WarmlogErrors."""
        return self.cached_topic(name) or await self.refresh(name, auto_create=auto_create)

    async def refresh(self, name: str, *, auto_create: bool = True) -> Topic:
        """Request the topic's metadata, and wait until every partition has a leader. Raises the same errors as `topic`.

        Concurrent callers share the request, its retries and its error.
        """
        lookup = self._lookups.get((name, auto_create))
        if lookup is None:
            if self._closed:
                raise ClosedError
            lookup = self._lookups[name, auto_create] = Lookup()
            self._tasks.start_soon(self._look_up, name, auto_create, lookup)
        return await lookup.wait()

    async def _look_up(self, name: str, auto_create: bool, lookup: "Lookup") -> None:
        """Look up a topic for all waiting callers. Runs in a task of the client, since any caller may be cancelled."""
        try:
            lookup.topic = await self._find(name, auto_create=auto_create)
        except WarmlogError as error:
            lookup.error = error
        finally:
            del self._lookups[name, auto_create]
            lookup.ended.set()

    async def _find(self, name: str, *, auto_create: bool) -> Topic:
        async def attempt() -> Topic:
            (described,) = (await self.metadata([name], auto_create=auto_create)).topics
            if described.error:
                error = broker_error(described.error, described.message)
                error.is_final = described.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise error
            topic = self._topics[name]
            if NO_LEADER in topic.leaders:
                raise broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r} has a partition without a leader")
            return topic

        return await self.retry(attempt)

    async def metadata(self, names: Iterable[str] | None = None, *, auto_create: bool = False) -> MetadataResponse:
        """Request metadata (None: of all topics) and update the cache. Raises WarmlogError."""
        topics = None if names is None else tuple(names)
        described: list[TopicMetadata] = []
        for part in (topics,) if not topics else parts(topics, str):
            response = await self.ask(MetadataRequest(topics=part, auto_create=auto_create), MetadataResponse)
            self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
            for topic in response.topics:
                self._remember(topic)
            described += response.topics
        return structs.replace(response, topics=tuple(described))

    def forget(self, name: str) -> None:
        """Remove from the cache a topic that was deleted or altered."""
        self._topics.pop(name, None)

    def forget_leaders(self, name: str) -> None:
        """Mark a topic's leaders as outdated, so that the next `topic` requests them."""
        topic = self._topics.get(name)
        if topic is not None:
            no_leaders = (NO_LEADER,) * topic.partitions
            self._topics[name] = replace(topic, leaders=no_leaders, fetched_at=-inf)

    def leader(self, name: str, partition: int) -> int:
        """Return the node id of a partition's cached leader, or NO_LEADER."""
        topic = self._topics.get(name)
        return NO_LEADER if topic is None or partition >= topic.partitions else topic.leaders[partition]

    def _remember(self, described: TopicMetadata) -> None:
        if described.error:
            self.forget(described.name)
            return
        self._topics[described.name] = Topic(
            name=described.name,
            topic_id=described.topic_id,
            leaders=tuple(partition.leader for partition in described.partitions),
            fetched_at=anyio.current_time(),
        )
