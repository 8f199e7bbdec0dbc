"""The table of Kafka's APIs, and the codec that connections use to decode requests and encode responses.

    request frame    api key int16, version int16, correlation id int32, client id (nullable string), tagged fields in
                     flexible versions; then the body
    response frame   correlation id int32, tagged fields in flexible versions; then the body

Invariants:
1. ApiVersions advertises exactly the table. One exception, as in Kafka (KAFKA-18659): Produce is advertised from
   version 0 but supported from 3, because librdkafka otherwise assumes that the broker does not support compression.
2. The ApiVersions response has the non-flexible header in every version, so that any client can read it. An unsupported
   version of ApiVersions is answered in version 0 with UNSUPPORTED_VERSION and the whole table. For any other
   unsupported API or version, and for malformed requests, `Codec.decode` raises and the connection must be closed,
   since there is no response that the client could parse.
3. A Call holds everything needed to encode its response, at any later time and in any order.
"""

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.kafka.codec.bounds import InvalidRequestError
from warmlog.protocol.kafka.codec.engine import ENGINE, Engine
from warmlog.protocol.kafka.codec.schema import Struct
from warmlog.protocol.kafka.messages import transactions
from warmlog.protocol.kafka.messages.cluster import configs, controller, discovery
from warmlog.protocol.kafka.messages.cluster.discovery import ApiVersionsRequest, ApiVersionsResponse, VersionRange
from warmlog.protocol.kafka.messages.common import TopicNames
from warmlog.protocol.kafka.messages.groups import admin as group_admin
from warmlog.protocol.kafka.messages.groups import classic, consumer, streams, streams_descriptions
from warmlog.protocol.kafka.messages.groups import offsets as group_offsets
from warmlog.protocol.kafka.messages.records import fetch, offsets, produce
from warmlog.protocol.kafka.messages.security import acls, authentication, quotas, scram
from warmlog.protocol.kafka.messages.share import fetch as share_fetch
from warmlog.protocol.kafka.messages.share import groups as share_groups
from warmlog.protocol.kafka.messages.share import offsets as share_offsets
from warmlog.protocol.kafka.messages.share import state as share_state
from warmlog.protocol.kafka.messages.topics import assignments, changes, log_dirs, metadata
from warmlog.protocol.response import ErrorResponse

API_VERSIONS_KEY = 18


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """One row of the table.

    `request` and `response` are tables of fields in their bound form (`codec/schema.py`). Constructing the request may
    raise InvalidRequestError. `failed(request, ErrorResponse)` returns the response for a request that failed as a
    whole.
    """

    key: int
    name: str
    first: int  # supported versions, inclusive
    last: int
    first_flexible: int
    request: Struct
    response: Struct
    failed: Callable[[Any, ErrorResponse], Any]
    advertised_from: int | None = None  # first advertised version, if it is not `first`

    def is_flexible(self, version: int) -> bool:
        """Return whether a version has tagged fields and compact lengths."""
        return version >= self.first_flexible


class Call(msgspec.Struct, frozen=True, gc=False):
    """A request, and everything needed to encode its response. `client_id` is empty if the client sent null."""

    api: Api
    version: int
    correlation_id: int
    client_id: str
    request: Any


class UnservedError(ProtocolError):
    """The API or its version is not supported. The connection must be closed."""

    code = ErrorCode.UNSUPPORTED_VERSION


class RefusedError(ProtocolError):
    """A well-formed request is invalid: respond to `call` with `response` and keep the connection."""

    def __init__(self, call: Call, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.call = call
        self.code = code

    @property
    def response(self) -> ErrorResponse:
        """The error, which `Codec.encode` converts to the response of the API."""
        return ErrorResponse(error=self.code, message=str(self))


def _no_topic_names(_: bytes) -> None:
    return None


# fmt: off
APIS = (
    Api(0, "Produce", 3, 13, 9, produce.REQUEST, produce.RESPONSE, produce.failed, advertised_from=0),
    Api(1, "Fetch", 4, 18, 12, fetch.REQUEST, fetch.RESPONSE, fetch.failed),
    Api(2, "ListOffsets", 1, 11, 6, offsets.LIST_REQUEST, offsets.LIST_RESPONSE, offsets.failed_list),
    Api(3, "Metadata", 0, 13, 9, metadata.REQUEST, metadata.RESPONSE, metadata.failed),
    Api(8, "OffsetCommit", 2, 10, 8,
        group_offsets.COMMIT_REQUEST, group_offsets.COMMIT_RESPONSE, group_offsets.failed_commit),
    Api(9, "OffsetFetch", 1, 10, 6,
        group_offsets.FETCH_REQUEST, group_offsets.FETCH_RESPONSE, group_offsets.failed_fetch),
    Api(10, "FindCoordinator", 0, 6, 3, classic.FIND_REQUEST, classic.FIND_RESPONSE, classic.failed_find),
    Api(11, "JoinGroup", 0, 9, 6, classic.JOIN_REQUEST, classic.JOIN_RESPONSE, classic.failed_join),
    Api(12, "Heartbeat", 0, 4, 4, classic.HEARTBEAT_REQUEST, classic.HEARTBEAT_RESPONSE, classic.failed_heartbeat),
    Api(13, "LeaveGroup", 0, 5, 4, classic.LEAVE_REQUEST, classic.LEAVE_RESPONSE, classic.failed_leave),
    Api(14, "SyncGroup", 0, 5, 4, classic.SYNC_REQUEST, classic.SYNC_RESPONSE, classic.failed_sync),
    Api(15, "DescribeGroups", 0, 6, 5,
        group_admin.DESCRIBE_REQUEST, group_admin.DESCRIBE_RESPONSE, group_admin.failed_describe),
    Api(16, "ListGroups", 0, 5, 3, group_admin.LIST_REQUEST, group_admin.LIST_RESPONSE, group_admin.failed_list),
    # no version is flexible
    Api(17, "SaslHandshake", 0, 1, 2,
        authentication.HANDSHAKE_REQUEST, authentication.HANDSHAKE_RESPONSE, authentication.failed_handshake),
    Api(18, "ApiVersions", 0, 5, 3, discovery.VERSIONS_REQUEST, discovery.VERSIONS_RESPONSE, discovery.failed_versions),
    Api(19, "CreateTopics", 2, 7, 5, changes.CREATE_REQUEST, changes.CREATE_RESPONSE, changes.failed_create),
    Api(20, "DeleteTopics", 1, 6, 4, changes.DELETE_REQUEST, changes.DELETE_RESPONSE, changes.failed_delete),
    Api(21, "DeleteRecords", 0, 2, 2, offsets.DELETE_REQUEST, offsets.DELETE_RESPONSE, offsets.failed_delete),
    # version 6 is still unstable in Kafka 4.4
    Api(22, "InitProducerId", 0, 5, 2,
        transactions.PRODUCER_REQUEST, transactions.PRODUCER_RESPONSE, transactions.failed_producer),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4, offsets.EPOCH_REQUEST, offsets.EPOCH_RESPONSE, offsets.failed_epoch),
    Api(24, "AddPartitionsToTxn", 0, 5, 3,
        transactions.ADD_REQUEST, transactions.ADD_RESPONSE, transactions.failed_add),
    Api(25, "AddOffsetsToTxn", 0, 4, 3,
        transactions.ADD_OFFSETS_REQUEST, transactions.ADD_OFFSETS_RESPONSE, transactions.failed_add_offsets),
    Api(26, "EndTxn", 0, 5, 3, transactions.END_REQUEST, transactions.END_RESPONSE, transactions.failed_end),
    Api(27, "WriteTxnMarkers", 1, 2, 1,
        transactions.MARKERS_REQUEST, transactions.MARKERS_RESPONSE, transactions.failed_markers),
    Api(28, "TxnOffsetCommit", 0, 6, 3,
        transactions.OFFSETS_REQUEST, transactions.OFFSETS_RESPONSE, transactions.failed_offsets),
    Api(29, "DescribeAcls", 1, 3, 2,
        acls.DESCRIBE_REQUEST, acls.DESCRIBE_RESPONSE, acls.failed_describe),
    Api(30, "CreateAcls", 1, 3, 2,
        acls.CREATE_REQUEST, acls.CREATE_RESPONSE, acls.failed_create),
    Api(31, "DeleteAcls", 1, 3, 2,
        acls.DELETE_REQUEST, acls.DELETE_RESPONSE, acls.failed_delete),
    Api(32, "DescribeConfigs", 1, 4, 4, configs.DESCRIBE_REQUEST, configs.DESCRIBE_RESPONSE, configs.failed_describe),
    Api(33, "AlterConfigs", 0, 2, 2, configs.ALTER_REQUEST, configs.ALTER_RESPONSE, configs.failed_alter),
    Api(34, "AlterReplicaLogDirs", 1, 2, 2,
        log_dirs.ALTER_DIRS_REQUEST, log_dirs.ALTER_DIRS_RESPONSE, log_dirs.failed_alter_dirs),
    Api(35, "DescribeLogDirs", 1, 5, 2,
        log_dirs.LOG_DIRS_REQUEST, log_dirs.LOG_DIRS_RESPONSE, log_dirs.failed_log_dirs),
    Api(36, "SaslAuthenticate", 0, 2, 2,
        authentication.AUTHENTICATE_REQUEST, authentication.AUTHENTICATE_RESPONSE, authentication.failed_authenticate),
    Api(37, "CreatePartitions", 0, 3, 2,
        changes.PARTITIONS_REQUEST, changes.PARTITIONS_RESPONSE, changes.failed_partitions),
    Api(38, "CreateDelegationToken", 1, 3, 2,
        authentication.CREATE_TOKEN_REQUEST, authentication.CREATE_TOKEN_RESPONSE, authentication.failed_create_token),
    Api(39, "RenewDelegationToken", 1, 2, 2,
        authentication.RENEW_TOKEN_REQUEST, authentication.TOKEN_TIME_RESPONSE, authentication.failed_token_expiry),
    Api(40, "ExpireDelegationToken", 1, 2, 2,
        authentication.EXPIRE_TOKEN_REQUEST, authentication.TOKEN_TIME_RESPONSE, authentication.failed_token_expiry),
    Api(41, "DescribeDelegationToken", 1, 3, 2,
        authentication.DESCRIBE_TOKENS_REQUEST, authentication.DESCRIBE_TOKENS_RESPONSE,
        authentication.failed_describe_tokens),
    Api(42, "DeleteGroups", 0, 3, 2,
        group_admin.DELETE_REQUEST, group_admin.DELETE_RESPONSE, group_admin.failed_delete),
    Api(43, "ElectLeaders", 0, 2, 2, assignments.ELECT_REQUEST, assignments.ELECT_RESPONSE, assignments.failed_elect),
    Api(44, "IncrementalAlterConfigs", 0, 1, 1,
        configs.INCREMENTAL_REQUEST, configs.ALTER_RESPONSE, configs.failed_alter),
    Api(45, "AlterPartitionReassignments", 0, 1, 0,
        assignments.ALTER_REQUEST, assignments.ALTER_RESPONSE, assignments.failed_alter),
    Api(46, "ListPartitionReassignments", 0, 0, 0,
        assignments.LIST_REQUEST, assignments.LIST_RESPONSE, assignments.failed_list),
    # no version is flexible
    Api(47, "OffsetDelete", 0, 0, 1,
        group_offsets.DELETE_REQUEST, group_offsets.DELETE_RESPONSE, group_offsets.failed_delete),
    Api(48, "DescribeClientQuotas", 0, 1, 1,
        quotas.DESCRIBE_REQUEST, quotas.DESCRIBE_RESPONSE, quotas.failed_describe),
    Api(49, "AlterClientQuotas", 0, 1, 1,
        quotas.ALTER_REQUEST, quotas.ALTER_RESPONSE, quotas.failed_alter),
    Api(50, "DescribeUserScramCredentials", 0, 0, 0,
        scram.DESCRIBE_SCRAM_REQUEST, scram.DESCRIBE_SCRAM_RESPONSE, scram.failed_describe_scram),
    Api(51, "AlterUserScramCredentials", 0, 0, 0,
        scram.ALTER_SCRAM_REQUEST, scram.ALTER_SCRAM_RESPONSE, scram.failed_alter_scram),
    Api(55, "DescribeQuorum", 0, 2, 0, controller.QUORUM_REQUEST, controller.QUORUM_RESPONSE, controller.failed_quorum),
    Api(57, "UpdateFeatures", 0, 2, 0, controller.FEATURES_REQUEST, controller.FEATURES_RESPONSE, controller.failed),
    Api(60, "DescribeCluster", 0, 2, 0,
        discovery.CLUSTER_REQUEST, discovery.CLUSTER_RESPONSE, discovery.failed_cluster),
    Api(61, "DescribeProducers", 0, 0, 0,
        transactions.PRODUCERS_REQUEST, transactions.PRODUCERS_RESPONSE, transactions.failed_producers),
    Api(64, "UnregisterBroker", 0, 0, 0, controller.UNREGISTER_REQUEST, controller.RESPONSE, controller.failed),
    Api(65, "DescribeTransactions", 0, 0, 0,
        transactions.DESCRIBE_REQUEST, transactions.DESCRIBE_RESPONSE, transactions.failed_describe),
    Api(66, "ListTransactions", 0, 2, 0,
        transactions.LIST_REQUEST, transactions.LIST_RESPONSE, transactions.failed_list),
    Api(68, "ConsumerGroupHeartbeat", 0, 1, 0,
        consumer.HEARTBEAT_REQUEST, consumer.HEARTBEAT_RESPONSE, consumer.failed_heartbeat),
    Api(69, "ConsumerGroupDescribe", 0, 1, 0,
        consumer.DESCRIBE_REQUEST, consumer.DESCRIBE_RESPONSE, consumer.failed_describe),
    Api(74, "ListConfigResources", 0, 1, 0, configs.LIST_REQUEST, configs.LIST_RESPONSE, configs.failed_list),
    Api(75, "DescribeTopicPartitions", 0, 0, 0, metadata.PAGE_REQUEST, metadata.PAGE_RESPONSE, metadata.failed_page),
    Api(76, "ShareGroupHeartbeat", 1, 1, 0,
        share_groups.HEARTBEAT_REQUEST, share_groups.HEARTBEAT_RESPONSE, share_groups.failed_heartbeat),
    Api(77, "ShareGroupDescribe", 1, 1, 0,
        share_groups.DESCRIBE_REQUEST, share_groups.DESCRIBE_RESPONSE, share_groups.failed_describe),
    Api(78, "ShareFetch", 1, 2, 0, share_fetch.FETCH_REQUEST, share_fetch.FETCH_RESPONSE, share_fetch.failed_fetch),
    Api(79, "ShareAcknowledge", 1, 2, 0,
        share_fetch.ACKNOWLEDGE_REQUEST, share_fetch.ACKNOWLEDGE_RESPONSE, share_fetch.failed_acknowledge),
    Api(80, "AddRaftVoter", 0, 1, 0, controller.ADD_VOTER_REQUEST, controller.RESPONSE, controller.failed),
    Api(81, "RemoveRaftVoter", 0, 0, 0, controller.REMOVE_VOTER_REQUEST, controller.RESPONSE, controller.failed),
    Api(83, "InitializeShareGroupState", 0, 0, 0,
        share_state.INITIALIZE_REQUEST, share_state.INITIALIZE_RESPONSE, share_state.failed_initialize),
    Api(84, "ReadShareGroupState", 0, 0, 0,
        share_state.READ_REQUEST, share_state.READ_RESPONSE, share_state.failed_read),
    Api(85, "WriteShareGroupState", 0, 1, 0,
        share_state.WRITE_REQUEST, share_state.WRITE_RESPONSE, share_state.failed_write),
    Api(86, "DeleteShareGroupState", 0, 0, 0,
        share_state.DELETE_REQUEST, share_state.DELETE_RESPONSE, share_state.failed_delete),
    Api(87, "ReadShareGroupStateSummary", 0, 1, 0,
        share_state.SUMMARY_REQUEST, share_state.SUMMARY_RESPONSE, share_state.failed_summary),
    Api(88, "StreamsGroupHeartbeat", 0, 1, 0,
        streams.HEARTBEAT_REQUEST, streams.HEARTBEAT_RESPONSE, streams.failed_heartbeat),
    Api(89, "StreamsGroupDescribe", 0, 1, 0,
        streams_descriptions.DESCRIBE_REQUEST, streams_descriptions.DESCRIBE_RESPONSE,
        streams_descriptions.failed_describe),
    Api(90, "DescribeShareGroupOffsets", 0, 1, 0,
        share_offsets.DESCRIBE_REQUEST, share_offsets.DESCRIBE_RESPONSE, share_offsets.failed_describe),
    Api(91, "AlterShareGroupOffsets", 0, 0, 0,
        share_offsets.ALTER_REQUEST, share_offsets.ALTER_RESPONSE, share_offsets.failed_alter),
    Api(92, "DeleteShareGroupOffsets", 0, 0, 0,
        share_offsets.DELETE_REQUEST, share_offsets.DELETE_RESPONSE, share_offsets.failed_delete),
    Api(93, "StreamsGroupTopologyDescriptionUpdate", 0, 0, 0,
        streams_descriptions.UPDATE_REQUEST, streams_descriptions.UPDATE_RESPONSE, streams_descriptions.failed_update),
    Api(94, "UnregisterController", 0, 0, 0,
        controller.UNREGISTER_CONTROLLER_REQUEST, controller.RESPONSE, controller.failed),
)
# fmt: on
API_BY_KEY = {api.key: api for api in APIS}


class Codec:
    """Decodes requests and encodes responses. It has no state per connection, so a listener's connections share one.

    decode(frame, limit) -> Call: decode the request of a frame (without its length). Records are views of the frame.
    Raises LargeMessageError after `limit` units of work (`codec/bounds.py`): then decode it in a worker thread without
    a limit, where decoding releases the GIL regularly. Raises RefusedError, which must be answered; UnservedError and
    MalformedError, after which the connection must be closed. All of them are ProtocolErrors, whose texts can be
    logged.

    encode(call, response, throttle_ms, limit, max_bytes) -> list[Sized]: encode the response frame as a list of bytes
    and, for a fetch, the unmodified `records` objects, in order. An ErrorResponse is converted to the response of the
    API. Raises ReplyTooLargeError if the frame without the records takes more than `max_bytes`.

    Both are attributes, not methods: no Python code of this class runs for a request.

    `topic_names` resolves topic ids while requests are decoded.
    """

    decode: Callable[..., Call]
    encode: Callable[..., list[Sized]]

    def __init__(self, topic_names: TopicNames = _no_topic_names, engine: Engine = ENGINE) -> None:
        self._engine = engine
        self.decode = engine.decoder_type(self._find_reader, _unserved_call, Call, _refuse, topic_names).decode
        self.encode = engine.encoder_type(self._find_writer, ErrorResponse).encode
        self._ranges = tuple(
            VersionRange(
                key=api.key,
                first=api.first if api.advertised_from is None else api.advertised_from,
                last=api.last,
            )
            for api in APIS
        )

    def api_versions(self, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """Return the response to ApiVersions."""
        is_refused = request.error is ErrorCode.INVALID_REQUEST
        return ApiVersionsResponse(apis=() if is_refused else self._ranges, error=request.error)

    def _find_reader(self, key: int, version: int) -> Any:
        api = API_BY_KEY.get(key)
        if api is None:
            raise UnservedError(f"API {key} is not supported")
        if not api.first <= version <= api.last:
            if api.key == API_VERSIONS_KEY:
                return None
            raise UnservedError(f"{api.name} version {version} is not supported; use {api.first} to {api.last}")
        flexible = api.is_flexible(version)
        title = f"the {api.name} request, version {version}"
        message = self._engine.reader(api.request, version, flexible=flexible, bound=True, title=title)
        return api, version, message, flexible

    def _find_writer(self, api: Api, version: int) -> Any:
        flexible = api.is_flexible(version)
        title = f"the {api.name} response, version {version}"
        message = self._engine.writer(api.response, version, flexible=flexible, bound=True, title=title)
        return message, flexible and api.key != API_VERSIONS_KEY


def _refuse(call: Call, problem: InvalidRequestError) -> NoReturn:
    raise RefusedError(call, problem.code, str(problem)) from None


def _unserved_call(_: int, __: int, correlation_id: int) -> Call:
    """Return the call for an ApiVersions request of an unsupported version."""
    request = ApiVersionsRequest(error=ErrorCode.UNSUPPORTED_VERSION)
    return Call(API_BY_KEY[API_VERSIONS_KEY], 0, correlation_id, "", request)
