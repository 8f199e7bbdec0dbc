"""Proposals of leaders, through the store of a cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from trio.testing import MockClock

from tests.broker.clients import batch
from tests.broker.cluster.nodes import Member, three_nodes, topic
from tests.broker.partitions.test_partition import rig
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.rules import Change, disown, transaction
from warmlog.broker.net.turns.deadlines import Deadlines
from warmlog.broker.replication.leading.leader import PartitionLeader
from warmlog.broker.replication.leading.proposals import IsrProposals
from warmlog.protocol.partitions import TopicIdPartition

LAG_S = 30.0


class Leading:
    """Broker 1 of three leads every partition of a topic; followers are mere numbers."""

    def __init__(self, nodes: list[Member], keys: list[TopicIdPartition], leaders: list[PartitionLeader]) -> None:
        self.nodes = nodes
        self.node = nodes[0].node
        self.keys = keys
        self.leaders = leaders

    def append(self) -> None:
        for leader in self.leaders:
            leader.partition.append(batch(b"a"))
            leader.partition.appends.write_queued()

    def fetch(self, *brokers: int) -> None:
        """Let followers fetch from the log end of every partition."""
        for leader in self.leaders:
            for broker in brokers:
                member = self.node.image.current(broker)
                assert member is not None
                leader.fetched(broker, member.epoch, leader.partition.log.offsets.log_end_offset, 0)

    def isr(self, partition: int = 0) -> list[int]:
        return [member.broker for member in self.nodes[0].state(partition).isr]

    def update(self) -> None:
        for index, leader in enumerate(self.leaders):
            leader.update(self.nodes[0].state(index), 1)

    async def fall_behind(self, *brokers: int) -> None:
        """Let brokers fall behind in all partitions."""
        self.append()
        self.fetch(*({2, 3} - set(brokers)))
        await trio.sleep(LAG_S + 1)

    def check(self) -> None:
        for leader in self.leaders:
            leader.check()


@asynccontextmanager
async def leading(directory: Path, partitions: int = 1) -> AsyncIterator[Leading]:
    async with three_nodes() as nodes, rig(directory) as made:
        made_topic = topic(partitions, min_insync_replicas="1")
        keys = [TopicIdPartition(made_topic.id, index) for index in range(partitions)]
        await admin.create_topic(nodes[0].node, "t", made_topic, [[1, 2, 3]] * partitions)
        await nodes[0].until(lambda: len(nodes[0].node.image.partitions) == partitions)
        node, leaders = nodes[0].node, []
        proposals = IsrProposals(node)
        for index in range(partitions):
            state = nodes[0].state(index)
            leader = PartitionLeader(
                made.another(f"t{index}"),
                state,
                node.me,
                min_isr=1,
                brokers=node.image,
                deadlines=Deadlines(),
                propose=partial(proposals.send, keys[index]),
                max_lag_s=LAG_S,
            )
            leader.start()
            leaders.append(leader)
        yield Leading(nodes, keys, leaders)
        for leader in leaders:
            await leader.partition.retire()


async def test_a_follower_leaves_the_isr_and_joins_it_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with leading(tmp_path) as one:
        await one.fall_behind(3)
        one.check()
        await one.nodes[0].until(lambda: one.isr() == [1, 2])
        one.update()
        one.fetch(3)
        await one.nodes[0].until(lambda: one.isr() == [1, 2, 3])


async def test_many_proposals_take_few_transactions(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with leading(tmp_path, 100) as one:
        before = one.node.image.revision
        await one.fall_behind(2, 3)
        one.check()
        await one.nodes[0].until(lambda: all(one.isr(index) == [1] for index in range(100)))
        assert one.node.image.revision - before <= 3


async def test_a_proposal_whose_outcome_is_lost_is_seen_in_the_image(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with leading(tmp_path) as one:
        one.nodes[0].outage.loses_answers = True
        await one.fall_behind(2, 3)
        one.check()
        await one.nodes[0].until(lambda: one.isr() == [1])
        one.update()
        assert one.leaders[0].progress.propose(trio.current_time()) is None


async def test_a_proposal_that_did_not_reach_the_store_is_made_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with leading(tmp_path) as one:
        await one.fall_behind(2, 3)
        one.nodes[0].outage.is_away = True
        one.check()
        await trio.sleep(3)
        assert one.isr() == [1, 2, 3]
        one.nodes[0].outage.is_away = False
        one.leaders[0].check()
        await one.nodes[0].until(lambda: one.isr() == [1])


async def test_a_proposal_that_is_refused_does_not_hold_up_the_high_watermark(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with leading(tmp_path) as one:
        await one.fall_behind(2, 3)
        one.check()
        await one.nodes[0].until(lambda: one.isr() == [1])
        one.update()
        third = one.nodes[2].node
        change = disown(third.image, one.keys[0], third.me)
        assert isinstance(change, Change)
        assert await third.attempt(transaction([change]))
        await one.nodes[0].until(lambda: one.nodes[0].state().revision > one.leaders[0].state.revision)
        one.fetch(2)
        one.append()
        await trio.sleep(LAG_S + 1)
        one.leaders[0].check()
        assert one.leaders[0].partition.log.offsets.high_watermark == 2
