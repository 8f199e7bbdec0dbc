"""The followers' view of leaders: a cluster's brokers, the leader of each partition, and connections."""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias, TypeVar

from warmlog.broker.replication.peers.cluster_view import Leader, Reaction
from warmlog.broker.replication.peers.connection import PeerConnection
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.fetch import FetchingReplica
from warmlog.protocol.kafka.peer import PeerApi
from warmlog.protocol.partitions import TopicPartition

Q = TypeVar("Q")
R = TypeVar("R")

# Called with the partitions whose leaders may have changed; None for all.
Watcher: TypeAlias = Callable[[Iterable[TopicPartition] | None], None]


class Leaders(Protocol):
    """The leaders of partitions: of another cluster (`peer.PeerCluster`) or of this one (`brokers.ClusterBrokers`).

    `on_change`: each is called when leaders may have changed.
    """

    on_change: list[Watcher]

    def identity(self) -> FetchingReplica:
        """Return the replica identity to send in fetches."""

    def leader_of(self, topic: str, partition: int) -> Leader | None:
        """Return the leader of a partition, None if it is not known."""

    def topic_id_of(self, topic: str) -> bytes:
        """Return the id of a topic, NO_TOPIC_ID if it is not known."""

    def report(self, topic: str, error: ErrorCode) -> Reaction:
        """Record an error of a topic's partition; return the reaction."""

    async def connection(self, node_id: int, number: int) -> PeerConnection:
        """Return the connection to a broker with this number. Raises PeerError."""

    async def ask(self, node_id: int, api: PeerApi[Q, R], request: Q) -> R:
        """Send a request to one broker and return the response. Raises PeerError."""
