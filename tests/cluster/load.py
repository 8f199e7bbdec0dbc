"""Clients of a cluster under test, which keep the history of what they saw: confluent-kafka in threads of their own."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from tests.cluster.history import Outcome, PartitionHistory, Poll, Read, Sent

DELIVERY_TIMEOUT_MS = 60_000
# Errors after which librdkafka knows that the record was not written.
_REFUSED = frozenset({KafkaError._QUEUE_FULL, KafkaError.MSG_SIZE_TOO_LARGE})


class Acknowledgement(NamedTuple):
    """When a record of a partition was acknowledged, and sent, in monotonic seconds."""

    at_s: float
    partition: int
    sent_s: float


class Load:
    """Producers and consumers of one topic, until the context ends; `histories` judges them afterwards."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        producers: int = 2,
        racks: Sequence[str] = ("",),
        rate: float = 200.0,
        producer_settings: Mapping[str, Any] | None = None,
        keeps_watermarks: bool = True,
    ) -> None:
        """`rate`: records per second of each producer. `racks`: one consumer is started in each; "" is none.

        `keeps_watermarks`: record high watermarks in the history of consumers without a rack, which read from leaders.
        librdkafka also takes over the high watermark of a late response of a former leader, although it drops its
        records: where networks are cut, the high watermark falls.
        """
        self.latencies_s: list[float] = []  # from send to acknowledgement
        self.acknowledgements: list[Acknowledgement] = []
        self.gaps_s: list[float] = []  # of each producer, the longest time without an acknowledgement
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._settings = dict(producer_settings or {})
        self._rate = rate
        self._keeps_watermarks = keeps_watermarks
        self._sent: dict[int, list[Sent]] = defaultdict(list)
        self._polls: dict[int, list[Poll]] = defaultdict(list)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._stop_reading = threading.Event()
        self.failures: list[BaseException] = []
        self.errors: list[str] = []  # of connections: librdkafka deals with them
        self.undelivered: list[str] = []  # records for which a producer's application got an error
        self._producers = [
            threading.Thread(target=self._guard, args=(self._produce, f"p{n}")) for n in range(producers)
        ]
        self._consumers = [
            threading.Thread(target=self._guard, args=(partial(self._consume, rack=rack), f"c{n}"))
            for n, rack in enumerate(racks)
        ]

    def __enter__(self) -> Self:
        for thread in (*self._consumers, *self._producers):
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._producers:
            thread.join()
        self._stop_reading.set()
        for thread in self._consumers:
            thread.join()

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged records so far."""
        with self._lock:
            return sum(one.outcome is Outcome.STORED for sent in self._sent.values() for one in sent)

    def wait_for(self, count: int, *, limit_s: float = 60.0) -> None:
        """Return once `count` more records are acknowledged. Raises TimeoutError."""
        wanted, limit = self.acknowledged + count, time.monotonic() + limit_s
        while self.acknowledged < wanted:
            if time.monotonic() > limit or self.failures:
                raise TimeoutError(f"{self.acknowledged} of {wanted} records acknowledged; {self.failures}")
            self._stop.wait(0.01)

    def wait_until_written(self, since_s: float, *, limit_s: float) -> list[Acknowledgement]:
        """Wait until each partition has acknowledged a record sent after a time; return all. Raises TimeoutError."""
        while True:
            acknowledged = list(self.acknowledgements)
            written = {one.partition for one in acknowledged if one.sent_s > since_s}
            if len(written) == self._partitions:
                return acknowledged
            if time.monotonic() > since_s + limit_s:
                raise TimeoutError(f"in {limit_s:.0f} s only the partitions {sorted(written)} were written to")
            self._stop.wait(0.05)

    def _thread(self, run: Callable[[str], None], name: str) -> threading.Thread:
        return threading.Thread(target=self._guard, args=(run, name))

    def _guard(self, run: Callable[[str], None], name: str) -> None:
        try:
            run(name)
        except BaseException as error:
            self.failures.append(error)
            raise

    def _produce(self, name: str) -> None:
        settings = {
            "bootstrap.servers": self._bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
            "linger.ms": 1,
            "log_level": 0,
            "topic.metadata.refresh.interval.ms": 5_000,
            "reconnect.backoff.max.ms": 500,
            "error_cb": lambda error: self.errors.append(f"{name}: {error}"),
            **self._settings,
        }
        producer = Producer(settings)
        number, latest, longest = 0, time.monotonic(), 0.0
        while not self._stop.is_set():
            partition = number % self._partitions
            value = f"{name}:{number}".encode()
            sent = Sent(name, number, value)
            begun = time.monotonic()

            def settled(
                error: KafkaError | None, message: Message, sent: Sent = sent, begun: float = begun, at: int = partition
            ) -> None:
                nonlocal latest, longest
                if error is None:
                    now = time.monotonic()
                    longest, latest = max(longest, now - latest), now
                    self.latencies_s.append(now - begun)
                    self.acknowledgements.append(Acknowledgement(now, at, begun))
                    one = sent._replace(outcome=Outcome.STORED, offset=message.offset())
                else:
                    self.undelivered.append(f"{sent.value!r}: {error}")
                    one = sent._replace(outcome=Outcome.REFUSED if error.code() in _REFUSED else Outcome.UNKNOWN)
                with self._lock:
                    self._sent[at].append(one)

            try:
                producer.produce(self._topic, value, partition=partition, on_delivery=settled)
            except BufferError:
                producer.poll(0.05)
                continue
            number += 1
            producer.poll(1 / self._rate)
        producer.flush(DELIVERY_TIMEOUT_MS / 1000 + 5)
        self.gaps_s.append(longest)

    def _consume(self, name: str, *, rack: str) -> None:
        consumer = _consumer(self._bootstrap, name, rack=rack)
        consumer.assign([TopicPartition(self._topic, index, OFFSET_BEGINNING) for index in range(self._partitions)])
        try:
            while not self._stop_reading.is_set():
                by_partition: dict[int, list[Read]] = defaultdict(list)
                for message in consumer.consume(500, 0.1):
                    if message.error() is None:
                        by_partition[message.partition()].append(Read(message.offset(), message.value()))
                for index, reads in by_partition.items():
                    _, high = consumer.get_watermark_offsets(TopicPartition(self._topic, index), cached=True)
                    is_known = high >= 0 and self._keeps_watermarks and not rack
                    self._polls[index].append(Poll(name, tuple(reads), high if is_known else None))
        finally:
            consumer.close()

    def histories(self, bootstrap: str | None = None) -> dict[int, PartitionHistory]:
        """Read all partitions whole, and return the history of each."""
        logs = read_all(bootstrap or self._bootstrap, self._topic, self._partitions)
        return {
            index: PartitionHistory(
                sent=self._sent[index],
                polls=self._polls[index],
                log=logs[index],
                is_idempotent=self._settings.get("enable.idempotence", True),
            )
            for index in range(self._partitions)
        }


def _consumer(bootstrap: str, name: str, *, committed: bool = False, rack: str = "") -> Consumer:
    return Consumer(
        {
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "bootstrap.servers": bootstrap,
            "group.id": f"unused-{name}",
            "client.rack": rack,
            "enable.auto.commit": False,
            "log_level": 0,
            "auto.offset.reset": "error",
            "topic.metadata.refresh.interval.ms": 5_000,
            "reconnect.backoff.max.ms": 500,
            "fetch.error.backoff.ms": 50,
        }
    )


def read_all(
    bootstrap: str, topic: str, partitions: int, *, committed: bool = False, limit_s: float = 60.0
) -> dict[int, list[Read]]:
    """Return every record of each partition up to its end at the time of the call. Raises TimeoutError.

    `committed`: without those of aborted transactions.
    """
    consumer = _consumer(bootstrap, "all", committed=committed)
    found: dict[int, list[Read]] = {index: [] for index in range(partitions)}
    try:
        limit = time.monotonic() + limit_s
        for index, reads in found.items():
            place = TopicPartition(topic, index)
            _, end = consumer.get_watermark_offsets(place, timeout=limit_s)
            if not end:
                continue  # the consumer would have no position
            consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING)])
            while consumer.position([place])[0].offset < end:
                for message in consumer.consume(1000, 0.2):
                    if message.error() is None:
                        reads.append(Read(message.offset(), message.value()))
                if time.monotonic() > limit:
                    raise TimeoutError(f"{topic}-{index}: read up to {reads[-1:]} of {end}")
    finally:
        consumer.close()
    return found
