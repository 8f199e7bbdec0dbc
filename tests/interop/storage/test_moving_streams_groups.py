"""A streams group with a member, moved from Kafka 4.4 to warmlog and back with the logs of its topics.

The records of the group, its committed offsets, the changelog of its state and the topics in between move together; the
instance that was killed on one side continues on the other, and counts every word once.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from interop.compare.wire import BY_NAME, Connection
from interop.kafka_node import SETTINGS, WIRE_VERSION, KafkaNode
from tests.broker.rig import rig
from tests.interop.clients.exactly_once import LIMIT_S, PARTITIONS, create, fill, wait_for
from tests.interop.clients.word_count import WORDS, check, instances, line
from tests.interop.storage.test_moving_share_groups import move
from warmlog.broker.metadata.topic import Topic
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

NAME = "moved"
SOURCE, RESULTS = f"{NAME}-in", f"{NAME}-out"
TOPICS = (SOURCE, RESULTS, f"{NAME}-counts-repartition", f"{NAME}-counts-changelog")
LOGS = (*[f"{topic}-{number}" for topic in TOPICS for number in range(PARTITIONS)], "__consumer_offsets-0")
LINES = 60
THIRD = LINES // 3
UNREADY = {14, 15, 16}  # the coordinator loads, is not available, or is another broker
OUR_SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.min.session.timeout.ms": 1_000,
    "group.streams.session.timeout.ms": 5_000,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.heartbeat.interval.ms": 300,
}
KAFKA_SETTINGS = {**SETTINGS, **OUR_SETTINGS}


def described(bootstrap: str) -> dict[str, Any]:
    """Return epochs and members of the group, once it is loaded."""
    deadline = time.monotonic() + LIMIT_S
    with Connection(bootstrap) as connection:
        while time.monotonic() < deadline:
            connection.send(BY_NAME["StreamsGroupDescribe"], 1, {"group_ids": [NAME]})
            group = connection.receive()["groups"][0]
            if group["error_code"] not in UNREADY:
                break
    assert group["error_code"] == 0, group
    members = [{**member, "task_offsets": [], "task_end_offsets": []} for member in group["members"]]  # in no record
    return {"members": members} | {name: group[name] for name in ("group_epoch", "assignment_epoch")}


def count(bootstrap: str, directory: Path, begin: int, end: int) -> dict[str, Any]:
    """Let an instance count lines, and kill it; return the group, in which it still is."""
    with instances(bootstrap, NAME, directory, "store=rocksdb") as start:
        instance = start(1)
        fill(bootstrap, SOURCE, [line(number) for number in range(begin, end)])
        wait_for(bootstrap, RESULTS, end * WORDS)
        instance.kill()
    return described(bootstrap)


def topic_ids(bootstrap: str) -> dict[str, UUID]:
    with Connection(bootstrap) as connection:
        named = [{"topic_id": bytes(16), "name": topic} for topic in TOPICS]
        connection.send(BY_NAME["Metadata"], 12, {"topics": named})
        return {topic["name"]: UUID(bytes=topic["topic_id"]) for topic in connection.receive()["topics"]}


async def create_here(directory: Path, ids: Mapping[str, UUID]) -> None:
    """Create the topics with Kafka's ids: Kafka takes no offset that was committed of a topic with another id."""
    directory.mkdir()
    async with rig(directory) as made:
        topics = [Topic(name=name, partitions=PARTITIONS, id=topic_id) for name, topic_id in ids.items()]
        assert await made.partitions.create_all([*topics, made.partitions.plan_topic("__consumer_offsets", 1)]) == {}


def test_a_word_count_continues_where_its_logs_are_moved_to(tmp_path: Path) -> None:
    node, ours = KafkaNode(tmp_path / "kafka", settings=KAFKA_SETTINGS, version=WIRE_VERSION), tmp_path / "warmlog"
    states = tmp_path / "states"
    with node:
        create(node.bootstrap, SOURCE, RESULTS)
        there = count(node.bootstrap, states, 0, THIRD)
        ids = topic_ids(node.bootstrap)
    trio.run(create_here, ours, ids)
    move(node.data, ours, LOGS, to_kafka=False)
    with Broker(data_dir=ours, settings=OUR_SETTINGS) as broker:
        assert described(broker.kafka) == there
        here = count(broker.kafka, states, THIRD, 2 * THIRD)
        assert here["group_epoch"] > there["group_epoch"]
    move(ours, node.data, LOGS, to_kafka=True)
    with node:
        assert described(node.bootstrap) == here
        count(node.bootstrap, states, 2 * THIRD, LINES)
        check(node.bootstrap, RESULTS, [line(number) for number in range(LINES)])
