"""Replicas in memory, and a follower that fills them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import trio

from warmlog.broker.replication.following.fetcher import FetchLimits, Replica, Step
from warmlog.broker.replication.following.follower import Follower
from warmlog.broker.replication.peers.peer import PeerCluster, open_cluster
from warmlog.protocol.kafka.messages.records.fetch import KafkaFetchedPartition, KafkaFetchPartition
from warmlog.protocol.records.batch import headers


class Copy:
    """A replica in memory: the bytes of its batches, and what else it was given."""

    def __init__(self, topic: str, topic_id: bytes, partition: int = 0, *, offset: int = 0) -> None:
        self.topic, self.topic_id, self.partition = topic, topic_id, partition
        self.offset = offset
        self.epoch = -1
        self.data = b""
        self.found: list[KafkaFetchedPartition] = []
        self.took = trio.Event()
        self.throttled_s = 0.0
        self.decide: Callable[[KafkaFetchedPartition], Step] = lambda _: Step.GO_ON

    async def position(self, leader_epoch: int) -> KafkaFetchPartition:
        return KafkaFetchPartition(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            offset=self.offset,
            current_leader_epoch=leader_epoch,
            last_fetched_epoch=self.epoch,
            max_bytes=1 << 20,
        )

    def take_at_once(self, found: KafkaFetchedPartition) -> KafkaFetchPartition | None:
        del found
        return None

    async def take(self, found: KafkaFetchedPartition) -> Step:
        self.found.append(found)
        step = self.decide(found)
        if step is Step.GO_ON:
            for position, header in headers(found.records):  # without the last one if it is incomplete
                self.data += found.records[position : position + header.size]
                self.offset, self.epoch = header.next_offset, header.leader_epoch
        self.took.set()
        self.took = trio.Event()
        return step

    async def until(self, condition: Callable[[], Any]) -> None:
        with trio.fail_after(30):
            while not condition():
                await self.took.wait()


@asynccontextmanager
async def followed(
    bootstrap: list[tuple[str, int]], *copies: Copy, **limits: int
) -> AsyncIterator[tuple[Follower, PeerCluster]]:
    async with open_cluster(bootstrap, random=Random(1)) as cluster, filled(cluster, *copies, **limits) as follower:
        yield follower, cluster


@asynccontextmanager
async def filled(cluster: PeerCluster, *copies: Replica, **limits: int) -> AsyncIterator[Follower]:
    async with trio.open_nursery() as nursery:
        follower = Follower(cluster, limits=FetchLimits(**limits), random=Random(1))
        for one in copies:
            follower.follow(one)
        nursery.start_soon(follower.run)
        yield follower
        nursery.cancel_scope.cancel()
