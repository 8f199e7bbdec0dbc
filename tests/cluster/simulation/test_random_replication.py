"""Brokers whose machines, links, store and leases fail at random lose no acknowledged record, and end up alike.

Every acknowledged append is found in the final log, once and in its place; all replicas have the same bytes.
"""

import os
from random import Random

import pytest
import trio

from broker.partitions.partition import Partition
from protocol.records.batch import headers
from tests.broker.cluster.faults import RandomFaults
from tests.broker.replication.simulated_brokers import Brokers, simulate

SEEDS = int(os.environ.get("WARMLOG_SIMULATED_RUNS", "4"))
STEPS = 40
PARTITIONS = 2


class Chaos:
    """Producers, and faults around them. `is_durable`: what is acknowledged is synced, so that any power may be cut."""

    def __init__(self, brokers: Brokers, random: Random, *, is_durable: bool) -> None:
        self.brokers = brokers
        self.random = random
        self.is_durable = is_durable
        self.acknowledged: dict[int, dict[int, bytes]] = {index: {} for index in range(PARTITIONS)}  # by offset
        self.sent = 0
        self.down: set[int] = set()

    async def produce(self) -> None:
        """Append at every broker that believes to lead."""
        while True:
            await trio.sleep(self.random.random() * 0.2)
            for broker in self.brokers.serving:
                for index in range(PARTITIONS):
                    partition = broker.partitions.get("t", index)
                    if partition is not None and self.random.random() < 0.5:
                        self.brokers.nursery.start_soon(self._append, broker.id, partition, index)

    async def _append(self, number: int, partition: Partition, index: int) -> None:
        self.sent += 1
        value = b"value %d from %d" % (self.sent, number)
        append = await self.brokers.try_append(number, partition, value)
        if append is not None and append.error is None:
            offset = append.planned.base_offset
            assert self.acknowledged[index].setdefault(offset, value) == value, "two records acknowledged at one offset"

    async def step(self) -> None:
        brokers, random = self.brokers, self.random
        number = random.choice(list(brokers.all))
        chosen = random.randrange(8)
        if chosen < 2 and len(self.down) < 3 and number not in self.down:
            await self._end(number)
        elif chosen < 4 and self.down:
            await self._start(random.choice(sorted(self.down)))
        elif chosen == 4:
            brokers.network.cut(f"machine-{number}", f"machine-{random.choice(list(brokers.all))}")
        elif chosen == 5:
            brokers.network.heal()
        elif chosen == 6:
            brokers.store.expire_all()
        elif number not in self.down:
            await self._fail_log(number)
        await trio.sleep(random.expovariate(0.5))

    async def _end(self, number: int) -> None:
        """Stop a broker, kill it, or cut the power of its machine."""
        brokers, random = self.brokers, self.random
        can_lose = self.is_durable or not self.down
        if not self.is_durable:
            can_lose = can_lose and all(brokers.in_sync(index=index) == {1, 2, 3} for index in range(PARTITIONS))
        self.down.add(number)
        if can_lose and random.random() < 0.5:
            await brokers.cut_power(number, random)
        elif random.random() < 0.5:
            await brokers[number].kill()
        else:
            await brokers[number].stop()

    async def _start(self, number: int) -> None:
        self.down.discard(number)
        await self.brokers.start(number)

    async def _fail_log(self, number: int) -> None:
        partition = self.brokers[number].local("t", self.random.randrange(PARTITIONS))
        if partition is not None and not partition.log.failed:
            partition.log.fail("chaos")
            if partition.on_health is not None:
                partition.on_health()
            await trio.sleep(self.random.random())
            if number not in self.down:
                await self.brokers[number].failed_logs.check()

    async def run(self) -> None:
        brokers = self.brokers
        brokers.settings = (*brokers.settings, "log.segment.bytes=2000", "log.index.interval.bytes=200")
        faults = [RandomFaults(self.random, rate=0.05) for _ in range(3)]
        brokers.faults = dict(enumerate(faults, 1))
        brokers.can_lose_power = True
        await brokers.start(1, 2, 3)
        await brokers.create_all([[1, 2, 3], [2, 3, 1]], flush_messages="1" if self.is_durable else "1000")
        async with trio.open_nursery() as producing:
            producing.start_soon(self.produce)
            for _ in range(STEPS):
                await self.step()
            brokers.network.heal()
            for each in faults:
                each.heal()
            for number in sorted(self.down):
                await self._start(number)
            for number in brokers.all:
                await brokers[number].failed_logs.check()
            await trio.sleep(30)
            producing.cancel_scope.cancel()
        for index in range(PARTITIONS):
            await brokers.stored(b"last", index=index)
            self._judge(await brokers.alike(1, 2, 3, index=index), index)

    def _judge(self, content: bytes, index: int) -> None:
        stored = {header.base_offset: content[at : at + header.size] for at, header in headers(content)}
        assert list(stored) == sorted(stored)
        for offset, value in self.acknowledged[index].items():
            assert value in stored.get(offset, b""), f"{value!r} was acknowledged at offset {offset}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("is_durable", [False, True])
def test_no_acknowledged_record_is_lost(seed: int, is_durable: bool) -> None:
    async def main(brokers: Brokers) -> None:
        await Chaos(brokers, Random(f"chaos {seed}"), is_durable=is_durable).run()

    simulate(main, seed=seed)
