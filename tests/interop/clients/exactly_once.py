"""Fill a topic, read what transactions committed, and start members of a group that copy one topic to another."""

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, Queue

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.waiting import until

PARTITIONS = 3
LIMIT_S = 90
STEP_S = 0.5


def create(bootstrap: str, *topics: str) -> None:
    """Create topics of `PARTITIONS` partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(each, PARTITIONS, 1) for each in topics])
    for each in created.values():
        each.result()


def fill(bootstrap: str, topic: str, values: Sequence[bytes], *, idempotent: bool = False) -> None:
    """Produce values to the partitions in turn; `idempotent`: once each, even if the broker is killed meanwhile."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": idempotent})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0


@contextmanager
def consumer(bootstrap: str, topic: str, isolation: str = "read_committed") -> Iterator[Consumer]:
    """Read a topic from its start, in no group."""
    reading = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-of-{topic}",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    reading.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    try:
        yield reading
    finally:
        reading.close()


def wait_for(bootstrap: str, topic: str, count: int, isolation: str = "read_committed") -> None:
    """Wait until so many records can be read."""
    seen = 0
    with consumer(bootstrap, topic, isolation) as reading:

        def step() -> None:
            nonlocal seen
            seen += sum(message.error() is None for message in reading.consume(count, STEP_S))

        until(lambda: seen >= count, step, f"{count} records of {topic}", limit_s=LIMIT_S)


def values(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """Read every value of a topic up to its end, or up to its last stable offset, sorted."""
    return sorted(value for _, value in records(bootstrap, topic, isolation))


def records(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[tuple[bytes | None, bytes]]:
    """Read every key and value in the same way, each partition in its order."""
    found: list[tuple[bytes | None, bytes]] = []
    ended: set[int] = set()
    with consumer(bootstrap, topic, isolation) as reading:

        def step() -> None:
            for message in reading.consume(1000, STEP_S):
                if message.error() is None:
                    found.append((message.key(), message.value()))
                else:  # the end of a partition
                    ended.add(message.partition())

        until(lambda: len(ended) == PARTITIONS, step, f"the ends of {topic}", limit_s=LIMIT_S)
    return found


class Member:
    """A process that copies in transactions until its standard input ends; it prints a line for each transaction."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._printed: Queue[str] = Queue()
        self.lines: list[str] = []
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def wait_for(self, line: str) -> None:
        """Wait until it has printed a line that no earlier call waited for."""
        while (printed := self._printed.get(timeout=LIMIT_S)) != line:
            assert printed, f"ended before it said {line!r}"

    def wait_for_output(self, limit_s: float = STEP_S) -> None:
        """Return when it has printed another line, or after some time."""
        with suppress(Empty):
            self._printed.get(timeout=limit_s)

    def kill(self) -> None:
        """End it at once."""
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._follower.join()

    def stop(self) -> None:
        """Have it end its transaction and leave; AssertionError if it failed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self._process.wait(LIMIT_S)
        self._follower.join()
        assert status == 0, f"{self._process.args!r} ended with {status}"

    def _follow(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.lines.append(line.strip())
                self._printed.put(line.strip())
        self._printed.put("")


@contextmanager
def members(command: Callable[..., Sequence[str]]) -> Iterator[Callable[..., Member]]:
    """Start members with a command of given arguments; those still running at the end are killed."""
    started: list[Member] = []

    def start(*arguments: str) -> Member:
        started.append(Member(command(*arguments)))
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.kill()
