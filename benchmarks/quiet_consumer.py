"""A consumer of many partitions to which nothing comes, as a process: until its standard input closes.

    python -m benchmarks.quiet_consumer HOST:PORT TOPIC PARTITIONS

Prints a line when it has been fetching from all of them for a moment.
"""

import select
import sys
from time import perf_counter

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

SETTLE_S = 3.0  # the first fetches name every partition, those after them nothing


def main() -> None:
    """The process."""
    address, topic, partitions = sys.argv[1:]
    consumer = Consumer({"bootstrap.servers": address, "group.id": "quiet", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(int(partitions))])
    settled_at = perf_counter() + SETTLE_S
    while perf_counter() < settled_at:
        consumer.poll(0.5)
    print("settled", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        consumer.poll(0.5)
    consumer.close()


if __name__ == "__main__":
    main()
