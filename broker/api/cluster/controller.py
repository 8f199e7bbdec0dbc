"""Requests to Kafka's controllers: quorum, features, broker registration. This node is its own controller.

Source: org.apache.kafka.controller.QuorumController; org.apache.kafka.raft.KafkaRaftClient.
"""

from collections.abc import Callable, Mapping

from warmlog.broker.api.addresses import Advertised, described_brokers
from warmlog.broker.api.cluster.features import Features
from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.handler import Handler
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.metadata.topic import RefusedError
from warmlog.broker.partitions.topics.catalog import Catalog
from warmlog.broker.settings.types import MAX_INT32
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.kafka.messages.cluster.controller import (
    AddRaftVoterRequest,
    ControllerResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumNode,
    QuorumPartition,
    QuorumReplica,
    RemoveRaftVoterRequest,
    UnregisterBrokerRequest,
    UnregisterControllerRequest,
    UpdateFeaturesRequest,
)

METADATA_LOG = PartitionEntry(topic="__cluster_metadata", partition=0)
LISTENER = "PLAINTEXT"  # Kafka's clients accept only uppercase listener names


class ControllerApi:
    """Answers the requests about the quorum, features and brokers."""

    def __init__(
        self,
        node: StoreNode,
        features: Features,
        advertised: Advertised,
        *,
        clock: Callable[[], int],
        catalog: Catalog,
    ) -> None:
        """`clock` returns ms since the epoch."""
        self._node = node
        self._catalog = catalog
        self._features = features
        self._advertised = advertised
        self._clock = clock

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            DescribeQuorumRequest.api: self.describe_quorum,
            UpdateFeaturesRequest.api: self.update_features,
            UnregisterBrokerRequest.api: self.unregister_broker,
            UnregisterControllerRequest.api: self.unregister_controller,
            AddRaftVoterRequest.api: self._refuse_voters,
            RemoveRaftVoterRequest.api: self._refuse_voters,
        }

    async def describe_quorum(self, request: DescribeQuorumRequest, context: Context) -> DescribeQuorumResponse:
        """Describe the brokers as voters, and the controller as their leader.

        The log end is the revision of the store, which all brokers follow within milliseconds.
        """
        if request.partitions != (METADATA_LOG,):
            return DescribeQuorumResponse(partitions=await context.map(_unknown, request.partitions))
        end, now_ms = self._node.image.revision, self._clock()
        brokers = described_brokers(self._catalog, self._node.id, self._advertised, context.session)
        replicas = [
            QuorumReplica(
                node_id=broker.node_id, log_end_offset=end, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
            )
            for broker in brokers
        ]
        described = QuorumPartition(
            topic=METADATA_LOG.topic,
            partition=METADATA_LOG.partition,
            leader=self._catalog.controller,
            leader_epoch=self._catalog.controller_epoch & MAX_INT32,
            high_watermark=end,
            voters=tuple(replicas),
        )
        nodes = [
            QuorumNode(node_id=broker.node_id, listener=LISTENER, host=broker.host, port=broker.port)
            for broker in brokers
        ]
        return DescribeQuorumResponse(partitions=(described,), nodes=tuple(nodes))

    async def update_features(self, request: UpdateFeaturesRequest, context: Context) -> ControllerResponse:
        """Change levels of features, all or none."""
        await self._features.update(request.updates, validate_only=request.validate_only, checkpoint=context.checkpoint)
        return ControllerResponse()

    async def unregister_broker(self, request: UnregisterBrokerRequest, _: Context) -> ControllerResponse:
        """Unregister a broker that will not return. Refuse one that is running."""
        self._refuse_running("broker", request.broker_id)
        if not self._node.image.is_known(request.broker_id):
            raise RequestError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {request.broker_id} is not registered")
        await _unregister_in(self._node, request.broker_id)
        return ControllerResponse()

    async def unregister_controller(self, request: UnregisterControllerRequest, _: Context) -> ControllerResponse:
        """Refuse: controllers are the running brokers, and others are not registered."""
        self._refuse_running("controller", request.controller_id)
        raise RequestError(
            ErrorCode.CONTROLLER_ID_NOT_REGISTERED, f"Controller ID {request.controller_id} is not registered"
        )

    def _refuse_running(self, role: str, node_id: int) -> None:
        if any(node_id == broker.node_id for broker in self._catalog.brokers()):
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{role} {node_id} is running and cannot be unregistered")

    async def _refuse_voters(self, _: AddRaftVoterRequest | RemoveRaftVoterRequest, __: Context) -> ControllerResponse:
        raise RequestError(
            ErrorCode.UNSUPPORTED_VERSION, "voters cannot be changed: this node is its own controller (kraft.version 0)"
        )


async def _unregister_in(node: StoreNode, broker: int) -> None:
    """Remove a broker from the store. Raises RequestError if it is alive again, MetadataError."""
    try:
        await admin.in_time(lambda: admin.unregister_broker(node, broker))
    except RefusedError as error:
        raise RequestError(ErrorCode.INVALID_REQUEST, str(error)) from None


def _unknown(requested: PartitionEntry) -> QuorumPartition:
    return QuorumPartition(
        topic=requested.topic,
        partition=requested.partition,
        error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        message=f"only the metadata log can be described, {METADATA_LOG.topic}-{METADATA_LOG.partition}",
    )
