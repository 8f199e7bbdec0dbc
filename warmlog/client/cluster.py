"""What the client knows of the brokers: their addresses, the topics, who leads which partition.

Owns: the metadata, the one connection for questions about it, and trying again where a question may be repeated. Must
not know: what is produced or read. Producer and streams ask here for connections of their own, because on a connection
replies keep their order, and a long poll would hold up everything behind it.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from protocol.errors import ErrorCode
from protocol.native.messages import NativeRequest
from protocol.request import MetadataRequest, Value
from protocol.response import MetadataResponse, TopicMetadata
from warmlog.client.backoff import delays_s
from warmlog.client.connection import Connection
from warmlog.client.errors import ClosedError, ConnectError, WarmlogError, broker_error
from warmlog.client.settings import Settings

R = TypeVar("R", bound=Value)
T = TypeVar("T")

MAX_AGE_S = 300  # Kafka's metadata.max.age.ms: how long a larger partition count may go unnoticed
NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the metadata tells it. `leaders`: the node id of each partition's leader, NO_LEADER where none is."""

    name: str
    topic_id: str | None
    leaders: tuple[int, ...]
    known_since: float

    @property
    def partitions(self) -> int:
        """Their count."""
        return len(self.leaders)


class Cluster:
    """The brokers. `start` it before anything else. Not thread-safe."""

    def __init__(
        self, bootstrap: Sequence[tuple[str, int]], tasks: TaskGroup, settings: Settings, random: Random
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self._tasks = tasks
        self._settings = settings
        self._random = random
        self._connection: Connection | None = None
        self._connecting = anyio.Lock()
        self._brokers: dict[int, tuple[str, int]] = {}
        self._topics: dict[str, Topic] = {}
        self._closed = False

    async def start(self) -> None:
        """Connect, once and without patience: a wrong address is told at once. Raises ConnectError, BrokerError."""
        await self._control()

    def close(self) -> None:
        """Open no more connections. Those that are open end with the task group."""
        self._closed = True

    # -- asking --

    async def ask(self, request: NativeRequest, response_type: type[R], *, repeatable: bool = True) -> R:
        """Ask any broker. Raises WarmlogError.

        Tries again within the request timeout: where no broker could be reached, and if `repeatable` also where the
        reply was lost.
        """

        async def attempt() -> R:
            return await (await self._control()).ask(request, response_type)

        return await self._insist(attempt, repeatable=repeatable)

    async def open(self, node_id: int) -> Connection:
        """A new connection to a broker; the caller closes it. Raises WarmlogError."""
        address = self._brokers.get(node_id)
        if address is None:
            raise broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"no address is known of broker {node_id}")
        return await self._connect(address)

    async def open_any(self, tasks: TaskGroup | None = None) -> Connection:
        """A new connection to any broker; the caller closes it. Raises WarmlogError.

        `tasks`: where it lives, by default where all others do; its own group outlives a cancelled client.
        """
        return await self._connect_any(tasks)

    def start_soon(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task for as long as the client, and not longer."""
        self._tasks.start_soon(function)

    async def _insist(self, attempt: Callable[[], Awaitable[T]], *, repeatable: bool = True) -> T:
        """Try until it works, trying again makes no sense, or the request timeout is over; then raise the last error.

        If it is not `repeatable`, it makes sense only as long as nothing was sent.
        """
        deadline = anyio.current_time() + self._settings.request_timeout_s
        for delay_s in delays_s(self._random):
            try:
                return await attempt()
            except WarmlogError as error:
                makes_sense = error.is_retriable if repeatable else isinstance(error, ConnectError)
                if not makes_sense or anyio.current_time() + delay_s > deadline:
                    raise
            await anyio.sleep(delay_s)
        raise AssertionError("delays never end")

    async def _control(self) -> Connection:
        async with self._connecting:
            if self._connection is None or self._connection.closed:
                self._connection = await self._connect_any()
            return self._connection

    async def _connect_any(self, tasks: TaskGroup | None = None) -> Connection:
        error: WarmlogError | None = None
        for address in dict.fromkeys((*self._bootstrap, *self._brokers.values())):
            try:
                return await self._connect(address, tasks)
            except ConnectError as problem:
                error = error or problem
        raise error or ConnectError("no address of a broker was given")

    async def _connect(self, address: tuple[str, int], tasks: TaskGroup | None = None) -> Connection:
        if self._closed:
            raise ClosedError
        return await Connection.open(*address, tasks or self._tasks, self._settings)

    # -- metadata --

    def known_topic(self, name: str) -> Topic | None:
        """The topic as far as it is known without asking, None if it is not, or not any more."""
        topic = self._topics.get(name)
        if topic is None or anyio.current_time() > topic.known_since + MAX_AGE_S:
            return None
        return topic

    def topic_as_heard(self, name: str) -> Topic:
        """The topic as last heard, without asking. Raises UnknownTopicError if it was never asked for."""
        topic = self._topics.get(name)
        if topic is None:
            message = f"topic {name!r} has not been asked for yet: `await client.topic({name!r})` before"
            raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        return topic

    async def topic(self, name: str, *, auto_create: bool = True) -> Topic:
        """The topic, asked for if need be. Raises UnknownTopicError and other WarmlogErrors."""
        return self.known_topic(name) or await self.refresh(name, auto_create=auto_create)

    async def refresh(self, name: str, *, auto_create: bool = True) -> Topic:
        """The topic, asked for again; waits for a leader of each partition. Raises as `topic`."""

        async def attempt() -> Topic:
            (told,) = (await self.metadata([name], auto_create=auto_create)).topics
            if told.error:
                error = broker_error(told.error, told.message)
                error.is_final = told.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise error
            topic = self._topics[name]
            if NO_LEADER in topic.leaders:
                raise broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r} has a partition without a leader")
            return topic

        return await self._insist(attempt)

    async def metadata(self, names: Iterable[str] | None = None, *, auto_create: bool = False) -> MetadataResponse:
        """Ask for topics (None: all), and remember the answer. Raises WarmlogError."""
        topics = None if names is None else tuple(names)
        response = await self.ask(MetadataRequest(topics=topics, auto_create=auto_create), MetadataResponse)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        for told in response.topics:
            self._remember(told)
        return response

    def forget(self, name: str) -> None:
        """The topic is gone, or has changed."""
        self._topics.pop(name, None)

    def forget_leaders(self, name: str) -> None:
        """What is known of the topic turned out to be out of date: the next `topic` asks again."""
        topic = self._topics.get(name)
        if topic is not None:
            nobody = (NO_LEADER,) * topic.partitions
            self._topics[name] = replace(topic, leaders=nobody, known_since=-inf)

    def leader(self, name: str, partition: int) -> int:
        """The node id of a partition's leader, as last heard; NO_LEADER if it is not known."""
        topic = self._topics.get(name)
        return NO_LEADER if topic is None or partition >= topic.partitions else topic.leaders[partition]

    def _remember(self, told: TopicMetadata) -> None:
        if told.error:
            self.forget(told.name)
            return
        self._topics[told.name] = Topic(
            name=told.name,
            topic_id=told.topic_id,
            leaders=tuple(partition.leader for partition in told.partitions),
            known_since=anyio.current_time(),
        )
