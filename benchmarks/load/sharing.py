"""A process that uses confluent-kafka's share consumers (KIP-932) as an application would.

    python -m benchmarks.load.sharing take HOST:PORT TOPIC RECORDS MEMBERS
    python -m benchmarks.load.sharing redeliver HOST:PORT TOPIC KILLS

`take` produces records of 100 B, lets members in threads acquire them from the first one on, and prints
`records_per_s=N`, counted from the first record taken. `redeliver` kills processes that hold records, and prints
`p50_ms=N longest_ms=N`: the time until another member has the first of them.
"""

import subprocess
import sys
import threading
from select import select
from statistics import median
from time import perf_counter

from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

SIZE = 100
PATIENCE_S = 120.0
QUIET = {"log_level": 0}  # otherwise each consumer logs that it is a preview
VICTIM = """
import sys
from benchmarks.load.sharing import member
consumer = member(sys.argv[1], sys.argv[2])
while not (messages := consumer.poll(timeout=1)):
    pass
print(messages[0].offset(), flush=True)
sys.stdin.read()
"""


def member(address: str, topic: str) -> ShareConsumer:
    """Return a member of the group with the topic's name."""
    consumer = ShareConsumer({"bootstrap.servers": address, "group.id": topic, **QUIET})
    consumer.subscribe([topic])
    return consumer


def begin_at_the_start(address: str, group: str) -> None:
    """Make a new group start with records produced before it."""
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": address, **QUIET})  # kept, since its deletion would cancel the request
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


class Taken:
    """Counts the records taken by all members."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.count = 0
        self.began_at = self.ended_at = 0.0
        self.is_over = threading.Event()
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count records; the first ones start the clock."""
        with self._lock:
            self.began_at = self.began_at or perf_counter()
            self.count += count
            if self.count >= self.wanted and not self.is_over.is_set():
                self.ended_at = perf_counter()
                self.is_over.set()


def take(address: str, topic: str, records: int, members: int) -> str:
    """Let members take all records of a topic."""
    begin_at_the_start(address, topic)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, **QUIET})
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, b"x" * SIZE)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(PATIENCE_S) == 0
    taken = Taken(records)

    def work(consumer: ShareConsumer) -> None:
        while not taken.is_over.is_set():
            if messages := consumer.poll(timeout=0.2):
                taken.add(len(messages))

    consumers = [member(address, topic) for _ in range(members)]
    threads = [threading.Thread(target=work, args=(consumer,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    assert taken.is_over.wait(PATIENCE_S), f"{taken.count} records of {records}"
    for thread in threads:
        thread.join()
    for consumer in consumers:
        consumer.close()
    return f"records_per_s={records / (taken.ended_at - taken.began_at)}"


class Survivor:
    """A member that accepts all its records, in a thread, until it is closed."""

    def __init__(self, address: str, topic: str) -> None:
        self._consumer = member(address, topic)
        self._times_s: dict[int, float] = {}  # time of the last delivery by offset
        self._arrival = threading.Condition()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._is_closing.is_set():
            messages = self._consumer.poll(timeout=0.2)
            with self._arrival:
                self._times_s |= {message.offset(): perf_counter() for message in messages or ()}
                self._arrival.notify_all()
        self._consumer.close()

    def wait_for(self, offset: int) -> float:
        """Wait for a record. Returns the time of its delivery, in s of the performance counter."""
        with self._arrival:
            assert self._arrival.wait_for(lambda: offset in self._times_s, PATIENCE_S), (
                f"record {offset} was not delivered"
            )
            return self._times_s[offset]

    def close(self) -> None:
        """Leave the group."""
        self._is_closing.set()
        self._thread.join()


def redeliver(address: str, topic: str, kills: int) -> str:
    """Kill processes that hold records of a topic with one partition, and wait until another member has the first."""
    topic += "-jobs"
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    begin_at_the_start(address, topic)
    producer = Producer({"bootstrap.servers": address, **QUIET})
    survivor, times_ms = Survivor(address, topic), list[float]()
    producer.produce(topic, b"x" * SIZE)
    survivor.wait_for(0)
    for _ in range(kills):
        command = [sys.executable, "-c", VICTIM, address, topic]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            while not select([victim.stdout], [], [], 0.02)[0]:  # either member may get a record
                producer.produce(topic, b"x" * SIZE)
                producer.poll(0)
            offset = int(victim.stdout.readline())
            victim.kill()
            killed_at = perf_counter()
            times_ms.append((survivor.wait_for(offset) - killed_at) * 1e3)
    survivor.close()
    return f"p50_ms={median(times_ms)} longest_ms={max(times_ms)}"


def main() -> None:
    """Take or redeliver, and print the figures."""
    verb, address, topic, *numbers = sys.argv[1:]
    work = {"take": take, "redeliver": redeliver}[verb]
    print(work(address, topic, *map(int, numbers)))


if __name__ == "__main__":
    main()
