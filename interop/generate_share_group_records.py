"""Regenerate tests/fixtures/kafka/4.4.0/share_group_records.jsonl.

`python interop/generate_share_group_records.py` (Java, Maven). Keys and values of share groups in `__consumer_offsets`,
written by the classes of Kafka's group coordinator; a line is as in `generate_consumer_group_records.py`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.generate_consumer_group_records import TOPICS, Line, write
from interop.kafka_node import WIRE_VERSION

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / WIRE_VERSION / "share_group_records.jsonl"


def keys() -> Iterator[Line]:
    """Return a key of every type."""
    group = {"groupId": "grüppe"}
    member = {**group, "memberId": "q2FpnsfBSlO7UZ4tKcAZyw"}
    yield "ShareGroupMemberMetadataKey", 10, member
    yield "ShareGroupMetadataKey", 11, group
    yield "ShareGroupTargetAssignmentMetadataKey", 12, group
    yield "ShareGroupTargetAssignmentMemberKey", 13, member
    yield "ShareGroupCurrentMemberAssignmentKey", 14, member
    yield "ShareGroupStatePartitionMetadataKey", 15, group


def values() -> Iterator[Line]:
    """Return values of every type, with few and with all fields."""
    member = {"rackId": None, "clientId": "client", "clientHost": "/127.0.0.1", "subscribedTopicNames": []}
    yield "ShareGroupMemberMetadataValue", 0, member
    yield (
        "ShareGroupMemberMetadataValue",
        0,
        {
            **member,
            "rackId": "räck",
            "subscribedTopicNames": ["orders", "payments"],
        },
    )
    yield "ShareGroupMetadataValue", 0, {"epoch": 7, "metadataHash": 0}
    yield "ShareGroupMetadataValue", 0, {"epoch": 1 << 30, "metadataHash": -(1 << 62)}
    yield "ShareGroupTargetAssignmentMetadataValue", 0, {"assignmentEpoch": 7}
    stamped = {"assignmentEpoch": 8, "assignmentTimestamp": 1_790_000_000_123}
    yield "ShareGroupTargetAssignmentMetadataValue", 0, stamped
    partitions = [{"topicId": TOPICS[0], "partitions": [0, 1, 300]}, {"topicId": TOPICS[1], "partitions": [70_000]}]
    yield "ShareGroupTargetAssignmentMemberValue", 0, {"topicPartitions": []}
    yield "ShareGroupTargetAssignmentMemberValue", 0, {"topicPartitions": partitions}
    head = {"memberEpoch": 9, "previousMemberEpoch": 8, "state": 1}
    yield "ShareGroupCurrentMemberAssignmentValue", 0, {**head, "assignedPartitions": []}
    yield "ShareGroupCurrentMemberAssignmentValue", 0, {**head, "assignedPartitions": partitions}
    none = {"initializingTopics": [], "initializedTopics": [], "deletingTopics": []}
    orders = {"topicId": TOPICS[0], "topicName": "orders"}
    payments = {"topicId": TOPICS[1], "topicName": "payments"}
    yield "ShareGroupStatePartitionMetadataValue", 0, none
    yield (
        "ShareGroupStatePartitionMetadataValue",
        0,
        {
            "initializingTopics": [{**orders, "partitions": [2]}, {**payments, "partitions": [0]}],
            "initializedTopics": [{**orders, "partitions": [0, 1]}],
            "deletingTopics": [payments],
        },
    )


if __name__ == "__main__":
    write(TARGET, [*keys(), *values()])
