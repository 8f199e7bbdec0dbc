"""Share coordinators in broker processes that are killed: no acknowledged write is lost, however often that happens."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from interop.compare.wire import BY_NAME, ClosedError, Connection
from interop.warmlog_nodes import WarmlogNodes
from tests.broker.cluster.etcd_process import etcd
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.common import topic_id_text

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]  # takes many seconds
LIMIT_S = 60.0
SHARE, FIRST_WITH_SHARE = 2, 6
KILLS, WRITES = 4, 30
ACKNOWLEDGED = 2
SETTINGS = {
    "warmlog.cluster.lease.ms": 2000,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.snapshot.update.records.per.snapshot": 20,
    "share.coordinator.state.topic.prune.interval.ms": 500,
}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[WarmlogNodes]:
    with etcd(tmp_path / "etcd") as (store,), WarmlogNodes(tmp_path, store.url, settings=SETTINGS) as nodes:
        yield nodes


def ask(address: str, name: str, version: int, fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer, None if there is none."""
    with suppress(OSError, ClosedError), Connection(address) as connection:
        connection.send(BY_NAME[name], version, fields)
        return connection.receive(10)
    return None


class Client:
    """Looks for the coordinator again until a request succeeds, as the leader of a partition does."""

    def __init__(self, nodes: WarmlogNodes, topic_id: bytes) -> None:
        self._nodes = nodes
        self._topic_id = topic_id
        self.coordinator = 0

    def _find(self) -> None:
        for node in self._nodes.nodes.values():
            key = {"key_type": SHARE, "coordinator_keys": [f"g:{topic_id_text(self._topic_id)}:0"]}
            answer = ask(node.bootstrap, "FindCoordinator", FIRST_WITH_SHARE, key) if node.is_running else None
            if answer is not None and not answer["coordinators"][0]["error_code"]:
                self.coordinator = answer["coordinators"][0]["node_id"]
                return

    def ask(self, name: str, **partition: Any) -> dict[str, Any]:
        fields = {
            "group_id": "g",
            "topics": [{"topic_id": self._topic_id, "partitions": [{"partition": 0, **partition}]}],
        }
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if not self.coordinator:
                self._find()
            node = self._nodes.nodes.get(self.coordinator)
            answer = ask(node.bootstrap, name, BY_NAME[name].last, fields) if node and node.is_running else None
            if answer is not None:
                result = dict(answer["results"][0]["partitions"][0])
                if result["error_code"] == ErrorCode.NONE:
                    return result
                assert result["error_code"] in {14, 15, 16}, result
            self.coordinator = 0
            time.sleep(0.05)
        raise AssertionError(f"{name} did not succeed in {LIMIT_S} s")


def test_killed_coordinators_lose_nothing(nodes: WarmlogNodes) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    for future in admin.create_topics([NewTopic("jobs", 1, 3)]).values():
        future.result(LIMIT_S)
    metadata = ask(nodes[1].bootstrap, "Metadata", 12, {"topics": [{"topic_id": bytes(16), "name": "jobs"}]})
    assert metadata is not None
    client = Client(nodes, bytes(metadata["topics"][0]["topic_id"]))
    client.ask("InitializeShareGroupState", state_epoch=1, start_offset=0)
    written = 0
    for _ in range(KILLS):
        for _ in range(WRITES):
            batch = {
                "first_offset": written,
                "last_offset": written,
                "delivery_state": ACKNOWLEDGED,
                "delivery_count": 1,
            }
            fields = {"state_epoch": 1, "leader_epoch": 0, "start_offset": 0, "delivery_complete_count": written + 1}
            client.ask("WriteShareGroupState", **fields, state_batches=[batch])
            written += 1
        killed = nodes[client.coordinator]
        killed.kill()
        read = client.ask("ReadShareGroupState", leader_epoch=0)
        (state,) = read["state_batches"]
        assert (state["first_offset"], state["last_offset"], state["delivery_state"]) == (0, written - 1, ACKNOWLEDGED)
        summary = client.ask("ReadShareGroupStateSummary", leader_epoch=0)
        assert summary["delivery_complete_count"] == written
        killed.start()
