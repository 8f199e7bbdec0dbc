"""Several data directories, one of them offline: Kafka's tools say of us what they say of Kafka."""

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from interop.java_tools import call, run
from interop.kafka_node import SETTINGS, KafkaNode
from tests.clients.waiting import until
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

Start: TypeAlias = Callable[[Path, str], AbstractContextManager[Any]]
PLACE = re.compile(r"Topic: (\w+)\tPartition: (\d)\tLeader: (\w+)\tReplicas: (\w+)\tIsr: (\w*)\t")


def kafka(first: Path, log_dirs: str) -> KafkaNode:
    return KafkaNode(first, settings={**SETTINGS, "log.dirs": log_dirs})


def warmlog(first: Path, log_dirs: str) -> Broker:
    return Broker(data_dir=first, settings={"log.dirs": log_dirs, "auto.create.topics.enable": False})


def said(bootstrap: str) -> dict[str, Any]:
    """What the tools say of directories and partitions, whatever the directories and ids are."""
    described = run(
        bootstrap,
        {
            "directories": call("kafka-log-dirs --describe"),
            "of one topic": call("kafka-log-dirs --describe --topic-list orders,none"),
            "topic": call("kafka-topics --describe --topic orders"),
            "unavailable": call("kafka-topics --describe --unavailable-partitions"),
        },
    )
    places = {name: PLACE.findall(described[name].output) for name in ("topic", "unavailable")}
    return places | {name: directories(described[name].output) for name in ("directories", "of one topic")}


def directories(output: str) -> dict[str, Any]:
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    ((broker,),) = (json.loads(line)["brokers"],)
    assert broker["broker"] == 1
    return {
        Path(found["logDir"]).name: (
            found["error"],
            sorted((each["partition"], each["size"], each["offsetLag"]) for each in found["partitions"]),
        )
        for found in broker["logDirs"]
    }


def story(root: Path, start: Start) -> list[dict[str, Any]]:
    """What is said with both directories, and without the second."""
    root.mkdir()
    first, second = root / "a", root / "b"
    told = []
    with start(first, f"{first},{second}") as node:
        bootstrap = node.kafka if isinstance(node, Broker) else node.bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("orders", 4)])["orders"].result(30)
        until(lambda: len([*first.glob("orders-*"), *second.glob("orders-*")]) == 4, lambda: None, "the directories")
        told.append(said(bootstrap))
    (second / "meta.properties").unlink()
    (second / "meta.properties").mkdir()
    with start(first, f"{first},{second}") as node:
        told.append(said(node.kafka if isinstance(node, Broker) else node.bootstrap))
    return told


def test_tools_tell_of_directories_and_of_one_that_is_offline_what_they_tell_of_kafkas(tmp_path: Path) -> None:
    ours, theirs = story(tmp_path / "ours", warmlog), story(tmp_path / "kafka", kafka)
    assert ours == theirs
    assert ours[1]["directories"]["b"] == ("org.apache.kafka.common.errors.KafkaStorageException", [])
    assert [leader for _, _, leader, _, _ in ours[1]["topic"]].count("none") == 2
