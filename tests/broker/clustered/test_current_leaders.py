"""Responses of a broker that does not lead name the leader and its address (KIP-951)."""

from typing import Any

import pytest

from tests.broker.clients import batch
from tests.broker.clustered.three_brokers import Cluster, topic
from warmlog.protocol.errors import ErrorCode

NO_LEADER = {"leader_id": -1, "leader_epoch": -1}


async def asked(cluster: Cluster, at: int, version: int, api: str) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the reply for the topic's first partition, and the addresses that came with it."""
    await cluster.until("t", lambda one: True, at=at)
    named = {"topic": "t", "name": "t", "topic_id": (await cluster.described("t", at=at))["topic_id"]}
    client = cluster.clients[at]
    if api == "Produce":
        partition = {"index": 0, "records": batch(b"one")}
        data = [{**named, "partition_data": [partition]}]
        reply = await client.ask(api, version, acks=-1, timeout_ms=10_000, topic_data=data)
        found = reply["responses"][0]["partition_responses"][0]
    else:
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
        topics = [{**named, "partitions": [partition]}]
        state = {"replica_id": -1, "replica_epoch": -1}
        sizes = {"max_bytes": 1 << 20, "min_bytes": 0, "max_wait_ms": 0}
        reply = await client.ask(api, version, replica_id=-1, replica_state=state, topics=topics, **sizes)
        found = reply["responses"][0]["partitions"][0]
    endpoints = {one["node_id"]: f"{one['host']}:{one['port']}" for one in reply["node_endpoints"]}
    return dict(found), endpoints


@pytest.mark.parametrize(("api", "version"), [("Produce", 10), ("Produce", 13), ("Fetch", 16), ("Fetch", 17)])
async def test_the_leader_is_named_with_its_address(cluster: Cluster, api: str, version: int) -> None:
    await cluster.create(topic("t", [(2, 3) if api == "Produce" else (2,)]))  # a follower serves fetches
    for at in (1, 3):
        found, endpoints = await asked(cluster, at, version, api)
        assert found["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert found["current_leader"] == {"leader_id": 2, "leader_epoch": 0}
        assert endpoints == {2: cluster.brokers[2].addresses.kafka}


@pytest.mark.parametrize(("api", "version"), [("Produce", 9), ("Fetch", 11)])
async def test_older_versions_have_the_error_only(cluster: Cluster, api: str, version: int) -> None:
    await cluster.create(topic("t", [(2, 3)]))
    found, endpoints = await asked(cluster, 1, version, api)
    assert found["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (found["current_leader"], endpoints) == (NO_LEADER, {})


@pytest.mark.parametrize("api", ["Produce", "Fetch"])
async def test_nobody_is_named_where_nobody_leads(cluster: Cluster, api: str) -> None:
    await cluster.create(topic("t", [(3,)]))
    await cluster.stop(3)
    await cluster.until("t", lambda one: one["leader_id"] == -1)
    found, endpoints = await asked(cluster, 1, 13 if api == "Produce" else 17, api)
    assert found["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (found["current_leader"], endpoints) == (NO_LEADER, {})


@pytest.mark.parametrize("api", ["Produce", "Fetch"])
async def test_the_leader_names_nobody(cluster: Cluster, api: str) -> None:
    await cluster.create(topic("t", [(1, 2)]))
    await cluster.produce("t", b"zero")
    found, endpoints = await asked(cluster, 1, 13 if api == "Produce" else 17, api)
    assert found["error_code"] == ErrorCode.NONE
    assert (found["current_leader"], endpoints) == (NO_LEADER, {})
