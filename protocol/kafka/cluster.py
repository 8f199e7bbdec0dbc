"""ApiVersions (0 to 4), DescribeCluster (0 to 2), InitProducerId (0 to 5): who is there, what it serves, who asks.

Owns: the tables of these messages, and how they meet the values. Must not know: which APIs there are (`api.py` fills
the answer to ApiVersions from its table).
"""

import re
from typing import Any

from protocol.errors import ErrorCode
from protocol.kafka.primitives import Reader, Writer
from protocol.kafka.schema import BOOLEAN, INT8, INT16, INT32, INT64, STRING, Field, Struct, array
from protocol.kafka.values import (
    CLUSTER_OPERATIONS,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TopicNames,
)
from protocol.response import BrokerMetadata, ErrorResponse

NOT_ASKED = -(1 << 31)  # authorized operations, where nobody asked or nothing is authorized
_FIRST_WITH_SOFTWARE = 3
_FIRST_WITH_FEATURES_FROM_ZERO = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")  # KIP-511

VERSIONS_REQUEST = Struct(
    Field("client_software_name", STRING, since=3),
    Field("client_software_version", STRING, since=3),
)
_FEATURE = (Field("name", STRING), Field("min_version", INT16), Field("max_version", INT16))
_FINALIZED = (Field("name", STRING), Field("max_version_level", INT16), Field("min_version_level", INT16))
VERSIONS_RESPONSE = Struct(
    Field("error_code", INT16),
    Field("api_keys", array(Field("api_key", INT16), Field("min_version", INT16), Field("max_version", INT16))),
    Field("throttle_time_ms", INT32, since=1),
    Field("supported_features", array(*_FEATURE), since=3, tag=0),
    Field("finalized_features_epoch", INT64, since=3, tag=1, default=-1),
    Field("finalized_features", array(*_FINALIZED), since=3, tag=2),
    Field("zk_migration_ready", BOOLEAN, since=3, tag=3),
)
CLUSTER_REQUEST = Struct(
    Field("include_cluster_authorized_operations", BOOLEAN),
    Field("endpoint_type", INT8, since=1, default=1),
    Field("include_fenced_brokers", BOOLEAN, since=2),
)
_BROKER = (
    Field("broker_id", INT32),
    Field("host", STRING),
    Field("port", INT32),
    Field("rack", STRING, nullable=0, default=None),
    Field("is_fenced", BOOLEAN, since=2, default=False),
)
CLUSTER_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable=0, default=None),
    Field("endpoint_type", INT8, since=1, default=1),
    Field("cluster_id", STRING),
    Field("controller_id", INT32, default=-1),
    Field("brokers", array(*_BROKER)),
    Field("cluster_authorized_operations", INT32, default=NOT_ASKED),
)
PRODUCER_REQUEST = Struct(
    Field("transactional_id", STRING, nullable=0),
    Field("transaction_timeout_ms", INT32),
    Field("producer_id", INT64, since=3, default=-1),
    Field("producer_epoch", INT16, since=3, default=-1),
)
PRODUCER_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("producer_id", INT64, default=-1),
    Field("producer_epoch", INT16),
)


def decode_versions(reader: Reader, version: int, _: TopicNames) -> ApiVersionsRequest:
    """Who asks what is served. A name that is none is an error to be answered, as Kafka does."""
    values = VERSIONS_REQUEST.read(reader, version)
    name, software_version = values["client_software_name"], values["client_software_version"]
    is_valid = version < _FIRST_WITH_SOFTWARE or (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(software_version))
    return ApiVersionsRequest(
        software_name=name,
        software_version=software_version,
        error=ErrorCode.NONE if is_valid else ErrorCode.INVALID_REQUEST,
    )


def encode_versions(writer: Writer, version: int, _: ApiVersionsRequest, response: ApiVersionsResponse) -> None:
    """Write what is served. Version 3 cannot tell features that are supported from level 0 on (KAFKA-17011)."""
    features = response.features
    supported = [one for one in features if one.first > 0 or version >= _FIRST_WITH_FEATURES_FROM_ZERO]
    values = {
        "error_code": response.error,
        "api_keys": [{"api_key": api.key, "min_version": api.first, "max_version": api.last} for api in response.apis],
        "throttle_time_ms": writer.throttle_ms,
        "supported_features": tuple(
            [{"name": one.name, "min_version": one.first, "max_version": one.last} for one in supported]
        ),
        "finalized_features_epoch": response.features_epoch,
        "finalized_features": tuple(
            [
                {"name": one.name, "max_version_level": one.level, "min_version_level": one.level}
                for one in features
                if one.level > 0
            ]
        ),
    }
    VERSIONS_RESPONSE.write(writer, version, values)


def failed_versions(_: ApiVersionsRequest, error: ErrorResponse) -> ApiVersionsResponse:
    """The reply where the request failed as a whole."""
    return ApiVersionsResponse(apis=(), error=error.error)


def decode_cluster(reader: Reader, version: int, _: TopicNames) -> DescribeClusterRequest:
    """A question for the brokers."""
    values = CLUSTER_REQUEST.read(reader, version)
    return DescribeClusterRequest(
        endpoint_type=values["endpoint_type"],
        include_fenced_brokers=values["include_fenced_brokers"],
        operations=values["include_cluster_authorized_operations"],
    )


def encode_cluster(
    writer: Writer, version: int, request: DescribeClusterRequest, response: DescribeClusterResponse
) -> None:
    """The brokers."""
    is_told = request.operations and response.error is ErrorCode.NONE
    CLUSTER_RESPONSE.write(
        writer,
        version,
        {
            "throttle_time_ms": writer.throttle_ms,
            "error_code": response.error,
            "error_message": response.message,
            "endpoint_type": response.endpoint_type,
            "cluster_id": response.cluster_id,
            "controller_id": response.controller,
            "brokers": list(map(_broker_fields, response.brokers)),
            "cluster_authorized_operations": CLUSTER_OPERATIONS if is_told else NOT_ASKED,
        },
    )


def failed_cluster(request: DescribeClusterRequest, error: ErrorResponse) -> DescribeClusterResponse:
    """The reply where the request failed as a whole."""
    return DescribeClusterResponse(
        cluster_id="",
        controller=-1,
        brokers=(),
        endpoint_type=request.endpoint_type,
        error=error.error,
        message=error.message,
    )


def _broker_fields(broker: BrokerMetadata) -> dict[str, Any]:
    return {"broker_id": broker.node_id, "host": broker.host, "port": broker.port}


def decode_producer(reader: Reader, version: int, _: TopicNames) -> InitProducerIdRequest:
    """A request for a producer id."""
    return InitProducerIdRequest(**PRODUCER_REQUEST.read(reader, version))


def encode_producer(writer: Writer, version: int, _: InitProducerIdRequest, response: InitProducerIdResponse) -> None:
    """The producer id."""
    PRODUCER_RESPONSE.write(
        writer,
        version,
        {
            "throttle_time_ms": writer.throttle_ms,
            "error_code": response.error,
            "producer_id": response.producer_id,
            "producer_epoch": response.producer_epoch,
        },
    )


def failed_producer(_: InitProducerIdRequest, error: ErrorResponse) -> InitProducerIdResponse:
    """The reply where the request failed as a whole."""
    return InitProducerIdResponse(error=error.error)
