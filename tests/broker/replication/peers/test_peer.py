from random import Random

import pytest
import trio

from tests.broker.clients import Running, batch
from tests.broker.replication.peers.scripted_cluster import scripted_cluster
from tests.broker.replication.peers.scripted_peer import GROUPS
from warmlog.broker.replication.peers.errors import PeerError, PeerUnavailableError
from warmlog.broker.replication.peers.peer import PeerCluster, open_cluster
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import OffsetFetchRequest
from warmlog.protocol.kafka.messages.cluster.configs import ConfigQuery, ConfigResourceType, DescribeConfigsRequest
from warmlog.protocol.kafka.messages.groups.offsets import MemberOffsetFetchGroup
from warmlog.protocol.kafka.messages.records.offsets import (
    EpochQuery,
    KafkaListOffsetsRequest,
    KafkaOffsetQuery,
    OffsetForLeaderEpochRequest,
)
from warmlog.protocol.kafka.peer_apis import (
    DESCRIBE_CONFIGS,
    LIST_GROUPS,
    LIST_OFFSETS,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
)


async def changed(peer: PeerCluster) -> None:
    event = trio.Event()
    peer.on_change.append(lambda _: event.set())
    with trio.fail_after(30):
        await event.wait()


async def group_of(peer: PeerCluster, node: int) -> str:
    return (await peer.ask(node, LIST_GROUPS, GROUPS)).groups[0].group


async def test_our_broker_answers_everything_that_is_asked(broker: Running) -> None:
    native = await broker.connect()
    await native.create("orders", 2)
    await native.produce("orders", batch(b"a", b"b", b"c"))
    host, port = broker.addresses.kafka.rsplit(":", 1)
    async with open_cluster([(host, int(port))]) as peer:
        leader = peer.view.leader_of("orders", 0)
        assert leader is not None
        node = leader.node_id
        ends = KafkaListOffsetsRequest(partitions=(KafkaOffsetQuery(topic="orders", partition=0, timestamp=-1),))
        assert (await peer.ask(node, LIST_OFFSETS, ends)).partitions[0].offset == 3
        epochs = OffsetForLeaderEpochRequest(
            partitions=(EpochQuery(topic="orders", partition=0, leader_epoch=leader.epoch),)
        )
        assert (await peer.ask(node, OFFSET_FOR_LEADER_EPOCH, epochs)).partitions[0].end_offset == 3
        query = ConfigQuery(resource_type=ConfigResourceType.TOPIC, name="orders", keys=("cleanup.policy",))
        (found,) = (await peer.ask(node, DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=(query,)))).resources
        assert [(one.name, one.value) for one in found.configs] == [("cleanup.policy", "delete")]
        coordinator = await peer.coordinator_of("readers")
        committed = OffsetFetchRequest(groups=(MemberOffsetFetchGroup(group="readers"),))
        assert (await peer.ask(coordinator, OFFSET_FETCH, committed)).groups[0].error is ErrorCode.NONE
        assert (await peer.ask_any(LIST_GROUPS, GROUPS)).groups == ()


async def test_a_moved_leader_is_followed_after_an_error() -> None:
    async with scripted_cluster(1, 2) as cluster, open_cluster(cluster.bootstrap(1), random=Random(1)) as peer:
        cluster.leader, cluster.epoch = 2, 6
        peer.report("orders", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await changed(peer)
        assert peer.view.leader_of("orders", 0) == (2, 6)


async def test_metadata_is_asked_for_until_the_election_is_over(autojump_clock: trio.testing.MockClock) -> None:
    async with scripted_cluster(1, 2) as cluster, open_cluster(cluster.bootstrap(1), random=Random(1)) as peer:
        for _ in range(3):
            asked = cluster.asked_again
            peer.report("orders", ErrorCode.FENCED_LEADER_EPOCH)
            await asked.wait()
        cluster.leader, cluster.epoch = 2, 6
        peer.report("orders", ErrorCode.FENCED_LEADER_EPOCH)
        await changed(peer)
        assert peer.view.leader_of("orders", 0) == (2, 6)


async def test_requests_go_to_another_broker_when_one_is_lost() -> None:
    async with scripted_cluster(1, 2) as cluster, open_cluster(cluster.bootstrap(1, 2), random=Random(1)) as peer:
        assert await group_of(peer, 1) == "of 1"
        cluster.dropped.add(1)
        assert (await peer.ask_any(LIST_GROUPS, GROUPS)).groups[0].group == "of 2"


async def test_a_lost_leader_makes_its_topics_stale() -> None:
    async with scripted_cluster(1, 2) as cluster, open_cluster(cluster.bootstrap(2), random=Random(1)) as peer:
        cluster.dropped.add(1)
        cluster.leader, cluster.epoch = 2, 6
        with pytest.raises(PeerUnavailableError):
            await group_of(peer, 1)
        await changed(peer)
        assert peer.view.leader_of("orders", 0) == (2, 6)


async def test_a_cluster_is_found_again_by_its_bootstrap_address() -> None:
    async with scripted_cluster(1, 2) as cluster, open_cluster(cluster.bootstrap(1), random=Random(1)) as peer:
        assert await group_of(peer, 2) == "of 2"
        cluster.dropped.add(2)
        del cluster.ports[2]
        await peer.refresh()
        assert set(peer.view.brokers) == {1}
        with pytest.raises(PeerUnavailableError, match="broker 2 is not in the cluster's metadata"):
            await group_of(peer, 2)


async def test_pauses_grow_while_a_broker_is_lost_and_end_when_it_is_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with scripted_cluster(1, 2) as cluster, open_cluster(cluster.bootstrap(2), random=Random(1)) as peer:
        cluster.dropped.add(1)
        pauses = []
        for _ in range(8):
            begun = trio.current_time()
            with pytest.raises(PeerError):
                await peer.connection(1)
            pauses.append(trio.current_time() - begun)
        assert pauses[0] < 0.01
        assert pauses[1] < 0.1
        assert 0.7 < pauses[-1] < 1.3
        cluster.dropped.clear()
        assert await group_of(peer, 1) == "of 1"
        cluster.dropped.add(1)
        with pytest.raises(PeerError):
            await group_of(peer, 1)
        cluster.dropped.clear()
        begun = trio.current_time()
        await group_of(peer, 1)
        assert trio.current_time() - begun < 0.1


async def test_several_tasks_share_one_connection_for_each_purpose() -> None:
    async with scripted_cluster(1, 2) as cluster, open_cluster(cluster.bootstrap(2), random=Random(1)) as peer:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(group_of, peer, 1)
                nursery.start_soon(peer.connection, 1, 1)
        assert cluster.connected.count(1) == 2


async def test_a_coordinator_is_remembered_until_it_is_forgotten_or_lost() -> None:
    async with scripted_cluster(1, 2) as cluster, open_cluster(cluster.bootstrap(1), random=Random(1)) as peer:
        for expected in (1, 1):
            assert await peer.coordinator_of("g") == 2
            assert [name for _, name in cluster.asked].count("FindCoordinator") == expected
        peer.forget_coordinator("g")
        assert await peer.coordinator_of("g") == 2
        peer.lost_broker(2)
        assert await peer.coordinator_of("g") == 2
        assert [name for _, name in cluster.asked].count("FindCoordinator") == 3


async def test_no_bootstrap_address_answers() -> None:
    async with scripted_cluster(1) as cluster:
        cluster.dropped.add(1)
        with pytest.raises(PeerUnavailableError, match=str(cluster.ports[1])):
            async with open_cluster(cluster.bootstrap(1)):
                pass


async def test_an_error_of_the_body_is_raised_as_it_is() -> None:
    async with scripted_cluster(1) as cluster:
        with pytest.raises(KeyError):
            async with open_cluster(cluster.bootstrap(1)):
                raise KeyError
