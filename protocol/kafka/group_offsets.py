"""OffsetCommit (2 to 10), OffsetFetch (1 to 10), OffsetDelete (0): a group's offsets.

Owns: the tables of these messages, and how they meet the values of protocol/groups.py. Must not know: groups.

From version 10 on OffsetCommit and OffsetFetch name topics by id alone. The reply then repeats the ids of the request;
one that nobody knows (protocol/kafka/values.py) is answered with UNKNOWN_TOPIC_ID.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from protocol.errors import ErrorCode
from protocol.groups import (
    NO_LEADER_EPOCH,
    NO_OFFSET,
    CommittedPartition,
    FetchedOffset,
    FetchedOffsets,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TopicPartition,
)
from protocol.kafka.primitives import NO_TOPIC_ID, Reader, Writer
from protocol.kafka.schema import BOOLEAN, INT16, INT32, INT64, STRING, UUID, Array, Field, Struct, array
from protocol.kafka.values import (
    UNKNOWN_TOPIC_NAME,
    IdentifiedOffset,
    IdentifiedPartition,
    MemberOffsetFetchGroup,
    TopicNames,
    by_topic,
    topic_id_bytes,
)
from protocol.response import ErrorResponse

_FIRST_WITH_TOPIC_ID = 10
_FIRST_COMMIT_WITH_UNKNOWN_GROUP = 9
_FIRST_FETCH_WITH_GROUP_ERROR = 2
_FIRST_FETCH_OF_SEVERAL = 8
_NO_RETENTION = -1
_Named: TypeAlias = tuple[tuple[str, bytes], dict[str, Any]]  # a topic's name and id, and the fields of a partition

COMMIT_REQUEST = Struct(
    Field("group_id", STRING),
    Field("generation_id_or_member_epoch", INT32, default=-1),
    Field("member_id", STRING),
    Field("group_instance_id", STRING, since=7, nullable=7, default=None),
    Field("retention_time_ms", INT64, since=2, until=4, default=_NO_RETENTION),
    Field(
        "topics",
        array(
            Field("name", STRING, until=9),
            Field("topic_id", UUID, since=10),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32),
                    Field("committed_offset", INT64),
                    Field("committed_leader_epoch", INT32, since=6, default=-1),
                    Field("committed_metadata", STRING, nullable=0),
                ),
            ),
        ),
    ),
)
COMMIT_RESPONSE = Struct(
    Field("throttle_time_ms", INT32, since=3),
    Field(
        "topics",
        array(
            Field("name", STRING, until=9),
            Field("topic_id", UUID, since=10),
            Field("partitions", array(Field("partition_index", INT32), Field("error_code", INT16))),
        ),
    ),
)
FETCH_REQUEST = Struct(
    Field("group_id", STRING, until=7),
    Field(
        "topics",
        array(Field("name", STRING), Field("partition_indexes", Array(INT32))),
        until=7,
        nullable=2,
    ),
    Field(
        "groups",
        array(
            Field("group_id", STRING),
            Field("member_id", STRING, since=9, nullable=9, default=None),
            Field("member_epoch", INT32, since=9, default=-1),
            Field(
                "topics",
                array(
                    Field("name", STRING, until=9),
                    Field("topic_id", UUID, since=10),
                    Field("partition_indexes", Array(INT32)),
                ),
                nullable=8,
            ),
        ),
        since=8,
    ),
    Field("require_stable", BOOLEAN, since=7),
)
FETCH_RESPONSE = Struct(
    Field("throttle_time_ms", INT32, since=3),
    Field(
        "topics",
        array(
            Field("name", STRING),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32),
                    Field("committed_offset", INT64),
                    Field("committed_leader_epoch", INT32, since=5, default=-1),
                    Field("metadata", STRING, nullable=0),
                    Field("error_code", INT16),
                ),
            ),
        ),
        until=7,
    ),
    Field("error_code", INT16, since=2, until=7),
    Field(
        "groups",
        array(
            Field("group_id", STRING),
            Field(
                "topics",
                array(
                    Field("name", STRING, until=9),
                    Field("topic_id", UUID, since=10),
                    Field(
                        "partitions",
                        array(
                            Field("partition_index", INT32),
                            Field("committed_offset", INT64),
                            Field("committed_leader_epoch", INT32, default=-1),
                            Field("metadata", STRING, nullable=8),
                            Field("error_code", INT16),
                        ),
                    ),
                ),
            ),
            Field("error_code", INT16, default=0),
        ),
        since=8,
    ),
)
DELETE_REQUEST = Struct(
    Field("group_id", STRING),
    Field("topics", array(Field("name", STRING), Field("partitions", array(Field("partition_index", INT32))))),
)
DELETE_RESPONSE = Struct(
    Field("error_code", INT16),
    Field("throttle_time_ms", INT32),
    Field(
        "topics",
        array(
            Field("name", STRING),
            Field("partitions", array(Field("partition_index", INT32), Field("error_code", INT16))),
        ),
    ),
)


def decode_commit(reader: Reader, version: int, names: TopicNames) -> OffsetCommitRequest:
    """Offsets to commit."""
    values = COMMIT_REQUEST.read(reader, version)
    retention_ms = values["retention_time_ms"]
    return OffsetCommitRequest(
        group=values["group_id"],
        generation=values["generation_id_or_member_epoch"],
        member_id=values["member_id"],
        instance_id=values["group_instance_id"],
        retention_ms=None if retention_ms == _NO_RETENTION else retention_ms,
        partitions=tuple(
            [_to_commit(name, topic["topic_id"], one) for topic, name in _named(values["topics"], version, names)
             for one in topic["partitions"]]
        ),
    )  # fmt: skip


def _named(topics: Iterable[dict[str, Any]], version: int, names: TopicNames) -> Iterator[tuple[dict[str, Any], str]]:
    """Each topic with its name, or the name of its id, or that which no topic has."""
    for topic in topics:
        yield (
            topic,
            (topic["name"] if version < _FIRST_WITH_TOPIC_ID else names(topic["topic_id"])) or UNKNOWN_TOPIC_NAME,
        )


def _to_commit(topic: str, topic_id: bytes, asked: dict[str, Any]) -> IdentifiedOffset:
    return IdentifiedOffset(
        topic=topic,
        topic_id=topic_id,
        partition=asked["partition_index"],
        offset=asked["committed_offset"],
        leader_epoch=asked["committed_leader_epoch"],
        metadata=asked["committed_metadata"] or "",
    )


def encode_commit(writer: Writer, version: int, request: OffsetCommitRequest, response: OffsetCommitResponse) -> None:
    """What became of them."""
    answers = zip(request.partitions, response.partitions, strict=True)
    named = [((asked.topic, _id_of(asked)), _committed_fields(asked, answer)) for asked, answer in answers]
    if version < _FIRST_COMMIT_WITH_UNKNOWN_GROUP:  # what older clients know for a group that is gone
        for _, fields in named:
            if fields["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND:
                fields["error_code"] = ErrorCode.ILLEGAL_GENERATION
    COMMIT_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "topics": _topics(named)})


def failed_commit(request: OffsetCommitRequest, error: ErrorResponse) -> OffsetCommitResponse:
    """The reply where the request failed as a whole."""
    return OffsetCommitResponse(partitions=_failed_partitions(request.partitions, error))


def _committed_fields(asked: Any, answer: CommittedPartition) -> dict[str, Any]:
    return {"partition_index": answer.partition, "error_code": _error_for(asked, answer.error)}


def decode_fetch(reader: Reader, version: int, names: TopicNames) -> OffsetFetchRequest:
    """Whose offsets are asked for: one group's, from version 8 on several groups'."""
    values = FETCH_REQUEST.read(reader, version)
    groups = (
        (values | {"member_id": None, "member_epoch": -1},) if version < _FIRST_FETCH_OF_SEVERAL else values["groups"]
    )
    return OffsetFetchRequest(
        groups=tuple([_fetch_group(group, version, names) for group in groups]),
        require_stable=values["require_stable"],
    )


def _fetch_group(group: dict[str, Any], version: int, names: TopicNames) -> OffsetFetchGroup:
    topics = group["topics"]
    partitions = None if topics is None else tuple(
        [IdentifiedPartition(topic=name, topic_id=topic.get("topic_id", NO_TOPIC_ID), partition=index)
         for topic, name in _named(topics, version, names) for index in topic["partition_indexes"]]
    )  # fmt: skip
    return MemberOffsetFetchGroup(
        group=group["group_id"],
        partitions=partitions,
        member_id=group["member_id"],
        member_epoch=group["member_epoch"],
    )


def encode_fetch(writer: Writer, version: int, request: OffsetFetchRequest, response: OffsetFetchResponse) -> None:
    """The offsets. A group with an error has none, but in version 1, which has no other place for the error."""
    answers = zip(request.groups, response.groups, strict=True)
    if version < _FIRST_FETCH_OF_SEVERAL:
        asked, found = next(answers)
        if version < _FIRST_FETCH_WITH_GROUP_ERROR and found.error is not ErrorCode.NONE:
            found = _failed_group(asked, ErrorResponse(error=found.error))
        values = _group_fields(asked, found, version)
    else:
        values = {"groups": [_group_fields(asked, found, version) for asked, found in answers]}
    FETCH_RESPONSE.write(writer, version, values | {"throttle_time_ms": writer.throttle_ms})


def failed_fetch(request: OffsetFetchRequest, error: ErrorResponse) -> OffsetFetchResponse:
    """The reply where the request failed as a whole."""
    return OffsetFetchResponse(
        groups=tuple([FetchedOffsets(group=asked.group, error=error.error) for asked in request.groups])
    )


def _failed_group(asked: OffsetFetchGroup, error: ErrorResponse) -> FetchedOffsets:
    partitions = [
        FetchedOffset(topic=one.topic, partition=one.partition, error=error.error) for one in asked.partitions or ()
    ]
    return FetchedOffsets(group=asked.group, partitions=tuple(partitions), error=error.error)


def _group_fields(asked: OffsetFetchGroup, found: FetchedOffsets, version: int) -> dict[str, Any]:
    return {
        "group_id": found.group,
        "topics": _topics(_found_by_topic(asked, found, version)),
        "error_code": found.error,
    }


def _found_by_topic(asked: OffsetFetchGroup, found: FetchedOffsets, version: int) -> list[_Named]:
    """Where all offsets were asked for by ids, those of topics that are no more cannot be named."""
    if asked.partitions is None:
        named = [
            ((one.topic, topic_id_bytes(one.topic_id)), _offset_fields(one, one.error)) for one in found.partitions
        ]
        return [one for one in named if version < _FIRST_WITH_TOPIC_ID or one[0][1] != NO_TOPIC_ID]
    if not found.partitions:
        return []
    answers = zip(asked.partitions, found.partitions, strict=True)
    return [
        ((one.topic, _id_of(one)), _offset_fields(answer, _error_for(one, answer.error))) for one, answer in answers
    ]


def _offset_fields(found: FetchedOffset, error: ErrorCode) -> dict[str, Any]:
    is_found = error is ErrorCode.NONE
    return {
        "partition_index": found.partition,
        "committed_offset": found.offset if is_found else NO_OFFSET,
        "committed_leader_epoch": found.leader_epoch if is_found else NO_LEADER_EPOCH,
        "metadata": found.metadata,
        "error_code": error,
    }


def _id_of(asked: Any) -> bytes:
    return asked.topic_id if isinstance(asked, IdentifiedPartition | IdentifiedOffset) else NO_TOPIC_ID


def _error_for(asked: Any, error: ErrorCode) -> ErrorCode:
    is_unknown = asked.topic == UNKNOWN_TOPIC_NAME and _id_of(asked) != NO_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_ID if is_unknown else error


def _topics(named: list[_Named]) -> list[dict[str, Any]]:
    """Partitions as the messages nest them: runs of the same topic, in order."""
    return [
        {"name": name, "topic_id": topic_id, "partitions": [fields for _, fields in run]}
        for (name, topic_id), run in groupby(named, key=itemgetter(0))
    ]


def decode_delete(reader: Reader, version: int, _: TopicNames) -> OffsetDeleteRequest:
    """Offsets to forget."""
    values = DELETE_REQUEST.read(reader, version)
    partitions = [
        TopicPartition(topic=topic["name"], partition=one["partition_index"])
        for topic in values["topics"]
        for one in topic["partitions"]
    ]
    return OffsetDeleteRequest(group=values["group_id"], partitions=tuple(partitions))


def encode_delete(writer: Writer, version: int, _: OffsetDeleteRequest, response: OffsetDeleteResponse) -> None:
    """What became of them. With an error of the whole there are none."""
    topics = [
        {
            "name": topic,
            "partitions": [{"partition_index": one.partition, "error_code": one.error} for one in deleted],
        }
        for topic, deleted in by_topic(response.partitions)
    ]
    values = {"error_code": response.error, "throttle_time_ms": writer.throttle_ms, "topics": topics}
    DELETE_RESPONSE.write(writer, version, values)


def failed_delete(_: OffsetDeleteRequest, error: ErrorResponse) -> OffsetDeleteResponse:
    """The reply where the request failed as a whole."""
    return OffsetDeleteResponse(error=error.error, message=error.message)


def _failed_partitions(asked: Iterable[Any], error: ErrorResponse) -> tuple[CommittedPartition, ...]:
    return tuple([CommittedPartition(topic=one.topic, partition=one.partition, error=error.error) for one in asked])
