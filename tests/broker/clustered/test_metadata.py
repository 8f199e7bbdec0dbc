"""What any broker of a cluster tells clients about its brokers and partitions."""

from typing import Any

import pytest
import trio

from tests.broker.clustered.three_brokers import IDS, LIMIT_S, NONE, Cluster, topic
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.request import MetadataRequest

METADATA_LOG = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}


def kafka_addresses(cluster: Cluster) -> dict[int, str]:
    return {node_id: broker.addresses.kafka for node_id, broker in cluster.brokers.items()}


async def test_brokers_are_listed_with_their_addresses_and_racks(cluster: Cluster) -> None:
    for at in IDS:
        for api in ("Metadata", "DescribeCluster"):
            reply = await cluster.clients[at].ask(api)
            id_of = "node_id" if api == "Metadata" else "broker_id"
            found = {one[id_of]: (f"{one['host']}:{one['port']}", one["rack"]) for one in reply["brokers"]}
            expected = {node_id: (address, "?abc"[node_id]) for node_id, address in kafka_addresses(cluster).items()}
            assert found == expected
            assert reply["controller_id"] in IDS


async def test_native_clients_are_told_native_addresses(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(2, 3)]))
    client = await cluster.brokers[1].connect()
    reply = await client.ask(MetadataRequest(topics=("t",)))
    found = {one.node_id: f"{one.host}:{one.port}" for one in reply.brokers}
    assert found == {node_id: broker.addresses.native for node_id, broker in cluster.brokers.items()}
    (partition,) = reply.topics[0].partitions
    assert (partition.leader, partition.replicas, partition.in_sync) == (2, (2, 3), (2, 3))


@pytest.mark.parametrize("version", [0, 1, 5, 8, 9, 12])
async def test_every_version_tells_the_leader(cluster: Cluster, version: int) -> None:
    await cluster.create(topic("t", [(2, 3)]))
    reply = await cluster.clients[1].ask("Metadata", version, topics=[{"name": "t", "topic_id": NO_TOPIC_ID}])
    (found,) = reply["topics"][0]["partitions"]
    assert (found["error_code"], found["leader_id"], found["replica_nodes"]) == (NONE, 2, (2, 3))


async def test_a_broker_that_has_stopped_is_reported_as_offline_until_it_is_back(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2, 3)]))
    before = await cluster.partition("t")
    assert before["offline_replicas"] == ()
    await cluster.stop(1)
    found = await cluster.until("t", lambda one: one["offline_replicas"] == (1,), at=2)
    assert found["leader_id"] in {2, 3}
    assert found["leader_epoch"] > before["leader_epoch"]
    assert set(found["isr_nodes"]) == {2, 3}


async def test_a_partition_whose_only_replica_has_stopped_has_no_leader(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(3,), (1,)]))
    await cluster.stop(3)
    found = await cluster.until("t", lambda one: one["leader_id"] == -1, at=2)
    assert (found["error_code"], found["offline_replicas"]) == (ErrorCode.LEADER_NOT_AVAILABLE, (3,))
    assert (await cluster.partition("t", 1, at=2))["error_code"] == NONE


async def test_replicas_that_may_lead_although_they_are_not_in_sync_are_described(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2)], min_insync_replicas="2"))
    await cluster.stop(2)
    await cluster.until("t", lambda one: one["isr_nodes"] == (1,))
    asked: dict[str, Any] = {"topics": [{"name": "t"}], "response_partition_limit": 10, "cursor": None}
    reply = await cluster.clients[1].ask("DescribeTopicPartitions", **asked)
    (found,) = reply["topics"][0]["partitions"]
    assert found["eligible_leader_replicas"] == (2,)
    assert found["offline_replicas"] == (2,)


async def test_the_quorum_is_the_brokers_led_by_the_controller(cluster: Cluster) -> None:
    reply = await cluster.clients[2].ask("DescribeQuorum", topics=[METADATA_LOG])
    (found,) = reply["topics"][0]["partitions"]
    controller = (await cluster.clients[2].ask("DescribeCluster"))["controller_id"]
    assert found["leader_id"] == controller
    assert [one["replica_id"] for one in found["current_voters"]] == list(IDS)
    nodes = {one["node_id"]: one["listeners"][0] for one in reply["nodes"]}
    assert {node_id: f"{one['host']}:{one['port']}" for node_id, one in nodes.items()} == kafka_addresses(cluster)


async def test_the_epoch_of_the_quorum_grows_with_another_controller(cluster: Cluster) -> None:
    async def quorum(at: int) -> tuple[int, int]:
        reply = await cluster.clients[at].ask("DescribeQuorum", topics=[METADATA_LOG])
        (found,) = reply["topics"][0]["partitions"]
        return found["leader_id"], found["leader_epoch"]

    controller, epoch = await quorum(1)
    assert await quorum(2) == (controller, epoch)
    await cluster.stop(controller)
    other = controller % len(IDS) + 1
    with trio.fail_after(LIMIT_S):
        while (found := await quorum(other))[0] in {-1, controller}:
            pass
    assert found[1] > epoch


async def test_brokers_that_run_cannot_be_unregistered(cluster: Cluster) -> None:
    for broker, error in ((2, ErrorCode.INVALID_REQUEST), (9, ErrorCode.BROKER_ID_NOT_REGISTERED)):
        reply = await cluster.clients[1].ask("UnregisterBroker", broker_id=broker)
        assert reply["error_code"] == error


async def test_a_dead_broker_is_fenced_until_it_is_unregistered(cluster: Cluster) -> None:
    await cluster.stop(3)
    await cluster.until_known([1, 2])

    async def described() -> dict[int, bool]:
        reply = await cluster.clients[1].ask("DescribeCluster", include_fenced_brokers=True)
        return {one["broker_id"]: one["is_fenced"] for one in reply["brokers"]}

    assert await described() == {1: False, 2: False, 3: True}
    assert {one["broker_id"] for one in (await cluster.clients[1].ask("DescribeCluster"))["brokers"]} == {1, 2}
    reply = await cluster.clients[2].ask("UnregisterBroker", broker_id=3)
    assert reply["error_code"] == NONE
    with trio.fail_after(LIMIT_S):
        while await described() != {1: False, 2: False}:
            pass
    reply = await cluster.clients[1].ask("UnregisterBroker", broker_id=3)
    assert reply["error_code"] == ErrorCode.BROKER_ID_NOT_REGISTERED


async def test_features_that_one_broker_has_changed_are_served_by_all(cluster: Cluster) -> None:
    update = {"feature": "transaction.version", "max_version_level": 1, "upgrade_type": 2}
    reply = await cluster.clients[2].ask("UpdateFeatures", feature_updates=[update], timeout_ms=10_000)
    assert reply["error_code"] == NONE
    asked = {"client_software_name": "test", "client_software_version": "1"}
    while True:
        reply = await cluster.clients[3].ask("ApiVersions", **asked)
        levels = {one["name"]: one["max_version_level"] for one in reply["finalized_features"]}
        if levels["transaction.version"] == 1:
            break


async def test_producers_of_different_brokers_have_different_ids(cluster: Cluster) -> None:
    found = set()
    asked = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
    for at in IDS:
        reply = await cluster.clients[at].ask("InitProducerId", **asked)
        assert reply["error_code"] == NONE
        found.add(reply["producer_id"])
    assert len(found) == len(IDS)
