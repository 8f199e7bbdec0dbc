"""DescribeQuorum, UpdateFeatures (0 to 2), UnregisterBroker (0), AddRaftVoter (0 and 1), RemoveRaftVoter (0)."""

from dataclasses import replace

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import TopicPartition
from warmlog.protocol.kafka.codec.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    Field,
    Struct,
    array,
    flat,
)
from warmlog.protocol.kafka.controller_values import (
    AddRaftVoterRequest,
    ControllerResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    FeatureUpdate,
    RemoveRaftVoterRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from warmlog.protocol.kafka.messages.common import (
    ERROR_CODE,
    ERROR_MESSAGE,
    FAILURE,
    THROTTLE_TIME,
    TIMEOUT,
    ignored,
    refused,
)

# -- DescribeQuorum --

_REPLICAS = array(
    Field("replica_id", INT32, attr="node_id"),
    Field("replica_directory_id", UUID, since=2, attr=None),  # zeros where voters are not changed (kraft.version 0)
    Field("log_end_offset", INT64),
    Field("last_fetch_timestamp", INT64, since=1, default=-1),
    Field("last_caught_up_timestamp", INT64, since=1, default=-1),
)
_MESSAGE = replace(ERROR_MESSAGE, since=2, nullable=2)
QUORUM_REQUEST = Struct(
    Field(
        "topics",
        flat(
            Field("topic_name", STRING, attr="topic"),
            Field("partitions", array(Field("partition_index", INT32, attr="partition"))),
            into=TopicPartition,
        ),
        attr="partitions",
    ),
    into=DescribeQuorumRequest,
)
QUORUM_RESPONSE = Struct(
    ERROR_CODE,
    _MESSAGE,
    Field(
        "topics",
        flat(
            Field("topic_name", STRING, attr="topic"),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32, attr="partition"),
                    ERROR_CODE,
                    _MESSAGE,
                    Field("leader_id", INT32, attr="leader"),
                    Field("leader_epoch", INT32),
                    Field("high_watermark", INT64),
                    Field("current_voters", _REPLICAS, attr="voters"),
                    Field("observers", _REPLICAS, attr=None),
                ),
            ),
        ),
        attr="partitions",
    ),
    Field(
        "nodes",
        array(
            Field("node_id", INT32),
            Field(
                "listeners",
                array(Field("name", STRING, attr="listener"), Field("host", STRING), Field("port", UINT16)),
                get=lambda node, *_: (node,),
            ),
        ),
        since=2,
    ),
)
failed_quorum = refused(DescribeQuorumResponse)

# -- UpdateFeatures --

_UPGRADE, _SAFE_DOWNGRADE = 1, 2


def _done(response: ControllerResponse, request: UpdateFeaturesRequest, _: int) -> tuple[FeatureUpdate, ...]:
    return request.updates if response.error is ErrorCode.NONE else ()


FEATURES_REQUEST = Struct(
    *ignored(replace(TIMEOUT, default=60_000)),
    Field(
        "feature_updates",
        array(
            Field("feature", STRING, attr="name"),
            Field("max_version_level", INT16, attr="level"),
            Field(
                "allow_downgrade",
                BOOLEAN,
                until=0,
                attr="upgrade_type",
                convert=lambda is_allowed: _SAFE_DOWNGRADE if is_allowed else _UPGRADE,
            ),
            Field("upgrade_type", INT8, since=1, default=_UPGRADE),
            into=FeatureUpdate,
        ),
        attr="updates",
    ),
    Field("validate_only", BOOLEAN, since=1),
    into=UpdateFeaturesRequest,
)
FEATURES_RESPONSE = Struct(
    THROTTLE_TIME,
    *FAILURE,
    Field(
        "results",
        array(
            Field("feature", STRING, attr="name"),
            Field("error_code", INT16, default=0, attr=None),
            Field("error_message", STRING, nullable=0, per_reply=lambda *_: None),
        ),
        until=1,
        get=_done,
    ),
)

# -- brokers and voters --

UNREGISTER_REQUEST = Struct(Field("broker_id", INT32), into=UnregisterBrokerRequest)
ADD_VOTER_REQUEST = Struct(
    *ignored(
        Field("cluster_id", STRING, nullable=0),
        Field("timeout_ms", INT32),
        Field("voter_id", INT32),
        Field("voter_directory_id", UUID),
        Field("listeners", array(Field("name", STRING), Field("host", STRING), Field("port", UINT16))),
        Field("ack_when_committed", BOOLEAN, since=1, default=True),
    ),
    into=AddRaftVoterRequest,
)
REMOVE_VOTER_REQUEST = Struct(
    *ignored(Field("cluster_id", STRING, nullable=0), Field("voter_id", INT32), Field("voter_directory_id", UUID)),
    into=RemoveRaftVoterRequest,
)
RESPONSE = Struct(THROTTLE_TIME, *FAILURE)  # of those that change brokers and voters
failed = refused(ControllerResponse)
