"""Return the leader and its address to clients that sent a request to another broker (KIP-951).

Clients continue with the leader immediately, without refreshing metadata first. Source:
kafka.server.KafkaApis.getCurrentLeader.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import asdict, replace

from warmlog.broker.api.addresses import Advertised, described_brokers
from warmlog.broker.api.context import Session
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.topics.catalog import NO_LEADER, PartitionInfo
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.common import KafkaBrokerMetadata
from warmlog.protocol.kafka.messages.records.fetch import FetchLedElsewhere, KafkaFetchResponse
from warmlog.protocol.kafka.messages.records.produce import KafkaProduceResponse, ProduceLedElsewhere
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.response import FetchedPartition, ProducedPartition, ProduceResponse

MAX_PARTITIONS = 512  # partitions of a response; with more, clients refresh metadata, as older ones do
_IN_FETCHES = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class CurrentLeaders:
    """Adds the current leaders to responses."""

    def __init__(self, partitions: Partitions, advertised: Advertised) -> None:
        self._partitions = partitions
        self._advertised = advertised

    def in_produce(self, response: ProduceResponse, session: Session) -> ProduceResponse:
        """Add the leaders of partitions that this broker does not lead to a response."""
        if session.is_native or len(response.partitions) > MAX_PARTITIONS:
            return response
        if all(partition.error is not ErrorCode.NOT_LEADER_OR_FOLLOWER for partition in response.partitions):
            return response
        produced = [self._produced(partition) for partition in response.partitions]
        leaders = {partition.leader_id for partition in produced if isinstance(partition, ProduceLedElsewhere)}
        return KafkaProduceResponse(partitions=tuple(produced), nodes=self.nodes(leaders, session))

    def in_fetch(self, response: KafkaFetchResponse, session: Session) -> KafkaFetchResponse:
        """Add the leaders of partitions that this broker does not lead to a response."""
        if len(response.partitions) > MAX_PARTITIONS or all(
            partition.error not in _IN_FETCHES for partition in response.partitions
        ):
            return response
        fetched = [self._fetched(partition) for partition in response.partitions]
        leaders = {partition.leader_id for partition in fetched if isinstance(partition, FetchLedElsewhere)}
        return replace(response, partitions=tuple(fetched), nodes=self.nodes(leaders, session))

    def of(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, PartitionInfo]:
        """Return the leaders of partitions that have one; none if there are too many partitions."""
        wanted = list(partitions)
        if len(wanted) > MAX_PARTITIONS:
            return {}
        leaders = {(topic, index): self._leader(topic, index) for topic, index in wanted}
        return {partition: leader for partition, leader in leaders.items() if leader is not None}

    def nodes(self, leaders: Iterable[int], session: Session) -> tuple[KafkaBrokerMetadata, ...]:
        """Return the addresses of brokers for a client."""
        catalog, named = self._partitions.catalog, set(leaders)
        brokers = described_brokers(catalog, self._partitions.node_id, self._advertised, session)
        return tuple([broker for broker in brokers if broker.node_id in named])

    def _produced(self, partition: ProducedPartition) -> ProducedPartition:
        is_wrong = partition.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        leader = self._leader(partition.topic, partition.partition) if is_wrong else None
        if leader is None:
            return partition
        return ProduceLedElsewhere(**asdict(partition), leader_id=leader.leader, leader_epoch=leader.leader_epoch)

    def _fetched(self, partition: FetchedPartition) -> FetchedPartition:
        leader = self._leader(partition.topic, partition.partition) if partition.error in _IN_FETCHES else None
        if leader is None:
            return partition
        return FetchLedElsewhere(**asdict(partition), leader_id=leader.leader, leader_epoch=leader.leader_epoch)

    def _leader(self, name: str, index: int) -> PartitionInfo | None:
        topic = self._partitions.topic(name)
        if topic is None or not 0 <= index < topic.partitions:
            return None
        info = self._partitions.catalog.partition(topic, index)
        return None if info.leader == NO_LEADER else info
