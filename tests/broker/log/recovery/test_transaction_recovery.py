"""Transaction indexes after an unclean stop: rebuilt from the recovery point on, and not below it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from tests.broker.log.conftest import START_MS, FaultyDisk
from warmlog.broker.log.index.transaction import AbortedTransaction, encode_aborted, read_aborted
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT

Bench = Any
Batch = Callable[..., bytes]

ABORT, COMMIT = 0, 1
SEGMENTS, BATCHES = 20, 10  # one record each


class CountingDisk(FaultyDisk):
    """Counts what is read of log files."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0
        self._logs: set[int] = set()

    def open(self, path: str, flags: int) -> int:
        fd = super().open(path, flags)
        (self._logs.add if path.endswith(".log") else self._logs.discard)(fd)
        return fd

    def pread(self, fd: int, size: int, position: int) -> bytes:
        data = super().pread(fd, size, position)
        if fd in self._logs:
            self.read_bytes += len(data)
        return data


def records(producer_id: int, sequence: int) -> bytes:
    return build_batch(
        [(START_MS, b"k", b"v" * 100, ())],
        producer_id=producer_id, producer_epoch=0, base_sequence=sequence, attributes=TRANSACTIONAL_BIT,
    )  # fmt: skip


def marker(kind: int, producer_id: int) -> bytes:
    return build_batch(
        [(START_MS, pack(">hh", 0, kind), pack(">hi", 0, 0), ())],
        producer_id=producer_id, producer_epoch=0, attributes=CONTROL_BIT | TRANSACTIONAL_BIT,
    )  # fmt: skip


def add(bench: Bench, base: int, offset: int, batches: Sequence[bytes]) -> None:
    """Append batches of one record each to a segment's file: the log itself takes no transactions."""
    with bench.path(base, ".log").open("ab") as file:
        for batch in batches:
            file.write(offset.to_bytes(8) + batch[8:])
            offset += 1


def killed(bench: Bench, batch: Batch) -> int:
    """Leave a log of sealed segments and an empty active one; gives the base offset of that."""
    log = bench.open(segment_bytes=BATCHES * len(batch()))
    for sequence in range(SEGMENTS * BATCHES):
        log.appends.append(
            batch(timestamp=START_MS + sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)
        )
    log.rolls.roll()
    bench.kill(log)
    return SEGMENTS * BATCHES


def recovered(bench: Bench, recovery_point: int) -> PartitionLog:
    log: PartitionLog = bench.open(clean=False, recovery_point=recovery_point, segment_bytes=1 << 20)
    return log


def aborted(bench: Bench, base: int) -> list[AbortedTransaction]:
    return read_aborted(Disk(), str(bench.path(base, ".txnindex")), base)


def test_an_unclean_start_reads_no_more_of_a_log_because_of_a_transaction(bench: Bench, batch: Batch) -> None:
    end = killed(bench, batch)
    add(bench, end, end, [records(1, 0), marker(ABORT, 1), records(1, 1), marker(COMMIT, 1)])
    bench.disk = CountingDisk()
    bench.files = OpenFiles(disk=bench.disk)
    log = recovered(bench, end)
    assert aborted(bench, end) == [AbortedTransaction(1, end, end + 1, end + 2)]
    assert log.recovery is not None
    assert log.recovery.rebuilt_transaction_indexes == (end,)
    assert bench.disk.read_bytes < 2 * BATCHES * len(batch())


@pytest.mark.parametrize("recovery_point", [0, 1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("content", [None, b"torn", bytes(68)])
def test_what_is_lost_of_a_transaction_index_past_the_recovery_point_is_made_anew(
    bench: Bench, batch: Batch, recovery_point: int, content: bytes | None
) -> None:
    end = killed(bench, batch)
    batches = [
        *(records(1, 0), records(2, 0), marker(ABORT, 1), records(1, 1)),
        *(marker(ABORT, 2), marker(COMMIT, 1), records(2, 1), marker(ABORT, 2)),
    ]
    add(bench, end, end, batches)
    expected = [
        AbortedTransaction(1, end, end + 2, end + 1),
        AbortedTransaction(2, end + 1, end + 4, end + 3),
        AbortedTransaction(2, end + 6, end + 7, end + 8),
    ]
    synced = [entry for entry in expected if entry.last_offset < end + recovery_point]
    if content is not None or synced:
        bench.path(end, ".txnindex").write_bytes(encode_aborted(synced) + (content or b""))
    log = recovered(bench, end + recovery_point)
    assert aborted(bench, end) == expected
    log.close()
    log = bench.open(recovery_point=log.durability.recovery_point)
    assert log.recovery is None
    assert aborted(bench, end) == expected


def test_transaction_indexes_below_the_recovery_point_are_left_as_they_are(bench: Bench, batch: Batch) -> None:
    end = killed(bench, batch)
    bench.path(0, ".txnindex").write_bytes(encode_aborted([AbortedTransaction(9, 1, 2, 3)]))
    before = bench.path(0, ".txnindex").stat()
    add(bench, end, end, [records(1, 0), marker(ABORT, 1)])
    recovered(bench, end)
    assert bench.path(0, ".txnindex").stat() == before
    assert len(aborted(bench, end)) == 1


def test_a_transaction_that_began_below_the_recovery_point_is_known_from_a_snapshot(bench: Bench, batch: Batch) -> None:
    end = killed(bench, batch)
    add(bench, end, end, [records(1, 0), records(2, 0)])
    log = recovered(bench, end)  # writes a snapshot at its end
    log.close()
    add(bench, end, end + 2, [marker(ABORT, 2), marker(ABORT, 1)])
    for path in bench.directory.glob("*.log"):
        if path != bench.path(end, ".log"):
            path.write_bytes(bytes(path.stat().st_size))  # nothing of them is needed
    recovered(bench, end + 2)
    assert aborted(bench, end) == [
        AbortedTransaction(2, end + 1, end + 2, end),
        AbortedTransaction(1, end, end + 3, end + 4),
    ]


def test_a_transaction_index_that_is_damaged_below_the_recovery_point_is_made_anew_for_that_segment(
    bench: Bench, batch: Batch
) -> None:
    end = killed(bench, batch)
    add(bench, end, end, [records(1, 0), marker(ABORT, 1), records(2, 0), marker(ABORT, 2)])
    bench.path(end, ".txnindex").write_bytes(bytes(34))
    recovered(bench, end + 3)
    assert aborted(bench, end) == [
        AbortedTransaction(1, end, end + 1, end + 2),
        AbortedTransaction(2, end + 2, end + 3, end + 4),
    ]


def test_an_unclean_start_without_a_snapshot_reads_the_whole_log_for_open_transactions(
    bench: Bench, batch: Batch
) -> None:
    end = killed(bench, batch)
    add(bench, end, end, [records(1, 0), marker(ABORT, 1)])
    for path in Path(bench.directory).glob("*.snapshot"):
        path.unlink()
    recovered(bench, end)
    assert aborted(bench, end) == [AbortedTransaction(1, end, end + 1, end + 2)]


# -- the index and its sync ----------------------------------------------------------------------------------------


def synced_inodes(bench: Bench) -> list[int]:
    """The files that are synced from now on."""
    synced: list[int] = []

    def sync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        Disk.sync(bench.disk, fd)

    bench.disk.sync = sync
    return synced


def test_a_transaction_index_is_synced_with_its_segment(bench: Bench, batch: Batch) -> None:
    log = bench.open(segment_bytes=2 * len(batch()))
    bench.path(0, ".txnindex").write_bytes(encode_aborted([AbortedTransaction(1, 0, 1, 2)]))
    log.appends.append(batch())
    synced = synced_inodes(bench)
    log.durability.flush()
    assert bench.path(0, ".txnindex").stat().st_ino in synced
    synced.clear()
    log.appends.append(batch())
    log.appends.append(batch())  # rolls
    assert bench.path(0, ".txnindex").stat().st_ino in synced


def test_a_failed_log_gets_a_new_transaction_index_that_is_synced(bench: Bench, batch: Batch) -> None:
    end = killed(bench, batch)
    add(bench, end, end, [records(1, 0), marker(ABORT, 1), records(2, 0), marker(ABORT, 2), records(1, 1)])
    log = recovered(bench, end)
    entries = aborted(bench, end)
    before = bench.path(end, ".txnindex").stat().st_ino
    log.appends.append(batch())
    bench.disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        log.durability.flush()
    bench.path(end, ".txnindex").write_bytes(encode_aborted(entries[:1]))  # what is left if its page is given up
    synced = synced_inodes(bench)
    reopened = log.begin_reopening().make()
    log.finish_reopening(reopened)
    reopened.close_replaced()
    assert aborted(bench, end) == entries
    assert len(entries) == 2
    assert before not in synced
    assert bench.path(end, ".txnindex").stat().st_ino in synced
    assert not list(bench.directory.glob("*.cleaned*"))


def test_what_a_failed_log_loses_goes_from_its_transaction_index(bench: Bench, batch: Batch) -> None:
    end = killed(bench, batch)
    add(bench, end, end, [records(1, 0), marker(ABORT, 1), records(2, 0), marker(ABORT, 2)])
    log = recovered(bench, end)
    entries = aborted(bench, end)
    bench.disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        log.durability.flush()
    with bench.path(end, ".log").open("r+b") as file:
        file.seek(log.size - (end * len(batch())) - 10)
        file.write(bytes(10))
    reopened = log.begin_reopening().make()
    log.finish_reopening(reopened)
    assert log.offsets.log_end_offset == end + 3
    assert aborted(bench, end) == entries[:1]
