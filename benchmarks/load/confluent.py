"""A process that uses confluent-kafka as an application would.

    python -m benchmarks.load.confluent produce|consume HOST:PORT TOPIC RECORDS SIZE

Prints `records_per_s=N`, and for produce `p99_ms=N` (from `produce` to the delivery report, of every hundredth record).
"""

import sys
from statistics import quantiles
from time import perf_counter

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

SAMPLE_EVERY = 100
BATCH = 10_000  # records that a consumer requests from its library at a time
PATIENCE_S = 60.0


def produce(address: str, topic: str, records: int, size: int) -> str:
    """Produce `records` records of `size` bytes."""
    producer = Producer({"bootstrap.servers": address})
    producer.list_topics(topic, timeout=PATIENCE_S)
    value, latencies_ms = b"x" * size, []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        latencies_ms.append(message.latency() * 1e3)

    began_at = perf_counter()
    for number in range(records):
        on_delivery = delivered if number % SAMPLE_EVERY == 0 else None
        while True:
            try:
                producer.produce(topic, value, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(PATIENCE_S) == 0
    elapsed_s = perf_counter() - began_at
    return f"records_per_s={records / elapsed_s} p99_ms={quantiles(latencies_ms, n=100)[-1]}"


def consume(address: str, topic: str, records: int, size: int) -> str:
    """Consume all records of a topic."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "benchmark", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    count = total = 0
    began_at = perf_counter()
    while count < records:
        assert perf_counter() < began_at + PATIENCE_S, f"{count} records of {records}"
        for message in consumer.consume(BATCH, 0.5):
            assert message.error() is None, message.error()
            count += 1
            total += len(message.value())
    elapsed_s = perf_counter() - began_at
    consumer.close()
    assert total == records * size
    return f"records_per_s={records / elapsed_s}"


def main() -> None:
    """Produce or consume, and print the figures."""
    verb, address, topic, records, size = sys.argv[1:]
    work = {"produce": produce, "consume": consume}[verb]
    print(work(address, topic, int(records), int(size)))


if __name__ == "__main__":
    main()
