"""Reading beside the loop: fair, shared, bounded, cancelled; and what of it is dropped from memory again."""

import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from mmap import PAGESIZE
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.broker.log.io.eviction import evict, file_of, needs_eviction
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import Descriptor, FileSlice
from warmlog.broker.log.io.page_cache import Off, missing_by_mincore
from warmlog.broker.log.io.residency import ColdReadError, Residency
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.reads.drop_behind import KEEP_ROUNDS
from warmlog.broker.partitions.reads.read_ahead import IDLE_S, ReadAhead, ReadLimits

PIECE = 4 * PAGESIZE


class SlowDisk(Disk):
    """Reads when it is let, one after the other, and remembers what."""

    def __init__(self) -> None:
        self.turns = threading.Semaphore(0)
        self.reads: list[tuple[int, int]] = []  # (fd, position), in the order of their ends
        self.fails_at: int | None = None
        self._one = threading.Lock()

    def read_into(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        assert self.turns.acquire(timeout=30)
        with self._one:
            self.reads.append((fd, position))
            if position == self.fails_at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().read_into(fd, buffer, position)

    def let(self, count: int = 1000) -> None:
        self.turns.release(count)


class Mincore(Off):
    """Asks by a mapping: never begins to read, whatever the range and the kernel."""

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        if position + length > os.fstat(fd).st_size:
            return 1
        end = missing_by_mincore(fd, position + length)
        return end - (missing_by_mincore(fd, position) if position else 0)


@pytest.fixture
def disk() -> Iterator[SlowDisk]:
    disk = SlowDisk()
    yield disk
    disk.let()


@asynccontextmanager
async def reading(*, threads: int = 1, ahead: int = PIECE, drop: bool = False) -> AsyncIterator[ReadAhead]:
    limits = ReadLimits(threads=threads, piece_bytes=PIECE, ahead_bytes=ahead, drop_passed=drop)
    residency = Residency(method=Mincore())
    async with trio.open_nursery() as nursery:
        yield ReadAhead(nursery=nursery, residency=residency, metrics=Metrics(), limits=limits)


def cold(path: Path, pages: int, disk: Disk) -> FileSlice:
    """A slice that is the whole of a file, which is not in memory."""
    needs_eviction(path.parent)
    evict(file_of(path, pages))
    opened = Descriptor(disk, disk.open(str(path), os.O_RDWR))
    disk.advise_random(opened.fd)
    return FileSlice(opened, 0, pages * PAGESIZE)


def part(piece: FileSlice, position: int) -> FileSlice:
    """From a position to the end."""
    return FileSlice(piece.descriptor, position, piece.length - position)


def pages_missing(piece: FileSlice) -> int:
    return missing_by_mincore(piece.descriptor.fd, piece.length)


async def test_what_is_brought_is_in_memory_and_no_more_of_the_file(tmp_path: Path) -> None:
    piece = cold(tmp_path / "a", 64, Disk())
    async with reading() as reads:
        assert await reads.bring("one", piece, 5 * PAGESIZE, PAGESIZE)
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert pages_missing(piece) == 64 - 4  # pages 5 to 7, and 8 of the next piece: PIECE bytes from page 5


async def test_consumers_take_turns_piece_by_piece(tmp_path: Path, disk: SlowDisk) -> None:
    """One that asks for a hundred pieces keeps one that asks for two waiting for two of its own."""
    greedy, modest = cold(tmp_path / "a", 64, disk), cold(tmp_path / "b", 8, disk)
    async with reading(ahead=64 * PAGESIZE) as reads, trio.open_nursery() as nursery:
        nursery.start_soon(reads.bring, "greedy", greedy, 0, greedy.length)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(reads.bring, "modest", modest, 0, modest.length)
        await trio.testing.wait_all_tasks_blocked()
        disk.let()
    order = [fd for fd, _ in disk.reads]
    assert order[:5] == [*[greedy.descriptor.fd, greedy.descriptor.fd, modest.descriptor.fd] * 1,
                         greedy.descriptor.fd, modest.descriptor.fd]  # fmt: skip
    assert len(order) == 16 + 2


async def test_no_more_threads_read_than_may(tmp_path: Path, disk: SlowDisk) -> None:
    pieces = [cold(tmp_path / name, 4, disk) for name in "abcdef"]
    async with reading(threads=3) as reads, trio.open_nursery() as nursery:
        for name, piece in enumerate(pieces):
            nursery.start_soon(reads.bring, name, piece, 0, PIECE)
        await trio.testing.wait_all_tasks_blocked()
        assert reads.statistics().running == 3
        assert reads.statistics().queued == 3
        disk.let()


async def test_what_two_want_is_read_once(tmp_path: Path, disk: SlowDisk) -> None:
    piece = cold(tmp_path / "a", 4, disk)
    again = FileSlice(Descriptor(disk, disk.open(str(tmp_path / "a"), os.O_RDWR)), 0, piece.length)
    async with reading(threads=4) as reads, trio.open_nursery() as nursery:
        nursery.start_soon(reads.bring, "one", piece, 0, PIECE)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(reads.bring, "two", again, PAGESIZE, PAGESIZE)
        await trio.testing.wait_all_tasks_blocked()
        disk.let()
    assert len(disk.reads) == 1


async def test_what_is_being_read_is_not_to_be_touched(tmp_path: Path, disk: SlowDisk) -> None:
    piece = cold(tmp_path / "a", 16, disk)
    async with reading() as reads, trio.open_nursery() as nursery:
        nursery.start_soon(reads.bring, "one", piece, 0, PIECE)
        await trio.testing.wait_all_tasks_blocked()
        piece.descriptor.pread(PIECE, 0)  # as if the kernel had begun: the pages are there
        assert reads.residency.missing_pages(piece.descriptor, 0, PAGESIZE, "log") == 1
        disk.let()
    assert reads.residency.missing_pages(piece.descriptor, 0, PAGESIZE, "log") == 0
    assert reads.statistics() == (0, 0)


async def test_the_page_that_is_read_by_another_one_is_not_to_be_touched_at_all(tmp_path: Path, disk: SlowDisk) -> None:
    """A piece ends inside a page: the rest of that page is on its way, too."""
    piece = cold(tmp_path / "a", 16, disk)
    async with reading() as reads, trio.open_nursery() as nursery:
        nursery.start_soon(reads.bring, "one", FileSlice(piece.descriptor, 0, 100), 0, 100)
        await trio.testing.wait_all_tasks_blocked()
        piece.descriptor.pread(PAGESIZE, 0)
        assert reads.residency.missing_pages(piece.descriptor, 200, 50, "log") == 1
        disk.let()


async def test_no_more_is_read_ahead_than_may_be(tmp_path: Path) -> None:
    piece = cold(tmp_path / "a", 64, Disk())
    async with reading(ahead=3 * PIECE) as reads:
        assert await reads.bring("one", piece, 0, PAGESIZE)
    assert pages_missing(piece) == 64 - 12


async def test_nothing_more_is_read_for_a_consumer_that_has_gone(tmp_path: Path, disk: SlowDisk) -> None:
    piece = cold(tmp_path / "a", 64, disk)
    async with reading(ahead=64 * PAGESIZE) as reads:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reads.bring, "one", piece, 0, 64 * PAGESIZE)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        queued = reads.statistics().queued
        disk.let()
    assert queued == 0
    assert len(disk.reads) == 1  # that had begun


async def test_what_another_one_waits_for_is_read_though_the_first_has_gone(tmp_path: Path, disk: SlowDisk) -> None:
    first, second = cold(tmp_path / "a", 4, disk), cold(tmp_path / "b", 4, disk)
    async with reading() as reads, trio.open_nursery() as nursery:
        nursery.start_soon(reads.bring, "blocker", first, 0, PIECE)
        leaving = trio.CancelScope()

        async def leave() -> None:
            with leaving:
                await reads.bring("leaver", second, 0, PIECE)

        nursery.start_soon(leave)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(reads.bring, "stayer", second, 0, PIECE)
        await trio.testing.wait_all_tasks_blocked()
        leaving.cancel()
        reads.forget("leaver")
        disk.let()
    assert pages_missing(second) == 0


async def test_an_unreadable_sector_is_told_to_who_wants_it_and_to_nobody_else(tmp_path: Path, disk: SlowDisk) -> None:
    piece = cold(tmp_path / "a", 16, disk)
    disk.fails_at = PIECE
    disk.let()
    async with reading(ahead=16 * PAGESIZE) as reads:
        assert await reads.bring("one", piece, 0, PIECE)
        with pytest.raises(OSError, match="Input/output"):
            await reads.bring("one", piece, PIECE, PIECE)
        assert await reads.bring("two", piece, 2 * PIECE, PIECE)


async def test_the_error_of_a_read_that_began_before_a_request_is_not_told_to_it(
    tmp_path: Path, disk: SlowDisk
) -> None:
    """The disk may have recovered since: a later reader gets the result of a read of its own."""
    piece = cold(tmp_path / "a", 4, disk)
    disk.fails_at = 0
    outcomes: dict[str, object] = {}

    async def bring(consumer: str) -> None:
        try:
            outcomes[consumer] = await reads.bring(consumer, piece, 0, PIECE)
        except OSError as error:
            outcomes[consumer] = error.errno

    async with reading(threads=2) as reads, trio.open_nursery() as nursery:
        nursery.start_soon(bring, "earlier")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(bring, "later")
        await trio.testing.wait_all_tasks_blocked()
        disk.let(1)
        while "earlier" not in outcomes:
            await trio.testing.wait_all_tasks_blocked()
        disk.fails_at = None
        disk.let()
    assert outcomes == {"earlier": errno.EIO, "later": True}


async def test_the_error_of_a_lookup_is_not_told_to_who_wants_its_pages(tmp_path: Path, disk: SlowDisk) -> None:
    piece = cold(tmp_path / "a", 8, disk)
    brought: list[bool] = []

    def fail() -> None:
        raise FileNotFoundError(errno.ENOENT, "not there")

    async def look_up() -> None:
        with pytest.raises(FileNotFoundError):
            await reads.look_up("earlier", ColdReadError(fail, piece.descriptor, PIECE, PIECE))

    async def bring() -> None:
        brought.append(await reads.bring("later", piece, PIECE, PIECE))

    async with reading() as reads, trio.open_nursery() as nursery:
        nursery.start_soon(reads.bring, "blocker", piece, 0, PIECE)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(look_up)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(bring)
        await trio.testing.wait_all_tasks_blocked()
        disk.let()
    assert brought == [True]


async def test_the_error_of_a_read_that_was_queued_before_a_request_and_begins_after_it_is_told(
    tmp_path: Path, disk: SlowDisk
) -> None:
    piece = cold(tmp_path / "a", 8, disk)
    disk.fails_at = PIECE
    errors: list[int | None] = []

    async def bring(consumer: str) -> None:
        try:
            await reads.bring(consumer, piece, PIECE, PIECE)
        except OSError as error:
            errors.append(error.errno)

    async with reading() as reads, trio.open_nursery() as nursery:
        nursery.start_soon(reads.bring, "blocker", piece, 0, PIECE)
        await trio.testing.wait_all_tasks_blocked()
        for consumer in ("earlier", "later"):
            nursery.start_soon(bring, consumer)
            await trio.testing.wait_all_tasks_blocked()
        disk.let()
    assert errors == [errno.EIO, errno.EIO]
    assert disk.reads.count((piece.descriptor.fd, PIECE)) == 1


async def test_a_file_that_was_cut_is_told(tmp_path: Path) -> None:
    piece = cold(tmp_path / "a", 8, Disk())
    os.truncate(tmp_path / "a", PIECE)
    async with reading() as reads:
        with pytest.raises(OSError, match="the file was truncated: bytes "):
            await reads.bring("one", piece, PIECE, PIECE)


async def test_a_lookup_is_done_by_a_thread_in_its_turn_and_its_error_told(tmp_path: Path) -> None:
    piece = cold(tmp_path / "a", 1, Disk())
    done_by: list[int] = []

    def job() -> None:
        done_by.append(threading.get_ident())
        raise OSError(errno.EIO, "no")

    async with reading() as reads:
        with pytest.raises(OSError, match="no"):
            await reads.look_up("one", ColdReadError(job, piece.descriptor, 0, PAGESIZE))
    assert done_by != [threading.get_ident()]


# -- what has been passed --


async def drops_done(reads: ReadAhead) -> None:
    """Wait until no worker reads or drops anything."""
    while True:
        await trio.testing.wait_all_tasks_blocked()
        if not reads._limiter.borrowed_tokens:
            return


async def test_what_a_lagging_consumer_has_passed_goes_from_memory(tmp_path: Path) -> None:
    piece = cold(tmp_path / "a", 16, Disk())
    piece.descriptor.pread(PIECE, 3 * PIECE)  # in memory for another reason
    async with reading(drop=True) as reads:
        assert await reads.bring("one", piece, 0, 2 * PIECE)
        reads.begun("one", part(piece, PIECE))
        await drops_done(reads)
        assert pages_missing(piece) == 8
        reads.sent("one", part(piece, 15 * PAGESIZE))
    assert pages_missing(piece) == 12


async def test_what_was_just_sent_stays_since_the_next_fetch_begins_within_it(tmp_path: Path) -> None:
    """A slice ends inside a batch, and the way to the next one leads through the header before it."""
    piece = cold(tmp_path / "a", 16, Disk())
    async with reading(drop=True) as reads:
        assert await reads.bring("one", piece, 0, 2 * PIECE)
        first = FileSlice(piece.descriptor, 0, 2 * PIECE)
        reads.begun("one", first)
        reads.sent("one", first)
    assert pages_missing(piece) == 8


async def test_not_while_another_one_follows(tmp_path: Path) -> None:
    piece = cold(tmp_path / "a", 16, Disk())
    async with reading(drop=True) as reads:
        assert await reads.bring("one", piece, 0, 4 * PIECE)
        assert await reads.bring("two", piece, 0, PIECE)
        reads.sent("one", piece)
        await drops_done(reads)
        assert pages_missing(piece) == 0
        reads.begun("two", part(piece, 2 * PIECE))
        await drops_done(reads)
        assert pages_missing(piece) == 8
        reads.forget("two")
    assert pages_missing(piece) == 16


async def test_what_has_to_be_read_again_is_kept_for_a_while(tmp_path: Path) -> None:
    """Consumers that go round in a file whose pages leave memory now and then kept what they had lost out of it."""
    piece = cold(tmp_path / "a", 16, Disk())
    async with reading(drop=True) as reads:

        async def read_all_but_the_last_page() -> None:
            assert await reads.bring("one", piece, 0, 4 * PIECE)
            reads.begun("one", part(piece, 15 * PAGESIZE))
            await drops_done(reads)

        await read_all_but_the_last_page()
        assert pages_missing(piece) == 15
        await read_all_but_the_last_page()
        assert pages_missing(piece) == 0
        assert not reads.passed.knows(piece.descriptor)
        for _ in range(KEEP_ROUNDS):
            reads.passed.close_idle()
        evict(piece.descriptor)
        await read_all_but_the_last_page()
        assert pages_missing(piece) == 15


async def test_a_file_that_its_consumer_has_left_without_a_word_is_closed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A consumer that seeks elsewhere kept it open until it disconnected, and its room taken if it was removed."""
    left, followed = cold(tmp_path / "a", 16, Disk()), cold(tmp_path / "b", 16, Disk())
    async with reading(drop=True) as reads, trio.open_nursery() as nursery:
        nursery.start_soon(reads.run)
        for piece in (left, followed):
            assert await reads.bring("one", piece, 0, 2 * PIECE)
        for _ in range(7):
            await trio.sleep(0.4 * IDLE_S)
            reads.begun("one", part(followed, PAGESIZE))
        assert (reads.passed.knows(left.descriptor), reads.passed.knows(followed.descriptor)) == (False, True)
        nursery.cancel_scope.cancel()


async def test_what_is_read_for_a_consumer_that_has_gone_is_not_remembered(tmp_path: Path, disk: SlowDisk) -> None:
    """Nobody would ever tell of it again: the file stayed open, and its pages in memory for all others."""
    piece = cold(tmp_path / "a", 4, disk)
    async with reading(drop=True) as reads:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reads.bring, "one", piece, 0, PIECE)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        reads.forget("one")
        disk.let()
    assert len(disk.reads) == 1
    assert not reads.passed


async def test_nothing_is_dropped_where_that_is_not_wanted(tmp_path: Path) -> None:
    piece = cold(tmp_path / "a", 4, Disk())
    async with reading(drop=False) as reads:
        assert await reads.bring("one", piece, 0, PIECE)
        reads.sent("one", piece)
        reads.forget("one")
    assert pages_missing(piece) == 0
