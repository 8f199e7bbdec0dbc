"""confluent-kafka's consumers change from the classic to the consumer protocol and back, one after the other.

Meanwhile records are written, and each of them is read once.
"""

from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, Producer
from confluent_kafka.admin import AdminClient, ConsumerGroupListing, ListConsumerGroupsResult, NewTopic

from tests.clients.waiting import until
from warmlog.testing import Broker

PARTITIONS = 6
MEMBERS = 3
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.assignment.interval.ms": 0,
    "offsets.topic.num.partitions": 1,
}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker(settings=SETTINGS) as broker:
        yield broker.kafka


class Team:
    """Members of one group, which read in turn, and a producer."""

    def __init__(self, bootstrap: str, topic: str, assignor: str, instances: tuple[str, ...] | None) -> None:
        self._bootstrap, self._topic, self._assignor, self._instances = bootstrap, topic, assignor, instances
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        self.members: dict[int, Consumer] = {}
        self.read: Counter[tuple[int, int]] = Counter()
        self.written = 0
        self._admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()

    def start(self, number: int, protocol: str) -> None:
        config: dict[str, object] = {
            "bootstrap.servers": self._bootstrap,
            "group.id": self._topic,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
        }
        if self._instances is not None:
            config["group.instance.id"] = self._instances[number]
        if protocol == "classic":
            config |= {
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 100,
                "partition.assignment.strategy": self._assignor,
            }
        self.members[number] = Consumer(config)
        self.members[number].subscribe([self._topic])

    def stop(self, number: int) -> None:
        self.members.pop(number).close()

    def step(self) -> None:
        """Write a record to each partition, and let each member read."""
        for partition in range(PARTITIONS):
            self._producer.produce(self._topic, b"x", partition=partition)
        self._producer.flush()
        self.written += 1
        self.poll()

    def poll(self) -> None:
        for consumer in self.members.values():
            for message in consumer.consume(100, timeout=0.02):
                if message.error() is None:
                    self.read[message.partition(), message.offset()] += 1
                else:  # of a JoinGroup that waited when the group was converted, as with Kafka; it is sent again
                    assert message.error().code() == KafkaError.REBALANCE_IN_PROGRESS

    def is_shared(self) -> bool:
        """Whether all members have partitions, together all of them, and the last rebalance is over.

        A member that has not taken part in a rebalance when a group goes back to the classic protocol is in a wrong
        generation, also with Kafka, and begins again with what was committed.
        """
        assigned = [{each.partition for each in consumer.assignment()} for consumer in self.members.values()]
        are_all = sorted(each for partitions in assigned for each in partitions) == list(range(PARTITIONS))
        return all(assigned) and are_all and self._group.state is ConsumerGroupState.STABLE

    def until_shared(self, what: str) -> None:
        until(self.is_shared, self.step, what)

    def until_all_read(self) -> None:
        expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(self.written)}
        until(lambda: self.read.keys() == expected, self.poll, "the last records")

    @property
    def _group(self) -> ConsumerGroupListing:
        listed: ListConsumerGroupsResult = self._admin.list_consumer_groups().result()
        return next(each for each in listed.valid if each.group_id == self._topic)

    @property
    def kind(self) -> str:
        return self._group.type.name.lower()

    def roll(self, protocol: str) -> None:
        """Restart each member with this protocol."""
        for number in range(MEMBERS):
            self.stop(number)
            self.start(number, protocol)
            self.until_shared(f"member {number} with the {protocol} protocol")


@pytest.mark.parametrize("instances", [None, ("one", "two", "three")], ids=["dynamic", "static"])
@pytest.mark.parametrize("assignor", ["range", "roundrobin"])  # those of librdkafka without user data in assignments
def test_a_rolling_change_of_the_protocol_and_back_loses_and_repeats_nothing(
    bootstrap: str, assignor: str, instances: tuple[str, ...] | None
) -> None:
    team = Team(bootstrap, f"rolled-{assignor}-{'static' if instances else 'dynamic'}", assignor, instances)
    for number in range(MEMBERS):
        team.start(number, "classic")
    team.until_shared("the first assignment")
    assert team.kind == "classic"
    team.roll("consumer")
    assert team.kind == "consumer"
    team.roll("classic")
    assert team.kind == "classic"
    team.until_all_read()
    for number in range(MEMBERS):
        team.stop(number)
    assert sorted((record, count) for record, count in team.read.items() if count > 1) == []
