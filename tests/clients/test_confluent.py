"""What confluent-kafka alone offers, or what is asked of one library because all send the same."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    Message,
    Producer,
    TopicPartition,
)

from tests.clients.conftest import NewTopicFactory
from tests.clients.libraries import Confluent, Row
from tests.clients.waiting import LIMIT_S, until

EPOCH_MS = 1_700_000_000_000
NewConsumer = Callable[..., Consumer]


@pytest.fixture
def new_consumer(bootstrap: str, name: str) -> Iterator[NewConsumer]:
    """(settings) -> a consumer of the group `name` that reads from the beginning; closed at the end."""
    made: list[Consumer] = []

    def make(**settings: object) -> Consumer:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        defaults = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
        made.append(Consumer({**defaults, **config}))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


@pytest.fixture
def filled(bootstrap: str, new_topic: NewTopicFactory) -> str:
    """A topic of two partitions of ten records each, a second apart."""
    topic = new_topic(partitions=2)
    rows = [Row(EPOCH_MS + i * 1000, None, b"%d" % i) for i in range(10)]
    Confluent().produce(bootstrap, topic, {0: rows, 1: rows})
    return topic


def read(consumer: Consumer, count: int) -> list[Message]:
    """The next records, exactly so many."""
    found: list[Message] = []
    until(
        lambda: len(found) >= count, lambda: found.extend(consumer.consume(count - len(found), 0.2)), f"{count} records"
    )
    assert [each.error() for each in found if each.error()] == []
    return found


def places(messages: list[Message]) -> list[tuple[int | None, int | None]]:
    return sorted((each.partition(), each.offset()) for each in messages)


def rows_from(partition: int, start: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(start, 10)]


# -- positions --


def test_a_consumer_seeks_where_it_is_told(filled: str, new_consumer: NewConsumer) -> None:
    consumer = new_consumer()
    consumer.assign([TopicPartition(filled, 0, OFFSET_BEGINNING)])
    assert places(read(consumer, 10)) == rows_from(0, 0)
    consumer.seek(TopicPartition(filled, 0, 7))
    assert places(read(consumer, 3)) == rows_from(0, 7)
    consumer.seek(TopicPartition(filled, 0, OFFSET_BEGINNING))
    assert places(read(consumer, 1)) == [(0, 0)]


def test_a_consumer_at_the_end_sees_only_what_comes(bootstrap: str, filled: str, new_consumer: NewConsumer) -> None:
    consumer = new_consumer(**{"enable.partition.eof": True})
    consumer.assign([TopicPartition(filled, 0, OFFSET_END)])
    ends: list[Message] = []
    until(lambda: bool(ends), lambda: ends.extend(consumer.consume(1, 0.2)), "the end of the partition")
    Confluent().produce(bootstrap, filled, {0: [Row(EPOCH_MS, None, b"new")]})
    (message,) = [each for each in consumer.consume(1, LIMIT_S) if not each.error()]
    assert (message.offset(), message.value()) == (10, b"new")


def test_an_offset_out_of_range_is_reset_or_told(filled: str, new_consumer: NewConsumer) -> None:
    consumer = new_consumer()
    consumer.assign([TopicPartition(filled, 0, 500)])
    assert places(read(consumer, 10)) == rows_from(0, 0)
    strict = new_consumer(auto_offset_reset="error")
    strict.assign([TopicPartition(filled, 0, 500)])
    (message,) = strict.consume(1, LIMIT_S)
    assert message.error().name() in {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}


def test_a_paused_partition_gives_nothing_until_it_is_resumed(filled: str, new_consumer: NewConsumer) -> None:
    consumer = new_consumer()
    consumer.assign([TopicPartition(filled, i, OFFSET_BEGINNING) for i in range(2)])
    consumer.pause([TopicPartition(filled, 1)])
    assert places(read(consumer, 10)) == rows_from(0, 0)
    consumer.resume([TopicPartition(filled, 1)])
    assert places(read(consumer, 10)) == rows_from(1, 0)


def test_offsets_by_time(filled: str, new_consumer: NewConsumer) -> None:
    consumer = new_consumer()

    def at(timestamp_ms: int) -> int:
        (found,) = consumer.offsets_for_times([TopicPartition(filled, 0, timestamp_ms)], timeout=LIMIT_S)
        assert found.error is None
        return int(found.offset)

    assert [at(EPOCH_MS + delta) for delta in (-1, 0, 1, 1000, 8999, 9000)] == [0, 0, 1, 1, 9, 9]
    assert at(EPOCH_MS + 9001) == OFFSET_END
    assert consumer.get_watermark_offsets(TopicPartition(filled, 0), timeout=LIMIT_S) == (0, 10)


def test_timestamps_are_the_producers_or_the_brokers(
    bootstrap: str, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    theirs, ours = new_topic(), new_topic(message_timestamp_type="LogAppendTime")
    for topic in (theirs, ours):
        Confluent().produce(bootstrap, topic, {0: [Row(EPOCH_MS, None, b"x")]}, codec="lz4")
    consumer = new_consumer()
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in (theirs, ours)])
    stamps = {each.topic(): each.timestamp() for each in read(consumer, 2)}
    assert stamps[theirs] == (TIMESTAMP_CREATE_TIME, EPOCH_MS)
    assert stamps[ours][0] == TIMESTAMP_LOG_APPEND_TIME
    assert stamps[ours][1] > EPOCH_MS


# -- commits --


def test_commits_by_hand_and_what_they_carry(filled: str, new_consumer: NewConsumer) -> None:
    consumer = new_consumer()
    asked = [TopicPartition(filled, i) for i in range(2)]
    assert [each.offset for each in consumer.committed(asked, timeout=LIMIT_S)] == [-1001, -1001]
    (done,) = consumer.commit(offsets=[TopicPartition(filled, 0, 4, "made by hand")], asynchronous=False)
    assert (done.offset, done.error) == (4, None)
    found = consumer.committed(asked, timeout=LIMIT_S)
    assert [(each.offset, each.metadata) for each in found] == [(4, "made by hand"), (-1001, None)]
    again = new_consumer()
    again.assign([TopicPartition(filled, 0, OFFSET_STORED)])
    assert places(read(again, 6)) == rows_from(0, 4)


def test_a_commit_of_a_message_is_the_next_offset(filled: str, new_consumer: NewConsumer) -> None:
    consumer = new_consumer()
    consumer.subscribe([filled])
    message = read(consumer, 1)[0]
    consumer.commit(message, asynchronous=False)
    (found,) = consumer.committed([TopicPartition(filled, message.partition())], timeout=LIMIT_S)
    assert found.offset == 1


def test_a_group_over_a_pattern_finds_new_topics_and_partitions(
    bootstrap: str, admin: Any, name: str, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    from confluent_kafka.admin import NewPartitions

    first = new_topic()
    consumer = new_consumer(topic_metadata_refresh_interval_ms=50, **{"heartbeat.interval.ms": 100})
    consumer.subscribe([f"^{name}-.*"])

    def assigned() -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in consumer.assignment()}

    def poll() -> None:
        assert consumer.consume(1, 0.05) == []

    until(lambda: assigned() == {(first, 0)}, poll, "the first topic")
    second = new_topic(partitions=2)
    until(lambda: assigned() == {(first, 0), (second, 0), (second, 1)}, poll, "the second topic")
    admin.create_partitions([NewPartitions(first, 3)])[first].result()
    until(lambda: len(assigned()) == 5, poll, "the new partitions")


# -- cooperative rebalancing --


class Cooperating:
    """A member that notes what is given to it and taken from it."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.consumer = consumer
        self.given: list[int] = []
        self.taken: list[int] = []
        self.lost: list[int] = []
        consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose)

    @property
    def partitions(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.given += [each.partition for each in partitions]
        consumer.incremental_assign(partitions)

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.taken += [each.partition for each in partitions]
        consumer.incremental_unassign(partitions)

    def _lose(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.lost += [each.partition for each in partitions]


def test_cooperating_members_keep_what_they_may_keep(new_topic: NewTopicFactory, new_consumer: NewConsumer) -> None:
    topic = new_topic(partitions=6)
    settings = {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 100}
    members = [Cooperating(new_consumer(**settings), topic)]

    def poll() -> None:
        for member in members:
            member.consumer.poll(0.02)

    until(lambda: members[0].partitions == set(range(6)), poll, "all partitions")
    members.append(Cooperating(new_consumer(**settings), topic))
    until(lambda: [len(each.partitions) for each in members] == [3, 3], poll, "half of the partitions each")
    assert sorted(members[0].taken) == sorted(members[1].given)  # what stayed was never taken
    members.pop().consumer.close()
    until(lambda: members[0].partitions == set(range(6)), poll, "the partitions of the one who left")
    assert members[0].lost == []


# -- producers --


def test_an_idempotent_producer_with_many_in_flight_keeps_the_order(
    bootstrap: str, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 3,
            "max.in.flight.requests.per.connection": 5,
        }
    )
    for i in range(300):
        producer.produce(topic, b"%d" % i, partition=0)
    assert producer.flush(LIMIT_S) == 0
    consumer = new_consumer()
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [each.value() for each in read(consumer, 300)] == [b"%d" % i for i in range(300)]


def test_a_message_that_is_too_large_for_its_topic_is_refused(bootstrap: str, new_topic: NewTopicFactory) -> None:
    topic = new_topic(max_message_bytes="2000")
    errors: list[str | None] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    for size in (100, 3000):
        producer.produce(topic, bytes(size), on_delivery=lambda error, _: errors.append(error and error.name()))
        assert producer.flush(LIMIT_S) == 0
    assert errors == [None, "MSG_SIZE_TOO_LARGE"]


def test_a_partition_that_is_not_there_is_told(bootstrap: str, new_topic: NewTopicFactory) -> None:
    topic = new_topic()
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"x", partition=0)
    producer.produce(topic, b"x", partition=5, on_delivery=lambda error, _: errors.append(error.name()))
    assert producer.flush(LIMIT_S) == 0
    assert errors == ["_UNKNOWN_PARTITION"]


def test_read_committed_reads_what_was_written_without_a_transaction(filled: str, new_consumer: NewConsumer) -> None:
    consumer = new_consumer(isolation_level="read_committed")
    consumer.assign([TopicPartition(filled, 0, OFFSET_BEGINNING)])
    assert places(read(consumer, 10)) == rows_from(0, 0)


def test_the_consumer_protocol_shares_partitions_and_commits(filled: str, new_consumer: NewConsumer) -> None:
    group = {"group_protocol": "consumer", "group_id": f"{filled}-consumers"}
    consumer = new_consumer(**group, auto_offset_reset="earliest")
    consumer.subscribe([filled])
    read(consumer, 10)
    consumer.commit(asynchronous=False)
    consumer.close()
    later = new_consumer(**group, auto_offset_reset="earliest")
    later.subscribe([filled])
    until(lambda: bool(later.assignment()), lambda: later.poll(0.1), "an assignment")
    committed = later.committed(later.assignment(), timeout=LIMIT_S)
    assert sum(each.offset for each in committed if each.offset > 0) == 10
