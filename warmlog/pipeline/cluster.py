"""Connections of a read or a write to a cluster, from a thread without an event loop.

The connections are those of the client (`client.connection`): metadata requests go to any broker, fetches to the leader
of each partition, requests for groups and transactions to their coordinators. `Retry` limits how long a request is
retried.
"""

import socket
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from warmlog.client.connection.blocking import BlockingCluster
from warmlog.client.connection.cluster import NO_LEADER, Cluster
from warmlog.client.connection.connection import Connection, Reply
from warmlog.client.connection.request_parts import parts
from warmlog.client.errors import RETRIABLE, BrokerError, ConnectError, WarmlogError, broker_error
from warmlog.client.settings import DEFAULT_PORT, Settings, parse_bootstrap
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.errors import BusyError, MovedError, PipelineError, UnavailableError
from warmlog.pipeline.retry import Retry
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import CoordinatorType
from warmlog.protocol.native.messages import NativeRequest
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.request import Value

R = TypeVar("R", bound=Value)
T = TypeVar("T")

DEFAULT_SETTINGS = Settings(client="warmlog pipeline")

# Kafka's ApiVersions, version 0: length, key, version, correlation id, no client id; the reply begins with the id.
API_VERSIONS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)
API_VERSIONS_REPLY = struct.pack(">i", 1)

MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER})
BUSY = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT})
# Transient errors: a retry may succeed. An unknown topic is transient only if the cluster reports that it exists.
TRANSIENT = RETRIABLE - BUSY - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


class PartitionReply(Protocol):
    """The part of a reply about one partition."""

    @property
    def error(self) -> ErrorCode:
        """NONE, or the reason why there is no result."""

    @property
    def message(self) -> str | None:
        """The error message."""


P = TypeVar("P", bound=PartitionReply)


class ClusterConnection:
    """Connections to a cluster that use the pipeline's errors and retries; a context manager. Not thread-safe.

    Methods raise UnavailableError once `retry` gives up, and PipelineError for other errors. `max_reply_bytes`: limit
    of records in one reply.
    """

    def __init__(self, brokers: Brokers, retry: Retry, *, max_reply_bytes: int = DEFAULT_SETTINGS.fetch_bytes) -> None:
        self.retry = retry
        self._brokers = brokers
        self._settings = replace(DEFAULT_SETTINGS, fetch_bytes=max_reply_bytes)
        self._blocking: BlockingCluster | None = None
        self._leaders: dict[int, Connection] = {}

    def start(self) -> None:
        """Connect without retries, so that a wrong address fails immediately."""
        self.once(lambda cluster: cluster.start())

    @property
    def brokers(self) -> Brokers:
        """The given brokers, and all others that the cluster has reported."""
        known = () if self._blocking is None else self._blocking.cluster.addresses
        return self._brokers.at(",".join(dict.fromkeys([*self._brokers.addresses.split(","), *known])))

    def once(self, act: Callable[[Cluster], Awaitable[T]]) -> T:
        """Run a call of the client without retries."""
        if self._blocking is None:
            settings = self._brokers.connecting(self._settings)
            self._blocking = BlockingCluster(self._brokers.addresses, settings, retry_s=0)
        with self._pipeline_errors():
            return self._blocking.run(act(self._blocking.cluster))

    def call(self, act: Callable[[Cluster], Awaitable[T]]) -> T:
        """Run an idempotent call of the client, with retries."""
        return self.retry.call(lambda: self.once(act))

    def ask(self, request: NativeRequest, response_type: type[R]) -> R:
        """Send an idempotent request to any broker, and return the reply."""
        return self.call(lambda cluster: cluster.ask(request, response_type))

    def ask_coordinator(
        self,
        kind: CoordinatorType,
        key: str,
        request: NativeRequest,
        response_type: type[R],
        check: Callable[[R], None] | None = None,
    ) -> R:
        """Send an idempotent request to a coordinator. `check` raises the client's errors for errors in the reply."""
        return self.call(lambda cluster: cluster.ask_coordinator(kind, key, request, response_type, check=check))

    def ask_leaders(
        self,
        partitions: Sequence[TopicPartition],
        make: Callable[[Sequence[TopicPartition]], NativeRequest],
        parts_of: Callable[[Any], Sequence[P]],
        response_type: type[Value],
    ) -> list[P]:
        """Send an idempotent request about partitions to their leaders; return the replies' parts in partition order.

        `make` returns the request for some of the partitions, `parts_of` the parts of its reply. Parts with errors that
        are not transient are returned.
        """
        results: dict[TopicPartition, P] = {}

        async def attempt(cluster: Cluster) -> None:
            missing = [key for key in partitions if key not in results]
            for leader, led in (await _by_leader(cluster, missing)).items():
                for some in parts(led, lambda key: key[0]):
                    try:
                        reply = await cluster.ask_broker(leader, make(some), response_type)
                    except WarmlogError:
                        forget_leaders(cluster, some)
                        raise
                    results.update(zip(some, parts_of(reply), strict=True))
            failed = [key for key in missing if await _is_transient(cluster, key, results[key].error)]
            forget_leaders(cluster, failed)
            for (topic, partition), part in [(key, results.pop(key)) for key in failed][:1]:
                raise broker_error(_transient(part.error), part.message, about=f"{topic}-{partition}")

        self.call(attempt)
        return [results[key] for key in partitions]

    # -- connections to leaders, for requests ahead of their replies --

    def leader(self, topic: str, partition: int) -> Connection:
        """Return a connection to the partition's leader, used only for this object's requests. Does not retry."""
        return self.once(lambda cluster: self._leader(cluster, topic, partition))

    async def _leader(self, cluster: Cluster, topic: str, partition: int) -> Connection:
        node_id = await _leader_of(cluster, topic, partition)
        leader = self._leaders.get(node_id)
        if leader is None or leader.closed:
            try:
                leader = self._leaders[node_id] = await cluster.open(node_id)
            except WarmlogError:
                cluster.forget_leaders(topic)
                raise
        return leader

    def submit(self, connection: Connection, request: NativeRequest, response_type: type[R]) -> Reply[R]:
        """Send a request to a leader, and return its pending reply."""

        async def submitted(_: Cluster) -> Reply[R]:
            return connection.submit(request, response_type)

        return self.once(submitted)

    def wait(self, reply: Reply[R]) -> R:
        """Wait for a reply, without retries."""
        return self.once(lambda _: reply.wait())

    def forget_leaders(self, topic: str) -> None:
        """Make the next request look up the leaders of a topic again."""
        if self._blocking is not None:
            self._blocking.cluster.forget_leaders(topic)

    def is_transient(self, topic: str, partition: int, error: ErrorCode) -> bool:
        """Return whether a request that a leader answered with this error may succeed when repeated."""
        return self.call(lambda cluster: _is_transient(cluster, (topic, partition), error))

    # -- closing --

    def close(self) -> None:
        """Close all connections; the next request opens others."""
        self._leaders.clear()
        if self._blocking is not None:
            self._blocking.close()
            self._blocking = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _pipeline_errors(self) -> Iterator[None]:
        """Convert the client's errors to the pipeline's."""
        try:
            yield
        except BrokerError as error:
            raise reply_error(error.code, error.message) from error
        except WarmlogError as error:
            if isinstance(error, ConnectError) and error.__cause__ is not None:
                self._check_not_kafka(error)
            kind = UnavailableError if error.is_retriable else PipelineError
            raise kind(error.message) from error

    def _check_not_kafka(self, error: ConnectError) -> None:
        for host, port in parse_bootstrap(self._brokers.addresses):
            if _speaks_kafka(host, port):
                raise PipelineError(
                    f"{host}:{port} speaks Kafka's protocol, which is not used here. Of a warmlog broker, give the"
                    f" address of the native listener (port {DEFAULT_PORT} by default). Of Apache Kafka, read the data"
                    " directory by option path, copy its topics by warmlog mirror, or use Spark's Kafka connector"
                ) from error


async def _by_leader(cluster: Cluster, keys: Sequence[TopicPartition]) -> dict[int, list[TopicPartition]]:
    by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic, partition in keys:
        by_leader[await _leader_of(cluster, topic, partition)].append((topic, partition))
    return by_leader


async def _leader_of(cluster: Cluster, topic: str, partition: int) -> int:
    """Return the node id of a partition's leader. Other partitions of the topic may have no leader."""
    try:
        metadata = await cluster.topic(topic, auto_create=False)
    except WarmlogError:
        if cluster.leader(topic, partition) == NO_LEADER:
            raise
    else:
        if partition >= metadata.partitions:
            raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {topic}-{partition}")
    return cluster.leader(topic, partition)


async def _is_transient(cluster: Cluster, key: TopicPartition, error: ErrorCode) -> bool:
    """Return whether a retry may succeed, as it may for a leader that does not know the partition yet."""
    if error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return error in TRANSIENT or error in BUSY
    topic, partition = key
    with suppress(BrokerError):
        (described,) = (await cluster.metadata([topic])).topics
        return not described.error and partition < len(described.partitions)
    return False


def _transient(error: ErrorCode) -> ErrorCode:
    return ErrorCode.LEADER_NOT_AVAILABLE if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else error


def forget_leaders(cluster: Cluster, keys: Sequence[TopicPartition]) -> None:
    """Make the next request look up the leaders of these partitions again."""
    for topic in {topic for topic, _ in keys}:
        cluster.forget_leaders(topic)


def _speaks_kafka(host: str, port: int) -> bool:
    """Return whether an address that closed a native connection is a Kafka listener."""
    with suppress(OSError), socket.create_connection((host, port), DEFAULT_SETTINGS.connect_timeout_s) as connection:
        connection.settimeout(DEFAULT_SETTINGS.connect_timeout_s)
        connection.sendall(API_VERSIONS_REQUEST)
        reply = connection.recv(len(API_VERSIONS_REPLY) + 4, socket.MSG_WAITALL)
        return reply[4:] == API_VERSIONS_REPLY
    return False


def reply_error(code: ErrorCode, message: str | None, *, about: str = "") -> PipelineError:
    """Return the error for a code in a reply: UnavailableError if a retry may succeed. `about`: the error's subject."""
    text = message or code.name
    kind = PipelineError
    if code in TRANSIENT | BUSY:
        kind = BusyError if code in BUSY else MovedError if code in MOVED else UnavailableError
    return kind(f"{about}: {text}" if about else text)
