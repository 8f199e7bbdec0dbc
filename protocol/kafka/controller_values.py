"""Requests and responses of Kafka's controllers: quorum, features, brokers, elections and reassignments."""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import TopicPartition
from warmlog.protocol.request import Value


class DescribeQuorumRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe the replication of the metadata log, which is addressed as a topic."""

    api: ClassVar[str] = "describe_quorum"
    partitions: tuple[TopicPartition, ...]


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


class ElectLeadersRequest(Value, frozen=True, kw_only=True, gc=False):
    """Elect leaders of these partitions, or of all if None. `election_type`: 0 preferred, 1 unclean."""

    api: ClassVar[str] = "elect_leaders"
    election_type: int
    partitions: tuple[TopicPartition, ...] | None


class PartitionResult(Value, frozen=True, kw_only=True, gc=False):
    """The result for one partition."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ElectLeadersResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per partition of the request; if it was for all, those whose election failed."""

    partitions: tuple[PartitionResult, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class Reassignment(Value, frozen=True, kw_only=True, gc=False):
    """A partition's target replicas; None cancels its reassignment."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class AlterPartitionReassignmentsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Start or cancel reassignments of partitions to other brokers."""

    api: ClassVar[str] = "alter_partition_reassignments"
    partitions: tuple[Reassignment, ...]
    may_change_factor: bool = True


class AlterPartitionReassignmentsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of AlterPartitionReassignmentsRequest, in its order."""

    partitions: tuple[PartitionResult, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ListPartitionReassignmentsRequest(Value, frozen=True, kw_only=True, gc=False):
    """List ongoing reassignments of these partitions, or of all if None."""

    api: ClassVar[str] = "list_partition_reassignments"
    partitions: tuple[TopicPartition, ...] | None = None


class OngoingReassignment(Value, frozen=True, kw_only=True, gc=False):
    """A partition being reassigned, with its current, added and removed replicas."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class ListPartitionReassignmentsResponse(Value, frozen=True, kw_only=True, gc=False):
    """The partitions being reassigned."""

    partitions: tuple[OngoingReassignment, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
