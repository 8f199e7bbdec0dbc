from contextlib import suppress
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.kafka.far_side import ALL, GREETING, exchange, greeted, only, received, response_frame
from tests.protocol.kafka.messages import flexible
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CoordinatorLocation,
    FetchedOffset,
    FetchedOffsets,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionEntry,
)
from warmlog.protocol.kafka.api import Codec
from warmlog.protocol.kafka.codec.bounds import LargeMessageError
from warmlog.protocol.kafka.messages.cluster.configs import (
    ConfigEntry,
    ConfigQuery,
    ConfigSource,
    ConfigType,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfigs,
)
from warmlog.protocol.kafka.messages.cluster.discovery import ApiVersionsResponse, VersionRange
from warmlog.protocol.kafka.messages.common import topic_id_text
from warmlog.protocol.kafka.messages.groups.offsets import MemberOffsetFetchGroup
from warmlog.protocol.kafka.messages.records.fetch import (
    CONSUMER,
    DivergedPartition,
    FetchingReplica,
    ForgottenPartitions,
    KafkaFetchedPartition,
    KafkaFetchPartition,
    KafkaFetchRequest,
    KafkaFetchResponse,
)
from warmlog.protocol.kafka.messages.records.offsets import (
    EpochEnd,
    EpochQuery,
    KafkaListOffsetsRequest,
    KafkaOffsetQuery,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from warmlog.protocol.kafka.messages.records.produce import IdentifiedRecords, KafkaProduceRequest
from warmlog.protocol.kafka.messages.topics.metadata import KafkaMetadataRequest
from warmlog.protocol.kafka.peer import PeerApi, PeerProtocol, PeerProtocolError, PeerVersionError
from warmlog.protocol.kafka.peer_apis import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    FETCH,
    FIND_COORDINATOR,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
)
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.request import MAX_TIMESTAMP
from warmlog.protocol.response import (
    BrokerMetadata,
    FetchedPartition,
    ListedOffset,
    ListOffsetsResponse,
    MetadataResponse,
    PartitionMetadata,
    ProducedPartition,
    ProduceResponse,
    RecordError,
    TopicMetadata,
)

ORDERS = b"o" * 16
CODEC = Codec(topic_names={ORDERS: "orders"}.get)
REFUSED = ErrorCode.NOT_LEADER_OR_FOLLOWER

METADATA_RESPONSE = MetadataResponse(
    cluster_id="source",
    controller=2,
    brokers=(BrokerMetadata(node_id=2, host="b2", port=9092),),
    topics=(
        TopicMetadata(
            name="orders",
            topic_id=topic_id_text(ORDERS),
            partitions=(
                PartitionMetadata(partition=0, leader=2, leader_epoch=7, replicas=(2, 3), in_sync=(2,)),
                PartitionMetadata(
                    partition=1, leader=-1, leader_epoch=3, replicas=(3,), in_sync=(), error=ErrorCode(5)
                ),
            ),
        ),
        TopicMetadata(name="gone", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ),
)
CONFIGS_RESPONSE = DescribeConfigsResponse(
    resources=(
        DescribedConfigs(
            resource_type=2,
            name="orders",
            configs=(
                ConfigEntry(name="cleanup.policy", value="compact", source=ConfigSource.TOPIC, type=ConfigType.LIST),
            ),
        ),
        DescribedConfigs(resource_type=2, name="gone", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message="none"),
    )
)
OFFSETS_RESPONSE = OffsetFetchResponse(
    groups=(
        FetchedOffsets(
            group="a", partitions=(FetchedOffset(topic="orders", partition=0, offset=5, leader_epoch=2, metadata="m"),)
        ),
        FetchedOffsets(group="b", error=ErrorCode.NOT_COORDINATOR),
    )
)
RECORDS = memoryview(build_batch([(1, b"k", b"v", ())]))
# Exchanges whose values are the same on both sides.
EXCHANGES: list[tuple[PeerApi[Any, Any], Any, Any]] = [
    (METADATA, KafkaMetadataRequest(topics=("orders", "gone"), topic_ids=(bytes(16),) * 2), METADATA_RESPONSE),
    (METADATA, KafkaMetadataRequest(topics=None), METADATA_RESPONSE),
    (METADATA, KafkaMetadataRequest(topics=("orders",), topic_ids=(ORDERS,)), METADATA_RESPONSE),
    (
        PRODUCE,
        KafkaProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=5,
            partitions=tuple([IdentifiedRecords(topic="orders", partition=each, records=RECORDS) for each in (0, 1)]),
        ),
        ProduceResponse(
            partitions=(
                ProducedPartition(topic="orders", partition=0, base_offset=7, log_start_offset=1, record_errors=()),
                ProducedPartition(
                    topic="orders",
                    partition=1,
                    error=ErrorCode.INVALID_RECORD,
                    message="why",
                    record_errors=(RecordError(index=0, message="no"),),
                ),
            )
        ),
    ),
    (
        LIST_OFFSETS,
        KafkaListOffsetsRequest(
            partitions=(
                KafkaOffsetQuery(topic="orders", partition=0, timestamp=-1, current_leader_epoch=4),
                KafkaOffsetQuery(topic="orders", partition=1, timestamp=-2),
                KafkaOffsetQuery(topic="others", partition=0, timestamp=1_700_000_000_000),
            )
        ),
        ListOffsetsResponse(
            partitions=(
                ListedOffset(topic="orders", partition=0, offset=12, leader_epoch=4),
                ListedOffset(topic="orders", partition=1, error=REFUSED),
                ListedOffset(topic="others", partition=0, timestamp=1_700_000_000_001, offset=3, leader_epoch=0),
            )
        ),
    ),
    (
        OFFSET_FOR_LEADER_EPOCH,
        OffsetForLeaderEpochRequest(
            partitions=(
                EpochQuery(topic="orders", partition=0, leader_epoch=3, current_leader_epoch=4),
                EpochQuery(topic="orders", partition=1, leader_epoch=2),
            )
        ),
        OffsetForLeaderEpochResponse(
            partitions=(
                EpochEnd(topic="orders", partition=0, leader_epoch=3, end_offset=90),
                EpochEnd(topic="orders", partition=1, error=ErrorCode.FENCED_LEADER_EPOCH),
            )
        ),
    ),
    (
        DESCRIBE_CONFIGS,
        DescribeConfigsRequest(
            resources=(
                ConfigQuery(resource_type=2, name="orders"),
                ConfigQuery(resource_type=2, name="gone", keys=("cleanup.policy",)),
            )
        ),
        CONFIGS_RESPONSE,
    ),
    (
        FIND_COORDINATOR,
        FindCoordinatorRequest(keys=("a", "b")),
        FindCoordinatorResponse(
            coordinators=(
                CoordinatorLocation(key="a", node_id=2, host="b2", port=9092),
                CoordinatorLocation(key="b", error=ErrorCode.COORDINATOR_NOT_AVAILABLE, message="starting"),
            )
        ),
    ),
    (
        LIST_GROUPS,
        ListGroupsRequest(states=("Stable",)),
        ListGroupsResponse(groups=(ListedGroup(group="a", protocol_type="consumer", state="Stable"),)),
    ),
    (
        OFFSET_FETCH,
        OffsetFetchRequest(
            groups=(
                MemberOffsetFetchGroup(group="a", partitions=(PartitionEntry(topic="orders", partition=0),)),
                MemberOffsetFetchGroup(group="b", partitions=(PartitionEntry(topic="orders", partition=0),)),
            ),
            require_stable=True,
        ),
        OFFSETS_RESPONSE,
    ),
]
VERSIONS = [
    pytest.param(api, version, request, response, id=f"{api.api.name}-{version}-{number}")
    for number, (api, request, response) in enumerate(EXCHANGES)
    for version in range(max(api.first, api.span(request)[0]), api.last + 1)
]


def same(one: Any, other: Any) -> bool:
    """Compare values of which one may have more fields than the other."""
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if not hasattr(one, "__struct_fields__"):
        return bool(one == other)
    return all(
        same(getattr(one, name), getattr(other, name))
        for name in one.__struct_fields__
        if name in other.__struct_fields__ and name != "topic_id"
    )


def fetch_request(*, by_id: bool, **others: Any) -> KafkaFetchRequest:
    name, topic_id = ("", ORDERS) if by_id else ("orders", bytes(16))
    return KafkaFetchRequest(
        partitions=tuple(
            KafkaFetchPartition(
                topic=name,
                topic_id=topic_id,
                partition=index,
                offset=100 + index,
                max_bytes=5000,
                current_leader_epoch=7,
                last_fetched_epoch=6,
            )
            for index in range(2)
        ),
        uses_topic_ids=by_id,
        **others,
    )


@pytest.mark.parametrize(("api", "version", "request_", "response"), VERSIONS)
def test_both_sides_see_the_same_values(api: PeerApi[Any, Any], version: int, request_: Any, response: Any) -> None:
    asked, answered = exchange(only(api, version), api, request_, response, CODEC)
    if request_ == EXCHANGES[2][1]:
        assert asked.topics == ("orders",)
    else:
        assert same(request_, asked)
    assert same(response, answered)


def test_metadata_has_topic_ids() -> None:
    _, answered = exchange(greeted(), METADATA, KafkaMetadataRequest(), METADATA_RESPONSE, CODEC)
    assert [topic.topic_id for topic in answered.topics] == [topic_id_text(ORDERS), None]


@pytest.mark.parametrize("version", range(12, 19))
def test_a_fetch_keeps_its_session_epochs_and_records(version: int) -> None:
    by_id = version >= 13
    request = fetch_request(
        by_id=by_id,
        session_id=5,
        session_epoch=9,
        max_wait_ms=70,
        min_bytes=2,
        max_bytes=9000,
        forgotten=(
            ForgottenPartitions(
                topic="" if by_id else "orders", topic_id=ORDERS if by_id else bytes(16), partitions=(4, 8)
            ),
        ),
    )
    response = KafkaFetchResponse(
        session_id=5,
        partitions=(
            FetchedPartition(
                topic="orders",
                partition=0,
                high_watermark=120,
                last_stable_offset=110,
                log_start_offset=3,
                records=b"r" * 4000,
            ),
            DivergedPartition(topic="orders", partition=1, high_watermark=50, epoch=5, end_offset=42),
        ),
    )
    asked, answered = exchange(only(FETCH, version), FETCH, request, response, CODEC)
    assert asked.session_id == 5
    assert asked.session_epoch == 9
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes, asked.replica) == (70, 2, 9000, CONSUMER)
    assert [(one.topic, one.offset, one.max_bytes) for one in asked.partitions] == [
        ("orders", 100, 5000),
        ("orders", 101, 5000),
    ]
    assert {(one.current_leader_epoch, one.last_fetched_epoch) for one in asked.partitions} == {(7, 6)}
    assert [one.partitions for one in asked.forgotten] == [(4, 8)]
    first, second = answered.received
    assert (first.topic, first.topic_id) == (("", ORDERS) if by_id else ("orders", bytes(16)))
    assert (first.high_watermark, first.last_stable_offset, first.log_start_offset) == (120, 110, 3)
    assert first.records == b"r" * 4000
    assert type(first) is KafkaFetchedPartition
    assert isinstance(second, DivergedPartition)
    assert (second.epoch, second.end_offset, len(second.records)) == (5, 42, 0)


@pytest.mark.parametrize("version", [12, 18])
@pytest.mark.parametrize("replica", [CONSUMER, FetchingReplica(3, 77)])
def test_a_fetch_names_the_replica_and_its_epoch(version: int, replica: FetchingReplica) -> None:
    request = fetch_request(by_id=version >= 13, replica=replica)
    _, frame = only(FETCH, version).send(FETCH, request)
    found = received(frame, CODEC).request.replica
    assert found == (replica if version >= 15 else FetchingReplica(replica.broker))


def test_fetched_records_are_views_of_the_frame() -> None:
    peer = greeted()
    _, frame = peer.send(FETCH, fetch_request(by_id=True))
    partition = FetchedPartition(topic="orders", partition=0, records=b"r" * 100)
    answer = response_frame(received(frame, CODEC), KafkaFetchResponse(partitions=(partition, partition)), CODEC)
    found = peer.decode(peer.match(answer), answer).received
    assert all(isinstance(one, KafkaFetchedPartition) and one.records.obj is answer.obj for one in found)


def test_the_newest_common_version_is_used() -> None:
    for last, expected in ((12, 12), (15, 15), (30, 18)):
        peer = greeted(VersionRange(key=1, first=0, last=last))
        assert peer.version_of(FETCH, fetch_request(by_id=last > 12)) == expected


def test_a_fetch_by_name_stays_below_the_versions_with_ids() -> None:
    assert greeted().version_of(FETCH, fetch_request(by_id=False)) == 12
    peer = greeted(VersionRange(key=1, first=4, last=12))
    assert not peer.supports(FETCH, 13)
    with pytest.raises(PeerVersionError, match="Fetch versions 4 to 12; one from 13 to 18 is needed"):
        peer.send(FETCH, fetch_request(by_id=True))
    assert peer.unanswered == 0


def test_a_special_timestamp_needs_a_version_that_has_it() -> None:
    query = KafkaOffsetQuery(topic="orders", partition=0, timestamp=MAX_TIMESTAMP)
    with pytest.raises(PeerVersionError, match="ListOffsets versions 1 to 6; one from 7 to 11"):
        greeted(VersionRange(key=2, first=1, last=6)).send(LIST_OFFSETS, KafkaListOffsetsRequest(partitions=(query,)))


def test_an_api_that_the_peer_lacks_is_named() -> None:
    peer = greeted(base=())
    with pytest.raises(PeerVersionError, match="does not support ListGroups"):
        peer.send(LIST_GROUPS, ListGroupsRequest())


def test_nothing_is_sent_before_the_greeting() -> None:
    with pytest.raises(PeerVersionError, match="not known yet"):
        PeerProtocol("test").send(LIST_GROUPS, ListGroupsRequest())


def test_a_peer_of_older_versions_is_greeted_twice() -> None:
    peer = PeerProtocol("test")
    number, _ = peer.send(API_VERSIONS, GREETING)
    answer = memoryview(pack(">ihihhh", number, 35, 1, 18, 0, 3))
    assert peer.decode(peer.match(answer), answer).error is ErrorCode.UNSUPPORTED_VERSION
    assert not peer.is_ready
    _, frame = peer.send(API_VERSIONS, GREETING)
    call = received(frame)
    assert call.version == 3
    answer = response_frame(call, ApiVersionsResponse(apis=ALL))
    peer.decode(peer.match(answer), answer)
    assert peer.is_ready


def test_a_peer_that_names_no_range_is_greeted_in_version_0() -> None:
    peer = PeerProtocol("test")
    number, _ = peer.send(API_VERSIONS, GREETING)
    answer = memoryview(pack(">ihi", number, 35, 0))
    peer.decode(peer.match(answer), answer)
    assert received(peer.send(API_VERSIONS, GREETING)[1]).version == 0


def test_a_peer_that_refuses_every_greeting_is_given_up() -> None:
    peer = PeerProtocol("test")
    for _ in range(2):
        number, _ = peer.send(API_VERSIONS, GREETING)
        answer = memoryview(pack(">ihihhh", number, 35, 1, 18, 0, 3))
        peer.decode(peer.match(answer), answer)
    with pytest.raises(PeerVersionError, match="no version of ApiVersions"):
        peer.send(API_VERSIONS, GREETING)


def test_responses_match_the_oldest_request() -> None:
    peer = greeted()
    numbers = [peer.send(LIST_GROUPS, ListGroupsRequest())[0] for _ in range(3)]
    assert [peer.match(memoryview(pack(">i", number))).correlation_id for number in numbers] == numbers
    assert peer.unanswered == 0


@pytest.mark.parametrize("wrong", [-1, 1, 5])
def test_another_correlation_id_is_an_error(wrong: int) -> None:
    peer = greeted()
    number, _ = peer.send(LIST_GROUPS, ListGroupsRequest())
    with pytest.raises(PeerProtocolError, match=f"id {number + wrong} instead of {number}"):
        peer.match(memoryview(pack(">i", number + wrong)))


def test_a_response_without_a_request_is_an_error() -> None:
    with pytest.raises(PeerProtocolError, match="no request is open"):
        greeted().match(memoryview(pack(">i", 1)))
    with pytest.raises(PeerProtocolError, match="3 bytes"):
        greeted().match(memoryview(b"abc"))


def test_tagged_fields_in_the_header_are_skipped() -> None:
    peer = greeted()
    _, frame = peer.send(LIST_GROUPS, ListGroupsRequest())
    answer = bytes(response_frame(received(frame), ListGroupsResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)))
    tagged = memoryview(answer[:4] + b"\x01\x07\x02xy" + answer[5:])
    assert peer.decode(peer.match(tagged), tagged).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_an_unknown_error_code_is_an_unknown_error() -> None:
    peer = greeted()
    number, _ = peer.send(LIST_GROUPS, ListGroupsRequest())
    answer = memoryview(pack(">ibihbb", number, 0, 0, 31_000, 1, 0))
    assert peer.decode(peer.match(answer), answer).error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_large_response_is_left_for_a_thread() -> None:
    peer = greeted()
    _, frame = peer.send(LIST_GROUPS, ListGroupsRequest())
    groups = tuple(ListedGroup(group=f"g{number}", protocol_type="", state="Empty") for number in range(100))
    answer = response_frame(received(frame), ListGroupsResponse(groups=groups))
    sent = peer.match(answer)
    with pytest.raises(LargeMessageError):
        peer.decode(sent, answer, limit=50)
    assert len(peer.decode(sent, answer).groups) == 100


@given(data=st.binary(max_size=200), number=st.integers(0, len(EXCHANGES)))
def test_garbage_is_a_protocol_error_or_a_response(data: bytes, number: int) -> None:
    api, request, _ = (*EXCHANGES, (FETCH, fetch_request(by_id=True), None))[number]
    peer = greeted()
    correlation_id, _ = peer.send(api, request)
    answer = memoryview(pack(">i", correlation_id) + data)
    with suppress(PeerProtocolError):
        peer.decode(peer.match(answer), answer)


@given(cut=st.integers(0, 10_000), number=st.integers(0, len(EXCHANGES) - 1))
def test_a_response_cut_short_is_a_protocol_error(cut: int, number: int) -> None:
    api, request, response = EXCHANGES[number]
    peer = greeted()
    _, frame = peer.send(api, request)
    call = received(frame, CODEC)
    answer = response_frame(call, response, CODEC)
    size = 4 + cut % (len(answer) - 4)
    sent = peer.match(answer[:size])
    assert flexible(api.api, sent.version)
    with pytest.raises(PeerProtocolError, match=api.api.name):
        peer.decode(sent, answer[:size])
