"""`__consumer_offsets` as Kafka's DumpLogSegments decodes it and as `warmlog log dump` does: the same."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from interop.kafka_node import dump
from tests.conftest import KAFKA_FIXTURES
from warmlog import Client
from warmlog.cli.root import root
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

RECORD = re.compile(r"^\| offset: (\d+) .* key: (\{.*\}) payload: (\{.*\})$", re.MULTILINE)
OFFSET_KEY_TYPE, GROUP_KEY_TYPE = "1", "2"


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """The offsets topic of a broker of ours with a group that consumed and committed."""
    settings = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
    with Broker(data_dir=tmp_path, settings=settings) as broker, Client(broker.native) as client:
        client.produce_many("words", [b"a", b"b", b"c"])
        for taken, _ in enumerate(client.consume("words", group="readers"), start=1):
            if taken == 3:
                break
    return tmp_path / "__consumer_offsets-0"


def kafkas(log: Path) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
    """Offset to key and payload, as Kafka's tool decodes them; tombstones are left out."""
    (said,) = dump([["--offsets-decoder", "--files", log]])
    assert said.findings() == []
    return {int(offset): (json.loads(key), json.loads(payload)) for offset, key, payload in RECORD.findall(said.output)}


def told(log: Path) -> dict[int, dict[str, Any]]:
    """The same by our tool."""
    lines = CliRunner().invoke(root, ["log", "dump", str(log), "--offsets-decoder", "--json"]).stdout.splitlines()
    records = [form for form in map(json.loads, lines) if form["type"] == "record"]
    return {form["offset"]: form for form in records if form["decoded_value"] is not None}


@pytest.mark.parametrize("whose", ["ours", "kafkas"])
def test_committed_offsets_and_generations_are_decoded_as_by_kafkas_tool(ours: Path, whose: str) -> None:
    directory = ours if whose == "ours" else KAFKA_FIXTURES / "clean" / "__consumer_offsets-0"
    log = directory / f"{0:020}.log"
    seen, printed = kafkas(log), told(log)
    assert seen
    assert seen.keys() == printed.keys()
    for offset, (key, payload) in seen.items():
        form, data = printed[offset], payload["data"]
        assert str(form["decoded_value"]["version"]) == payload["version"]
        if key["type"] == OFFSET_KEY_TYPE:
            assert form["decoded_key"] == {"type": "offset_commit", **key["data"]}
            assert form["decoded_value"]["offset"] == data["offset"]
            assert form["decoded_value"]["commit_timestamp"] == data["commitTimestamp"]
            assert form["decoded_value"]["metadata"] == data["metadata"]
        else:
            assert key["type"] == GROUP_KEY_TYPE
            assert form["decoded_key"] == {"type": "group_metadata", **key["data"]}
            assert form["decoded_value"]["generation"] == data["generation"]
            assert [each["member_id"] for each in form["decoded_value"]["members"]] == [
                each["memberId"] for each in data["members"]
            ]
