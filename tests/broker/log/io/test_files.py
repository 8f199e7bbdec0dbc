import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import MOST_CONSIDERED, File, FileSlice, Mapping, OpenFiles


class CountingDisk(Disk):
    """The real disk, counting the descriptors that are open."""

    def __init__(self) -> None:
        self.open_fds: set[int] = set()

    def open(self, path: str, flags: int) -> int:
        fd = super().open(path, flags)
        self.open_fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.open_fds.discard(fd)
        super().close(fd)


@pytest.fixture
def make_file(tmp_path: Path) -> Callable[[str], str]:
    def make(name: str) -> str:
        path = tmp_path / name
        path.write_bytes(name.encode() * 100)
        return str(path)

    return make


def test_a_file_is_open_only_once_it_is_used(make_file: Callable[[str], str]) -> None:
    disk = CountingDisk()
    files = OpenFiles(disk=disk)
    file = File(files, make_file("a"), writable=False)
    assert not disk.open_fds
    descriptor = file.descriptor()
    assert disk.open_fds == {descriptor.fd}
    assert file.descriptor() is descriptor


def test_closing_lets_go_of_the_descriptor_and_using_opens_again(make_file: Callable[[str], str]) -> None:
    disk = CountingDisk()
    files = OpenFiles(disk=disk)
    file = File(files, make_file("a"), writable=False)
    file.descriptor()
    file.close()
    file.close()
    assert not disk.open_fds
    assert files.statistics().open == 0
    assert os.pread(file.descriptor().fd, 1, 0) == b"a"


def test_what_is_used_again_and_again_stays_open(make_file: Callable[[str], str]) -> None:
    disk = CountingDisk()
    files = OpenFiles(limit=3, disk=disk)
    a, b = (File(files, make_file(name), writable=False) for name in "ab")
    fds = {a.descriptor().fd, b.descriptor().fd}
    for number in range(20):
        File(files, make_file(f"c{number}"), writable=False).descriptor()
        assert fds == {a.descriptor().fd, b.descriptor().fd}
    assert files.statistics().evicted == 19


def test_an_eviction_considers_a_limited_number_of_files(make_file: Callable[[str], str]) -> None:
    count = MOST_CONSIDERED + 5
    files = OpenFiles(limit=count, disk=CountingDisk())
    opened = [File(files, make_file(str(number)), writable=False) for number in range(count)]
    for _ in range(2):
        for each in opened:
            each.descriptor()
    File(files, make_file("one more"), writable=False).descriptor()
    assert [number for number, each in enumerate(opened) if each.held is None] == [MOST_CONSIDERED]


def test_the_longest_unused_is_given_up_beyond_the_limit(make_file: Callable[[str], str]) -> None:
    disk = CountingDisk()
    files = OpenFiles(limit=2, disk=disk)
    a, b, c = (File(files, make_file(name), writable=False) for name in "abc")
    fd_a, fd_b = a.descriptor().fd, b.descriptor().fd
    a.descriptor()
    fd_c = c.descriptor().fd
    assert disk.open_fds == {fd_a, fd_c}
    assert fd_b not in {fd_a, fd_c} or fd_b == fd_c
    assert files.statistics().evicted == 1
    assert files.statistics().open == 2
    assert os.pread(b.descriptor().fd, 1, 0) == b"b"


def test_the_last_user_of_an_evicted_file_keeps_it_open(make_file: Callable[[str], str]) -> None:
    disk = CountingDisk()
    files = OpenFiles(limit=1, disk=disk)
    a, b = (File(files, make_file(name), writable=False) for name in "ab")
    held = a.descriptor()
    b.descriptor()
    assert held.fd in disk.open_fds
    fd = held.fd
    del held
    assert fd not in disk.open_fds


def test_a_slice_keeps_its_file_alive_through_close_rename_and_unlink(
    make_file: Callable[[str], str], tmp_path: Path
) -> None:
    files = OpenFiles()
    path = make_file("word")
    file = File(files, path, writable=False)
    piece = FileSlice(file.descriptor(), 2, 6)
    file.close()
    os.rename(path, tmp_path / "moved")
    os.unlink(tmp_path / "moved")
    assert len(piece) == 6
    assert piece.read_all() == b"rdword"


def test_a_mapping_counts_as_one_and_is_given_up_like_a_file(make_file: Callable[[str], str]) -> None:
    disk = CountingDisk()
    files = OpenFiles(limit=1, disk=disk)
    mapping = Mapping(files, make_file("m"))
    view = mapping.view(10, 100)
    assert files.statistics().mappings == 1
    assert not disk.open_fds
    File(files, make_file("a"), writable=False).descriptor()
    assert files.statistics().mappings == 0
    assert view[:1] == b"m"
    assert mapping.view(10, 100) is not view


def test_a_mapping_is_made_anew_when_more_is_needed(make_file: Callable[[str], str]) -> None:
    path = make_file("m")
    mapping = Mapping(OpenFiles(), path)
    assert len(mapping.view(10, 1000)) == 100
    with open(path, "ab") as file:
        file.write(bytes(900))
    assert len(mapping.view(10, 1000)) == 100
    assert len(mapping.view(101, 1000)) == 1000


def test_a_mapping_never_reaches_past_the_end_of_the_file(make_file: Callable[[str], str]) -> None:
    with pytest.raises(EOFError):
        Mapping(OpenFiles(), make_file("m")).view(101, 1000)


def test_mapping_twice_at_once_is_counted_once(make_file: Callable[[str], str]) -> None:
    files = OpenFiles()
    mapping = Mapping(files, make_file("m"))
    mapping.view(10, 20)
    mapping.view(50, 100)
    assert files.statistics().mappings == 1
    mapping.close()
    assert files.statistics().mappings == 0


def test_what_is_freed_is_no_longer_found(make_file: Callable[[str], str]) -> None:
    """Closing a file releases the GIL: another thread that finds the freed object meanwhile crashes the process."""
    held: list[object] = []

    class WatchingDisk(Disk):
        def close(self, fd: int) -> None:
            held.append(file.held)
            super().close(fd)

    file = File(OpenFiles(disk=WatchingDisk()), make_file("a"), writable=False)
    file.descriptor()
    file.held = None
    file.close()
    file.descriptor()
    file.close()
    assert held == [None, None]


def test_threads_may_map_more_and_more_of_the_same_files(make_file: Callable[[str], str]) -> None:
    files = OpenFiles()
    mappings = [Mapping(files, make_file(name)) for name in "abcdefgh"]

    def use() -> set[bytes]:
        return {mapping.view(size, size)[:1] for mapping in mappings for size in range(1, 101)}

    with ThreadPoolExecutor(4) as threads:
        for user in [threads.submit(use) for _ in range(4)]:
            assert len(user.result()) == len(mappings)
    assert files.statistics().mappings == len(mappings)


def test_what_a_descriptor_does_is_done_to_its_file_though_others_evict_it(make_file: Callable[[str], str]) -> None:
    """A number taken out of a descriptor once outlived its file: eviction closed it, and the number was another's."""
    files = OpenFiles(limit=1)
    a, b = (File(files, make_file(name), writable=True) for name in "ab")
    descriptor = a.descriptor()
    b.descriptor()
    descriptor.write_all((b"xyz", memoryview(b"!")), 2)
    descriptor.truncate(6)
    descriptor.sync()
    assert descriptor.size() == 6
    assert descriptor.pread(100, 0) == b"aaxyz!"
    assert b.descriptor().pread(2, 0) == b"bb"
