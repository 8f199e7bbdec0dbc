"""`warmlog log verify` and `repair` over data directories of a live Kafka: nothing is wrong that Kafka wrote."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from interop.kafka_node import KafkaNode, consume, java
from tests.interop.storage.test_kafka_serves import STORAGE_WARNING
from warmlog.cli.root import root

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

#: Of everything there is: codecs, transactions (aborted, too), idempotence, compaction, deletions.
TOPICS = ("plain", "zstd", "transactional", "idempotent", "compacted", "trimmed", "aged")
TORN = b"\0\0\0\0\0\0\1\0torn"


@pytest.fixture
def node(tmp_path: Path) -> KafkaNode:
    return KafkaNode(tmp_path / "data")


def verify(data: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(CliRunner().invoke(root, ["log", "verify", str(data), "--json"]).stdout)
    return said


def seen(node: KafkaNode) -> list[list[object]]:
    """The records of the topics, as the Java consumer sees them.

    But for what compaction does meanwhile, and what was deleted: a kill takes Kafka's note of it.
    """
    topics = [topic for topic in TOPICS if topic not in {"compacted", "trimmed"}]
    return [partition["records"] for partition in consume(node.bootstrap, *topics)]  # type: ignore[misc]


def test_nothing_is_wrong_with_what_kafka_writes_and_leaves(node: KafkaNode) -> None:
    with node:
        java("warmlog.interop.Produce", node.bootstrap, "all")
        beside = verify(node.data)
    assert (beside["findings"], beside["served"]) == ([], [str(node.data)])
    after = verify(node.data)
    assert (after["findings"], after["served"]) == ([], [])
    assert after["partitions"] > len(TOPICS)


def test_a_killed_kafkas_directory_is_repaired_and_kafka_finds_nothing_more_to_do(node: KafkaNode) -> None:
    node.start()
    java("warmlog.interop.Produce", node.bootstrap, "all")
    before = seen(node)
    node.kill()
    torn = max((node.data / "plain-0").glob("*.log"))
    torn.write_bytes(torn.read_bytes() + TORN)
    assert [finding["path"] for finding in verify(node.data)["findings"]] == [str(torn)]
    said = CliRunner().invoke(root, ["log", "repair", str(node.data), "--json"])
    assert said.exit_code == 0, said.stdout
    report = json.loads(said.stdout)
    (plain,) = [log for log in report["directories"][0]["logs"] if log["topic"] == "plain"]
    assert plain["recovery"]["truncated_bytes"] == len(TORN)
    assert verify(node.data)["findings"] == []
    with node:
        assert seen(node) == before
    assert [line for line in node.log().splitlines() if STORAGE_WARNING.search(line) and "orrupt" in line] == []
    assert verify(node.data)["findings"] == []
