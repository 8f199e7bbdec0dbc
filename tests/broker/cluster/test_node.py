"""Membership, elections and administration over a store in memory, with a clock that jumps."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.broker.cluster.nodes import LEASE_S, Member, committed, created, three_nodes, topic
from warmlog.broker.cluster import admin, partition_admin, values
from warmlog.broker.cluster.failover import SILENCE_S
from warmlog.broker.cluster.node import RENEW_S, UsedIdError
from warmlog.broker.cluster.rules import LogEnd, change_isr, disown
from warmlog.broker.cluster.values import TopicStatus
from warmlog.broker.metadata.topic import RefusedError


async def test_brokers_see_each_other_and_one_controls(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await nodes[0].until(lambda: nodes[0].node.image.controller is not None)
        await trio.testing.wait_all_tasks_blocked()
        assert [each.node.is_registered for each in nodes] == [True] * 3
        assert sum(each.controller.is_active for each in nodes) == 1


async def test_a_killed_leader_is_replaced_when_its_lease_ends(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        begun = trio.current_time()
        nodes[0].kill()
        await nodes[1].until(lambda: nodes[1].state().leader_id == 2)
        assert trio.current_time() - begun < LEASE_S + 1
        assert nodes[1].state().leader_epoch == 1
        assert [member.broker for member in nodes[1].state().isr] == [2, 3]


async def test_the_controller_itself_is_replaced(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        controller = next(each for each in nodes if each.controller.is_active)
        others = [each for each in nodes if each is not controller]
        controller.kill()
        await others[0].until(lambda: any(each.controller.is_active for each in others))


async def test_a_broker_that_drains_hands_over_everything(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3], [1, 3, 2]])
        await nodes[0].node.drain(30.0)
        assert [nodes[0].state(index).leader_id for index in range(2)] == [2, 3]
        assert [member.broker for member in nodes[0].state().isr] == [2, 3]


async def test_a_broker_without_another_replica_in_sync_leads_until_it_stops(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1]])
        await nodes[0].node.drain(5.0)
        assert nodes[0].state().leader_id == 1


async def test_a_clean_restart_keeps_the_history(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1]])
        since = nodes[0].node.since
        await nodes[0].restart(clean=True)
        assert nodes[0].node.since == since
        await nodes[1].until(lambda: nodes[1].node.image.brokers[1].epoch == nodes[0].node.epoch)
        leader = nodes[1].state().leader
        assert leader is not None
        assert nodes[1].node.image.is_good(leader)


async def test_the_only_replica_leads_again_after_an_unclean_restart(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1]])
        for each in nodes:
            each.log_ends = {1: LogEnd(0, 7)}
        await nodes[0].restart()
        await nodes[1].until(lambda: nodes[1].state().leader == nodes[0].node.me)
        assert nodes[1].state().leader_epoch == 1


async def test_the_longest_log_leads_when_all_came_back_unclean(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        for each in nodes:
            each.log_ends = {1: LogEnd(0, 7), 2: LogEnd(0, 9), 3: LogEnd(0, 8)}
            each.kill()
        await trio.sleep(LEASE_S * 2)
        for each in nodes:
            await each.restart()
        await nodes[2].until(lambda: nodes[2].state().leader == nodes[1].node.me)
        assert nodes[2].state().isr == (nodes[1].node.me,)


async def test_a_lost_lease_is_followed_by_a_registration_of_the_same_history(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        since, epoch = nodes[0].node.since, nodes[0].node.epoch
        await nodes[0].store.revoke(nodes[0].node.lease)
        await nodes[0].until(lambda: nodes[0].node.epoch > epoch and nodes[0].node.is_registered)
        assert nodes[0].node.since == since


async def test_an_id_in_use_by_other_directories_is_refused(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        with pytest.raises(ExceptionGroup) as raised:
            async with trio.open_nursery() as nursery:
                other = Member(nodes[0].cluster, 1, nursery)
                other.directories = nodes[1].directories
                begun = trio.current_time()
                await other.start()
        assert raised.group_contains(UsedIdError, match="node.id 1 is in use")
        assert trio.current_time() - begun < SILENCE_S, "it renews its lease"


async def test_an_id_whose_broker_was_killed_can_be_used_at_once(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes, trio.open_nursery() as nursery:
        nodes[0].kill()
        other = Member(nodes[0].cluster, 1, nursery)
        other.directories = nodes[1].directories
        begun = trio.current_time()
        await other.start()
        assert trio.current_time() - begun < SILENCE_S + RENEW_S, "nobody listens there"
        nursery.cancel_scope.cancel()


async def test_an_outage_of_the_store_is_survived(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        for each in nodes:
            each.outage.is_away = True
        await trio.sleep(60)
        assert nodes[0].state().leader_id == 1, "the image stays as it was"
        for each in nodes:
            each.outage.is_away = False
        for each in nodes:
            await each.until(lambda each=each: each.node.is_registered)
        leader = nodes[0].state().leader
        assert leader is not None
        await nodes[0].until(lambda: nodes[0].node.image.is_good(leader))


async def test_a_lost_answer_to_the_creation_of_a_topic_does_no_harm(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes, trio.open_nursery() as nursery:
        nodes[0].outage.loses_answers = True
        nursery.start_soon(admin.create_topic, nodes[0].node, "t", topic(2), [[1, 2], [2, 3]])
        await trio.sleep(1)
        nodes[0].outage.loses_answers = False
        await nodes[1].until(lambda: "t" in nodes[1].node.image.topics)


async def test_large_topics_are_created_grown_and_deleted_in_steps(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        node, made = nodes[0].node, topic(350)
        await admin.create_topic(node, "t", made, admin.place(node.image, 350, 3, node.random))
        assert node.image.topics["t"].status is TopicStatus.LIVE
        assert len(node.image.partitions) == 350
        await admin.grow_topic(node, "t", made.id, admin.place(node.image, 150, 3, node.random), 350)
        assert node.image.topics["t"].partitions == len(node.image.partitions) == 500
        with pytest.raises(RefusedError):
            await admin.create_topic(node, "t", topic(1), [[1]])
        await admin.delete_topic(node, "t")
        assert node.image.topics == node.image.partitions == {}
        assert node.image.gone[made.id] == {1, 2, 3}


async def test_a_topic_whose_creator_is_gone_is_finished(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        node, made = nodes[0].node, topic(350)
        assignment = admin.place(node.image, 350, 3, node.random)
        await node.commit(lambda image: admin.topics.create(image, "t", made, assignment, node.me))
        assert node.image.topics["t"].status is TopicStatus.CREATING
        nodes[0].kill()
        await nodes[1].until(lambda: nodes[1].node.image.topics["t"].status is TopicStatus.LIVE)
        assert len(nodes[1].node.image.partitions) == 350


async def test_a_thousand_partitions_change_leader_in_few_transactions(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await admin.create_topic(nodes[0].node, "t", topic(1000), [[1, 2, 3]] * 1000)
        await nodes[1].until(lambda: len(nodes[1].node.image.partitions) == 1000)
        before = nodes[1].node.image.revision
        nodes[0].kill()
        await nodes[1].until(lambda: all(s.leader_id == 2 for s in nodes[1].node.image.partitions.values()))
        assert nodes[1].node.image.revision - before < 40


async def test_replicas_outside_of_the_isr_stay_eligible_below_the_minimum(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        key = await created(nodes, [[1, 2, 3]], min_insync_replicas="2")
        node, state = nodes[0].node, nodes[0].state()
        assert state.leader is not None
        assert await committed(nodes[0], change_isr(node.image, key, state.revision, state.leader, state.isr[:1]))
        assert [member.broker for member in nodes[0].state().elr] == [2, 3]
        await admin.set_topic_configs(node, "t", lambda configs: {**configs, "min.insync.replicas": "1"})
        state = nodes[0].state()
        assert state.leader is not None
        assert await committed(nodes[0], change_isr(node.image, key, state.revision, state.leader, state.isr))
        assert nodes[0].state().elr == ()


async def test_the_last_copy_that_lost_its_disk_leads_when_its_data_is_back(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        key = await created(nodes, [[1]])
        assert await committed(nodes[0], disown(nodes[0].node.image, key, nodes[0].node.me))
        await trio.sleep(10)
        assert nodes[0].state().leader is None
        for each in nodes:
            each.log_ends = {1: LogEnd(0, 3)}
        await nodes[1].until(lambda: nodes[1].state().leader_id == 1)


async def test_a_reassignment_ends_with_the_isr_that_covers_its_target(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        key = await created(nodes, [[1, 2]])
        node = nodes[0].node
        assert not await partition_admin.reassign_partitions(node, {key: [3]})
        state, third = nodes[0].state(), node.image.current(3)
        assert state.replicas == (3, 1, 2)
        assert state.leader is not None
        assert third is not None
        assert await committed(nodes[0], change_isr(node.image, key, state.revision, state.leader, [*state.isr, third]))
        state = nodes[0].state()
        assert (state.replicas, state.leader, state.isr, state.leader_epoch) == ((3,), third, (third,), 1)


async def test_producer_ids_are_never_given_twice(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        found: list[int] = []

        async def take(member: Member) -> None:
            found.extend([await admin.take_producer_ids(member.node, 1000) for _ in range(5)])

        async with trio.open_nursery() as nursery:
            for each in nodes:
                nursery.start_soon(take, each)
        assert sorted(found) == [1000 * number for number in range(15)]


async def test_racks_are_spread(autojump_clock: MockClock) -> None:
    async with three_nodes(racks=("a", "a", "b")) as nodes:
        node = nodes[0].node
        for replicas in admin.place(node.image, 20, 2, node.random):
            assert 3 in replicas


async def test_an_entry_with_an_older_epoch_of_a_restarted_broker_is_not_good(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        old = nodes[1].node.me
        await nodes[1].restart()
        await nodes[0].until(lambda: nodes[0].node.image.brokers[2].epoch > old.epoch)
        assert not nodes[0].node.image.is_good(old)
        assert nodes[0].node.image.is_good(values.Member(2, nodes[1].node.epoch))
