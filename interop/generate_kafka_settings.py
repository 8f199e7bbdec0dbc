"""Regenerate broker/settings/kafka_settings.json: `python interop/generate_kafka_settings.py` (Java, Maven).

The names and types of all settings that a real Kafka has for brokers, groups and client metrics subscriptions, as its
replies to DescribeConfigs list them. A broker's setting also has a scope, from replies to IncrementalAlterConfigs that
change nothing: "startup" (it cannot be changed while a broker runs), "cluster" (for all brokers or for one), "broker"
(for one), "listener" (for one, after the prefix of a listener).
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.kafka_node import WIRE_VERSION, KafkaNode
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.protocol.kafka.messages.cluster.configs import ConfigOperation, ConfigResourceType, ConfigType

TARGET = Path(__file__).parent.parent / "broker" / "settings" / "kafka_settings.json"


async def entries(client: KafkaClient, kind: ConfigResourceType, name: str) -> list[dict[str, Any]]:
    """Return the settings of a resource by name."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    reply = await client.ask("DescribeConfigs", resources=[resource])
    return sorted(reply["results"][0]["configs"], key=lambda entry: entry["name"])


async def refusal(client: KafkaClient, broker: str, entry: dict[str, Any]) -> str:
    """Return why a setting cannot be changed to its current value; "" if it can."""
    change = {"name": entry["name"], "config_operation": ConfigOperation.SET, "value": entry["value"] or "1"}
    resource = {"resource_type": ConfigResourceType.BROKER, "resource_name": broker, "configs": [change]}
    reply = await client.ask("IncrementalAlterConfigs", resources=[resource], validate_only=True)
    return reply["responses"][0]["error_message"] or ""


async def scope_of(client: KafkaClient, entry: dict[str, Any]) -> str:
    """Return the scope of a broker setting."""
    message = await refusal(client, "", entry)
    if "Cannot update these configs dynamically" in message:
        return "startup"
    if "only per-listener using the listener prefix" in message:
        return "listener"
    if "at default cluster level, broker id must be specified" in message:
        return "broker"
    return "cluster"


def type_of(entry: dict[str, Any]) -> str:
    """Return the name of a type."""
    return ConfigType(entry["config_type"]).name.lower()


async def kafka_settings(address: str) -> dict[str, Any]:
    """Return the content of the file."""
    async with kafka_client(address) as client:
        brokers = await entries(client, ConfigResourceType.BROKER, "1")
        return {
            "broker": {one["name"]: {"type": type_of(one), "scope": await scope_of(client, one)} for one in brokers},
            "group": {one["name"]: type_of(one) for one in await entries(client, ConfigResourceType.GROUP, "any")},
            "client_metrics": {
                one["name"]: type_of(one) for one in await entries(client, ConfigResourceType.CLIENT_METRICS, "any")
            },
        }


def main() -> None:
    """Query a node, and write the file."""
    with tempfile.TemporaryDirectory() as directory, KafkaNode(Path(directory) / "data", version=WIRE_VERSION) as node:
        found = trio.run(kafka_settings, node.bootstrap)
    lines = [
        f'"{kind}": {{\n' + ",\n".join(f" {json.dumps(name)}: {json.dumps(each)}" for name, each in named.items())
        for kind, named in found.items()
    ]
    TARGET.write_text("{\n" + "\n},\n".join(lines) + "\n}\n}\n")


if __name__ == "__main__":
    main()
