"""Elections and reassignments that clients ask any broker for."""

from typing import Any

import trio

from tests.broker.clustered.three_brokers import LIMIT_S, NONE, Cluster, idle_broker, topic
from warmlog.protocol.errors import ErrorCode

PREFERRED, UNCLEAN = 0, 1


async def elect(cluster: Cluster, election: int, *partitions: int, at: int = 1) -> list[tuple[int, int]]:
    """Return partitions and error codes."""
    asked = [{"topic": "t", "partitions": partitions}] if partitions else None
    fields = {"election_type": election, "topic_partitions": asked, "timeout_ms": 10_000}
    reply = await cluster.clients[at].ask("ElectLeaders", **fields)
    assert reply["error_code"] == NONE
    results = [one for each in reply["replica_election_results"] for one in each["partition_result"]]
    return [(one["partition_id"], one["error_code"]) for one in results]


async def reassign(cluster: Cluster, *target: int, cancel: bool = False, **fields: Any) -> int:
    partitions = [{"partition_index": 0, "replicas": None if cancel else target}]
    asked = [{"name": "t", "partitions": partitions}]
    reply = await cluster.clients[1].ask("AlterPartitionReassignments", topics=asked, timeout_ms=10_000, **fields)
    (found,) = reply["responses"][0]["partitions"]
    return int(found["error_code"])


async def ongoing(cluster: Cluster) -> list[dict[str, Any]]:
    reply = await cluster.clients[1].ask("ListPartitionReassignments", topics=None, timeout_ms=10_000)
    return [dict(one) for each in reply["topics"] for one in each["partitions"]]


async def test_a_preferred_leader_that_leads_need_not_be_elected(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2), (2, 1)]))
    needless = ErrorCode.ELECTION_NOT_NEEDED
    assert await elect(cluster, PREFERRED, 0, 1, 7) == [
        (0, needless),
        (1, needless),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert await elect(cluster, PREFERRED) == []
    assert await elect(cluster, UNCLEAN) == []


async def test_replicas_without_a_leader_cannot_be_elected_while_none_lives(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(3,)]))
    await cluster.stop(3)
    await cluster.until("t", lambda one: one["leader_id"] == -1)
    assert await elect(cluster, PREFERRED, 0) == [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    assert await elect(cluster, UNCLEAN, 0) == [(0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    assert await elect(cluster, UNCLEAN) == [(0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]


async def test_a_reassignment_moves_a_partition(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2)]))
    assert await reassign(cluster, 3, 2) == NONE
    found = await cluster.until("t", lambda one: one["replica_nodes"] == (3, 2))
    assert set(found["isr_nodes"]) == {2, 3}
    with trio.fail_after(LIMIT_S):
        while await ongoing(cluster):
            pass


async def test_the_first_of_reassigned_replicas_becomes_the_leader_on_request(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2)]))
    assert await reassign(cluster, 2, 1) == NONE
    await cluster.until("t", lambda one: one["replica_nodes"] == (2, 1) and one["leader_id"] == 1)
    assert await elect(cluster, PREFERRED, 0) == [(0, NONE)]
    await cluster.until("t", lambda one: one["leader_id"] == 2)


async def test_a_reassignment_is_listed_until_it_is_cancelled(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2)]))
    assert await reassign(cluster, cancel=True) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    async with idle_broker(cluster, 4):
        assert await reassign(cluster, 4, 1) == NONE
        listed = {"partition_index": 0, "replicas": (4, 1, 2), "adding_replicas": (4,), "removing_replicas": (2,)}
        assert await ongoing(cluster) == [listed]
        assert await reassign(cluster, cancel=True) == NONE
        assert await ongoing(cluster) == []
        assert (await cluster.partition("t"))["replica_nodes"] == (1, 2)


async def test_impossible_targets_are_refused(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2)]))
    for target in ((), (1, 1), (1, 9)):
        assert await reassign(cluster, *target) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await ongoing(cluster) == []


async def test_the_number_of_replicas_changes_only_if_the_client_allows_it(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2)]))
    strictly = {"allow_replication_factor_change": False}
    assert await reassign(cluster, 1, 2, 3, **strictly) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert await reassign(cluster, 1, 3, **strictly) == NONE
    await cluster.until("t", lambda one: one["replica_nodes"] == (1, 3))
    assert await reassign(cluster, 1, 2, 3) == NONE
    await cluster.until("t", lambda one: set(one["isr_nodes"]) == {1, 2, 3})
