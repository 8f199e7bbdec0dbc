"""Name the leader, and its address, to clients that asked another broker (KIP-951).

They go on there at once, instead of asking for metadata first. Source: kafka.server.KafkaApis.getCurrentLeader.
"""

from collections.abc import Iterable

from msgspec.structs import asdict, replace

from warmlog.broker.api.addresses import Advertised, described_brokers
from warmlog.broker.api.context import Session
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.topics.catalog import NO_LEADER, PartitionInfo
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.common import KafkaBrokerMetadata
from warmlog.protocol.kafka.messages.records.fetch import FetchLedElsewhere, KafkaFetchResponse
from warmlog.protocol.kafka.messages.records.produce import KafkaProduceResponse, ProduceLedElsewhere
from warmlog.protocol.response import FetchedPartition, ProducedPartition, ProduceResponse

MAX_PARTITIONS = 512  # of a response; with more, clients ask for metadata, as older ones do
_IN_FETCHES = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class CurrentLeaders:
    """Adds the current leaders to responses."""

    def __init__(self, partitions: Partitions, advertised: Advertised) -> None:
        self._partitions = partitions
        self._advertised = advertised

    def in_produce(self, response: ProduceResponse, session: Session) -> ProduceResponse:
        """Return a response that names the leaders of partitions that this broker does not lead."""
        if session.is_native or len(response.partitions) > MAX_PARTITIONS:
            return response
        if all(one.error is not ErrorCode.NOT_LEADER_OR_FOLLOWER for one in response.partitions):
            return response
        found = [self._produced(one) for one in response.partitions]
        leaders = {one.leader_id for one in found if isinstance(one, ProduceLedElsewhere)}
        return KafkaProduceResponse(partitions=tuple(found), nodes=self._nodes(leaders, session))

    def in_fetch(self, response: KafkaFetchResponse, session: Session) -> KafkaFetchResponse:
        """Return a response that names the leaders of partitions that this broker does not lead."""
        if len(response.partitions) > MAX_PARTITIONS or all(
            one.error not in _IN_FETCHES for one in response.partitions
        ):
            return response
        found = [self._fetched(one) for one in response.partitions]
        leaders = {one.leader_id for one in found if isinstance(one, FetchLedElsewhere)}
        return replace(response, partitions=tuple(found), nodes=self._nodes(leaders, session))

    def _produced(self, one: ProducedPartition) -> ProducedPartition:
        leader = self._leader(one) if one.error is ErrorCode.NOT_LEADER_OR_FOLLOWER else None
        if leader is None:
            return one
        return ProduceLedElsewhere(**asdict(one), leader_id=leader.leader, leader_epoch=leader.leader_epoch)

    def _fetched(self, one: FetchedPartition) -> FetchedPartition:
        leader = self._leader(one) if one.error in _IN_FETCHES else None
        if leader is None:
            return one
        return FetchLedElsewhere(**asdict(one), leader_id=leader.leader, leader_epoch=leader.leader_epoch)

    def _leader(self, one: ProducedPartition | FetchedPartition) -> PartitionInfo | None:
        topic = self._partitions.topic(one.topic)
        if topic is None or not 0 <= one.partition < topic.partitions:
            return None
        found = self._partitions.catalog.partition(topic, one.partition)
        return None if found.leader == NO_LEADER else found

    def _nodes(self, leaders: Iterable[int], session: Session) -> tuple[KafkaBrokerMetadata, ...]:
        catalog, named = self._partitions.catalog, set(leaders)
        brokers = described_brokers(catalog, self._partitions.node_id, self._advertised, session)
        return tuple([broker for broker in brokers if broker.node_id in named])
