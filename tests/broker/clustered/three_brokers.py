"""Three brokers of one cluster in the test's own trio loop, with a store that keeps nothing for long."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import trio

from tests.broker.clients import Running, batch, running
from tests.broker.cluster.conftest import local_store, open_socket
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.broker.cluster.node import ClusterNode, Identity
from warmlog.broker.cluster.values import NO_EPOCH, Endpoint
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID

IDS = (1, 2, 3)
LIMIT_S = 60.0
DIRECTORIES = ("x", "y")
NONE = ErrorCode.NONE


class Cluster:
    """Brokers 1 to 3, and a connection to each Kafka listener."""

    def __init__(self, store: str, brokers: Mapping[int, Running], clients: Mapping[int, KafkaClient]) -> None:
        self.store = store
        self.brokers = brokers
        self.clients = clients

    async def stop(self, broker: int) -> None:
        """Stop a broker, which lets others lead first."""
        self.brokers[broker].stop.set()
        await self.brokers[broker].ended.wait()

    async def create(self, *topics: Mapping[str, Any], at: int = 1) -> list[int]:
        """Create topics, and return the error codes."""
        reply = await self.clients[at].ask("CreateTopics", topics=topics, timeout_ms=10_000)
        return [one["error_code"] for one in reply["topics"]]

    async def produce(self, name: str, *values: bytes, at: int = 1) -> int:
        """Append records to the first partition as soon as this broker leads it; return their base offset."""
        topic_id = (await self.described(name, at=at))["topic_id"]
        partition = {"index": 0, "records": batch(*values)}
        fields = {"acks": -1, "topic_data": [{"topic_id": topic_id, "partition_data": [partition]}]}
        with trio.fail_after(LIMIT_S):
            while True:
                reply = await self.clients[at].ask("Produce", timeout_ms=10_000, **fields)
                (found,) = reply["responses"][0]["partition_responses"]
                if found["error_code"] != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    assert found["error_code"] == NONE
                    return int(found["base_offset"])

    async def until_known(self, brokers: Iterable[int], *, at: int = 1) -> None:
        """Ask for the brokers until these are alive, as a broker knows it."""
        with trio.fail_after(LIMIT_S):
            while {one["node_id"] for one in (await self.clients[at].ask("Metadata"))["brokers"]} != set(brokers):
                pass

    async def described(self, name: str, *, at: int = 1) -> dict[str, Any]:
        """Return the metadata of a topic."""
        asked = [{"name": name, "topic_id": NO_TOPIC_ID}]
        reply = await self.clients[at].ask("Metadata", topics=asked, allow_auto_topic_creation=False)
        (found,) = reply["topics"]
        return dict(found)

    async def partition(self, name: str, index: int = 0, *, at: int = 1) -> dict[str, Any]:
        """Return the metadata of a partition."""
        found = (await self.described(name, at=at))["partitions"]
        return next(dict(one) for one in found if one["partition_index"] == index)

    async def until(self, name: str, condition: Callable[[dict[str, Any]], bool], *, at: int = 1) -> dict[str, Any]:
        """Ask for the metadata of a topic's first partition until a condition holds, and return it."""
        with trio.fail_after(LIMIT_S):
            while True:
                found = (await self.described(name, at=at))["partitions"]
                if found and condition(dict(found[0])):
                    return dict(found[0])


def topic(name: str, replicas: Iterable[Iterable[int]], **configs: str) -> dict[str, Any]:
    """A topic with these brokers for each partition."""
    assignments = [{"partition_index": index, "broker_ids": tuple(ids)} for index, ids in enumerate(replicas)]
    settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {
        "name": name,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": assignments,
        "configs": settings,
    }


@asynccontextmanager
async def three_brokers(directory: Path, settings: Mapping[str, object] | None = None) -> AsyncIterator[Cluster]:
    """Run brokers 1 to 3, in racks a to c, each over two data directories."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(local_store(directory / "store.sqlite"))
        brokers, clients = {}, {}
        for node_id, rack in zip(IDS, "abc", strict=True):
            paths = ",".join(str(directory / f"broker-{node_id}-{name}") for name in DIRECTORIES)
            given = {"node.id": node_id, "warmlog.cluster.etcd": url, "broker.rack": rack, "log.dirs": paths}
            brokers[node_id] = await stack.enter_async_context(running(directory, given | dict(settings or {})))
        for node_id, broker in brokers.items():
            clients[node_id] = await stack.enter_async_context(kafka_client(broker.addresses.kafka))
        yield Cluster(url, brokers, clients)


@asynccontextmanager
async def idle_broker(cluster: Cluster, node_id: int) -> AsyncIterator[ClusterNode]:
    """Register a broker that does nothing, as one that hangs, and wait until broker 1 knows it."""
    store = open_socket(cluster.store)
    node = ClusterNode(store, node_id, lease_s=LIMIT_S, random=Random(node_id))
    endpoint = Endpoint(listener="kafka", host="127.0.0.1", port=1)
    async with trio.open_nursery() as nursery:
        await node.load()
        await nursery.start(node.run, Identity(broker=node_id, endpoints=(endpoint,), directories=(uuid4(),)), NO_EPOCH)
        with trio.fail_after(LIMIT_S):
            while node_id not in {one["node_id"] for one in (await cluster.clients[1].ask("Metadata"))["brokers"]}:
                pass
        yield node
        nursery.cancel_scope.cancel()
    await node.leave()
    store.close()
