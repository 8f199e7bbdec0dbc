"""Three client libraries behind one interface: each produces a list of rows, and reads partitions from begin to end.

What a single library can do is tested with that library itself.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import confluent_kafka
import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioTopicPartition

from tests.clients.waiting import LIMIT_S, until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: What one request or batch may hold: the broker's limits are to decide, not the library's.
REQUEST_MAX_BYTES = 8 << 20


class Row(NamedTuple):
    """One record: `timestamp` in ms."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


#: By partition.
Rows = Mapping[int, Sequence[Row]]


def in_turn(rows: Rows) -> Iterator[tuple[int, Row]]:
    """Every row with its partition, the partitions one after the other."""
    return ((partition, row) for partition, chosen in rows.items() for row in chosen)


class Library(Protocol):
    """What every one of them can do. `acks` is 0, 1 or -1."""

    name: str

    def produce(
        self, bootstrap: str, topic: str, rows: Rows, *, codec: str = "none", acks: int = -1
    ) -> dict[int, list[int]]:
        """Produce the rows of each partition in order; returns their offsets as acknowledged (-1 each for acks 0)."""

    def read(self, bootstrap: str, topic: str, *, partitions: int = 1) -> list[list[Row]]:
        """Read each partition from its beginning to its end as it was at the start."""


class Confluent:
    """confluent-kafka, which is librdkafka."""

    name = "confluent"

    def produce(
        self, bootstrap: str, topic: str, rows: Rows, *, codec: str = "none", acks: int = -1
    ) -> dict[int, list[int]]:
        offsets: dict[int, list[int]] = {partition: [] for partition in rows}
        errors: list[object] = []

        def delivered(error: object, message: Any) -> None:
            errors.extend([error] if error else [])
            offsets[message.partition()].append(message.offset() if acks else -1)

        settings = {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "acks": acks,
            "linger.ms": 20,
            "message.max.bytes": REQUEST_MAX_BYTES,
        }
        with confluent_kafka.Producer(settings) as producer:
            for partition, (timestamp, key, value, headers) in in_turn(rows):
                producer.produce(
                    topic, value, key, partition, on_delivery=delivered, timestamp=timestamp, headers=list(headers)
                )
            assert producer.flush(LIMIT_S) == 0
        assert errors == []
        return offsets

    def read(self, bootstrap: str, topic: str, *, partitions: int = 1) -> list[list[Row]]:
        found: list[list[Row]] = [[] for _ in range(partitions)]
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "fetch.wait.max.ms": 50}
        )
        try:
            ends = [
                consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, i), timeout=LIMIT_S)
                for i in range(partitions)
            ]
            missing = sum(high - low for low, high in ends)
            consumer.assign([confluent_kafka.TopicPartition(topic, i, low) for i, (low, _) in enumerate(ends)])

            def step() -> None:
                for message in consumer.consume(500, timeout=0.2):
                    assert message.error() is None
                    found[message.partition()].append(
                        Row(
                            message.timestamp()[1],
                            message.key(),
                            message.value(),
                            tuple(message.headers() or ()),
                        )
                    )

            until(lambda: sum(map(len, found)) >= missing, step, f"{missing} records of {topic}")
        finally:
            consumer.close()
        return found


class KafkaPython:
    """kafka-python: threads and sockets in pure Python."""

    name = "kafka-python"

    def produce(
        self, bootstrap: str, topic: str, rows: Rows, *, codec: str = "none", acks: int = -1
    ) -> dict[int, list[int]]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks,
            enable_idempotence=acks == -1,
            linger_ms=20,
            max_request_size=REQUEST_MAX_BYTES,
        )
        try:
            sent = [
                (partition, producer.send(topic, value, key, list(headers), partition, timestamp))
                for partition, (timestamp, key, value, headers) in in_turn(rows)
            ]
            producer.flush(LIMIT_S)
            offsets = [(partition, each.get(LIMIT_S).offset if acks else -1) for partition, each in sent]
            return {partition: [offset for there, offset in offsets if there == partition] for partition in rows}
        finally:
            producer.close()

    def read(self, bootstrap: str, topic: str, *, partitions: int = 1) -> list[list[Row]]:
        found: list[list[Row]] = [[] for _ in range(partitions)]
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            fetch_max_wait_ms=50,
            max_partition_fetch_bytes=REQUEST_MAX_BYTES,
        )
        try:
            asked = [kafka.TopicPartition(topic, i) for i in range(partitions)]
            consumer.assign(asked)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(asked)

            def step() -> None:
                for where, records in consumer.poll(timeout_ms=200).items():
                    found[where.partition].extend(
                        Row(each.timestamp, each.key, each.value, tuple(each.headers)) for each in records
                    )

            until(lambda: all(consumer.position(each) >= ends[each] for each in asked), step, f"the records of {topic}")
        finally:
            consumer.close()
        return found


class Aiokafka:
    """aiokafka, with an event loop of its own for each call."""

    name = "aiokafka"

    def produce(
        self, bootstrap: str, topic: str, rows: Rows, *, codec: str = "none", acks: int = -1
    ) -> dict[int, list[int]]:
        async def main() -> dict[int, list[int]]:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                acks=acks,
                linger_ms=20,
                max_request_size=REQUEST_MAX_BYTES,
            )
            async with producer:
                sent = [
                    (partition, await producer.send(topic, value, key, partition, timestamp, list(headers)))
                    for partition, (timestamp, key, value, headers) in in_turn(rows)
                ]
                await producer.flush()
                offsets = [(partition, await each) for partition, each in sent]
            return {
                partition: [each.offset if acks else -1 for there, each in offsets if there == partition]
                for partition in rows
            }

        return asyncio.run(asyncio.wait_for(main(), LIMIT_S))

    def read(self, bootstrap: str, topic: str, *, partitions: int = 1) -> list[list[Row]]:
        async def main() -> list[list[Row]]:
            found: list[list[Row]] = [[] for _ in range(partitions)]
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=None,
                auto_offset_reset="earliest",
                fetch_max_wait_ms=50,
                max_partition_fetch_bytes=REQUEST_MAX_BYTES,
            )
            async with consumer:
                asked = [AioTopicPartition(topic, i) for i in range(partitions)]
                consumer.assign(asked)
                ends = await consumer.end_offsets(asked)
                while not all([await consumer.position(each) >= ends[each] for each in asked]):
                    for where, records in (await consumer.getmany(timeout_ms=200)).items():
                        found[where.partition].extend(
                            Row(each.timestamp, each.key, each.value, tuple(each.headers)) for each in records
                        )
            return found

        return asyncio.run(asyncio.wait_for(main(), LIMIT_S))


LIBRARIES: tuple[Library, ...] = (Confluent(), KafkaPython(), Aiokafka())
