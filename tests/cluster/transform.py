"""A consume-transform-produce loop with exactly-once semantics, which survives what happens to the brokers."""

import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaException, Producer

from tests.cluster.load import read_all

CALL_S = 10.0
LAST_S = 90.0


class Transform:
    """Copies the records of a topic to another one, in transactions that commit its offsets.

    When the context ends, it goes on until it has copied everything, for LAST_S at most.
    """

    def __init__(self, bootstrap: str, source: str, target: str) -> None:
        self.committed = 0  # transactions
        self.aborted = 0
        self.problems: list[str] = []
        self._bootstrap, self._source, self._target = bootstrap, source, target
        self._stop = threading.Event()
        self._ends_s: float | None = None
        self._idle = self._consumer()  # tells ends
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        consumer, producer = self._consumer(), self._producer()
        try:
            consumer.subscribe([self._source])
            while not (self._stop.is_set() and self._is_done(consumer)):
                records = [one for one in consumer.consume(500, 0.5) if one.error() is None]
                if records and not self._copy(producer, consumer, [one.value() or b"" for one in records]):
                    # A seek to the committed offsets may be lost: librdkafka goes on where it was if it is just
                    # validating the position with a new leader.
                    consumer.close()
                    consumer, producer = self._consumer(), self._producer()
                    consumer.subscribe([self._source])
        finally:
            consumer.close()
            self._idle.close()

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "transform",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,
                "log_level": 0,
            }
        )

    def _is_done(self, consumer: Consumer) -> bool:
        """Return whether everything is copied, or the time is over."""
        if self._ends_s is None:
            self._ends_s = time.monotonic() + LAST_S
        if time.monotonic() > self._ends_s:
            return True
        try:
            places = consumer.position(consumer.assignment())
            # Not as of the latest fetch: fetches may be stuck at a former leader. A consumer that fetches nothing is
            # asked, whose requests wait behind no fetch.
            ends = [self._idle.get_watermark_offsets(place, timeout=CALL_S)[1] for place in places]
        except KafkaException:
            return False
        return bool(places) and all(place.offset >= end >= 0 for place, end in zip(places, ends, strict=True))

    def _producer(self) -> Producer:
        settings = {"transactional.id": "transform", "transaction.timeout.ms": 30_000, "log_level": 0}
        while True:
            producer = Producer({"bootstrap.servers": self._bootstrap, **settings})
            try:
                producer.init_transactions(CALL_S)
            except KafkaException as error:
                self.problems.append(f"init: {error}")
                if self._stop.is_set():
                    return producer
            else:
                return producer

    def _copy(self, producer: Producer, consumer: Consumer, values: list[bytes]) -> bool:
        """Copy records in a transaction. False: it was aborted, or will be by the next producer of the id."""
        try:
            producer.begin_transaction()
            for value in values:
                producer.produce(self._target, value)
            offsets = consumer.position(consumer.assignment())
            group = consumer.consumer_group_metadata()
            _within(CALL_S, lambda: producer.send_offsets_to_transaction(offsets, group, CALL_S))
            producer.commit_transaction(CALL_S)
        except TimeoutError:
            self.problems.append("transaction: no answer to the offsets")
        except KafkaException as error:
            self.problems.append(f"transaction: {error}")
            self._abort(producer)
        else:
            self.committed += 1
            return True
        self.aborted += 1
        return False

    def _abort(self, producer: Producer) -> None:
        try:
            producer.abort_transaction(CALL_S)
        except KafkaException as error:
            self.problems.append(f"abort: {error}")

    def findings(self, expected: set[bytes], partitions: int) -> list[str]:
        """Return what is wrong with the target: it must have each of the source's values once."""
        logs = read_all(self._bootstrap, self._target, partitions, committed=True)
        values = [read.value for reads in logs.values() for read in reads]
        found = {
            "copied twice": len(values) - len(set(values)),
            "not copied": len(expected - set(values)),
            "in no source": len(set(values) - expected),
        }
        return [f"{count} records {what}" for what, count in found.items() if count]


def _within(limit_s: float, call: Callable[[], None]) -> None:
    """Call in a thread that is left alone after the limit. Raises TimeoutError, and what the call raises.

    librdkafka may never return from sending offsets when the group's coordinator has gone (its issues 5456 and 5511).
    """
    outcome: queue.Queue[BaseException | None] = queue.Queue()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # raised below
            outcome.put(error)
        else:
            outcome.put(None)

    threading.Thread(target=run, daemon=True).start()
    try:
        error = outcome.get(timeout=limit_s + 5)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
