"""Mirrors in processes of their own, load for their sources, and how the two are compared."""

import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from interop.java_tools import CLASSES
from interop.kafka_node import launch
from tests.clients.waiting import until
from tests.documents import ROOT
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.layout import Codec

PARTITIONS = 3
SMALL = {"segment.bytes": "1048576"}
TOPICS = ("plain", "committed")
LIMIT_S = 60
READY = re.compile(r"\bready kafka=(\S+) native=(\S+)")


class Served:
    """`warmlog` in a process of its own; it keeps its port over restarts."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._arguments = [*arguments, "--data-dir", str(directory), "--native", "127.0.0.1:0", "--http", "none"]
        self.kafka, self.native = "127.0.0.1:0", ""
        self.told: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "warmlog", *self._arguments, "--kafka", self.kafka]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        ready = next(found for line in self._process.stdout if (found := READY.search(line)))
        self.kafka, self.native = ready[1], ready[2]
        self._reader = threading.Thread(target=self.told.extend, args=(self._process.stderr,), daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)
        sys.stderr.writelines(self.told)  # pytest shows it if the test has failed

    def end(self, sign: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        if self._process.returncode is not None:
            return
        self._process.send_signal(sign)
        self._process.wait(LIMIT_S)
        self._reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


def mirror_of(source: str, directory: Path, settings: Mapping[str, object] = {}) -> Served:
    """A mirror of a cluster, with its groups."""
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return Served(directory, "mirror", "--from", source, "--groups", "--set", "warmlog.mirror.interval.ms=200", *given)


@contextmanager
def load(bootstrap: str, values: random.Random) -> Iterator[None]:
    """Produce in the background: compressed idempotent batches, and transactions, some of them aborted."""
    stopping = threading.Event()

    def produce() -> None:
        plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4"})
        bank = Producer({"bootstrap.servers": bootstrap, "transactional.id": "bank", "linger.ms": 0})
        bank.init_transactions(LIMIT_S)
        while not stopping.is_set():
            for _ in range(50):
                plain.produce("plain", values.randbytes(500), partition=values.randrange(PARTITIONS))
            plain.poll(0)
            bank.begin_transaction()
            for _ in range(5):
                bank.produce("committed", values.randbytes(200), partition=values.randrange(PARTITIONS))
            bank.flush(LIMIT_S)  # Kafka refuses to abort a transaction that it has not heard of
            if values.random() < 0.3:
                bank.abort_transaction(LIMIT_S)
            else:
                bank.commit_transaction(LIMIT_S)
            stopping.wait(0.01)
        assert plain.flush(LIMIT_S) == 0

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


@contextmanager
def java_load(bootstrap: str) -> Iterator[None]:
    """Produce with Java's clients in the background: idempotent batches in zstd, and transactions."""
    command = [*launch(), CLASSES["kafka-producer-perf-test"], "--bootstrap-server", bootstrap]
    command += ["--num-records", "100000000", "--record-size", "300", "--throughput", "500"]
    idempotent = ["--topic", "plain", "--command-property", "compression.type=zstd"]
    transactional = ["--topic", "committed", "--transactional-id", "java", "--transaction-duration-ms", "50"]
    with ExitStack() as stack:
        for options in (idempotent, transactional):
            process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield


def ends(bootstrap: str) -> dict[tuple[str, int], int]:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        return {
            (topic, index): reader.get_watermark_offsets(TopicPartition(topic, index), LIMIT_S)[1]
            for topic in TOPICS
            for index in range(PARTITIONS)
        }
    finally:
        reader.close()


def content(directory: Path, topic: str, partition: int) -> bytes:
    files = sorted((directory / f"{topic}-{partition}").glob("*.log"))
    return b"".join([path.read_bytes() for path in files])


def codecs(log: bytes) -> set[Codec]:
    """Return how the batches of a log are compressed."""
    return {header.codec for _, header in headers(log)}


def try_ends(bootstrap: str) -> dict[tuple[str, int], int] | None:
    """Return the ends, None if a partition or its leader does not exist yet."""
    try:
        return ends(bootstrap)
    except KafkaException:
        return None


def wait_for_copy(source: str, copy: str) -> None:
    expected = ends(source)
    until(lambda: try_ends(copy) == expected, lambda: None, "the copy", limit_s=LIMIT_S)


def committed(bootstrap: str, group: str) -> int:
    """Return the committed offset of a group."""
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (found,) = member.committed([TopicPartition("plain", 0)], LIMIT_S)
    member.close()
    return int(found.offset)
