"""Topics are created and deleted, and the broker is killed, or the power cut, before each step on the disk."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from tests.broker.log.io.crashing_disk import CrashingDisk, Fault
from tests.broker.rig import Rig, rig
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.partition_log import PartitionLog

SETTINGS = ("log.index.size.max.bytes=1024", "log.flush.interval.messages=1")
NAMES = ("a", "b")
PARTITIONS = 2

Ends = frozenset[int | None]  # that each partition of a topic may have; None: there is no such topic
ABSENT, EMPTY, FULL = Ends({None}), Ends({0}), Ends({3})


class SteppingDisk(Disk):
    """Calls a function before everything that changes files or directories, or waits for them to be on the disk."""

    before: Callable[[], None] = staticmethod(lambda: None)

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_CREAT | os.O_TRUNC):
            self.before()
        return super().open(path, flags)

    def pwritev(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        self.before()
        return super().pwritev(fd, buffers, position)

    def sync(self, fd: int) -> None:
        self.before()
        super().sync(fd)

    def sync_directory(self, path: str) -> None:
        self.before()
        super().sync_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.before()
        super().rename(source, target)

    def make_directory(self, path: str, mode: int = 0o777) -> None:
        self.before()
        super().make_directory(path, mode)


class PowerDisk(CrashingDisk):
    """As SteppingDisk, and knows what of it all is on the disk."""

    before: Callable[[], None] = staticmethod(lambda: None)

    def _begin(self, verb: str, path: str) -> Fault | None:
        self.before()
        return super()._begin(verb, path)


class Copy(NamedTuple):
    """What a crash leaves, and what may be in it."""

    directory: Path
    allowed: dict[str, Ends]


class Crashes:
    """Takes copies of a data directory before each step, as a crash would leave it there."""

    def __init__(self, directory: Path, *, power: bool) -> None:
        self.directory = directory / "live"
        self.directory.mkdir()
        self.copies: list[Copy] = []
        self.allowed: dict[str, Ends] = {}
        self._power = PowerDisk(self.directory) if power else None
        self.disk: SteppingDisk | PowerDisk = self._power or SteppingDisk()
        self._target = directory / "copies"
        self._random = Random(20)

    def follow(self, **allowed: Ends) -> None:
        """From now on, topics may be as it says here: in copies that are taken before the next call."""
        self.allowed = dict(allowed)
        self.disk.before = self.take
        self.take()

    def take(self) -> None:
        copy = self._target / str(len(self.copies))
        if self._power is None:
            shutil.copytree(self.directory, copy)
        else:
            self._power.crash(copy, self._random, journal=len(self.copies) % 2 == 0)
            for path in self.directory.glob("metadata.sqlite*"):
                shutil.copy(path, copy)
        self.copies.append(Copy(copy, self.allowed))

    async def check(self) -> None:
        """Start from each copy: topics are as they may be, can be written, and their names can be used again."""
        self.disk.before = lambda: None
        for directory, allowed in self.copies:
            async with rig(directory, *SETTINGS) as made:
                for name in NAMES:
                    found = set(ends(made, name))
                    assert found <= allowed[name], (directory.name, name, found)
                    if found == {None}:
                        await create(made, name)
                        assert set(ends(made, name)) == EMPTY, directory.name
                    await fill(made, name)


@pytest.fixture(params=[False, True], ids=["kill", "power"])
def crashes(request: pytest.FixtureRequest, tmp_path: Path) -> Crashes:
    return Crashes(tmp_path, power=request.param)


async def create(made: Rig, *names: str) -> None:
    assert await made.partitions.create_all([made.partitions.plan_topic(name, PARTITIONS) for name in names]) == {}


async def fill(made: Rig, *names: str) -> None:
    for name in names:
        for index in range(PARTITIONS):
            await made.append(made.partitions.require(name, index), 3)


def ends(made: Rig, name: str) -> list[int | None]:
    logs: list[PartitionLog] = [each.log for each in made.partitions if each.topic == name]
    return [log.offsets.log_end_offset for log in logs] or [None]


async def test_what_is_created_is_there_as_a_whole_or_can_be_created_again(crashes: Crashes) -> None:
    async with rig(crashes.directory, *SETTINGS, disk=crashes.disk) as made:
        crashes.follow(a=ABSENT | EMPTY, b=ABSENT | EMPTY)
        await create(made, *NAMES)
        crashes.follow(a=EMPTY, b=EMPTY)
        crashes.allowed = {name: Ends(range(4)) for name in NAMES}
        await fill(made, *NAMES)
        crashes.follow(a=FULL, b=FULL)
        await crashes.check()


async def test_what_is_deleted_is_there_as_a_whole_or_never_comes_back(crashes: Crashes) -> None:
    async with rig(crashes.directory, *SETTINGS, disk=crashes.disk) as made:
        await create(made, *NAMES)
        await fill(made, *NAMES)
        await made.partitions.checkpoint()
        crashes.follow(a=FULL | ABSENT, b=FULL)
        assert await made.partitions.delete_all(["a"]) == {}
        crashes.follow(a=ABSENT, b=FULL)
        crashes.follow(a=ABSENT | EMPTY, b=FULL)
        await create(made, "a")
        crashes.follow(a=EMPTY, b=FULL)
        crashes.allowed = {"a": Ends(range(4)), "b": FULL}
        await fill(made, "a")
        await made.partitions.checkpoint()
        crashes.follow(a=FULL, b=FULL)
        await crashes.check()
