"""The brokers of this broker's cluster: the leaders in the image of the store, and connections to them."""

import logging
from random import Random
from typing import TypeVar

import trio

from warmlog.broker.cluster.image import ClusterImage, ImageDelta
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.replication.peers.cluster_view import Leader, Reaction
from warmlog.broker.replication.peers.connection import PeerConnection, PeerSettings
from warmlog.broker.replication.peers.errors import PeerError, PeerUnavailableError
from warmlog.broker.replication.peers.leaders import Watcher
from warmlog.broker.replication.peers.link import Link
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.records.fetch import FetchingReplica
from warmlog.protocol.kafka.peer import PeerApi

Q = TypeVar("Q")
R = TypeVar("R")

FOR_REQUESTS = 0  # the connection for everything but fetches, which may wait
WATCH_S = 0.2  # interval between checks for brokers that do not answer
WARN_S = 60.0  # interval between warnings that this broker may not fetch
_UNAUTHORIZED = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})
PATIENCE_S = 0.8  # delay of a response after which its broker is probed

logger = logging.getLogger(__name__)


class ClusterBrokers:
    """`Leaders` of this broker's cluster.

    A broker is suspected of being dead when a connection to it fails, and of hanging when it does not answer.
    """

    def __init__(self, node: ClusterNode, settings: PeerSettings, *, random: Random) -> None:
        """Open connections only while `run` runs."""
        self.on_change: list[Watcher] = []
        self._node = node
        self._nursery: trio.Nursery | None = None
        self._settings = settings
        self._random = random
        self._links: dict[tuple[int, int], Link] = {}
        self._epochs: dict[int, int] = {}  # of the brokers at the other end of the links
        self._warn_at = 0.0  # time before which no warning of missing rights is logged
        node.on_change.append(self._follow)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the connections until cancelled, and close them."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await self._watch_links()
        finally:
            self._nursery = None
            self.close()

    async def _watch_links(self) -> None:
        """Report brokers that do not answer as suspects."""
        while True:
            await trio.sleep(WATCH_S)
            now = trio.current_time()
            for (broker, _), link in list(self._links.items()):
                if link.silence_s(now) > PATIENCE_S:
                    self._node.failover.suspect(broker, is_silent=True)

    def _follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        for broker in delta.brokers:
            registration = image.brokers.get(broker)
            if registration is not None and self._epochs.get(broker) != registration.epoch:
                self._drop(broker)
        names = [(image.names.get(key.topic_id), key.partition) for key in delta.partitions]
        known = [(name, index) for name, index in names if name is not None]
        if known:
            for watcher in self.on_change:
                watcher(known)

    def _drop(self, broker: int) -> None:
        """Close the connections to a restarted broker: they may be half-open, or to its former address."""
        for key in [key for key in self._links if key[0] == broker]:
            self._links.pop(key).close()

    def identity(self) -> FetchingReplica:
        """Return this broker with its epoch."""
        return FetchingReplica(self._node.id, self._node.epoch)

    def leader_of(self, topic: str, partition: int) -> Leader | None:
        """Return the leader of a partition; None while this broker leads it, or it has no leader."""
        state = self._node.image.partition(topic, partition)
        if state is None or state.leader is None or state.leader.broker == self._node.id:
            return None
        return Leader(state.leader.broker, state.leader_epoch)

    def leader_id(self, topic: str, partition: int) -> int | None:
        """Return the other broker that leads a partition; None if this broker leads it, or it has no leader."""
        leader = self.leader_of(topic, partition)
        return None if leader is None else leader.node_id

    def topic_id_of(self, topic: str) -> bytes:
        """Return the id of a topic, NO_TOPIC_ID if it is not known."""
        entry = self._node.image.topics.get(topic)
        return NO_TOPIC_ID if entry is None else entry.id.bytes

    def report(self, topic: str, error: ErrorCode) -> Reaction:
        """Return the reaction to an error: OFFSET_OUT_OF_RANGE is for the replica, all others are temporary.

        Errors of outdated metadata end when the image advances.
        """
        if error in _UNAUTHORIZED and trio.current_time() >= self._warn_at:
            self._warn_at = trio.current_time() + WARN_S
            logger.warning(
                "%s: its leader refuses this broker's fetches (%s): put the principal that this broker has there into "
                "super.users, or give it CLUSTER_ACTION on the cluster",
                topic,
                error.name,
            )
        return Reaction.REPORT if error is ErrorCode.OFFSET_OUT_OF_RANGE else Reaction.RETRY

    async def connection(self, node_id: int, number: int = FOR_REQUESTS) -> PeerConnection:
        """Return a connection to a broker, the one with this number. Raises PeerError."""
        if self._nursery is None:
            raise PeerUnavailableError("this broker is not registered in the cluster")
        link = self._links.get((node_id, number))
        if link is None:
            link = self._links[node_id, number] = Link(
                lambda: self._address(node_id),
                self._settings,
                self._nursery,
                self._random,
                lambda: self._node.failover.suspect(node_id),
            )
        return await link.connection()

    async def ask(self, node_id: int, api: PeerApi[Q, R], request: Q, number: int = FOR_REQUESTS) -> R:
        """Send a request to one broker and return the response. Raises PeerError."""
        return await (await self.connection(node_id, number)).ask(api, request)

    async def answer(self, broker: int, api: PeerApi[Q, R], request: Q, number: int = FOR_REQUESTS) -> R | None:
        """Send a request to a broker and return the response; None if it does not answer."""
        try:
            return await self.ask(broker, api, request, number)
        except PeerError as error:
            logger.debug("broker %d did not answer %s: %s", broker, api.api.name, error)
            return None

    def _address(self, broker: int) -> tuple[str, int]:
        registration = self._node.image.brokers.get(broker)
        for endpoint in () if registration is None else registration.endpoints:
            if endpoint.listener == self._node.peer_listener and registration is not None:
                self._epochs[broker] = registration.epoch
                return endpoint.host, endpoint.port
        raise PeerUnavailableError(f"broker {broker} is not registered")

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.close()
        self._links.clear()
