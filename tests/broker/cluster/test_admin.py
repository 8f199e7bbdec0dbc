"""Changes of topics, replicas and settings from any broker."""

from uuid import UUID

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.broker.cluster.nodes import created, in_sync, three_nodes, topic
from warmlog.broker.cluster import admin, partition_admin, topics
from warmlog.broker.cluster.image import BROKER_DEFAULTS
from warmlog.broker.cluster.values import TopicStatus
from warmlog.broker.metadata.assignment import InvalidAssignmentError, TooFewBrokersError
from warmlog.broker.metadata.topic import RefusedError
from warmlog.protocol.partitions import TopicIdPartition


async def test_a_topic_cannot_have_more_replicas_than_there_are_brokers(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        node = nodes[0].node
        with pytest.raises(TooFewBrokersError, match=r"replication factor 4 is larger than .* registered brokers, 3"):
            admin.place(node.image, 1, 4, node.random)


async def test_no_replica_is_placed_on_a_broker_that_drains(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await nodes[2].node.drain(30.0)
        await nodes[0].until(lambda: 3 in nodes[0].node.image.draining)
        placed = admin.place(nodes[0].node.image, 10, 2, nodes[0].node.random)
        assert {broker for replicas in placed for broker in replicas} == {1, 2}


async def test_a_dead_broker_gets_replicas_where_others_are_too_few_and_leads_none(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        nodes[2].kill()
        await nodes[0].until(lambda: 3 not in nodes[0].node.image.brokers)
        image, random = nodes[0].node.image, nodes[0].node.random
        assert all(set(replicas) == {1, 2} for replicas in admin.place(image, 6, 2, random))
        placed = admin.place(image, 6, 3, random)
        assert all(replicas[2] == 3 and set(replicas) == {1, 2, 3} for replicas in placed)
        await created(nodes[:2], placed)
        for index in range(6):
            state = nodes[0].state(index)
            assert {member.broker for member in state.isr} == {1, 2}
            assert state.leader_id == placed[index][0]


async def test_nothing_is_placed_while_every_broker_stops(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        for each in nodes:
            await each.node.attempt(topics.drain(each.node.image, each.node.me, each.node.lease))
        await nodes[0].until(lambda: nodes[0].node.image.draining == {1, 2, 3})
        with pytest.raises(TooFewBrokersError, match="no broker can lead"):
            admin.place(nodes[0].node.image, 1, 1, nodes[0].node.random)


async def test_nothing_is_placed_on_a_broker_that_was_unregistered(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        nodes[2].kill()
        await nodes[0].until(lambda: 3 not in nodes[0].node.image.brokers)
        await admin.unregister_broker(nodes[0].node, 3)
        with pytest.raises(TooFewBrokersError, match="registered brokers, 2"):
            admin.place(nodes[0].node.image, 1, 3, nodes[0].node.random)
        await nodes[2].restart()
        await nodes[0].until(lambda: nodes[0].node.image.is_known(3))


async def test_replicas_need_one_that_could_lead(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        nodes[2].kill()
        await nodes[0].until(lambda: 3 not in nodes[0].node.image.brokers)
        admin.check_assignment(nodes[0].node.image, [[3, 1]])
        with pytest.raises(InvalidAssignmentError, match=r"partition 0: each of the brokers \[3\] is fenced"):
            admin.check_assignment(nodes[0].node.image, [[3]])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ([], "at least one"),
        ([[]], "at least one"),
        ([[1, 2], [3]], "the same number"),
        ([[1, 2], [3, 3]], "partition 1 has two replicas on the same broker"),
        ([[1, 9]], "broker 9 is not registered"),
    ],
)
async def test_impossible_assignments_are_refused(
    autojump_clock: MockClock, assignment: list[list[int]], message: str
) -> None:
    async with three_nodes() as nodes:
        with pytest.raises(InvalidAssignmentError, match=message):
            admin.check_assignment(nodes[0].node.image, assignment)


async def test_a_change_is_known_here_when_the_call_returns(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        nodes[1].outage.lag_s = 3.0
        await admin.create_topic(nodes[1].node, "t", topic(2), [[1, 2], [2, 3]])
        assert nodes[1].node.image.topics["t"].partitions == 2
        assert nodes[1].state(1).replicas == (2, 3)


async def test_one_of_two_simultaneous_creations_of_a_name_is_refused(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        refused = []

        async def create(number: int) -> None:
            try:
                await admin.create_topic(nodes[number].node, "t", topic(number + 1), [[1]] * (number + 1))
            except RefusedError:
                refused.append(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, 0)
            nursery.start_soon(create, 1)
        assert len(refused) == 1


async def test_a_topic_that_is_being_created_cannot_grow(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        node, made = nodes[0].node, topic(150)
        assignment = [[1]] * 150
        await node.commit(lambda image: admin.topics.create(image, "t", made, assignment, node.me))
        assert node.image.topics["t"].status is TopicStatus.CREATING
        with pytest.raises(RefusedError, match="no topic"):
            await admin.grow_topic(node, "t", made.id, [[1]], 150)


async def test_a_topic_that_has_grown_meanwhile_does_not_grow(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        key = await created(nodes, [[1], [2]])
        await admin.grow_topic(nodes[0].node, "t", key.topic_id, [[3]], 2)
        with pytest.raises(RefusedError, match="has 3 partitions, not 2"):
            await admin.grow_topic(nodes[0].node, "t", key.topic_id, [[3]], 2)


async def test_a_topic_is_finished_with_as_many_replicas_as_it_was_begun_with(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        node, made = nodes[0].node, topic(150)
        await node.commit(lambda image: admin.topics.create(image, "t", made, [[1, 2, 3]] * 150, node.me))
        nodes[0].kill()
        await nodes[1].until(lambda: nodes[1].node.image.topics["t"].status is TopicStatus.LIVE)
        assert {len(state.replicas) for state in nodes[1].node.image.partitions.values()} == {3}


async def test_deleting_a_topic_leaves_marks_for_its_brokers(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        key = await created(nodes, [[1, 2], [2, 1]])
        await admin.delete_topic(nodes[2].node, "t")
        assert nodes[2].node.image.gone == {key.topic_id: {1, 2}}
        with pytest.raises(RefusedError, match="no topic"):
            await admin.delete_topic(nodes[2].node, "t")


async def test_deleting_a_topic_by_a_former_id_leaves_it(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        key = await created(nodes, [[1, 2]])
        with pytest.raises(RefusedError, match="no topic"):
            await admin.delete_topic(nodes[1].node, "t", UUID(int=1))
        assert nodes[1].node.image.topics["t"].id == key.topic_id


async def test_settings_are_changed_without_losing_those_of_others(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        async with trio.open_nursery() as nursery:
            for number, each in enumerate(nodes):
                added = {f"setting.{number}": str(number)}
                nursery.start_soon(
                    admin.set_configs, each.node, BROKER_DEFAULTS, lambda old, added=added: {**old, **added}
                )
        await nodes[0].until(lambda: len(nodes[0].node.image.configs[BROKER_DEFAULTS].values) == 3)


async def test_levels_of_features_are_kept_beside_each_other(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await admin.set_features(nodes[0].node, {"group.version": 1})
        await admin.set_features(nodes[1].node, {"transaction.version": 2})
        assert nodes[1].node.image.features.levels == {"group.version": 1, "transaction.version": 2}


async def test_producer_ids_begin_above_those_that_are_in_logs(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        assert await admin.take_producer_ids(nodes[0].node, 1000, at_least=77) == 77
        assert await admin.take_producer_ids(nodes[1].node, 1000, at_least=5) == 1077


async def test_the_preferred_leader_is_elected_on_request(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        key = await created(nodes, [[1, 2]])
        await nodes[0].restart()
        await nodes[1].until(lambda: nodes[1].state().leader == nodes[1].node.me)
        assert "not in sync" in str(await partition_admin.elect_leaders(nodes[2].node, [key], is_unclean=False))
        await in_sync(nodes[1], key, [2, 1])
        await nodes[2].until(lambda: len(nodes[2].state().isr) == 2)
        assert not await partition_admin.elect_leaders(nodes[2].node, [key], is_unclean=False)
        assert nodes[2].state().leader == nodes[0].node.me
        assert "leads" in str(await partition_admin.elect_leaders(nodes[2].node, [key], is_unclean=False))


async def test_elections_whose_answer_is_lost_have_succeeded(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        first = await created(nodes, [[1, 2]] * 60)
        keys = [TopicIdPartition(first.topic_id, index) for index in range(60)]
        await nodes[0].restart()
        await nodes[1].until(lambda: all(nodes[1].node.image.partitions[key].leader_id == 2 for key in keys))
        for key in keys:
            await in_sync(nodes[1], key, [2, 1])
        asked = nodes[2]
        await asked.until(lambda: all(len(asked.node.image.partitions[key].isr) == 2 for key in keys))
        asked.outage.loses_answers = True

        async def mend() -> None:
            await asked.until(lambda: asked.state().leader == nodes[0].node.me)
            asked.outage.loses_answers = False

        async with trio.open_nursery() as nursery:
            nursery.start_soon(mend)
            assert not await partition_admin.elect_leaders(asked.node, keys, is_unclean=False)
        assert {asked.node.image.partitions[key].leader_id for key in keys} == {1}


async def test_a_reassignment_is_listed_until_it_is_cancelled(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        key = await created(nodes, [[1, 2], [2, 3]])
        node, before = nodes[0].node, nodes[0].state()
        assert not await partition_admin.reassign_partitions(node, {key: [3, 2]})
        (moved,) = partition_admin.reassignments(node.image)
        assert moved == key
        assert (nodes[0].state().adding, nodes[0].state().removing) == ((3,), (1,))
        assert not await partition_admin.reassign_partitions(node, {key: None})
        assert partition_admin.reassignments(node.image) == {}
        assert set(nodes[0].state().replicas) == set(before.replicas)
        assert "no reassignment" in str(await partition_admin.reassign_partitions(node, {key: None}))


async def test_a_partition_that_does_not_exist_cannot_be_moved(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        key = await created(nodes, [[1]])
        missing = TopicIdPartition(key.topic_id, 7)
        refused = await partition_admin.reassign_partitions(nodes[0].node, {missing: [2]})
        assert refused == {missing: "the partition does not exist"}
        assert "broker 9 is not registered" in str(await partition_admin.reassign_partitions(nodes[0].node, {key: [9]}))


async def test_many_partitions_are_moved_in_few_transactions(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        first = await created(nodes, [[1, 2]] * 130)
        node = nodes[1].node
        keys = [TopicIdPartition(first.topic_id, index) for index in range(131)]
        before = node.image.revision
        assert list(await partition_admin.reassign_partitions(node, {key: [3, 2] for key in keys})) == [keys[130]]
        assert node.image.revision - before < 10
        assert all(node.image.partitions[key].adding == (3,) for key in keys[:130])
