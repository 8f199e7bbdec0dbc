"""What the controller does besides elections after a broker's end: see `test_node`."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.broker.cluster.memory import MemoryCluster
from tests.broker.cluster.nodes import Member, created, in_sync, three_nodes
from warmlog.broker.cluster import admin, partition_admin
from warmlog.broker.cluster.controller import Rebalancing
from warmlog.broker.cluster.image import BROKER_DEFAULTS
from warmlog.broker.cluster.rules import LogEnd
from warmlog.protocol.partitions import TopicIdPartition

UNCLEAN = "unclean.leader.election.enable"


async def leaderless(nodes: list[Member], **configs: str) -> TopicIdPartition:
    """Create a partition on brokers 1 and 2, whose only replica in sync, 1, is gone."""
    key = await created(nodes, [[1, 2]], **configs)
    await in_sync(nodes[0], key, [1])
    nodes[0].kill()
    await nodes[1].until(lambda: 1 not in nodes[1].node.image.brokers)
    await trio.sleep(10)
    return key


def elections(nodes: list[Member]) -> tuple[int, int]:
    return sum(each.controller.elections for each in nodes), sum(each.controller.unclean_elections for each in nodes)


async def test_control_is_taken_although_the_first_attempt_is_lost(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        alone = Member(MemoryCluster(), 1, nursery)
        alone.runs_controller = False
        await alone.start()
        await trio.testing.wait_all_tasks_blocked()
        alone.outage.is_away = True
        nursery.start_soon(alone.controller.run)
        await trio.sleep(1)
        alone.outage.is_away = False
        await alone.until(lambda: alone.controller.is_active)
        nursery.cancel_scope.cancel()


async def test_a_controller_that_drains_hands_over_control(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await nodes[0].until(lambda: nodes[0].node.image.controller is not None)
        await trio.testing.wait_all_tasks_blocked()
        old = next(each for each in nodes if each.controller.is_active)
        await old.node.drain(30.0)
        await old.controller.resign()
        await old.until(lambda: old.node.image.controller is not None)
        assert not old.controller.is_active


async def test_a_partition_without_replicas_in_sync_has_no_leader_unless_that_is_allowed(
    autojump_clock: MockClock,
) -> None:
    async with three_nodes() as nodes:
        await leaderless(nodes)
        assert nodes[1].state().leader == nodes[0].node.me
        assert not nodes[1].node.image.is_good(nodes[0].node.me)
        before = elections(nodes)
        await admin.set_topic_configs(nodes[1].node, "t", lambda old: {**old, UNCLEAN: "true"})
        await nodes[1].until(lambda: nodes[1].state().leader == nodes[1].node.me)
        await trio.testing.wait_all_tasks_blocked()
        assert elections(nodes) == (before[0] + 1, before[1] + 1)
        (election_s,) = [time_s for each in nodes for time_s in each.election_times_s]
        assert election_s >= 10  # since the loss of the leader, not since the change of the setting


async def test_unclean_elections_can_be_allowed_for_all_topics(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await leaderless(nodes)
        await admin.set_configs(nodes[1].node, BROKER_DEFAULTS, lambda old: {**old, UNCLEAN: "true"})
        await nodes[1].until(lambda: nodes[1].state().leader == nodes[1].node.me)


async def test_an_unclean_election_can_be_requested(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        key = await leaderless(nodes)
        assert await partition_admin.elect_leaders(nodes[1].node, [key], is_unclean=False)
        assert not await partition_admin.elect_leaders(nodes[1].node, [key], is_unclean=True)
        assert nodes[1].state().leader == nodes[1].node.me


async def test_the_only_replica_in_sync_leads_again_when_it_is_back(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await leaderless(nodes)
        await nodes[0].restart(clean=True)
        image = nodes[0].node.image
        leader = nodes[0].state().leader
        assert leader is not None
        assert image.is_good(leader)


async def test_eligible_replicas_lead_without_losses_below_the_minimum(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await leaderless(nodes, min_insync_replicas="2")
        assert nodes[1].state().leader == nodes[1].node.me
        assert elections(nodes)[1] == 0


async def test_log_ends_are_asked_for_once_at_a_time(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1]] * 10)
        await nodes[0].restart()
        await trio.sleep(1.25)  # nobody answers
        active = next(each for each in nodes if each.controller.is_active)
        await next(each for each in nodes if each is not active).restart()  # a change of the cluster
        asked = active.questions
        await trio.sleep(1)
        assert active.questions == asked + 20
        for each in nodes:
            each.log_ends = {1: LogEnd(0, 5)}
        await nodes[1].until(
            lambda: all(each.leader == nodes[0].node.me for each in nodes[1].node.image.partitions.values())
        )
        await trio.testing.wait_all_tasks_blocked()
        assert elections(nodes)[1] == 10


@pytest.mark.parametrize("max_imbalance", [0.1, 1.0])
async def test_preferred_replicas_lead_again_if_others_lead_too_many(
    autojump_clock: MockClock, max_imbalance: float
) -> None:
    async with three_nodes(rebalancing=Rebalancing(interval_s=300, max_imbalance=max_imbalance)) as nodes:
        key = await created(nodes, [[1, 2]])
        await nodes[0].restart()
        await nodes[1].until(lambda: nodes[1].state().leader == nodes[1].node.me)
        await in_sync(nodes[1], key, [2, 1])
        await trio.sleep(601)
        assert nodes[1].state().leader_id == (1 if max_imbalance < 1 else 2)


async def test_a_preferred_replica_that_is_not_in_sync_does_not_lead(autojump_clock: MockClock) -> None:
    async with three_nodes(rebalancing=Rebalancing(interval_s=300)) as nodes:
        key = await created(nodes, [[1, 2]])
        await nodes[0].restart()
        await nodes[1].until(lambda: nodes[1].state().leader == nodes[1].node.me)
        await trio.sleep(601)
        assert nodes[1].state().leader == nodes[1].node.me
        assert "not in sync" in str(await partition_admin.elect_leaders(nodes[1].node, [key], is_unclean=False))


async def test_a_broker_that_drains_leaves_the_isrs_of_others(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        await nodes[2].node.drain(30.0)
        await nodes[0].until(lambda: len(nodes[0].state().isr) == 2)
        assert [member.broker for member in nodes[0].state().isr] == [1, 2]
        assert nodes[0].state().leader_epoch == 0
