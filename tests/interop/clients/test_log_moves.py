"""Kafka's tools move a partition to another data directory of warmlog, and of Kafka, and tell the same of it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop.java_tools import ToolOutput, call, run
from interop.kafka_node import SETTINGS as KAFKA_SETTINGS
from interop.kafka_node import KafkaNode
from tests.interop.clients.conftest import SETTINGS
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "moving"
COUNT = 3000
VALUE = b"v" * 1000
SLOWLY = 1000
AT_ONCE = 1_000_000_000
TRIES = 30


@pytest.fixture(params=["kafka", "warmlog"])
def two_disks(request: pytest.FixtureRequest, tmp_path: Path, java_tools: None) -> Iterator[str]:
    """A broker of its own with two data directories."""
    first, second = tmp_path / "first", tmp_path / "second"
    given = {**SETTINGS, "log.dirs": f"{first},{second}"}
    if request.param == "kafka":
        with KafkaNode(first, settings={**KAFKA_SETTINGS, **given}) as node:
            yield node.bootstrap
    else:
        with Broker(settings=given) as broker:
            yield broker.kafka


@dataclass(frozen=True, slots=True)
class Tools:
    """Kafka's tools, called for one broker, with files in a directory."""

    bootstrap: str
    files: Path

    def run(self, command: str) -> ToolOutput:
        return run(self.bootstrap, {"it": call(command)})["it"]

    def reassign(self, arguments: str, path: str, *, replica: int = 1) -> ToolOutput:
        """Ask for partition 0 in the data directory at `path`."""
        partition = {"topic": TOPIC, "partition": 0, "replicas": [replica], "log_dirs": [path]}
        file = self.files / "moves.json"
        file.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        return self.run(f"kafka-reassign-partitions --reassignment-json-file {file} {arguments}")

    def log_dirs(self) -> Mapping[str, Mapping[str, Any]]:
        """What lies in each data directory, by its path: replicas of partition 0 by `isFuture`."""
        said = self.run(f"kafka-log-dirs --describe --topic-list {TOPIC}")
        (told,) = [json.loads(line) for line in said.output.splitlines() if line.startswith("{")]
        (broker,) = told["brokers"]
        name = f"{TOPIC}-0"
        return {
            each["logDir"]: {one["isFuture"]: one for one in each["partitions"] if one["partition"] == name}
            for each in broker["logDirs"]
        }

    def until(self, what: Callable[[], bool]) -> None:
        """Return once it is so. Each look takes a JVM's start."""
        assert any(what() for _ in range(TRIES))


def write(bootstrap: str) -> None:
    AdminClient({"bootstrap.servers": bootstrap}).create_topics([NewTopic(TOPIC, 2, 1)])
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "none"})
    for number in range(COUNT):
        producer.produce(TOPIC, VALUE, str(number).encode(), partition=0)
    assert producer.flush(30) == 0


def read(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reading"})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    keys: list[int] = []
    while len(keys) < COUNT:
        messages = consumer.consume(COUNT, timeout=30)
        assert messages
        keys += [int(message.key() or b"-1") for message in messages]
    consumer.close()
    return keys


def test_a_partition_is_moved_by_kafkas_tools(two_disks: str, tmp_path: Path) -> None:
    tools = Tools(two_disks, tmp_path)
    write(two_disks)
    before = tools.log_dirs()
    (here,) = [path for path, found in before.items() if found]
    (there,) = [path for path, found in before.items() if not found]

    said = tools.reassign(f"--execute --replica-alter-log-dirs-throttle {SLOWLY}", there)
    assert f"Successfully started moving log directory to {there} for replica {TOPIC}-0 with broker 1" in said.output
    said = tools.reassign("--verify --preserve-throttles", there)
    assert f"Reassignment of replica {TOPIC}-0-1 is still in progress." in said.output
    under_way = tools.log_dirs()
    assert list(under_way[here]) == [False]
    assert list(under_way[there]) == [True]
    assert under_way[there][True]["size"] < under_way[here][False]["size"]
    assert under_way[there][True]["offsetLag"] > 0
    assert read(two_disks) == list(range(COUNT))

    said = tools.reassign(f"--execute --additional --replica-alter-log-dirs-throttle {AT_ONCE}", there)
    assert f"Successfully started moving log directory to {there}" in said.output
    tools.until(lambda: "completed successfully" in tools.reassign("--verify", there).output)
    after = tools.log_dirs()
    assert after[here] == {}
    assert after[there] == {False: before[here][False]}
    assert read(two_disks) == list(range(COUNT))
    configs = tools.run("kafka-configs --describe --entity-type brokers --entity-name 1").output
    assert "replica.alter.log.dirs.io.max.bytes.per.second" not in configs, "--verify has removed it"


def test_a_move_is_cancelled_by_one_back(two_disks: str, tmp_path: Path) -> None:
    tools = Tools(two_disks, tmp_path)
    write(two_disks)
    before = tools.log_dirs()
    (here,) = [path for path, found in before.items() if found]
    (there,) = [path for path, found in before.items() if not found]
    tools.reassign(f"--execute --replica-alter-log-dirs-throttle {SLOWLY}", there)
    assert list(tools.log_dirs()[there]) == [True]
    assert "Successfully started moving" in tools.reassign("--execute --additional", here).output
    tools.until(lambda: tools.log_dirs() == before)


def test_a_directory_that_is_none_is_refused(two_disks: str, tmp_path: Path) -> None:
    tools = Tools(two_disks, tmp_path)
    write(two_disks)
    said = tools.reassign("--execute", "/no/such/directory")
    assert said.status == 1
    assert "LogDirNotFoundException" in said.complaints + said.output


def test_our_command_moves_a_partition(two_disks: str, tmp_path: Path) -> None:
    def command(*arguments: str) -> str:
        called = [sys.executable, "-m", "warmlog", *arguments, "--kafka", two_disks]
        return subprocess.run(called, capture_output=True, text=True, check=True).stdout

    def held() -> dict[str, list[dict[str, Any]]]:
        found = map(json.loads, command("broker", "directories", "--json").splitlines())
        return {one["directory"]: [each for each in one["partitions"] if each["topic"] == TOPIC] for one in found}

    write(two_disks)
    source = next(path for path, partitions in held().items() if any(p["partition"] == 0 for p in partitions))
    (target,) = held().keys() - {source}
    moved = command("partition", "relocate", TOPIC, "0", "--to", target)
    assert moved == f"{TOPIC}-0: being moved to {target} of broker 1\n"
    assert any(0 in [one["partition"] for one in held()[target]] for _ in range(TRIES))
