"""Coordinators of share groups that are killed while a group's states are created, and offsets of a whole cluster."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from interop.compare.wire import BY_NAME, ClosedError, Connection
from interop.warmlog_nodes import WarmlogNodes
from tests.broker.cluster.etcd_process import etcd
from warmlog.protocol.errors import ErrorCode

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]  # takes many seconds
LIMIT_S = 60.0
TOPIC, PARTITIONS, RECORDS = "jobs", 60, 3
PASSING = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
LEAVE = -1
SETTINGS = {
    "warmlog.cluster.lease.ms": 2000,
    "offsets.topic.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 6,
    "group.share.assignment.interval.ms": 0,
    "group.share.min.assignment.interval.ms": 0,
    "group.share.initialize.retry.interval.ms": 1000,
}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[WarmlogNodes]:
    with etcd(tmp_path / "etcd") as (store,), WarmlogNodes(tmp_path, store.url, settings=SETTINGS) as nodes:
        yield nodes


class Client:
    """Sends requests about one group to its coordinator, wherever that is."""

    def __init__(self, nodes: WarmlogNodes, group: str) -> None:
        self._nodes = nodes
        self.group = group
        self.coordinator = 0

    def find(self) -> None:
        """Look for the coordinator once."""
        self.coordinator = 0
        for node in self._nodes:
            if node.is_running:
                key = {"key_type": 0, "coordinator_keys": [self.group]}
                answer = self._ask(node.bootstrap, "FindCoordinator", key)
                if answer is not None and not answer["coordinators"][0]["error_code"]:
                    self.coordinator = answer["coordinators"][0]["node_id"]
                    return

    @staticmethod
    def _ask(address: str, name: str, fields: dict[str, Any]) -> dict[str, Any] | None:
        with suppress(OSError, ClosedError), Connection(address) as connection:
            connection.send(BY_NAME[name], BY_NAME[name].last, fields)
            return connection.receive(20)
        return None

    def ask(self, name: str, **fields: Any) -> dict[str, Any]:
        """Return the answer of a coordinator that serves the group."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            node = self._nodes.nodes.get(self.coordinator)
            answer = None
            if node is not None and node.is_running:
                answer = self._ask(node.bootstrap, name, fields)
            if answer is not None:
                outcome = answer["groups"][0] if name == "DescribeShareGroupOffsets" else answer
                if outcome["error_code"] not in PASSING:
                    return answer
            time.sleep(0.05)
            self.find()
        raise TimeoutError(f"{name} has no answer")

    def beat(self, epoch: int) -> dict[str, Any]:
        topics = [TOPIC] if epoch == 0 else None
        asked = {"group_id": self.group, "member_id": "m", "member_epoch": epoch}
        return self.ask("ShareGroupHeartbeat", **asked, subscribed_topic_names=topics)

    def join_until_assigned(self) -> None:
        """Send heartbeats until the member has all partitions."""
        epoch, has_all, deadline = 0, False, time.monotonic() + LIMIT_S
        while not has_all:
            assert time.monotonic() < deadline, self._nodes.nodes.keys()
            reply = self.beat(epoch)
            if reply["error_code"] in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}:
                epoch = 0
                continue
            assert reply["error_code"] == ErrorCode.NONE, reply
            epoch = reply["member_epoch"]
            if reply["assignment"] is not None:
                (named,) = reply["assignment"]["topic_partitions"] or ({"partitions": ()},)
                has_all = sorted(named["partitions"]) == list(range(PARTITIONS))
            time.sleep(0.02)

    def offsets(self) -> dict[int, tuple[int, int, int]]:
        """Return start offset, lag and error of each partition that the group has a state of."""
        reply = self.ask("DescribeShareGroupOffsets", groups=[{"group_id": self.group, "topics": None}])
        return {
            each["partition_index"]: (each["start_offset"], each["lag"], each["error_code"])
            for topic in reply["groups"][0]["topics"]
            for each in topic["partitions"]
        }

    def reset(self, offset: int) -> None:
        partitions = [{"partition_index": index, "start_offset": offset} for index in range(PARTITIONS)]
        reply = self.ask(
            "AlterShareGroupOffsets", group_id=self.group, topics=[{"topic_name": TOPIC, "partitions": partitions}]
        )
        assert reply["error_code"] == ErrorCode.NONE, reply
        assert {each["error_code"] for each in reply["responses"][0]["partitions"]} == {ErrorCode.NONE}, reply


def test_states_are_created_although_the_coordinator_is_killed_meanwhile(nodes: WarmlogNodes) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(LIMIT_S)
    producer = Producer({"bootstrap.servers": nodes.bootstrap})
    for index in range(PARTITIONS):
        for _ in range(RECORDS):
            producer.produce(TOPIC, b"job", partition=index)
    assert producer.flush(LIMIT_S) == 0
    for number, after_s in enumerate((0.0, 0.02, 0.1, 0.3)):
        client = Client(nodes, f"g{number}")
        assert client.beat(0)["error_code"] == ErrorCode.NONE
        time.sleep(after_s)
        killed = nodes[client.coordinator]
        killed.kill()
        client.join_until_assigned()
        killed.start()
        assert client.offsets() == dict.fromkeys(range(PARTITIONS), (-1, -1, 0))
        assert client.beat(LEAVE)["error_code"] == ErrorCode.NONE
        client.reset(1)
        assert client.offsets() == dict.fromkeys(range(PARTITIONS), (1, RECORDS - 1, 0))
