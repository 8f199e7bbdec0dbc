"""Append batches of events to the partitions of `__warmlog_audit`, on this broker or on the partition's leader.

There is one topic for the cluster, and not a partition per broker: events survive the broker, and readers get all of
them from one topic. Leaders on other brokers get a Produce request over the connection between brokers. They accept it
only from brokers (`Catalog.is_peer`), with CLUSTER_ACTION if there is an authorizer.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from warmlog.broker.api.errors import EXPECTED, describe
from warmlog.broker.log.producers.transactions import Origin
from warmlog.broker.metadata.topic import AUDIT_TOPIC
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions, TopicExistsError
from warmlog.broker.replication.peers.connection import PeerConnection
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.produce import KafkaProduceRequest
from warmlog.protocol.kafka.peer_apis import PRODUCE
from warmlog.protocol.request import PartitionRecords

CONNECTION: Final = -3  # a separate connection, as for transactions: a batch waits for the in-sync replicas
REMOTE_LIMIT_MS: Final = 15_000  # time for the replicas of another leader
UNLIMITED_MS: Final = 1 << 31  # time for the replicas of a leader here: an appended batch must not be appended twice
MAX_BATCH_BYTES: Final = 1 << 20  # Kafka's default, regardless of message.max.bytes


class Failure(NamedTuple):
    """The known reason why a batch was not appended."""

    code: ErrorCode
    reason: str


class Brokers(Protocol):
    """The other brokers of the cluster."""

    def leader_id(self, topic: str, partition: int) -> int | None:
        """Return the other broker that leads a partition; None if this one or no broker does."""

    async def connection(self, node_id: int, number: int) -> PeerConnection:
        """Return the connection to a broker with this number. Raises PeerError."""


class TopicAppends:
    """Appends to the topic. Belongs to the event loop."""

    def __init__(
        self, partitions: Partitions, write: Callable[[], None], brokers: Brokers | None, settings: Settings
    ) -> None:
        """Append with `write`, which writes queued appends. `brokers`: the other brokers of a cluster."""
        self._partitions = partitions
        self._write = write
        self._brokers = brokers
        self._settings = settings

    @property
    def partition_count(self) -> int:
        """The number of partitions, 0 while there is no topic."""
        topic = self._partitions.topic(AUDIT_TOPIC)
        return 0 if topic is None else topic.partitions

    async def create(self) -> Failure | None:
        """Create the topic, unless another broker was faster."""
        try:
            await self._partitions.create(
                AUDIT_TOPIC, self._settings.warmlog_audit_topic_num_partitions, topic_configs(self._settings)
            )
        except TopicExistsError:
            return None
        except EXPECTED as error:
            return Failure(*describe(error))
        return None

    async def append(self, index: int, batch: bytes) -> Failure | None:
        """Append a batch to a partition, and wait until all in-sync replicas have it."""
        partition = self._partitions.get(AUDIT_TOPIC, index)
        if partition is not None:
            return await self._append(partition, batch)
        leader = None if self._brokers is None else self._brokers.leader_id(AUDIT_TOPIC, index)
        if leader is None or self._brokers is None:
            return Failure(ErrorCode.LEADER_NOT_AVAILABLE, f"{AUDIT_TOPIC}-{index} has no leader")
        requested = PartitionRecords(topic=AUDIT_TOPIC, partition=index, records=memoryview(batch))
        request = KafkaProduceRequest(acks=-1, timeout_ms=REMOTE_LIMIT_MS, partitions=(requested,))
        try:
            connection = await self._brokers.connection(leader, CONNECTION)
            response = await connection.ask(PRODUCE, request, waits_s=REMOTE_LIMIT_MS / 1000)
        except PeerError as error:
            return Failure(ErrorCode.NETWORK_EXCEPTION, f"broker {leader}: {error}")
        produced = next((each for each in response.partitions if each.partition == index), None)
        if produced is None or produced.error is not ErrorCode.NONE:
            code = ErrorCode.UNKNOWN_SERVER_ERROR if produced is None else produced.error
            return Failure(code, f"broker {leader}: {code.name}")
        return None

    async def _append(self, partition: Partition, batch: bytes) -> Failure | None:
        try:
            append = partition.append(batch, Origin.COORDINATOR, 0, UNLIMITED_MS)
        except EXPECTED as error:
            return Failure(*describe(error))
        self._write()
        await append.wait()
        return None if append.error is None else Failure(*describe(append.error))


def topic_configs(settings: Settings) -> dict[str, str]:
    """Return the settings for creating the topic."""
    return {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "max.message.bytes": str(MAX_BATCH_BYTES + 12),
        "retention.bytes": str(settings.warmlog_audit_topic_retention_bytes),
        "retention.ms": str(settings.warmlog_audit_topic_retention_ms),
        "segment.bytes": str(settings.warmlog_audit_topic_segment_bytes),
        "unclean.leader.election.enable": "false",
    }
