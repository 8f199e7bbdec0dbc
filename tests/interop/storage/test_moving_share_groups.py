"""A share group with history and a member, moved from Kafka 4.4 to warmlog and back with all its records.

Share groups name topics by id. Where the topic keeps its id, the group continues; where it has another one, which is
what docs/moving.md leads to, the group starts as a new one does.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import pytest
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from interop.java_tools import call, run
from interop.kafka_node import JVM_OPTIONS, SETTINGS, WIRE_VERSION, KafkaNode, java, launch
from tests.interop.storage.test_share_state import create_here, create_in_kafka
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC, GROUP = "jobs", "workers"
LOGS = ("jobs-0", "jobs-1", "__share_group_state-0", "__consumer_offsets-0")
LIMIT_S = 60
IDLE_MS = 6_000
RECORDS = 20
OUR_SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "group.share.session.timeout.ms": 1_000,
    "group.share.min.session.timeout.ms": 1_000,
    "group.share.min.heartbeat.interval.ms": 300,
    "group.share.heartbeat.interval.ms": 300,
}
KAFKA_SETTINGS = {**SETTINGS, **{name: OUR_SETTINGS[name] for name in OUR_SETTINGS if name.startswith("group")}}


def configure(bootstrap: str) -> None:
    """Let the group begin at the first records: its settings are not in the logs that move."""
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=[earliest])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(LIMIT_S)


def produce(bootstrap: str, text: str) -> set[str]:
    values = {f"{text}{number}" for number in range(RECORDS)}
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number, value in enumerate(sorted(values)):
        producer.produce(TOPIC, value.encode(), partition=number % 2)
    assert producer.flush(LIMIT_S) == 0
    return values


def accept_and_kill(bootstrap: str) -> None:
    """Let a member accept all records, and kill it, so that it stays in the group."""
    command = [*launch(WIRE_VERSION, JVM_OPTIONS), "warmlog.interop.ShareMembers", bootstrap, GROUP, TOPIC, "explicit"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as member:
        assert member.stdout is not None
        accepted = 0
        while accepted < RECORDS:
            accepted += member.stdout.readline().startswith("accepted")
        member.kill()


def delivered(bootstrap: str) -> set[str]:
    """Return what a member gets, all of which it accepts."""
    output = java("warmlog.interop.ShareConsume", bootstrap, GROUP, TOPIC, str(IDLE_MS), version=WIRE_VERSION)
    seen = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    assert seen["errors"] == []
    return {value for _, _, value, _ in seen["deliveries"]}


def move(source: Path, target: Path, logs: Iterable[str] = LOGS, *, to_kafka: bool) -> None:
    """Replace the files of the logs, except the ids of their topics."""
    for log in logs:
        (target / log).mkdir(exist_ok=True)
        kept = {"partition.metadata", "leader-epoch-checkpoint"} if to_kafka else {"partition.metadata"}
        for file in (target / log).iterdir():
            if file.name not in kept:
                file.unlink()
        for file in (source / log).iterdir():
            is_left_out = file.name in kept or (to_kafka and file.suffix == ".snapshot")
            if not is_left_out and (file.name[0].isdigit() or file.name == "leader-epoch-checkpoint"):
                shutil.copy(file, target / log)


def described(bootstrap: str) -> list[list[str]]:
    """Return partition, leader epoch, start offset and lag of the group's partitions, as Kafka's tool prints them."""
    calls = {"offsets": call(f"kafka-share-groups --describe --group {GROUP} --offsets --verbose")}
    lines = run(bootstrap, calls)["offsets"].output.splitlines()
    return [line.split()[2:] for line in lines if line.startswith(GROUP)]


def fill_kafka(node: KafkaNode) -> tuple[bytes, set[str], set[str]]:
    """Return the topic's id, the values that the group has accepted, and the others. The leader epoch is above 0."""
    with node:
        topic_id = create_in_kafka(node.bootstrap)
    with node:
        configure(node.bootstrap)
        old = produce(node.bootstrap, "a")
        accept_and_kill(node.bootstrap)
        return topic_id, old, produce(node.bootstrap, "b")


def create_offsets(ours: Path) -> None:
    with Broker(data_dir=ours, settings=OUR_SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
        admin.create_topics([NewTopic("__consumer_offsets", 1, 1)])["__consumer_offsets"].result(LIMIT_S)


def test_a_group_continues_where_its_topic_keeps_its_id(tmp_path: Path) -> None:
    node, ours = KafkaNode(tmp_path / "kafka", settings=KAFKA_SETTINGS, version=WIRE_VERSION), tmp_path / "warmlog"
    topic_id, _, new = fill_kafka(node)
    ours.mkdir()
    trio.run(create_here, ours, topic_id)
    create_offsets(ours)
    move(node.data, ours, to_kafka=False)
    with Broker(data_dir=ours, settings=OUR_SETTINGS) as broker:
        before = described(broker.kafka)
        assert [(index, lag) for index, _, _, lag in before] == [("0", "10"), ("1", "10")]
        assert all(int(epoch) > 0 for _, epoch, _, _ in before)
        assert delivered(broker.kafka) == new
        newer = produce(broker.kafka, "c")
        here = described(broker.kafka)
    move(ours, node.data, to_kafka=True)
    with node:
        assert described(node.bootstrap) == here
        assert delivered(node.bootstrap) == newer


def test_a_group_starts_again_where_its_topic_has_another_id(tmp_path: Path) -> None:
    node, ours = KafkaNode(tmp_path / "kafka", settings=KAFKA_SETTINGS, version=WIRE_VERSION), tmp_path / "warmlog"
    _, old, new = fill_kafka(node)
    ours.mkdir()
    trio.run(create_here, ours, uuid4().bytes)
    create_offsets(ours)
    move(node.data, ours, to_kafka=False)
    with Broker(data_dir=ours, settings=OUR_SETTINGS) as broker:
        configure(broker.kafka)
        assert described(broker.kafka) == []
        assert delivered(broker.kafka) == old | new
        assert [(index, lag) for index, _, _, lag in described(broker.kafka)] == [("0", "0"), ("1", "0")]
        calls = {"delete": call(f"kafka-share-groups --delete --group {GROUP}")}
        assert "successful" in run(broker.kafka, calls)["delete"].output
