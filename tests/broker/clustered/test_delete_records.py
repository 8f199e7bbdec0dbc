"""DeleteRecords in a cluster: followers delete the records, too, and the request waits for them."""

from typing import Any

from tests.broker.clustered.three_brokers import NONE, Cluster, idle_broker, topic
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import DescribeTopicsRequest

TIMEOUT_MS = 30_000


async def deleted(cluster: Cluster, offset: int, timeout_ms: int = TIMEOUT_MS) -> dict[str, Any]:
    """Delete the records of the topic's first partition below an offset; return the outcome."""
    asked = [{"name": "t", "partitions": [{"partition_index": 0, "offset": offset}]}]
    reply = await cluster.clients[1].ask("DeleteRecords", topics=asked, timeout_ms=timeout_ms)
    return dict(reply["topics"][0]["partitions"][0])


async def log_starts(cluster: Cluster, *brokers: int) -> list[int]:
    """Return the log start offsets of these brokers' replicas."""
    found = []
    for broker in brokers:
        client = await cluster.brokers[broker].connect()
        reply = await client.ask(DescribeTopicsRequest(topics=("t",)))
        found.append(reply.topics[0].partitions[0].log_start_offset)
    return found


async def test_followers_have_deleted_the_records_when_the_request_is_answered(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2, 3)]))
    await cluster.produce("t", *[b"v%d" % n for n in range(10)])
    outcome = await deleted(cluster, 7)
    assert (outcome["error_code"], outcome["low_watermark"]) == (NONE, 7)
    assert await log_starts(cluster, 1, 2, 3) == [7, 7, 7]


async def test_a_broker_that_has_stopped_is_not_waited_for(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2, 3)]))
    await cluster.produce("t", *[b"v%d" % n for n in range(10)])
    await cluster.stop(3)
    outcome = await deleted(cluster, -1)
    assert (outcome["error_code"], outcome["low_watermark"]) == (NONE, 10)
    assert await log_starts(cluster, 1, 2) == [10, 10]


async def test_a_follower_that_hangs_is_waited_for_as_long_as_the_request_says(cluster: Cluster) -> None:
    async with idle_broker(cluster, 4):
        await cluster.create(topic("t", [(1, 2, 4)]))
        while (outcome := await deleted(cluster, 0, timeout_ms=100))["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            pass  # the leader begins to lead
        assert (outcome["error_code"], outcome["low_watermark"]) == (ErrorCode.REQUEST_TIMED_OUT, -1)
