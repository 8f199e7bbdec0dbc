"""Regenerate tests/fixtures/kafka/4.4.0/streams_group_records.jsonl.

`python interop/generate_streams_group_records.py` (Java, Maven). Keys and values of streams groups in
`__consumer_offsets`, written by the classes of Kafka's group coordinator; a line is as in
`generate_consumer_group_records.py`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.generate_consumer_group_records import Line, write
from interop.kafka_node import WIRE_VERSION

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / WIRE_VERSION / "streams_group_records.jsonl"


def keys() -> Iterator[Line]:
    """Return a key of every type."""
    group = {"groupId": "grüppe"}
    member = {**group, "memberId": "q2FpnsfBSlO7UZ4tKcAZyw"}
    yield "StreamsGroupMetadataKey", 17, group
    yield "StreamsGroupMemberMetadataKey", 19, member
    yield "StreamsGroupTargetAssignmentMetadataKey", 20, group
    yield "StreamsGroupTargetAssignmentMemberKey", 21, member
    yield "StreamsGroupCurrentMemberAssignmentKey", 22, member
    yield "StreamsGroupTopologyKey", 23, group


def values() -> Iterator[Line]:
    """Return values of every type, with few and with all fields."""
    yield "StreamsGroupMetadataValue", 0, {"epoch": 7, "metadataHash": 0}
    most = {
        "epoch": 1 << 30,
        "metadataHash": -(1 << 62),
        "validatedTopologyEpoch": 3,
        "lastAssignmentConfigs": [{"key": "num.standby.replicas", "value": "1"}],
        "storedDescriptionTopologyEpoch": 2,
        "failedDescriptionTopologyEpoch": 1,
    }
    yield "StreamsGroupMetadataValue", 0, most
    member = {
        "instanceId": None,
        "rackId": None,
        "clientId": "client",
        "clientHost": "/127.0.0.1",
        "rebalanceTimeoutMs": -1,
        "topologyEpoch": 0,
        "processId": "",
        "userEndpoint": None,
        "clientTags": [],
    }
    yield "StreamsGroupMemberMetadataValue", 0, member
    yield (
        "StreamsGroupMemberMetadataValue",
        0,
        {
            **member,
            "instanceId": "instance",
            "rackId": "räck",
            "rebalanceTimeoutMs": 300_000,
            "topologyEpoch": 4,
            "processId": "process",
            "userEndpoint": {"host": "localhost", "port": 65_535},
            "clientTags": [{"key": "zone", "value": "a"}],
        },
    )
    yield "StreamsGroupTargetAssignmentMetadataValue", 0, {"assignmentEpoch": 7}
    stamped = {"assignmentEpoch": 8, "assignmentTimestamp": 1_790_000_000_123}
    yield "StreamsGroupTargetAssignmentMetadataValue", 0, stamped
    none = {"activeTasks": [], "standbyTasks": [], "warmupTasks": []}
    first, second = {"subtopologyId": "0", "partitions": [0, 1, 300]}, {"subtopologyId": "1", "partitions": [70_000]}
    yield "StreamsGroupTargetAssignmentMemberValue", 0, none
    yield (
        "StreamsGroupTargetAssignmentMemberValue",
        0,
        {"activeTasks": [first, second], "standbyTasks": [second], "warmupTasks": [first]},
    )
    name = "StreamsGroupCurrentMemberAssignmentValue"
    head = {"memberEpoch": 9, "previousMemberEpoch": 8}
    revoked = {
        "activeTasksPendingRevocation": [],
        "standbyTasksPendingRevocation": [],
        "warmupTasksPendingRevocation": [],
    }
    yield name, 0, {**head, "state": 1, **none, **revoked}
    yield (
        name,
        0,
        {
            **head,
            "state": 2,
            "activeTasks": [{**first, "assignmentEpochs": [3, 9, 9]}],
            "standbyTasks": [second],
            "warmupTasks": [first],
            "activeTasksPendingRevocation": [{**second, "assignmentEpochs": [2]}],
            "standbyTasksPendingRevocation": [first],
            "warmupTasksPendingRevocation": [second],
        },
    )
    yield "StreamsGroupTopologyValue", 0, {"epoch": 0, "subtopologies": []}
    yield "StreamsGroupTopologyValue", 0, {"epoch": 5, "subtopologies": [_subtopology()]}


def _subtopology() -> dict[str, object]:
    changelog = {
        "name": "app-store-changelog",
        "partitions": 0,
        "replicationFactor": 1,
        "topicConfigs": [{"key": "cleanup.policy", "value": "compact"}],
    }
    repartition = {"name": "app-repartition", "partitions": 4, "replicationFactor": 0, "topicConfigs": []}
    return {
        "subtopologyId": "0",
        "sourceTopics": ["orders", "payments"],
        "sourceTopicRegex": ["orders-.*"],
        "stateChangelogTopics": [changelog],
        "repartitionSinkTopics": ["app-other"],
        "repartitionSourceTopics": [repartition],
        "copartitionGroups": [{"sourceTopics": [0, 1], "sourceTopicRegex": [0], "repartitionSourceTopics": [0]}],
    }


if __name__ == "__main__":
    write(TARGET, [*keys(), *values()])
