"""ApiVersions (0 to 5), DescribeCluster (0 to 2): the first requests of a client."""

import re
from typing import Any, ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import BOOLEAN, INT8, INT16, INT32, INT64, STRING, Field, Struct, array
from warmlog.protocol.kafka.messages.common import (
    CLUSTER_OPERATIONS,
    ERROR_CODE,
    NOT_REQUESTED,
    OPTIONAL_MESSAGE,
    THROTTLE_TIME,
    KafkaBrokerMetadata,
    rack_of,
    refused,
    since,
)
from warmlog.protocol.request import Value
from warmlog.protocol.response import BrokerMetadata

NO_NODE = -1


class ApiVersionsRequest(Value, frozen=True, kw_only=True, gc=False):
    """List the supported APIs. `error` is set by the decoder for an invalid request; the response returns it.

    `cluster_id` and `node_id`: the broker that the client expects at the address (KIP-1242); None and NO_NODE: any.
    """

    api: ClassVar[str] = "api_versions"
    software_name: str = ""
    software_version: str = ""
    cluster_id: str | None = None
    node_id: int = NO_NODE
    error: ErrorCode = ErrorCode.NONE


class VersionRange(Value, frozen=True, kw_only=True, gc=False):
    """An API and its supported versions, inclusive."""

    key: int
    first: int
    last: int


class FeatureRange(Value, frozen=True, kw_only=True, gc=False):
    """A cluster feature: the levels supported by the broker, inclusive, and the finalized level (KIP-584)."""

    name: str
    first: int
    last: int
    level: int


class ApiVersionsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Supported APIs by key. `features_epoch` increases when features may have changed; -1 if unknown."""

    apis: tuple[VersionRange, ...]
    features: tuple[FeatureRange, ...] = ()
    features_epoch: int = -1
    error: ErrorCode = ErrorCode.NONE


class DescribeClusterRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe the cluster. `endpoint_type`: 1 brokers, 2 controllers. `operations` requests authorized operations."""

    api: ClassVar[str] = "describe_cluster"
    endpoint_type: int = 1
    include_fenced_brokers: bool = False
    operations: bool = False


class DescribeClusterResponse(Value, frozen=True, kw_only=True, gc=False):
    """The cluster id, controller and brokers."""

    cluster_id: str
    controller: int
    brokers: tuple[BrokerMetadata, ...]
    endpoint_type: int = 1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class AuthorizedCluster(DescribeClusterResponse, frozen=True, kw_only=True, gc=False):
    """A response with the operations that the client may perform on the cluster, as bits."""

    authorized: int


# -- ApiVersions --

_FIRST_WITH_SOFTWARE = 3
_FIRST_WITH_FEATURES_FROM_ZERO = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")  # KIP-511


def _versions_request(
    *, software_name: str, software_version: str, cluster_id: str | None, node_id: int, version: int
) -> ApiVersionsRequest:
    """Build the request; set `error` if the client's software name or version is malformed.

    It is also set if only one of the expected broker's cluster and node is given.
    """
    is_named = version < _FIRST_WITH_SOFTWARE or (
        _SOFTWARE.fullmatch(software_name) and _SOFTWARE.fullmatch(software_version)
    )
    is_valid = is_named and (cluster_id is None) == (node_id == NO_NODE)
    return ApiVersionsRequest(
        software_name=software_name,
        software_version=software_version,
        cluster_id=cluster_id,
        node_id=node_id,
        error=ErrorCode.NONE if is_valid else ErrorCode.INVALID_REQUEST,
    )


def _supported(response: ApiVersionsResponse, _: Any, version: int) -> tuple[FeatureRange, ...]:
    """Return the features; version 3 cannot carry features supported from level 0 on (KAFKA-17011)."""
    lowest = 0 if version >= _FIRST_WITH_FEATURES_FROM_ZERO else 1
    return tuple([feature for feature in response.features if feature.first >= lowest])


def _finalized(response: ApiVersionsResponse, *_: Any) -> tuple[FeatureRange, ...]:
    return tuple([feature for feature in response.features if feature.level > 0])


VERSIONS_REQUEST = Struct(
    Field("client_software_name", STRING, since=3, attr="software_name"),
    Field("client_software_version", STRING, since=3, attr="software_version"),
    Field("cluster_id", STRING, since=5, nullable=5, default=None),
    Field("node_id", INT32, since=5, default=NO_NODE),
    into=_versions_request,
    given=lambda version: {"version": version},
)
VERSIONS_RESPONSE = Struct(
    ERROR_CODE,
    Field(
        "api_keys",
        array(
            Field("api_key", INT16, attr="key"),
            Field("min_version", INT16, attr="first"),
            Field("max_version", INT16, attr="last"),
            into=VersionRange,
        ),
        attr="apis",
    ),
    since(1, THROTTLE_TIME),
    Field(
        "supported_features",
        array(
            Field("name", STRING),
            Field("min_version", INT16, attr="first"),
            Field("max_version", INT16, attr="last"),
        ),
        since=3,
        tag=0,
        attr=None,
        get=_supported,
    ),
    Field("finalized_features_epoch", INT64, since=3, tag=1, default=-1, attr="features_epoch"),
    Field(
        "finalized_features",
        array(
            Field("name", STRING),
            Field("max_version_level", INT16, attr="level"),
            Field("min_version_level", INT16, attr="level"),
        ),
        since=3,
        tag=2,
        attr=None,
        get=_finalized,
    ),
    Field("zk_migration_ready", BOOLEAN, since=3, tag=3, attr=None),
    into=ApiVersionsResponse,
)
failed_versions = refused(ApiVersionsResponse, apis=())


# -- DescribeCluster --


def _operations(response: DescribeClusterResponse, request: DescribeClusterRequest, _: int) -> int:
    if not request.operations or response.error is not ErrorCode.NONE:
        return NOT_REQUESTED
    return response.authorized if isinstance(response, AuthorizedCluster) else CLUSTER_OPERATIONS


def _is_fenced(broker: BrokerMetadata, *_: Any) -> bool:
    return isinstance(broker, KafkaBrokerMetadata) and broker.is_fenced


CLUSTER_REQUEST = Struct(
    Field("include_cluster_authorized_operations", BOOLEAN, attr="operations"),
    Field("endpoint_type", INT8, since=1, default=1),
    Field("include_fenced_brokers", BOOLEAN, since=2),
    into=DescribeClusterRequest,
)
CLUSTER_RESPONSE = Struct(
    THROTTLE_TIME,
    ERROR_CODE,
    OPTIONAL_MESSAGE,
    Field("endpoint_type", INT8, since=1, default=1),
    Field("cluster_id", STRING),
    Field("controller_id", INT32, default=-1, attr="controller"),
    Field(
        "brokers",
        array(
            Field("broker_id", INT32, attr="node_id"),
            Field("host", STRING),
            Field("port", INT32),
            Field("rack", STRING, nullable=0, default=None, get=rack_of),
            Field("is_fenced", BOOLEAN, since=2, default=False, get=_is_fenced),
        ),
    ),
    Field("cluster_authorized_operations", INT32, default=NOT_REQUESTED, get=_operations),
)
failed_cluster = refused(DescribeClusterResponse, cluster_id="", controller=-1, brokers=())
