"""Checkpoints outlive what they tell of: another topic of the name, or a log that was cut, is not judged by them."""

import os
from pathlib import Path
from shutil import rmtree

import pytest
import trio

from tests.broker.rig import Rig, rig
from tests.broker.stored_topics import stored_topics
from warmlog.broker.log.directory.checkpoint import LOG_STARTS, RECOVERY_POINTS, read_offsets
from warmlog.broker.log.io.disk import Disk


async def offsets(rigged: Rig, name: str) -> dict[tuple[str, int], int]:
    return await trio.to_thread.run_sync(read_offsets, Disk(), str(rigged.directory / name))


async def kill(rigged: Rig, target: Path) -> None:
    """A copy of everything, as a killed broker leaves it."""
    await trio.run_process(["cp", "-r", str(rigged.directory), str(target)])
    (target / ".lock").unlink()


async def test_the_checkpoints_of_a_deleted_topic_are_forgotten_before_its_name_can_come_again(tmp_path: Path) -> None:
    async with rig(tmp_path / "a") as rigged:
        partition = await rigged.create("words")
        await rigged.append(partition, 20)
        partition.log.durability.flush()
        partition.log.truncation.advance_start(15)
        await rigged.partitions.checkpoint()
        assert await offsets(rigged, LOG_STARTS) == {("words", 0): 15}
        await rigged.partitions.delete("words")
        again = await rigged.create("words")
        assert ("words", 0) not in await offsets(rigged, LOG_STARTS)
        assert await offsets(rigged, RECOVERY_POINTS) == {("words", 0): 0}
        await rigged.append(again, 5)
        await kill(rigged, tmp_path / "b")
    async with rig(tmp_path / "b") as rigged:
        partition = rigged.partitions.get("words", 0)
        assert partition is not None
        assert (partition.log.offsets.log_start_offset, partition.log.offsets.log_end_offset) == (0, 5)


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_deletion_that_a_start_finishes_is_forgotten_by_the_checkpoints_too(
    tmp_path: Path, *, is_forgotten: bool
) -> None:
    async with rig(tmp_path / "a") as rigged:
        partition = await rigged.create("words")
        await rigged.append(partition, 20)
        partition.log.truncation.advance_start(15)
        await rigged.partitions.checkpoint()
        await kill(rigged, tmp_path / "b")
    with stored_topics(tmp_path / "b") as stored:
        stored.begin_deletion("words")
        if is_forgotten:  # by a start that came no further
            rmtree(tmp_path / "b" / "words-0")
            stored.delete("words")
    async with rig(tmp_path / "b") as rigged:
        assert not rigged.partitions.has("words")
        assert await offsets(rigged, LOG_STARTS) == {}
        await rigged.append(await rigged.create("words"), 5)
        await kill(rigged, tmp_path / "c")
    async with rig(tmp_path / "c") as rigged:
        partition = rigged.partitions.get("words", 0)
        assert partition is not None
        assert (partition.log.offsets.log_start_offset, partition.log.offsets.log_end_offset) == (0, 5)


async def test_what_was_deleted_and_lost_does_not_hide_what_is_written_in_its_place(tmp_path: Path) -> None:
    """Records up to 15 are deleted, the power is cut, and 10 are left: what is then appended stays after a kill."""
    async with rig(tmp_path / "a") as rigged:
        partition = await rigged.create("words")
        await rigged.append(partition, 10)
        size = partition.log.size
        await rigged.append(partition, 10)
        partition.log.truncation.advance_start(15)
        await rigged.partitions.checkpoint_log_starts([partition])
        await kill(rigged, tmp_path / "b")
    os.truncate(tmp_path / "b" / "words-0" / f"{0:020d}.log", size)
    async with rig(tmp_path / "b") as rigged:
        partition = rigged.partitions.get("words", 0)
        assert partition is not None
        assert (partition.log.offsets.log_start_offset, partition.log.offsets.log_end_offset) == (15, 15)
        await rigged.append(partition, 3)
        await kill(rigged, tmp_path / "c")
    async with rig(tmp_path / "c") as rigged:
        partition = rigged.partitions.get("words", 0)
        assert partition is not None
        assert (partition.log.offsets.log_start_offset, partition.log.offsets.log_end_offset) == (15, 18)


async def test_closed_segments_that_recovery_checked_are_flushed_and_can_be_compacted(tmp_path: Path) -> None:
    async with rig(tmp_path / "a") as rigged:
        await rigged.append(await rigged.create("words", segment_bytes="1000", cleanup_policy="compact"), 20)
        await kill(rigged, tmp_path / "b")
    async with rig(tmp_path / "b") as rigged:
        partition = rigged.partitions.get("words", 0)
        assert partition is not None
        assert partition.log.segment_count > 1
        await partition.appends.settled()
        assert partition.log.durability.recovery_point >= partition.log.active_base_offset
        assert partition.log.cleaning.find(None).cleanable_bytes > 0
