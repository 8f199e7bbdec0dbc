"""What only Kafka's protocol has, beside the neutral requests and responses.

Owns: values. Where Kafka asks for more than the native protocol, a value here is a subclass of the neutral one: who
does not care takes it as that. Where the native protocol has nothing like it, the value stands alone. Must not know:
layouts.

Topic ids are the sixteen bytes of the wire here (NO_TOPIC_ID where there is none). In the neutral values they are text
(`topic_id_text`).

A request may name a topic by its id alone. It is decoded with the name that the id had at that moment, or with the
empty name, which no topic has: a handler finds no such topic and says so, and the encoder, which has the request beside
the response, turns that into UNKNOWN_TOPIC_ID (`codec/schema.py`, ERROR).
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import repeat
from typing import ClassVar, TypeAlias

from protocol.errors import ErrorCode
from protocol.groups import OffsetFetchGroup, OffsetToCommit, TopicPartition
from protocol.kafka.codec.bounds import NO_TOPIC_ID
from protocol.kafka.codec.schema import Only
from protocol.request import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    FetchPartition,
    FetchRequest,
    Isolation,
    ListOffsetsRequest,
    MetadataRequest,
    NewTopic,
    OffsetQuery,
    PartitionRecords,
    ProduceRequest,
    Value,
)
from protocol.response import BrokerMetadata, CreatedTopic, FetchedPartition, FetchResponse, TopicResult

TopicNames: TypeAlias = Callable[[bytes], str | None]  # a topic id to the topic's name, None if there is no such topic

# Authorized operations without an authorizer: all that a topic, the cluster or a group supports, a bit for each
# (source: org.apache.kafka.security.authorizer.AclEntry).
TOPIC_OPERATIONS = 0b1101_1111_1000
CLUSTER_OPERATIONS = 0b1_1111_1010_0000
GROUP_OPERATIONS = 0b1101_0100_1000
_ISOLATION_LEVELS = (0, 1)  # uncommitted, committed
UNKNOWN_TOPIC_NAME = ""  # stands for a topic id that nobody knows
NO_SESSION = 0
INITIAL_SESSION_EPOCH = 0
FINAL_SESSION_EPOCH = -1  # also that of a fetch outside of any session
# ListOffsets, beside those of protocol.request: about tiered storage, and what it means to a log without.
EARLIEST_LOCAL_TIMESTAMP = -4  # the first offset on the broker's own disk: the first there is
LATEST_TIERED_TIMESTAMP = -5  # the last offset in remote storage: none
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6  # the first that is still to go there: none


KNOWN_ISOLATION = Only(_ISOLATION_LEVELS, ErrorCode.INVALID_REQUEST, "unknown isolation level {}")


def isolation_of(level: int) -> Isolation:
    """Return the isolation of a level on the wire."""
    return Isolation.READ_COMMITTED if level == 1 else Isolation.READ_UNCOMMITTED


def topic_id_text(topic_id: bytes) -> str:
    """As in `partition.metadata` and in the neutral values: url-safe base64 without padding, 22 characters."""
    return urlsafe_b64encode(topic_id).decode("ascii").rstrip("=")


class KafkaProduceRequest(ProduceRequest, frozen=True, kw_only=True, gc=False):
    """`transactional_id`: None outside of transactions. `knows_zstd`: the version is new enough for it (KIP-110)."""

    transactional_id: str | None = None
    knows_zstd: bool = True


class IdentifiedRecords(PartitionRecords, frozen=True, kw_only=True, gc=False):
    """Batches for a partition. `topic_id`: by which the topic was named (Produce from version 13)."""

    topic_id: bytes = NO_TOPIC_ID


class KafkaFetchPartition(FetchPartition, frozen=True, kw_only=True, gc=False):
    """The epochs: what the client takes for the leader's, and that of the last record it has; -1: it does not say."""

    topic_id: bytes = NO_TOPIC_ID
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1


class ForgottenPartitions(Value, frozen=True, kw_only=True, gc=False):
    """Partitions that leave a fetch session."""

    topic: str
    partitions: tuple[int, ...]
    topic_id: bytes = NO_TOPIC_ID


class KafkaFetchRequest(FetchRequest, frozen=True, kw_only=True, gc=False):
    """A fetch, in a session if `session_id` is not NO_SESSION or `session_epoch` is INITIAL_SESSION_EPOCH (KIP-227).

    `replica_id`: the broker that fetches, negative for a consumer. `uses_topic_ids`: topics are named by their ids.
    `knows_zstd`: the client is new enough to open such batches.
    """

    partitions: tuple[KafkaFetchPartition, ...]
    session_id: int = NO_SESSION
    session_epoch: int = FINAL_SESSION_EPOCH
    forgotten: tuple[ForgottenPartitions, ...] = ()
    rack: str = ""
    replica_id: int = -1
    uses_topic_ids: bool = False
    knows_zstd: bool = True


class DivergedPartition(FetchedPartition, frozen=True, kw_only=True, gc=False):
    """A partition whose log does not go on from the client's last record, and the end of the latest epoch in common."""

    epoch: int
    end_offset: int


class KafkaFetchResponse(FetchResponse, frozen=True, kw_only=True, gc=False):
    """A fetch's answer with an error of its own, about the session or the request as a whole.

    `asked`: what `partitions` answer, where that is not the request's partitions but some of its session's.
    """

    error: ErrorCode = ErrorCode.NONE
    session_id: int = NO_SESSION
    asked: tuple[KafkaFetchPartition, ...] | None = None


class KafkaOffsetQuery(OffsetQuery, frozen=True, kw_only=True, gc=False):
    """`timestamp` may be one of Kafka's further special values, from -4 (earliest local) downwards.

    `error` is what must be answered: the decoder has judged it, since what is special depends on the version.
    """

    current_leader_epoch: int = -1
    error: ErrorCode = ErrorCode.NONE


class KafkaListOffsetsRequest(ListOffsetsRequest, frozen=True, kw_only=True, gc=False):
    """`timeout_ms`: for offsets in remote storage."""

    timeout_ms: int = 0


class IdentifiedOffset(OffsetToCommit, frozen=True, kw_only=True, gc=False):
    """An offset of a partition whose topic was named by its id (OffsetCommit from version 10)."""

    topic_id: bytes = NO_TOPIC_ID


class IdentifiedPartition(TopicPartition, frozen=True, kw_only=True, gc=False):
    """A partition whose topic was named by its id (OffsetFetch from version 10)."""

    topic_id: bytes = NO_TOPIC_ID


class MemberOffsetFetchGroup(OffsetFetchGroup, frozen=True, kw_only=True, gc=False):
    """A group asked by a member of the newer protocol (KIP-848), None and -1 by anybody else."""

    member_id: str | None = None
    member_epoch: int = -1


class EpochQuery(Value, frozen=True, kw_only=True, gc=False):
    """A question where `leader_epoch` ends in this partition."""

    topic: str
    partition: int
    leader_epoch: int
    current_leader_epoch: int = -1


class OffsetForLeaderEpochRequest(Value, frozen=True, kw_only=True, gc=False):
    """What a consumer asks after a change of leader, to find out whether what it read is still there (KIP-320)."""

    api: ClassVar[str] = "offset_for_leader_epoch"
    partitions: tuple[EpochQuery, ...]


class EpochEnd(Value, frozen=True, kw_only=True, gc=False):
    """The largest epoch not above the one asked for, and the offset at which it ends; both -1: none."""

    topic: str
    partition: int
    leader_epoch: int = -1
    end_offset: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class OffsetForLeaderEpochResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per partition asked for, in that order."""

    partitions: tuple[EpochEnd, ...]


class RecordsToDelete(Value, frozen=True, kw_only=True, gc=False):
    """Everything before `offset`; -1: before the high watermark."""

    topic: str
    partition: int
    offset: int


class DeleteRecordsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Move the beginnings of logs."""

    api: ClassVar[str] = "delete_records"
    partitions: tuple[RecordsToDelete, ...]
    timeout_ms: int = 0


class DeletedRecords(Value, frozen=True, kw_only=True, gc=False):
    """The offset at which a log now begins."""

    topic: str
    partition: int
    low_watermark: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DeleteRecordsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per partition asked for, in that order."""

    partitions: tuple[DeletedRecords, ...]


class KafkaMetadataRequest(MetadataRequest, frozen=True, kw_only=True, gc=False):
    """`topic_ids` goes with `topics`: the id by which each was asked for, NO_TOPIC_ID for one asked for by name.

    The two others: whether the client wants to know what it may do, with each topic and with the cluster.
    """

    topic_ids: tuple[bytes, ...] = ()
    topic_operations: bool = False
    cluster_operations: bool = False


def asked_topics(request: MetadataRequest) -> Iterator[tuple[str, bytes]]:
    """Yield the topics asked for as (name, id); a name that is UNKNOWN_TOPIC_NAME with an id stands for that id."""
    names = request.topics or ()
    topic_ids = request.topic_ids if isinstance(request, KafkaMetadataRequest) else None
    return zip(names, topic_ids or repeat(NO_TOPIC_ID, len(names)), strict=True)


class KafkaNewTopic(NewTopic, frozen=True, kw_only=True, gc=False):
    """`assignments`: partition to the ids of its brokers, empty where the broker chooses.

    `null_configs`: settings that were given without a value, to be refused.
    """

    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    null_configs: tuple[str, ...] = ()


class KafkaCreateTopicsRequest(CreateTopicsRequest, frozen=True, kw_only=True, gc=False):
    """`topics` are KafkaNewTopics."""

    timeout_ms: int = 0


class KafkaDeleteTopicsRequest(DeleteTopicsRequest, frozen=True, kw_only=True, gc=False):
    """`topic_ids` goes with `topics`, as in KafkaMetadataRequest."""

    topic_ids: tuple[bytes, ...] = ()
    timeout_ms: int = 0


class NewPartitions(Value, frozen=True, kw_only=True, gc=False):
    """A larger partition count.

    `assignments`: for each new partition its brokers' ids, None where the broker chooses.
    """

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitionsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Give topics more partitions, each on its own."""

    api: ClassVar[str] = "create_partitions"
    topics: tuple[NewPartitions, ...]
    timeout_ms: int = 0
    validate_only: bool = False


class CreatePartitionsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per topic asked for, in that order."""

    topics: tuple[TopicResult, ...]


class ResourceType(IntEnum):
    """What has settings. The wire may name others; those stay numbers, for a handler to refuse."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a setting's value comes from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


class ConfigOperation(IntEnum):
    """What is done to a setting; the wire may name others, for a handler to refuse."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigType(IntEnum):
    """What a setting's value is."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigQuery(Value, frozen=True, kw_only=True, gc=False):
    """The settings asked for, None: all. `resource_type`: of ResourceType, or a number that is none of them."""

    resource_type: int
    name: str
    keys: tuple[str, ...] | None = None


class DescribeConfigsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Settings of topics and brokers."""

    api: ClassVar[str] = "describe_configs"
    resources: tuple[ConfigQuery, ...]
    include_synonyms: bool = False
    include_documentation: bool = False


class ConfigSynonym(Value, frozen=True, kw_only=True, gc=False):
    """One of the places where a setting's value may come from, the one in force first."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(Value, frozen=True, kw_only=True, gc=False):
    """One setting as it is in force. A sensitive one has no value."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    is_sensitive: bool = False
    type: ConfigType = ConfigType.UNKNOWN
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str | None = None


class DescribedConfigs(Value, frozen=True, kw_only=True, gc=False):
    """The settings of one resource."""

    resource_type: int
    name: str
    configs: tuple[ConfigEntry, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeConfigsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per resource asked for, in that order."""

    resources: tuple[DescribedConfigs, ...]


class ConfigChange(Value, frozen=True, kw_only=True, gc=False):
    """One change; `operation`: of ConfigOperation, or a number that is none of them."""

    name: str
    value: str | None
    operation: int = ConfigOperation.SET


class ConfigAlteration(Value, frozen=True, kw_only=True, gc=False):
    """The changes to one resource."""

    resource_type: int
    name: str
    changes: tuple[ConfigChange, ...]


class AlterConfigsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Change settings. Not `incremental`: what is not named goes back to its default."""

    api: ClassVar[str] = "alter_configs"
    resources: tuple[ConfigAlteration, ...]
    incremental: bool
    validate_only: bool = False


class AlteredConfigs(Value, frozen=True, kw_only=True, gc=False):
    """What became of the changes to one resource."""

    resource_type: int
    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class AlterConfigsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per resource asked for, in that order."""

    resources: tuple[AlteredConfigs, ...]


class KafkaCreatedTopic(CreatedTopic, frozen=True, kw_only=True, gc=False):
    """With what clients from version 5 on are told beside: the replication factor and the settings in force."""

    replication_factor: int = 1
    configs: tuple[ConfigEntry, ...] = ()


class ApiVersionsRequest(Value, frozen=True, kw_only=True, gc=False):
    """The first request of most clients. `error` is what must be answered: the decoder has judged it already."""

    api: ClassVar[str] = "api_versions"
    software_name: str = ""
    software_version: str = ""
    error: ErrorCode = ErrorCode.NONE


class VersionRange(Value, frozen=True, kw_only=True, gc=False):
    """An API and the versions of it that are served, both included."""

    key: int
    first: int
    last: int


class FeatureRange(Value, frozen=True, kw_only=True, gc=False):
    """A feature of the cluster: the levels that a broker supports, both included, and the one in force (KIP-584)."""

    name: str
    first: int
    last: int
    level: int


class ApiVersionsResponse(Value, frozen=True, kw_only=True, gc=False):
    """What is served, by key. `features_epoch` grows when features may have changed; -1 where it is not known."""

    apis: tuple[VersionRange, ...]
    features: tuple[FeatureRange, ...] = ()
    features_epoch: int = -1
    error: ErrorCode = ErrorCode.NONE


class DescribeClusterRequest(Value, frozen=True, kw_only=True, gc=False):
    """`endpoint_type`: 1 brokers, 2 controllers. `operations`: whether the client wants to know what it may do."""

    api: ClassVar[str] = "describe_cluster"
    endpoint_type: int = 1
    include_fenced_brokers: bool = False
    operations: bool = False


class DescribeClusterResponse(Value, frozen=True, kw_only=True, gc=False):
    """The cluster and its brokers."""

    cluster_id: str
    controller: int
    brokers: tuple[BrokerMetadata, ...]
    endpoint_type: int = 1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class InitProducerIdRequest(Value, frozen=True, kw_only=True, gc=False):
    """Ask for a producer id, or a higher epoch of the one given (-1: none)."""

    api: ClassVar[str] = "init_producer_id"
    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1


class InitProducerIdResponse(Value, frozen=True, kw_only=True, gc=False):
    """The id and epoch to produce with."""

    producer_id: int = -1
    producer_epoch: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
