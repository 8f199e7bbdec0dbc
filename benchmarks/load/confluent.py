"""A process that uses confluent-kafka as an application would.

    python -m benchmarks.load.confluent produce|consume HOST:PORT TOPIC RECORDS SIZE
    python -m benchmarks.load.confluent trace HOST:PORT TOPIC RECORDS SIZE [NAME=VALUE ...]

Prints `records_per_s=N`, and for produce `p99_ms=N` (from `produce` to the delivery report, of every hundredth record).
`trace` produces with librdkafka's statistics on, and these settings of the producer; it also prints where a record's
time went, as means in ms: `queue_ms` (in librdkafka's queue), `socket_ms` (until the socket took the request),
`request_ms` (until the reply) and `report_ms` (until the application had called `poll` and had its report).
"""

import json
import sys
from collections.abc import Iterable, Mapping
from statistics import mean, quantiles
from time import perf_counter
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

SAMPLE_EVERY = 100
BATCH = 10_000  # records that a consumer requests from its library at a time
PATIENCE_S = 60.0
STATISTICS_MS = 100
STEPS = {"queue_ms": "int_latency", "socket_ms": "outbuf_latency", "request_ms": "rtt"}


def produce(address: str, topic: str, records: int, size: int) -> str:
    """Produce `records` records of `size` bytes."""
    rate, latencies_ms = produced(Producer({"bootstrap.servers": address}), topic, records, size)
    return f"records_per_s={rate} p99_ms={quantiles(latencies_ms, n=100)[-1]}"


def produced(producer: Producer, topic: str, records: int, size: int) -> tuple[float, list[float]]:
    """Produce; return records/s until the last report, and the latencies of the sampled records in ms."""
    producer.list_topics(topic, timeout=PATIENCE_S)
    value, latencies_ms = b"x" * size, list[float]()

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
    return records / (perf_counter() - began_at), latencies_ms


def trace(address: str, topic: str, records: int, size: int, *settings: str) -> str:
    """Produce with statistics."""
    printed: list[str] = []
    given = dict(setting.split("=", 1) for setting in settings)
    config = {"bootstrap.servers": address, "statistics.interval.ms": STATISTICS_MS, "stats_cb": printed.append}
    producer = Producer(config | given)
    rate, latencies_ms = produced(producer, topic, records, size)
    complete, until = len(printed) + 2, perf_counter() + PATIENCE_S  # the next one may be on its way
    while len(printed) < complete and perf_counter() < until:
        producer.poll(STATISTICS_MS / 1e3)
    figures = {"records_per_s": rate} | life(map(json.loads, printed), mean(latencies_ms))
    return " ".join(f"{name}={value}" for name, value in figures.items())


def life(statistics: Iterable[Mapping[str, Any]], latency_ms: float) -> dict[str, float]:
    """Return the parts of a record's mean latency, from librdkafka's statistics of all intervals."""
    sums_us, counts = dict.fromkeys(STEPS, 0), dict.fromkeys(STEPS, 0)
    for interval in statistics:
        for broker in interval["brokers"].values():
            if not broker.get("req", {}).get("Produce"):
                continue
            for name, theirs in STEPS.items():
                sums_us[name] += broker[theirs]["sum"]
                counts[name] += broker[theirs]["cnt"]
    means = {name: sums_us[name] / max(1, counts[name]) / 1e3 for name in STEPS}
    return means | {"report_ms": max(0.0, latency_ms - sum(means.values()))}


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
    verb, address, topic, records, size, *settings = sys.argv[1:]
    if verb == "trace":
        print(trace(address, topic, int(records), int(size), *settings))
        return
    assert not settings, f"{verb} takes no settings"
    work = {"produce": produce, "consume": consume}[verb]
    print(work(address, topic, int(records), int(size)))


if __name__ == "__main__":
    main()
