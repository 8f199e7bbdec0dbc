import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.log.io.disk import IOV_MAX, Disk, read_file, replace_file, write_all


class MemoryDisk(Disk):
    """Takes a write in pieces of given sizes, as a disk may."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self.content = bytearray()
        self.calls = 0

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        assert len(buffers) <= IOV_MAX
        self.calls += 1
        data = b"".join(bytes(buffer) for buffer in buffers)
        size = self._sizes.pop() if self._sizes else len(data)
        self.content[position : position + size] = data[:size]
        return min(size, len(data))


@given(st.lists(st.binary(max_size=20), max_size=30), st.lists(st.integers(1, 15), max_size=30))
def test_a_write_in_pieces_is_the_write_as_a_whole(buffers: list[bytes], sizes: list[int]) -> None:
    disk = MemoryDisk(sizes)
    write_all(disk, 0, [memoryview(buffer) for buffer in buffers], 0)
    assert bytes(disk.content) == b"".join(buffers)


def test_more_buffers_than_one_call_takes_are_written_in_order() -> None:
    disk = MemoryDisk([])
    buffers = [bytes([i % 256]) for i in range(2 * IOV_MAX + 5)]
    write_all(disk, 0, buffers, 0)
    assert bytes(disk.content) == b"".join(buffers)
    assert disk.calls == 3


@pytest.mark.parametrize("sync", [True, False])
def test_replacing_a_file_leaves_no_temporary_one(tmp_path: Path, *, sync: bool) -> None:
    disk = Disk()
    path = str(tmp_path / "checkpoint")
    replace_file(disk, path, b"one", sync=sync)
    replace_file(disk, path, b"two, longer", sync=sync)
    replace_file(disk, path, b"3", sync=sync)
    assert read_file(disk, path) == b"3"
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_scan_tells_directories_and_the_sizes_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"12345")
    (tmp_path / "a.index").write_bytes(b"123")
    (tmp_path / "d").mkdir()
    found = {entry.name: (entry.is_directory, entry.size) for entry in Disk().scan(str(tmp_path), stat_suffix=".log")}
    assert found == {"a.log": (False, 5), "a.index": (False, 0), "d": (True, 0)}


def test_allocating_leaves_the_size_alone(tmp_path: Path) -> None:
    disk = Disk()
    fd = disk.open(str(tmp_path / "f"), os.O_RDWR | os.O_CREAT)
    disk.allocate(fd, 1 << 20)
    assert disk.size(fd) == 0
    assert os.fstat(fd).st_blocks * 512 >= 1 << 20
    disk.close(fd)
