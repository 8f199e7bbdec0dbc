"""Data directories do not wait for each other: one disk hangs, and what is written and synced on another goes on."""

import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import trio
import trio.testing

from tests.broker.clients import batch
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.maintenance.flushing import Flushing
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partition import Append, Partition
from warmlog.protocol.records.record import MAX_INT64

MANY = 60  # logs that hang: more than there are threads of any kind


class TwoDisks(Disk):
    """Below the path that hangs, syncs wait, and so does the making of files unless only syncs are to."""

    def __init__(self, hanging: Path) -> None:
        self._hanging = str(hanging)
        self._paths: dict[int, str] = {}
        self._lock = threading.Lock()
        self._go_on = threading.Event()
        self._go_on.set()
        self._only_syncs = False
        self.waiting = 0

    def hang(self, *, only_syncs: bool = False) -> None:
        self._only_syncs = only_syncs
        self._go_on.clear()

    def go_on(self) -> None:
        self._go_on.set()

    def _wait(self, path: str) -> None:
        if not path.startswith(self._hanging):
            return
        with self._lock:
            self.waiting += 1
        try:
            assert self._go_on.wait(20), "nobody let the disk go on: something waits for it that must not"
        finally:
            with self._lock:
                self.waiting -= 1

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_CREAT and not self._only_syncs:
            self._wait(path)
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def sync(self, fd: int) -> None:
        self._wait(self._paths[fd])
        super().sync(fd)


class Rig:
    """Logs in two data directories, `slow` and `fast`, behind one writer."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.disk = TwoDisks(directory / "slow")
        self.metrics = Metrics()
        self.writer = Writer(nursery=nursery, metrics=self.metrics, loop_write_max_bytes=64 << 10)
        self.partitions: list[Partition] = []
        self._directory = directory
        self._files = OpenFiles(disk=self.disk)

    def open(self, where: str, topic: str, **config: Any) -> Partition:
        log = PartitionLog.open(
            self._directory / where / f"{topic}-0",
            topic=topic,
            partition=0,
            config=LogConfig(**config),
            files=self._files,
            clock=lambda: 0,
            random=Random(0),
            clean=True,
        )
        partition = Partition(log, self.writer)
        self.partitions.append(partition)
        return partition

    def begin(self, partition: Partition, size: int = 1) -> Append:
        """Append and write, without waiting."""
        append = partition.append(batch(b"x" * size))
        self.writer.write_queued()
        return append

    async def append(self, partition: Partition, size: int = 1) -> None:
        append = self.begin(partition, size)
        await append.wait()
        assert append.error is None

    async def hangs(self, count: Callable[[int], bool]) -> None:
        """Return once so many of the slow disk's operations wait."""
        while not count(self.disk.waiting):  # noqa: ASYNC110  # nobody tells of what happens inside a worker
            await trio.sleep(0.001)


@asynccontextmanager
async def rig(directory: Path) -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        made = Rig(directory, nursery)
        try:
            yield made
        finally:
            made.disk.go_on()
        for partition in made.partitions:
            await partition.retire()
            partition.log.close(clean=False)


async def test_a_synced_append_does_not_wait_for_another_disks_sync(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        slow = made.open("slow", "s", flush_messages=1)
        fast = made.open("fast", "f", flush_messages=1)
        made.disk.hang()
        stuck = made.begin(slow)
        await made.hangs(lambda waiting: waiting == 1)
        for _ in range(3):
            await made.append(fast)
        assert made.disk.waiting == 1
        assert not stuck.done
        made.disk.go_on()
        await stuck.wait()
        assert stuck.error is None


async def test_appends_large_ones_and_rolls_do_not_wait_for_the_rolls_of_another_disk(tmp_path: Path) -> None:
    """Beginning a segment and finishing the one before both wait for a disk, each in threads of its own."""
    async with rig(tmp_path) as made:
        slow = [made.open("slow", f"s{number}", segment_bytes=300_000) for number in range(MANY)]
        fast = made.open("fast", "f", segment_bytes=300_000)
        for partition in [*slow, fast]:
            await made.append(partition, 200_000)
        made.disk.hang()
        stuck = [made.begin(partition, 200_000) for partition in slow]
        await made.hangs(bool)
        for _ in range(3):
            await made.append(fast, 200_000)
        await fast.appends.settled()
        assert fast.log.segment_count == 4
        assert fast.log.durability.recovery_point == 3
        assert made.disk.waiting
        assert not any(append.done for append in stuck)
        made.disk.go_on()
        for append in stuck:
            await append.wait()
            assert append.error is None


async def test_the_ends_of_rolls_do_not_hold_up_writes_on_their_own_disk(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        rolling = [made.open("slow", f"s{number}", segment_bytes=300_000) for number in range(MANY)]
        other = made.open("slow", "other")
        for partition in [*rolling, other]:
            await made.append(partition, 200_000)
            await partition.appends.settled()  # the first roll is announced
        made.disk.hang(only_syncs=True)
        for partition in rolling:
            await made.append(partition, 200_000)
        await made.hangs(bool)
        await made.append(other, 200_000)
        assert made.disk.waiting


async def test_a_sync_by_time_does_not_wait_for_another_disk(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        slow, fast = made.open("slow", "s", flush_ms=0), made.open("fast", "f", flush_ms=0)
        flushing = Flushing(made.partitions, interval_ms=MAX_INT64)
        made.disk.hang()
        for end in range(1, 4):
            await made.append(slow)
            await made.append(fast)
            await flushing.begin_due()
            await fast.appends.settled()
            assert fast.log.durability.recovery_point == end
        await made.hangs(lambda count: count == 1)
        assert slow.log.durability.recovery_point == 0
        made.disk.go_on()
        await slow.appends.settled()
        assert slow.log.durability.recovery_point == 1
