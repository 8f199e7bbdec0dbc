"""Where a log's producers are known from after a stop of either kind, and that no record is stored twice."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.broker.log.conftest import START_MS, FaultyDisk
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.errors import OutOfOrderSequenceError
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.snapshot import decode_snapshot
from warmlog.broker.log.producers.state import ProducerState
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.reader import records_in

Bench = Any
Batch = Callable[..., bytes]

DAY_MS = 24 * 3600 * 1000


class CountingDisk(FaultyDisk):
    """Counts what is read of files."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        data = super().pread(fd, size, position)
        self.read_bytes += len(data)
        return data


def send(log: PartitionLog, batch: Batch, sequence: int, count: int = 1, *, producer_id: int = 7) -> int:
    data = batch(count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    return log.appends.append(data).base_offset


def fill(log: PartitionLog, batch: Batch, batches: int, *, producer_id: int = 7, first: int = 0) -> None:
    for sequence in range(first, first + batches):
        send(log, batch, sequence, producer_id=producer_id)


def states(log: PartitionLog) -> dict[int, ProducerState]:
    return {state.producer_id: state for state in log.producers.capture()}


def snapshots(bench: Bench) -> list[int]:
    return sorted(int(path.stem) for path in bench.directory.glob("*.snapshot"))


def opened(bench: Bench) -> set[str]:
    return {Path(str(path)).name for verb, path in bench.disk.calls if verb == "open"}


def test_a_duplicate_is_answered_with_where_it_is_and_not_written(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    size = log.size
    again = log.appends.append(batch(producer_id=7, producer_epoch=0, base_sequence=1))
    assert (again.base_offset, again.last_offset, again.is_duplicate) == (1, 1, True)
    assert (log.size, log.offsets.log_end_offset) == (size, 3)
    assert send(log, batch, 3) == 3


def test_a_duplicate_of_what_is_only_planned_fails_with_it(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    first = log.appends.plan(batch(producer_id=7, producer_epoch=0, base_sequence=0))
    again = log.appends.plan(batch(producer_id=7, producer_epoch=0, base_sequence=0))
    assert again.is_duplicate
    bench.disk.write_short(10)
    with pytest.raises(OSError, match="no space"):
        log.appends.write([first, again])
    log.appends.abandon()
    assert states(log) == {}
    assert not log.appends.append(batch(producer_id=7, producer_epoch=0, base_sequence=0)).is_duplicate


def test_a_failed_write_leaves_the_producer_where_it_was(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 2)
    bench.disk.fail("pwritev", code=28)
    with pytest.raises(OSError, match="No space"):
        send(log, batch, 2)
    assert states(log)[7].last_sequence == 1
    assert send(log, batch, 2) == 2


def test_a_roll_keeps_the_states_as_they_were_before_it(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 10)
    bases = sorted(int(path.stem) for path in bench.directory.glob("*.log"))
    assert snapshots(bench) == bases[1:]
    for base in bases[1:]:
        (state,) = decode_snapshot(bench.path(base, ".snapshot").read_bytes())
        assert (state.last_sequence, state.batches[0].last_offset) == (base - 1, base - 1)


def test_a_clean_start_reads_the_snapshot_at_the_end_and_no_batch(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 10)
    fill(log, batch, 3, producer_id=8, first=100)
    expected = states(log)
    log.close()
    end, last_base = log.offsets.log_end_offset, max(int(path.stem) for path in bench.directory.glob("*.log"))
    assert snapshots(bench)[-1] == end
    bench.disk.calls.clear()
    log = bench.open()
    assert {name for name in opened(bench) if name.endswith((".log", ".snapshot"))} <= {
        f"{last_base:020d}.log",
        f"{end:020d}.snapshot",
    }
    assert states(log).keys() == expected.keys()
    for producer_id, state in states(log).items():
        assert state.batches == expected[producer_id].batches[-1:]
    assert send(log, batch, 9) == 9  # the last one, again
    assert send(log, batch, 10) == end


def test_a_log_that_did_not_change_keeps_its_snapshot(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    log = bench.reopen(log)
    before = bench.path(3, ".snapshot").stat().st_ino
    bench.reopen(log).close()
    assert bench.path(3, ".snapshot").stat().st_ino == before
    assert snapshots(bench) == [3]


def test_an_old_snapshot_of_a_clean_stop_goes_when_the_log_has_grown(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 3)
    log = bench.reopen(log)
    fill(log, batch, 3, first=3)
    bench.reopen(log)
    assert snapshots(bench) == [6]


def test_after_a_kill_the_newest_snapshot_and_the_batches_after_it_tell(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    expected = states(log)
    base = max(snapshots(bench))
    bench.kill(log)
    bench.disk.calls.clear()
    log = bench.open(clean=False, recovery_point=base)
    assert {name for name in opened(bench) if name.endswith(".log")} == {f"{base:020d}.log"}
    assert states(log)[7].last_sequence == 19
    kept = states(log)[7].batches
    assert kept == expected[7].batches[-len(kept) :]
    assert snapshots(bench)[-1] == base
    assert send(log, batch, 19) == 19
    assert send(log, batch, 20) == 20


@pytest.mark.parametrize(("segment_bytes", "is_flushed"), [(700, False), (1 << 20, False), (1 << 20, True)])
def test_a_second_kill_does_not_take_the_batches_before_the_last_one(
    bench: Bench, batch: Batch, segment_bytes: int, is_flushed: bool
) -> None:
    """Snapshots have the last batch only, and the producer has not come back in between."""
    log = bench.open(segment_bytes=segment_bytes, index_interval_bytes=0)
    fill(log, batch, 20)
    log.rolls.roll()
    fill(log, batch, 5, first=20)
    fill(log, batch, 3, producer_id=8)
    for _ in range(2):
        expected = states(log)
        bench.kill(log)
        log = bench.open(clean=False, recovery_point=log.durability.recovery_point if is_flushed else 0)
        if is_flushed:
            log.durability.flush()
        assert states(log) == expected
    for back in range(1, 6):
        assert send(log, batch, 25 - back) == 25 - back
    for each in range(3):
        assert send(log, batch, each, producer_id=8) == 25 + each
    with pytest.raises(OutOfOrderSequenceError):
        send(log, batch, 19)


def test_without_any_snapshot_an_unclean_start_reads_the_whole_log(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 5, producer_id=1)
    fill(log, batch, 15)
    expected = states(log)
    bench.kill(log)
    for path in bench.directory.glob("*.snapshot"):
        path.unlink()
    log = bench.open(clean=False, recovery_point=20)
    assert states(log) == expected


def test_without_any_snapshot_a_clean_start_takes_it_that_nobody_produced(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 5)
    log.close()
    bench.path(5, ".snapshot").unlink()
    assert states(bench.open()) == {}
    assert decode_snapshot(bench.path(5, ".snapshot").read_bytes()) == []


def test_recovery_reads_what_idempotent_producers_wrote_once(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 200)
    before, size = states(log), log.size
    bench.kill(log)
    bench.disk = CountingDisk()
    bench.files = OpenFiles(disk=bench.disk)
    assert states(bench.open(clean=False)) == before
    assert size <= bench.disk.read_bytes < 1.5 * size


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damaged", [1, 2, 100])
def test_a_damaged_snapshot_is_dropped_for_an_older_one(bench: Bench, batch: Batch, damaged: int, clean: bool) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    expected = states(log)
    log.close(clean=clean)
    paths = sorted(bench.directory.glob("*.snapshot"))[-damaged:]
    for path in paths:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    log = bench.open(clean=clean, recovery_point=20)
    kept = states(log)[7].batches
    assert kept == expected[7].batches[-len(kept) :]
    base = max(int(path.stem) for path in bench.directory.glob("*.log"))
    assert decode_snapshot(bench.path(base, ".snapshot").read_bytes())[0].last_sequence == base - 1


def test_what_recovery_cuts_the_producer_may_send_again(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    bench.kill(log)
    base = max(snapshots(bench))
    path = bench.path(base, ".log")
    path.write_bytes(path.read_bytes()[:-1])
    log = bench.open(clean=False, recovery_point=base)
    assert (log.offsets.log_end_offset, states(log)[7].last_sequence) == (19, 18)
    assert send(log, batch, 19) == 19


def test_snapshots_past_the_end_go_with_what_is_cut(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    bench.kill(log)
    bases = snapshots(bench)
    path = bench.path(bases[-2], ".log")
    path.write_bytes(path.read_bytes()[:-1])
    log = bench.open(clean=False, recovery_point=bases[-2])
    assert log.offsets.log_end_offset == bases[-1] - 1
    assert snapshots(bench) == bases[:-1]
    assert states(log)[7].last_sequence == bases[-1] - 2


@pytest.mark.parametrize("offset", [0, 1, 8, 13, 19, 20])
def test_truncation_takes_the_states_back(bench: Bench, batch: Batch, offset: int) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    log.truncation.truncate_to(offset)
    assert (states(log)[7].last_sequence if offset else -1) == offset - 1
    assert all(each <= offset for each in snapshots(bench))
    assert send(log, batch, offset) == offset


def test_truncation_keeps_the_batches_before_a_snapshot_in_mind(bench: Bench, batch: Batch) -> None:
    log = bench.open()
    fill(log, batch, 18)
    log.rolls.roll()
    fill(log, batch, 2, first=18)
    log.truncation.truncate_to(19)
    for sequence in range(15, 19):  # of the five last ones, the end was cut
        assert send(log, batch, sequence) == sequence
    assert send(log, batch, 19) == 19


def test_a_snapshot_that_cannot_be_written_does_not_stop_a_roll(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    bench.disk.fail("rename", nth=2)  # the first one is that of the offset up to which nothing is missing
    fill(log, batch, 10)
    assert log.segment_count == len(snapshots(bench)) + 2
    bench.kill(log)
    assert states(bench.open(clean=False))[7].last_sequence == 9


def test_states_of_old_records_outlive_a_start(bench: Bench, batch: Batch) -> None:
    """Whether they are idle shows later: their records' times do not tell when they were written."""
    log = bench.open()
    fill(log, batch, 5)
    log.close()
    bench.clock.now_ms = START_MS + DAY_MS
    assert states(bench.open())[7].last_sequence == 4


def test_producers_outlive_the_records_that_retention_takes(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=700)
    fill(log, batch, 20)
    log.close()
    base = max(int(path.stem) for path in bench.directory.glob("*.log"))
    log = bench.open(log_start_offset=20)
    assert send(log, batch, 19) == 19
    assert send(log, batch, 20) == 20
    assert base < 20


@pytest.mark.parametrize("start", [3, 4, 5])
@pytest.mark.parametrize("clean", [True, False])
def test_a_batch_whose_records_were_deleted_is_a_duplicate_as_long_as_its_bytes_are_there(
    bench: Bench, batch: Batch, start: int, clean: bool
) -> None:
    log = bench.open()
    fill(log, batch, 5)
    log.close(clean=clean)
    for path in bench.directory.glob("*.snapshot"):
        path.unlink()
    log = bench.open(clean=False, log_start_offset=start)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (start, 5)
    assert [send(log, batch, sequence) for sequence in (4, 3, 0, 5)] == [4, 3, 0, 5]


class IdempotentMachine(RuleBasedStateMachine):
    """Two clients that send until they are told that it is stored, on a log whose disk fails and that is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(mkdtemp())
        self.disk = FaultyDisk()
        self.files = OpenFiles(disk=self.disk)
        self.stored: list[tuple[int, int, int]] = []  # producer, first sequence, count, in the log's order
        self.synced = 0  # how many of them a power cut cannot take
        self.known_from = 0  # offset from which on the last five are known: a clean stop leaves the last one only

    @initialize(segment_bytes=st.sampled_from([600, 2000, 1 << 20]), interval=st.sampled_from([0, 300]))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=interval, segment_index_bytes=4096)
        self.open(clean=True)

    def open(self, *, clean: bool, recovery_point: int = 0) -> None:
        self.log = PartitionLog.open(
            self.root / "words-0",
            topic="words",
            partition=0,
            config=self.config,
            files=self.files,
            clock=lambda: START_MS,
            random=random.Random(1),
            recovery_point=recovery_point,
            clean=clean,
        )

    def next_sequence(self, producer_id: int) -> int:
        return sum(count for each, _, count in self.stored if each == producer_id)

    def offset_of(self, index: int) -> int:
        return sum(count for _, _, count in self.stored[:index])

    def batch(self, producer_id: int, sequence: int, count: int) -> bytes:
        rows = [(START_MS, None, b"%d:%d" % (producer_id, sequence + i), ()) for i in range(count)]
        return build_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)

    @rule(sizes=st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4)), min_size=1, max_size=6))
    def send(self, sizes: list[tuple[int, int]]) -> None:
        """One request after the other."""
        for producer_id, count in sizes:
            sequence = self.next_sequence(producer_id)
            assert (
                self.log.appends.append(self.batch(producer_id, sequence, count)).base_offset
                == self.log.offsets.log_end_offset - count
            )
            self.stored.append((producer_id, sequence, count))

    @rule(
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4), fault=st.sampled_from(["error", "short", "abandon"])
    )
    def fail(self, sizes: list[int], fault: str) -> None:
        """A pipeline that is not written: nothing of it is there, and it may come again."""
        sequence, planned = self.next_sequence(1), []
        for count in sizes:
            planned.append(self.log.appends.plan(self.batch(1, sequence, count)))
            sequence += count
        if fault != "none" and all(each.roll is None for each in planned):
            self.disk.fail("pwritev", code=28) if fault == "error" else self.disk.write_short(30)
            with pytest.raises(OSError, match=r"."):
                self.log.appends.write(planned)
        self.log.appends.abandon()

    @precondition(lambda self: self.stored)
    @rule(back=st.integers(0, 6))
    def send_again(self, back: int) -> None:
        """An answer was lost: the client sends what the log has."""
        index = max(0, len(self.stored) - 1 - back)
        producer_id, sequence, count = self.stored[index]
        newer = sum(1 for each in self.stored[index + 1 :] if each[0] == producer_id)
        try:
            again = self.log.appends.append(self.batch(producer_id, sequence, count))
        except OutOfOrderSequenceError:
            assert newer >= 5 or (newer and self.offset_of(index) < self.known_from)
        else:
            assert again.is_duplicate
            assert again.base_offset == self.offset_of(index)
            assert newer < 5

    @precondition(lambda self: self.stored)
    @rule(ahead=st.integers(1, 3))
    def send_out_of_order(self, ahead: int) -> None:
        producer_id = self.stored[-1][0]
        with pytest.raises(OutOfOrderSequenceError):
            self.log.appends.append(self.batch(producer_id, self.next_sequence(producer_id) + ahead, 1))

    @rule()
    def roll(self) -> None:
        self.log.rolls.roll()

    @rule()
    def flush(self) -> None:
        self.log.durability.flush()
        self.synced = len(self.stored)

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self.synced = len(self.stored)
        self.known_from = self.log.offsets.log_end_offset
        self.open(clean=True, recovery_point=self.log.durability.recovery_point)

    @rule(lost=st.integers(0, 200), without_snapshots=st.booleans())
    def cut_the_power(self, lost: int, without_snapshots: bool) -> None:
        """The end of the last file is gone, as far as it was not synced; clients send again what nobody confirmed."""
        point, active = self.log.durability.recovery_point, max((self.root / "words-0").glob("*.log"))
        self.log.close(clean=False)
        if int(active.stem) >= point:
            data = active.read_bytes()
            active.write_bytes(data[: max(0, len(data) - lost)])
        if without_snapshots:
            for path in (self.root / "words-0").glob("*.snapshot"):
                path.unlink()
        self.open(clean=False, recovery_point=point)
        while self.offset_of(len(self.stored)) > self.log.offsets.log_end_offset:
            self.stored.pop()
        assert self.offset_of(len(self.stored)) == self.log.offsets.log_end_offset
        assert len(self.stored) >= self.synced
        self.known_from = 0 if without_snapshots else point

    @invariant()
    def every_record_is_there_once_and_in_order(self) -> None:
        if not hasattr(self, "log"):
            return
        found: list[bytes | None] = []
        offset = 0
        while offset < self.log.offsets.log_end_offset:
            piece = self.log.reads.read(offset, 1 << 20, min_one_batch=True).slice
            assert piece is not None
            found += [record.value for record in records_in(piece.read_all(), from_offset=offset)]
            offset = len(found)
        assert found == [
            b"%d:%d" % (producer_id, sequence + i) for producer_id, sequence, count in self.stored for i in range(count)
        ]

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
        shutil.rmtree(self.root, ignore_errors=True)


TestIdempotence = IdempotentMachine.TestCase
TestIdempotence.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
