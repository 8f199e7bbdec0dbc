"""Descriptions of topics and explanations in a cluster come from the leaders of the partitions."""

import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.fake_broker import FakeCluster, fake_cluster
from warmlog import BrokerError, UnknownTopicError, connect
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.native.explain import ExplainRequest
from warmlog.protocol.request import MetadataRequest
from warmlog.protocol.response import ErrorResponse


def explainers(cluster: FakeCluster) -> list[int]:
    """Return the brokers that were asked to explain."""
    return [node_id for node_id, request in cluster.requests if isinstance(request, ExplainRequest)]


@on_both_loops
async def test_the_leader_explains() -> None:
    async with fake_cluster(brokers=2) as cluster, connect(cluster.address) as client:
        cluster.create("t", 2)[1].leader = 2
        cluster.fail(ExplainRequest, ErrorResponse(error=ErrorCode.INVALID_REQUEST, message="no"), times=2)
        for partition in (0, 1):
            with pytest.raises(BrokerError, match="no"):
                await client.explain("t", partition, offset=0)
        assert explainers(cluster) == [1, 2]


@on_both_loops
async def test_another_broker_explains_once_the_leader_has_moved() -> None:
    async with fake_cluster(brokers=2) as cluster, connect(cluster.address) as client:
        (log,) = cluster.create("t")
        await client.topic("t")
        log.leader = 2
        cluster.fail(ExplainRequest, ErrorResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message="elsewhere"))
        cluster.fail(ExplainRequest, ErrorResponse(error=ErrorCode.INVALID_REQUEST, message="no"))
        with pytest.raises(BrokerError, match="no"):
            await client.explain("t", 0, offset=0)
        assert explainers(cluster) == [1, 2]


@on_both_loops
async def test_a_misspelt_topic_and_a_wrong_partition_are_reported_at_once() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.create("t")
        for topic, partition, message in (("tt", 0, "no such topic"), ("t", 1, "has partitions 0 to 0, not 1")):
            with pytest.raises(UnknownTopicError, match=message):
                await client.explain(topic, partition, offset=0)
        with pytest.raises(UnknownTopicError):
            await client.describe_topics("t", "tt")
        assert len(cluster.asked(MetadataRequest)) == 3
        assert explainers(cluster) == []


@on_both_loops
async def test_each_partition_is_described_by_its_leader() -> None:
    async with fake_cluster(brokers=2) as cluster, connect(cluster.address) as client:
        cluster.create("t", 3)[1].leader = 2
        cluster.create("u")[0].leader = 2
        await client.produce_many("t", [b"x"] * 5, partition=1)
        t, u = await client.describe_topics("t", "u")
        assert [(each.partition, each.leader, each.log_end_offset, each.error) for each in t.partitions] == [
            (0, 1, 0, 0),
            (1, 2, 5, 0),
            (2, 1, 0, 0),
        ]
        assert [(each.leader, each.error) for each in u.partitions] == [(2, 0)]
