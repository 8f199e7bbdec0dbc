"""What is in memory is known: each method against real files, the choice among them, who is let through the gate."""

import ctypes
import errno
import logging
import os
import random
import threading
from collections.abc import Callable
from mmap import PAGESIZE
from pathlib import Path

import pytest

from tests.broker.log.io.eviction import evict, file_of, needs_cachestat, needs_eviction
from tests.requires import lacks
from warmlog.broker.log.io import page_cache
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import Descriptor, File, OpenFiles
from warmlog.broker.log.io.page_cache import (
    Cachestat,
    CompiledCachestat,
    Method,
    Nowait,
    Off,
    choose_method,
    missing_by_mincore,
    pages_of,
)
from warmlog.broker.log.io.residency import ColdReadError, Residency

METHODS: list[Callable[[], Method]] = [Cachestat, CompiledCachestat, Nowait]


@pytest.fixture(params=METHODS, ids=["cachestat", "compiled", "nowait"])
def method(request: pytest.FixtureRequest, tmp_path: Path) -> Method:
    if request.param is CompiledCachestat:
        needs_compiled()
    if request.param is not Nowait:
        needs_cachestat(tmp_path)
    needs_eviction(tmp_path)
    made: Method = request.param()
    return made


def needs_compiled() -> None:
    if page_cache.compiled_missing_pages is None:
        lacks("the compiled query was not built")


@pytest.fixture
def opened(tmp_path: Path) -> Descriptor:
    """64 pages, all in memory, without the kernel's read-ahead."""
    return file_of(tmp_path / "f", 64)


def test_what_was_written_is_there_and_what_was_evicted_is_not(method: Method, opened: Descriptor) -> None:
    assert method.missing_pages(opened.fd, 0, 64 * PAGESIZE) == 0
    evict(opened)
    missing = method.missing_pages(opened.fd, 0, 64 * PAGESIZE)
    assert missing == 64 or (method.name == "nowait" and missing == missing_by_mincore(opened.fd, 64 * PAGESIZE))


def test_cachestat_knows_exactly_how_many_pages_of_any_range_are_missing(opened: Descriptor, tmp_path: Path) -> None:
    needs_cachestat(tmp_path)
    chance = random.Random(7)
    method = Cachestat()
    for _ in range(100):
        evict(opened)
        resident = set(chance.sample(range(64), chance.randint(0, 64)))
        for page in resident:
            opened.pread(1, page * PAGESIZE)
        position = chance.randrange(30 * PAGESIZE)
        length = chance.randint(page_cache.SMALL_BYTES + 1, 64 * PAGESIZE - position)
        pages = set(range(position // PAGESIZE, (position + length - 1) // PAGESIZE + 1))
        assert method.missing_pages(opened.fd, position, length) == len(pages - resident)


def test_cachestat_brings_nothing_into_memory(opened: Descriptor, tmp_path: Path) -> None:
    """RWF_NOWAIT does: the kernel begins to read what it is asked for, and to read ahead."""
    needs_cachestat(tmp_path)
    evict(opened)
    assert Cachestat().missing_pages(opened.fd, 0, 32 * PAGESIZE) == 32
    assert missing_by_mincore(opened.fd, 64 * PAGESIZE) == 64


@pytest.mark.parametrize(("position", "length", "pages"), [(0, 0, 0), (0, 1, 1), (4095, 2, 2), (4096, 4096, 1)])
def test_pages_of_a_range(position: int, length: int, pages: int) -> None:
    assert pages_of(position, length) == pages


def test_the_compiled_question_has_the_same_answers(opened: Descriptor, tmp_path: Path) -> None:
    needs_compiled()
    needs_cachestat(tmp_path)
    twins: list[Method] = [Cachestat(), CompiledCachestat(), CompiledCachestat().without_nowait()]
    evict(opened)
    os.pread(opened.fd, 40 * PAGESIZE, 5 * PAGESIZE)
    chance = random.Random(11)
    for _ in range(300):
        start, length = (
            chance.randrange(60 * PAGESIZE),
            chance.choice([0, 1, PAGESIZE, chance.randrange(PAGESIZE * 64)]),
        )
        exact, *others = [method.missing_pages(opened.fd, start, length) for method in twins]
        assert others[0] == exact
        assert others[1] == exact or start + length > 64 * PAGESIZE  # where the file ends, there is no last byte


def test_the_compiled_question_tells_what_the_kernel_says(tmp_path: Path) -> None:
    needs_compiled()
    needs_cachestat(tmp_path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        CompiledCachestat().missing_pages(-1, 0, PAGESIZE)


# -- the choice --


def lying(pages: int, error: int = 0) -> Callable[..., int]:
    """A system call that says the same of everything."""

    def syscall(number: int, fd: int, asked: int, counts: int, flags: int) -> int:
        ctypes.c_uint64.from_address(counts).value = pages
        ctypes.set_errno(error)
        return -1 if error else 0

    return syscall


@pytest.mark.parametrize(
    ("syscall", "why"),
    [
        (lying(page_cache.PROBE_PAGES), "just evicted as resident"),
        (lying(0), "just written as missing"),
        (lying(0, errno.ENOSYS), "Function not implemented"),
        (lying(0, errno.EPERM), "not permitted"),
    ],
)
def test_a_method_that_is_wrong_or_missing_gives_way_and_the_log_says_so(
    syscall: Callable[..., int], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    needs_eviction(tmp_path)
    with caplog.at_level(logging.INFO):
        assert choose_method("auto", [str(tmp_path)], syscall=syscall).name == "nowait"
    assert why in caplog.text
    assert str(tmp_path) in caplog.text
    assert caplog.messages[-1] == "residency gate: nowait"


def test_each_directory_is_tried_and_nothing_is_left_there(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    assert choose_method("nowait", [str(first), str(second)]).name in {"nowait", "off"}
    assert list(first.iterdir()) == list(second.iterdir()) == []


def test_a_directory_that_cannot_be_written_to_does_not_decide(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert (
        choose_method("auto", [str(tmp_path / "c"), str(tmp_path)]).name == choose_method("auto", [str(tmp_path)]).name
    )
    assert "cannot test cachestat in" in caplog.text


def test_off_is_off_and_a_file_system_in_memory_is_no_lie(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_method("off", []).name == "off"
    assert "blocks the event loop" in caplog.text
    if Path("/dev/shm").is_dir():
        caplog.clear()
        assert choose_method("cachestat", ["/dev/shm"]).name in {"cachestat", "off"}
        assert "evicted" not in caplog.text


# -- the gate --


def test_the_gated_thread_is_told_and_any_other_reads(opened: Descriptor, tmp_path: Path) -> None:
    needs_cachestat(tmp_path)
    gate, large = Residency(method=Cachestat()), 8 * PAGESIZE
    evict(opened)
    with gate.gated(), pytest.raises(ColdReadError) as told:
        gate.need(opened, 0, large, "log")
    assert (told.value.position, told.value.length) == (0, large)
    assert gate.cold_pages == {"index": 0, "time_index": 0, "log": 8}
    told.value.job()
    with gate.gated():
        gate.need(opened, 0, large, "log")
        other = threading.Thread(target=gate.need, args=(opened, large, large, "index"))
        other.start()
        other.join()
        gate.need(opened, large, large, "index")
    gate.need(opened, 2 * large, large, "index")  # the block is over: it may wait
    assert missing_by_mincore(opened.fd, 3 * large) == 0


def test_what_a_worker_reads_now_is_not_there_whatever_the_kernel_says(method: Method, opened: Descriptor) -> None:
    """A page counts as cached from the moment its reading begins, and who touches it waits for the disk."""
    read_now = {"range": (PAGESIZE, 2 * PAGESIZE)}

    def busy(_: object, position: int, length: int) -> bool:
        start, end = read_now["range"]
        return position < end and start < position + length

    gate = Residency(method=method, busy=busy)
    with gate.gated():
        gate.need(opened, 0, PAGESIZE, "log")
        with pytest.raises(ColdReadError):
            gate.need(opened, 0, PAGESIZE + 1, "log")


class HangingDisk(Disk):
    """Its pread goes to the kernel and does not come back before it is let."""

    def __init__(self) -> None:
        self.began, self.let = threading.Event(), threading.Event()

    def pread(self, fd: int, size: int, position: int) -> bytes:
        data = super().pread(fd, size, position)
        self.began.set()
        assert self.let.wait(30)
        return data


class ColdAtFirst:
    """Reports a range as missing at the first query.

    RWF_NOWAIT starts to read a missing page and finds it if this thread is suspended before it looks.
    """

    def __init__(self, method: Method) -> None:
        self.name = method.name
        self._method = method
        self._was_queried = False

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        if not self._was_queried:
            self._was_queried = True
            return page_cache.pages_of(position, length)
        return self._method.missing_pages(fd, position, length)


def test_a_range_that_another_thread_is_reading_is_not_resident_yet(method: Method, opened: Descriptor) -> None:
    """A lookup in a worker reads page after page; whoever touches one of them on the loop would wait with it."""
    evict(opened)
    disk = HangingDisk()
    gate = Residency(method=ColdAtFirst(method))
    slow = Descriptor(disk, os.dup(opened.fd))
    worker = threading.Thread(target=gate.need, args=(slow, PAGESIZE + 10, 20, "log"))
    worker.start()
    assert disk.began.wait(30)
    with gate.gated(), pytest.raises(ColdReadError):
        gate.need(opened, PAGESIZE + 100, 20, "log")
    disk.let.set()
    worker.join()
    with gate.gated():
        gate.need(opened, PAGESIZE + 100, 20, "log")


def test_a_gate_that_is_off_asks_nobody() -> None:
    gate = Residency(method=Off())
    disk = Disk()
    gone = Descriptor(disk, os.open("/dev/null", os.O_RDONLY))
    with gate.gated():
        gate.need(gone, 0, 1 << 30, "log")
    assert not sum(gate.cold_pages.values())


def test_the_kernel_reads_nothing_ahead_for_a_broker_with_a_gate(tmp_path: Path) -> None:
    """What it reads ahead counts as cached while it is being read: sendfile then waits on the loop."""
    needs_eviction(tmp_path)
    path = tmp_path / "f"
    file_of(path, 256)
    for method, ahead in ((Off(), True), (Nowait(), False)):
        files = OpenFiles(residency=Residency(method=method))
        reader = File(files, str(path), writable=False)
        descriptor = reader.descriptor()
        evict(descriptor)
        for page in range(9):  # the last of them wait for the first read-ahead, of twelve pages
            descriptor.pread(PAGESIZE, page * PAGESIZE)
        watched = os.open(path, os.O_RDWR)
        assert (missing_by_mincore(watched, 256 * PAGESIZE) < 256 - 9) is ahead
        os.close(watched)
        files.close_files()
        assert reader.held is None
