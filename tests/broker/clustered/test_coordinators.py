"""Coordinators of groups: while their log is created, and after they have been down."""

from pathlib import Path
from random import Random

import pytest
import trio

from tests.broker.clients import RawClient, running
from tests.broker.cluster.conftest import local_store, open_socket
from tests.broker.clustered.three_brokers import IDS, LIMIT_S, Cluster, topic
from tests.broker.kafka_client import kafka_client
from warmlog import connect
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.node import ClusterNode
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    NO_OFFSET,
    CoordinatorType,
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetToCommit,
    PartitionEntry,
)

LATER = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}


async def test_a_coordinator_that_has_no_log_yet_is_loading(cluster: Cluster) -> None:
    """Clients ask a coordinator that is loading again; for one that is none, they look elsewhere."""
    reply = await cluster.clients[1].ask("FindCoordinator", key_type=0, coordinator_keys=("g",))
    coordinator = reply["coordinators"][0]["node_id"]
    await cluster.until("__consumer_offsets", lambda _: True, at=coordinator)  # it has heard of the topic
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with trio.fail_after(LIMIT_S):
        while error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            reply = await cluster.clients[coordinator].ask("OffsetFetch", groups=[{"group_id": "g", "topics": None}])
            error = reply["groups"][0]["error_code"]
    assert error == ErrorCode.NONE


async def test_a_coordinator_of_transactions_that_has_no_log_yet_is_loading(cluster: Cluster) -> None:
    reply = await cluster.clients[1].ask("FindCoordinator", key_type=1, coordinator_keys=("x",))
    coordinator = reply["coordinators"][0]["node_id"]
    await cluster.until("__transaction_state", lambda _: True, at=coordinator)
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    fields = {"transactional_id": "x", "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
    with trio.fail_after(LIMIT_S):
        while error in LATER - {ErrorCode.NOT_COORDINATOR}:
            error = (await cluster.clients[coordinator].ask("InitProducerId", **fields))["error_code"]
    assert error == ErrorCode.NONE


async def test_offsets_of_a_topic_that_was_deleted_while_its_coordinator_was_down_do_not_come_back(
    tmp_path: Path,
) -> None:
    """The mark that it has data of that topic is removed while it still loads the offsets."""
    async with local_store(tmp_path / "store.sqlite") as url:
        settings = {
            "node.id": 1,
            "warmlog.cluster.etcd": url,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
        }
        async with running(tmp_path / "data", settings) as broker, kafka_client(broker.addresses.kafka) as kafka:
            await kafka.ask("FindCoordinator", key_type=0, coordinator_keys=("g",))  # creates the topic
            client = await broker.connect()
            for name in ("t", "other"):
                await client.create(name)
            for number in range(500):
                await commit(client, "t" if number % 2 else "other", f"group {number}")
        await deleted(url, "t")
        async with running(tmp_path / "data", settings) as broker:
            client = await broker.connect()
            await client.create("t")
            assert await committed(client, "t", "group 1") == NO_OFFSET
            assert await committed(client, "other", "group 0") == 7


async def commit(client: RawClient, name: str, group: str) -> None:
    """Commit offset 7 as soon as the coordinator serves."""
    offset = OffsetToCommit(topic=name, partition=0, offset=7)
    with trio.fail_after(LIMIT_S):
        while True:
            reply = await client.ask(OffsetCommitRequest(group=group, partitions=(offset,)))
            if reply.partitions[0].error not in LATER:
                assert reply.partitions[0].error is ErrorCode.NONE
                return


async def committed(client: RawClient, name: str, group: str) -> int:
    """Return the committed offset as soon as the coordinator serves."""
    asked = OffsetFetchGroup(group=group, partitions=(PartitionEntry(topic=name, partition=0),))
    with trio.fail_after(LIMIT_S):
        while True:
            (reply,) = (await client.ask(OffsetFetchRequest(groups=(asked,)))).groups
            if reply.error not in LATER:
                return int(reply.partitions[0].offset)


async def deleted(url: str, name: str) -> None:
    """Delete a topic as a broker does that has no data of it."""
    store = open_socket(url)
    node = ClusterNode(store, 9, lease_s=LIMIT_S, random=Random(9))
    async with trio.open_nursery() as nursery:
        await node.load()
        nursery.start_soon(node._follow)
        await admin.delete_topic(node, name)
        nursery.cancel_scope.cancel()
    store.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_member_that_ends_commits_at_a_coordinator_that_has_moved(cluster: Cluster, is_cancelled: bool) -> None:
    assert await cluster.create(topic("t", [[1]])) == [ErrorCode.NONE]
    await cluster.produce("t", b"a", b"b", b"c")
    reply = await cluster.clients[1].ask("FindCoordinator", key_type=0, coordinator_keys=("g",))
    coordinator = reply["coordinators"][0]["node_id"]
    one, other = [cluster.brokers[node_id].addresses.native for node_id in IDS if node_id != coordinator]
    with trio.CancelScope() as scope:
        async with connect(one) as client, client.consume("t", group="g", commit_interval_s=1000) as stream:
            assert [(await anext(stream)).value for _ in range(3)] == [b"a", b"b", b"c"]
            host, _, port = other.rpartition(":")
            stream._reader.membership._coordinator.close()
            client._cluster._coordinators[CoordinatorType.GROUP, "g"] = host, int(port)
            if is_cancelled:
                scope.cancel()
            await trio.lowlevel.checkpoint()
    fetched = await cluster.clients[coordinator].ask("OffsetFetch", groups=[{"group_id": "g", "topics": None}])
    (found,) = fetched["groups"][0]["topics"]
    assert found["partitions"][0]["committed_offset"] >= 2  # the last one is processed when the next one is asked for


@pytest.mark.parametrize(("later", "error"), [(0, ErrorCode.NONE), (1, ErrorCode.NOT_LEADER_OR_FOLLOWER)])
async def test_a_marker_of_a_coordinator_that_nobody_elected_is_refused(
    cluster: Cluster, later: int, error: ErrorCode
) -> None:
    """A later epoch would be kept with the producer, whose coordinator could end no transaction any more."""
    assert await cluster.create(topic("t", [[1]])) == [ErrorCode.NONE]
    await cluster.produce("t", b"a")
    await cluster.clients[1].ask("FindCoordinator", key_type=1, coordinator_keys=("x",))  # creates the topic
    await cluster.until("__transaction_state", lambda _: True)
    found = (await cluster.described("__transaction_state"))["partitions"]
    latest = max(one["leader_epoch"] for one in found)
    marker = {
        "producer_id": 7,
        "producer_epoch": 0,
        "transaction_result": False,
        "coordinator_epoch": latest + later,
        "topics": [{"name": "t", "partition_indexes": [0]}],
    }
    reply = await cluster.clients[1].ask("WriteTxnMarkers", markers=[marker])
    assert reply["markers"][0]["topics"][0]["partitions"][0]["error_code"] == error
