"""Producers of a partition, as its replicas know them."""

from tests.broker.clustered.three_brokers import NONE, Cluster, topic
from warmlog.protocol.errors import ErrorCode


async def test_every_replica_describes_producers(cluster: Cluster) -> None:
    """`kafka-transactions find-hanging --broker-id` asks a broker about all its replicas."""
    await cluster.create(topic("t", [(1, 2)]))
    await cluster.produce("t", b"one")
    asked = [{"name": "t", "partition_indexes": (0,)}]
    replies = [await cluster.clients[at].ask("DescribeProducers", topics=asked) for at in (1, 2, 3)]
    errors = [reply["topics"][0]["partitions"][0]["error_code"] for reply in replies]
    assert errors == [NONE, NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
