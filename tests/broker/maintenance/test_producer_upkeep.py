"""Idempotent producers of a broker: forgotten when they expire, and where there are too many, but never at work."""

import logging
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client import generate_latest

from tests.broker.clients import running
from tests.broker.rig import START_MS, Rig, rig
from warmlog.broker.log.errors import TooManyProducersError
from warmlog.broker.log.producers.idle import ProducerBudget
from warmlog.broker.log.producers.table import MAX_ACTIVE
from warmlog.broker.maintenance.producer_upkeep import PAUSE_S, ProducerUpkeep
from warmlog.broker.maintenance.schedule import Maintenance
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.builder import build_batch

HOUR_MS = 3_600_000
LIMIT = 100
SETTINGS = ("producer.id.expiration.ms=86400000", "warmlog.producers.min.idle.ms=3600000")


async def write(made: Rig, partition: Partition, *producer_ids: int, sequence: int = 0) -> None:
    for producer_id in producer_ids:
        rows = [(START_MS, None, b"v", ())]
        partition.append(build_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence))
    await partition.appends.settled()


def known(partition: Partition) -> set[int]:
    return {state.producer_id for state in partition.log.producers.capture()}


def upkeep_of(made: Rig, limit: int = LIMIT) -> ProducerUpkeep:
    made.partitions.producer_budget.limit = limit
    return ProducerUpkeep(made.partitions, made.metrics)


async def test_producers_are_forgotten_when_they_have_been_idle_for_their_time(tmp_path: Path) -> None:
    async with rig(tmp_path, *SETTINGS) as made:
        partition = await made.create("words")
        upkeep = upkeep_of(made, 10 * MAX_ACTIVE)
        await write(made, partition, *range(3 * MAX_ACTIVE))
        for _ in range(3):
            await upkeep.forget_expired()
        made.now_ms += 23 * HOUR_MS
        await write(made, partition, 7, sequence=1)
        await upkeep.forget_expired()
        assert len(known(partition)) == 3 * MAX_ACTIVE
        made.now_ms += HOUR_MS
        await upkeep.forget_expired()
        assert known(partition) == {7}
        assert made.partitions.producer_budget.count == 1


async def test_those_that_are_idle_longest_make_room_on_all_partitions(tmp_path: Path) -> None:
    async with rig(tmp_path, *SETTINGS) as made:
        one, other = await made.create("one"), await made.create("other")
        upkeep = upkeep_of(made)
        await write(made, one, *range(20))
        await write(made, other, *range(20, 40))
        await upkeep.forget_expired()
        await upkeep.forget_expired()
        made.now_ms += 5 * HOUR_MS
        await write(made, one, *range(40, 89))
        await upkeep.evict_idle()
        assert made.partitions.producer_budget.count == 89  # there is room
        await write(made, other, 89)
        await upkeep.evict_idle()
        assert made.partitions.producer_budget.count == 80
        assert known(one) | known(other) >= set(range(40, 90))


async def test_where_nobody_has_been_idle_for_long_enough_new_producers_are_refused_until_somebody_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    async with rig(tmp_path, *SETTINGS) as made:
        partition = await made.create("words")
        upkeep = upkeep_of(made)
        await write(made, partition, *range(LIMIT))
        await upkeep.evict_idle()
        assert len(known(partition)) == LIMIT
        with pytest.raises(TooManyProducersError):
            await write(made, partition, LIMIT)
        await write(made, partition, 0, sequence=1)  # who is known goes on
        await upkeep.evict_idle()
        assert "rejecting new idempotent producers: 100 are kept, and none has been idle for 3600 s" in caplog.text
        assert "\nwarmlog_refused_producers_total 1.0" in generate_latest(made.metrics.registry).decode()
        assert "\nwarmlog_producers 100.0" in generate_latest(made.metrics.registry).decode()
        await trio.sleep(PAUSE_S)
        await upkeep.evict_idle()  # they rest from here on
        await upkeep.forget_expired()
        made.now_ms += HOUR_MS
        await trio.sleep(PAUSE_S)
        with caplog.at_level(logging.WARNING):
            await upkeep.evict_idle()
        assert made.partitions.producer_budget.count == 80
        await write(made, partition, LIMIT)
        assert LIMIT in known(partition)


async def test_a_broker_makes_room_by_itself(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    settings = ("producer.id.expiration.check.interval.ms=600000", *SETTINGS)
    async with rig(tmp_path, *settings) as made:
        partition = await made.create("words")
        made.partitions.producer_budget.limit = LIMIT
        await write(made, partition, *range(LIMIT))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Maintenance(made.partitions, made.metrics, made.partitions.settings).run)
            await trio.sleep(1300)  # two checks
            made.now_ms += HOUR_MS
            await trio.sleep(PAUSE_S + 2)
            nursery.cancel_scope.cancel()
        assert made.partitions.producer_budget.count == 80


async def test_what_a_deleted_topic_knew_is_room_for_others(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await write(made, await made.create("words"), *range(50))
        assert made.partitions.producer_budget.count == 50
        await made.partitions.delete("words")
        assert made.partitions.producer_budget.count == 0


async def test_a_restart_counts_what_the_snapshots_say(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await write(made, await made.create("words"), *range(50))
    async with rig(tmp_path) as made:
        assert made.partitions.producer_budget.count == 50
        await write(made, made.partitions.require("words", 0), 3, sequence=1)
        assert made.partitions.producer_budget.count == 50


async def test_a_client_is_told_that_there_is_no_room_for_its_producer(tmp_path: Path) -> None:
    def records(producer_id: int, sequence: int = 0) -> bytes:
        rows = [(START_MS, None, b"v", ())]
        return build_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)

    async with running(tmp_path, {"warmlog.producers.max": 2}) as broker:
        client = await broker.connect()
        await client.create("orders")
        for producer_id in (1, 2):
            assert (await client.produce("orders", records(producer_id))).error is ErrorCode.NONE
        refused: Any = await client.produce("orders", records(3))
        assert refused.error is ErrorCode.POLICY_VIOLATION
        assert "raise warmlog.producers.max" in refused.message
        again: Any = await client.produce("orders", records(1))
        assert (again.error, again.base_offset) == (ErrorCode.NONE, 0)
        assert (await client.produce("orders", records(1, 1))).base_offset == 2


def test_a_budget_counts_from_any_thread() -> None:
    budget = ProducerBudget(2)
    budget.add(3)
    assert budget.is_full
    budget.add(-2)
    assert not budget.is_full
