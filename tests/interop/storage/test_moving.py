"""docs/moving.md, step by step: a topic and committed offsets moved from Kafka to warmlog and back.

The commands are those of the document. Only starting and stopping the brokers, which it leaves to whoever runs them, is
done here.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop.compare.wire import BY_NAME, Connection
from interop.kafka_node import SETTINGS, KafkaNode, consume, launch
from tests.clients.committing import commit
from tests.documents import add_command, command_directory, run_block, shell_blocks
from warmlog import Client
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

BLOCKS = shell_blocks("docs/moving.md")
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions.sh": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-dump-log.sh": "org.apache.kafka.tools.DumpLogSegments",
}
TOPIC, GROUP, CONSUMERS = "orders", "readers", "consumers"
UNREADY = {14, 15, 16}  # the coordinator loads, is not available, or is another broker
LEADERLESS = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
LIMIT_S = 60
RECORDS = 600
COMMITTED = {0: 123, 1: 45}
LOG_START = 30  # of partition 1
OUR_SETTINGS = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0, "log.segment.bytes": 16384}

#: Offset to key and value, by partition.
Records = dict[int, dict[int, tuple[bytes, bytes]]]


@dataclass(kw_only=True)
class Place:
    """Where a story happens: both brokers' directories, and the commands."""

    root: Path
    kafka: KafkaNode
    warmlog: Path
    commands: Path
    sent: Records = field(default_factory=lambda: {0: {}, 1: {}})

    def run(self, block: str, **variables: str) -> str:
        """Run a block of the document."""
        known = {"KAFKA": self.kafka.data, "WARMLOG": self.warmlog, "KAFKA_BOOTSTRAP": self.kafka.bootstrap}
        return run_block(BLOCKS[block], self.commands, self.root, {**known, **variables})

    def broker(self) -> Broker:
        """Our broker over its directory."""
        return Broker(data_dir=self.warmlog, settings=OUR_SETTINGS)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    commands = command_directory(tmp_path)
    for name, main in TOOLS.items():
        add_command(commands, name, *launch(), main)
    node = KafkaNode(tmp_path / "kafka", settings={**SETTINGS, "log.segment.bytes": 1 << 20})
    yield Place(root=tmp_path, kafka=node, warmlog=tmp_path / "warmlog", commands=commands)
    node.kill()


def fill(bootstrap: str, place: Place) -> None:
    """Records of an idempotent producer, offsets of a group, and a log start inside a segment."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4"})
    for number in range(RECORDS):
        partition, key, value = number % 2, b"key %d" % number, b"value %d" % number * 5
        place.sent[partition][number // 2] = (key, value)
        producer.produce(TOPIC, key=key, value=value, partition=partition)
        if number % 50 == 49:
            producer.flush()
    producer.flush()
    commit(bootstrap, GROUP, *[TopicPartition(TOPIC, *each) for each in COMMITTED.items()])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(TOPIC, 1, LOG_START)]).values():
        future.result()
    place.sent[1] = {offset: row for offset, row in place.sent[1].items() if offset >= LOG_START}


def beat(connection: Connection, member: str, epoch: int, **fields: Any) -> dict[str, Any]:
    """Send the heartbeat of a member of a consumer group (KIP-848) until the group is loaded; return the answer."""
    usual: dict[str, Any] = {
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout_ms": -1,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": None,
    }
    asked = {"group_id": CONSUMERS, "member_id": member, "member_epoch": epoch, **usual, **fields}
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        connection.send(BY_NAME["ConsumerGroupHeartbeat"], 1, asked)
        answer = connection.receive()
        if answer["error_code"] not in UNREADY:
            break
    assert answer["error_code"] == 0, answer
    return answer


def enter(bootstrap: str) -> dict[str, Any]:
    """Let two members of a consumer group share the topic, and describe the group."""
    joining = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [TOPIC], "topic_partitions": []}
    with Connection(bootstrap) as connection:
        members = {name: beat(connection, name, 0, **joining) for name in ("a", "b")}
        owned = {name: answer["assignment"]["topic_partitions"] for name, answer in members.items()}
        while sorted(len(topics[0]["partitions"]) if topics else 0 for topics in owned.values()) != [1, 1]:
            for name, last in list(members.items()):
                answer = beat(connection, name, last["member_epoch"], topic_partitions=owned[name])
                members[name] = answer
                if answer["assignment"] is not None:
                    owned[name] = answer["assignment"]["topic_partitions"]
    return described(bootstrap)


def described(bootstrap: str) -> dict[str, Any]:
    """Describe the consumer group once it is loaded."""
    deadline = time.monotonic() + LIMIT_S
    group: dict[str, Any] = {}
    with Connection(bootstrap) as connection:
        while time.monotonic() < deadline and group.get("error_code", -1) != 0:
            asked = {"group_ids": [CONSUMERS], "include_authorized_operations": False}
            connection.send(BY_NAME["ConsumerGroupDescribe"], 1, asked)
            (group,) = connection.receive()["groups"]
    return {**group, "members": sorted(group["members"], key=itemgetter("member_id"))}


def continue_there(bootstrap: str, before: Mapping[str, Any]) -> None:
    """Check that the group came along, and that its members get the partitions of the new topic without a join.

    The topic has another id here, and the partitions of the former one count no longer.
    """
    here = described(bootstrap)
    for group in (here, before):
        assert {member["member_id"]: member["member_type"] for member in group["members"]} == {"a": 1, "b": 1}
    assert here["group_epoch"] >= before["group_epoch"]
    epochs = {member["member_id"]: member["member_epoch"] for member in here["members"]}
    assert epochs == {member["member_id"]: member["member_epoch"] for member in before["members"]}
    owned: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    deadline = time.monotonic() + LIMIT_S
    with Connection(bootstrap) as connection:
        while sorted(len(topics[0]["partitions"]) if topics else 0 for topics in owned.values()) != [1, 1]:
            assert time.monotonic() < deadline, owned
            for name, epoch in epochs.items():
                answer = beat(connection, name, epoch, topic_partitions=owned[name])
                epochs[name] = answer["member_epoch"]
                if answer["assignment"] is not None:
                    owned[name] = answer["assignment"]["topic_partitions"]


def group_member(bootstrap: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False})


def committed(bootstrap: str) -> dict[int, int]:
    consumer = group_member(bootstrap)
    try:
        found = consumer.committed([TopicPartition(TOPIC, partition) for partition in COMMITTED], timeout=30)
    finally:
        consumer.close()
    return {each.partition: each.offset for each in found}


def create_on(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, 2, 1)]).values():
        future.result()


def everything(bootstrap: str) -> Records:
    """All records, as a client of Kafka's sees them from the beginning."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in (0, 1)])
    ends = [watermarks(consumer, partition) for partition in (0, 1)]
    seen: Records = {0: {}, 1: {}}
    wanted = sum(end - start for start, end in ends)
    while sum(map(len, seen.values())) < wanted:
        message = consumer.poll(30)
        if message is None or message.error():
            raise KafkaException(f"{sum(map(len, seen.values()))} of {wanted} records: {message and message.error()}")
        seen[message.partition()][message.offset()] = (message.key(), message.value())
    consumer.close()
    return seen


def watermarks(consumer: Consumer, partition: int) -> tuple[int, int]:
    """Return the first offset and the end of a partition, once a broker that has just started leads it."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            first, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)
        except KafkaException as error:
            if error.args[0].code() not in LEADERLESS or time.monotonic() > deadline:
                raise
        else:
            return first, end


def produce_one(bootstrap: str) -> None:
    """The log is written on at its end."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce(TOPIC, key=b"one", value=b"more", partition=0)
    assert producer.flush(30) == 0


def test_from_kafka_to_warmlog(place: Place) -> None:
    with place.kafka as kafka:
        create_on(kafka.bootstrap)
        fill(kafka.bootstrap, place)
        group = enter(kafka.bootstrap)
        assert "PartitionCount: 2" in place.run("kafka-to-warmlog-look")
    assert "nothing wrong" in place.run("kafka-to-warmlog-stopped")
    with place.broker() as broker:
        place.run("kafka-to-warmlog-create", WARMLOG_NATIVE=broker.native)
    place.run("kafka-to-warmlog-copy")
    place.run("kafka-to-warmlog-log-starts")
    assert "nothing wrong" in place.run("kafka-to-warmlog-check")
    with place.broker() as broker:
        assert everything(broker.kafka) == place.sent
        assert committed(broker.kafka) == COMMITTED
        continue_there(broker.kafka, group)
        produce_one(broker.kafka)
        with Client(broker.native) as client:
            ends = {each.partition: each.log_end_offset for each in client.describe_topics(TOPIC)[0].partitions}
        assert ends == {0: RECORDS // 2 + 1, 1: RECORDS // 2}
    assert "nothing wrong" in place.run("kafka-to-warmlog-check")


def test_from_warmlog_to_kafka(place: Place) -> None:
    with place.broker() as broker:
        create_on(broker.kafka)
        fill(broker.kafka, place)
        group = enter(broker.kafka)
    with place.kafka:
        place.run("warmlog-to-kafka-create")
    assert "nothing wrong" in place.run("warmlog-to-kafka-stopped")
    place.run("warmlog-to-kafka-copy")
    place.run("warmlog-to-kafka-log-starts")
    assert "nothing wrong" in place.run("warmlog-to-kafka-check")
    assert "isvalid: true" in place.run("warmlog-to-kafka-dump")
    with place.kafka as kafka:
        assert everything(kafka.bootstrap) == place.sent
        assert committed(kafka.bootstrap) == COMMITTED
        continue_there(kafka.bootstrap, group)
        assert [len(each["records"]) for each in consume(kafka.bootstrap, TOPIC)]  # type: ignore[arg-type]
        produce_one(kafka.bootstrap)
        place.sent[0][RECORDS // 2] = (b"one", b"more")
        assert everything(kafka.bootstrap) == place.sent
    assert "nothing wrong" in place.run("warmlog-to-kafka-check")
