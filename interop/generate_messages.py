"""Regenerate messages.jsonl and consumer_protocol.jsonl in tests/fixtures/kafka/4.4.0 (Java, Maven).

`python interop/generate_messages.py`: two of every message and version that is served, and of the consumer protocol,
with values generated from a seed, written by Kafka's own classes. A line is {"message", "version", "fields" in the form
of Kafka's JSON converters, "body" in hexadecimal digits}.
"""

import json
import random
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.kafka_node import WIRE_VERSION, java
from tests.protocol.kafka.messages import DATA_MESSAGES, DATA_TABLES, MESSAGES, TABLES, sample, to_kafka_json
from warmlog.protocol.kafka.codec.schema import Struct

TARGETS = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / WIRE_VERSION


def main() -> None:
    """Generate values, encode them with Kafka's classes; write the fields and the bytes."""
    generate(TARGETS / "messages.jsonl", [(name, version) for name, _, version in MESSAGES], TABLES)
    generate(TARGETS / "consumer_protocol.jsonl", DATA_MESSAGES, DATA_TABLES)


def generate(target: Path, messages: Iterable[tuple[str, int]], tables: Mapping[str, Struct]) -> None:
    """Write two of every message and version into one file."""
    lines = []
    for name, version in messages:
        for seed in (1, 2):
            source = random.Random(f"{name} {version} {seed}")
            lines.append((name, version, to_kafka_json(tables[name], sample(tables[name], version, source))))
    asked = "".join(f"{name}\t{version}\t{json.dumps(fields)}\n" for name, version, fields in lines)
    bodies = java("warmlog.interop.Messages", text=asked, version=WIRE_VERSION).splitlines()
    with target.open("w", encoding="ascii") as file:
        for (name, version, fields), body in zip(lines, bodies, strict=True):
            line = {"message": name, "version": version, "fields": fields, "body": body}
            print(json.dumps(line), file=file)


if __name__ == "__main__":
    main()
