"""A broker out of reach of the store, which others reach, leaves the cluster until it is back."""

import pytest
import trio

from broker.partitions.appends.errors import NotLeaderError
from tests.broker.clients import batch
from tests.broker.replication.simulated_brokers import Brokers, simulate
from tests.cluster.simulation.machine import host_of

pytestmark = pytest.mark.timeout(60)


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
