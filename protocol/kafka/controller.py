"""DescribeQuorum (0 to 2), UpdateFeatures (0 to 2), UnregisterBroker (0), AddRaftVoter (0 and 1), RemoveRaftVoter (0).

Tables of these messages, and how they meet the values.
"""

from typing import Any

from protocol.errors import ErrorCode
from protocol.groups import TopicPartition
from protocol.kafka.controller_values import (
    AddRaftVoterRequest,
    ControllerResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    FeatureUpdate,
    QuorumNode,
    QuorumPartition,
    QuorumReplica,
    RemoveRaftVoterRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from protocol.kafka.primitives import NO_TOPIC_ID, Reader, Writer
from protocol.kafka.schema import BOOLEAN, INT8, INT16, INT32, INT64, STRING, UINT16, UUID, Field, Struct, array
from protocol.kafka.values import TopicNames, by_topic
from protocol.response import ErrorResponse

_UPGRADE, _SAFE_DOWNGRADE = 1, 2
_FIRST_WITH_UPGRADE_TYPE = 1
_LAST_WITH_RESULTS = 1

_REPLICA = (
    Field("replica_id", INT32),
    Field("replica_directory_id", UUID, since=2),
    Field("log_end_offset", INT64),
    Field("last_fetch_timestamp", INT64, since=1, default=-1),
    Field("last_caught_up_timestamp", INT64, since=1, default=-1),
)
QUORUM_REQUEST = Struct(
    Field("topics", array(Field("topic_name", STRING), Field("partitions", array(Field("partition_index", INT32))))),
)
QUORUM_RESPONSE = Struct(
    Field("error_code", INT16),
    Field("error_message", STRING, since=2, nullable=2, default=None),
    Field(
        "topics",
        array(
            Field("topic_name", STRING),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32),
                    Field("error_code", INT16),
                    Field("error_message", STRING, since=2, nullable=2, default=None),
                    Field("leader_id", INT32),
                    Field("leader_epoch", INT32),
                    Field("high_watermark", INT64),
                    Field("current_voters", array(*_REPLICA)),
                    Field("observers", array(*_REPLICA)),
                ),
            ),
        ),
    ),
    Field(
        "nodes",
        array(
            Field("node_id", INT32),
            Field("listeners", array(Field("name", STRING), Field("host", STRING), Field("port", UINT16))),
        ),
        since=2,
    ),
)
FEATURES_REQUEST = Struct(
    Field("timeout_ms", INT32, default=60_000),
    Field(
        "feature_updates",
        array(
            Field("feature", STRING),
            Field("max_version_level", INT16),
            Field("allow_downgrade", BOOLEAN, until=0),
            Field("upgrade_type", INT8, since=1, default=_UPGRADE),
        ),
    ),
    Field("validate_only", BOOLEAN, since=1),
)
_FAILURE = (Field("error_code", INT16), Field("error_message", STRING, nullable=0))
FEATURES_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    *_FAILURE,
    Field("results", array(Field("feature", STRING), *_FAILURE), until=_LAST_WITH_RESULTS),
)
UNREGISTER_REQUEST = Struct(Field("broker_id", INT32))
ADD_VOTER_REQUEST = Struct(
    Field("cluster_id", STRING, nullable=0),
    Field("timeout_ms", INT32),
    Field("voter_id", INT32),
    Field("voter_directory_id", UUID),
    Field("listeners", array(Field("name", STRING), Field("host", STRING), Field("port", UINT16))),
    Field("ack_when_committed", BOOLEAN, since=1, default=True),
)
REMOVE_VOTER_REQUEST = Struct(
    Field("cluster_id", STRING, nullable=0),
    Field("voter_id", INT32),
    Field("voter_directory_id", UUID),
)
RESPONSE = Struct(Field("throttle_time_ms", INT32), *_FAILURE)  # of those that change brokers and voters


# -- the quorum --


def decode_quorum(reader: Reader, version: int, _: TopicNames) -> DescribeQuorumRequest:
    """Read which partitions of the metadata log are asked for."""
    topics = QUORUM_REQUEST.read(reader, version)["topics"]
    return DescribeQuorumRequest(
        partitions=tuple(
            [
                TopicPartition(topic=topic["topic_name"], partition=partition["partition_index"])
                for topic in topics
                for partition in topic["partitions"]
            ]
        )
    )


def encode_quorum(writer: Writer, version: int, _: DescribeQuorumRequest, response: DescribeQuorumResponse) -> None:
    """Write the partitions and the voters' addresses."""
    topics = [
        {"topic_name": topic, "partitions": list(map(_quorum_fields, partitions))}
        for topic, partitions in by_topic(response.partitions)
    ]
    values = {
        "error_code": response.error,
        "error_message": response.message,
        "topics": topics,
        "nodes": list(map(_node_fields, response.nodes)),
    }
    QUORUM_RESPONSE.write(writer, version, values)


def failed_quorum(_: DescribeQuorumRequest, error: ErrorResponse) -> DescribeQuorumResponse:
    """Refuse the request."""
    return DescribeQuorumResponse(error=error.error, message=error.message)


def _quorum_fields(partition: QuorumPartition) -> dict[str, Any]:
    return {
        "partition_index": partition.partition,
        "error_code": partition.error,
        "error_message": partition.message,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "high_watermark": partition.high_watermark,
        "current_voters": list(map(_replica_fields, partition.voters)),
        "observers": (),
    }


def _replica_fields(replica: QuorumReplica) -> dict[str, Any]:
    return {
        "replica_id": replica.node_id,
        "replica_directory_id": NO_TOPIC_ID,  # as Kafka tells it where voters are not changed (kraft.version 0)
        "log_end_offset": replica.log_end_offset,
        "last_fetch_timestamp": replica.last_fetch_timestamp,
        "last_caught_up_timestamp": replica.last_caught_up_timestamp,
    }


def _node_fields(node: QuorumNode) -> dict[str, Any]:
    return {"node_id": node.node_id, "listeners": [{"name": node.listener, "host": node.host, "port": node.port}]}


# -- features --


def decode_features(reader: Reader, version: int, _: TopicNames) -> UpdateFeaturesRequest:
    """Read the new levels."""
    values = FEATURES_REQUEST.read(reader, version)
    return UpdateFeaturesRequest(
        updates=tuple([_update(fields, version) for fields in values["feature_updates"]]),
        validate_only=values["validate_only"],
    )


def _update(fields: dict[str, Any], version: int) -> FeatureUpdate:
    upgrade_type = fields["upgrade_type"]
    if version < _FIRST_WITH_UPGRADE_TYPE:
        upgrade_type = _SAFE_DOWNGRADE if fields["allow_downgrade"] else _UPGRADE
    return FeatureUpdate(name=fields["feature"], level=fields["max_version_level"], upgrade_type=upgrade_type)


def encode_features(writer: Writer, version: int, request: UpdateFeaturesRequest, response: ControllerResponse) -> None:
    """Write the error; older versions have an entry per feature where there is none."""
    done = request.updates if response.error is ErrorCode.NONE and version <= _LAST_WITH_RESULTS else ()
    results = [{"feature": update.name, "error_code": ErrorCode.NONE, "error_message": None} for update in done]
    FEATURES_RESPONSE.write(writer, version, _response_fields(writer, response) | {"results": results})


# -- brokers and voters --


def decode_unregister(reader: Reader, version: int, _: TopicNames) -> UnregisterBrokerRequest:
    """Read the broker's id."""
    return UnregisterBrokerRequest(**UNREGISTER_REQUEST.read(reader, version))


def decode_add_voter(reader: Reader, version: int, _: TopicNames) -> AddRaftVoterRequest:
    """Check the layout."""
    ADD_VOTER_REQUEST.read(reader, version)
    return AddRaftVoterRequest()


def decode_remove_voter(reader: Reader, version: int, _: TopicNames) -> RemoveRaftVoterRequest:
    """Check the layout."""
    REMOVE_VOTER_REQUEST.read(reader, version)
    return RemoveRaftVoterRequest()


def encode(writer: Writer, version: int, _: Any, response: ControllerResponse) -> None:
    """Write the error."""
    RESPONSE.write(writer, version, _response_fields(writer, response))


def failed(_: Any, error: ErrorResponse) -> ControllerResponse:
    """Refuse the request."""
    return ControllerResponse(error=error.error, message=error.message)


def _response_fields(writer: Writer, response: ControllerResponse) -> dict[str, Any]:
    return {
        "throttle_time_ms": writer.throttle_ms,
        "error_code": response.error,
        "error_message": response.message,
    }
