"""A quota applies at each broker of a cluster, whichever it was set at, and not to their replication."""

from typing import Any

import trio

from tests.broker.clients import batch
from tests.broker.clustered.three_brokers import IDS, LIMIT_S, NONE, Cluster, topic
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.test_quotas import set_quota


async def until_described(client: KafkaClient, count: int) -> list[Any]:
    with trio.fail_after(LIMIT_S):
        while True:
            entries = (await client.ask("DescribeClientQuotas", components=[], strict=False))["entries"]
            if len(entries) == count:
                return list(entries)


async def test_a_quota_set_at_one_broker_applies_at_another(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(3,)]))
    await cluster.produce("t", b"one", at=3)
    await set_quota(cluster.clients[1], "producer_byte_rate", 1.0, ("client-id", "greedy"))
    for at in IDS:
        (entry,) = await until_described(cluster.clients[at], 1)
        assert [(quota["key"], quota["value"]) for quota in entry["values"]] == [("producer_byte_rate", 1.0)]
    topic_id = (await cluster.described("t", at=3))["topic_id"]
    partition = {"index": 0, "records": batch(b"two")}
    async with kafka_client(cluster.brokers[3].addresses.kafka, "greedy") as greedy:
        reply = await greedy.ask(
            "Produce", acks=1, timeout_ms=10_000, topic_data=[{"topic_id": topic_id, "partition_data": [partition]}]
        )
        assert reply["throttle_time_ms"] > 1_000
    await set_quota(cluster.clients[2], "producer_byte_rate", None, ("client-id", "greedy"))
    for at in IDS:
        await until_described(cluster.clients[at], 0)


async def test_followers_copy_records_whatever_the_quota_of_consumers(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2, 3)]))
    await set_quota(cluster.clients[1], "consumer_byte_rate", 1.0, ("user", None))
    await until_described(cluster.clients[3], 1)
    for number in range(20):
        await cluster.produce("t", b"%d" % number * 1_000)
    reply = await cluster.clients[1].ask("Metadata", topics=None)
    (found,) = [each for each in reply["topics"] if each["name"] == "t"]
    assert found["error_code"] == NONE
    assert set(found["partitions"][0]["isr_nodes"]) == {1, 2, 3}
