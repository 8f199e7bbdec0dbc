"""Brokers with real partitions, logs and replication on a simulated network, whose topic follows a simulated source."""

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio

from tests.broker.replication.simulated_brokers import Brokers, simulate
from tests.broker.replication.simulated_source import Mirrored
from warmlog.broker.cluster import admin
from warmlog.protocol.records.batch import headers

pytestmark = pytest.mark.timeout(120)


def mirroring(main: Callable[[Brokers, Mirrored], Awaitable[None]]) -> None:
    async def begin(brokers: Brokers) -> None:
        mirrored = Mirrored(brokers)
        await brokers.start(1, 2, 3)
        await main(brokers, mirrored)

    simulate(begin)


def test_the_leader_copies_and_the_followers_have_the_same_bytes() -> None:
    async def main(brokers: Brokers, mirrored: Mirrored) -> None:
        mirrored.source.produce(10)
        await mirrored.create([1, 2, 3])
        await mirrored.equal(1, 2, 3)
        partition = brokers.leader()
        assert partition is not None
        assert partition.mirror_of == "source"

    mirroring(main)


@pytest.mark.parametrize("replicas", [[1], [1, 2, 3]])
def test_a_later_epoch_of_the_source_begins_one_here(replicas: list[int]) -> None:
    async def main(brokers: Brokers, mirrored: Mirrored) -> None:
        source = mirrored.source
        await mirrored.create(replicas)
        for _ in range(4):
            source.produce(2)
            source.elect(3)
            source.produce(1)
            await mirrored.equal(*replicas)
            assert brokers.state().leader_epoch >= source.epoch
            assert brokers.log(1).epochs.entries == source.epochs.entries

    mirroring(main)


@pytest.mark.parametrize("replicas", [[1], [1, 2, 3]])
def test_what_the_source_loses_is_truncated_everywhere(replicas: list[int]) -> None:
    async def main(brokers: Brokers, mirrored: Mirrored) -> None:
        source = mirrored.source
        source.produce(10)
        await mirrored.create(replicas)
        await mirrored.equal(*replicas)
        epoch = brokers.state().leader_epoch
        source.lose(6)
        source.produce(8)
        await mirrored.equal(*replicas)
        assert brokers.state().leader_epoch > epoch

    mirroring(main)


def test_a_log_begins_where_that_of_the_source_begins() -> None:
    async def main(brokers: Brokers, mirrored: Mirrored) -> None:
        source = mirrored.source
        source.produce(10)
        source.delete_before(4)
        await mirrored.create([1, 2, 3])
        await mirrored.equal(1, 2, 3)
        assert [brokers.log(number).offsets.log_start_offset for number in (1, 2, 3)] == [4, 4, 4]

    mirroring(main)


def test_the_next_leader_continues_at_its_log_end() -> None:
    async def main(brokers: Brokers, mirrored: Mirrored) -> None:
        source = mirrored.source
        await mirrored.create([1, 2, 3], min_insync_replicas="1")
        for killed in (1, 2, 3, 1):
            source.produce(5)
            source.elect()
            source.produce(5)
            await brokers.until(lambda: brokers.leader() is not None)
            await brokers.kill(killed)
            source.produce(5)
            others = [number for number in (1, 2, 3) if number != killed]
            await mirrored.equal(*others)
            await brokers.start(killed)
            await mirrored.equal(1, 2, 3)

    mirroring(main)


def test_a_former_leader_truncates_what_the_source_has_lost() -> None:
    """It is alone with records that the source loses before anyone else has copied them."""

    async def main(brokers: Brokers, mirrored: Mirrored) -> None:
        source = mirrored.source
        await mirrored.create([1, 2, 3], min_insync_replicas="1")
        source.produce(3)
        await mirrored.equal(1, 2, 3)
        for other in (2, 3):
            brokers.cut(1, other)
        source.elect()
        source.produce(4)
        await brokers.until(lambda: brokers.log(1).offsets.log_end_offset == 7)
        await brokers.kill(1)
        brokers.network.heal()
        source.lose(4)
        source.produce(6)
        await mirrored.equal(2, 3)
        await brokers.start(1)
        await mirrored.equal(1, 2, 3)

    mirroring(main)


def test_a_promoted_partition_has_an_epoch_above_all_of_the_source() -> None:
    async def main(brokers: Brokers, mirrored: Mirrored) -> None:
        source = mirrored.source
        source.elect(40)
        source.produce(5)
        await mirrored.create([1, 2, 3])
        await mirrored.equal(1, 2, 3)
        assert await mirrored.promote() == 5
        source.produce(5)  # not copied
        await brokers.stored(b"own")
        content = await brokers.alike(1, 2, 3)
        assert content.startswith(source.content()[: sum(map(len, source.batches[:5]))])
        epochs = [header.leader_epoch for _, header in headers(memoryview(content))]
        assert epochs == [40] * 5 + [brokers.state().leader_epoch]
        assert brokers.state().leader_epoch > 40

    mirroring(main)


def test_a_promotion_waits_until_the_in_sync_replicas_have_all_records() -> None:
    async def main(brokers: Brokers, mirrored: Mirrored) -> None:
        source = mirrored.source
        await mirrored.create([1, 2, 3], min_insync_replicas="2")
        source.produce(3)
        await mirrored.equal(1, 2, 3)
        for other in (2, 3):
            brokers.cut(1, other)
        source.produce(3)
        await brokers.until(lambda: brokers.log(1).offsets.log_end_offset == 6)
        await admin.begin_promotion(brokers.node(2), "t")
        await trio.sleep(3)
        assert brokers.state().promoted_at is None
        await brokers.kill(1)
        brokers.network.heal()
        await mirrored.promoted()
        assert brokers.state().promoted_at == 3  # the source is not asked any more
        await brokers.stored(b"own")
        await brokers.start(1)
        assert b"own" in await brokers.alike(1, 2, 3)

    mirroring(main)


def test_open_transactions_of_the_source_are_aborted_by_the_next_leader_too() -> None:
    async def main(brokers: Brokers, mirrored: Mirrored) -> None:
        source = mirrored.source
        source.produce(2)
        transactional = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "attributes": 0x10}
        source.produce(1, **transactional)
        await mirrored.create([1, 2, 3], min_insync_replicas="1")
        await mirrored.equal(1, 2, 3)
        assert await mirrored.promote() == 3
        await brokers.until(lambda: brokers.leader() and brokers.leader().log.offsets.last_stable_offset == 4)  # type: ignore[union-attr]
        assert brokers.nodes[0].image.producer_ids.next_id > 7

    mirroring(main)


def test_a_producer_is_refused_until_the_promotion() -> None:
    async def main(brokers: Brokers, mirrored: Mirrored) -> None:
        mirrored.source.produce(1)
        await mirrored.create([1, 2, 3])
        await mirrored.equal(1, 2, 3)
        for number in (1, 2, 3):
            found = brokers.local(number)
            assert found is not None
            assert found.mirror_of == "source"
        await mirrored.promote()
        await brokers.until(lambda: all(brokers.local(number).mirror_of is None for number in (1, 2, 3)))  # type: ignore[union-attr]

    mirroring(main)


@pytest.mark.parametrize("seed", range(12))
def test_faults_in_any_order_leave_what_the_source_has(seed: int) -> None:
    async def main(brokers: Brokers, mirrored: Mirrored) -> None:
        random, source = Random(seed), mirrored.source
        await mirrored.create([1, 2, 3], min_insync_replicas=str(random.choice((1, 2))))
        for _ in range(40):
            await step(brokers, mirrored, random)
            await trio.sleep(random.choice((0.01, 0.3, 2.0)))
        brokers.network.heal()
        source.is_away = False
        down = [number for number, machine in brokers.machines.items() if not machine.is_up]
        await brokers.start(*down)
        await mirrored.equal(1, 2, 3)
        end = await mirrored.promote()
        assert end == source.end
        await brokers.stored(b"own")
        content = await brokers.alike(1, 2, 3)
        start = brokers.log(1).offsets.log_start_offset
        assert content.startswith(source.content(start))

    mirroring(main)


async def step(brokers: Brokers, mirrored: Mirrored, random: Random) -> None:
    source = mirrored.source
    up = [number for number, machine in brokers.machines.items() if machine.life is not None]
    down = [number for number, machine in brokers.machines.items() if not machine.is_up]
    kind = random.choice(("produce", "produce", "elect", "lose", "kill", "stop", "start", "cut", "heal", "away"))
    if kind == "produce":
        source.produce(random.randint(1, 5))
    elif kind == "elect":
        source.elect(random.randint(1, 3))
    elif kind == "lose":
        source.lose(random.randint(max(0, source.end - 4), source.end))
    elif kind in {"kill", "stop"} and len(up) > 1:
        await (brokers.kill if kind == "kill" else brokers.stop)(random.choice(up))
    elif kind == "start" and down:
        brokers.machines[random.choice(down)].start()
    elif kind == "cut":
        brokers.cut(*random.sample((1, 2, 3), 2))
    elif kind == "heal":
        brokers.network.heal()
    elif kind == "away":
        source.is_away = not source.is_away
