"""Transactions by confluent-kafka: one over several partitions, consumed offsets in it, and a fenced zombie."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.clients.conftest import NewTopicFactory
from tests.clients.waiting import LIMIT_S

NewProducer = Callable[..., Producer]


@pytest.fixture
def new_producer(bootstrap: str, name: str) -> NewProducer:
    """() -> a producer with the transactional id `name` that is ready to begin a transaction."""

    def make(**settings: Any) -> Producer:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        made = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 2, **config})
        made.init_transactions(LIMIT_S)
        return made

    return make


@pytest.fixture
def read_all(bootstrap: str, name: str) -> Callable[..., list[bytes]]:
    """(topic, partitions, isolation) -> the values of all records that a consumer sees, sorted.

    `count`: wait for so many. Kafka writes a transaction's markers after it has answered that the commit is sure.
    """

    def read(topic: str, partitions: int, isolation: str = "read_committed", *, count: int = 0) -> list[bytes]:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{name}-reader",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
            values, ended = [], set()
            while len(ended) < partitions or len(values) < count:
                message = consumer.poll(LIMIT_S)
                assert message is not None
                if message.error():
                    ended.add(message.partition())
                else:
                    values.append(message.value())
            return sorted(values)
        finally:
            consumer.close()

    return read


def send(producer: Producer, topic: str, values: list[bytes]) -> None:
    for index, value in enumerate(values):
        producer.produce(topic, value, partition=index % 2)
    producer.flush(LIMIT_S)


def test_committed_records_of_all_partitions_are_read_and_aborted_ones_are_not(
    new_topic: NewTopicFactory, new_producer: NewProducer, read_all: Callable[..., list[bytes]]
) -> None:
    topic, producer = new_topic(partitions=2), new_producer()
    for prefix, commits in ((b"a", True), (b"b", False), (b"c", True)):
        producer.begin_transaction()
        send(producer, topic, [prefix + b"%d" % i for i in range(4)])
        if commits:
            producer.commit_transaction(LIMIT_S)
        else:
            producer.abort_transaction(LIMIT_S)
    committed = [prefix + b"%d" % i for prefix in (b"a", b"c") for i in range(4)]
    assert read_all(topic, 2, count=len(committed)) == committed
    assert len(read_all(topic, 2, "read_uncommitted")) == 12


def test_records_of_an_open_transaction_are_not_read_as_committed(
    new_topic: NewTopicFactory, new_producer: NewProducer, read_all: Callable[..., list[bytes]]
) -> None:
    topic, producer = new_topic(partitions=2), new_producer()
    producer.begin_transaction()
    send(producer, topic, [b"1", b"2"])
    assert read_all(topic, 2) == []
    assert read_all(topic, 2, "read_uncommitted") == [b"1", b"2"]
    producer.commit_transaction(LIMIT_S)
    assert read_all(topic, 2, count=2) == [b"1", b"2"]


def test_a_second_producer_of_the_same_id_aborts_the_transaction_and_fences_the_first(
    new_topic: NewTopicFactory, new_producer: NewProducer, read_all: Callable[..., list[bytes]]
) -> None:
    topic, zombie = new_topic(partitions=2), new_producer()
    zombie.begin_transaction()
    send(zombie, topic, [b"old", b"old"])
    successor = new_producer()
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(LIMIT_S)
    assert refused.value.args[0].fatal()
    successor.begin_transaction()
    send(successor, topic, [b"new"])
    successor.commit_transaction(LIMIT_S)
    assert read_all(topic, 2, count=1) == [b"new"]


@pytest.mark.parametrize("commits", [True, False])
def test_offsets_sent_to_a_transaction_are_committed_with_it(
    bootstrap: str, name: str, new_topic: NewTopicFactory, new_producer: NewProducer, commits: bool
) -> None:
    topic, producer = new_topic(partitions=2), new_producer()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": name, "enable.auto.commit": False})
    try:
        place = TopicPartition(topic, 0, 7)
        producer.begin_transaction()
        send(producer, topic, [b"x"])
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), LIMIT_S)
        if commits:
            producer.commit_transaction(LIMIT_S)
        else:
            producer.abort_transaction(LIMIT_S)
        (found,) = consumer.committed([TopicPartition(topic, 0)], LIMIT_S)
        assert found.offset == (7 if commits else -1001)
    finally:
        consumer.close()
