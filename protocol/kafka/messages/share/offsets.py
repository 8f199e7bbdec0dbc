"""DescribeShareGroupOffsets (0 and 1), AlterShareGroupOffsets, DeleteShareGroupOffsets (0)."""

from typing import Any, ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.codec.schema import INT32, INT64, STRING, UUID, Array, Field, Struct, array
from warmlog.protocol.kafka.messages.common import OPTIONAL_FAILURE, THROTTLE_TIME, refused, refused_each
from warmlog.protocol.request import Value

UNKNOWN = -1  # an unknown start offset or lag


class NumberedPartitions(Value, frozen=True, kw_only=True, gc=False):
    """Partitions of a topic."""

    topic: str
    partitions: tuple[int, ...] = ()


class ShareOffsetsGroup(Value, frozen=True, kw_only=True, gc=False):
    """A group whose start offsets to describe; `topics` is None for all topics."""

    group: str
    topics: tuple[NumberedPartitions, ...] | None = None


class DescribeShareGroupOffsetsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe the start offsets of share groups."""

    api: ClassVar[str] = "describe_share_group_offsets"
    groups: tuple[ShareOffsetsGroup, ...] = ()


class DescribedSharePartition(Value, frozen=True, kw_only=True, gc=False):
    """The start offset of a share-partition, the leader epoch in which it was stored, and the lag; -1 if unknown."""

    partition: int
    start_offset: int = UNKNOWN
    leader_epoch: int = 0
    lag: int = UNKNOWN
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribedShareTopic(Value, frozen=True, kw_only=True, gc=False):
    """The share-partitions of a topic; `topic_id` is 16 bytes."""

    topic: str
    topic_id: bytes = NO_TOPIC_ID
    partitions: tuple[DescribedSharePartition, ...] = ()


class DescribedShareOffsets(Value, frozen=True, kw_only=True, gc=False):
    """The start offsets of a group, or why they are not described."""

    group: str
    topics: tuple[DescribedShareTopic, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeShareGroupOffsetsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per group."""

    groups: tuple[DescribedShareOffsets, ...] = ()


class NewStartOffset(Value, frozen=True, kw_only=True, gc=False):
    """A partition and the offset at which the group should start."""

    partition: int
    start_offset: int


class AlteredTopic(Value, frozen=True, kw_only=True, gc=False):
    """Partitions of a topic with their new start offsets."""

    topic: str
    partitions: tuple[NewStartOffset, ...] = ()


class AlterShareGroupOffsetsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Set start offsets of a share group without members."""

    api: ClassVar[str] = "alter_share_group_offsets"
    group: str
    topics: tuple[AlteredTopic, ...] = ()


class PartitionOutcome(Value, frozen=True, kw_only=True, gc=False):
    """The result for one partition."""

    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class TopicOutcomes(Value, frozen=True, kw_only=True, gc=False):
    """The results for the partitions of a topic; `topic_id` is 16 bytes."""

    topic: str
    topic_id: bytes = NO_TOPIC_ID
    partitions: tuple[PartitionOutcome, ...] = ()


class AlterShareGroupOffsetsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per partition, or why nothing was changed."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topics: tuple[TopicOutcomes, ...] = ()


class DeleteShareGroupOffsetsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete the state of topics in a share group without members."""

    api: ClassVar[str] = "delete_share_group_offsets"
    group: str
    topics: tuple[str, ...] = ()


class TopicOutcome(Value, frozen=True, kw_only=True, gc=False):
    """The result for one topic; `topic_id` is 16 bytes."""

    topic: str
    topic_id: bytes = NO_TOPIC_ID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DeleteShareGroupOffsetsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per topic, or why nothing was deleted."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topics: tuple[TopicOutcome, ...] = ()


_GROUP = Field("group_id", STRING, attr="group")
_TOPIC = Field("topic_name", STRING, attr="topic")
_TOPIC_ID = Field("topic_id", UUID)
_PARTITION = Field("partition_index", INT32, attr="partition")

DESCRIBE_REQUEST = Struct(
    Field(
        "groups",
        array(
            _GROUP,
            Field("topics", array(_TOPIC, Field("partitions", Array(INT32)), into=NumberedPartitions), nullable=0),
            into=ShareOffsetsGroup,
        ),
    ),
    into=DescribeShareGroupOffsetsRequest,
)
DESCRIBE_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "groups",
        array(
            _GROUP,
            Field(
                "topics",
                array(
                    _TOPIC,
                    _TOPIC_ID,
                    Field(
                        "partitions",
                        array(
                            _PARTITION,
                            Field("start_offset", INT64),
                            Field("leader_epoch", INT32),
                            Field("lag", INT64, since=1, default=UNKNOWN),
                            *OPTIONAL_FAILURE,
                            into=DescribedSharePartition,
                        ),
                    ),
                    into=DescribedShareTopic,
                ),
            ),
            *OPTIONAL_FAILURE,
            into=DescribedShareOffsets,
        ),
    ),
    into=DescribeShareGroupOffsetsResponse,
)
failed_describe = refused_each(DescribeShareGroupOffsetsResponse, "groups", DescribedShareOffsets, "group")

ALTER_REQUEST = Struct(
    _GROUP,
    Field(
        "topics",
        array(
            _TOPIC,
            Field("partitions", array(_PARTITION, Field("start_offset", INT64), into=NewStartOffset)),
            into=AlteredTopic,
        ),
    ),
    into=AlterShareGroupOffsetsRequest,
)
ALTER_RESPONSE = Struct(
    THROTTLE_TIME,
    *OPTIONAL_FAILURE,
    Field(
        "responses",
        array(
            _TOPIC,
            _TOPIC_ID,
            Field("partitions", array(_PARTITION, *OPTIONAL_FAILURE, into=PartitionOutcome)),
            into=TopicOutcomes,
        ),
        attr="topics",
    ),
    into=AlterShareGroupOffsetsResponse,
)
failed_alter = refused(AlterShareGroupOffsetsResponse)


def _name_of(topic: str) -> str:
    return topic


def _itself(topic: str, *_: Any) -> str:
    return topic


DELETE_REQUEST = Struct(
    _GROUP,
    Field("topics", array(Field("topic_name", STRING, attr="topic", get=_itself), into=_name_of)),
    into=DeleteShareGroupOffsetsRequest,
)
DELETE_RESPONSE = Struct(
    THROTTLE_TIME,
    *OPTIONAL_FAILURE,
    Field("responses", array(_TOPIC, _TOPIC_ID, *OPTIONAL_FAILURE, into=TopicOutcome), attr="topics"),
    into=DeleteShareGroupOffsetsResponse,
)
failed_delete = refused(DeleteShareGroupOffsetsResponse)
