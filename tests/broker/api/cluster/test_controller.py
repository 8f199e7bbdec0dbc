"""Requests to Kafka's controllers, answered by a node that is its own. The verdicts are Kafka 4.3.1's."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.broker.clients import RawClient, Running, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.broker.api.cluster.features import FEATURES
from warmlog.protocol.errors import ErrorCode

METADATA_LEVEL = 33
UPGRADE, SAFE_DOWNGRADE = 1, 2


@pytest.fixture
async def raw(broker: Running) -> RawClient:
    return await broker.connect()


@pytest.fixture
async def client(broker: Running) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.kafka) as client:
        yield client


# -- features --


@pytest.mark.parametrize("version", [3, 4])
async def test_features_are_told_with_an_epoch_that_grows_with_the_metadata(
    client: KafkaClient, raw: RawClient, version: int
) -> None:
    asked = {"client_software_name": "test", "client_software_version": "1"}
    before = await client.ask("ApiVersions", version, **asked)
    supported = [("metadata.version", METADATA_LEVEL, METADATA_LEVEL)]
    if version >= 4:  # older ones cannot name a feature that is supported from level 0 on
        supported += [("group.version", 0, 1), ("share.version", 0, 2), ("streams.version", 0, 1)]
        supported += [("transaction.version", 0, 2)]
    assert ranges(before["supported_features"]) == supported
    expected = {"group.version": 1, "share.version": 2, "streams.version": 1, "transaction.version": 2}
    assert levels(before) == {"metadata.version": METADATA_LEVEL, **expected}
    await raw.create("orders")
    after = await client.ask("ApiVersions", version, **asked)
    assert after["finalized_features_epoch"] > before["finalized_features_epoch"] >= 0


def ranges(features: Sequence[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(one["name"], one["min_version"], one["max_version"]) for one in features]


def levels(reply: dict[str, Any]) -> dict[str, int]:
    """Return the finalized levels that ApiVersions reports."""
    assert all(one["min_version_level"] == one["max_version_level"] for one in reply["finalized_features"])
    return {one["name"]: one["max_version_level"] for one in reply["finalized_features"]}


async def test_versions_without_features_and_refusals_tell_none(client: KafkaClient) -> None:
    for version in range(3):
        assert (await client.ask("ApiVersions", version))["finalized_features"] == ()
    refused = await client.ask("ApiVersions", 4, client_software_name="not a name!", client_software_version="")
    assert (refused["error_code"], refused["finalized_features"]) == (ErrorCode.INVALID_REQUEST, ())


async def test_a_client_that_expects_another_broker_is_told(client: KafkaClient) -> None:
    cluster = await client.ask("DescribeCluster")
    cluster_id, node_id = cluster["cluster_id"], cluster["brokers"][0]["broker_id"]

    async def greeted(cluster_id: str | None, node_id: int) -> tuple[ErrorCode, bool]:
        asked = {"client_software_name": "test", "client_software_version": "1"}
        reply = await client.ask("ApiVersions", 5, **asked, cluster_id=cluster_id, node_id=node_id)
        return ErrorCode(reply["error_code"]), bool(reply["api_keys"])

    assert await greeted(None, -1) == (ErrorCode.NONE, True)
    assert await greeted(cluster_id, node_id) == (ErrorCode.NONE, True)
    for other in ((cluster_id, node_id + 1), ("another", node_id), (cluster_id, -2)):
        assert await greeted(*other) == (ErrorCode.REBOOTSTRAP_REQUIRED, False)
    for half in ((cluster_id, -1), (None, node_id)):
        assert await greeted(*half) == (ErrorCode.INVALID_REQUEST, False)


async def updated(client: KafkaClient, version: int, *updates: tuple[str, int, int]) -> dict[str, Any]:
    fields = [
        {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind != UPGRADE}
        for name, level, kind in updates
    ]
    return await client.ask("UpdateFeatures", version, feature_updates=fields)


@pytest.mark.parametrize("version", range(3))
async def test_features_that_have_their_level_already_are_left_alone(client: KafkaClient, version: int) -> None:
    updates = [("metadata.version", METADATA_LEVEL, UPGRADE), ("group.version", 1, SAFE_DOWNGRADE)]
    reply = await updated(client, version, *updates)
    assert reply["error_code"] == ErrorCode.NONE
    assert [one["feature"] for one in reply["results"]] == ([name for name, _, _ in updates] if version < 2 else [])


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(
    ("name", "level", "kind", "text"),
    [
        ("metadata.version", METADATA_LEVEL + 1, UPGRADE, "only supports versions 33-33"),
        ("metadata.version", 7, SAFE_DOWNGRADE, "only supports versions 33-33"),
        ("metadata.version", -1, UPGRADE, "cannot be less than 0"),
        ("share.version", 3, UPGRADE, "only supports versions 0-2"),
        ("streams.version", 2, UPGRADE, "only supports versions 0-1"),
        ("group.version", 2, UPGRADE, "only supports versions 0-1"),
        ("no.such.version", 0, UPGRADE, "does not support this feature"),
        ("transaction.version", 3, UPGRADE, "only supports versions 0-2"),
        ("transaction.version", 1, UPGRADE, "Can't downgrade the version of this feature without"),
    ],
)
async def test_levels_that_a_feature_cannot_get_are_refused(
    client: KafkaClient, version: int, name: str, level: int, kind: int, text: str
) -> None:
    reply = await updated(client, version, ("metadata.version", METADATA_LEVEL, UPGRADE), (name, level, kind))
    assert (reply["error_code"], reply["results"]) == (ErrorCode.INVALID_UPDATE_VERSION, ())
    assert text in reply["error_message"]
    assert name in reply["error_message"]


async def test_an_unknown_type_of_upgrade_is_refused(client: KafkaClient) -> None:
    reply = await updated(client, 2, ("metadata.version", METADATA_LEVEL, 9))
    assert reply["error_code"] == ErrorCode.INVALID_UPDATE_VERSION


def test_a_feature_has_the_level_that_it_supports() -> None:
    assert all(one.first <= one.level <= one.last for one in FEATURES.values())


async def test_the_transaction_version_goes_down_and_up_and_survives_a_restart(tmp_path: Path) -> None:
    asked = {"client_software_name": "test", "client_software_version": "1"}
    name = "transaction.version"
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        before = await client.ask("ApiVersions", 4, **asked)
        reply = await updated(client, 2, (name, 0, SAFE_DOWNGRADE))
        assert reply["error_code"] == ErrorCode.NONE
        after = await client.ask("ApiVersions", 4, **asked)
        assert name not in levels(after)  # level 0 is not finalized
        assert after["finalized_features_epoch"] > before["finalized_features_epoch"]
        reply = await updated(client, 2, (name, 1, SAFE_DOWNGRADE))
        assert "Can't downgrade to a newer version" in reply["error_message"]
        assert (await updated(client, 2, (name, 1, UPGRADE)))["error_code"] == ErrorCode.NONE
        broker.stop.set()
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        assert levels(await client.ask("ApiVersions", 4, **asked))[name] == 1
        broker.stop.set()


async def test_a_validated_level_is_not_set(client: KafkaClient) -> None:
    fields = {"feature": "transaction.version", "max_version_level": 0, "upgrade_type": SAFE_DOWNGRADE}
    reply = await client.ask("UpdateFeatures", 2, feature_updates=[fields], validate_only=True)
    assert reply["error_code"] == ErrorCode.NONE
    asked = {"client_software_name": "test", "client_software_version": "1"}
    assert levels(await client.ask("ApiVersions", 4, **asked))["transaction.version"] == 2


# -- the quorum --


@pytest.mark.parametrize("version", range(3))
async def test_this_node_is_the_quorum(client: KafkaClient, raw: RawClient, broker: Running, version: int) -> None:
    async def described() -> dict[str, Any]:
        topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        reply = await client.ask("DescribeQuorum", version, topics=topics)
        assert reply["error_code"] == ErrorCode.NONE
        (topic,) = reply["topics"]
        (partition,) = topic["partitions"]
        return reply | {"partition": partition}

    before = (await described())["partition"]
    await raw.create("orders")
    reply = await described()
    after = reply["partition"]
    assert (after["error_code"], after["leader_id"], after["leader_epoch"], after["observers"]) == (0, 1, 1, ())
    (voter,) = after["current_voters"]
    assert voter["replica_id"] == 1
    assert voter["log_end_offset"] == after["high_watermark"] > before["high_watermark"]
    assert (voter["last_fetch_timestamp"] > 0) == (version > 0)
    if version >= 2:
        (node,) = reply["nodes"]
        (listener,) = node["listeners"]
        assert listener["name"].isupper()
        assert (node["node_id"], f"{listener['host']}:{listener['port']}") == (1, broker.addresses.kafka)


async def test_there_is_one_metadata_log(client: KafkaClient) -> None:
    topics = [{"topic_name": "orders", "partitions": [{"partition_index": 0}]}]
    (topic,) = (await client.ask("DescribeQuorum", topics=topics))["topics"]
    assert [one["error_code"] for one in topic["partitions"]] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_brokers_and_voters_cannot_be_changed(client: KafkaClient) -> None:
    for broker_id, error in ((1, ErrorCode.INVALID_REQUEST), (7, ErrorCode.BROKER_ID_NOT_REGISTERED)):
        reply = await client.ask("UnregisterBroker", broker_id=broker_id)
        assert (reply["error_code"], bool(reply["error_message"])) == (error, True)
    for controller_id, error in ((1, ErrorCode.INVALID_REQUEST), (7, ErrorCode.CONTROLLER_ID_NOT_REGISTERED)):
        reply = await client.ask("UnregisterController", controller_id=controller_id)
        assert (reply["error_code"], bool(reply["error_message"])) == (error, True)
    voter = {"cluster_id": None, "voter_id": 2, "voter_directory_id": bytes(16)}
    added = await client.ask("AddRaftVoter", timeout_ms=1000, listeners=(), **voter)
    removed = await client.ask("RemoveRaftVoter", **voter)
    assert added["error_code"] == removed["error_code"] == ErrorCode.UNSUPPORTED_VERSION


# -- leaders and replicas --


def elections(*partitions: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partitions": [index]} for topic, index in partitions]


@pytest.mark.parametrize("version", range(3))
async def test_leaders_that_serve_need_no_election(client: KafkaClient, raw: RawClient, version: int) -> None:
    await raw.create("orders", 2)
    asked = elections(("orders", 0), ("orders", 7), ("nope", 0))
    reply = await client.ask("ElectLeaders", version, election_type=0, topic_partitions=asked, timeout_ms=1000)
    results = [
        (topic["topic"], one["partition_id"], one["error_code"])
        for topic in reply["replica_election_results"]
        for one in topic["partition_result"]
    ]
    assert results == [
        ("orders", 0, ErrorCode.ELECTION_NOT_NEEDED),
        ("orders", 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nope", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    reply = await client.ask("ElectLeaders", version, election_type=0, topic_partitions=None, timeout_ms=1000)
    assert (reply["error_code"], reply["replica_election_results"]) == (ErrorCode.NONE, ())


@pytest.mark.parametrize("version", [1, 2])
async def test_an_unknown_type_of_election_is_refused(client: KafkaClient, raw: RawClient, version: int) -> None:
    await raw.create("orders")
    reply = await client.ask("ElectLeaders", version, election_type=5, topic_partitions=elections(("orders", 0)))
    assert reply["error_code"] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("topic", "partition", "replicas", "error"),
    [
        ("orders", 0, (1,), ErrorCode.NONE),
        ("orders", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("orders", 0, (2,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 0, (1, 2), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 0, (1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 0, (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 3, (1,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nope", 0, (1,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_a_partition_stays_on_the_only_broker(
    client: KafkaClient, raw: RawClient, topic: str, partition: int, replicas: tuple[int, ...] | None, error: ErrorCode
) -> None:
    await raw.create("orders")
    for version in (0, 1):
        topics = [{"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}]
        reply = await client.ask("AlterPartitionReassignments", version, topics=topics)
        assert reply["error_code"] == ErrorCode.NONE
        (answered,) = reply["responses"]
        assert [(one["partition_index"], one["error_code"]) for one in answered["partitions"]] == [(partition, error)]
    assert (await client.ask("ListPartitionReassignments", topics=None))["topics"] == ()
