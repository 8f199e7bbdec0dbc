"""Failed logs come back by themselves, while others go on."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.broker.clients import batch
from tests.broker.sync_rig import SyncRig, sync_rig
from warmlog.broker.log.errors import LogFailedError
from warmlog.broker.maintenance.failed_logs import FIRST_PAUSE_S, MAX_AT_ONCE, MAX_PAUSE_S, FailedLogs
from warmlog.broker.partitions.reads.waiters import FetchWaiter


def failed_logs_of(made: SyncRig, *others: object) -> FailedLogs:
    return FailedLogs([made.partition, *others], made.metrics)  # type: ignore[list-item]


async def failed(made: SyncRig) -> None:
    """Let the sync of an append fail, after one that was good."""
    await made.append(b"good")
    made.disk.fail("sync")
    assert (await made.append(b"in doubt")).error is not None


async def test_a_log_that_failed_is_in_service_again_and_what_was_in_doubt_is_durable(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        await failed(made)
        woken = trio.Event()
        waiter = FetchWaiter(1, woken.set)
        made.partition.enlist(waiter)
        await failed_logs_of(made).check()
        await woken.wait()
        made.partition.dismiss(waiter)
        log = made.partition.log
        assert (log.failed, log.durability.recovery_point, log.offsets.high_watermark, log.offsets.log_end_offset) == (
            False,
            2,
            2,
            2,
        )
        assert made.readable() == [0, 1]
        append = await made.append(b"after")
        assert (append.error, append.planned.base_offset) == (None, 2)
        assert (made.metrics.log_failures.value, made.metrics.reopened_logs.value) == (1, 1)


async def test_a_log_that_failed_by_a_write_comes_back(tmp_path: Path) -> None:
    async with sync_rig(tmp_path) as made:
        await made.append(b"good")
        made.disk.fail("pwritev", errno.EIO)
        assert (await made.append(b"not written")).error is not None
        with pytest.raises(LogFailedError):
            made.partition.append(batch(b"x"))
        await failed_logs_of(made).check()
        assert (await made.append(b"after")).planned.base_offset == 1
        assert made.readable() == [0, 1]


async def test_a_failure_is_reported_before_the_log_is_rebuilt_and_again_afterwards(tmp_path: Path) -> None:
    async with sync_rig(tmp_path) as made:
        await made.append(b"good")
        await made.append(b"lost")
        log = made.partition.log
        os.truncate(next(log.directory.glob("*.log")), log.size - 1)
        log.fail("for a test")
        seen: list[tuple[bool, int]] = []
        made.partition.on_health = lambda: seen.append((log.failed, log.offsets.log_end_offset))
        await failed_logs_of(made).check()
        assert seen == [(True, 2), (False, 1)]
        assert log.offsets.log_end_offset == 1


async def test_failure_and_return_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        await failed(made)
        failed_logs = failed_logs_of(made)
        caplog.clear()
        await failed_logs.check()
        await failed_logs.check()
        told = [
            (record.levelname, record.message)
            for record in caplog.records
            if record.name == "warmlog.broker.maintenance.failed_logs"
        ]
        assert told[0] == (
            "ERROR",
            "t-0: log failed; rejecting appends until it is rebuilt: [Errno 5] Input/output error",
        )
        assert told[1][1].startswith("t-0: log rebuilt, accepting appends again: copied and flushed 148 bytes in ")
        assert len(told) == 2


async def test_attempts_become_rarer_and_others_have_their_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with sync_rig(tmp_path, flush_messages=1) as made:
        other = made.open("other")
        await failed(made)
        made.disk.fail("create", *[errno.EIO] * 8)
        failed_logs = failed_logs_of(made, other)
        attempts = []
        for second in range(400):
            before = len(made.disk.failures["create"])
            await failed_logs.check()
            if len(made.disk.failures["create"]) < before:
                attempts.append(second)
            if not made.partition.log.failed:
                break
            await trio.sleep(1)
        assert attempts == [0, 1, 3, 7, 15, 31, 63, 123]
        assert second == 183
        assert (await made.append(b"after")).error is None
        assert FIRST_PAUSE_S == 1
        assert MAX_PAUSE_S == 60
        assert made.begin(b"x", to=other).error is None
        await other.retire()
        other.log.close(clean=False)


async def test_a_log_that_fails_again_at_once_waits_and_one_that_held_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with sync_rig(tmp_path, flush_messages=1) as made:
        failed_logs = failed_logs_of(made)
        await failed(made)
        await failed_logs.check()
        made.disk.fail("sync")
        await made.append(b"x")
        await failed_logs.check()
        assert made.partition.log.failed
        await trio.sleep(1)
        await failed_logs.check()
        assert not made.partition.log.failed
        await trio.sleep(100)
        await failed_logs.check()
        made.disk.fail("sync")
        await made.append(b"x")
        await failed_logs.check()
        assert not made.partition.log.failed


async def test_appends_that_were_queued_when_the_log_failed_are_told_before_it_comes_back(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        await made.append(b"good")
        made.disk.fail("sync")
        made.disk.hold()
        first = made.begin(b"x")
        second = made.begin(b"y")
        made.disk.go_on()
        await first.wait()
        await failed_logs_of(made).check()
        await second.wait()
        assert first.error is not None
        assert second.error is not None
        assert (made.partition.log.failed, made.partition.log.durability.recovery_point) == (False, 3)


async def test_a_sync_that_began_before_the_failure_is_over_before_the_log_comes_back(tmp_path: Path) -> None:
    async with sync_rig(tmp_path) as made:
        await made.append(b"x")
        made.disk.hold()
        made.disk.fail("sync")
        async with trio.open_nursery() as nursery:
            made.partition.disk.flush_by_time([made.partition.appends.flushes])
            await when(lambda: made.disk.at_once == 1)
            made.partition.log.fail("something else")
            nursery.start_soon(failed_logs_of(made).check)
            await trio.testing.wait_all_tasks_blocked()
            assert made.partition.log.failed
            made.disk.go_on()
        assert not made.partition.log.failed
        assert made.partition.log.durability.recovery_point == 1


async def test_a_log_that_is_back_is_left_alone_though_its_epochs_could_not_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    """It is cut, and so begins an epoch; another attempt would find nothing failed, again and again."""
    async with sync_rig(tmp_path, flush_messages=1) as made:
        await failed(made)
        failed_logs = failed_logs_of(made)
        with made.partition.log.directory.joinpath(f"{0:020d}.log").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"?")
        made.partition.log.directory.joinpath("leader-epoch-checkpoint.tmp").mkdir()
        await failed_logs.check()
        assert (made.partition.log.failed, made.partition.log.epochs.current) == (False, 1)
        assert (made.metrics.log_failures.value, made.metrics.reopened_logs.value) == (1, 1)
        caplog.clear()
        await trio.sleep(2 * FIRST_PAUSE_S)
        await failed_logs.check()
        assert caplog.records == []


async def test_a_retention_or_compaction_under_way_gives_way(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        await failed(made)
        failed_logs = failed_logs_of(made)
        with made.partition.rearranging() as scope:
            assert scope is not None
            await failed_logs.check()
            assert scope.cancel_called
        assert made.partition.log.failed
        await failed_logs.check()
        assert not made.partition.log.failed


async def test_a_partition_that_is_to_go_does_not_wait_for_a_copy(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        await failed(made)
        made.disk.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failed_logs_of(made).check)
            await when(lambda: made.disk.at_once == 1)
            nursery.start_soon(made.partition.retire)
            await trio.testing.wait_all_tasks_blocked()
            made.disk.go_on()
        assert [path for path in (tmp_path / "t-0").iterdir() if path.suffix == ".cleaned"] == []


async def test_readers_and_other_logs_go_on_while_a_log_is_made_anew(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        other = made.open("other")
        await failed(made)
        made.disk.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failed_logs_of(made).check)
            await when(lambda: made.disk.at_once == 1)
            assert made.readable() == [0]
            append = made.begin(b"x", to=other)
            assert not append.done
            made.disk.go_on()
        await append.wait()
        assert append.error is None
        await other.retire()
        other.log.close(clean=False)


async def test_a_hanging_disk_holds_up_no_log_of_another_one(tmp_path: Path) -> None:
    hung, sound = tmp_path / "hung", tmp_path / "sound"
    hung.mkdir()
    sound.mkdir()
    async with sync_rig(hung, flush_messages=1) as hanging, sync_rig(sound, flush_messages=1) as made:
        more = [hanging.open(f"more-{at}") for at in range(MAX_AT_ONCE)]
        partitions = [hanging.partition, *more, made.partition]
        for partition in partitions:
            partition.log.fail("its disk")
        hanging.disk.hold()
        failed_logs = FailedLogs(partitions, made.metrics)
        async with trio.open_nursery() as nursery:
            await failed_logs.begin(nursery)
            await when(lambda: hanging.disk.at_once == MAX_AT_ONCE)
            await failed_logs.begin(nursery)
            await when(lambda: not made.partition.log.failed)
            assert all(partition.log.failed for partition in partitions[:-1])
            hanging.disk.go_on()
        assert not any(partition.log.failed for partition in partitions)
        for partition in more:
            await partition.retire()
            partition.log.close(clean=False)


async def when(condition: Callable[[], bool]) -> None:
    """Return when workers have brought it about."""
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110  # nobody tells of what happens inside a worker
            await trio.sleep(0.001)
