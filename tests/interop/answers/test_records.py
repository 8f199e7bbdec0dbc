"""Kafka's own tools for deleting records and looking into data directories, against a broker of ours."""

import json
from pathlib import Path

import pytest

from interop.kafka_node import java
from warmlog import Client
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def tool(name: str, broker: Broker, *arguments: str) -> str:
    return java(f"org.apache.kafka.tools.{name}", "--bootstrap-server", broker.kafka, *arguments)


def test_records_are_deleted_by_kafkas_tool(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets.json"
    with Broker(settings={"log.segment.bytes": 1000}) as broker, Client(broker.native) as client:
        client.produce_many("orders", [b"%d" % at for at in range(100)])
        client.create_topic("compacted", configs={"cleanup.policy": "compact"})
        asked = [("orders", 40), ("orders", 400), ("compacted", 0)]
        said = []
        for topic, offset in asked:
            partitions = [{"topic": topic, "partition": 0, "offset": offset}]
            offsets.write_text(json.dumps({"partitions": partitions, "version": 1}))
            said.append(tool("DeleteRecordsCommand", broker, "--offset-json-file", str(offsets)))
        assert "partition: orders-0\tlow_watermark: 40" in said[0]
        assert "OffsetOutOfRangeException" in said[1]
        assert "PolicyViolationException" in said[2]
        assert client.offsets("orders", "beginning") == {0: 40}


def test_directories_are_described_by_kafkas_tool(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, Client(broker.native) as client:
        client.produce_many("orders", [b"%d" % at for at in range(100)])
        described = json.loads(tool("LogDirsCommand", broker, "--describe").splitlines()[-1])
        (directory,) = described["brokers"][0]["logDirs"]
        assert (directory["error"], directory["logDir"]) == (None, str(tmp_path))
        size = (tmp_path / "orders-0" / f"{0:020d}.log").stat().st_size
        assert directory["partitions"] == [{"partition": "orders-0", "size": size, "offsetLag": 0, "isFuture": False}]
