"""Regenerate tests/fixtures/kafka/4.4.0/served.json: `python interop/generate_served.py` (Java, Maven).

The APIs of a real Kafka with their versions, and its settings of topics and brokers with their defaults and whether
broker settings can be changed at runtime. A test compares docs/kafka-compatibility.md with it.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.kafka_node import WIRE_VERSION, KafkaNode, create_topics
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.protocol.kafka.messages.cluster.configs import ConfigResourceType, ConfigSource

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / WIRE_VERSION / "served.json"
TOPIC = "served"


async def settings(client: KafkaClient, kind: ConfigResourceType, name: str) -> dict[str, dict[str, Any]]:
    """Return each setting with its default (None if it has none) and whether it can only be set at startup."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    reply = await client.ask("DescribeConfigs", resources=[resource], include_synonyms=True)
    entries = sorted(reply["results"][0]["configs"], key=lambda entry: entry["name"])
    return {entry["name"]: {"default": default_of(entry), "read_only": entry["read_only"]} for entry in entries}


def default_of(entry: dict[str, Any]) -> str | None:
    """Return a setting's default: its value, unless this node was started with a different one."""
    told = [one["value"] for one in entry["synonyms"] if one["source"] == ConfigSource.DEFAULT]
    if entry["config_source"] == ConfigSource.DEFAULT:
        return entry["value"]
    return told[0] if told else None


async def served(address: str) -> dict[str, Any]:
    """Return the content of the file."""
    async with kafka_client(address) as client:
        reply = await client.ask("ApiVersions", client_software_name="warmlog", client_software_version="1")
        return {
            "apis": {str(api["api_key"]): [api["min_version"], api["max_version"]] for api in reply["api_keys"]},
            "topic": await settings(client, ConfigResourceType.TOPIC, TOPIC),
            "broker": await settings(client, ConfigResourceType.BROKER, "1"),
        }


def main() -> None:
    """Query a node, and write the file."""
    with tempfile.TemporaryDirectory() as directory, KafkaNode(Path(directory) / "data", version=WIRE_VERSION) as node:
        create_topics(node.bootstrap, {TOPIC: {}})
        found = trio.run(served, node.bootstrap)
    TARGET.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
