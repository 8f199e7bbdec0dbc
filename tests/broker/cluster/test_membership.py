"""How a broker joins a cluster, stays, and leaves, and what it notices of the store."""

from uuid import UUID

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.broker.cluster.nodes import LEASE_S, Member, Outage, committed, created, listening, three_nodes, topic
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.image import ClusterImage, ImageDelta
from warmlog.broker.cluster.rules import change_isr
from warmlog.broker.cluster.store import StoreMismatchError
from warmlog.broker.cluster.values import NO_EPOCH


async def test_a_broker_whose_port_refuses_connections_is_replaced_at_once(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        nodes[0].kill()
        begun = trio.current_time()
        nodes[1].node.failover.suspect(1)
        await nodes[1].until(lambda: nodes[1].state().leader_id == 2)
        assert trio.current_time() - begun < 1


async def test_a_suspicion_during_an_outage_is_repeated_afterwards(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        nodes[1].outage.is_away = True
        nodes[0].kill()
        nodes[1].node.failover.suspect(1)
        await trio.sleep(1)
        nodes[1].outage.is_away = False
        assert 1 in nodes[1].node.image.brokers
        begun = trio.current_time()
        nodes[1].node.failover.suspect(1)
        await nodes[1].until(lambda: 1 not in nodes[1].node.image.brokers)
        assert trio.current_time() - begun < 1


async def test_nobody_is_suspected_by_a_node_that_has_ended(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        nodes[0].kill()
        await trio.testing.wait_all_tasks_blocked()
        nodes[0].node.failover.suspect(2)
        await trio.sleep(1)
        assert 2 in nodes[1].node.image.brokers


async def test_a_broker_that_listens_is_not_replaced() -> None:
    async with three_nodes() as nodes, trio.open_nursery() as nursery:
        listener = await listening(nodes)
        nodes[1].node.failover.suspect(1)
        stream = await listener.accept()
        await trio.testing.wait_all_tasks_blocked()
        assert nodes[0].node.is_registered
        await trio.aclose_forcefully(stream)
        await trio.aclose_forcefully(listener)
        nursery.cancel_scope.cancel()


async def test_a_broker_that_was_replaced_by_mistake_is_back_with_its_history(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        before = nodes[0].node.me
        nodes[1].node.failover.suspect(1)
        await nodes[1].until(lambda: nodes[1].state().leader_id == 2)
        await nodes[1].until(lambda: 1 in nodes[1].node.image.brokers)
        assert nodes[1].node.image.is_good(before)
        assert nodes[1].node.image.brokers[1].epoch > before.epoch


async def test_a_replaced_disk_waits_until_the_old_registration_has_ended(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        old = nodes[0].node.me
        nodes[0].directories = (UUID(int=7),)
        await nodes[0].restart()
        assert nodes[0].node.is_registered
        assert not nodes[0].node.image.is_good(old)


async def test_an_unclean_restart_begins_a_new_history(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        old = nodes[0].node.me
        await nodes[0].restart(clean=False)
        assert nodes[0].node.since == nodes[0].node.epoch > old.epoch


async def test_a_registration_whose_answer_was_lost_is_repeated(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes, trio.open_nursery() as nursery:
        nodes[0].kill()
        nodes[0].outage.loses_answers = True
        nursery.start_soon(nodes[0].restart)
        await trio.sleep(3)
        nodes[0].outage.loses_answers = False
        await nodes[1].until(lambda: 1 in nodes[1].node.image.brokers)
        await nodes[0].until(lambda: nodes[0].node.is_registered)


async def test_a_drain_goes_on_after_the_registration_was_lost(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        nodes[0].cluster.revoke(nodes[0].node.lease)
        await nodes[0].node.drain(30.0)
        assert nodes[0].node.image.draining == {1}
        assert nodes[0].state().leader_id == 2


async def test_a_broker_that_leads_nothing_drains_at_once(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await nodes[0].until(lambda: nodes[0].node.image.controller is not None)
        begun = trio.current_time()
        await nodes[0].node.drain(30.0)
        assert trio.current_time() == begun


async def test_a_drain_that_nobody_can_follow_ends_in_time(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        await created(nodes, [[1, 2, 3]])
        for each in nodes:
            each.outage.is_away = True
        begun = trio.current_time()
        await nodes[0].node.drain(10.0)
        assert trio.current_time() - begun == 10.0


async def test_a_broker_that_has_left_is_gone_at_once(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        begun = trio.current_time()
        nodes[0].kill()
        await nodes[0].node.leave()
        await nodes[1].until(lambda: 1 not in nodes[1].node.image.brokers)
        assert trio.current_time() - begun < 1


async def test_a_broker_can_leave_while_the_store_is_away(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        nodes[0].outage.is_away = True
        nodes[0].kill()
        await nodes[0].node.leave()
        await nodes[1].until(lambda: 1 not in nodes[1].node.image.brokers)


async def test_changes_that_were_compacted_are_read_again(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        seen: set[str] = set()

        def note(_: ClusterImage, delta: ImageDelta) -> None:
            seen.update(delta.topics)

        nodes[1].node.on_change.append(note)
        nodes[1].outage.is_away = True
        await admin.create_topic(nodes[0].node, "t", topic(3), [[1], [2], [3]])
        nodes[0].cluster.compact(nodes[0].cluster.revision)
        await trio.sleep(1)
        nodes[1].outage.is_away = False
        await nodes[1].until(lambda: len(nodes[1].node.image.partitions) == 3)
        assert seen == {"t"}


async def test_a_store_that_is_another_one_ends_the_node(autojump_clock: MockClock) -> None:
    class Other(Outage):
        async def before_changes(self) -> None:
            raise StoreMismatchError("another cluster's store")

    with pytest.raises(ExceptionGroup) as raised:
        async with three_nodes() as nodes, trio.open_nursery() as nursery:
            fourth = Member(nodes[0].cluster, 4, nursery, faults=Other())
            await fourth.start()
    assert raised.group_contains(StoreMismatchError, match="another cluster's store")


async def test_statistics_tell_how_far_the_image_is_behind(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes, trio.open_nursery() as nursery:
        nodes[0].outage.lag_s = 5.0
        nursery.start_soon(admin.create_topic, nodes[0].node, "t", topic(1), [[1]])
        await trio.sleep(1)
        assert nodes[0].node.statistics().missing_revisions == 1
        await nodes[0].until(lambda: "t" in nodes[0].node.image.topics)
        found = nodes[0].node.statistics()
        assert found.missing_revisions == 0
        assert found.is_registered
        assert found.epoch == nodes[0].node.epoch != NO_EPOCH
        assert found.since_contact_s < LEASE_S / 2


async def test_statistics_tell_how_long_the_store_has_been_away(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        nodes[0].outage.is_away = True
        await trio.sleep(60)
        assert nodes[0].node.statistics().since_contact_s > 55


async def test_a_leader_that_is_not_registered_any_more_cannot_change_the_isr(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        key = await created(nodes, [[1, 2, 3]])
        state = nodes[0].state()
        assert state.leader is not None
        change = change_isr(nodes[0].node.image, key, state.revision, state.leader, state.isr[:1])
        nodes[0].cluster.revoke(nodes[0].node.lease)
        assert not await committed(nodes[0], change)
