"""What administrators do, through confluent-kafka's admin client (and kafka-python's, in test_kafka_python.py)."""

from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.clients.conftest import NewTopicFactory
from tests.clients.libraries import Confluent, Row
from tests.clients.waiting import LIMIT_S, until

EPOCH_MS = 1_700_000_000_000


def error_of(futures: dict[Any, Any]) -> str | None:
    """The name of the error that the only future ends with, if any."""
    (future,) = futures.values()
    failure = future.exception()
    return None if failure is None else failure.args[0].name()


def topic_config(admin: AdminClient, topic: str) -> dict[str, Any]:
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return future.result()


def until_config(admin: AdminClient, topic: str, expected: dict[str, str]) -> None:
    """Wait for settings: real Kafka acknowledges a change before the broker that is asked knows it."""

    def told() -> dict[str, str]:
        config = topic_config(admin, topic)
        return {name: ",".join(sorted(config[name].value.split(","))) for name in expected}

    until(lambda: told() == expected, lambda: None, f"{expected}")


def alter(admin: AdminClient, topic: str, setting: str, value: str | None, how: AlterConfigOpType) -> str | None:
    entry = ConfigEntry(setting, value, incremental_operation=how)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    return error_of(admin.incremental_alter_configs([resource]))


def partition_count(admin: AdminClient, topic: str) -> int:
    """0 for a topic that is not there, or not there yet: real Kafka tells of a change before it knows it everywhere."""
    futures = admin.describe_topics(TopicCollection([topic]))
    error = error_of(futures)
    assert error in {None, "UNKNOWN_TOPIC_OR_PART"}
    return 0 if error else len(futures[topic].result().partitions)


def until_partitions(admin: AdminClient, topic: str, count: int) -> None:
    until(lambda: partition_count(admin, topic) == count, lambda: None, f"{count} partitions")


def write(bootstrap: str, topic: str, count: int) -> None:
    rows = [Row(EPOCH_MS + i, None, b"%d" % i) for i in range(count)]
    Confluent().produce(bootstrap, topic, {0: rows})


# -- topics --


def test_a_topic_is_created_described_and_deleted(admin: AdminClient, name: str) -> None:
    assert error_of(admin.create_topics([NewTopic(name, 3, 1)])) is None
    until_partitions(admin, name, 3)
    assert error_of(admin.create_topics([NewTopic(name, 3, 1)])) == "TOPIC_ALREADY_EXISTS"
    described = admin.describe_topics(TopicCollection([name]))[name].result()
    assert [each.id for each in described.partitions] == [0, 1, 2]
    assert not described.is_internal
    assert {each.leader.id for each in described.partitions} == {1}
    assert len(admin.list_topics(name, timeout=LIMIT_S).topics[name].partitions) == 3
    assert error_of(admin.delete_topics([name])) is None
    until_partitions(admin, name, 0)
    assert error_of(admin.delete_topics([name])) == "UNKNOWN_TOPIC_OR_PART"
    assert name not in admin.list_topics(timeout=LIMIT_S).topics


def test_a_topic_made_again_is_another_one(admin: AdminClient, name: str) -> None:
    ids = []
    for _ in range(2):
        assert error_of(admin.create_topics([NewTopic(name, 1, 1)])) is None
        until_partitions(admin, name, 1)
        ids.append(str(admin.describe_topics(TopicCollection([name]))[name].result().topic_id))
        assert error_of(admin.delete_topics([name])) is None
        until_partitions(admin, name, 0)
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"topic": "no good"}, "TOPIC_EXCEPTION"),
        ({"topic": "."}, "TOPIC_EXCEPTION"),
        ({"topic": "x" * 250}, "TOPIC_EXCEPTION"),
        ({"num_partitions": 0}, "INVALID_PARTITIONS"),
        ({"replication_factor": 5}, "INVALID_REPLICATION_FACTOR"),
        ({"config": {"retention.ms": "soon"}}, "INVALID_CONFIG"),
        ({"config": {"no.such.setting": "1"}}, "INVALID_CONFIG"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(admin: AdminClient, name: str, bad: dict[str, Any], error: str) -> None:
    asked = {"topic": name[:100], "num_partitions": 1, "replication_factor": 1, **bad}
    assert error_of(admin.create_topics([NewTopic(**asked)])) == error
    assert asked["topic"] not in admin.list_topics(timeout=LIMIT_S).topics


def test_a_topic_can_be_asked_for_without_being_made(admin: AdminClient, name: str) -> None:
    assert error_of(admin.create_topics([NewTopic(name, 3, 1)], validate_only=True)) is None
    assert name not in admin.list_topics(timeout=LIMIT_S).topics


def test_a_topic_grows_and_never_shrinks(admin: AdminClient, new_topic: NewTopicFactory) -> None:
    topic = new_topic(partitions=2)
    assert error_of(admin.create_partitions([NewPartitions(topic, 5)])) is None
    until_partitions(admin, topic, 5)
    assert error_of(admin.create_partitions([NewPartitions(topic, 4)])) == "INVALID_PARTITIONS"
    assert error_of(admin.create_partitions([NewPartitions(topic, 5)])) == "INVALID_PARTITIONS"


# -- settings --


def test_settings_of_a_topic_are_told_with_their_sources(admin: AdminClient, new_topic: NewTopicFactory) -> None:
    config = topic_config(admin, new_topic(retention_ms="12345"))
    assert config["retention.ms"].value == "12345"
    assert config["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert not config["retention.ms"].is_default
    assert config["cleanup.policy"].value == "delete"
    assert config["cleanup.policy"].is_default
    assert config["max.message.bytes"].value == "1048588"
    assert {"segment.bytes", "segment.ms", "compression.type", "message.timestamp.type"} <= config.keys()


def test_settings_are_changed_one_by_one(admin: AdminClient, new_topic: NewTopicFactory) -> None:
    topic = new_topic(retention_ms="12345")
    assert alter(admin, topic, "max.message.bytes", "5000", AlterConfigOpType.SET) is None
    assert alter(admin, topic, "cleanup.policy", "compact", AlterConfigOpType.APPEND) is None
    changed = {"max.message.bytes": "5000", "retention.ms": "12345", "cleanup.policy": "compact,delete"}
    until_config(admin, topic, changed)
    assert alter(admin, topic, "cleanup.policy", "delete", AlterConfigOpType.SUBTRACT) is None
    assert alter(admin, topic, "retention.ms", None, AlterConfigOpType.DELETE) is None
    until_config(admin, topic, {"cleanup.policy": "compact", "retention.ms": "-1"})


def test_settings_are_replaced_together(admin: AdminClient, new_topic: NewTopicFactory) -> None:
    topic = new_topic(retention_ms="12345")
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.bytes": "2000000"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        assert error_of(admin.alter_configs([resource])) is None
    until_config(admin, topic, {"segment.bytes": "2000000", "retention.ms": "-1"})


def test_bad_settings_change_nothing(admin: AdminClient, new_topic: NewTopicFactory) -> None:
    topic = new_topic()
    before = {key: entry.value for key, entry in topic_config(admin, topic).items()}
    for setting, value in (("retention.ms", "soon"), ("no.such.setting", "1"), ("cleanup.policy", "burn")):
        assert alter(admin, topic, setting, value, AlterConfigOpType.SET) == "INVALID_CONFIG", setting
    assert {key: entry.value for key, entry in topic_config(admin, topic).items()} == before
    assert alter(admin, "no-such-topic", "retention.ms", "1", AlterConfigOpType.SET) == "UNKNOWN_TOPIC_OR_PART"


def test_settings_of_the_broker_are_told(admin: AdminClient) -> None:
    (future,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    config = future.result()
    assert config["message.max.bytes"].value == "1048588"
    assert config["log.segment.bytes"].value == "1073741824"
    assert config["group.min.session.timeout.ms"].value == "100"
    assert config["group.min.session.timeout.ms"].source == ConfigSource.STATIC_BROKER_CONFIG.value


# -- the cluster --


def test_the_cluster_is_one_node_that_answers_where_it_was_asked(admin: AdminClient, bootstrap: str) -> None:
    cluster = admin.describe_cluster().result()
    assert cluster.cluster_id
    assert [f"{each.host}:{each.port}" for each in cluster.nodes] == [bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id == 1


# -- records and offsets --


def test_offsets_are_listed_by_every_specification(
    admin: AdminClient, bootstrap: str, new_topic: NewTopicFactory
) -> None:
    topic = new_topic()
    rows = [Row(EPOCH_MS + delta, None, b"x") for delta in (0, 5000, 1000)]
    Confluent().produce(bootstrap, topic, {0: rows})

    def listed(spec: OffsetSpec) -> tuple[int, int]:
        (future,) = admin.list_offsets({TopicPartition(topic, 0): spec}).values()
        return future.result().offset, future.result().timestamp

    assert listed(OffsetSpec.earliest())[0] == 0
    assert listed(OffsetSpec.latest())[0] == 3
    assert listed(OffsetSpec.max_timestamp()) == (1, EPOCH_MS + 5000)
    assert listed(OffsetSpec.for_timestamp(EPOCH_MS + 1)) == (1, EPOCH_MS + 5000)
    assert listed(OffsetSpec.for_timestamp(EPOCH_MS + 9999))[0] == -1


def test_records_are_deleted_up_to_an_offset(admin: AdminClient, bootstrap: str, new_topic: NewTopicFactory) -> None:
    topic = new_topic()
    write(bootstrap, topic, 10)
    (future,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    assert future.result().low_watermark == 4
    rows = Confluent().read(bootstrap, topic)[0]
    assert [row.value for row in rows] == [b"%d" % i for i in range(4, 10)]
    assert error_of(admin.delete_records([TopicPartition(topic, 0, 11)])) == "OFFSET_OUT_OF_RANGE"
    (future,) = admin.delete_records([TopicPartition(topic, 0, -1)]).values()  # to the end
    assert future.result().low_watermark == 10
    assert Confluent().read(bootstrap, topic) == [[]]


# -- groups without members --


def set_offsets(admin: AdminClient, group: str, *offsets: TopicPartition) -> None:
    asked = [ConsumerGroupTopicPartitions(group, list(offsets))]
    (future,) = admin.alter_consumer_group_offsets(asked).values()
    assert [each.error for each in future.result().topic_partitions] == [None] * len(offsets)


def test_offsets_of_a_group_are_set_read_and_deleted_with_it(
    admin: AdminClient, name: str, new_topic: NewTopicFactory
) -> None:
    topic = new_topic(partitions=2)
    set_offsets(admin, name, TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 0))
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]).values()
    found = {each.partition: each.offset for each in future.result().topic_partitions}
    assert found == {0: 7, 1: 0}
    assert admin.describe_consumer_groups([name])[name].result().state.name == "EMPTY"
    assert error_of(admin.delete_consumer_groups([name])) is None
    assert error_of(admin.delete_consumer_groups([name])) == "GROUP_ID_NOT_FOUND"


def test_a_group_that_never_was_is_told(admin: AdminClient, name: str) -> None:
    def state() -> str:
        described = admin.describe_consumer_groups([name])[name]
        try:
            return described.result().state.name
        except KafkaException as refused:
            return refused.args[0].name()

    # in real Kafka, the name's partition of the offsets topic may still be loading
    until(lambda: state() in {"DEAD", "GROUP_ID_NOT_FOUND"}, lambda: None, "the group to be told as unknown")


def test_offsets_go_with_their_topic(admin: AdminClient, name: str, new_topic: NewTopicFactory) -> None:
    gone, kept = new_topic(), new_topic()
    set_offsets(admin, name, TopicPartition(gone, 0, 7), TopicPartition(kept, 0, 8))
    assert error_of(admin.delete_topics([gone])) is None

    def offsets() -> list[tuple[str, int]]:
        (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]).values()
        return [(each.topic, each.offset) for each in future.result().topic_partitions]

    until(lambda: offsets() == [(kept, 8)], lambda: None, "the offsets of the deleted topic to go")
