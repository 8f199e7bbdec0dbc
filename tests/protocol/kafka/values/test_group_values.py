"""Kafka's group messages, decoded to and encoded from the values of protocol/groups.py, API by API."""

from typing import Any

import pytest

from tests.protocol.kafka.values.round_trip import ID_A, ID_B, decode_request, encode_response, expected, versions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CommittedPartition,
    CoordinatorLocation,
    CoordinatorType,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchedOffset,
    FetchedOffsets,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupProtocol,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionEntry,
    SyncGroupRequest,
    SyncGroupResponse,
)
from warmlog.protocol.kafka.api import RefusedError
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.common import topic_id_text
from warmlog.protocol.kafka.messages.groups.offsets import IdentifiedOffset, IdentifiedPartition, MemberOffsetFetchGroup
from warmlog.protocol.response import ErrorResponse

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE, DELETE_OFFSETS = (
    8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47,
)  # fmt: skip


class TestFindCoordinator:
    @pytest.mark.parametrize("version", versions(FIND))
    def test_a_question(self, version: int) -> None:
        request = decode_request(FIND, version, {"key": "g", "key_type": 1, "coordinator_keys": ["g", "h"]})
        wanted = CoordinatorType.GROUP if version < 1 else CoordinatorType.TRANSACTION
        assert request == FindCoordinatorRequest(keys=("g",) if version < 4 else ("g", "h"), key_type=wanted)

    @pytest.mark.parametrize("version", versions(FIND))
    def test_the_answer(self, version: int) -> None:
        found = CoordinatorLocation(key="g", node_id=3, host="a", port=9092)
        missing = CoordinatorLocation(key="h", error=ErrorCode.INVALID_REQUEST, message="no")
        fields = {"key": "g", "node_id": 3, "host": "a", "port": 9092, "error_code": 0, "error_message": None}
        refused = {"key": "h", "node_id": -1, "host": "", "port": -1, "error_code": 42, "error_message": "no"}
        response = FindCoordinatorResponse(coordinators=(found, missing))
        values = fields | {"throttle_time_ms": 0, "coordinators": [fields, refused]}
        assert encode_response(FIND, version, response) == expected(FIND, version, values)


class TestMembership:
    @pytest.mark.parametrize("version", versions(JOIN))
    def test_join_requests(self, version: int) -> None:
        request = decode_request(JOIN, version, {
            "group_id": "g", "session_timeout_ms": 10, "rebalance_timeout_ms": 20, "member_id": "m",
            "group_instance_id": "i", "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"r"}, {"name": "sticky", "metadata": b""}], "reason": "why",
        })  # fmt: skip
        assert request == JoinGroupRequest(
            group="g",
            member_id="m",
            instance_id="i" if version >= 5 else None,
            protocol_type="consumer",
            protocols=(GroupProtocol(name="range", metadata=b"r"), GroupProtocol(name="sticky", metadata=b"")),
            session_timeout_ms=10,
            rebalance_timeout_ms=20 if version >= 1 else 10,
            reason="why" if version >= 8 else None,
            requires_known_member=version >= 4,
            can_skip_assignment=version >= 9,
        )
        assert {type(protocol.metadata) for protocol in request.protocols} == {bytes}

    @pytest.mark.parametrize("version", versions(JOIN))
    def test_join_response_of_a_leader(self, version: int) -> None:
        members = (JoinedMember(member_id="m", instance_id="i", metadata=b"r"), JoinedMember(member_id="n"))
        response = JoinGroupResponse(
            generation=4, protocol_type="consumer", protocol_name="range", leader="m", member_id="m",
            skip_assignment=True, members=members,
        )  # fmt: skip
        assert encode_response(JOIN, version, response) == expected(JOIN, version, {
            "throttle_time_ms": 0, "error_code": 0, "generation_id": 4, "protocol_type": "consumer",
            "protocol_name": "range", "leader": "m", "skip_assignment": True, "member_id": "m",
            "members": (
                {"member_id": "m", "group_instance_id": "i", "metadata": b"r"},
                {"member_id": "n", "group_instance_id": None, "metadata": b""},
            ),
        })  # fmt: skip

    @pytest.mark.parametrize("version", versions(JOIN))
    def test_old_clients_get_an_empty_protocol_instead_of_null(self, version: int) -> None:
        response = JoinGroupResponse(member_id="m", error=ErrorCode.MEMBER_ID_REQUIRED)
        answer = encode_response(JOIN, version, response)
        assert (answer["member_id"], answer["error_code"], answer["generation_id"]) == ("m", 79, -1)
        assert answer["protocol_name"] == ("" if version < 7 else None)

    @pytest.mark.parametrize("version", versions(SYNC))
    def test_a_leaders_assignments(self, version: int) -> None:
        request = decode_request(SYNC, version, {
            "group_id": "g", "generation_id": 4, "member_id": "m", "group_instance_id": "i",
            "protocol_type": "consumer", "protocol_name": "range",
            "assignments": [{"member_id": "m", "assignment": b"a"}],
        })  # fmt: skip
        assert request == SyncGroupRequest(
            group="g",
            generation=4,
            member_id="m",
            instance_id="i" if version >= 3 else None,
            protocol_type="consumer" if version >= 5 else None,
            protocol_name="range" if version >= 5 else None,
            assignments=(MemberAssignment(member_id="m", assignment=b"a"),),
        )
        assert type(request.assignments[0].assignment) is bytes

    @pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
    def test_a_sync_that_does_not_name_the_protocol_is_refused(self, missing: str) -> None:
        named = {"protocol_type": "consumer", "protocol_name": "range"} | {missing: None}
        with pytest.raises(RefusedError) as refused:
            decode_request(SYNC, 5, {"group_id": "g", "generation_id": 4, "member_id": "m", "assignments": ()} | named)
        assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        call = refused.value.call
        assert encode_response(SYNC, 5, refused.value.response, call.request)["error_code"] == 23

    @pytest.mark.parametrize("version", versions(SYNC))
    def test_an_assignment(self, version: int) -> None:
        response = SyncGroupResponse(assignment=b"a", protocol_type="consumer", protocol_name="range")
        assert encode_response(SYNC, version, response) == expected(SYNC, version, {
            "throttle_time_ms": 0, "error_code": 0, "protocol_type": "consumer", "protocol_name": "range",
            "assignment": b"a",
        })  # fmt: skip

    @pytest.mark.parametrize("version", versions(HEARTBEAT))
    def test_heartbeats(self, version: int) -> None:
        values = {"group_id": "g", "generation_id": 4, "member_id": "m", "group_instance_id": "i"}
        instance_id = "i" if version >= 3 else None
        wanted = HeartbeatRequest(group="g", generation=4, member_id="m", instance_id=instance_id)
        assert decode_request(HEARTBEAT, version, values) == wanted
        response = HeartbeatResponse(error=ErrorCode.REBALANCE_IN_PROGRESS)
        assert encode_response(HEARTBEAT, version, response) == {"throttle_time_ms": 0, "error_code": 27}

    @pytest.mark.parametrize("version", versions(LEAVE))
    def test_leave_requests(self, version: int) -> None:
        members = [
            {"member_id": "m", "group_instance_id": None, "reason": "done"},
            {"member_id": "", "group_instance_id": "i", "reason": None},
        ]
        request = decode_request(LEAVE, version, {"group_id": "g", "member_id": "m", "members": members})
        reason = "done" if version >= 5 else None
        alone = (LeavingMember(member_id="m", reason=reason),)
        several = (*alone, LeavingMember(instance_id="i"))
        assert request == LeaveGroupRequest(group="g", members=alone if version < 3 else several)

    @pytest.mark.parametrize("version", versions(LEAVE))
    def test_the_error_of_a_member_alone_is_that_of_the_reply(self, version: int) -> None:
        left = LeftMember(member_id="m", instance_id="i", error=ErrorCode.UNKNOWN_MEMBER_ID)
        member = {"member_id": "m", "group_instance_id": "i", "error_code": 25}
        assert encode_response(LEAVE, version, LeaveGroupResponse(members=(left,))) == expected(LEAVE, version, {
            "throttle_time_ms": 0, "error_code": 25 if version < 3 else 0, "members": (member,),
        })  # fmt: skip
        refused = LeaveGroupResponse(error=ErrorCode.INVALID_GROUP_ID)
        assert encode_response(LEAVE, version, refused)["error_code"] == ErrorCode.INVALID_GROUP_ID


class TestCommit:
    @pytest.mark.parametrize("version", versions(COMMIT))
    def test_offsets_to_commit(self, version: int) -> None:
        partition = {"committed_offset": 9, "committed_leader_epoch": 2, "committed_metadata": None}
        request = decode_request(COMMIT, version, {
            "group_id": "g", "generation_id_or_member_epoch": 4, "member_id": "m", "group_instance_id": "i",
            "retention_time_ms": 50,
            "topics": [{"name": "alpha", "topic_id": ID_A, "partitions": [
                {"partition_index": 0} | partition, {"partition_index": 1} | partition | {"committed_metadata": "x"},
            ]}],
        })  # fmt: skip
        common: dict[str, Any] = {
            "topic": "alpha", "offset": 9, "leader_epoch": 2 if version >= 6 else -1,
            "topic_id": ID_A if version >= 10 else NO_TOPIC_ID,
        }  # fmt: skip
        assert request == OffsetCommitRequest(
            group="g",
            generation=4,
            member_id="m",
            instance_id="i" if version >= 7 else None,
            retention_ms=50 if version <= 4 else None,
            partitions=(IdentifiedOffset(partition=0, **common), IdentifiedOffset(partition=1, metadata="x", **common)),
        )

    @pytest.mark.parametrize("version", versions(COMMIT))
    def test_commit_response(self, version: int) -> None:
        topic_id = ID_A if version >= 10 else NO_TOPIC_ID
        offsets = [IdentifiedOffset(topic="alpha", partition=one, offset=1, topic_id=topic_id) for one in (0, 1)]
        request = OffsetCommitRequest(group="g", partitions=tuple(offsets))
        stored = CommittedPartition(topic="alpha", partition=0)
        refused = CommittedPartition(topic="alpha", partition=1, error=ErrorCode.OFFSET_METADATA_TOO_LARGE)
        partitions = ({"partition_index": 0, "error_code": 0}, {"partition_index": 1, "error_code": 12})
        response = OffsetCommitResponse(partitions=(stored, refused))
        assert encode_response(COMMIT, version, response, request) == expected(
            COMMIT, version,
            {"throttle_time_ms": 0, "topics": ({"name": "alpha", "topic_id": ID_A, "partitions": partitions},)},
        )  # fmt: skip

    def test_unknown_topic_ids_are_kept_apart(self) -> None:
        other = b"c" * 16
        partition = {"partition_index": 0, "committed_offset": 9, "committed_metadata": ""}
        topics = [{"topic_id": topic_id, "partitions": [partition]} for topic_id in (ID_B, other, ID_A)]
        request = decode_request(COMMIT, 10, {"group_id": "g", "member_id": "", "topics": topics})
        assert [one.topic for one in request.partitions] == ["", "", "alpha"]
        unknown = CommittedPartition(topic="", partition=0, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        stored = CommittedPartition(topic="alpha", partition=0)
        answer = encode_response(COMMIT, 10, OffsetCommitResponse(partitions=(unknown, unknown, stored)), request)
        assert [(one["topic_id"], one["partitions"][0]["error_code"]) for one in answer["topics"]] == [
            (ID_B, ErrorCode.UNKNOWN_TOPIC_ID), (other, ErrorCode.UNKNOWN_TOPIC_ID), (ID_A, 0),
        ]  # fmt: skip

    @pytest.mark.parametrize("version", versions(COMMIT))
    def test_a_commit_that_failed_as_a_whole(self, version: int) -> None:
        request = OffsetCommitRequest(group="g", partitions=(IdentifiedOffset(topic="a", partition=3, offset=1),))
        answer = encode_response(COMMIT, version, ErrorResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR), request)
        assert answer["topics"][0]["partitions"] == ({"partition_index": 3, "error_code": -1},)


def fetch_fields(version: int, **fields: Any) -> dict[str, Any]:
    """Return the fields of a request for one group in the layout of a version."""
    return {"require_stable": True} | (fields if version < 8 else {"groups": [fields]})


class TestFetch:
    @pytest.mark.parametrize("version", versions(FETCH))
    def test_offsets_that_are_asked_for(self, version: int) -> None:
        topic = {"name": "alpha", "topic_id": ID_A, "partition_indexes": [1, 2]}
        request = decode_request(
            FETCH, version, fetch_fields(version, group_id="g", member_id="m", member_epoch=3, topics=[topic])
        )
        topic_id = ID_A if version >= 10 else NO_TOPIC_ID
        wanted = [IdentifiedPartition(topic="alpha", partition=one, topic_id=topic_id) for one in (1, 2)]
        group = MemberOffsetFetchGroup(
            group="g",
            partitions=tuple(wanted),
            member_id="m" if version >= 9 else None,
            member_epoch=3 if version >= 9 else -1,
        )
        assert request == OffsetFetchRequest(groups=(group,), require_stable=version >= 7)

    @pytest.mark.parametrize("version", versions(FETCH, first=2))
    def test_all_offsets_of_a_group(self, version: int) -> None:
        request = decode_request(FETCH, version, fetch_fields(version, group_id="g", topics=None))
        assert request.groups == (MemberOffsetFetchGroup(group="g"),)
        found = FetchedOffset(topic="alpha", partition=1, offset=9, leader_epoch=2, topic_id=topic_id_text(ID_A))
        gone = FetchedOffset(topic="gone", partition=0, offset=5)
        answer = encode_response(
            FETCH, version, OffsetFetchResponse(groups=(FetchedOffsets(group="g", partitions=(found, gone)),)), request
        )
        topics = answer["topics"] if version < 8 else answer["groups"][0]["topics"]
        assert [topic["partitions"][0]["committed_offset"] for topic in topics] == [9, 5][: 2 if version < 10 else 1]
        assert topics[0]["topic_id" if version >= 10 else "name"] == (ID_A if version >= 10 else "alpha")

    @pytest.mark.parametrize("version", versions(FETCH))
    def test_offsets_found(self, version: int) -> None:
        partitions = tuple([IdentifiedPartition(topic="a", partition=one) for one in (0, 1, 2)])
        request = OffsetFetchRequest(groups=(OffsetFetchGroup(group="g", partitions=partitions),))
        found = (
            FetchedOffset(topic="a", partition=0, offset=9, leader_epoch=2, metadata="x"),
            FetchedOffset(topic="a", partition=1),
            FetchedOffset(topic="a", partition=2, error=ErrorCode.UNSTABLE_OFFSET_COMMIT),
        )
        response = OffsetFetchResponse(groups=(FetchedOffsets(group="g", partitions=found),))
        answers = [
            {"partition_index": index, "committed_offset": offset, "committed_leader_epoch": epoch,
             "metadata": metadata, "error_code": error}
            for index, offset, epoch, metadata, error in ((0, 9, 2, "x", 0), (1, -1, -1, "", 0), (2, -1, -1, "", 88))
        ]  # fmt: skip
        group = {"group_id": "g", "topics": [{"name": "a", "partitions": answers}], "error_code": 0}
        values = group | {"throttle_time_ms": 0, "groups": [group]}
        assert encode_response(FETCH, version, response, request) == expected(FETCH, version, values)

    @pytest.mark.parametrize("version", versions(FETCH))
    def test_the_error_of_a_group(self, version: int) -> None:
        partitions = (IdentifiedPartition(topic="a", partition=5),)
        request = OffsetFetchRequest(groups=(OffsetFetchGroup(group="g", partitions=partitions),))
        refused = FetchedOffsets(group="g", error=ErrorCode.INVALID_GROUP_ID)
        answer = encode_response(FETCH, version, OffsetFetchResponse(groups=(refused,)), request)
        if version < 2:  # the error is in each partition
            (partition,) = answer["topics"][0]["partitions"]
            assert (partition["partition_index"], partition["error_code"], partition["committed_offset"]) == (5, 24, -1)
        else:
            assert (answer if version < 8 else answer["groups"][0])["error_code"] == ErrorCode.INVALID_GROUP_ID

    @pytest.mark.parametrize("version", versions(FETCH, first=8))
    def test_several_groups(self, version: int) -> None:
        request = decode_request(FETCH, version, {
            "groups": [{"group_id": "g", "topics": ()}, {"group_id": "h", "topics": None}], "require_stable": False,
        })  # fmt: skip
        assert [(group.group, group.partitions) for group in request.groups] == [("g", ()), ("h", None)]
        groups = (FetchedOffsets(group="g"), FetchedOffsets(group="h", error=ErrorCode.GROUP_ID_NOT_FOUND))
        answer = encode_response(FETCH, version, OffsetFetchResponse(groups=groups), request)
        assert [(group["group_id"], group["error_code"]) for group in answer["groups"]] == [("g", 0), ("h", 69)]

    def test_unknown_topic_ids(self) -> None:
        topics = [{"topic_id": ID_B, "partition_indexes": [0]}, {"topic_id": ID_A, "partition_indexes": [0]}]
        request = decode_request(FETCH, 10, fetch_fields(10, group_id="g", topics=topics))
        found = (FetchedOffset(topic="", partition=0), FetchedOffset(topic="alpha", partition=0, offset=4))
        answer = encode_response(
            FETCH, 10, OffsetFetchResponse(groups=(FetchedOffsets(group="g", partitions=found),)), request
        )
        told_of = [(topic["topic_id"], topic["partitions"][0]) for topic in answer["groups"][0]["topics"]]
        assert [(topic_id, one["error_code"], one["committed_offset"]) for topic_id, one in told_of] == [
            (ID_B, ErrorCode.UNKNOWN_TOPIC_ID, -1), (ID_A, 0, 4),
        ]  # fmt: skip


class TestAdministration:
    @pytest.mark.parametrize("version", versions(LIST))
    def test_groups_to_list(self, version: int) -> None:
        request = decode_request(LIST, version, {"states_filter": ["Stable"], "types_filter": ["classic"]})
        states, types = ("Stable",) if version >= 4 else (), ("classic",) if version >= 5 else ()
        assert request == ListGroupsRequest(states=states, types=types)
        listed = ListedGroup(group="g", protocol_type="consumer", state="Stable")
        group = {"group_id": "g", "protocol_type": "consumer", "group_state": "Stable", "group_type": "classic"}
        assert encode_response(LIST, version, ListGroupsResponse(groups=(listed,))) == expected(
            LIST, version, {"throttle_time_ms": 0, "error_code": 0, "groups": (group,)}
        )

    @pytest.mark.parametrize("version", versions(DESCRIBE))
    def test_groups_to_describe(self, version: int) -> None:
        request = decode_request(DESCRIBE, version, {"groups": ["g", "h"], "include_authorized_operations": True})
        assert request == DescribeGroupsRequest(groups=("g", "h"), include_authorized_operations=version >= 3)

    @pytest.mark.parametrize("version", versions(DESCRIBE))
    def test_an_unknown_group_is_a_dead_one_for_old_clients(self, version: int) -> None:
        member = DescribedMember(
            member_id="m", instance_id="i", client_id="c", client_host="/127.0.0.1", metadata=b"r", assignment=b"a"
        )
        stable = DescribedGroup(
            group="g", state="Stable", protocol_type="consumer", protocol="range", members=(member,)
        )
        unknown = DescribedGroup(group="h", error=ErrorCode.GROUP_ID_NOT_FOUND, message="no such group")
        group = {"error_message": None, "authorized_operations": -(1 << 31)}
        members = ({
            "member_id": "m", "group_instance_id": "i", "client_id": "c", "client_host": "/127.0.0.1",
            "member_metadata": b"r", "member_assignment": b"a",
        },)  # fmt: skip
        values = {"throttle_time_ms": 0, "groups": (
            group | {"error_code": 0, "group_id": "g", "group_state": "Stable", "protocol_type": "consumer",
                     "protocol_data": "range", "members": members},
            group | {"error_code": 69 if version >= 6 else 0, "error_message": "no such group", "group_id": "h",
                     "group_state": "Dead", "protocol_type": "", "protocol_data": "", "members": ()},
        )}  # fmt: skip
        response = DescribeGroupsResponse(groups=(stable, unknown))
        request = DescribeGroupsRequest(groups=("g", "h"))
        assert encode_response(DESCRIBE, version, response, request) == expected(DESCRIBE, version, values)

    @pytest.mark.parametrize("version", versions(DELETE))
    def test_groups_to_delete(self, version: int) -> None:
        assert decode_request(DELETE, version, {"groups_names": ["g", "h"]}) == DeleteGroupsRequest(groups=("g", "h"))
        deleted = (DeletedGroup(group="g"), DeletedGroup(group="h", error=ErrorCode.NON_EMPTY_GROUP))
        results = tuple(
            {"group_id": group, "error_code": error, "error_message": None} for group, error in (("g", 0), ("h", 68))
        )
        answer = encode_response(DELETE, version, DeleteGroupsResponse(groups=deleted))
        assert answer == {"throttle_time_ms": 0, "results": results}

    def test_offsets_to_delete(self) -> None:
        topics = [{"name": "a", "partitions": [{"partition_index": 1}, {"partition_index": 2}]}]
        partitions = (PartitionEntry(topic="a", partition=1), PartitionEntry(topic="a", partition=2))
        wanted = OffsetDeleteRequest(group="g", partitions=partitions)
        assert decode_request(DELETE_OFFSETS, 0, {"group_id": "g", "topics": topics}) == wanted
        deleted = CommittedPartition(topic="a", partition=1)
        kept = CommittedPartition(topic="a", partition=2, error=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        answers = ({"partition_index": 1, "error_code": 0}, {"partition_index": 2, "error_code": 86})
        assert encode_response(DELETE_OFFSETS, 0, OffsetDeleteResponse(partitions=(deleted, kept))) == {
            "error_code": 0, "throttle_time_ms": 0, "topics": ({"name": "a", "partitions": answers},),
        }  # fmt: skip
        unknown = OffsetDeleteResponse(error=ErrorCode.GROUP_ID_NOT_FOUND)
        assert encode_response(DELETE_OFFSETS, 0, unknown) == {"error_code": 69, "throttle_time_ms": 0, "topics": ()}
