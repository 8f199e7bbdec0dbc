"""Kafka's APIs: the one table, and the face that a connection uses.

Owns: the table, the headers of requests and replies, and what becomes of requests that cannot be served. Must not know:
sockets, handlers, or what an API does.

    request, after the frame's length   api key int16, version int16, correlation id int32, client id (classic string,
                                        may be null), flexible versions: tagged fields; then the body
    reply, after the frame's length     correlation id int32, flexible versions: tagged fields; then the body

Invariants:
1. What a peer is told to be served (ApiVersions) is the table, and all of it is. Its version ranges have no gaps. One
   untruth, which is Kafka's own (KAFKA-18659): Produce is advertised from version 0, because librdkafka takes a broker
   without it for one that knows no compression, and served from 3.
2. The header of the reply to ApiVersions is classic in every version: a client that does not know yet what we speak
   must be able to read it. A version of ApiVersions that is unknown is answered in version 0 with UNSUPPORTED_VERSION
   and the whole table. For every other API or version that is not served, and for bytes that are no request,
   `Codec.decode` raises, and the connection must close: there is no reply that such a peer would understand.
3. A Call is everything that a reply needs; it is encoded by the same codec, at any later time, in any order.
"""

import struct
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from protocol.errors import ErrorCode, ProtocolError
from protocol.kafka import (
    admin,
    assignments,
    cluster,
    configs,
    controller,
    fetch,
    group_admin,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
    security,
    topic_partitions,
    topics,
)
from protocol.kafka.codec.bounds import NO_LIMIT, InvalidRequestError
from protocol.kafka.codec.engine import ENGINE, Engine
from protocol.kafka.codec.schema import Struct
from protocol.kafka.primitives import UNREADABLE, FlexibleReader, FlexibleWriter, MalformedError, Reader, Writer
from protocol.kafka.values import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    TopicNames,
    VersionRange,
)
from protocol.response import ErrorResponse

API_VERSIONS_KEY = 18

_HEADER = struct.Struct(">hhi")  # key, version, correlation id
_REPLY_START = struct.Struct(">ii")  # frame length, correlation id
_FLEXIBLE_REPLY_START = struct.Struct(">iiB")  # and no tagged fields


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """One row of the table.

    request, response: tables of fields, read and written in their bound form (`codec/schema.py`); or functions:
    decode(reader, version, names) gives the request, encode(writer, version, request, response) writes the reply.
    Making a request may raise InvalidRequestError, for one that must be refused.
    failed(request, ErrorResponse) gives the response that reports that a request failed as a whole.
    """

    key: int
    name: str
    first: int  # served versions, both included
    last: int
    first_flexible: int
    request: Struct | Callable[[Reader, int, TopicNames], Any]
    response: Struct | Callable[[Writer, int, Any, Any], None]
    failed: Callable[[Any, ErrorResponse], Any]
    advertised_from: int | None = None  # where that is not `first`

    def is_flexible(self, version: int) -> bool:
        """Whether a version has tagged fields and compact lengths."""
        return version >= self.first_flexible


class Call(msgspec.Struct, frozen=True, gc=False):
    """One request with what its reply needs. `client_id` is what the client calls itself, empty if nothing."""

    api: Api
    version: int
    correlation_id: int
    client_id: str
    request: Any


class UnservedError(ProtocolError):
    """An API, or a version of one, that is not served. The connection must close."""

    code = ErrorCode.UNSUPPORTED_VERSION


class RefusedError(ProtocolError):
    """A request that can be read but must be refused: answer `call` with `response`, and go on."""

    def __init__(self, call: Call, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.call = call
        self.code = code

    @property
    def response(self) -> ErrorResponse:
        """What `Codec.encode` makes the API's own reply of."""
        return ErrorResponse(error=self.code, message=str(self))


def _knows_no_topic_id(_: bytes) -> None:
    return None


# fmt: off
APIS = (
    Api(0, "Produce", 3, 13, 9, produce.REQUEST, produce.RESPONSE, produce.failed, advertised_from=0),
    Api(1, "Fetch", 4, 18, 12, fetch.REQUEST, fetch.RESPONSE, fetch.failed),
    Api(2, "ListOffsets", 1, 11, 6, offsets.decode_list, offsets.encode_list, offsets.failed_list),
    Api(3, "Metadata", 0, 13, 9, metadata.decode, metadata.encode, metadata.failed),
    Api(8, "OffsetCommit", 2, 10, 8,
        group_offsets.decode_commit, group_offsets.encode_commit, group_offsets.failed_commit),
    Api(9, "OffsetFetch", 1, 10, 6, group_offsets.decode_fetch, group_offsets.encode_fetch, group_offsets.failed_fetch),
    Api(10, "FindCoordinator", 0, 6, 3, groups.decode_find, groups.encode_find, groups.failed_find),
    Api(11, "JoinGroup", 0, 9, 6, groups.decode_join, groups.encode_join, groups.failed_join),
    Api(12, "Heartbeat", 0, 4, 4, groups.decode_heartbeat, groups.encode_heartbeat, groups.failed_heartbeat),
    Api(13, "LeaveGroup", 0, 5, 4, groups.decode_leave, groups.encode_leave, groups.failed_leave),
    Api(14, "SyncGroup", 0, 5, 4, groups.decode_sync, groups.encode_sync, groups.failed_sync),
    Api(15, "DescribeGroups", 0, 6, 5,
        group_admin.decode_describe, group_admin.encode_describe, group_admin.failed_describe),
    Api(16, "ListGroups", 0, 5, 3, group_admin.decode_list, group_admin.encode_list, group_admin.failed_list),
    # no version of it is flexible
    Api(17, "SaslHandshake", 0, 1, 2, security.decode_handshake, security.encode_handshake, security.failed),
    Api(18, "ApiVersions", 0, 4, 3, cluster.decode_versions, cluster.encode_versions, cluster.failed_versions),
    Api(19, "CreateTopics", 2, 7, 5, topics.decode_create, topics.encode_create, topics.failed_create),
    Api(20, "DeleteTopics", 1, 6, 4, topics.decode_delete, topics.encode_delete, topics.failed_delete),
    Api(21, "DeleteRecords", 0, 2, 2, offsets.decode_delete, offsets.encode_delete, offsets.failed_delete),
    # version 6 is not stable yet in Kafka 4.3
    Api(22, "InitProducerId", 0, 5, 2, cluster.decode_producer, cluster.encode_producer, cluster.failed_producer),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4, offsets.decode_epoch, offsets.encode_epoch, offsets.failed_epoch),
    Api(29, "DescribeAcls", 1, 3, 2,
        security.decode_describe_acls, security.encode_describe_acls, security.failed_describe_acls),
    Api(30, "CreateAcls", 1, 3, 2,
        security.decode_create_acls, security.encode_create_acls, security.failed_alter_acls),
    Api(31, "DeleteAcls", 1, 3, 2,
        security.decode_delete_acls, security.encode_delete_acls, security.failed_alter_acls),
    Api(32, "DescribeConfigs", 1, 4, 4, configs.decode_describe, configs.encode_describe, configs.failed_describe),
    Api(33, "AlterConfigs", 0, 2, 2, configs.decode_alter, configs.encode_alter, configs.failed_alter),
    Api(35, "DescribeLogDirs", 1, 5, 2, admin.decode_log_dirs, admin.encode_log_dirs, admin.failed_log_dirs),
    Api(36, "SaslAuthenticate", 0, 2, 2, security.decode_authenticate, security.encode_authenticate, security.failed),
    Api(37, "CreatePartitions", 0, 3, 2, topics.decode_partitions, topics.encode_partitions, topics.failed_partitions),
    Api(38, "CreateDelegationToken", 1, 3, 2,
        security.decode_create_token, security.encode_create_token, security.failed),
    Api(39, "RenewDelegationToken", 1, 2, 2, security.decode_renew_token, security.encode_token_time, security.failed),
    Api(40, "ExpireDelegationToken", 1, 2, 2,
        security.decode_expire_token, security.encode_token_time, security.failed),
    Api(41, "DescribeDelegationToken", 1, 3, 2,
        security.decode_describe_tokens, security.encode_describe_tokens, security.failed),
    Api(42, "DeleteGroups", 0, 2, 2, group_admin.decode_delete, group_admin.encode_delete, group_admin.failed_delete),
    Api(43, "ElectLeaders", 0, 2, 2, assignments.decode_elect, assignments.encode_elect, assignments.failed_elect),
    Api(44, "IncrementalAlterConfigs", 0, 1, 1, configs.decode_incremental, configs.encode_alter, configs.failed_alter),
    Api(45, "AlterPartitionReassignments", 0, 1, 0,
        assignments.decode_alter, assignments.encode_alter, assignments.failed_alter),
    Api(46, "ListPartitionReassignments", 0, 0, 0,
        assignments.decode_list, assignments.encode_list, assignments.failed_list),
    # no version of it is flexible
    Api(47, "OffsetDelete", 0, 0, 1,
        group_offsets.decode_delete, group_offsets.encode_delete, group_offsets.failed_delete),
    Api(48, "DescribeClientQuotas", 0, 1, 1,
        security.decode_describe_quotas, security.encode_describe_quotas, security.failed_describe_quotas),
    Api(49, "AlterClientQuotas", 0, 1, 1,
        security.decode_alter_quotas, security.encode_alter_quotas, security.failed_alter_quotas),
    Api(50, "DescribeUserScramCredentials", 0, 0, 0,
        security.decode_describe_scram, security.encode_describe_scram, security.failed_describe_scram),
    Api(51, "AlterUserScramCredentials", 0, 0, 0,
        security.decode_alter_scram, security.encode_alter_scram, security.failed_alter_scram),
    Api(55, "DescribeQuorum", 0, 2, 0, controller.decode_quorum, controller.encode_quorum, controller.failed_quorum),
    Api(57, "UpdateFeatures", 0, 2, 0, controller.decode_features, controller.encode_features, controller.failed),
    Api(60, "DescribeCluster", 0, 2, 0, cluster.decode_cluster, cluster.encode_cluster, cluster.failed_cluster),
    Api(61, "DescribeProducers", 0, 0, 0, admin.decode_producers, admin.encode_producers, admin.failed_producers),
    Api(64, "UnregisterBroker", 0, 0, 0, controller.decode_unregister, controller.encode, controller.failed),
    Api(74, "ListConfigResources", 0, 1, 0, configs.decode_list, configs.encode_list, configs.failed_list),
    Api(75, "DescribeTopicPartitions", 0, 0, 0,
        topic_partitions.decode, topic_partitions.encode, topic_partitions.failed),
    Api(80, "AddRaftVoter", 0, 1, 0, controller.decode_add_voter, controller.encode, controller.failed),
    Api(81, "RemoveRaftVoter", 0, 0, 0, controller.decode_remove_voter, controller.encode, controller.failed),
)
# fmt: on
API_BY_KEY = {api.key: api for api in APIS}


class Codec:
    """Decodes calls and encodes their replies, for all connections of a listener. No state of any one of them.

    topic_names: looks up the name of a topic id; called while a request is decoded.
    """

    def __init__(self, topic_names: TopicNames = _knows_no_topic_id, engine: Engine = ENGINE) -> None:
        self._topic_names = topic_names
        self._engine = engine
        self._decoder = engine.decoder_type(self._find_reader, _unserved_call, Call, _refuse, topic_names)
        self._encoder = engine.encoder_type(self._find_writer)
        self._ranges = tuple(
            VersionRange(
                key=api.key,
                first=api.first if api.advertised_from is None else api.advertised_from,
                last=api.last,
            )
            for api in APIS
        )

    def decode(self, frame: memoryview, limit: int = NO_LIMIT) -> Call:
        """Decode the call that a frame (without its length) holds. Records are views of the frame.

        limit: units of work (`codec/bounds.py`) after which LargeMessageError is raised: then decode it in a worker
        thread, without the limit. Without it, a thread that decodes gives up the GIL now and then.

        Raises RefusedError, which is to be answered; UnservedError and MalformedError, after which the connection must
        close. All are ProtocolErrors, with texts that are fit for a log.
        """
        if len(frame) >= _HEADER.size:
            api = API_BY_KEY.get(frame[0] << 8 | frame[1])
            if api is not None and not isinstance(api.request, Struct):
                return self._decode_by_function(api, api.request, frame)
        call: Call = self._decoder.decode(frame, limit)
        return call

    def encode(self, call: Call, response: Any, throttle_ms: int = 0, limit: int = NO_LIMIT) -> list[Sized]:
        """Encode the whole reply frame in order: bytes, and of a fetch the `records` objects as they were given.

        An ErrorResponse becomes what the API has for a request that failed as a whole. limit: as in `decode`.
        """
        api = call.api
        if type(response) is ErrorResponse:
            response = api.failed(call.request, response)
        if not isinstance(api.response, Struct):
            return _encode_by_function(call, api.response, response, throttle_ms)
        return self._encoder.encode(call, response, throttle_ms, limit)

    def api_versions(self, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """Answer ApiVersions."""
        is_refused = request.error is ErrorCode.INVALID_REQUEST
        return ApiVersionsResponse(apis=() if is_refused else self._ranges, error=request.error)

    def _find_reader(self, key: int, version: int) -> Any:
        api = API_BY_KEY.get(key)
        if api is None:
            raise UnservedError(f"API {key} is not served")
        if not api.first <= version <= api.last:
            if api.key == API_VERSIONS_KEY:
                return None
            raise UnservedError(f"{api.name} version {version} is not served: {api.first} to {api.last} are")
        assert isinstance(api.request, Struct)
        flexible = api.is_flexible(version)
        title = f"the {api.name} request, version {version}"
        message = self._engine.reader(api.request, version, flexible=flexible, bound=True, title=title)
        return api, version, message, flexible

    def _find_writer(self, api: Api, version: int) -> Any:
        assert isinstance(api.response, Struct)
        flexible = api.is_flexible(version)
        title = f"the {api.name} response, version {version}"
        message = self._engine.writer(api.response, version, flexible=flexible, bound=True, title=title)
        return message, flexible and api.key != API_VERSIONS_KEY

    def _decode_by_function(
        self, api: Api, decode: Callable[[Reader, int, TopicNames], Any], frame: memoryview
    ) -> Call:
        _, version, correlation_id = _HEADER.unpack_from(frame)
        if not api.first <= version <= api.last:
            if api.key == API_VERSIONS_KEY:
                return _unserved_call(api.key, version, correlation_id)
            raise UnservedError(f"{api.name} version {version} is not served: {api.first} to {api.last} are")
        reader = (FlexibleReader if api.is_flexible(version) else Reader)(frame, _HEADER.size)
        try:
            client_id = reader.classic_string() or ""
            reader.tags()
            request = decode(reader, version, self._topic_names)
        except InvalidRequestError as problem:
            _refuse(Call(api, version, correlation_id, client_id, problem.request), problem)
        except UNREADABLE as problem:
            raise MalformedError(f"no {api.name} request of version {version}: {problem}") from None
        return Call(api, version, correlation_id, client_id, request)


def _refuse(call: Call, problem: InvalidRequestError) -> NoReturn:
    raise RefusedError(call, problem.code, str(problem)) from None


def _unserved_call(_: int, __: int, correlation_id: int) -> Call:
    """Return the call to answer an ApiVersions request of an unknown version with."""
    request = ApiVersionsRequest(error=ErrorCode.UNSUPPORTED_VERSION)
    return Call(API_BY_KEY[API_VERSIONS_KEY], 0, correlation_id, "", request)


def _encode_by_function(
    call: Call, encode: Callable[[Writer, int, Any, Any], None], response: Any, throttle_ms: int
) -> list[Sized]:
    api, version = call.api, call.version
    if not api.is_flexible(version):
        writer = Writer(_REPLY_START.pack(0, call.correlation_id), throttle_ms)
    elif api.key == API_VERSIONS_KEY:
        writer = FlexibleWriter(_REPLY_START.pack(0, call.correlation_id), throttle_ms)
    else:
        writer = FlexibleWriter(_FLEXIBLE_REPLY_START.pack(0, call.correlation_id, 0), throttle_ms)
    encode(writer, version, call.request, response)
    return writer.finish_frame()
