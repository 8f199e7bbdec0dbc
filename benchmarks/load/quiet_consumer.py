"""A process that consumes many quiet partitions until its standard input closes.

    python -m benchmarks.load.quiet_consumer HOST:PORT TOPIC PARTITIONS

It prints a line when it fetches from all of them. It uses kafka-python, which has fetch sessions like Java's consumer;
librdkafka has none.
"""

import select
import sys
from time import perf_counter

from kafka import KafkaConsumer, TopicPartition

SETTLE_S = 3.0  # the first fetches name every partition, later ones none
POLL_MS = 500


def main() -> None:
    """Consume until standard input closes."""
    address, topic, partitions = sys.argv[1:]
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=None, fetch_max_wait_ms=POLL_MS)
    assigned = [TopicPartition(topic, partition) for partition in range(int(partitions))]
    consumer.assign(assigned)
    consumer.seek_to_beginning(*assigned)
    settled_at = perf_counter() + SETTLE_S
    while perf_counter() < settled_at:
        consumer.poll(POLL_MS)
    print("settled", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        consumer.poll(POLL_MS)
    consumer.close()


if __name__ == "__main__":
    main()
