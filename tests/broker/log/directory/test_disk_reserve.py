"""What is kept of a disk for when it is full; names hold the invariants of `broker.log.directory.disk_reserve`."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.log.directory.disk_reserve import Reserve, SpaceStatus, default_size
from warmlog.broker.log.io.disk import Disk

SIZE = 1 << 20
QUARTER = SIZE // 4


class SmallDisk(Disk):
    """Has so many bytes in all; counts those of the reserve's file."""

    def __init__(self, total: int, *, can_hold: bool = True) -> None:
        self.total = total
        self.others = 0
        self.can_hold = can_hold
        self.held = 0

    @property
    def usable(self) -> int:
        return self.total - self.others - self.held

    def fill(self, fd: int, size: int) -> None:
        if not self.can_hold:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if size - self.held > self.usable:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.held = size

    def truncate(self, fd: int, size: int) -> None:
        self.held = min(self.held, size)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self.held = 0


@pytest.fixture
def space() -> SpaceStatus:
    return SpaceStatus("/data", is_guarded=True)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / ".reserve")


def test_a_small_file_system_gives_a_fiftieth_and_a_large_one_16_mib() -> None:
    assert default_size(64 << 20) == (64 << 20) // 50
    assert default_size(1 << 40) == 16 << 20


def test_it_is_kept_while_there_is_room_and_half_of_it_is_released_when_there_is_none(
    space: SpaceStatus, path: str
) -> None:
    disk = SmallDisk(10 * SIZE)
    reserve = Reserve(disk, path, SIZE, space)
    assert (reserve.held_bytes, space.is_short) == (0, False)
    reserve.settle(disk.usable)
    assert (reserve.held_bytes, space.is_short) == (SIZE, False)
    disk.others = 9 * SIZE - QUARTER
    reserve.settle(disk.usable)
    assert (reserve.held_bytes, space.is_short) == (SIZE, False)
    disk.others += 1
    reserve.settle(disk.usable)
    assert (reserve.held_bytes, space.is_short) == (SIZE // 2, True)
    disk.others = 9 * SIZE - QUARTER
    reserve.settle(disk.usable)
    assert space.is_short, "a little room is no reason to go on: it would be gone at once"
    disk.others = 9 * SIZE - 2 * QUARTER
    reserve.settle(disk.usable)
    assert (reserve.held_bytes, space.is_short) == (SIZE, False)


def test_who_must_write_has_all_of_it_given_up_and_appends_are_refused(space: SpaceStatus, path: str) -> None:
    disk = SmallDisk(10 * SIZE)
    reserve = Reserve(disk, path, SIZE, space)
    assert not reserve.give_up(), "nothing was kept yet"
    reserve.settle(disk.usable)
    disk.others = 9 * SIZE
    assert reserve.give_up()
    assert (disk.usable, space.is_short, reserve.held_bytes) == (SIZE, True, 0)
    assert not reserve.give_up()
    disk.others += SIZE // 3
    reserve.settle(disk.usable)
    assert (reserve.held_bytes, space.is_short) == (SIZE // 2, True)
    disk.others = 10 * SIZE - SIZE // 2 - 4096
    reserve.settle(disk.usable)
    assert (reserve.held_bytes, space.is_short) == (SIZE // 2, True)


def test_what_the_last_broker_kept_is_released_by_the_next(space: SpaceStatus, path: str) -> None:
    reserve = Reserve(Disk(), path, SIZE, space)
    reserve.settle(1 << 40)
    assert os.stat(path).st_blocks * 512 >= SIZE
    Reserve(Disk(), path, SIZE, space)
    assert not os.path.exists(path)
    assert not space.is_short


def test_a_stop_keeps_what_there_is_for_the_next_startup(space: SpaceStatus, path: str) -> None:
    disk = SmallDisk(10 * SIZE)
    reserve = Reserve(disk, path, SIZE, space)
    disk.others = 10 * SIZE - QUARTER
    reserve.keep_for_startup(disk.usable)
    assert QUARTER // 2 < reserve.held_bytes == disk.held < QUARTER
    disk.others = 0
    reserve.keep_for_startup(disk.usable)
    assert reserve.held_bytes == SIZE
    disk.others = 9 * SIZE
    reserve.keep_for_startup(disk.usable)
    assert reserve.held_bytes == SIZE, "what is held is not let go"
    reserve.keep_for_startup(disk.usable, half=True)
    assert reserve.held_bytes == SIZE
    reserve.give_up()
    disk.others = 0
    reserve.keep_for_startup(disk.usable, half=True)
    assert reserve.held_bytes == SIZE // 2


def test_what_a_startup_on_a_full_disk_leaves_is_kept_from_others(space: SpaceStatus, path: str) -> None:
    disk = SmallDisk(10 * SIZE)
    Reserve(disk, path, SIZE, space).settle(disk.usable)
    disk.others = 9 * SIZE
    for _ in range(5):  # kills
        reserve = Reserve(disk, path, SIZE, space)
        assert disk.usable > 0, "a startup without any space fails"
        disk.others += 4096  # of recovery
        reserve.settle(disk.usable)
        assert space.is_short
        disk.others += disk.usable  # another program fills the disk
    assert disk.held > SIZE // 4


def test_what_runs_out_at_the_last_moment_is_noticed(space: SpaceStatus, path: str) -> None:
    disk = SmallDisk(10 * SIZE)
    reserve = Reserve(disk, path, SIZE, space)
    seen, disk.others = disk.usable, 10 * SIZE - 4096
    reserve.settle(seen)
    assert (reserve.held_bytes, space.is_short) == (0, True)


def test_where_blocks_cannot_be_kept_they_are_counted(space: SpaceStatus, path: str) -> None:
    disk = SmallDisk(10 * SIZE, can_hold=False)
    reserve = Reserve(disk, path, SIZE, space)
    reserve.settle(SIZE + QUARTER)
    assert not space.is_short
    reserve.settle(SIZE + QUARTER - 1)
    assert space.is_short


def test_without_a_reserve_appends_are_always_tried(path: str) -> None:
    space = SpaceStatus("/data")
    reserve = Reserve(Disk(), path, 0, space)
    assert not space.ran_out(3)
    assert (space.refused, space.is_short) == (3, False)
    reserve.settle(0)
    assert not space.is_short
    assert not os.path.exists(path)


def test_one_append_that_finds_no_room_stops_all_until_somebody_has_looked(space: SpaceStatus, path: str) -> None:
    disk = SmallDisk(10 * SIZE)
    reserve = Reserve(disk, path, SIZE, space)
    assert space.ran_out(2)
    assert space.is_short
    assert "data directory /data is full" in str(space.refuse())
    assert space.refused == 3
    reserve.settle(disk.usable)
    assert not space.is_short


@given(
    steps=st.lists(st.tuples(st.sampled_from(["settle", "give_up", "others"]), st.integers(0, 4 * SIZE)), max_size=30)
)
def test_while_not_all_of_it_is_held_appends_are_refused(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    space, disk = SpaceStatus("/data", is_guarded=True), SmallDisk(4 * SIZE)
    reserve = Reserve(disk, str(tmp_path_factory.mktemp("reserve") / ".reserve"), SIZE, space)
    reserve.settle(disk.usable)
    for step, number in steps:
        if step == "settle":
            reserve.settle(disk.usable)
        elif step == "give_up":
            reserve.give_up()
        else:
            disk.others = min(number, disk.total - disk.held)
        assert disk.held == reserve.held_bytes
        assert space.is_short or reserve.held_bytes == SIZE
