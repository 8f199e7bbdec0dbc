"""A cluster whose store and brokers fail at random, from seeds, ends in order once the faults end."""

from collections import Counter
from contextlib import suppress
from random import Random
from uuid import uuid5

import pytest
import trio

from tests.broker.cluster.faults import RandomFaults
from tests.broker.cluster.memory import MemoryCluster
from tests.broker.cluster.nodes import SPACE, Member
from tests.cluster.simulation.loop import run as simulate
from warmlog.broker.cluster import admin, partition_admin, values
from warmlog.broker.cluster.image import ClusterImage, ImageDelta
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.rules import Change, LogEnd, change_isr, transaction
from warmlog.broker.cluster.store import StoreError
from warmlog.broker.cluster.values import TopicState, TopicStatus
from warmlog.broker.metadata.topic import RefusedError
from warmlog.protocol.partitions import TopicIdPartition

NODES = 3
STEPS = 60


class Chaos:
    """Three nodes, faults between them and the store, and what each of them saw."""

    def __init__(self, random: Random, nursery: trio.Nursery) -> None:
        self.random = random
        self.cluster = MemoryCluster()
        self.faults = [RandomFaults(random) for _ in range(NODES)]
        self.nodes = [
            Member(self.cluster, number, nursery, faults=faults) for number, faults in enumerate(self.faults, 1)
        ]
        self.leaders: dict[tuple[TopicIdPartition, int], values.Member] = {}  # by partition and epoch
        self.producer_ids: list[int] = []
        self._nursery = nursery
        self._restarting: set[int] = set()
        self._topics = 0

    async def restart(self, node: Member) -> None:
        if node.id in self._restarting:
            return
        self._restarting.add(node.id)
        node.log_ends = {each.id: LogEnd(0, each.id) for each in self.nodes}
        node.kill()
        await trio.sleep(self.random.choice([0, 0.1, 10]))
        await node.restart(clean=self.random.random() < 0.5)
        node.node.on_change.append(self._check)
        self._restarting.discard(node.id)

    def _check(self, image: ClusterImage, delta: ImageDelta) -> None:
        for key in delta.partitions:
            state = image.partitions.get(key)
            if state is not None and state.leader is not None:
                leader = self.leaders.setdefault((key, state.leader_epoch), state.leader)
                assert leader == state.leader, "two leaders in one epoch"

    async def step(self) -> None:
        random, node = self.random, self.random.choice(self.nodes)
        chosen = random.randrange(9)
        if chosen == 0:
            self._nursery.start_soon(self.restart, node)
        elif chosen == 1:
            self.cluster.expire_all()
        elif chosen == 2:
            self.cluster.compact(self.cluster.revision)
        elif chosen == 3:
            self._nursery.start_soon(self._take_producer_ids, node)
        elif chosen < 6:
            self._nursery.start_soon(self._change_partition, node)
        else:
            self._nursery.start_soon(self._change_topic, node)
        await trio.sleep(random.expovariate(1))

    async def _take_producer_ids(self, node: Member) -> None:
        with suppress(StoreError):
            self.producer_ids.append(await admin.take_producer_ids(node.node, 1000))

    async def _change_partition(self, node: Member) -> None:
        """Change the ISR of a partition that a node leads, or move it."""
        image, random = node.node.image, self.random
        led = [key for key, state in image.partitions.items() if state.leader_id == node.id]
        if not led:
            return
        key = random.choice(led)
        state = image.partitions[key]
        if random.random() < 0.3:
            await partition_admin.reassign_partitions(node.node, {key: random.choice([[1, 2], [3], None])})
            return
        isr = [image.current(broker) for broker in state.replicas if broker == node.id or random.random() < 0.6]
        assert state.leader is not None
        change = change_isr(image, key, state.revision, state.leader, [each for each in isr if each is not None])
        if isinstance(change, Change):
            await node.node.attempt(transaction([change]))

    async def _change_topic(self, node: Member) -> None:
        with suppress(RefusedError, StoreError):
            await self._change(node.node, self.random)

    async def _change(self, node: ClusterNode, random: Random) -> None:
        image = node.image
        name = random.choice(sorted(image.topics) or [""])
        found = image.topics.get(name)
        if found is None or random.random() < 0.5:
            self._topics += 1
            made = TopicState(id=uuid5(SPACE, f"random {self._topics}"), partitions=random.choice([1, 3, 250]))
            assignment = admin.place(image, made.partitions, random.randint(1, NODES), random)
            await admin.create_topic(node, f"t{self._topics}", made, assignment)
        elif random.random() < 0.5:
            added = admin.place(image, 130, 2, random, first_partition=found.partitions)
            await admin.grow_topic(node, name, found.id, added, found.partitions)
        else:
            await admin.delete_topic(node, name)


def is_in_order(chaos: Chaos, image: ClusterImage) -> bool:
    """Whether every partition has a leader that lives, and every topic all of its partitions."""
    whole = all(topic.status is TopicStatus.LIVE for topic in image.topics.values())
    counts = Counter(key.topic_id for key in image.partitions)
    return (
        whole
        and counts == {topic.id: topic.partitions for topic in image.topics.values()}
        and len(image.brokers) == NODES
        and sum(each.controller.is_active for each in chaos.nodes) == 1
        and all(state.leader is not None and image.is_good(state.leader) for state in image.partitions.values())
    )


async def run(random: Random) -> None:
    async with trio.open_nursery() as nursery:
        chaos = Chaos(random, nursery)
        for each in chaos.nodes:
            nursery.start_soon(chaos.restart, each)
        for _ in range(STEPS):
            await chaos.step()
        for faults in chaos.faults:
            faults.heal()
        with trio.fail_after(300):
            while not all(is_in_order(chaos, each.node.image) for each in chaos.nodes):  # noqa: ASYNC110  # simulated time
                await trio.sleep(1)
        assert len(set(chaos.producer_ids)) == len(chaos.producer_ids)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(20))
def test_the_cluster_is_in_order_after_random_faults(seed: int) -> None:
    simulate(seed, run)
