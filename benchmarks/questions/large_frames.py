"""The large requests that `large_requests` measures, by the field names of Kafka's message definitions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.broker.kafka_client import BY_NAME
from tests.protocol.kafka.messages import TABLES, body, frame, with_defaults
from warmlog.protocol.records.builder import build_batch

LENGTH_BYTES = 4
TOPICS, WIDE = 1000, 2000
BATCH = build_batch([(1_700_000_000_000, None, b"v" * 100, ())])
Fields = Mapping[str, Any]


Ask = Callable[..., dict[str, Any]]  # sends a request by API name, version and fields; returns the fields of the reply


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeRequest:
    """A request by the field names of Kafka's message definitions.

    `fields` returns the fields of a request of a given size, the number of its entries. `before` prepares a round and
    returns more fields; `after` is included in the measurement.
    """

    name: str
    api: str
    size: int
    fields: Callable[[int], Fields]
    version: int | None = None
    before: Callable[[Ask, int], Fields] = lambda _ask, _size: {}
    after: Callable[[Ask, int], object] = lambda _ask, _size: None


def many(count: int) -> list[str]:
    """Return names of existing topics."""
    return [f"many-{number}" for number in range(min(count, TOPICS))]


def none(count: int) -> list[str]:
    """Return names of missing topics."""
    return [f"none-{number}" for number in range(count)]


def of_wide(count: int, key: str, **fields: Any) -> list[dict[str, Any]]:
    """Return entries for the first partitions of the topic with many."""
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


def _created(names: list[str], partitions: int) -> Fields:
    topics = [
        {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": ()}
        for name in names
    ]
    return {"topics": topics, "timeout_ms": 120_000}


def _deleted(names: list[str]) -> Fields:
    return {"topic_names": names, "timeout_ms": 120_000}


def _create(ask: Ask, names: list[str], partitions: int) -> Fields:
    """Delete and recreate topics."""
    _delete(ask, names)
    reply = ask("CreateTopics", 5, **_created(names, partitions))
    assert not any(topic["error_code"] for topic in reply["topics"]), reply["topics"][0]
    _wait_for_partitions(ask, names, partitions)
    return {}


def _wait_for_partitions(ask: Ask, names: list[str], partitions: int) -> None:
    """Wait until the log end of each partition of new topics can be queried, which may be later than the reply."""
    entries = of_wide(partitions, "partition_index", timestamp=-1)
    while names:
        reply = ask("ListOffsets", 7, topics=[{"name": name, "partitions": entries} for name in names])
        names = [topic["name"] for topic in reply["topics"] if any(one["error_code"] for one in topic["partitions"])]


def _delete(ask: Ask, names: list[str]) -> Fields:
    ask("DeleteTopics", 5, **_deleted(names))
    return {}


TRANSACTION = "large"
CONCURRENT_TRANSACTIONS = 51


def _begin(ask: Ask, partitions: int = 0) -> Fields:
    """Begin a transaction with partitions of the topic with many. Return the identity of its producer."""
    while True:
        ask("FindCoordinator", 4, key_type=1, coordinator_keys=[TRANSACTION])  # creates the transaction topic
        reply = ask("InitProducerId", 4, transactional_id=TRANSACTION, transaction_timeout_ms=60_000)
        if not reply["error_code"]:
            break
    identity = {"producer_id": reply["producer_id"], "producer_epoch": reply["producer_epoch"]}
    if partitions:
        while True:
            reply = ask("AddPartitionsToTxn", 3, **_added(partitions), **_v3(identity))
            (found,) = reply["results_by_topic_v3_and_below"]
            codes = {one["partition_error_code"] for one in found["results_by_partition"]}
            if CONCURRENT_TRANSACTIONS not in codes:
                assert codes == {0}, codes
                break
    return identity


def _added(count: int) -> Fields:
    return {
        "v3_and_below_transactional_id": TRANSACTION,
        "v3_and_below_topics": [{"name": "wide", "partitions": range(count)}],
    }


def _v3(identity: Fields) -> Fields:
    return {f"v3_and_below_{name}": value for name, value in identity.items()}


def _begin_commit(ask: Ask, _: int) -> Fields:
    identity = _begin(ask)
    ask("AddOffsetsToTxn", 3, transactional_id=TRANSACTION, group_id="committed", **identity)
    return identity


def _wait_for_markers(ask: Ask, _: int) -> None:
    while True:
        (found,) = ask("DescribeTransactions", 0, transactional_ids=[TRANSACTION])["transaction_states"]
        if found["transaction_state"].startswith(("Complete", "Empty")):
            return


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
        name="create-topics", api="CreateTopics", version=5, size=TOPICS,
        fields=lambda n: _created(none(n), 2), before=lambda ask, n: _delete(ask, none(n)),
        after=lambda ask, n: _wait_for_partitions(ask, none(n), 2),
    ),
    LargeRequest(
        name="delete-topics", api="DeleteTopics", version=5, size=TOPICS,
        fields=lambda n: _deleted(none(n)), before=lambda ask, n: _create(ask, none(n), 2),
    ),
    LargeRequest(
        name="create-partitions-of-one", api="CreateTopics", version=5, size=5000,
        fields=lambda n: _created(["large"], n), before=lambda ask, _: _delete(ask, ["large"]),
        after=lambda ask, n: _wait_for_partitions(ask, ["large"], n),
    ),
    LargeRequest(
        name="delete-partitions-of-one", api="DeleteTopics", version=5, size=5000,
        fields=lambda _: _deleted(["large"]), before=lambda ask, n: _create(ask, ["large"], n),
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
        name="add-to-transaction", api="AddPartitionsToTxn", version=3, size=WIDE, fields=_added,
        before=lambda ask, _: _v3(_begin(ask)),
    ),
    LargeRequest(
        name="add-to-transaction-unknown", api="AddPartitionsToTxn", version=3, size=99_000,
        fields=lambda n: {**_added(n), "v3_and_below_topics": [{"name": "none", "partitions": range(n)}]},
        before=lambda ask, _: _v3(_begin(ask)),
    ),
    LargeRequest(
        name="commit-in-transaction", api="TxnOffsetCommit", version=3, size=WIDE,
        fields=lambda n: {"transactional_id": TRANSACTION, "generation_id": -1, **commit_fields("wide", n)},
        before=_begin_commit,
    ),
    LargeRequest(
        name="end-transaction", api="EndTxn", version=3, size=WIDE,
        fields=lambda _: {"transactional_id": TRANSACTION, "committed": True}, before=_begin, after=_wait_for_markers,
    ),
    LargeRequest(
        name="describe-transactions-unknown", api="DescribeTransactions", version=0, size=99_000,
        fields=lambda n: {"transactional_ids": none(n)},
    ),
    LargeRequest(
        name="describe-transactions-often", api="DescribeTransactions", version=0, size=20_000,
        fields=lambda n: {"transactional_ids": [TRANSACTION] * n}, before=lambda ask, _: _begin(ask, WIDE) and {},
    ),
    LargeRequest(
        name="write-markers-unknown", api="WriteTxnMarkers", version=1, size=99_000,
        fields=lambda n: {"markers": [{
            "producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0,
            "topics": [{"name": "none", "partition_indexes": range(n)}]}]},
    ),
    LargeRequest(
        name="reassignments", api="ListPartitionReassignments", version=0, size=99_000,
        fields=lambda n: {"timeout_ms": 60_000, "topics": [{"name": "wide", "partition_indexes": range(n)}]},
    ),
)  # fmt: skip


def request_bytes(request: LargeRequest, size: int, more: Fields) -> bytes:
    """Return the frame of a request of a size, including its length. `more`: the fields returned by `before`."""
    return kafka_frame(request.api, request.version, **{**request.fields(size), **more})


def kafka_frame(name: str, version: int | None, /, **fields: Any) -> bytes:
    """Return a request frame of the newest version or of the given one."""
    api = BY_NAME[name]
    chosen = api.last if version is None else version
    values = with_defaults(TABLES[f"{name}Request"], chosen, fields)
    data = frame(api, chosen, body(f"{name}Request", api, chosen, values))
    return len(data).to_bytes(LENGTH_BYTES) + bytes(data)
