from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.broker.sync_rig import SyncRig, sync_rig
from warmlog.broker.maintenance.flushing import Flushing
from warmlog.broker.partitions.disks.disk_workers import MAX_SYNC_THREADS
from warmlog.protocol.records.record import MAX_INT64


def flushing_of(made: SyncRig, interval_ms: int = MAX_INT64) -> Flushing:
    return Flushing([made.partition], interval_ms=interval_ms)


async def flush_due(made: SyncRig, flushing: Flushing) -> None:
    await flushing.begin_due()
    await made.partition.appends.settled()


async def test_a_log_is_synced_when_its_last_sync_is_so_long_ago(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with sync_rig(tmp_path, flush_ms=5000) as made:
        log, flushing = made.partition.log, flushing_of(made)
        await made.append(b"x")
        await trio.sleep(4.9)
        await flush_due(made, flushing)
        assert log.durability.recovery_point == 0
        await trio.sleep(0.1)
        await flush_due(made, flushing)
        assert log.durability.recovery_point == 1
        await made.append(b"x")
        await flush_due(made, flushing)
        assert log.durability.recovery_point == 1
        await trio.sleep(5)
        await flush_due(made, flushing)
        assert log.durability.recovery_point == 2


@pytest.mark.parametrize("config", [{}, {"flush_messages": 5}])
async def test_a_log_without_flush_ms_is_never_due(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, config: dict[str, Any]
) -> None:
    async with sync_rig(tmp_path, **config) as made:
        await made.append(b"x")
        await trio.sleep(80_000)
        await flush_due(made, flushing_of(made))
        assert made.disk.syncs == 0


async def test_a_clean_log_and_a_failed_one_are_left_alone(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_ms=0) as made:
        flushing = flushing_of(made)
        await flush_due(made, flushing)
        assert made.disk.syncs == 0
        await made.append(b"x")
        made.disk.fail("sync")
        await flush_due(made, flushing)
        syncs = made.disk.syncs
        await flush_due(made, flushing)
        assert made.disk.syncs == syncs


@pytest.mark.parametrize(
    ("flush_ms", "interval_ms", "interval_s"),
    [
        (MAX_INT64, MAX_INT64, 1),
        (5000, MAX_INT64, 1),
        (200, MAX_INT64, 0.2),
        (0, MAX_INT64, 0.05),
        (200, 3000, 3),
        (MAX_INT64, 10, 0.01),
    ],
)
async def test_how_often_logs_are_looked_at(tmp_path: Path, flush_ms: int, interval_ms: int, interval_s: float) -> None:
    async with sync_rig(tmp_path, flush_ms=flush_ms) as made:
        assert await flushing_of(made, interval_ms).interval_s() == interval_s


# -- rounds ------------------------------------------------------------------------------------------------------------


async def when(condition: Callable[[], bool]) -> None:
    """Return when workers have brought it about."""
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110  # nobody tells of what happens inside a worker
            await trio.sleep(0.001)


async def test_appends_to_many_logs_that_wait_share_a_round_in_a_few_threads(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        others = [made.open(f"o{number}") for number in range(20)]
        await made.append(b"x")
        rounds = made.metrics.fsync_seconds
        before = sum(rounds.counts)
        made.disk.hold()
        first = made.begin(b"x")
        await when(lambda: made.disk.at_once == 1)
        appends = [made.begin(b"x", to=other) for other in others]
        assert made.disk.at_once == 1
        made.disk.let_one_go()
        await when(lambda: made.disk.at_once > 1)
        made.disk.go_on()
        for append in [first, *appends]:
            await append.wait()
            assert append.error is None
        assert sum(rounds.counts) - before == 2
        assert 1 < made.disk.most_at_once <= MAX_SYNC_THREADS
        for other in others:
            await other.retire()
            other.log.close(clean=False)


async def test_in_a_round_of_many_each_log_has_its_own_error(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        others = [made.open(f"o{number}") for number in range(9)]
        made.disk.fail("sync")
        appends = [made.begin(b"x", to=other) for other in others]
        for append in appends:
            await append.wait()
        failed = [other.log.failed for other in others]
        assert [append.error is not None for append in appends] == failed
        assert failed.count(True) == 1
        for other in others:
            await other.retire()
            other.log.close(clean=False)


async def test_a_system_without_threads_fails_the_logs_whose_sync_it_would_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_thread(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async with sync_rig(tmp_path, flush_messages=1) as made:
        monkeypatch.setattr(trio.to_thread, "run_sync", no_thread)
        append = await made.append(b"x")
        assert "can't start new thread" in str(append.error)
        assert made.partition.log.failed
        monkeypatch.undo()
