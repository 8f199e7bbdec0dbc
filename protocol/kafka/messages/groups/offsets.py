"""OffsetCommit (2 to 10), OffsetFetch (1 to 10), OffsetDelete (0): a group's offsets.

From version 10 on, OffsetCommit and OffsetFetch name topics only by id; the reply repeats the ids of the request.
OffsetFetch requests one group, or several from version 8 on.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
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
    OffsetToCommit,
    PartitionEntry,
)
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.codec.schema import (
    BOOLEAN,
    ERROR,
    INT16,
    INT32,
    INT64,
    STRING,
    TOPIC_ID,
    Array,
    Field,
    Flat,
    Struct,
    array,
    flat,
)
from warmlog.protocol.kafka.messages.common import (
    ERROR_CODE,
    THROTTLE_TIME,
    Outcomes,
    refused,
    refused_each,
    refused_partitions,
    since,
)
from warmlog.protocol.response import ErrorResponse


class IdentifiedOffset(OffsetToCommit, frozen=True, kw_only=True, gc=False):
    """An offset to commit whose topic is identified by id (OffsetCommit from version 10)."""

    topic_id: bytes = NO_TOPIC_ID


class IdentifiedPartition(PartitionEntry, frozen=True, kw_only=True, gc=False):
    """A partition whose topic is identified by id (OffsetFetch from version 10)."""

    topic_id: bytes = NO_TOPIC_ID


class MemberOffsetFetchGroup(OffsetFetchGroup, frozen=True, kw_only=True, gc=False):
    """A group whose offsets to fetch; members of the new protocol (KIP-848) set member id and epoch."""

    member_id: str | None = None
    member_epoch: int = -1


_FIRST_FETCH_WITH_GROUP_ERROR = 2
_FIRST_FETCH_OF_SEVERAL = 8
_FIRST_WITH_TOPIC_ID = 10
_TOPIC_NAME = Field("name", STRING, until=9, attr="topic")
_TOPIC_ID = Field("topic_id", TOPIC_ID, since=10)

# -- OffsetCommit --


def _requested(_: OffsetCommitResponse, request: OffsetCommitRequest) -> Sequence[Any]:
    return request.partitions


COMMIT_REQUEST = Struct(
    Field("group_id", STRING, attr="group"),
    Field("generation_id_or_member_epoch", INT32, default=-1, attr="generation"),
    Field("member_id", STRING),
    Field("group_instance_id", STRING, since=7, nullable=7, default=None, attr="instance_id"),
    Field(
        "retention_time_ms",
        INT64,
        since=2,
        until=4,
        default=-1,
        attr="retention_ms",
        convert=lambda time: None if time == -1 else time,
    ),
    Field(
        "topics",
        flat(
            _TOPIC_NAME,
            _TOPIC_ID,
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32, attr="partition"),
                    Field("committed_offset", INT64, attr="offset"),
                    Field("committed_leader_epoch", INT32, since=6, default=-1, attr="leader_epoch"),
                    Field("committed_metadata", STRING, nullable=0, attr="metadata", null=""),
                ),
            ),
            into=IdentifiedOffset,
        ),
        attr="partitions",
    ),
    into=OffsetCommitRequest,
)
COMMIT_RESPONSE = Struct(
    since(3, THROTTLE_TIME),
    Field(
        "topics",
        flat(
            _TOPIC_NAME,
            _TOPIC_ID,
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32, attr="partition"),
                    # the error that older clients know for a deleted group
                    Field(
                        "error_code",
                        ERROR,
                        attr="error",
                        before={9: {ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.ILLEGAL_GENERATION}},
                    ),
                ),
            ),
            keys=_requested,
        ),
        attr="partitions",
    ),
)
failed_commit = refused_partitions(OffsetCommitResponse, CommittedPartition)

# -- OffsetFetch --


class _Answer(NamedTuple):
    """A group's offsets and the requested partitions, which name the topics of a reply by id."""

    group: str
    partitions: Sequence[FetchedOffset]
    requested: Sequence[Any]
    error: ErrorCode


def _fetch_request(
    *, group: str, partitions: Any, groups: tuple[MemberOffsetFetchGroup, ...], require_stable: bool, version: int
) -> OffsetFetchRequest:
    if version < _FIRST_FETCH_OF_SEVERAL:
        groups = (MemberOffsetFetchGroup(group=group, partitions=partitions),)
    return OffsetFetchRequest(groups=groups, require_stable=require_stable)


def _answers(response: OffsetFetchResponse, request: OffsetFetchRequest, version: int) -> Sequence[Any]:
    """Return the groups of a reply. If all offsets were requested, deleted topics, which have no id, are omitted."""
    if version < _FIRST_WITH_TOPIC_ID:
        return response.groups
    answers = []
    for requested, fetched in zip(request.groups, response.groups, strict=True):
        if requested.partitions is None:
            named = [offset for offset in fetched.partitions if offset.topic_id is not None]
            answers.append(_Answer(fetched.group, named, named, fetched.error))
        else:
            keys = requested.partitions if fetched.partitions else ()
            answers.append(_Answer(fetched.group, fetched.partitions, keys, fetched.error))
    return answers


_FAILED_OFFSETS = Outcomes("partitions", FetchedOffset, "topic", "partition")


def _only_offsets(response: OffsetFetchResponse, request: OffsetFetchRequest, version: int) -> Sequence[FetchedOffset]:
    """Return the offsets of the only group. Version 1 reports the group's error in each of them."""
    (fetched,), (requested,) = response.groups, request.groups
    if version >= _FIRST_FETCH_WITH_GROUP_ERROR or fetched.error is ErrorCode.NONE:
        return fetched.partitions
    return _FAILED_OFFSETS.refuse(requested, ErrorResponse(error=fetched.error))


def _only_error(response: OffsetFetchResponse, *_: Any) -> ErrorCode:
    return response.groups[0].error


def _requested_of(answer: _Answer, _: OffsetFetchRequest) -> Sequence[Any]:
    return answer.requested


def _offsets(first_with_epoch: int) -> Flat:
    """Return the field list for the topics of a reply."""
    return flat(
        _TOPIC_NAME,
        _TOPIC_ID,
        Field(
            "partitions",
            array(
                Field("partition_index", INT32, attr="partition"),
                Field("committed_offset", INT64, attr="offset"),
                Field("committed_leader_epoch", INT32, since=first_with_epoch, default=-1, attr="leader_epoch"),
                Field("metadata", STRING, nullable=0, null=""),
                Field("error_code", ERROR, attr="error"),
            ),
        ),
        into=FetchedOffset,
        keys=_requested_of,
    )


FETCH_REQUEST = Struct(
    Field("group_id", STRING, until=7, attr="group"),
    Field(
        "topics",
        flat(
            Field("name", STRING, attr="topic"),
            Field("partition_indexes", Array(INT32), attr="partition"),
            into=IdentifiedPartition,
        ),
        until=7,
        nullable=2,
        attr="partitions",
    ),
    Field(
        "groups",
        array(
            Field("group_id", STRING, attr="group"),
            Field("member_id", STRING, since=9, nullable=9, default=None),
            Field("member_epoch", INT32, since=9, default=-1),
            Field(
                "topics",
                flat(
                    _TOPIC_NAME,
                    _TOPIC_ID,
                    Field("partition_indexes", Array(INT32), attr="partition"),
                    into=IdentifiedPartition,
                ),
                nullable=8,
                attr="partitions",
            ),
            into=MemberOffsetFetchGroup,
        ),
        since=8,
    ),
    Field("require_stable", BOOLEAN, since=7),
    into=_fetch_request,
    given=lambda version: {"version": version},
)
FETCH_RESPONSE = Struct(
    since(3, THROTTLE_TIME),
    Field("topics", _offsets(first_with_epoch=5), until=7, attr=None, get=_only_offsets),
    Field("error_code", INT16, since=2, until=7, attr=None, get=_only_error),
    Field(
        "groups",
        array(
            Field("group_id", STRING, attr="group"),
            Field("topics", _offsets(first_with_epoch=8), attr="partitions"),
            ERROR_CODE,
            into=FetchedOffsets,
        ),
        since=8,
        get=_answers,
    ),
    into=OffsetFetchResponse,
)
failed_fetch = refused_each(OffsetFetchResponse, "groups", FetchedOffsets, "group")


# -- OffsetDelete --

_PARTITION = Field("partition_index", INT32, attr="partition")
DELETE_REQUEST = Struct(
    Field("group_id", STRING, attr="group"),
    Field(
        "topics",
        flat(Field("name", STRING, attr="topic"), Field("partitions", array(_PARTITION)), into=PartitionEntry),
        attr="partitions",
    ),
    into=OffsetDeleteRequest,
)
DELETE_RESPONSE = Struct(
    ERROR_CODE,
    THROTTLE_TIME,
    Field(
        "topics",
        flat(Field("name", STRING, attr="topic"), Field("partitions", array(_PARTITION, ERROR_CODE))),
        attr="partitions",
    ),
)
failed_delete = refused(OffsetDeleteResponse)
