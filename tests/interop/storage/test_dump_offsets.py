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
    """The offsets topic of a broker of ours with a group of each protocol that consumed and committed."""
    settings = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
    with Broker(data_dir=tmp_path, settings=settings) as broker, Client(broker.native) as client:
        client.produce_many("words", [b"a", b"b", b"c"])
        for protocol in ("classic", "consumer"):
            stream = client.consume("words", group=f"{protocol}-readers", group_protocol=protocol)
            for taken, _ in enumerate(stream, start=1):
                if taken == 3:
                    break
    return tmp_path / "__consumer_offsets-0"


def kafkas(log: Path) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
    """Offset to key and payload, as Kafka's tool decodes them; tombstones are left out."""
    (said,) = dump([["--offsets-decoder", "--files", log]])
    assert said.findings() == []
    return {int(offset): (json.loads(key), json.loads(payload)) for offset, key, payload in RECORD.findall(said.output)}


def in_snake_case(value: Any) -> Any:
    """Return what Kafka's tool has printed, with the names of fields as ours has them."""
    if isinstance(value, list):
        return [in_snake_case(each) for each in value]
    if isinstance(value, dict):
        return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): in_snake_case(each) for name, each in value.items()}
    return value


def as_printed(value: Any, kafkas: Any) -> Any:
    """Return a value without the fields that Kafka's tool leaves out: the version, and tagged ones with defaults."""
    if isinstance(value, list) and len(value) == len(kafkas):
        return [as_printed(each, other) for each, other in zip(value, kafkas, strict=True)]
    if isinstance(value, dict):
        return {name: as_printed(each, kafkas[name]) for name, each in value.items() if name in kafkas}
    return value


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
        elif key["type"] != GROUP_KEY_TYPE:
            fields = {
                "group" if name == "group_id" else name: each for name, each in in_snake_case(key["data"]).items()
            }
            assert form["decoded_key"] == {"type": form["decoded_key"]["type"], **fields}
            assert as_printed(form["decoded_value"], in_snake_case(data)) == in_snake_case(data)
        else:
            assert form["decoded_key"] == {"type": "group_metadata", **key["data"]}
            assert form["decoded_value"]["generation"] == data["generation"]
            assert [each["member_id"] for each in form["decoded_value"]["members"]] == [
                each["memberId"] for each in data["members"]
            ]
