"""What power cuts at random steps have found, each as a story of its own (`test_power_cuts` looks for more)."""

import os
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random

import pytest

from tests.broker.log.producers.transactions import NOW_MS, committed, marker, opened, send
from tests.broker.log.recovery.copied_logs import with_transactions
from tests.broker.log.recovery.ledger import Ledger
from tests.broker.log.recovery.machine import Machine
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.index.transaction import ENTRY, read_aborted
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.markers import Outcome

CONFIG = LogConfig(index_interval_bytes=200, segment_index_bytes=4096)
CUTS = 20  # each takes its own part of what was not durable


def segments(path: Path) -> list[int]:
    return sorted(int(log.name[:20]) for log in path.glob("*.log"))


def snapshots_after_cuts(machine: Machine, target: Path) -> Iterator[set[int]]:
    """The offsets of the snapshots of producers that may be found if the power is cut now."""
    for seed in range(CUTS):
        image = target / f"cut-{seed}"
        machine.disk.crash(image, Random(seed), journal=bool(seed % 2))
        yield {int(path.name[:20]) for path in image.glob("words-0/*.snapshot")}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "life-0", Ledger())
    machine.start()
    yield machine
    machine.end()


def test_a_snapshot_past_where_a_log_was_cut_does_not_come_back(machine: Machine, tmp_path: Path) -> None:
    """It told of producers' batches that were cut, among new records, and their sequences were believed."""
    while machine.log.segment_count < 4:
        machine.append(2, 100)
    machine.checkpoint()
    bases = segments(machine.log.directory)
    machine.truncate(machine.log.offsets.log_end_offset - bases[1])
    end = machine.log.offsets.log_end_offset
    for found in snapshots_after_cuts(machine, tmp_path):
        assert max(found, default=0) <= end


def test_a_snapshot_past_the_end_that_a_start_finds_does_not_come_back(machine: Machine, tmp_path: Path) -> None:
    machine.append(2, 100)
    machine.flush()
    machine.checkpoint()
    end = machine.log.offsets.log_end_offset
    machine.end()
    (machine.disk.root / "words-0" / f"{end + 2:020d}.snapshot").write_bytes(b"")
    again = Machine(machine.disk.root, machine.ledger)
    again.start()
    try:
        assert again.log.offsets.log_end_offset == end
        for found in snapshots_after_cuts(again, tmp_path):
            assert max(found, default=0) <= end
    finally:
        again.end()


def test_a_truncation_inside_a_batch_leaves_no_gap(machine: Machine, tmp_path: Path) -> None:
    """The log ended below the checkpointed recovery point, so recovery trusted records that were never flushed."""
    machine.append(3)
    machine.append(2)
    machine.flush()
    machine.truncate(1)
    machine.append(1, 800)
    machine.append(1, 800)
    assert segments(machine.log.directory) == [0, 3, 4]
    ledger = machine.ledger
    for seed in range(CUTS):
        image = tmp_path / f"cut-{seed}"
        machine.disk.crash(image, Random(seed), journal=bool(seed % 2))
        again = Machine(image, deepcopy(ledger))
        try:
            again.start()
            again.check()
        finally:
            again.end()


@pytest.mark.parametrize("content", [None, b"", bytes(34)])
def test_a_lost_transaction_index_past_the_recovery_point_is_made_anew(tmp_path: Path, content: bytes | None) -> None:
    """A segment was to go, its transaction index had gone, and the log not yet when the power was cut."""
    root = tmp_path / "life-0"
    root.mkdir()
    ledger = Ledger()
    ledger.were_copied(with_transactions(root / "words-0"))
    (first, *_) = indexes = sorted(root.glob("words-0/*.txnindex"))
    expected = [path.read_bytes() for path in indexes]
    if content is None:
        first.unlink()
    else:
        first.write_bytes(content)
    machine = Machine(root, ledger)
    machine.start()
    try:
        assert [path.read_bytes() for path in indexes] == expected
        assert len(read_aborted(machine.disk, str(first), int(first.name[:20]))) == 1
        assert machine.log.recovery is not None
        assert int(first.name[:20]) in machine.log.recovery.rebuilt_transaction_indexes
    finally:
        machine.end()


@pytest.mark.parametrize("kept", [2, 1, 0])
def test_recovery_rebuilds_a_damaged_transaction_index_from_the_whole_segment(tmp_path: Path, kept: int) -> None:
    """A power cut extends the index by zeros: the file has its new size, but not its new content.

    Recovery scans from the last index entry below the recovery point; the first aborted transaction lies before that.
    """
    directory = tmp_path / "words-0"
    log = opened(directory, CONFIG)
    send(log, 7, 0, count=2)
    send(log, 7, 2)
    log.appends.append_marker(marker(7, Outcome.ABORT))
    for _ in range(20):
        log.appends.append(build_batch([(NOW_MS, None, b"v" * 20, ())]))
    send(log, 8, 0)
    log.appends.append_marker(marker(8, Outcome.ABORT))
    log.durability.flush()
    expected, point = committed(log, 1), log.durability.recovery_point
    log.close(clean=False)
    index = directory / f"{0:020}.txnindex"
    entries = index.read_bytes()
    assert len(entries) == 2 * ENTRY.size
    index.write_bytes(entries[: kept * ENTRY.size] + bytes(ENTRY.size))
    log = opened(directory, CONFIG, clean=False, recovery_point=point)
    assert committed(log, 1) == expected
    log.close()
    assert index.read_bytes() == entries


def test_a_log_that_lost_the_end_of_deleted_transactions_starts_over(tmp_path: Path) -> None:
    """Recovery looked for the transactions of segments that it had just removed, and failed."""
    directory = tmp_path / "words-0"
    log = opened(directory, CONFIG)
    send(log, 7, 0)
    log.appends.append_marker(marker(7, Outcome.ABORT))
    send(log, 8, 0)
    size = log.size
    log.close(clean=False)
    os.truncate(directory / f"{0:020}.log", size - 1)
    log = opened(directory, CONFIG, clean=False, log_start_offset=3)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset, log.offsets.last_stable_offset) == (3, 3, 3)
    assert not dict(log.producers.open_transactions)
    log.close()


def test_the_largest_timestamp_is_found_behind_a_batch_without_records(tmp_path: Path) -> None:
    """The newest timestamp of a segment was that of a marker whose record compaction had removed: nothing was found."""
    machine = Machine(tmp_path / "life-0", Ledger(compacted=True))
    machine.start()
    try:
        machine.append(4)
        machine.let_time_pass()
        machine.end_transaction(8, Outcome.ABORT)
        machine.append(5)
        machine.roll()
        machine.append(1)
        for _ in range(2):
            machine.flush()
            machine.compact()
            machine.let_time_pass()
            machine.append(5)
            machine.roll()
        machine.check()
    finally:
        machine.end()


def test_zeros_in_a_transaction_index_hide_nothing(tmp_path: Path) -> None:
    """The marker that the index would have told of is lost, and no batch of a transaction is left to be scanned."""
    directory = tmp_path / "words-0"
    log = opened(directory, CONFIG)
    send(log, 0, 0, count=2)
    send(log, 7, 0)
    for _ in range(20):
        log.appends.append(build_batch([(NOW_MS, None, b"v" * 100, ())]))
    log.durability.flush()
    point = log.durability.recovery_point
    log.close(clean=False)
    (directory / f"{0:020}.txnindex").write_bytes(bytes(ENTRY.size))
    log = opened(directory, CONFIG, clean=False, recovery_point=point)
    log.appends.append_marker(marker(0, Outcome.COMMIT))
    log.appends.append_marker(marker(7, Outcome.COMMIT))
    assert committed(log) == list(range(23))
