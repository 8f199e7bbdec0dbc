"""Values that a cluster has stored, and replies that reject a batch."""

from tests.warmlog.client.fake_broker import FakeCluster
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.response import ProducedPartition, ProduceResponse


def values(cluster: FakeCluster, topic: str, partition: int = 0) -> list[bytes]:
    return [record.value for record in cluster.topics[topic][partition].records()]


def refused(code: ErrorCode, topic: str = "t", partition: int = 0) -> ProduceResponse:
    return ProduceResponse(partitions=(ProducedPartition(topic=topic, partition=partition, error=code, message="no"),))
