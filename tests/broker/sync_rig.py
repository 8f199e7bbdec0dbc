"""One partition on a disk whose syncs wait until the test lets them go on, or fail: for what a sync changes."""

import errno
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import trio

from tests.broker.clients import batch
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partition import Append, Partition
from warmlog.protocol.records.batch import headers


class SyncDisk(Disk):
    """Syncs of files can be held, and made to fail; they and their threads are counted."""

    def __init__(self) -> None:
        self.syncs = 0
        self.at_once = self.most_at_once = 0
        self.failures: dict[str, list[int]] = {}  # of a verb: the errors of the next calls
        self.synced_directories: list[str] = []
        self._open = threading.Event()
        self._open.set()
        self._turns = threading.Semaphore(0)  # those that may go on although the others wait
        self._lock = threading.Lock()

    def hold(self) -> None:
        """Let syncs wait from now on."""
        self._open.clear()

    def let_one_go(self) -> None:
        """Let one of those that wait do its work."""
        self._turns.release()

    def go_on(self) -> None:
        """Let those that wait, and those to come, do their work."""
        self._open.set()

    def fail(self, verb: str, *codes: int) -> None:
        """Let the next calls of a verb fail."""
        self.failures.setdefault(verb, []).extend(codes or (errno.EIO,))

    def _check(self, verb: str) -> None:
        with self._lock:
            pending = self.failures.get(verb)
            code = pending.pop(0) if pending else 0
        if code:
            raise OSError(code, os.strerror(code))

    def _await_turn(self) -> None:
        for _ in range(3000):
            if self._open.wait(0.01) or self._turns.acquire(blocking=False):
                return
        raise AssertionError("the test forgot to let a sync go on")

    def sync(self, fd: int) -> None:
        with self._lock:
            self.syncs += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self._await_turn()
            self._check("sync")
            super().sync(fd)
        finally:
            with self._lock:
                self.at_once -= 1

    def sync_directory(self, path: str) -> None:
        self.synced_directories.append(path)
        self._check("sync_directory")
        super().sync_directory(path)

    def pwritev(self, fd: int, buffers: "Sequence[bytes | bytearray | memoryview]", position: int) -> int:
        self._check("pwritev")
        return super().pwritev(fd, buffers, position)

    def truncate(self, fd: int, size: int) -> None:
        self._check("truncate")
        super().truncate(fd, size)

    def rename(self, source: str, target: str) -> None:
        self._check("rename")
        super().rename(source, target)

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_CREAT:
            self._check("create")
        return super().open(path, flags)


class SyncRig:
    """A partition, its writer and its disk."""

    def __init__(self, directory: Path, nursery: trio.Nursery, config: LogConfig) -> None:
        self.disk = SyncDisk()
        self.metrics = Metrics()
        self.writer = Writer(nursery=nursery, metrics=self.metrics, loop_write_max_bytes=64 << 10)
        self.directory = directory
        self.config = config
        self.partition = self.open("t")

    def open(self, topic: str, *, clean: bool = True, recovery_point: int = 0) -> Partition:
        log = PartitionLog.open(
            self.directory / f"{topic}-0",
            topic=topic,
            partition=0,
            config=self.config,
            files=OpenFiles(disk=self.disk),
            clock=lambda: 0,
            random=Random(0),
            recovery_point=recovery_point,
            clean=clean,
        )
        return Partition(log, self.writer)

    def begin(self, *values: bytes, to: Partition | None = None) -> Append:
        """Append and write, without waiting for a sync."""
        append = (to or self.partition).append(batch(*values))
        self.writer.write_queued()
        return append

    async def append(self, *values: bytes) -> Append:
        append = self.begin(*values)
        await append.wait()
        return append

    def configure(self, **changes: Any) -> None:
        self.config = replace(self.config, **changes)
        self.partition.reconfigure(self.config)

    def readable(self) -> list[int]:
        """The base offsets of the batches that a consumer can read."""
        log, found = self.partition.log, list[int]()
        offset = log.offsets.log_start_offset
        while offset < log.offsets.high_watermark:
            piece = self.partition.read(offset, 1 << 30, min_one_batch=True)
            assert piece is not None
            assert piece.slice is not None
            read = [header for _, header in headers(piece.slice.read_all())]
            found += [header.base_offset for header in read]
            offset = read[-1].last_offset + 1
        return found


@asynccontextmanager
async def sync_rig(directory: Path, **config: Any) -> AsyncIterator[SyncRig]:
    async with trio.open_nursery() as nursery:
        made = SyncRig(directory, nursery, LogConfig(**config))
        try:
            yield made
        finally:
            made.disk.go_on()
        await made.partition.retire()
        made.partition.log.close(clean=False)
