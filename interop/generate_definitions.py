"""Regenerate tests/fixtures/kafka/4.4.0/definitions.txt: `python interop/generate_definitions.py` (Java, Maven).

The messages that Kafka's brokers serve, and the consumer protocol, from the definitions in the jar of its clients:
names, types, versions and defaults of all fields, one per line. The diff of two versions' files shows the changes of
the wire format. A test compares our tables with it.

    MetadataRequest versions 0-13 flexible 9+
        Topics []MetadataRequestTopic versions 0+ nullable 1+
            TopicId uuid versions 10+ ignorable
"""

import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.kafka_node import WIRE_VERSION, jar

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / WIRE_VERSION / "definitions.txt"
INDENT = "    "
DATA = ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment")
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)


def main() -> None:
    """Write the definitions of all messages, by name."""
    found = dict(definitions(jar("kafka-clients", WIRE_VERSION)))
    served = {key for one in found.values() if "broker" in one.get("listeners", ()) for key in [one["apiKey"]]}
    names = [name for name, one in sorted(found.items()) if one.get("apiKey") in served or name in DATA]
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text("".join(f"{line}\n" for name in names for line in lines(found[name])))


def definitions(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the definitions in a jar by name."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                definition = json.loads(_COMMENT.sub("", archive.read(name).decode()))
                yield definition["name"], definition


def lines(definition: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a message."""
    unstable = " newest unstable" if definition.get("latestVersionUnstable") else ""
    key = f" key {definition['apiKey']}" if "apiKey" in definition else ""
    versions = f"versions {definition['validVersions']} flexible {definition['flexibleVersions']}"
    yield f"{definition['name']}{key} {versions}{unstable}"
    common = {one["name"]: one["fields"] for one in definition.get("commonStructs", ())}
    yield from field_lines(definition.get("fields", ()), common, INDENT)


def field_lines(fields: Any, common: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Yield the lines of fields and their nested fields."""
    for field in fields:
        kind = field["type"]
        parts = [f"{indent}{field['name']} {kind} versions {field['versions']}"]
        if "nullableVersions" in field:
            parts.append(f"nullable {field['nullableVersions']}")
        if "tag" in field:
            parts.append(f"tag {field['tag']} {field['taggedVersions']}")
        if "default" in field:
            default = field["default"]  # the definitions have both true and "true", and both -1 and "-1"
            parts.append(f"default {json.dumps(default if isinstance(default, str) else str(default).lower())}")
        if field.get("ignorable"):
            parts.append("ignorable")
        yield " ".join(parts)
        yield from field_lines(field.get("fields", common.get(kind.removeprefix("[]"), ())), common, indent + INDENT)


if __name__ == "__main__":
    main()
