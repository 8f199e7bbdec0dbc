"""Make tests/fixtures/kafka/4.3.1/messages.jsonl anew: `python interop/generate_messages.py` (Java, Maven).

Two of every message and version that is served, with values chosen by a seed, as Kafka's own classes write them. A line
is {"message", "version", "fields" as Kafka's JSON converters take them, "body" in hexadecimal digits}.
"""

import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.kafka_node import KAFKA_VERSION, java
from tests.protocol.kafka.messages import MESSAGES, TABLES, sample, to_kafka_json

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / KAFKA_VERSION / "messages.jsonl"


def main() -> None:
    """Choose values, let Kafka write them, note both."""
    lines = []
    for name, _, version in MESSAGES:
        for seed in (1, 2):
            source = random.Random(f"{name} {version} {seed}")
            lines.append((name, version, to_kafka_json(TABLES[name], sample(TABLES[name], version, source))))
    asked = "".join(f"{name}\t{version}\t{json.dumps(fields)}\n" for name, version, fields in lines)
    bodies = java("warmlog.interop.Messages", text=asked).splitlines()
    with TARGET.open("w", encoding="ascii") as target:
        for (name, version, fields), body in zip(lines, bodies, strict=True):
            line = {"message": name, "version": version, "fields": fields, "body": body}
            print(json.dumps(line), file=target)


if __name__ == "__main__":
    main()
