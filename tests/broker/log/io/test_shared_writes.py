"""Writes that a thread shares with the event loop, on real files."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.requires import lacks
from warmlog.broker.log.io import shared_writes
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import Descriptor
from warmlog.broker.log.io.shared_writes import BY_THE_LOOP, MIN_FILES, SharedWrites
from warmlog.protocol.records.record import Buffer

CAPACITY, VECTORS, GROUP = 512, 16, 16  # of the compiled module


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    descriptors = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(CAPACITY)]
    yield descriptors
    for fd in descriptors:
        os.close(fd)


def test_every_file_gets_what_was_written_to_it(write_thread: Any, files: list[int]) -> None:
    expected = [b""] * len(files)
    for turn in range(20):
        numbers = []
        for number, fd in enumerate(files[: 1 + turn * 27]):
            data = b"%d in %d;" % (number, turn)
            buffers: tuple[Buffer, ...] = (data[:3], memoryview(b"<" + data + b">")[4:-1])
            numbers.append((write_thread.put(fd, buffers, len(expected[number])), len(data)))
            expected[number] += data
        for number, size in numbers:
            assert write_thread.result(number) == size
    assert [os.pread(fd, 1 << 20, 0) for fd in files] == expected


def test_results_may_be_taken_in_any_order(write_thread: Any, files: list[int]) -> None:
    numbers = [write_thread.put(fd, (b"x" * size,), 0) for size, fd in enumerate(files[:100])]
    assert [write_thread.result(number) for number in reversed(numbers)] == list(reversed(range(100)))


def test_it_takes_no_more_than_fits(write_thread: Any, files: list[int]) -> None:
    numbers = [write_thread.put(fd, (b"x",), 0) for fd in files]
    assert write_thread.put(files[0], (b"y",), 1) == BY_THE_LOOP
    assert [write_thread.result(number) for number in numbers] == [1] * CAPACITY
    number = write_thread.put(files[0], (b"y",), 1)
    assert write_thread.result(number) == 1


def test_it_takes_few_buffers_of_bytes_and_views_only(write_thread: Any, files: list[int]) -> None:
    assert write_thread.put(files[0], (b"x",) * (VECTORS + 1), 0) == BY_THE_LOOP
    assert write_thread.put(files[0], (bytearray(b"x"),), 0) == BY_THE_LOOP
    number = write_thread.put(files[0], (b"x",) * VECTORS, 0)
    assert write_thread.result(number) == VECTORS


def test_an_error_is_that_of_its_file(write_thread: Any, files: list[int]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    numbers = [write_thread.put(fd, (b"x",), 0) for fd in (files[0], full, files[1], -1, files[2])]
    results = [write_thread.result(number) for number in numbers]
    os.close(full)
    assert results == [1, -errno.ENOSPC, 1, -errno.EBADF, 1]


def test_the_thread_survives_a_loop_that_takes_the_writes_it_was_woken_for(files: list[int]) -> None:
    thread_class = shared_writes.thread_class
    if thread_class is None:
        lacks("not compiled: broker/_io_threads.pyx (`make setup`, with a C compiler)")
    for _ in range(4):
        before = set(threading.enumerate())
        writes = thread_class()
        (thread,) = set(threading.enumerate()) - before
        for turn in range(10_000):
            numbers = [writes.put(fd, (b"x",), 0) for fd in files[: 1 + turn % 40]]
            writes.publish()
            for number in numbers:
                writes.result(number)
        assert thread.is_alive()
        writes.close()
        assert not thread.is_alive()


class ShortThread:
    """Writes at most two bytes."""

    def put(self, fd: int, buffers: tuple[Buffer, ...], position: int) -> int:
        return os.pwrite(fd, b"".join(buffers)[:2], position)

    def result(self, number: int) -> int:
        return number

    def close(self) -> None:
        pass


def opened(path: Path, disk: Disk | None = None) -> Descriptor:
    return Descriptor(disk or Disk(), os.open(path, os.O_RDWR | os.O_CREAT))


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_writes, "start", ShortThread)
    writes, file = SharedWrites(), opened(tmp_path / "a")
    writes.open(MIN_FILES)
    writes.end(writes.begin(file, (b"abc", b"def"), 0))
    assert file.pread(100, 0) == b"abcdef"


def test_an_error_is_raised(write_thread: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_writes, "start", lambda: write_thread)
    writes, file = SharedWrites(), opened(Path("/dev/full"))
    writes.open(MIN_FILES)
    write = writes.begin(file, (b"x",), 0)
    assert write.number != BY_THE_LOOP
    with pytest.raises(OSError, match="No space left") as raised:
        writes.end(write)
    assert raised.value.errno == errno.ENOSPC


class AnotherDisk(Disk):
    pass


def test_only_turns_with_several_files_of_the_real_disk_are_shared(
    tmp_path: Path, write_thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_writes, "start", lambda: write_thread)
    writes = SharedWrites()
    for count, disk, is_shared in (
        (MIN_FILES - 1, Disk(), False),
        (MIN_FILES, Disk(), True),
        (MIN_FILES, AnotherDisk(), False),
    ):
        writes.open(count)
        write = writes.begin(opened(tmp_path / "a", disk), (b"x",), 0)
        assert (write.number != BY_THE_LOOP) is is_shared
        writes.end(write)
        writes.close()
    assert writes.begin(opened(tmp_path / "a"), (b"x",), 0).number == BY_THE_LOOP


def test_the_thread_gets_writes_in_groups_and_the_rest_on_request(write_thread: Any, files: list[int]) -> None:
    for count in (1, GROUP - 1, GROUP, 3 * GROUP + 1):
        numbers = [write_thread.put(fd, (b"x" * (1 + fd % 3),), 0) for fd in files[:count]]
        write_thread.publish()
        write_thread.publish()  # there is nothing left
        assert [write_thread.result(number) for number in numbers] == [1 + fd % 3 for fd in files[:count]]
        number = write_thread.put(files[0], (b"y",), 0)
        assert write_thread.result(number) == 1, "it is published when it is needed"
