"""A group with members of two kinds: warmlog's client on the native listener, aiokafka on Kafka's."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import anyio
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from warmlog import Client, connect
from warmlog.testing import Broker

PARTITIONS = frozenset(range(4))


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 100,
        "offsets.topic.num.partitions": 1,
    }
    with Broker(settings=settings) as broker:
        yield broker


class Team:
    """Members of a group by name, and the records each was given."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker, self._name = broker, name
        self.read: list[tuple[str, int, int]] = []  # member, partition, offset
        self._count = 0

    @asynccontextmanager
    async def member(self, kind: str) -> AsyncIterator[None]:
        """Run a member of one kind, "native" or "kafka", until the end of the block."""
        consume = self._consume_natively if kind == "native" else self._consume_over_kafka
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            yield
            tasks.cancel_scope.cancel()

    async def _consume_natively(self) -> None:
        async with (
            connect(self._broker.native) as client,
            # aiokafka has no KIP-848, and a classic member cannot join a consumer group yet
            client.consume(self._name, group=self._name, session_timeout_s=0.3, group_protocol="classic") as records,
        ):
            async for record in records:
                self.read.append(("native", record.partition, record.offset))

    async def _consume_over_kafka(self) -> None:
        consumer = AIOKafkaConsumer(
            self._name,
            bootstrap_servers=self._broker.kafka,
            group_id=self._name,
            auto_offset_reset="earliest",
            partition_assignment_strategy=(RangePartitionAssignor,),
            heartbeat_interval_ms=50,
        )
        await consumer.start()
        try:
            async for record in consumer:
                self.read.append(("kafka", record.partition, record.offset))
        finally:
            with anyio.CancelScope(shield=True):
                await consumer.stop()

    async def until_shared_by(self, *kinds: str) -> None:
        """Wait until records of all partitions are read by members of these kinds and no others."""

        def is_so() -> bool:
            owners = {partition: kind for kind, partition, offset in self.read if offset == self._count - 1}
            return owners.keys() == PARTITIONS and set(owners.values()) == set(kinds)

        with anyio.fail_after(30):
            while True:
                await self._produce()
                if await self._holds_soon(is_so):
                    return

    async def _produce(self) -> None:
        async with connect(self._broker.native) as client:
            for partition in PARTITIONS:
                await client.produce(self._name, value=b"x", partition=partition)
        self._count += 1

    async def _holds_soon(self, condition: Callable[[], bool]) -> bool:
        for _ in range(20):
            if condition():
                return True
            await anyio.sleep(0.01)
        return False

    @property
    def places(self) -> set[tuple[int, int]]:
        """Return the records read, by partition and offset."""
        return {(partition, offset) for _, partition, offset in self.read}

    @property
    def written(self) -> set[tuple[int, int]]:
        """Return the records in the topic."""
        return {(partition, offset) for partition in PARTITIONS for offset in range(self._count)}


@pytest.mark.parametrize(("first", "second"), [("native", "kafka"), ("kafka", "native")])
def test_members_of_both_kinds_share_the_partitions(module_broker: Broker, first: str, second: str) -> None:
    name = f"mixed-{first}"
    with Client(module_broker.native) as client:
        client.create_topic(name, partitions=len(PARTITIONS))

    async def story() -> None:
        team = Team(module_broker, name)
        async with team.member(first):
            await team.until_shared_by(first)
            async with team.member(second):
                await team.until_shared_by(first, second)
            await team.until_shared_by(first)
        assert team.places == team.written

    asyncio.run(story())
    with Client(module_broker.native) as client:
        (described,) = client.describe_groups(name)
    assert {position.partition for position in described.positions} == PARTITIONS
