"""A producer that measures how long partitions accept no records after their leader was killed.

    python -m benchmarks.load.failover HOST:PORT TOPIC PARTITIONS EVERY_MS

confluent-kafka with acks=all and idempotence sends a record to each partition every EVERY_MS. Prints `ready` once every
partition has acknowledged one. Then each line of its input is a time on the monotonic clock and the partitions whose
leader was killed at that time; the response has, for each of them, the milliseconds until a record sent after that time
was acknowledged. At the end of its input, it prints the number of acknowledged records.
"""

import sys
import threading
from functools import partial
from time import perf_counter

from confluent_kafka import KafkaError, Message, Producer

PATIENCE_S = 90.0
QUIET = 2  # syslog level: do not log that a broker has ended
VALUE = b"x" * 100


class Kill:
    """The partitions that lost their leader at a given time, and the seconds until each accepted a record again."""

    def __init__(self, at: float, partitions: set[int]) -> None:
        self.at = at
        self.missing = partitions
        self.gaps_s: list[float] = []
        self.over = threading.Event()

    def acknowledged(self, partition: int, sent_at: float) -> None:
        """Record an acknowledged record."""
        if sent_at > self.at and partition in self.missing:
            self.missing.remove(partition)
            self.gaps_s.append(perf_counter() - self.at)
            if not self.missing:
                self.over.set()


class PacedProducer:
    """Sends to all partitions until `stop`, in the thread that calls `run`."""

    def __init__(self, address: str, topic: str, partitions: int, every_s: float) -> None:
        self.acknowledged = 0
        self.kill = Kill(perf_counter(), set(range(partitions)))  # the first acknowledgements end this one
        self.stopped = threading.Event()
        self._topic, self._partitions, self._every_s = topic, partitions, every_s
        settings = {"bootstrap.servers": address, "acks": "all", "enable.idempotence": True, "log_level": QUIET}
        self._producer = Producer(settings)

    def run(self) -> None:
        """Send on schedule, then wait for the records in flight."""
        next_at = perf_counter()
        while not self.stopped.is_set():
            for partition in range(self._partitions):
                delivered = partial(self._delivered, partition, perf_counter())
                self._producer.produce(self._topic, VALUE, partition=partition, on_delivery=delivered)
            next_at += self._every_s
            while (left_s := next_at - perf_counter()) > 0:
                self._producer.poll(left_s)
        assert self._producer.flush(PATIENCE_S) == 0

    def _delivered(self, partition: int, sent_at: float, error: KafkaError | None, message: Message) -> None:
        del message
        assert error is None, error
        self.acknowledged += 1
        self.kill.acknowledged(partition, sent_at)


def main() -> None:
    """Produce until the input ends."""
    address, topic, partitions, every_ms = sys.argv[1:]
    producer = PacedProducer(address, topic, int(partitions), float(every_ms) / 1e3)
    thread = threading.Thread(target=producer.run, daemon=True)  # it ends with a failed assertion
    thread.start()
    assert producer.kill.over.wait(PATIENCE_S), "not every partition accepts records"
    print("ready", flush=True)
    for line in sys.stdin:
        at, *numbers = line.split()
        producer.kill = kill = Kill(float(at), set(map(int, numbers)))
        assert kill.over.wait(PATIENCE_S), f"partitions {sorted(kill.missing)} accept nothing"
        print(*[f"{gap_s * 1e3:.1f}" for gap_s in kill.gaps_s], flush=True)
    producer.stopped.set()
    thread.join()
    print(producer.acknowledged)


if __name__ == "__main__":
    main()
