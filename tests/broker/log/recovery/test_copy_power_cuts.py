"""A log that copies another one, on a disk that loses its power at every single step.

Whatever the next start finds must be a piece of what its leader has, or had, without a gap or a batch of another
history in it; and copying goes on from there to the same bytes, producers, transactions and epochs.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import mkdtemp

import pytest

from tests.broker.log.io.crashing_disk import CrashingDisk, MachineGone
from tests.broker.log.producers.transactions import committed
from tests.broker.log.recovery.copied_logs import with_transactions, written_by_kafka
from tests.broker.log.recovery.ledger import START_MS
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.errors import IndexCorruptError, LogError
from warmlog.broker.log.index.leader_epochs import LeaderEpochs
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.replication.following.truncation import (
    EpochEnd,
    TruncateFully,
    after_divergence,
    after_out_of_range,
)
from warmlog.protocol.records.batch import headers, stamp
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT
from warmlog.protocol.records.markers import EndMarker, Outcome, marker_batch

STRIDE = int(os.environ.get("WARMLOG_FAULT_STRIDE", "3"))
KEY = ("words", 0)
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, segment_index_bytes=240)


class Leader:
    """What a leader has: whole batches from its start on."""

    def __init__(self, content: bytes, *, start: int = 0) -> None:
        found = [(header, content[at : at + header.size]) for at, header in headers(content)]
        self.batches = [(header, data) for header, data in found if header.last_offset >= start]
        self.start = start
        self.end = found[-1][0].next_offset
        self.epochs = LeaderEpochs()
        for header, _ in found:
            if header.leader_epoch != self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
        self.epochs.truncate_from_start(start)

    def fetch(self, offset: int, count: int) -> bytes:
        """That many batches from the one that holds the offset on, and a piece of the next."""
        found = [data for header, data in self.batches if header.last_offset >= offset]
        return b"".join(found[:count]) + b"".join(found[count : count + 1])[:70]

    def between(self, start: int, end: int) -> list[bytes]:
        inside = [each for each in self.batches if each[0].last_offset >= start and each[0].base_offset < end]
        return [data for _, data in inside] if start < end else []

    def divergence(self, epoch: int, offset: int) -> EpochEnd | None:
        if epoch < 0:  # older logs have none
            return None
        found = EpochEnd(*self.epochs.end_offset(epoch, self.end))
        return found if found.epoch < epoch or found.end_offset < offset else None


def history(*parts: tuple[int, int], producer_id: int = 7) -> bytes:
    """So many batches of each epoch, a third of them in transactions of one producer, which end now and then."""
    content, offset = bytearray(), 0
    for epoch, count in parts:
        for number in range(count):
            rows = [(START_MS + offset + i, b"k%d" % (number % 3), b"%d:" % epoch + b"v" * 40, ()) for i in range(2)]
            data = build_batch(rows)
            if number % 3 == 1:
                data = build_batch(
                    rows,
                    producer_id=producer_id + number % 2,
                    producer_epoch=0,
                    base_sequence=offset,
                    attributes=TRANSACTIONAL_BIT,
                )
            elif number % 6 == 5:
                outcome = Outcome.ABORT if number % 4 == 1 else Outcome.COMMIT
                data = marker_batch(producer_id + number % 2, 0, EndMarker(outcome, 0, START_MS + offset))
            moved = bytearray(data)
            stamp(moved, base_offset=offset, leader_epoch=epoch)
            content += moved
            offset = next(headers(bytes(moved)))[1].next_offset
    return bytes(content)


def made(directory: Path, make: Callable[[Path], object]) -> bytes:
    make(directory)
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def with_gaps(content: bytes) -> bytes:
    """As compaction leaves a log: without some of its batches."""
    found = [(header, content[at : at + header.size]) for at, header in headers(content)]
    last = len(found) - 1
    return b"".join(data for n, (header, data) in enumerate(found) if header.is_control or n == last or n % 3 != 1)


class Follower:
    """A follower of leaders, in a data directory at `root`."""

    def __init__(self, root: Path, *, flushed: int = 0) -> None:
        root.mkdir(exist_ok=True)
        self.disk = CrashingDisk(root)
        self.flushed = flushed  # up to here nothing may be missing
        self._directory: DataDirectory | None = None
        self._log: PartitionLog | None = None

    @property
    def log(self) -> PartitionLog:
        assert self._log is not None
        return self._log

    @property
    def directory(self) -> DataDirectory:
        assert self._directory is not None
        return self._directory

    def start(self) -> None:
        self._directory = directory = DataDirectory.open(self.disk.root, node_id=1, disk=self.disk)
        directory.unmark_clean()
        self._log = PartitionLog.open(
            directory.partition_path("words-0"),
            topic="words",
            partition=0,
            config=CONFIG,
            files=OpenFiles(disk=self.disk),
            clock=lambda: START_MS,
            random=Random(1),
            recovery_point=directory.recovery_points.get(KEY, 0),
            log_start_offset=directory.log_starts.get(KEY, 0),
            high_watermark=directory.high_watermarks.get(KEY, 0),
            clean=directory.was_clean,
        )
        directory.sync_names()
        self.log.durability.checkpoint_epochs()
        if not directory.was_clean:
            self.checkpoint()

    def checkpoint(self) -> None:
        self.directory.write_checkpoints([self.log])

    def flush(self) -> None:
        self.log.durability.flush()
        self.flushed = self.log.offsets.log_end_offset

    def stop(self) -> None:
        self.log.close()
        self.flushed = self.log.offsets.log_end_offset
        self.checkpoint()
        self.directory.mark_clean()
        self.end()

    def end(self) -> None:
        if self._log is not None:
            self._log.close(clean=False)
        if self._directory is not None:
            self._directory.close()
        self._log = self._directory = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def fetch(self, leader: Leader, count: int) -> None:
        """One fetch, and what follows from its result."""
        log = self.log
        epoch, end = log.epochs.latest, log.offsets.log_end_offset
        answer = leader.divergence(epoch, end)
        if not leader.start <= end <= leader.end:
            remedy = after_out_of_range(end, leader.start, leader.end)
            if isinstance(remedy, TruncateFully):
                self.truncate_fully(remedy.offset)
            else:
                self.truncate(leader.end)
        elif answer is not None:
            self.truncate(after_divergence(log.epochs, end, log.offsets.high_watermark, answer).offset)
        else:
            data = leader.fetch(end, count)
            first = next(headers(data))[1].base_offset
            if first < end:  # the leader's log begins inside of that batch
                assert not log.size
                self.truncate_fully(first)
            log.appends.append_copy(data)
            log.offsets.advance_high_watermark(leader.end - 3)
            if log.offsets.high_watermark >= leader.start:
                log.truncation.advance_start(leader.start)

    def truncate_fully(self, offset: int) -> None:
        self.flushed = 0
        self.log.truncation.prepare_truncate_fully(offset)
        self.checkpoint()
        self.log.truncation.truncate_fully(offset)

    def truncate(self, offset: int) -> None:
        self.flushed = min(self.flushed, self.log.offsets.log_start_offset)
        self.log.durability.lower_recovery_point(offset)
        self.checkpoint()
        self.log.truncation.truncate_to(offset)

    def catch_up(self, leader: Leader, count: int = 3) -> None:
        for _ in range(200):
            if (
                self.log.offsets.log_end_offset == leader.end
                and leader.divergence(self.log.epochs.latest, leader.end) is None
            ):
                return
            self.fetch(leader, count)
        raise AssertionError("it never catches up")

    def found(self) -> list[bytes]:
        paths = sorted(self.log.directory.glob("*.log"))
        content = b"".join(path.read_bytes() for path in paths)
        assert len(content) == self.log.size
        batches = [(header, content[at : at + header.size]) for at, header in headers(content)]
        return [data for header, data in batches if header.last_offset >= self.log.offsets.log_start_offset]

    def check(self, leaders: list[Leader]) -> None:
        log = self.log
        found = self.found()
        bounds = log.offsets.log_start_offset, log.offsets.log_end_offset
        assert (
            log.offsets.log_start_offset
            <= log.offsets.last_stable_offset
            <= log.offsets.high_watermark
            <= log.offsets.log_end_offset
        )
        assert any(found == leader.between(*bounds) for leader in leaders), (bounds, found)
        assert log.offsets.log_end_offset >= self.flushed
        latest = next(headers(found[-1]))[1].leader_epoch if found else -1
        assert log.epochs.latest == latest, (bounds, log.epochs.entries)


Step = Callable[[Follower], object]


def fetch(leader: Leader, count: int) -> Step:
    return lambda follower: follower.fetch(leader, count)


def catch_up(leader: Leader, count: int) -> Step:
    return lambda follower: follower.catch_up(leader, count)


def scenario(name: str, root: Path) -> tuple[list[Leader], list[Step]]:
    """The leaders, of which the last is the one in the end, and what the follower does."""
    keep: list[Step] = [Follower.flush, Follower.checkpoint]
    if name == "grow":
        leader = Leader(history((0, 12), (3, 14)))
        steps = [fetch(leader, 4), *keep, fetch(leader, 9), Follower.restart, fetch(leader, 2), Follower.flush]
        return [leader], [*steps, catch_up(leader, 1), Follower.restart]
    if name == "diverge":
        old, new = Leader(history((0, 10), (1, 12))), Leader(history((0, 8), (2, 12)))
        newest = Leader(history((0, 8), (2, 3), (4, 9)))
        steps = [catch_up(old, 5), *keep, catch_up(new, 4), Follower.flush, catch_up(newest, 6), Follower.restart]
        return [old, new, newest], steps
    if name == "start anew":
        content = history((0, 12), (1, 20))
        whole, rest = Leader(content), Leader(content, start=40)
        steps = [fetch(whole, 5), *keep, fetch(whole, 3), catch_up(rest, 4), Follower.flush, Follower.restart]
        return [whole, rest], steps
    make = written_by_kafka if name == "compacted, of Kafka" else with_transactions
    leader = Leader(with_gaps(made(root / "made", make)))
    return [leader], [fetch(leader, 2), *keep, fetch(leader, 3), fetch(leader, 2), Follower.flush, catch_up(leader, 4)]


NAMES = ["grow", "diverge", "start anew", "compacted, with transactions", "compacted, of Kafka"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    root = Path(mkdtemp(dir=memory)) if os.access(memory, os.W_OK) else tmp_path
    yield root
    rmtree(root, ignore_errors=True)


def play(follower: Follower, steps: list[Step]) -> bool:
    """Run the steps; whether the power stayed on."""
    try:
        follower.start()
        for step in steps:
            step(follower)
    except MachineGone:
        return False
    finally:
        follower.end()
    return True


def cut_power(follower: Follower, root: Path, random: Random, *, journal: bool) -> Follower:
    target = root / f"life-{int(follower.disk.root.name.rpartition('-')[2]) + 1}"
    follower.disk.crash(target, random, journal=journal)
    rmtree(follower.disk.root)
    return Follower(target, flushed=follower.flushed)


def as_copied(root: Path, leader: Leader, start: int) -> PartitionLog:
    """A log that copied all of it without a fault."""
    batches = leader.between(start, leader.end)
    first = next(headers(batches[0]))[1].base_offset
    log = PartitionLog.open(
        root / "reference" / "words-0",
        topic="words",
        partition=0,
        config=replace(CONFIG),
        files=OpenFiles(),
        clock=lambda: START_MS,
        random=Random(1),
        log_start_offset=min(first, start),
        high_watermark=0,
        clean=False,
    )
    log.appends.append_copy(b"".join(batches))
    log.offsets.advance_high_watermark(leader.end)
    log.truncation.advance_start(start)
    return log


def readable(log: PartitionLog) -> list[int]:
    """What a consumer of committed records reads; indexes found corrupt are rebuilt, as a broker does."""
    for _ in range(log.segment_count):
        try:
            return committed(log)
        except IndexCorruptError as error:
            log.reads.rebuild_indexes(error.base_offset)
    return committed(log)


def finish(follower: Follower, root: Path, leaders: list[Leader]) -> None:
    """Copy the rest, and compare the log with one that had no fault."""
    leader = leaders[-1]
    follower.start()
    follower.check(leaders)
    follower.catch_up(leader)
    follower.log.offsets.advance_high_watermark(leader.end)
    follower.check([leader])
    log = follower.log
    reference = as_copied(root, leader, log.offsets.log_start_offset)
    start = max(log.offsets.log_start_offset, leader.start)  # the first batch may begin before it
    begun, expected_begun = (
        [(epoch, max(at, start)) for epoch, at in each.epochs.entries] for each in (log, reference)
    )
    assert begun == expected_begun
    assert log.offsets.last_stable_offset == reference.offsets.last_stable_offset
    assert readable(log) == committed(reference)
    states = {each.producer_id: each for each in log.producers.capture()}
    for expected in reference.producers.capture():
        state = states[expected.producer_id]
        assert (state.last_sequence, state.transaction_first_offset) == (
            expected.last_sequence,
            expected.transaction_first_offset,
        )
    reference.close(clean=False)
    rmtree(root / "reference")
    follower.restart()
    assert log.recovery is None or follower.log.recovery is None
    follower.check([leader])
    follower.end()


@pytest.mark.timeout(3600 if STRIDE == 1 else 240)
@pytest.mark.parametrize("name", NAMES)
def test_a_copy_that_is_cut_off_anywhere_resumes(place: Path, name: str) -> None:
    leaders, steps = scenario(name, place)
    dry = Follower(place / "life-0")
    assert play(dry, steps)
    count = len(dry.disk.steps)
    rmtree(dry.disk.root)
    for nth in range(0, count, STRIDE):
        random = Random(nth)
        follower = Follower(place / "life-0")
        follower.disk.fail_at(nth, "crash after")
        try:
            assert not play(follower, steps)
            follower = cut_power(follower, place, random, journal=nth % 2 == 0)
            follower.disk.fail_at(random.randrange(40), "crash after")
            with suppress(MachineGone, LogError):
                play(follower, [lambda follower: follower.check(leaders)])
            follower.disk.gone = False
            follower = cut_power(follower, place, random, journal=nth % 2 == 1)
            finish(follower, place, leaders)
        except (AssertionError, OSError, LogError, KeyError) as error:
            error.add_note(f"step {nth} of {name}: {follower.disk.steps[max(0, nth - 5) : nth + 1]}")
            raise
        rmtree(follower.disk.root)
