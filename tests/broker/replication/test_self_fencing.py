"""A broker out of reach of the store, which others reach, leaves the cluster until it is back."""

import pytest
import trio

from tests.broker.clients import batch
from tests.broker.replication.simulated_brokers import Brokers, simulate
from tests.cluster.simulation.machine import host_of
from warmlog.broker.cluster import partition_admin
from warmlog.broker.partitions.appends.errors import NotLeaderError

pytestmark = pytest.mark.timeout(240)


def test_a_leader_that_only_it_has_lost_the_store_resigns_and_comes_back() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.stored(b"before")
        brokers.store_faults[host_of(1)].is_away = True
        await brokers.until(lambda: brokers.node(2).image.partition("t", 0).leader_id != 1)  # type: ignore[union-attr]
        leader = brokers.local(1)
        assert leader is not None
        waiting = leader.append(batch(b"lost"), replicas_ms=1_000_000)
        brokers[1].writer.write_queued()
        await waiting.wait()
        assert isinstance(waiting.error, NotLeaderError)
        assert brokers[1].partitions.get("t", 0) is None
        catalog, topic = brokers[1].partitions.catalog, brokers[1].partitions.topic("t")
        assert topic is not None
        assert catalog.partition(topic, 0).leader == -1
        assert 1 not in {broker.node_id for broker in catalog.brokers()}
        await brokers.stored(b"meanwhile")
        brokers.store_faults[host_of(1)].is_away = False
        await brokers.until(lambda: brokers.in_sync() == {1, 2, 3})
        content = await brokers.alike(1, 2, 3)
        assert b"meanwhile" in content
        assert b"lost" not in content

    simulate(main)


@pytest.mark.interop  # takes many seconds
def test_a_broker_that_comes_back_leads_what_nobody_else_could() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.create([1], "single")
        await brokers.stored(b"before", topic="single")
        for _ in range(10):  # what comes first, the answer or the change, is random
            node = brokers.node(1)
            await brokers.until(lambda: brokers.in_sync() == {1, 2, 3})
            await partition_admin.elect_leaders(brokers.node(2), [brokers.key()], is_unclean=False)
            await brokers.until(lambda: brokers[1].partitions.get("t", 0))
            brokers.store_faults[host_of(1)].is_away = True
            await brokers.until(lambda node=node: node.is_fenced)
            brokers.store_faults[host_of(1)].is_away = False
            await brokers.until(lambda: brokers[1].partitions.get("single", 0))
            await brokers.stored(b"again", topic="single")

    simulate(main)


def test_clients_of_a_broker_that_resigns_hear_that_it_leads_nothing() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.stored(b"before")
        catalog, topic = brokers[1].partitions.catalog, brokers[1].partitions.topic("t")
        assert topic is not None
        before, states = catalog.state, catalog.states_of(topic, range(1))
        brokers.store_faults[host_of(1)].is_away = True
        await brokers.until(lambda: brokers.node(1).is_fenced)
        assert catalog.partition(topic, 0).leader == -1
        assert catalog.state != before  # else Metadata describes it as before
        assert catalog.states_of(topic, range(1)) != states

    simulate(main)


def test_leaders_go_on_while_nobody_reaches_the_store() -> None:
    async def main(brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        await brokers.create([1, 2, 3])
        await brokers.stored(b"before")
        for faults in brokers.store_faults.values():
            faults.is_away = True
        await trio.sleep(100)
        await brokers.stored(b"meanwhile")
        assert [node.is_fenced for node in brokers.nodes] == [False] * 3

    simulate(main)
