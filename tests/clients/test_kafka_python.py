"""What kafka-python alone offers: log directories, deleting offsets, removing members, its own view of a cluster."""

from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import MemberToRemove
from kafka.structs import OffsetAndMetadata

from tests.clients.conftest import NewTopicFactory
from tests.clients.libraries import KafkaPython, Row
from tests.clients.members import Members
from tests.clients.waiting import LIMIT_S, until

EPOCH_MS = 1_700_000_000_000


@pytest.fixture
def client(bootstrap: str) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


@pytest.fixture
def consumer(bootstrap: str, name: str) -> Iterator[Any]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=name, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    yield consumer
    consumer.close()


@pytest.fixture
def filled(bootstrap: str, new_topic: NewTopicFactory) -> str:
    """A topic of two partitions of ten records each, a second apart."""
    topic = new_topic(partitions=2)
    rows = [Row(EPOCH_MS + i * 1000, None, b"%d" % i) for i in range(10)]
    KafkaPython().produce(bootstrap, topic, {0: rows, 1: rows})
    return topic


def test_log_directories_hold_what_was_written(client: Any, filled: str) -> None:
    (broker,) = client.describe_log_dirs()
    sizes = {
        partition["partition_index"]: partition["partition_size"]
        for directory in broker["log_dirs"]
        for topic in directory["topics"]
        if topic["name"] == filled
        for partition in topic["partitions"]
    }
    assert sizes.keys() == {0, 1}
    assert all(size > 10 * 8 for size in sizes.values())


def test_offsets_are_committed_moved_and_deleted(client: Any, name: str, filled: str, consumer: Any) -> None:
    first, second = TopicPartition(filled, 0), TopicPartition(filled, 1)
    consumer.assign([first, second])
    consumer.commit({first: OffsetAndMetadata(3, "note", -1), second: OffsetAndMetadata(9, "", -1)})
    assert consumer.committed(first, metadata=True).metadata == "note"
    client.alter_group_offsets(name, {first: OffsetAndMetadata(5, "", -1)})
    assert consumer.committed(first) == 5
    client.delete_group_offsets(name, [first])
    assert consumer.committed(first) is None
    assert consumer.committed(second) == 9
    client.delete_groups([name])
    assert consumer.committed(second) is None


def test_positions_and_ends(filled: str, consumer: Any) -> None:
    where = TopicPartition(filled, 0)
    consumer.assign([where])
    assert consumer.beginning_offsets([where]) == {where: 0}
    assert consumer.end_offsets([where]) == {where: 10}
    found = consumer.offsets_for_times({where: EPOCH_MS + 2500})[where]
    assert (found.offset, found.timestamp) == (3, EPOCH_MS + 3000)
    consumer.seek(where, 8)
    records: list[Any] = []
    until(lambda: len(records) == 2, lambda: records.extend(consumer.poll(200).get(where, [])), "the last two records")
    assert [each.offset for each in records] == [8, 9]
    assert consumer.position(where) == 10
    consumer.pause(where)
    consumer.seek_to_beginning(where)
    assert consumer.poll(50) == {}
    consumer.resume(where)
    until(lambda: len(records) == 12, lambda: records.extend(consumer.poll(200).get(where, [])), "all records again")


def test_topics_of_the_cluster(client: Any, filled: str, consumer: Any) -> None:
    assert filled in client.list_topics()
    (described,) = client.describe_topics([filled])
    assert [each["partition_index"] for each in described["partitions"]] == [0, 1]
    assert filled in consumer.topics()
    assert consumer.partitions_for_topic(filled) == {0, 1}
    assert client.describe_cluster()["brokers"][0]["broker_id"] == 1


def test_a_member_is_removed_by_an_administrator(client: Any, bootstrap: str, name: str, filled: str) -> None:
    with Members(bootstrap, name, filled) as members:
        joined = [members.join("kafka-python", instance) for instance in ("one", "two")]
        members.until_shared(range(2), joined)
        joined[1].kill()
        client.remove_group_members(name, [MemberToRemove(group_instance_id="two")])
        members.until_shared(range(2), joined[:1])


def test_a_transaction_is_read_once_it_is_committed_and_never_once_it_is_aborted(
    bootstrap: str, new_topic: NewTopicFactory, name: str
) -> None:
    topic = new_topic()
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    for value in (b"aborted", b"committed"):
        producer.begin_transaction()
        producer.send(topic, value).get(LIMIT_S)
        if value == b"aborted":
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    reader = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    record = next(reader)
    assert (record.offset, record.value) == (2, b"committed")
    reader.close()
