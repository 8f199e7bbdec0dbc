"""Kafka's messages, decoded to and encoded from the neutral values, API by API."""

import pytest
from msgspec.structs import replace

from tests.protocol.kafka.messages import parsed, reply_body
from tests.protocol.kafka.values.round_trip import ID_A, ID_B, decode_request, encode_response, expected, versions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.api import API_BY_KEY, Call, Codec, RefusedError
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.codec.writer import topic_id_bytes
from warmlog.protocol.kafka.messages.cluster.configs import ConfigEntry, ConfigSource
from warmlog.protocol.kafka.messages.cluster.discovery import DescribeClusterRequest, DescribeClusterResponse
from warmlog.protocol.kafka.messages.common import topic_id_text
from warmlog.protocol.kafka.messages.records.offsets import (
    DeletedRecords,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    EpochEnd,
    EpochQuery,
    KafkaListOffsetsRequest,
    KafkaOffsetQuery,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    RecordsToDelete,
)
from warmlog.protocol.kafka.messages.topics.changes import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    KafkaCreatedTopic,
    KafkaCreateTopicsRequest,
    KafkaDeleteTopicsRequest,
    KafkaNewTopic,
    NewPartitions,
)
from warmlog.protocol.kafka.messages.topics.metadata import KafkaMetadataRequest
from warmlog.protocol.request import Isolation
from warmlog.protocol.response import (
    BrokerMetadata,
    CreatedTopic,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    ListedOffset,
    ListOffsetsResponse,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
    TopicResult,
)
from warmlog.protocol.transactions import InitProducerIdRequest, InitProducerIdResponse

LIST_OFFSETS, METADATA, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 2, 3, 19, 20, 21
INIT_PRODUCER_ID, LEADER_EPOCH, CREATE_PARTITIONS, DESCRIBE_CLUSTER = 22, 23, 37, 60


@pytest.mark.parametrize("text", [None, "AAAAAAAAAAAAAAAAAAAAAA", "-_8AAAAAAAAAAAAAAAAAAQ"])
def test_topic_ids_are_text_in_neutral_values(text: str | None) -> None:
    assert topic_id_text(topic_id_bytes(text)) == (text or "A" * 22)


class TestMetadata:
    def test_all_topics_are_asked_for_by_an_empty_list_first_and_by_null_later(self) -> None:
        assert decode_request(METADATA, 0, {"topics": ()}).topics is None
        for version in versions(METADATA, first=1):
            values = {
                "topics": None, "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False,
            }  # fmt: skip
            assert decode_request(METADATA, version, values).topics is None
            assert decode_request(METADATA, version, values | {"topics": ()}).topics == ()

    @pytest.mark.parametrize("version", versions(METADATA))
    def test_topics_by_name(self, version: int) -> None:
        values = {
            "topics": [{"name": "alpha", "topic_id": NO_TOPIC_ID}], "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": True, "include_topic_authorized_operations": True,
        }  # fmt: skip
        # before version 4 clients could not disable topic creation
        wanted = KafkaMetadataRequest(
            topics=("alpha",),
            topic_ids=(NO_TOPIC_ID,),
            auto_create=version < 4,
            topic_operations=version >= 8,
            cluster_operations=8 <= version <= 10,
        )
        assert decode_request(METADATA, version, values) == wanted

    @pytest.mark.parametrize("version", versions(METADATA, first=12))
    def test_topics_by_id_have_the_name_of_now_or_none(self, version: int) -> None:
        topics = [{"name": None, "topic_id": ID_A}, {"name": None, "topic_id": ID_B}]
        request = decode_request(METADATA, version, {"topics": topics, "include_topic_authorized_operations": False})
        assert request.topics == ("alpha", "")
        response = MetadataResponse(
            cluster_id="c",
            controller=1,
            brokers=(),
            topics=(
                TopicMetadata(name="alpha", topic_id=topic_id_text(ID_A)),
                TopicMetadata(name="", topic_id=topic_id_text(ID_B), error=ErrorCode.UNKNOWN_TOPIC_ID),
            ),
        )
        known, unknown = encode_response(METADATA, version, response, request)["topics"]
        assert (known["name"], known["topic_id"], known["error_code"]) == ("alpha", ID_A, 0)
        assert (unknown["name"], unknown["topic_id"]) == (None, ID_B)
        assert unknown["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID

    @pytest.mark.parametrize("version", [10, 11])
    def test_topic_ids_before_version_12_are_refused(self, version: int) -> None:
        for topic in ({"name": None, "topic_id": ID_A}, {"name": "alpha", "topic_id": ID_A}):
            with pytest.raises(RefusedError, match="a topic id before version 12"):
                decode_request(METADATA, version, {"topics": [topic], "include_topic_authorized_operations": False,
                                          "include_cluster_authorized_operations": False})  # fmt: skip

    def test_a_topic_with_neither_name_nor_id_is_refused(self) -> None:
        topic = {"name": None, "topic_id": NO_TOPIC_ID}
        with pytest.raises(RefusedError, match="neither"):
            decode_request(METADATA, 12, {"topics": [topic], "include_topic_authorized_operations": False})

    @pytest.mark.parametrize("version", versions(METADATA))
    def test_the_answer(self, version: int) -> None:
        partition = PartitionMetadata(partition=3, leader=1, leader_epoch=9, replicas=(1, 2), in_sync=(2,))
        response = MetadataResponse(
            cluster_id="cluster",
            controller=1,
            brokers=(BrokerMetadata(node_id=1, host="::1", port=9092),),
            topics=(
                TopicMetadata(name="alpha", topic_id=topic_id_text(ID_A), partitions=(partition,)),
                TopicMetadata(name="__consumer_offsets"),
                TopicMetadata(name="beta", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                TopicMetadata(name="", error=ErrorCode.INVALID_TOPIC_EXCEPTION),
            ),
        )
        partition_values = {
            "error_code": 0, "partition_index": 3, "leader_id": 1, "leader_epoch": 9, "replica_nodes": (1, 2),
            "isr_nodes": (2,),
        }  # fmt: skip
        topic = {"topic_id": NO_TOPIC_ID, "is_internal": False, "partitions": ()}
        assert encode_response(METADATA, version, response, KafkaMetadataRequest()) == expected(METADATA, version, {
            "throttle_time_ms": 0,
            "brokers": ({"node_id": 1, "host": "::1", "port": 9092},),
            "cluster_id": "cluster",
            "controller_id": 1,
            "topics": (
                topic | {"error_code": 0, "name": "alpha", "topic_id": ID_A, "partitions": (partition_values,)},
                topic | {"error_code": 0, "name": "__consumer_offsets", "is_internal": True},
                topic | {"error_code": 3, "name": "beta"},
                topic | {"error_code": 17, "name": ""},
            ),
        })  # fmt: skip

    @pytest.mark.parametrize("version", versions(METADATA, first=8))
    def test_requested_operations_include_everything(self, version: int) -> None:
        request = KafkaMetadataRequest(topic_operations=True, cluster_operations=True)
        topics = (TopicMetadata(name="alpha"),)
        response = MetadataResponse(cluster_id="c", controller=1, brokers=(), topics=topics)
        values = encode_response(METADATA, version, response, request)
        assert values["topics"][0]["topic_authorized_operations"] == 3576
        if version <= 10:
            assert values["cluster_authorized_operations"] == 8096

    @pytest.mark.parametrize("version", versions(METADATA))
    def test_a_large_reply_is_the_same_the_second_time_and_new_where_a_topic_is_new(self, version: int) -> None:
        """Encode twice: the second response reuses parts of the first."""
        topics = tuple(TopicMetadata(name=f"topic-{number}") for number in range(300))
        response = MetadataResponse(cluster_id="c", controller=1, brokers=(), topics=topics)
        request = KafkaMetadataRequest()
        first = encode_response(METADATA, version, response, request)
        assert encode_response(METADATA, version, response, request) == first
        changed = TopicMetadata(name="topic-7", error=ErrorCode.LEADER_NOT_AVAILABLE)
        again = encode_response(
            METADATA, version, replace(response, topics=(*topics[:7], changed, *topics[8:])), request
        )
        assert again["topics"][7]["error_code"] == ErrorCode.LEADER_NOT_AVAILABLE
        assert (again["topics"][:7], again["topics"][8:]) == (first["topics"][:7], first["topics"][8:])


class TestOffsets:
    @pytest.mark.parametrize("version", versions(LIST_OFFSETS))
    def test_questions_by_time(self, version: int) -> None:
        partitions = [{"partition_index": 4, "current_leader_epoch": 8, "timestamp": -2}]
        topics = [{"name": "a", "partitions": partitions}, {"name": "b", "partitions": partitions * 2}]
        request = decode_request(
            LIST_OFFSETS, version, {"replica_id": -1, "isolation_level": 1, "topics": topics, "timeout_ms": 50}
        )
        epoch = 8 if version >= 4 else -1
        queries = [
            KafkaOffsetQuery(topic=topic, partition=4, timestamp=-2, current_leader_epoch=epoch) for topic in "abb"
        ]
        isolation = Isolation.READ_COMMITTED if version >= 2 else Isolation.READ_UNCOMMITTED
        timeout_ms = 50 if version >= 10 else 0
        assert request == KafkaListOffsetsRequest(partitions=tuple(queries), isolation=isolation, timeout_ms=timeout_ms)

    @pytest.mark.parametrize("version", versions(LIST_OFFSETS))
    def test_answers_by_time(self, version: int) -> None:
        found = [
            ListedOffset(topic=topic, partition=1, timestamp=70, offset=5, leader_epoch=2, error=ErrorCode(error))
            for topic, error in (("a", 0), ("a", 1), ("b", 6))
        ]
        topics = [
            {"name": topic, "partitions": [
                {"partition_index": 1, "error_code": error, "timestamp": 70, "offset": 5, "leader_epoch": 2}
                for error in errors
            ]} for topic, errors in (("a", (0, 1)), ("b", (6,)))
        ]  # fmt: skip
        values = {"throttle_time_ms": 0, "topics": topics}
        response = ListOffsetsResponse(partitions=tuple(found))
        assert encode_response(LIST_OFFSETS, version, response) == expected(LIST_OFFSETS, version, values)

    @pytest.mark.parametrize("version", versions(LEADER_EPOCH))
    def test_the_ends_of_leader_epochs(self, version: int) -> None:
        partitions = [{"partition": 1, "current_leader_epoch": 5, "leader_epoch": 3}]
        request = decode_request(
            LEADER_EPOCH, version, {"replica_id": -1, "topics": [{"topic": "a", "partitions": partitions}]}
        )
        query = EpochQuery(topic="a", partition=1, leader_epoch=3, current_leader_epoch=5)
        assert request == OffsetForLeaderEpochRequest(partitions=(query,))
        end = EpochEnd(topic="a", partition=1, leader_epoch=2, end_offset=60)
        values = {"error_code": 0, "partition": 1, "leader_epoch": 2, "end_offset": 60}
        assert encode_response(LEADER_EPOCH, version, OffsetForLeaderEpochResponse(partitions=(end,))) == {
            "throttle_time_ms": 0, "topics": ({"topic": "a", "partitions": (values,)},),
        }  # fmt: skip

    @pytest.mark.parametrize("version", versions(DELETE_RECORDS))
    def test_records_to_delete(self, version: int) -> None:
        partitions = [{"partition_index": 1, "offset": 40}]
        request = decode_request(
            DELETE_RECORDS, version, {"topics": [{"name": "a", "partitions": partitions}], "timeout_ms": 9}
        )
        wanted = RecordsToDelete(topic="a", partition=1, offset=40)
        assert request == DeleteRecordsRequest(partitions=(wanted,), timeout_ms=9)
        deleted = DeletedRecords(topic="a", partition=1, low_watermark=40)
        values = {"partition_index": 1, "low_watermark": 40, "error_code": 0}
        assert encode_response(DELETE_RECORDS, version, DeleteRecordsResponse(partitions=(deleted,))) == {
            "throttle_time_ms": 0, "topics": ({"name": "a", "partitions": (values,)},),
        }  # fmt: skip


class TestTopics:
    @pytest.mark.parametrize("version", versions(CREATE_TOPICS))
    def test_topics_to_create(self, version: int) -> None:
        topic = {
            "name": "a", "num_partitions": -1, "replication_factor": 3,
            "assignments": [{"partition_index": 0, "broker_ids": [1, 2]}],
            "configs": [{"name": "x", "value": "1"}, {"name": "y", "value": None}],
        }  # fmt: skip
        values = {"topics": [topic], "timeout_ms": -5, "validate_only": True}
        assert decode_request(CREATE_TOPICS, version, values) == KafkaCreateTopicsRequest(
            topics=(
                KafkaNewTopic(
                    name="a", replication_factor=3, assignments=((0, (1, 2)),), configs={"x": "1"}, null_configs=("y",)
                ),
            ),
            validate_only=True,
        )

    @pytest.mark.parametrize("version", versions(CREATE_TOPICS))
    def test_created_topics(self, version: int) -> None:
        entry = ConfigEntry(name="x", value="1", source=ConfigSource.TOPIC)
        response = CreateTopicsResponse(
            topics=(
                KafkaCreatedTopic(name="a", topic_id=topic_id_text(ID_A), partitions=4, configs=(entry,)),
                CreatedTopic(name="b", error=ErrorCode.TOPIC_ALREADY_EXISTS, message="there"),
            )
        )
        config = {"name": "x", "value": "1", "read_only": False, "config_source": 1, "is_sensitive": False}
        values = {"throttle_time_ms": 0, "topics": [
            {"name": "a", "topic_id": ID_A, "error_code": 0, "error_message": None,
             "num_partitions": 4, "replication_factor": 1, "configs": [config]},
            {"name": "b", "topic_id": NO_TOPIC_ID, "error_code": 36, "error_message": "there",
             "num_partitions": -1, "replication_factor": -1, "configs": []},
        ]}  # fmt: skip
        assert encode_response(CREATE_TOPICS, version, response) == expected(CREATE_TOPICS, version, values)

    @pytest.mark.parametrize("version", versions(DELETE_TOPICS))
    def test_topics_to_delete_by_name(self, version: int) -> None:
        topics = [{"name": "a", "topic_id": NO_TOPIC_ID}, {"name": "b", "topic_id": NO_TOPIC_ID}]
        request = decode_request(DELETE_TOPICS, version, {"topics": topics, "topic_names": ["a", "b"], "timeout_ms": 5})
        wanted = KafkaDeleteTopicsRequest(topics=("a", "b"), topic_ids=(NO_TOPIC_ID, NO_TOPIC_ID), timeout_ms=5)
        assert request == wanted
        response = DeleteTopicsResponse(
            topics=(
                TopicResult(name="a"),
                TopicResult(name="b", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message="no"),
            )
        )
        values = {"throttle_time_ms": 0, "responses": [
            {"name": "a", "topic_id": NO_TOPIC_ID, "error_code": 0, "error_message": None},
            {"name": "b", "topic_id": NO_TOPIC_ID, "error_code": 3, "error_message": "no"},
        ]}  # fmt: skip
        assert encode_response(DELETE_TOPICS, version, response, request) == expected(DELETE_TOPICS, version, values)

    def test_topics_to_delete_by_id(self) -> None:
        topics = [{"name": None, "topic_id": ID_A}, {"name": None, "topic_id": ID_B}]
        request = decode_request(DELETE_TOPICS, 6, {"topics": topics, "timeout_ms": 5})
        assert (request.topics, request.topic_ids) == (("alpha", ""), (ID_A, ID_B))
        unknown = TopicResult(name="", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message="no")
        response = DeleteTopicsResponse(topics=(TopicResult(name="alpha"), unknown))
        assert [
            (one["name"], one["topic_id"], one["error_code"])
            for one in encode_response(DELETE_TOPICS, 6, response, request)["responses"]
        ] == [("alpha", ID_A, 0), (None, ID_B, ErrorCode.UNKNOWN_TOPIC_ID)]

    @pytest.mark.parametrize("version", versions(CREATE_PARTITIONS))
    def test_more_partitions(self, version: int) -> None:
        topics = [
            {"name": "a", "count": 6, "assignments": None},
            {"name": "b", "count": 2, "assignments": [{"broker_ids": [1]}]},
        ]
        request = decode_request(CREATE_PARTITIONS, version, {"topics": topics, "timeout_ms": 5, "validate_only": True})
        assert request == CreatePartitionsRequest(
            topics=(NewPartitions(name="a", count=6), NewPartitions(name="b", count=2, assignments=((1,),))),
            timeout_ms=5,
            validate_only=True,
        )
        refused = TopicResult(name="b", error=ErrorCode.INVALID_PARTITIONS, message="fewer")
        response = CreatePartitionsResponse(topics=(TopicResult(name="a"), refused))
        assert encode_response(CREATE_PARTITIONS, version, response)["results"] == (
            {"name": "a", "error_code": 0, "error_message": None},
            {"name": "b", "error_code": 37, "error_message": "fewer"},
        )


class TestCluster:
    @pytest.mark.parametrize("version", versions(DESCRIBE_CLUSTER))
    def test_the_brokers(self, version: int) -> None:
        values = {"include_cluster_authorized_operations": True, "endpoint_type": 2, "include_fenced_brokers": True}
        assert decode_request(DESCRIBE_CLUSTER, version, values) == DescribeClusterRequest(
            endpoint_type=2 if version >= 1 else 1, include_fenced_brokers=version >= 2, operations=True
        )
        response = DescribeClusterResponse(
            cluster_id="c", controller=1, brokers=(BrokerMetadata(node_id=1, host="h", port=2),)
        )
        told_values = encode_response(DESCRIBE_CLUSTER, version, response, DescribeClusterRequest())
        assert (told_values["cluster_id"], told_values["controller_id"]) == ("c", 1)
        assert told_values["brokers"] == ({"broker_id": 1, "host": "h", "port": 2, "rack": None, "is_fenced": False},)

    @pytest.mark.parametrize(("operations", "told_operations"), [(True, 8096), (False, -(1 << 31))])
    def test_requested_operations_include_everything(self, operations: bool, told_operations: int) -> None:
        request = DescribeClusterRequest(operations=operations)
        response = DescribeClusterResponse(cluster_id="c", controller=1, brokers=())
        assert (
            encode_response(DESCRIBE_CLUSTER, 2, response, request)["cluster_authorized_operations"] == told_operations
        )

    @pytest.mark.parametrize("version", versions(INIT_PRODUCER_ID))
    def test_producer_ids(self, version: int) -> None:
        values = {"transactional_id": None, "transaction_timeout_ms": 9, "producer_id": 1 << 40, "producer_epoch": 3}
        given = {"producer_id": 1 << 40, "producer_epoch": 3} if version >= 3 else {}
        wanted = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=9, **given)
        assert decode_request(INIT_PRODUCER_ID, version, values) == wanted
        response = InitProducerIdResponse(producer_id=1 << 40, producer_epoch=4)
        assert encode_response(INIT_PRODUCER_ID, version, response) == {
            "throttle_time_ms": 0, "error_code": 0, "producer_id": 1 << 40, "producer_epoch": 4,
        }  # fmt: skip


@pytest.mark.parametrize("version", versions(METADATA, first=3))
def test_the_throttle_time_is_encoded(version: int) -> None:
    api = API_BY_KEY[METADATA]
    response = MetadataResponse(cluster_id="c", controller=1, brokers=(), topics=())
    pieces = Codec().encode(Call(api, version, 7, "", KafkaMetadataRequest()), response, throttle_ms=1234)
    assert parsed("MetadataResponse", api, version, reply_body(api, version, pieces))["throttle_time_ms"] == 1234
