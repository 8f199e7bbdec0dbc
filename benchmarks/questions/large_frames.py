"""The large requests that `large_requests` measures, by the field names of Kafka's message definitions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.records.builder import build_batch
from tests.broker.kafka_client import BY_NAME
from tests.protocol.kafka.messages import TABLES, body, frame, with_defaults

LENGTH_BYTES = 4
TOPICS, WIDE = 1000, 2000
BATCH = build_batch([(1_700_000_000_000, None, b"v" * 100, ())])
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeRequest:
    """A request by the field names of Kafka's message definitions.

    `fields` gives the fields for a request of a size: how many things it names.
    """

    name: str
    api: str
    size: int
    fields: Callable[[int], Fields]
    version: int | None = None


def many(count: int) -> list[str]:
    """Return names of topics that exist."""
    return [f"many-{number}" for number in range(min(count, TOPICS))]


def none(count: int) -> list[str]:
    """Return names of topics that do not exist."""
    return [f"none-{number}" for number in range(count)]


def of_wide(count: int, key: str, **fields: Any) -> list[dict[str, Any]]:
    """Return entries for the first partitions of the topic that has many."""
    return [{key: number, **fields} for number in range(count)]


def fetch_fields(topics: list[dict[str, Any]], **fields: Any) -> Fields:
    """Return the fields of a Fetch request outside a session."""
    return {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, "topics": topics, **fields}


def _fetched(count: int) -> list[dict[str, Any]]:
    return of_wide(count, "partition", fetch_offset=0, partition_max_bytes=1 << 20)


def commit_fields(topic: str, count: int) -> Fields:
    """Return the fields of an OffsetCommit for the first `count` partitions of a topic."""
    partitions = of_wide(count, "partition_index", committed_offset=1, committed_metadata="")
    return {"group_id": "committed", "member_id": "", "topics": [{"name": topic, "partitions": partitions}]}


def _resources(names: list[str], kind: int = 2) -> list[dict[str, Any]]:
    return [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for name in names]


def _altered(names: list[str]) -> list[dict[str, Any]]:
    configs = [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
    return [{"resource_type": 2, "resource_name": name, "configs": configs} for name in names]


def _new_topics(names: list[str], **fields: Any) -> Fields:
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": (), **fields}
        for name in names
    ]
    return {"topics": topics, "timeout_ms": 60_000, "validate_only": True}


KAFKA = (
    LargeRequest(
        name="produce-known", api="Produce", version=9, size=WIDE,
        fields=lambda n: {"acks": 1, "timeout_ms": 30_000, "topic_data": [
            {"name": "wide", "partition_data": of_wide(n, "index", records=BATCH)}]},
    ),
    LargeRequest(
        name="produce-unknown", api="Produce", version=9, size=20_000,
        fields=lambda n: {"acks": 1, "timeout_ms": 30_000, "topic_data": [
            {"name": "wide", "partition_data": [
                {"index": WIDE + number, "records": BATCH} for number in range(n)]}]},
    ),
    LargeRequest(
        name="fetch-known", api="Fetch", version=12, size=WIDE,
        fields=lambda n: fetch_fields([{"topic": "wide", "partitions": _fetched(n)}]),
    ),
    LargeRequest(
        name="fetch-unknown", api="Fetch", version=12, size=99_000,
        fields=lambda n: fetch_fields([{"topic": "none", "partitions": _fetched(n)}]),
    ),
    LargeRequest(
        name="fetch-session", api="Fetch", version=12, size=WIDE,
        fields=lambda n: fetch_fields([{"topic": "wide", "partitions": _fetched(n)}], session_epoch=0),
    ),
    LargeRequest(
        name="list-offsets-known", api="ListOffsets", version=7, size=WIDE,
        fields=lambda n: {"topics": [{"name": "wide", "partitions": of_wide(n, "partition_index", timestamp=-1)}]},
    ),
    LargeRequest(
        name="list-offsets-by-time", api="ListOffsets", version=7, size=WIDE,
        fields=lambda n: {"topics": [
            {"name": "wide", "partitions": of_wide(n, "partition_index", timestamp=1_600_000_000_000)}]},
    ),
    LargeRequest(
        name="list-offsets-unknown", api="ListOffsets", version=7, size=99_000,
        fields=lambda n: {"topics": [{"name": "none", "partitions": of_wide(n, "partition_index", timestamp=-1)}]},
    ),
    LargeRequest(name="metadata-all", api="Metadata", version=9, size=TOPICS, fields=lambda _: {"topics": None}),
    LargeRequest(
        name="metadata-named", api="Metadata", version=9, size=TOPICS,
        fields=lambda n: {"topics": [{"name": name} for name in many(n)], "allow_auto_topic_creation": False},
    ),
    LargeRequest(
        name="metadata-unknown", api="Metadata", version=9, size=99_000,
        fields=lambda n: {"topics": [{"name": name} for name in none(n)], "allow_auto_topic_creation": False},
    ),
    LargeRequest(
        name="metadata-by-id", api="Metadata", version=12, size=99_000,
        fields=lambda n: {"topics": [
            {"name": None, "topic_id": number.to_bytes(16)} for number in range(1000, n + 1000)],
            "allow_auto_topic_creation": False},
    ),
    LargeRequest(
        name="offset-commit", api="OffsetCommit", version=8, size=WIDE, fields=lambda n: commit_fields("wide", n)
    ),
    LargeRequest(
        name="offset-commit-unknown", api="OffsetCommit", version=8, size=99_000,
        fields=lambda n: commit_fields("none", n),
    ),
    LargeRequest(
        name="offset-fetch-one-group-often", api="OffsetFetch", version=8, size=1000,
        fields=lambda n: {"groups": [{"group_id": "committed", "topics": None}] * n},
    ),
    LargeRequest(
        name="offset-fetch-partitions", api="OffsetFetch", version=8, size=99_000,
        fields=lambda n: {"groups": [
            {"group_id": "committed", "topics": [{"name": "wide", "partition_indexes": range(n)}]}]},
    ),
    LargeRequest(
        name="offset-fetch-groups", api="OffsetFetch", version=8, size=99_000,
        fields=lambda n: {"groups": [{"group_id": name, "topics": None} for name in none(n)]},
    ),
    LargeRequest(
        name="find-coordinator", api="FindCoordinator", version=4, size=99_000,
        fields=lambda n: {"key_type": 0, "coordinator_keys": none(n)},
    ),
    LargeRequest(
        name="join-group-protocols", api="JoinGroup", version=5, size=99_000,
        fields=lambda n: {"group_id": "joined", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000,
                          "member_id": "", "protocol_type": "consumer",
                          "protocols": [{"name": name, "metadata": b""} for name in none(n)]},
    ),
    LargeRequest(
        name="sync-group-assignments", api="SyncGroup", version=4, size=99_000,
        fields=lambda n: {"group_id": "none", "generation_id": 1, "member_id": "m",
                          "assignments": [{"member_id": name, "assignment": b""} for name in none(n)]},
    ),
    LargeRequest(
        name="leave-group-members", api="LeaveGroup", version=4, size=99_000,
        fields=lambda n: {"group_id": "committed", "members": [{"member_id": name} for name in none(n)]},
    ),
    LargeRequest(
        name="describe-groups-one-often", api="DescribeGroups", version=5, size=99_000,
        fields=lambda n: {"groups": ["committed"] * n},
    ),
    LargeRequest(
        name="describe-groups", api="DescribeGroups", version=5, size=99_000, fields=lambda n: {"groups": none(n)}
    ),
    LargeRequest(name="list-groups", api="ListGroups", version=4, size=1, fields=lambda _: {}),
    LargeRequest(
        name="delete-groups", api="DeleteGroups", version=2, size=99_000, fields=lambda n: {"groups_names": none(n)}
    ),
    LargeRequest(
        name="create-topics-validated", api="CreateTopics", version=5, size=10_000,
        fields=lambda n: _new_topics(none(n)),
    ),
    LargeRequest(
        name="create-topics-invalid", api="CreateTopics", version=5, size=30_000,
        fields=lambda n: _new_topics([f"no topic {number}" for number in range(n)]),
    ),
    LargeRequest(
        name="create-topic-assigned", api="CreateTopics", version=5, size=49_000,
        fields=lambda n: _new_topics(
            ["assigned"], num_partitions=-1, replication_factor=-1,
            assignments=[{"partition_index": number, "broker_ids": (1,)} for number in range(n)]),
    ),
    LargeRequest(
        name="create-topic-configs", api="CreateTopics", version=5, size=99_000,
        fields=lambda n: _new_topics(
            ["configured"], configs=[{"name": f"no.config.{number}", "value": "1"} for number in range(n)]),
    ),
    LargeRequest(
        name="delete-topics-unknown", api="DeleteTopics", version=5, size=99_000,
        fields=lambda n: {"topic_names": none(n), "timeout_ms": 60_000},
    ),
    LargeRequest(
        name="delete-records", api="DeleteRecords", version=2, size=WIDE,
        fields=lambda n: {"topics": [{"name": "wide", "partitions": of_wide(n, "partition_index", offset=0)}],
                          "timeout_ms": 60_000},
    ),
    LargeRequest(
        name="delete-records-unknown", api="DeleteRecords", version=2, size=99_000,
        fields=lambda n: {"topics": [{"name": "none", "partitions": of_wide(n, "partition_index", offset=0)}],
                          "timeout_ms": 60_000},
    ),
    LargeRequest(
        name="leader-epochs", api="OffsetForLeaderEpoch", version=4, size=99_000,
        fields=lambda n: {"replica_id": -1, "topics": [
            {"topic": "wide", "partitions": of_wide(n, "partition", current_leader_epoch=-1, leader_epoch=0)}]},
    ),
    LargeRequest(
        name="describe-configs", api="DescribeConfigs", version=4, size=TOPICS,
        fields=lambda n: {"resources": _resources(many(n)), "include_synonyms": True},
    ),
    LargeRequest(
        name="describe-configs-one-often", api="DescribeConfigs", version=4, size=2000,
        fields=lambda n: {"resources": _resources(["many-0"] * n), "include_synonyms": True},
    ),
    LargeRequest(
        name="describe-configs-unknown", api="DescribeConfigs", version=4, size=99_000,
        fields=lambda n: {"resources": _resources(none(n))},
    ),
    LargeRequest(
        name="describe-configs-broker-often", api="DescribeConfigs", version=4, size=1000,
        fields=lambda n: {"resources": _resources(["1"] * n, 4), "include_synonyms": True},
    ),
    LargeRequest(
        name="describe-configs-keys", api="DescribeConfigs", version=4, size=99_000,
        fields=lambda n: {"resources": [
            {"resource_type": 2, "resource_name": "many-0", "configuration_keys": none(n)}]},
    ),
    LargeRequest(
        name="alter-configs-unknown", api="AlterConfigs", version=2, size=40_000,
        fields=lambda n: {"resources": _altered(none(n)), "validate_only": True},
    ),
    LargeRequest(
        name="incremental-alter-configs-unknown", api="IncrementalAlterConfigs", version=1, size=40_000,
        fields=lambda n: {"resources": _altered(none(n)), "validate_only": True},
    ),
    LargeRequest(
        name="incremental-alter-configs-changes", api="IncrementalAlterConfigs", version=1, size=99_000,
        fields=lambda n: {"resources": [{"resource_type": 2, "resource_name": "many-0", "configs": [
            {"name": f"no.config.{number}", "config_operation": 0, "value": "1"} for number in range(n)]}],
            "validate_only": True},
    ),
    LargeRequest(name="log-dirs-all", api="DescribeLogDirs", version=4, size=1, fields=lambda _: {"topics": None}),
    LargeRequest(
        name="log-dirs-named", api="DescribeLogDirs", version=4, size=99_000,
        fields=lambda n: {"topics": [{"topic": "wide", "partitions": range(n)}]},
    ),
    LargeRequest(
        name="create-partitions-unknown", api="CreatePartitions", version=3, size=99_000,
        fields=lambda n: {"topics": [{"name": name, "count": 3, "assignments": None} for name in none(n)],
                          "timeout_ms": 60_000, "validate_only": True},
    ),
    LargeRequest(
        name="offset-delete-unknown", api="OffsetDelete", version=0, size=99_000,
        fields=lambda n: {"group_id": "committed", "topics": [
            {"name": "none", "partitions": of_wide(n, "partition_index")}]},
    ),
    LargeRequest(
        name="describe-producers", api="DescribeProducers", version=0, size=99_000,
        fields=lambda n: {"topics": [{"name": "wide", "partition_indexes": range(n)}]},
    ),
    LargeRequest(
        name="describe-producers-often", api="DescribeProducers", version=0, size=99_000,
        fields=lambda n: {"topics": [{"name": "wide", "partition_indexes": [0] * n}]},
    ),
    LargeRequest(
        name="reassignments", api="ListPartitionReassignments", version=0, size=99_000,
        fields=lambda n: {"timeout_ms": 60_000, "topics": [{"name": "wide", "partition_indexes": range(n)}]},
    ),
)  # fmt: skip


def request_bytes(request: LargeRequest, scale: float = 1.0) -> bytes:
    """Return the frame, including its length."""
    fields = request.fields(max(1, int(request.size * scale)))
    return kafka_frame(request.api, request.version, **fields)


def kafka_frame(name: str, version: int | None, /, **fields: Any) -> bytes:
    """Return a request frame of the newest version or of the given one."""
    api = BY_NAME[name]
    chosen = api.last if version is None else version
    values = with_defaults(TABLES[f"{name}Request"], chosen, fields)
    data = frame(api, chosen, body(f"{name}Request", api, chosen, values))
    return len(data).to_bytes(LENGTH_BYTES) + bytes(data)
