"""Requests to Kafka's controllers.

DescribeQuorum, UpdateFeatures (0 to 2), UnregisterBroker, UnregisterController, RemoveRaftVoter (0),
AddRaftVoter (0 and 1).
"""

from dataclasses import replace
from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
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
from warmlog.protocol.kafka.messages.common import (
    ERROR_CODE,
    ERROR_MESSAGE,
    FAILURE,
    THROTTLE_TIME,
    TIMEOUT,
    ignored,
    refused,
)
from warmlog.protocol.request import Value


class DescribeQuorumRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe the replication of the metadata log, which is addressed as a topic."""

    api: ClassVar[str] = "describe_quorum"
    partitions: tuple[PartitionEntry, ...]


class QuorumReplica(Value, frozen=True, kw_only=True, gc=False):
    """A replica of the metadata log; times in ms since the epoch."""

    node_id: int
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int


class QuorumPartition(Value, frozen=True, kw_only=True, gc=False):
    """A partition of the metadata log."""

    topic: str
    partition: int
    leader: int = 0
    leader_epoch: int = 0
    high_watermark: int = 0
    voters: tuple[QuorumReplica, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class QuorumNode(Value, frozen=True, kw_only=True, gc=False):
    """A voter's address on one listener."""

    node_id: int
    listener: str
    host: str
    port: int


class DescribeQuorumResponse(Value, frozen=True, kw_only=True, gc=False):
    """The requested partitions, and the voters' addresses."""

    partitions: tuple[QuorumPartition, ...] = ()
    nodes: tuple[QuorumNode, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class FeatureUpdate(Value, frozen=True, kw_only=True, gc=False):
    """A new level of a feature. `upgrade_type`: 1 upgrade, 2 safe downgrade, 3 unsafe downgrade."""

    name: str
    level: int
    upgrade_type: int


class UpdateFeaturesRequest(Value, frozen=True, kw_only=True, gc=False):
    """Change the levels of features; all of them or none."""

    api: ClassVar[str] = "update_features"
    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


class UnregisterBrokerRequest(Value, frozen=True, kw_only=True, gc=False):
    """Remove a broker's registration."""

    api: ClassVar[str] = "unregister_broker"
    broker_id: int


class UnregisterControllerRequest(Value, frozen=True, kw_only=True, gc=False):
    """Remove a controller's registration."""

    api: ClassVar[str] = "unregister_controller"
    controller_id: int


class AddRaftVoterRequest(Value, frozen=True, kw_only=True, gc=False):
    """Add a voter to the quorum."""

    api: ClassVar[str] = "add_raft_voter"


class RemoveRaftVoterRequest(Value, frozen=True, kw_only=True, gc=False):
    """Remove a voter from the quorum."""

    api: ClassVar[str] = "remove_raft_voter"


class ControllerResponse(Value, frozen=True, kw_only=True, gc=False):
    """The result of a change."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


# -- DescribeQuorum --

_REPLICAS = array(
    Field("replica_id", INT32, attr="node_id"),
    Field("replica_directory_id", UUID, since=2, attr=None),  # zeros if voters are static (kraft.version 0)
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
            into=PartitionEntry,
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
UNREGISTER_CONTROLLER_REQUEST = Struct(Field("controller_id", INT32), into=UnregisterControllerRequest)
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
RESPONSE = Struct(THROTTLE_TIME, *FAILURE)  # response of the APIs that change brokers and voters
failed = refused(ControllerResponse)
