"""Regenerate tests/fixtures/kafka/4.4.0/consumer_group_records.jsonl.

`python interop/generate_consumer_group_records.py` (Java, Maven). Keys and values of consumer groups in
`__consumer_offsets`, written by the classes of Kafka's group coordinator, with all fields and with as few as possible.
A line is {"name", "number" (a key's type, a value's version), "fields" in the form of Kafka's JSON converters, "bytes"
in hexadecimal digits}.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.kafka_node import WIRE_VERSION, java

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / WIRE_VERSION / "consumer_group_records.jsonl"
TOPICS = ["ZROer-cbReKkMjZ9vBhQSg", "YPvN38jyS7OQpYfmpqHMPA"]

Line = tuple[str, int, dict[str, Any]]


def keys() -> Iterator[Line]:
    """Return a key of every type."""
    group = {"groupId": "grüppe"}
    member = {**group, "memberId": "q2FpnsfBSlO7UZ4tKcAZyw"}
    yield "ConsumerGroupMetadataKey", 3, group
    yield "ConsumerGroupPartitionMetadataKey", 4, group
    yield "ConsumerGroupMemberMetadataKey", 5, member
    yield "ConsumerGroupTargetAssignmentMetadataKey", 6, group
    yield "ConsumerGroupTargetAssignmentMemberKey", 7, member
    yield "ConsumerGroupCurrentMemberAssignmentKey", 8, member
    yield "ConsumerGroupRegularExpressionKey", 16, {**group, "regularExpression": "ordérs-.*"}


def values() -> Iterator[Line]:
    """Return values of every type."""
    yield "ConsumerGroupMetadataValue", 0, {"epoch": 7}
    yield "ConsumerGroupMetadataValue", 0, {"epoch": 1 << 30, "metadataHash": -(1 << 62)}
    yield "ConsumerGroupPartitionMetadataValue", 0, {"topics": []}
    racks = [{"partition": 0, "racks": ["a", "b"]}, {"partition": 1, "racks": []}]
    topic = {"topicId": TOPICS[0], "topicName": "orders", "numPartitions": 2, "partitionMetadata": racks}
    yield "ConsumerGroupPartitionMetadataValue", 0, {"topics": [topic]}
    yield "ConsumerGroupTargetAssignmentMetadataValue", 0, {"assignmentEpoch": 7}
    stamped = {"assignmentEpoch": 8, "assignmentTimestamp": 1_790_000_000_123}
    yield "ConsumerGroupTargetAssignmentMetadataValue", 0, stamped
    yield "ConsumerGroupTargetAssignmentMemberValue", 0, {"topicPartitions": []}
    partitions = [{"topicId": TOPICS[0], "partitions": [0, 1, 300]}, {"topicId": TOPICS[1], "partitions": [70_000]}]
    yield "ConsumerGroupTargetAssignmentMemberValue", 0, {"topicPartitions": partitions}
    yield from members()
    yield from assignments()
    yield "ConsumerGroupRegularExpressionValue", 0, {"topics": [], "version": 0, "timestamp": 0}
    resolved = {"topics": ["orders-1", "orders-2"], "version": 1 << 40, "timestamp": 1_790_000_000_456}
    yield "ConsumerGroupRegularExpressionValue", 0, resolved


def members() -> Iterator[Line]:
    """Return members of both protocols; bytes are base64 in Kafka's JSON."""
    least = {
        "instanceId": None,
        "rackId": None,
        "clientId": "client",
        "clientHost": "/127.0.0.1",
        "subscribedTopicNames": [],
        "subscribedTopicRegex": None,
        "rebalanceTimeoutMs": -1,
        "serverAssignor": None,
    }
    most = {
        **least,
        "instanceId": "instance",
        "rackId": "räck",
        "subscribedTopicNames": ["orders", "payments"],
        "subscribedTopicRegex": "orders-.*",
        "rebalanceTimeoutMs": 300_000,
        "serverAssignor": "uniform",
    }
    protocol = {"name": "range", "metadata": "AAAAAAABAAZvcmRlcnP/////"}
    classic = {"sessionTimeoutMs": 45_000, "supportedProtocols": [protocol, {"name": "sticky", "metadata": ""}]}
    name = "ConsumerGroupMemberMetadataValue"
    yield name, 0, least
    yield name, 0, most
    yield name, 0, {**least, "classicMemberMetadata": classic}
    yield name, 0, {**most, "classicMemberMetadata": {"sessionTimeoutMs": 1, "supportedProtocols": []}}
    yield name, 0, {**most, "classicMemberMetadata": None}


def assignments() -> Iterator[Line]:
    """Return current assignments with and without the epochs in which partitions were assigned."""
    name = "ConsumerGroupCurrentMemberAssignmentValue"
    head = {"memberEpoch": 9, "previousMemberEpoch": 8}
    yield name, 0, {**head, "state": 1, "assignedPartitions": [], "partitionsPendingRevocation": []}
    old = [{"topicId": TOPICS[0], "partitions": [0, 1]}]
    yield name, 0, {**head, "state": 3, "assignedPartitions": old, "partitionsPendingRevocation": []}
    new = [
        {"topicId": TOPICS[0], "partitions": [0, 1], "assignmentEpochs": [3, 9]},
        {"topicId": TOPICS[1], "partitions": [5], "assignmentEpochs": [0]},
    ]
    leaving = [{"topicId": TOPICS[1], "partitions": [6, 7], "assignmentEpochs": [2, 2]}]
    yield name, 0, {**head, "state": 2, "assignedPartitions": new, "partitionsPendingRevocation": leaving}


def write(target_path: Path, lines: Sequence[Line]) -> None:
    """Encode records with Kafka's classes; write the fields and the bytes."""
    text = "".join(f"group.{name}\t0\t{number}\t{json.dumps(fields)}\n" for name, number, fields in lines)
    written = java("warmlog.interop.GroupRecords", text=text, version=WIRE_VERSION).splitlines()
    with target_path.open("w", encoding="ascii") as target:
        for (name, number, fields), data in zip(lines, written, strict=True):
            print(json.dumps({"name": name, "number": number, "fields": fields, "bytes": data}), file=target)


if __name__ == "__main__":
    write(TARGET, [*keys(), *values()])
