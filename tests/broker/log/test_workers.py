"""What may run in a worker beside the loop's appends and reads: writes, rolls, syncs, time searches, rebuilds."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from warmlog.broker.log.partition_log import PartitionLog

Batch = Callable[..., bytes]
Bench = Any
OffsetsIn = Callable[..., list[int]]

START_MS = 1_700_000_000_000


def search_times(log: PartitionLog, rounds: int) -> int:
    """Ask for times of records that are there; gives how many answers were right."""
    random = Random(5)
    right = 0
    for _ in range(rounds):
        end = log.offsets.log_end_offset
        offset = random.randrange(end)
        found = log.reads.offset_for_time(START_MS + offset)
        right += found is not None and (found.offset, found.timestamp) == (offset, START_MS + offset)
        assert len(log.reads.describe().segments) > 0
    return right


@pytest.mark.parametrize("files_limit", [2, 100])
def test_time_searches_are_right_while_the_loop_appends_and_rolls(
    bench: Bench, batch: Batch, offsets_in: OffsetsIn, files_limit: int
) -> None:
    bench.files.limit = files_limit
    log = bench.open(segment_bytes=20 * len(batch()), index_interval_bytes=300)
    log.appends.append(batch(timestamp=START_MS))
    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(search_times, log, 150) for _ in range(2)]
        rolls: list[Future[None]] = []
        for offset in range(1, 1500):
            planned = log.appends.plan(batch(timestamp=START_MS + offset))
            if planned.roll is not None:
                rolls.append(pool.submit(log.rolls.finish, log.rolls.commit(log.rolls.prepare(planned))))
            log.appends.write([planned])
            log.appends.commit([planned])
            assert log.reads.read(offset, 100).position == planned.position
        assert [search.result() for search in searches] == [150, 150]
        for roll in rolls:
            roll.result()
    assert offsets_in(log) == list(range(1500))


def test_reads_go_on_while_a_worker_writes(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open()
    with ThreadPoolExecutor(1) as pool:
        for round_number in range(30):
            group = [log.appends.plan(batch(3)) for _ in range(10)]
            writing = pool.submit(log.appends.write, group)
            queued = log.appends.plan(batch(3))
            while not writing.done():
                assert offsets_in(log) == list(range(33 * round_number))
            writing.result()
            log.appends.commit(group)
            log.appends.write([queued])
            log.appends.commit([queued])
    assert offsets_in(log) == list(range(33 * 30))


def test_syncs_and_rebuilds_beside_appends(bench: Bench, batch: Batch, offsets_in: OffsetsIn) -> None:
    log = bench.open(segment_bytes=20 * len(batch()))
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            plan = log.durability.begin_flush()
            syncing = pool.submit(plan.sync)
            rebuilding = pool.submit(log.reads.rebuild_indexes, 0)
            for _ in range(20):
                log.appends.append(batch(timestamp=START_MS + log.offsets.log_end_offset))
            syncing.result()
            rebuilding.result()
            log.durability.finish_flush(plan)
            assert log.durability.recovery_point >= plan.offset
    assert offsets_in(log) == list(range(400))
