"""Share group state in a cluster: coordinators on other brokers, and one that stops or is killed."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clustered.three_brokers import IDS, LIMIT_S, Cluster, three_brokers, topic
from warmlog.broker import coordinators
from warmlog.broker.share.persister import InitialState, Outcome
from warmlog.broker.share.state.client import StatePersister
from warmlog.broker.share.state.service import ShareStateService
from warmlog.broker.share.state.topic import TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.state import StateBatch
from warmlog.protocol.kafka.share_state_records import SharePartitionKey

PARTITIONS = 12
SETTINGS = {"share.coordinator.state.topic.num.partitions": 6, "warmlog.cluster.lease.ms": 2000}
DONE = Outcome()
ACKNOWLEDGED = 2


class Services:
    """The share coordinators of the brokers, in the order in which these start."""

    def __init__(self, cluster: Cluster, services: Iterable[ShareStateService], topic_id: bytes) -> None:
        self.cluster = cluster
        self.services = dict(zip(IDS, services, strict=True))
        self.topic_id = topic_id

    def persister(self, broker: int) -> StatePersister:
        return self.services[broker].persister

    def key(self, partition: int) -> SharePartitionKey:
        return SharePartitionKey("g", self.topic_id, partition)

    async def initialize(self, at: int) -> None:
        states = [InitialState(self.topic_id, index, 0, index) for index in range(PARTITIONS)]
        outcomes = await self.persister(at).initialize("g", states)
        assert set(outcomes.values()) == {DONE}

    async def write(self, at: int, number: int) -> None:
        """Acknowledge an offset of every share-partition at the same time."""

        async def one(index: int) -> None:
            outcome = await self.persister(at).write(
                self.key(index),
                state_epoch=0,
                leader_epoch=0,
                start_offset=-1,
                delivery_complete_count=number,
                batches=[StateBatch(100 + number, 100 + number, ACKNOWLEDGED, 1)],
            )
            assert outcome == DONE, outcome

        async with trio.open_nursery() as nursery:
            for index in range(PARTITIONS):
                nursery.start_soon(one, index)

    async def check(self, at: int, numbers: int) -> None:
        for index in range(PARTITIONS):
            read = await self.persister(at).read(self.key(index), 0)
            assert read.error is ErrorCode.NONE, read
            assert read.start_offset == index
            assert read.batches == (StateBatch(100, 100 + numbers - 1, ACKNOWLEDGED, 1),)


@asynccontextmanager
async def serving(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Services]:
    services: list[ShareStateService] = []

    class Noted(ShareStateService):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            services.append(self)

    monkeypatch.setattr(coordinators, "ShareStateService", Noted)
    async with three_brokers(directory, SETTINGS) as cluster:
        await cluster.until_known(IDS)
        replicas = [[1 + (index + step) % 3 for step in range(3)] for index in range(PARTITIONS)]
        assert await cluster.create(topic("jobs", replicas)) == [ErrorCode.NONE]
        await cluster.until("jobs", lambda _: True)
        yield Services(cluster, services, bytes((await cluster.described("jobs"))["topic_id"]))


async def test_every_broker_reaches_the_states_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, monkeypatch) as share:
        with trio.fail_after(LIMIT_S):
            await share.initialize(at=1)
            for number, broker in enumerate((1, 2, 3)):
                await share.write(broker, number)
            for broker in IDS:
                await share.check(broker, numbers=3)
        led = {broker: len(service.runtime.shards()) for broker, service in share.services.items()}
        assert sum(led.values()) == 6
        assert len([count for count in led.values() if count]) > 1, "several brokers coordinate"


async def test_a_coordinator_that_stops_is_replaced_without_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, monkeypatch) as share:
        with trio.fail_after(LIMIT_S):
            await share.initialize(at=1)
            await share.write(1, 0)
            written = 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(share.cluster.stop, 3)
                while not share.cluster.brokers[3].ended.is_set():
                    await share.write(1 + written % 2, written)
                    written += 1
            await share.write(2, written)
            await share.check(1, numbers=written + 1)
            await share.check(2, numbers=written + 1)
            state = await share.cluster.partition(TOPIC)
            assert state["leader_id"] != 3
