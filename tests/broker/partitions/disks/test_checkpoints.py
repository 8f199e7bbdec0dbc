"""Checkpoints: written where something has changed, each data directory by itself, and before names are used again."""

import os
import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.broker.rig import FailingDisk, Rig, rig
from warmlog.broker.log.directory.checkpoint import (
    CLEANER_POINTS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    read_offsets,
)
from warmlog.broker.log.io.disk import Disk

CHECKPOINTS = {RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANER_POINTS}


class CountingDisk(FailingDisk):
    """Notes which files were replaced; can hold the renaming of files with some name, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced: list[str] = []
        self.held = "\0"
        self.is_holding = False
        self._go_on = threading.Event()

    def hold(self, name: str) -> None:
        self.held = name

    def go_on(self) -> None:
        self._go_on.set()

    def rename(self, source: str, target: str) -> None:
        if self.held in target:
            self.is_holding = True
            assert self._go_on.wait(20), "nobody let it go on"
        super().rename(source, target)
        self.replaced.append(os.path.basename(target))

    def take(self) -> set[str]:
        """The checkpoints that were written since this was asked last."""
        found, self.replaced = CHECKPOINTS.intersection(self.replaced), []
        return found


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


def offsets(directory: Path, name: str) -> dict[tuple[str, int], int]:
    return read_offsets(Disk(), str(directory / name))


async def test_what_has_not_changed_is_not_written_again(tmp_path: Path, disk: CountingDisk) -> None:
    async with rig(tmp_path, disk=disk) as made:
        partition = await made.create("words")
        await made.partitions.checkpoint()
        assert disk.take() == {RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS}  # also the one without entries
        await made.partitions.checkpoint()
        assert disk.take() == set()
        await made.append(partition)
        await made.partitions.checkpoint()
        assert disk.take() == {HIGH_WATERMARKS}
        partition.log.durability.flush()
        await made.partitions.checkpoint()
        assert disk.take() == {RECOVERY_POINTS}
        partition.log.truncation.advance_start(1)
        await made.partitions.checkpoint()
        assert disk.take() == {LOG_STARTS}
        made.partitions.note_cleaned(partition, 1)
        await made.partitions.checkpoint()
        assert disk.take() == {CLEANER_POINTS}
    async with rig(tmp_path, disk=disk) as made:
        disk.take()
        await made.partitions.checkpoint()
        assert disk.take() == set()


async def test_a_checkpoint_that_could_not_be_written_is_written_by_the_next_attempt(
    tmp_path: Path, disk: CountingDisk
) -> None:
    async with rig(tmp_path, disk=disk) as made:
        partition = await made.create("words")
        await made.append(partition, 5)
        partition.log.durability.flush()
        disk.refused = RECOVERY_POINTS
        with pytest.raises(PermissionError):
            await made.partitions.checkpoint()
        disk.refused = None
        await made.partitions.checkpoint()
        assert offsets(tmp_path, RECOVERY_POINTS) == {("words", 0): 5}


async def test_a_directory_whose_checkpoints_fail_does_not_keep_the_others(tmp_path: Path, disk: CountingDisk) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    async with rig(first, others=[second], disk=disk) as made:
        await made.partitions.create("words", 4)
        disk.refused = str(first)
        with pytest.raises(PermissionError):
            await made.partitions.checkpoint()
        disk.refused = None
        assert not (first / HIGH_WATERMARKS).exists()
        assert len(offsets(second, HIGH_WATERMARKS)) == 2


async def test_a_directory_whose_disk_hangs_does_not_keep_the_others(tmp_path: Path, disk: CountingDisk) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    async with rig(first, others=[second], disk=disk) as made:
        await made.partitions.create("words", 4)
        disk.hold(f"{first}/")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.partitions.checkpoint, str(first))
            await holding(disk)
            await made.partitions.checkpoint(str(second))
            assert len(offsets(second, HIGH_WATERMARKS)) == 2
            assert not (first / HIGH_WATERMARKS).exists()
            disk.go_on()


async def holding(disk: CountingDisk) -> None:
    while not disk.is_holding:  # noqa: ASYNC110  # nobody tells of what happens inside a worker
        await trio.sleep(0.001)


async def test_deleting_topics_writes_no_checkpoint_and_their_names_come_again_without_one(
    tmp_path: Path, disk: CountingDisk
) -> None:
    async with rig(tmp_path, disk=disk) as made:
        names = [f"t{number}" for number in range(20)]
        await made.partitions.create_all([made.partitions.plan_topic(name, 2) for name in names])
        await made.partitions.checkpoint()
        disk.take()
        assert await made.partitions.delete_all(names) == {}
        assert disk.take() == set()
        await made.create("other")
        assert disk.take() == {RECOVERY_POINTS}
        await made.create("t3")
        assert set(offsets(tmp_path, RECOVERY_POINTS)) == {("other", 0), ("t3", 0)}


async def test_a_checkpoint_that_is_being_written_says_nothing_of_a_name_that_comes_again(
    tmp_path: Path, disk: CountingDisk
) -> None:
    async with rig(tmp_path, disk=disk) as made:
        partition = await made.create("words")
        await made.append(partition, 20)
        partition.log.durability.flush()
        disk.hold(RECOVERY_POINTS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.partitions.checkpoint)
            await holding(disk)
            await made.partitions.delete("words")
            nursery.start_soon(made.create, "words")
            await trio.testing.wait_all_tasks_blocked()
            disk.go_on()
        assert offsets(tmp_path, RECOVERY_POINTS) == {("words", 0): 0}


async def test_records_that_users_delete_are_written_down_where_they_lie(tmp_path: Path, disk: CountingDisk) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    async with rig(first, others=[second], disk=disk) as made:
        await made.partitions.create("words", 2)
        for index in range(2):
            await advance(made, index)
        assert {len(offsets(each, LOG_STARTS)) for each in (first, second)} == {1}


async def advance(made: Rig, index: int) -> None:
    partition = made.partitions.require("words", index)
    await made.append(partition, 3)
    partition.log.truncation.advance_start(2)
    await made.partitions.checkpoint_log_starts([partition])
