"""Clients of groups under faults: processes of Java's members, and a producer of numbered records."""

import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

from interop.kafka_node import WIRE_VERSION, launch
from tests.cluster.broker_kills import LIMIT_S

RATE = 150.0  # records per second
JVM = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class Members(ABC):
    """A process of members, which runs until its standard input ends. Starts at once; its lines are collected."""

    def __init__(self, program: str, *arguments: str) -> None:
        """Start a program of `warmlog.interop`."""
        self.failures: Counter[str] = Counter()
        command = [*launch(WIRE_VERSION, JVM), f"warmlog.interop.{program}", *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    @abstractmethod
    def _take(self, line: str) -> str:
        """Collect an event; return the text of a failure."""

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            failure = self._take(line)
            if failure:
                self.failures[failure] += 1

    def kill(self) -> None:
        """Kill the process, and return when its events are read."""
        self._process.kill()
        self._end()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the process stand still within the block."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Let the members leave, and return when their events are read."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._end()

    def _end(self) -> None:
        try:
            self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


class Producing:
    """A producer of numbered records at a rate, until the context ends.

    `produced`: partition and offset of the acknowledged ones.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.produced: list[tuple[int, int]] = []
        self._topic, self._partitions = topic, partitions
        self._stop = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
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
        began_s, sent = time.monotonic(), 0
        while not self._stop.is_set():
            if sent <= (time.monotonic() - began_s) * RATE:
                with suppress(BufferError):
                    self._producer.produce(
                        self._topic, b"%d" % sent, partition=sent % self._partitions, on_delivery=self._done
                    )
                    sent += 1
                self._producer.poll(0)
            else:
                self._producer.poll(0.01)
        self._producer.flush(LIMIT_S)

    def _done(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.produced.append((message.partition() or 0, message.offset() or 0))
