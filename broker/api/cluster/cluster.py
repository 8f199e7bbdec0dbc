"""DescribeCluster: the brokers and the controller of the cluster."""

from collections.abc import Mapping

from warmlog.broker.api.addresses import Advertised, described_brokers, described_fenced
from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.handler import Handler
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.cluster.discovery import DescribeClusterRequest, DescribeClusterResponse

_BROKERS, _CONTROLLERS = 1, 2  # endpoint types (KIP-919)


class ClusterApi:
    """Answers DescribeCluster."""

    def __init__(self, partitions: Partitions, cluster_id: str, advertised: Advertised) -> None:
        self._partitions = partitions
        self._cluster_id = cluster_id
        self._advertised = advertised

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handler by API."""
        return {DescribeClusterRequest.api: self.describe_cluster}

    async def describe_cluster(self, request: DescribeClusterRequest, context: Context) -> DescribeClusterResponse:
        """Return the brokers at the addresses advertised to the client, with fenced ones on request."""
        if request.endpoint_type == _CONTROLLERS:
            raise RequestError(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE, "controller endpoints are not available on a broker listener"
            )
        if request.endpoint_type != _BROKERS:
            raise RequestError(
                ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"unsupported endpoint type {request.endpoint_type}"
            )
        catalog, session = self._partitions.catalog, context.session
        brokers = described_brokers(catalog, self._partitions.node_id, self._advertised, session)
        if request.include_fenced_brokers:
            brokers += described_fenced(catalog, session)
        return DescribeClusterResponse(
            cluster_id=self._cluster_id,
            controller=catalog.controller,
            brokers=brokers,
        )
