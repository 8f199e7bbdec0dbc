"""Another cluster as its clients see it: connections to its brokers, its leaders and its coordinators.

Kafka answers the requests of a connection in order, so a waiting fetch would delay everything behind it. Each broker
therefore has up to two connections: one for fetches, one for everything else.

Metadata is requested at the start, when an error or a lost broker makes a topic stale, and every `max_age_s`. Any
broker that answers will do, including the bootstrap addresses: so a cluster whose brokers have all moved is reached
again.
"""

import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar

import trio

from warmlog.broker.replication.peers.cluster_view import ClusterView, Leader, Reaction
from warmlog.broker.replication.peers.connection import PeerConnection, PeerSettings
from warmlog.broker.replication.peers.errors import PeerError, PeerUnavailableError
from warmlog.broker.replication.peers.leaders import Watcher
from warmlog.broker.replication.peers.link import Link
from warmlog.protocol.backoff import delays_s
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import CoordinatorType, FindCoordinatorRequest
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.records.fetch import CONSUMER, FetchingReplica
from warmlog.protocol.kafka.messages.topics.metadata import KafkaMetadataRequest
from warmlog.protocol.kafka.peer import PeerApi
from warmlog.protocol.kafka.peer_apis import FIND_COORDINATOR, METADATA

Q = TypeVar("Q")
R = TypeVar("R")

MAX_AGE_S = 300.0  # Kafka's metadata.max.age.ms
FOR_REQUESTS = 0  # the connection for everything but fetches, which may wait

logger = logging.getLogger(__name__)


class PeerCluster:
    """A cluster that `open_cluster` connects to."""

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        nursery: trio.Nursery,
        *,
        settings: PeerSettings | None = None,
        random: Random,
    ) -> None:
        self.view = ClusterView()
        self.on_change: list[Watcher] = []  # each is called after metadata has changed the view
        self.changes = 0  # number of these changes
        self._settings = settings or PeerSettings()
        self._nursery = nursery
        self._random = random
        self._bootstrap = [self._link_to(host, port) for host, port in bootstrap]
        self._links: dict[tuple[int, int], Link] = {}
        self._coordinators: dict[str, int] = {}
        self._refreshing = trio.Lock()
        self._wanted = trio.Event()  # set when metadata is stale

    def identity(self) -> FetchingReplica:
        """Return a consumer's identity: the other cluster does not count this broker as a replica."""
        return CONSUMER

    def leader_of(self, topic: str, partition: int) -> Leader | None:
        """Return the leader of a partition, None if it is not known."""
        return self.view.leader_of(topic, partition)

    def topic_id_of(self, topic: str) -> bytes:
        """Return the id of a topic, NO_TOPIC_ID if it is not known."""
        known = self.view.topics.get(topic)
        return NO_TOPIC_ID if known is None else known.topic_id

    async def connection(self, node_id: int, number: int = FOR_REQUESTS) -> PeerConnection:
        """Return the connection to a broker with this number.

        Raises PeerError after one attempt; the next one begins with a pause.
        """
        link = self._links.get((node_id, number))
        if link is None:
            link = self._links[node_id, number] = self._link_of(node_id)
        try:
            return await link.connection()
        except PeerUnavailableError:
            self.lost_broker(node_id)
            raise

    async def ask(self, node_id: int, api: PeerApi[Q, R], request: Q) -> R:
        """Send a request to one broker and return the response. Raises PeerError."""
        connection = await self.connection(node_id)
        try:
            return await connection.ask(api, request)
        except PeerUnavailableError:
            self.lost_broker(node_id)
            raise

    async def ask_any(self, api: PeerApi[Q, R], request: Q) -> R:
        """Send a request to brokers in turn until one answers, connected ones first. Raises the last PeerError."""
        known = {node: self._links.get((node, FOR_REQUESTS)) for node in self.view.brokers}
        connected = [node for node, link in known.items() if link is not None and link.is_open]
        others = [node for node in known if node not in connected]
        self._random.shuffle(others)
        failure: PeerError = PeerUnavailableError("the cluster has no broker and no bootstrap address")
        for node in connected + others:
            try:
                return await self.ask(node, api, request)
            except PeerError as error:
                failure = error
        for link in self._bootstrap:
            try:
                return await (await link.connection()).ask(api, request)
            except PeerError as error:
                failure = error
        raise failure

    async def coordinator_of(self, group: str) -> int:
        """Return the broker that coordinates a group. Raises PeerError."""
        if group not in self._coordinators:
            request = FindCoordinatorRequest(keys=(group,), key_type=CoordinatorType.GROUP)
            coordinators = (await self.ask_any(FIND_COORDINATOR, request)).coordinators
            if len(coordinators) != 1 or coordinators[0].key != group:
                raise PeerUnavailableError(f"no answer about the coordinator of group {group}")
            if coordinators[0].error is not ErrorCode.NONE:
                raise PeerUnavailableError(f"no coordinator of group {group}: {coordinators[0].error.name}")
            if coordinators[0].node_id not in self.view.brokers:
                await self.refresh()
            self._coordinators[group] = coordinators[0].node_id
        return self._coordinators[group]

    def forget_coordinator(self, group: str) -> None:
        """Drop the cached coordinator of a group."""
        self._coordinators.pop(group, None)

    def report(self, topic: str, error: ErrorCode) -> Reaction:
        """Record an error of a topic's partition; return the reaction."""
        reaction = self.view.report(topic, error)
        if self.view.stale:
            self._wanted.set()
        return reaction

    def lost_broker(self, node_id: int) -> None:
        """Record that a broker is unreachable."""
        self.view.lost_broker(node_id)
        self._coordinators = {group: node for group, node in self._coordinators.items() if node != node_id}
        if self.view.stale:
            self._wanted.set()

    async def refresh(self, topics: Collection[str] | None = None) -> None:
        """Request metadata of these topics, or of all. Raises PeerError."""
        async with self._refreshing:
            request = KafkaMetadataRequest()
            if topics is not None:
                names = tuple(sorted(topics))
                request = KafkaMetadataRequest(topics=names, topic_ids=(NO_TOPIC_ID,) * len(names))
            response = await self.ask_any(METADATA, request)
            if self.view.update(response, topics):
                self._drop_lost_links()
                self.changes += 1
                for watcher in self.on_change:
                    watcher(None)

    async def keep_fresh(self, max_age_s: float = MAX_AGE_S) -> None:
        """Refresh stale topics, with growing pauses while nothing changes, and all topics at intervals."""
        delays = delays_s(self._random)
        is_failing = False
        while True:
            with trio.move_on_after(max_age_s):
                await self._wanted.wait()
            self._wanted = trio.Event()
            before = self.changes
            try:
                await self.refresh(set(self.view.stale) or None)
            except PeerError as error:
                if not is_failing:
                    logger.warning("cannot get metadata from the source cluster, retrying: %s", error)
                is_failing = True
                self._wanted.set()
            else:
                is_failing = False
                if self.view.stale:
                    self._wanted.set()
            if self.changes > before:
                delays = delays_s(self._random)
            await trio.sleep(next(delays))

    def close(self) -> None:
        """Close all connections."""
        for link in (*self._bootstrap, *self._links.values()):
            link.close()

    def _drop_lost_links(self) -> None:
        """Close the connections to brokers that are no longer in the cluster."""
        for node_id, purpose in list(self._links):
            if node_id not in self.view.brokers:
                self._links.pop((node_id, purpose)).close()

    def _link_to(self, host: str, port: int) -> Link:
        return Link(lambda: (host, port), self._settings, self._nursery, self._random)

    def _link_of(self, node_id: int) -> Link:
        def address() -> tuple[str, int]:
            broker = self.view.brokers.get(node_id)
            if broker is None:
                raise PeerUnavailableError(f"broker {node_id} is not in the cluster's metadata")
            return broker.host, broker.port

        return Link(address, self._settings, self._nursery, self._random)


@asynccontextmanager
async def open_cluster(
    bootstrap: Sequence[tuple[str, int]], *, settings: PeerSettings | None = None, random: Random | None = None
) -> AsyncIterator[PeerCluster]:
    """Connect to a cluster and keep its metadata fresh. Raises PeerError if no bootstrap address answers.

    Exceptions of the body are raised unchanged, not in an ExceptionGroup.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        cluster = PeerCluster(bootstrap, nursery, settings=settings, random=random or Random())  # noqa: S311  # jitter
        try:
            await cluster.refresh()
            nursery.start_soon(cluster.keep_fresh)
            yield cluster
        except Exception as error:  # noqa: BLE001  # raised below
            failure = error
        finally:
            cluster.close()
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
