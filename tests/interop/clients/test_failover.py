"""Clients of four libraries through the kill of a leader and a rolling restart of three warmlogs, three replicas each.

A producer is fed numbered lines meanwhile, and a consumer in a group reads them. Every line must be in the topic once,
and must have reached the consumer.
"""

import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import interop.kafka_node
from interop.kafka_node import MissingToolError, launch
from interop.warmlog_nodes import WarmlogNodes
from tests.broker.cluster.etcd_process import etcd
from tests.interop.clients.exactly_once import PARTITIONS, values
from tests.interop.clients.programs import GO_DIRECTORY, program
from tests.requires import lacks

pytestmark = [pytest.mark.interop, pytest.mark.timeout(150)]

PROJECT = Path(interop.kafka_node.__file__).parent / "go"
LINES = 4_000
LINES_PER_S = 400
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmlogNodes]:
    directory = tmp_path_factory.mktemp("nodes")
    settings = {"offsets.topic.num.partitions": 3, "warmlog.cluster.lease.ms": 3000}
    with etcd(directory / "etcd") as (store,), WarmlogNodes(directory, store.url, settings=settings) as nodes:
        yield nodes


def java(*arguments: str) -> list[str]:
    return [*launch(), *arguments]


def commands(library: str, bootstrap: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return a producer that reads lines, and a consumer that ends when it has them. Raises MissingToolError."""
    topic = library
    if library == "java":
        where = ("--bootstrap-server", bootstrap, "--topic", topic)
        retries = ("--message-send-max-retries", "1000000")
        group = ("--group", "java", "--from-beginning")
        return (
            java("org.apache.kafka.tools.ConsoleProducer", *where, *retries),
            java("org.apache.kafka.tools.consumer.ConsoleConsumer", *where, *group),
        )
    if library == "librdkafka":
        kcat = program("kcat", "kcat")
        earliest = ("-X", "auto.offset.reset=earliest")
        return (
            [kcat, "-P", "-E", "-b", bootstrap, "-t", topic, "-X", "enable.idempotence=true"],
            [kcat, "-E", "-u", "-b", bootstrap, "-G", "librdkafka", *earliest, topic],
        )
    go = program("go", "golang-go", also=GO_DIRECTORY)
    built = PROJECT / "target" / "lines" / library
    subprocess.run([go, "build", "-o", built, f"./lines/{library}"], cwd=PROJECT, check=True)
    return [str(built), "produce", bootstrap, topic], [str(built), "consume", bootstrap, topic, str(LINES)]


class Clients:
    """A producer that is fed with numbered lines, and a consumer whose lines are collected; killed at the end."""

    def __init__(self, producer: Sequence[str], consumer: Sequence[str]) -> None:
        self.seen: set[str] = set()
        self.all_seen, self.is_under_way = threading.Event(), threading.Event()
        self.writing = subprocess.Popen(producer, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self._reading = subprocess.Popen(consumer, stdout=subprocess.PIPE, text=True)
        self._threads = [threading.Thread(target=work) for work in (self._write, self._read)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.writing, self._reading):
            process.kill()
            process.wait()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        assert self.writing.stdin is not None
        began_at = time.monotonic()
        with suppress(BrokenPipeError), self.writing.stdin as lines:
            for number in range(LINES):
                print(number, file=lines, flush=True)
                if number == LINES // 10:
                    self.is_under_way.set()
                time.sleep(max(0.0, began_at + number / LINES_PER_S - time.monotonic()))

    def _read(self) -> None:
        assert self._reading.stdout is not None
        with self._reading.stdout as lines:
            for line in lines:
                self.seen.add(line.strip())
                if len(self.seen) == LINES:
                    self.all_seen.set()


@pytest.mark.parametrize("library", ["java", "librdkafka", "franz", "sarama"])
def test_lines_arrive_once_while_a_leader_is_killed_and_brokers_restart(
    nodes: WarmlogNodes, library: str, java_tools: None
) -> None:
    try:
        producer, consumer = commands(library, nodes.bootstrap)
    except MissingToolError as error:
        lacks(error)
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    admin.create_topics([NewTopic(library, PARTITIONS, 3)])[library].result(LIMIT_S)
    with Clients(producer, consumer) as clients:
        assert clients.is_under_way.wait(LIMIT_S)
        kill_and_restart(nodes, admin, library)
        assert clients.writing.wait(LIMIT_S) == 0
        assert clients.all_seen.wait(LIMIT_S), f"{LINES - len(clients.seen)} lines did not reach the consumer"
    stored = [int(value) for value in values(nodes.bootstrap, library)]
    assert sorted(stored) == list(range(LINES))


def test_replicas_are_the_same_to_the_tool_that_compares_them(nodes: WarmlogNodes, java_tools: None) -> None:
    """kafka-replica-verification fetches from every replica, and compares what it gets."""
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    admin.create_topics([NewTopic("compared", 1, 3)])["compared"].result(LIMIT_S)
    producer = Producer({"bootstrap.servers": nodes.bootstrap})
    for number in range(LINES):
        producer.produce("compared", b"%d" % number)
    assert producer.flush(LIMIT_S) == 0
    tool = "org.apache.kafka.tools.ReplicaVerificationTool"
    options = ("--topics-include", "compared", "--time", "-2", "--report-interval-ms", "100")
    command = java(tool, "--broker-list", nodes.bootstrap, *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as comparing:
        assert comparing.stdout is not None
        try:
            told = next((line for line in comparing.stdout if f"at offset {LINES} among" in line), "")
        finally:
            comparing.kill()
    assert "max lag is 0 for partition compared-0" in told


def kill_and_restart(nodes: WarmlogNodes, admin: AdminClient, topic: str) -> None:
    """Kill the leader of a topic, start it again, then restart every broker in turn."""
    leader = admin.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions[0].leader
    nodes[leader].kill()
    nodes[leader].start()
    wait_until_in_sync(admin, topic)
    for node in nodes:
        assert node.stop() == 0
        node.start()
        wait_until_in_sync(admin, topic)


def wait_until_in_sync(admin: AdminClient, topic: str) -> None:
    ends_at = time.monotonic() + LIMIT_S
    while time.monotonic() < ends_at:
        partitions = admin.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions.values()
        if all(len(partition.isrs) == len(partition.replicas) for partition in partitions):
            return
    raise TimeoutError(f"not every replica of {topic} is in sync")
