"""Odd requests on the Kafka listener get the codes and the entries that Kafka 4.3.1 gives them."""

from typing import Any

import pytest

from tests.broker.clients import RawClient, batch
from tests.broker.kafka_client import KafkaClient
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.cluster.configs import ConfigResourceType
from warmlog.protocol.records.builder import build_batch

SOME_ID = bytes(range(1, 17))
NO_ID = bytes(16)
NOT_REQUESTED = -(1 << 31)
GROUP_OPERATIONS = 3400  # as Kafka 4.3.1 says it without an authorizer
CONTROL_CHARACTERS = "\x01" * 20_000
MAX_CLASSIC_STRING = 32_767


async def with_group(kafka: KafkaClient, native: RawClient, name: str = "readers") -> None:
    """A group that has committed an offset."""
    await native.create("orders")
    await kafka.ask("FindCoordinator", coordinator_keys=(name,))
    partition = {"partition_index": 0, "committed_offset": 3}
    reply = await kafka.ask("OffsetCommit", 8, group_id=name, topics=[{"name": "orders", "partitions": [partition]}])
    assert reply["topics"][0]["partitions"][0]["error_code"] == ErrorCode.NONE


# -- groups --


@pytest.mark.parametrize("version", range(3, 7))
async def test_operations_on_groups_are_told_to_who_asks(kafka: KafkaClient, native: RawClient, version: int) -> None:
    await with_group(kafka, native)
    asked = {"groups": ("readers", "nobody"), "include_authorized_operations": True}
    known, unknown = (await kafka.ask("DescribeGroups", version, **asked))["groups"]
    assert known["authorized_operations"] == GROUP_OPERATIONS
    assert unknown["authorized_operations"] == (NOT_REQUESTED if version >= 6 else GROUP_OPERATIONS)
    asked["include_authorized_operations"] = False
    reply = await kafka.ask("DescribeGroups", version, **asked)
    assert {group["authorized_operations"] for group in reply["groups"]} == {NOT_REQUESTED}


@pytest.mark.parametrize(
    ("group", "error"), [("nobody", ErrorCode.GROUP_ID_NOT_FOUND), ("", ErrorCode.INVALID_GROUP_ID)]
)
async def test_offsets_of_a_group_that_is_refused_have_no_entries(
    kafka: KafkaClient, native: RawClient, group: str, error: ErrorCode
) -> None:
    await with_group(kafka, native)
    topic = {"name": "orders", "partitions": [{"partition_index": 0}]}
    reply = await kafka.ask("OffsetDelete", group_id=group, topics=[topic])
    assert (reply["error_code"], reply["topics"]) == (error, ())


@pytest.mark.parametrize("version", range(3, 6))
async def test_members_who_leave_a_group_that_is_refused_have_no_entries(kafka: KafkaClient, version: int) -> None:
    member = {"member_id": "m", "group_instance_id": None, "reason": None}
    reply = await kafka.ask("LeaveGroup", version, group_id="", members=[member])
    assert (reply["error_code"], reply["members"]) == (ErrorCode.INVALID_GROUP_ID, ())


# -- names and ids of topics --


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize(("topic_id", "name"), [(SOME_ID, "orders"), (SOME_ID, None), (NO_ID, None)])
async def test_metadata_by_id_is_refused_where_the_version_has_names_only(
    kafka: KafkaClient, version: int, topic_id: bytes, name: str | None
) -> None:
    reply = await kafka.ask("Metadata", version, topics=[{"topic_id": topic_id, "name": name}])
    (topic,) = reply["topics"]
    assert topic["error_code"] == ErrorCode.INVALID_REQUEST
    assert (topic["topic_id"], topic["name"]) == (topic_id, name or "")
    assert (reply["brokers"], reply["cluster_id"], reply["controller_id"]) == ((), None, -1)


@pytest.mark.parametrize("version", [12, 13])
async def test_metadata_of_a_topic_without_name_and_id_is_refused(kafka: KafkaClient, version: int) -> None:
    reply = await kafka.ask("Metadata", version, topics=[{"topic_id": NO_ID, "name": None}])
    assert [topic["error_code"] for topic in reply["topics"]] == [ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize("version", range(14))
async def test_a_topic_without_a_name_is_invalid_and_not_unknown(kafka: KafkaClient, version: int) -> None:
    requested: list[dict[str, Any]] = [{"topic_id": NO_ID, "name": ""}]
    if version >= 12:
        requested.append({"topic_id": SOME_ID, "name": None})
    reply = await kafka.ask("Metadata", version, topics=requested)
    empty, *unknown = reply["topics"]
    assert (empty["error_code"], empty["name"]) == (ErrorCode.INVALID_TOPIC_EXCEPTION, "")
    for topic in unknown:
        assert topic["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
        assert (topic["topic_id"], topic["name"]) == (SOME_ID, None)


# -- isolation levels --


@pytest.mark.parametrize("version", range(2, 12))
async def test_lists_of_offsets_by_an_unknown_isolation_level_are_refused(
    kafka: KafkaClient, native: RawClient, version: int
) -> None:
    await native.create("orders")
    partition = {"partition_index": 0, "timestamp": -1}
    reply = await kafka.ask(
        "ListOffsets", version, replica_id=-1, isolation_level=5, topics=[{"name": "orders", "partitions": [partition]}]
    )
    (found,) = reply["topics"][0]["partitions"]
    assert (found["error_code"], found["offset"]) == (ErrorCode.INVALID_REQUEST, -1)


@pytest.mark.parametrize("version", range(4, 13))
async def test_fetches_by_an_unknown_isolation_level_are_refused(
    kafka: KafkaClient, native: RawClient, version: int
) -> None:
    await native.create("orders")
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    reply = await kafka.ask(
        "Fetch",
        version,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1000,
        isolation_level=5,
        topics=[{"topic": "orders", "partitions": [partition]}],
    )
    (found,) = reply["responses"][0]["partitions"]
    assert found["error_code"] == ErrorCode.INVALID_REQUEST
    if version >= 7:
        assert reply["error_code"] == ErrorCode.INVALID_REQUEST


# -- produce --


async def refused_produce(kafka: KafkaClient, records: bytes, *, acks: int = 1) -> tuple[int, int]:
    """Error and log start offset."""
    topic = {"name": "orders", "partition_data": [{"index": 0, "records": records}]}
    reply = await kafka.ask("Produce", 12, acks=acks, timeout_ms=1000, topic_data=[topic])
    (outcome,) = reply["responses"][0]["partition_responses"]
    return outcome["error_code"], outcome["log_start_offset"]


async def test_errors_of_produce_tell_the_log_start_where_kafka_does(kafka: KafkaClient, native: RawClient) -> None:
    await native.create("orders", cleanup_policy="compact,delete")
    await native.produce("orders", build_batch([(1, b"k", b"v", ())]))
    await kafka.ask("Produce", 12, acks=1, timeout_ms=1000, topic_data=[
        {"name": "orders", "partition_data": [{"index": 0, "records": build_batch([(1, b"k", b"v", ())] * 4)}]}
    ])  # fmt: skip
    deleted = {"name": "orders", "partitions": [{"partition_index": 0, "offset": 3}]}
    await kafka.ask("DeleteRecords", topics=[deleted], timeout_ms=1000)
    keyed = build_batch([(1, b"k", b"v", ())], producer_id=7, producer_epoch=1, base_sequence=0)
    assert await refused_produce(kafka, keyed) == (ErrorCode.NONE, 3)
    gap = build_batch([(1, b"k", b"v", ())], producer_id=7, producer_epoch=1, base_sequence=9)
    assert await refused_produce(kafka, gap) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 3)
    fenced = build_batch([(1, b"k", b"v", ())], producer_id=7, producer_epoch=0, base_sequence=1)
    assert await refused_produce(kafka, fenced) == (ErrorCode.INVALID_PRODUCER_EPOCH, 3)
    assert await refused_produce(kafka, batch(b"without a key")) == (ErrorCode.INVALID_RECORD, 3)
    assert await refused_produce(kafka, b"no batch") == (ErrorCode.CORRUPT_MESSAGE, -1)


# -- texts --


@pytest.mark.parametrize("version", [0, 1])
async def test_a_name_of_control_characters_is_told_in_a_message_of_bounded_length(
    kafka: KafkaClient, native: RawClient, version: int
) -> None:
    await native.create("orders")
    change = {"name": CONTROL_CHARACTERS, "config_operation": 0, "value": "1"}
    topic = {"resource_type": ConfigResourceType.TOPIC, "resource_name": "orders", "configs": [change]}
    (refused,) = (await kafka.ask("IncrementalAlterConfigs", version, resources=[topic]))["responses"]
    assert refused["error_code"] == ErrorCode.INVALID_CONFIG
    assert len(refused["error_message"].encode()) < 2000


async def test_messages_of_every_api_fit_a_classic_string(kafka: KafkaClient, native: RawClient) -> None:
    """All that echo a name, in their classic versions."""
    await native.create("orders")
    name = CONTROL_CHARACTERS
    change = {"name": "retention.ms", "value": name}
    new_topic = {"num_partitions": 1, "replication_factor": 1}
    query = {"configuration_keys": None}
    nothing = {"name": name, "partition_data": [{"index": 0, "records": None}]}
    asks: list[tuple[str, int, dict[str, Any]]] = [
        ("CreateTopics", 2, {"topics": [{"name": name, **new_topic}]}),
        ("CreateTopics", 2, {"topics": [{"name": "t", **new_topic, "configs": [change]}]}),
        ("CreatePartitions", 0, {"topics": [{"name": name, "count": 2, "assignments": None}]}),
        ("AlterConfigs", 0, {"resources": [{"resource_type": 2, "resource_name": "orders", "configs": [change]}]}),
        ("AlterConfigs", 0, {"resources": [{"resource_type": 4, "resource_name": name, "configs": [change]}]}),
        ("AlterConfigs", 0, {"resources": [{"resource_type": 4, "resource_name": "1", "configs": [change]}]}),
        ("DescribeConfigs", 1, {"resources": [{"resource_type": 2, "resource_name": name, **query}]}),
        ("DescribeConfigs", 1, {"resources": [{"resource_type": 4, "resource_name": name, **query}]}),
        ("Produce", 8, {"acks": 1, "timeout_ms": 1, "topic_data": [nothing]}),
    ]
    for api, version, fields in asks:
        texts = list(messages_in(await kafka.ask(api, version, **fields)))
        assert all(text is None or len(text.encode()) < 2000 for text in texts), api


def messages_in(value: Any) -> Any:
    """Every error message within a reply."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key == "error_message":
                yield each
            else:
                yield from messages_in(each)
    elif isinstance(value, tuple):
        for each in value:
            yield from messages_in(each)
