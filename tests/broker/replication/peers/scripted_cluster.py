"""Scripted brokers of one cluster, which share metadata."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from tests.broker.replication.peers.scripted_peer import Socket, groups_named, scripted_peer
from warmlog.protocol.groups import CoordinatorLocation, FindCoordinatorResponse
from warmlog.protocol.kafka.api import Call
from warmlog.protocol.response import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata


class Cluster:
    """Scripted brokers that share metadata. Each answers until it is told to drop its connections."""

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        self.leader, self.epoch = 1, 5
        self.dropped: set[int] = set()
        self.asked: list[tuple[int, str]] = []
        self.asked_again = trio.Event()  # set, and replaced, at each request
        self.connected: list[int] = []

    def bootstrap(self, *nodes: int) -> list[tuple[str, int]]:
        return [("127.0.0.1", self.ports[node]) for node in nodes]

    def metadata(self) -> MetadataResponse:
        partition = PartitionMetadata(
            partition=0, leader=self.leader, leader_epoch=self.epoch, replicas=(1, 2), in_sync=(1, 2)
        )
        brokers = [BrokerMetadata(node_id=node, host="127.0.0.1", port=port) for node, port in self.ports.items()]
        topic = TopicMetadata(name="orders", partitions=(partition,))
        return MetadataResponse(cluster_id="source", controller=1, brokers=tuple(brokers), topics=(topic,))

    async def serve(self, node: int, socket: Socket) -> None:
        self.connected.append(node)
        if node in self.dropped:
            return
        await socket.greet()
        while (call := await socket.call_or_end()) is not None:
            self.asked.append((node, call.api.name))
            self.asked_again.set()
            self.asked_again = trio.Event()
            if node in self.dropped:
                return
            response = await self.answer(node, call)
            if node in self.dropped:
                return
            await socket.answer(call, response)

    async def answer(self, node: int, call: Call) -> object:
        """Return the response of a broker."""
        answers = {
            "Metadata": self.metadata(),
            "ListGroups": groups_named(f"of {node}"),
            "FindCoordinator": FindCoordinatorResponse(coordinators=(CoordinatorLocation(key="g", node_id=2),)),
        }
        return answers[call.api.name]


@asynccontextmanager
async def scripted_cluster(*nodes: int, make: type[Cluster] = Cluster) -> AsyncIterator[Cluster]:
    cluster = make()
    async with AsyncExitStack() as stack:
        for node in nodes:

            async def serve(socket: Socket, node: int = node) -> None:
                await cluster.serve(node, socket)

            cluster.ports[node] = await stack.enter_async_context(scripted_peer(serve))
        yield cluster
