"""Appends to several partitions that are written in one turn, by the event loop alone and with a thread's help."""

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from tests.broker.clients import batch
from tests.requires import lacks
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.io import shared_writes
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.append import StorageError
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.record import Buffer

PARTITIONS = 30


class Failing:
    """The thread; the writes to files in `refused` find the disk full, after a part of them was written."""

    def __init__(self, thread: Any) -> None:
        self.refused: set[str] = set()
        self.writes = 0
        self._thread = thread
        self._failed: dict[int, int] = {}

    def put(self, fd: int, buffers: tuple[Buffer, ...], position: int) -> int:
        self.writes += 1
        is_refused = os.readlink(f"/proc/self/fd/{fd}") in self.refused
        number: int = self._thread.put(fd, buffers[:1] if is_refused else buffers, position)
        if is_refused:
            self._failed[number] = -errno.ENOSPC
        return number

    def publish(self) -> None:
        self._thread.publish()

    def result(self, number: int) -> int:
        written: int = self._thread.result(number)
        return self._failed.pop(number, written)

    def close(self) -> None:
        self._thread.close()


class Rig:
    """Some partitions on the real disk, and their writer."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.writer = Writer(nursery=nursery, metrics=Metrics(), loop_write_max_bytes=64 << 10)
        files = OpenFiles()
        self.partitions = [
            Partition(
                PartitionLog.open(
                    directory / f"t-{number}",
                    topic="t",
                    partition=number,
                    config=LogConfig(segment_bytes=4096),
                    files=files,
                    clock=lambda: 0,
                    random=Random(0),
                    clean=True,
                ),
                self.writer,
            )
            for number in range(PARTITIONS)
        ]

    def stored(self, number: int) -> list[bytes]:
        partition, found = self.partitions[number], []
        offset = 0
        while offset < partition.log.offsets.log_end_offset:
            piece = partition.read(offset, 1 << 30, min_one_batch=True)
            assert piece is not None
            assert piece.slice is not None
            data = piece.slice.read_all()
            for position, header in headers(data):
                found.append(data[position + 70 : position + header.size])
                offset = header.last_offset + 1
        return found


@asynccontextmanager
async def rig(directory: Path) -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        made = Rig(directory, nursery)
        yield made
        for partition in made.partitions:
            await partition.retire()
        made.writer.stop()


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Failing:
    if shared_writes.thread_class is None:
        lacks("not compiled: broker/_io_threads.pyx (`make setup`, with a C compiler)")
    made = Failing(shared_writes.thread_class())
    monkeypatch.setattr(shared_writes, "start", lambda: made)
    return made


@pytest.fixture(params=["alone", "shared"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "alone":
        monkeypatch.setattr(shared_writes, "start", None)
    else:
        request.getfixturevalue("thread")


@pytest.mark.usefixtures("either")
async def test_every_partition_gets_its_appends_in_order(tmp_path: Path) -> None:
    random = Random(1)
    async with rig(tmp_path) as made:
        expected: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        for turn in range(40):
            appends = []
            for number in random.choices(range(PARTITIONS), k=60):
                data = batch(b"%d in turn %d" % (number, turn))
                expected[number].append(data[70:])
                appends.append(made.partitions[number].append(data))
            made.writer.write_queued()
            for append in appends:
                await append.wait()
                assert append.error is None
        assert [made.stored(number) for number in range(PARTITIONS)] == expected


async def test_a_full_disk_fails_only_the_appends_that_found_it_full(tmp_path: Path, thread: Failing) -> None:
    async with rig(tmp_path) as made:
        first = [partition.append(batch(b"first")) for partition in made.partitions]
        made.writer.write_queued()
        path = tmp_path / "t-7" / "00000000000000000000.log"
        size = path.stat().st_size
        thread.refused = {str(path)}
        second = [partition.append(batch(b"second")) for partition in made.partitions]
        made.writer.write_queued()
        assert [isinstance(append.error, StorageError) for append in second] == [n == 7 for n in range(PARTITIONS)]
        assert path.stat().st_size == size
        thread.refused = set()
        third = [partition.append(batch(b"third")) for partition in made.partitions]
        made.writer.write_queued()
        assert all(append.done and append.error is None for append in first + third)
        assert [append.planned.base_offset for append in third] == [1 if n == 7 else 2 for n in range(PARTITIONS)]
        assert thread.writes == 3 * PARTITIONS


async def test_appends_that_come_while_a_write_is_under_way_follow_it(tmp_path: Path, thread: Failing) -> None:
    async with rig(tmp_path) as made:
        partition, late = made.partitions[-1], []
        early = [each.append(batch(b"early")) for each in made.partitions]
        early[0].notify(lambda: late.append(partition.append(batch(b"late"))))
        made.writer.write_queued()
        assert [append.done for append in late] == [True]
        assert late[0].planned.base_offset == 1
        assert [len(made.stored(n)) for n in range(PARTITIONS)] == [1] * (PARTITIONS - 1) + [2]
