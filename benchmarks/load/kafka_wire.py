"""Requests to contestants in Kafka's protocol, encoded before a measurement begins.

A client library sets up measurements. The versions are the last ones that name topics by name, as used by current
clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from struct import Struct
from typing import Any, ClassVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from benchmarks.load.native import ANSWER_S, Address, SetupError
from warmlog.protocol.frame import LENGTH
from warmlog.protocol.kafka.api import API_BY_KEY
from warmlog.protocol.kafka.codec.engine import ENGINE

PRODUCE, PRODUCE_VERSION = 0, 11
FETCH, FETCH_VERSION = 1, 12
QUIET = 2  # syslog level: do not log that a broker has ended
_HEADER = Struct(">hhih")  # API key, version, correlation id, length of the client id
_CLIENT_ID = b"benchmark"
_names = (f"benchmark-{number}" for number in count())


@dataclass(frozen=True, slots=True)
class KafkaWire:
    """Requests as bytes, including frames. The load generator does not distinguish correlation ids, so all are 0.

    `acks` and `replicas` are used for its produce requests and its topics.
    """

    acks: int = 1
    replicas: int = 1

    good: ClassVar[bytes] = b""  # an error code is a zero among zeros here, so `check_count` counts afterwards
    greeting: ClassVar[bytes] = b""

    def produce(self, topic: str, partition: int, batches: bytes) -> bytes:
        """Append batches to a partition."""
        data = {"name": topic, "partition_data": ({"index": partition, "records": batches},)}
        values = {"transactional_id": None, "acks": self.acks, "timeout_ms": 30_000, "topic_data": (data,)}
        return _request(PRODUCE, PRODUCE_VERSION, values)

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int, wait_ms: int = 0) -> bytes:
        """Fetch available records from an offset on, waiting up to this long for any, outside any session."""
        asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
        values = {
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": max_bytes,
            "isolation_level": 0,
            "topics": ({"topic": topic, "partitions": (asked,)},),
            "forgotten_topics_data": (),
        }
        return _request(FETCH, FETCH_VERSION, values)

    def new_topic(self, address: Address, partitions: int) -> str:
        """Create a topic with a new name. Raises SetupError."""
        topic = next(_names)
        self.create_topic(address, topic, partitions, {})
        return topic

    def create_topic(self, address: Address, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic, and wait until the leader of every partition knows it. Raises SetupError."""
        admin = _admin(address)
        _done(
            admin.create_topics(
                [NewTopic(topic, partitions, self.replicas, config=dict(configs))], request_timeout=ANSWER_S
            )
        )
        while not _is_led(admin, topic, partitions):
            pass
        _latest(admin, [TopicPartition(topic, partition) for partition in range(partitions)])

    def alter_topic(self, address: Address, topic: str, configs: Mapping[str, str]) -> None:
        """Change settings of a topic. Raises SetupError."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
        ]
        admin = _admin(address)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        futures = admin.incremental_alter_configs([resource], request_timeout=ANSWER_S)
        _done({str(each): future for each, future in futures.items()})

    def drop_topic(self, address: Address, topic: str) -> None:
        """Delete a topic. Raises SetupError."""
        admin = _admin(address)  # it must exist until the deletion is done
        _done(admin.delete_topics([topic], operation_timeout=ANSWER_S))

    def check_count(self, address: Address, topic: str, least: int) -> None:
        """Raise SetupError unless a topic holds at least this many records."""
        admin = _admin(address)
        partitions = admin.list_topics(topic, timeout=ANSWER_S).topics[topic].partitions
        asked = [TopicPartition(topic, partition) for partition in partitions]
        found = _latest(admin, asked)
        if found < least:
            raise SetupError(f"{topic} holds {found} records, not {least}")

    def leaders(self, address: Address, topic: str) -> list[Address]:
        """Return the address of each partition's leader."""
        found = _admin(address).list_topics(topic, timeout=ANSWER_S)
        led = found.topics[topic].partitions
        nodes = [found.brokers[led[number].leader] for number in sorted(led)]
        return [(node.host, node.port) for node in nodes]

    def first_question(self, address: Address) -> None:
        """List the topics over a new connection. Raises SetupError."""
        _admin(address).list_topics(timeout=ANSWER_S)


def _request(key: int, version: int, values: Mapping[str, Any]) -> bytes:
    """Encode a request of a flexible version, with its frame's length."""
    header = _HEADER.pack(key, version, 0, len(_CLIENT_ID)) + _CLIENT_ID + b"\0"
    data = ENGINE.writer(API_BY_KEY[key].request, version, flexible=True).write(values, header)
    return LENGTH.pack(len(data)) + data


def _admin(address: Address) -> AdminClient:
    host, port = address
    return AdminClient({"bootstrap.servers": f"{host}:{port}", "log_level": QUIET})


# Errors of a new leader, or of another broker, until it knows the topic.
_NOT_YET = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}


def _latest(admin: AdminClient, asked: Sequence[TopicPartition]) -> int:
    """Count the records. A broker that has just become leader may not know the number yet."""
    while True:
        futures = admin.list_offsets({each: OffsetSpec.latest() for each in asked}, request_timeout=ANSWER_S)
        try:
            return sum(future.result().offset for future in futures.values())
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET:
                raise SetupError(str(error)) from error


def _is_led(admin: AdminClient, topic: str, partitions: int) -> bool:
    found = admin.list_topics(topic, timeout=ANSWER_S).topics[topic]
    if found.error is not None and found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise SetupError(f"topic {topic}: {found.error}")
    return len(found.partitions) == partitions and all(each.leader >= 0 for each in found.partitions.values())


def _done(futures: Mapping[str, object]) -> None:
    for topic, future in futures.items():
        try:
            future.result(ANSWER_S)  # type: ignore[attr-defined]
        except Exception as error:
            raise SetupError(f"topic {topic}: {error}") from error
