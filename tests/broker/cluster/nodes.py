"""Nodes of a cluster without brokers behind them, over a store in memory."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from uuid import UUID, uuid5

import trio

from tests.broker.cluster.memory import Faults, MemoryCluster, MemoryStore
from warmlog.broker.cluster import admin, values
from warmlog.broker.cluster.controller import Controller, Rebalancing
from warmlog.broker.cluster.node import ClusterNode, Identity
from warmlog.broker.cluster.rules import Change, LogEnd, Refusal, change_isr, transaction
from warmlog.broker.cluster.store import StoreUnavailableError
from warmlog.broker.cluster.values import NO_EPOCH, Endpoint, PartitionState, TopicState
from warmlog.protocol.partitions import TopicIdPartition

LEASE_S = 6.0
NO_REBALANCING = Rebalancing(interval_s=None)
SPACE = UUID("11111111-2222-3333-4444-555555555555")


class Outage(Faults):
    """Faults on request.

    `is_away`: the store cannot be reached; `loses_answers`: calls have their effect, but no answer; `lag_s`: changes
    are reported late.
    """

    def __init__(self) -> None:
        self.is_away = self.loses_answers = False
        self.lag_s = 0.0

    async def before(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise StoreUnavailableError("the store is away")

    async def after(self) -> None:
        if self.loses_answers:
            raise StoreUnavailableError("the answer was lost")

    async def before_changes(self) -> None:
        await trio.sleep(self.lag_s)
        await self.before()


class Member:
    """A node with its controller, which can be killed and started again."""

    def __init__(
        self,
        cluster: MemoryCluster,
        node_id: int,
        nursery: trio.Nursery,
        *,
        rack: str | None = None,
        faults: Faults | None = None,
        rebalancing: Rebalancing = NO_REBALANCING,
    ) -> None:
        self.id = node_id
        self.cluster = cluster
        self.outage = Outage()
        self.store = MemoryStore(cluster, faults or self.outage)
        self.log_ends: dict[int, LogEnd] = {}
        self.directories = (uuid5(SPACE, str(node_id)),)
        self.rack = rack
        self.port = 1  # where nothing listens
        self.questions = 0  # about log ends
        self.election_times_s: list[float] = []
        self.runs_controller = True
        self._rebalancing = rebalancing
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._make()

    def _make(self) -> None:
        self.node = ClusterNode(self.store, self.id, lease_s=LEASE_S, random=Random(self.id), clock=trio.current_time)
        self.controller = Controller(self.node, self._ask, self._rebalancing, elected=self.election_times_s.append)

    async def _ask(self, _: TopicIdPartition, members: Sequence[values.Member]) -> Mapping[values.Member, LogEnd]:
        self.questions += 1
        await trio.lowlevel.checkpoint()
        return {member: self.log_ends[member.broker] for member in members if member.broker in self.log_ends}

    async def start(self, since: int = NO_EPOCH) -> None:
        await self.node.load()
        await self._nursery.start(self._run, since)

    async def _run(self, since: int, *, task_status: trio.TaskStatus[None]) -> None:
        identity = Identity(
            broker=self.id,
            endpoints=(Endpoint(listener="kafka", host="127.0.0.1", port=self.port),),
            directories=self.directories,
            rack=self.rack,
        )
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.node.run, identity, since)
                if self.runs_controller:
                    nursery.start_soon(self.controller.run)
                task_status.started()

    def kill(self) -> None:
        self._scope.cancel()

    async def restart(self, *, clean: bool = False) -> None:
        """Kill the node if it runs, and start it again over the same data."""
        since = self.node.since if clean else NO_EPOCH
        self.kill()
        self._make()
        await self.start(since)

    def state(self, partition: int = 0) -> PartitionState:
        found = self.node.image.partition("t", partition)
        assert found is not None
        return found

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds on the image."""
        with trio.fail_after(120):
            while not condition():
                await self.node.advanced()


async def listening(nodes: Sequence[Member]) -> trio.SocketListener:
    """Let the first node listen, at an address that the second one knows."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nodes[0].port = listener.socket.getsockname()[1]
    await nodes[0].restart()
    await nodes[1].until(lambda: nodes[1].node.image.brokers[1].epoch == nodes[0].node.epoch)
    return listener


async def created(nodes: Sequence[Member], assignment: Sequence[Sequence[int]], **configs: str) -> TopicIdPartition:
    """Create topic t, and return its first partition when all nodes know it."""
    made = topic(len(assignment), **configs)
    await admin.create_topic(nodes[0].node, "t", made, assignment)
    for each in nodes:
        await each.until(lambda each=each: len(each.node.image.partitions) == len(assignment))  # type: ignore[misc]
    return TopicIdPartition(made.id, 0)


async def committed(member: Member, change: Change | Refusal) -> bool:
    """Commit a change of a partition."""
    assert isinstance(change, Change), change
    return bool(await member.node.attempt(transaction([change])))


async def in_sync(leader: Member, key: TopicIdPartition, brokers: Sequence[int]) -> None:
    """Let a leader set the ISR of a partition."""
    image = leader.node.image
    state = image.partitions[key]
    assert state.leader is not None
    known = {member.broker: member for member in state.isr}
    members = [known.get(broker) or image.current(broker) for broker in brokers]
    change = change_isr(image, key, state.revision, state.leader, [each for each in members if each is not None])
    assert await committed(leader, change)


@asynccontextmanager
async def three_nodes(
    racks: Sequence[str | None] = (None, None, None), rebalancing: Rebalancing = NO_REBALANCING
) -> AsyncIterator[list[Member]]:
    """Nodes 1, 2 and 3, registered."""
    async with trio.open_nursery() as nursery:
        cluster = MemoryCluster()
        nodes = [
            Member(cluster, number, nursery, rack=rack, rebalancing=rebalancing) for number, rack in enumerate(racks, 1)
        ]
        for each in nodes:
            await each.start()
        for each in nodes:
            await each.until(lambda each=each: len(each.node.image.brokers) == len(nodes))  # type: ignore[misc]
        yield nodes
        nursery.cancel_scope.cancel()


def topic(partitions: int, **configs: str) -> TopicState:
    """A topic whose id depends on nothing but its size."""
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    return TopicState(id=uuid5(SPACE, f"topic {partitions}"), partitions=partitions, configs=settings)
