"""Regenerate tests/fixtures/kafka/4.4.0/share_state_records.jsonl.

`python interop/generate_share_state_records.py` (Java, Maven). Keys and values of `__share_group_state`, written by the
classes of Kafka's share coordinator. A line is {"name", "number" (a key's type, a value's version), "fields" in the
form of Kafka's JSON converters, "bytes" in hexadecimal digits}.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.kafka_node import WIRE_VERSION, java

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / WIRE_VERSION / "share_state_records.jsonl"
TOPIC = "ZROer-cbReKkMjZ9vBhQSg"
BATCHES = [
    {"firstOffset": 100, "lastOffset": 109, "deliveryState": 0, "deliveryCount": 1},
    {"firstOffset": 110, "lastOffset": 110, "deliveryState": 2, "deliveryCount": 5},
    {"firstOffset": 1 << 40, "lastOffset": 1 << 41, "deliveryState": 4, "deliveryCount": 300},
]

Line = tuple[str, int, dict[str, Any]]


def keys() -> Iterator[Line]:
    """Return keys of both types."""
    key = {"groupId": "grüppe", "topicId": TOPIC, "partition": 70_000}
    yield "ShareSnapshotKey", 0, key
    yield "ShareUpdateKey", 1, key


def values() -> Iterator[Line]:
    """Return snapshots and updates, with and without the count that Kafka 4.1 lacks, and batches."""
    update = {"snapshotEpoch": 7, "leaderEpoch": 3, "startOffset": 100}
    snapshot = {**update, "stateEpoch": 2, "createTimestamp": 1_790_000_000_123, "writeTimestamp": 1_790_000_000_456}
    for name, fields in (("ShareSnapshotValue", snapshot), ("ShareUpdateValue", update)):
        yield name, 0, {**fields, "startOffset": -1, "stateBatches": []}
        yield name, 0, {**fields, "deliveryCompleteCount": -1, "stateBatches": BATCHES[:1]}
        yield name, 0, {**fields, "deliveryCompleteCount": 0, "stateBatches": BATCHES}
        yield name, 0, {**fields, "deliveryCompleteCount": 1 << 30, "leaderEpoch": -1, "stateBatches": BATCHES[1:]}


def main() -> None:
    """Encode the records with Kafka's classes; write the fields and the bytes."""
    lines = [*keys(), *values()]
    text = "".join(f"share.{name}\t0\t{number}\t{json.dumps(fields)}\n" for name, number, fields in lines)
    written = java("warmlog.interop.GroupRecords", text=text, version=WIRE_VERSION).splitlines()
    with TARGET.open("w", encoding="ascii") as target:
        for (name, number, fields), data in zip(lines, written, strict=True):
            print(json.dumps({"name": name, "number": number, "fields": fields, "bytes": data}), file=target)


if __name__ == "__main__":
    main()
