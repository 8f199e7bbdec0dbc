"""Retention in a broker: rounds over all logs, the roll of an active segment, files that go later."""

from pathlib import Path

import pytest
import trio
import trio.testing

from tests.broker.clients import batch
from tests.broker.rig import Rig, rig
from warmlog.broker.maintenance.retention import Retention
from warmlog.broker.maintenance.schedule import Maintenance


def retention_of(made: Rig) -> Retention:
    return Retention(made.partitions, made.unlinking, made.metrics)


async def test_a_round_removes_what_each_log_may_lose(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        small = await made.create("small", segment_bytes="400", retention_bytes="500")
        whole = await made.create("whole", segment_bytes="400", retention_bytes="500", cleanup_policy="compact")
        for partition in (small, whole):
            await made.append(partition, 10)
        await retention_of(made).check()
        assert small.log.offsets.log_start_offset == small.log.old_segments.first_base_offset == 6
        assert 500 <= small.log.size < 900
        assert whole.log.offsets.log_start_offset == 0
        assert made.metrics.removed_segments["size"].value == 3
        assert len(made.files("small", "*.log.deleted")) == 3


async def test_an_active_segment_past_its_time_is_rolled_first(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        partition = await made.create("old", retention_ms="1000")
        await made.append(partition, 5)
        made.now_ms += 1001
        retention = retention_of(made)
        await retention.check()
        assert (partition.log.offsets.log_start_offset, partition.log.size, partition.log.segment_count) == (5, 0, 1)
        assert made.files("old", "*.log") == ["00000000000000000005.log"]
        await retention.check()  # an empty one stays
        assert made.files("old", "*.log") == ["00000000000000000005.log"]
        await made.append(partition)
        assert partition.log.offsets.log_end_offset == 6
        assert made.metrics.rolls["time"].value == 1


async def test_appends_that_come_while_a_segment_is_rolled_early_decide_themselves(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        partition = await made.create("busy", retention_ms="1000")
        await made.append(partition, 5)
        made.now_ms += 2000
        rolled: list[bool] = []

        async def roll() -> None:
            rolled.append(await partition.roll())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(roll)
            while (
                not partition.appends.is_writing
            ):  # then the roll has begun, and its worker cannot have been heard yet
                await trio.lowlevel.checkpoint()
            append = partition.append(batch(b"late", timestamp=made.now_ms))
            made.writer.write_queued()
            await append.wait()
        assert append.planned.base_offset == 5
        assert rolled == [False]
        assert partition.log.segment_count == 1
        assert await partition.roll()
        await retention_of(made).check()
        assert partition.log.offsets.log_start_offset == 0  # the newest record of the first segment is not too old
        assert partition.log.segment_count == 2


async def test_files_go_after_their_delay(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with rig(tmp_path) as made:
        partition = await made.create("late", segment_bytes="400", retention_bytes="0", file_delete_delay_ms="5000")
        await made.append(partition, 4)
        retention = retention_of(made)
        await retention.check()
        for names, wait_s in ((2, 4.9), (2, 0.2), (0, 0)):
            assert len(made.files("late", "*.log.deleted")) == names
            await trio.sleep(wait_s)
            await made.unlinking.unlink_due(str(made.directory))


async def test_unlinking_rests_as_long_as_it_worked(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    # Twenty large files in a row had one core for most of a second, beside clients that ask every 2 ms.
    async with rig(tmp_path) as made:
        partition = await made.create("t", segment_bytes="400", retention_bytes="0", file_delete_delay_ms="0")
        await made.append(partition, 4)
        await retention_of(made).check()
        made.disk.at_unlink = lambda: mock_clock.jump(3)
        began_at, waiting = trio.current_time(), len(made.files("t", "*.deleted"))
        mock_clock.autojump_threshold = 0
        await made.unlinking.unlink_due(str(made.directory))
        assert waiting >= 4
        assert trio.current_time() - began_at == 2 * 3 * waiting


async def test_what_waits_for_its_delay_goes_with_its_topic(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        partition = await made.create("gone", segment_bytes="400", retention_bytes="0", file_delete_delay_ms="0")
        await made.append(partition, 4)
        retention = retention_of(made)
        await retention.check()
        await made.partitions.delete("gone")
        await made.unlinking.unlink_due(str(made.directory))
        await retention.check()


async def test_the_trouble_of_one_log_is_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(tmp_path) as made:
        for name in ("a", "b", "c"):
            await made.append(await made.create(name, segment_bytes="400", retention_bytes="0"), 4)
        made.disk.refused = "b-0/"
        await retention_of(made).check()
        assert "b-0: retention: [Errno 13] not today" in caplog.text
        for name in ("a", "c"):
            assert made.files(name, "*.log") == ["00000000000000000004.log"]


async def test_files_that_cannot_be_unlinked_keep_no_others(tmp_path: Path) -> None:
    # Everything behind them stayed until the next start.
    async with rig(tmp_path) as made:
        for name in ("a", "b"):
            settings = {"segment_bytes": "400", "retention_bytes": "0", "file_delete_delay_ms": "0"}
            await made.append(await made.create(name, **settings), 4)
        await retention_of(made).check()
        made.disk.kept = "a-0/"
        with pytest.raises(PermissionError):
            await made.unlinking.unlink_due(str(made.directory))
        assert made.files("a", "*.log.deleted")
        assert not made.files("b", "*.deleted")
        made.disk.kept = None
        await made.unlinking.unlink_due(str(made.directory))
        assert not made.files("a", "*.deleted")


async def test_a_start_that_was_moved_holds_after_a_crash(tmp_path: Path) -> None:
    """Once the checkpoint is written, whatever happens to the files."""
    async with rig(tmp_path) as made:
        partition = await made.create("t", segment_bytes="400")
        await made.append(partition, 10)
        partition.log.truncation.advance_start(6)
        await made.partitions.checkpoint_log_starts([partition])
        made.disk.refused = ".log"
        await retention_of(made).check()
        await made.partitions.checkpoint()  # the log has released two segments, whose files are still there
        made.disk.refused = None
        partition.log.close(clean=False)
        partition.log.fail("the machine stops here")
    async with rig(tmp_path) as made:
        again = made.partitions.get("t", 0)
        assert again is not None
        assert (again.log.offsets.log_start_offset, again.log.old_segments.first_base_offset) == (6, 0)
        await retention_of(made).check()
        assert again.log.old_segments.first_base_offset == 6


async def test_nothing_goes_before_the_broker_had_time_to_start(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    settings = ("log.initial.task.delay.ms=30000", "log.retention.check.interval.ms=1000")
    async with rig(tmp_path, *settings) as made:
        partition = await made.create("t", segment_bytes="400", retention_bytes="0")
        await made.append(partition, 4)
        maintenance = Maintenance(made.partitions, made.metrics, made.partitions.settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(maintenance.run)
            await trio.sleep(29.9)
            assert partition.log.offsets.log_start_offset == 0
            for end in (4, 8):
                while partition.log.offsets.log_start_offset < end:  # noqa: ASYNC110  # the clock does not wait for workers
                    await trio.sleep(0.1)
                await made.append(partition, 4)
            while made.files("t", "*.deleted"):  # noqa: ASYNC110
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
