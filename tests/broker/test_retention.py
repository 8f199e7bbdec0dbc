"""Retention in a broker: rounds over all logs, the roll of an active segment, files that go later."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from broker.config import load_settings
from broker.log.data_directory import DataDirectory
from broker.log.disk import Disk
from broker.log.files import OpenFiles
from broker.maintenance import Maintenance
from broker.metadata.sqlite import SqliteMetadataStore
from broker.metrics import Metrics
from broker.partition import Partition
from broker.partitions import Partitions, Storage
from broker.retention import Retention
from broker.writer import Writer
from tests.broker.clients import batch

START_MS = 1_700_000_000_000


class FailingDisk(Disk):
    """Cannot rename what has this in its path."""

    def __init__(self) -> None:
        self.refused: str | None = None

    def rename(self, source: str, target: str) -> None:
        if self.refused is not None and self.refused in source:
            raise PermissionError(13, "not today")
        super().rename(source, target)


@dataclass
class Rig:
    """The partitions of a broker without its listeners."""

    partitions: Partitions
    writer: Writer
    metrics: Metrics
    disk: FailingDisk
    directory: Path
    now_ms: int = START_MS

    async def create(self, name: str, **configs: str) -> Partition:
        await self.partitions.create(name, 1, {key.replace("_", "."): value for key, value in configs.items()})
        partition = self.partitions.get(name, 0)
        assert partition is not None
        return partition

    async def append(self, partition: Partition, count: int = 1, timestamp: int = START_MS) -> None:
        for _ in range(count):
            append = partition.append(batch(b"v" * 100, timestamp=timestamp))
            self.writer.write_queued()
            await append.wait()
        await partition.settled()

    def files(self, topic: str, pattern: str) -> list[str]:
        return sorted(path.name for path in (self.directory / f"{topic}-0").glob(pattern))


@asynccontextmanager
async def rig(directory: Path, *assignments: str) -> AsyncIterator[Rig]:
    settings, metrics, disk = load_settings(assignments=assignments), Metrics(), FailingDisk()
    with DataDirectory.open(directory, node_id=1, disk=disk) as data:
        store = SqliteMetadataStore(directory / "metadata.sqlite")
        async with trio.open_nursery() as nursery:
            writer = Writer(nursery=nursery, metrics=metrics, loop_write_max_bytes=1 << 16)
            storage = Storage(
                directory=data, files=OpenFiles(disk=disk), store=store, clock=lambda: made.now_ms, random=Random(1)
            )
            partitions = Partitions(storage, settings, writer, metrics)
            made = Rig(partitions, writer, metrics, disk, directory)
            await partitions.open_all()
            yield made
            await partitions.close_all()
        store.close()


async def test_a_round_removes_what_each_log_may_lose(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        small = await made.create("small", segment_bytes="400", retention_bytes="500")
        whole = await made.create("whole", segment_bytes="400", retention_bytes="500", cleanup_policy="compact")
        for partition in (small, whole):
            await made.append(partition, 10)
        await Retention(made.partitions, made.metrics).check()
        assert small.log.log_start_offset == small.log.first_base_offset == 6
        assert 500 <= small.log.size < 900
        assert whole.log.log_start_offset == 0
        assert made.metrics.removed_segments["size"].value == 3
        assert len(made.files("small", "*.deleted")) == 9


async def test_an_active_segment_past_its_time_is_rolled_first(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        partition = await made.create("old", retention_ms="1000")
        await made.append(partition, 5)
        made.now_ms += 1001
        retention = Retention(made.partitions, made.metrics)
        await retention.check()
        assert (partition.log.log_start_offset, partition.log.size, partition.log.segment_count) == (5, 0, 1)
        assert made.files("old", "*.log") == ["00000000000000000005.log"]
        await retention.check()  # an empty one stays
        assert made.files("old", "*.log") == ["00000000000000000005.log"]
        await made.append(partition)
        assert partition.log.log_end_offset == 6
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
            while not partition._writing:  # then the roll has begun, and its worker cannot have been heard yet
                await trio.lowlevel.checkpoint()
            append = partition.append(batch(b"late", timestamp=made.now_ms))
            made.writer.write_queued()
            await append.wait()
        assert append.planned.base_offset == 5
        assert rolled == [False]
        assert partition.log.segment_count == 1
        assert await partition.roll()
        await Retention(made.partitions, made.metrics).check()
        assert partition.log.log_start_offset == 0  # the newest record of the first segment is not too old
        assert partition.log.segment_count == 2


async def test_files_go_after_their_delay(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with rig(tmp_path) as made:
        partition = await made.create("late", segment_bytes="400", retention_bytes="0", file_delete_delay_ms="5000")
        await made.append(partition, 4)
        retention = Retention(made.partitions, made.metrics)
        await retention.check()
        for names, wait_s in ((6, 4.9), (6, 0.2), (0, 0)):
            assert len(made.files("late", "*.deleted")) == names
            await trio.sleep(wait_s)
            await retention.unlink_due()


async def test_what_waits_for_its_delay_goes_with_its_topic(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        partition = await made.create("gone", segment_bytes="400", retention_bytes="0", file_delete_delay_ms="0")
        await made.append(partition, 4)
        retention = Retention(made.partitions, made.metrics)
        await retention.check()
        await made.partitions.delete("gone")
        await retention.unlink_due()
        await retention.check()


async def test_the_trouble_of_one_log_is_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(tmp_path) as made:
        for name in ("a", "b", "c"):
            await made.append(await made.create(name, segment_bytes="400", retention_bytes="0"), 4)
        made.disk.refused = "b-0/"
        await Retention(made.partitions, made.metrics).check()
        assert "b-0: retention: [Errno 13] not today" in caplog.text
        for name in ("a", "c"):
            assert made.files(name, "*.log") == ["00000000000000000004.log"]


async def test_a_start_that_was_moved_holds_after_a_crash(tmp_path: Path) -> None:
    """Once the checkpoint is written, whatever happens to the files."""
    async with rig(tmp_path) as made:
        partition = await made.create("t", segment_bytes="400")
        await made.append(partition, 10)
        partition.log.advance_start(6)
        await made.partitions.checkpoint_log_starts()
        made.disk.refused = ".log"
        await Retention(made.partitions, made.metrics).check()
        await made.partitions.checkpoint()  # the log has let go of two segments, whose files are still there
        made.disk.refused = None
        partition.log.close(clean=False)
        partition.log.fail("the machine stops here")
    async with rig(tmp_path) as made:
        again = made.partitions.get("t", 0)
        assert again is not None
        assert (again.log.log_start_offset, again.log.first_base_offset) == (6, 0)
        await Retention(made.partitions, made.metrics).check()
        assert again.log.first_base_offset == 6


async def test_nothing_goes_before_the_broker_had_time_to_start(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    settings = ("log.initial.task.delay.ms=30000", "log.retention.check.interval.ms=1000")
    async with rig(tmp_path, *settings) as made:
        partition = await made.create("t", segment_bytes="400", retention_bytes="0")
        await made.append(partition, 4)
        maintenance = Maintenance(made.partitions, made.writer, made.metrics, made.partitions.settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(maintenance.run)
            await trio.sleep(29.9)
            assert partition.log.log_start_offset == 0
            for end in (4, 8):
                while partition.log.log_start_offset < end:  # noqa: ASYNC110  # the clock does not wait for workers
                    await trio.sleep(0.1)
                await made.append(partition, 4)
            while made.files("t", "*.deleted"):  # noqa: ASYNC110
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
