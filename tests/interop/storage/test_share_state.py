"""`__share_group_state` moved from Kafka 4.4 to warmlog and back, and decoded by Kafka's DumpLogSegments.

States are those of topics by their ids, so the topic has the same id in both.
"""

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import pytest
import trio
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic

from interop.compare.wire import BY_NAME, Connection
from interop.kafka_node import SETTINGS, WIRE_VERSION, KafkaNode, dump
from tests.broker.rig import rig
from tests.interop.storage.judging import files_below
from warmlog.broker.metadata.topic import Topic
from warmlog.cli.root import root
from warmlog.protocol.kafka.messages.common import topic_id_text
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

JOBS, STATES, GROUP = "jobs", "__share_group_state", "wörkers"
PARTITIONS = 2
SHARE = 2
LIMIT_S = 60
OUR_SETTINGS = {
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.snapshot.update.records.per.snapshot": 2,
}
NAMES = ("first_offset", "last_offset", "delivery_state", "delivery_count")
RECORD = re.compile(r"^\| offset: (\d+) .* key: (\{.*?\}) payload: (.*)$", re.MULTILINE)


class Coordinator:
    """A client of the share coordinator."""

    def __init__(self, bootstrap: str, topic_id: bytes) -> None:
        self._connection = Connection(bootstrap)
        self._topic_id = topic_id
        deadline = time.monotonic() + LIMIT_S
        while self.ask("ReadShareGroupStateSummary", {"partition": 0, "leader_epoch": 0})["error_code"]:
            assert time.monotonic() < deadline
            keys = [f"{GROUP}:{topic_id_text(topic_id)}:0"]
            self._send("FindCoordinator", 6, {"key_type": SHARE, "coordinator_keys": keys})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _send(self, name: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        self._connection.send(BY_NAME[name], version, fields)
        return self._connection.receive()

    def ask(self, name: str, partition: dict[str, Any]) -> dict[str, Any]:
        fields = {"group_id": GROUP, "topics": [{"topic_id": self._topic_id, "partitions": [partition]}]}
        answer = self._send(name, BY_NAME[name].last, fields)
        return dict(answer["results"][0]["partitions"][0])

    def initialize(self, partition: int, start: int) -> None:
        fields = {"partition": partition, "state_epoch": 1, "start_offset": start}
        assert self.ask("InitializeShareGroupState", fields)["error_code"] == 0

    def write(self, partition: int, start: int, count: int, *batches: tuple[int, int, int, int]) -> None:
        states = [dict(zip(NAMES, batch, strict=True)) for batch in batches]
        fields = {
            "partition": partition,
            "state_epoch": 1,
            "leader_epoch": 4,
            "start_offset": start,
            "delivery_complete_count": count,
            "state_batches": states,
        }
        assert self.ask("WriteShareGroupState", fields)["error_code"] == 0

    def states(self) -> list[dict[str, Any]]:
        found = []
        for index in range(PARTITIONS):
            asked = {"partition": index, "leader_epoch": 4}
            found += [self.ask("ReadShareGroupState", asked), self.ask("ReadShareGroupStateSummary", asked)]
        assert not any(each["error_code"] for each in found)
        return found


def create_in_kafka(bootstrap: str) -> bytes:
    """Create the topic; return its id."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(JOBS, PARTITIONS, 1)]).values():
        future.result()
    with Connection(bootstrap) as connection:
        connection.send(BY_NAME["Metadata"], 12, {"topics": [{"topic_id": bytes(16), "name": JOBS}]})
        return bytes(connection.receive()["topics"][0]["topic_id"])


async def create_here(directory: Path, topic_id: bytes) -> None:
    """Create the topic with this id, and an empty topic of states."""
    async with rig(directory) as made:
        topics = [
            Topic(name=JOBS, partitions=PARTITIONS, id=UUID(bytes=topic_id)),
            made.partitions.plan_topic(STATES, 1),
        ]
        assert await made.partitions.create_all(topics) == {}


def move(source: Path, target: Path) -> None:
    """Replace the files of the log of states, except the id of its topic."""
    for file in (target / f"{STATES}-0").iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    for file in (source / f"{STATES}-0").iterdir():
        if file.name[0].isdigit() or file.name == "leader-epoch-checkpoint":
            shutil.copy(file, target / f"{STATES}-0")


def in_snake_case(value: Any) -> Any:
    """Return what Kafka's tool has printed, with the names of fields as ours has them."""
    if isinstance(value, list):
        return [in_snake_case(each) for each in value]
    if isinstance(value, dict):
        return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): in_snake_case(each) for name, each in value.items()}
    return value


def printed(log: Path) -> list[Any]:
    """Return keys and values as our tool prints them, without what Kafka's leaves out."""
    result = CliRunner().invoke(root, ["log", "dump", str(log), "--share-group-state-decoder", "--json"])
    assert result.exit_code == 0
    found = []
    for record in map(json.loads, result.stdout.splitlines()):
        if record["type"] == "record" and record["decoded_value"] is not None:
            del record["decoded_key"]["type"], record["decoded_value"]["version"]
            if record["decoded_value"]["delivery_complete_count"] == -1:
                del record["decoded_value"]["delivery_complete_count"]
            found.append([record["decoded_key"], record["decoded_value"]])
    return found


def test_states_move_from_kafka_and_back(tmp_path: Path) -> None:
    node, ours = KafkaNode(tmp_path / "kafka", settings=SETTINGS, version=WIRE_VERSION), tmp_path / "warmlog"
    with node:
        topic_id = create_in_kafka(node.bootstrap)
        with Coordinator(node.bootstrap, topic_id) as kafka:
            kafka.initialize(0, start=5)
            kafka.initialize(1, start=-1)
            for number in range(8):
                kafka.write(0, 5 + number, number, (10 + 2 * number, 10 + 2 * number, 2, 1), (8, 9, 0, 1 + number))
            before = kafka.states()
    ours.mkdir()
    trio.run(create_here, ours, topic_id)
    move(node.data, ours)
    with Broker(data_dir=ours, settings=OUR_SETTINGS) as broker, Coordinator(broker.kafka, topic_id) as here:
        assert here.states() == before
        for number in range(8):
            here.write(1, 100 + number, number, (100 + number, 103 + number, 4, 1), (120, 140, 0, number))
        here.write(0, 20, 3, (26, 29, 2, 3))
        moved = here.states()
        assert moved != before
    (log,) = files_below(ours / f"{STATES}-0", ".log")
    (said,) = dump([["--share-group-state-decoder", "--files", log]])
    assert said.findings() == []
    records = [(json.loads(key), json.loads(payload)) for _, key, payload in RECORD.findall(said.output)]
    assert {key["data"]["groupId"] for key, _ in records} == {GROUP}
    last = [payload["data"] for key, payload in records if key["data"]["partition"] == 0][-1]
    assert (last["startOffset"], last["deliveryCompleteCount"], last["leaderEpoch"]) == (20, 3, 4)
    assert {"firstOffset": 26, "lastOffset": 29, "deliveryState": 2, "deliveryCount": 3} in last["stateBatches"]
    assert {int(key["type"]) for key, _ in records} == {0, 1}
    assert [in_snake_case([key["data"], payload["data"]]) for key, payload in records] == printed(log)
    move(ours, node.data)
    with node, Coordinator(node.bootstrap, topic_id) as kafka:
        assert kafka.states() == moved
