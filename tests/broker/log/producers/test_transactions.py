"""Transactions that are written here: guards, markers, the last stable offset, the transaction index."""

from pathlib import Path

import pytest

from tests.broker.log.producers.transactions import NOW_MS, committed, marker, opened, send, transactional
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from warmlog.broker.log.index.transaction import AbortedTransaction, read_aborted
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.transactions import Origin
from warmlog.protocol.errors import InvalidRecordError
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.markers import EndMarker, Outcome, marker_batch

CONFIG = LogConfig(index_interval_bytes=100, segment_index_bytes=4096)
ABORT, COMMIT = Outcome.ABORT, Outcome.COMMIT


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return opened(tmp_path / "words-0", CONFIG)


def aborted(log: PartitionLog) -> list[AbortedTransaction]:
    return read_aborted(Disk(), str(log.directory / f"{log.active_base_offset:020}.txnindex"), 0)


def test_a_transaction_holds_the_last_stable_offset_until_its_marker(log: PartitionLog) -> None:
    log.appends.append(build_batch([(NOW_MS, None, b"v", ())]))
    send(log, 7, 0, 3)
    log.appends.append(build_batch([(NOW_MS, None, b"v", ())]))
    assert (log.offsets.last_stable_offset, log.offsets.high_watermark) == (1, 5)
    assert committed(log) == [0]
    log.appends.append_marker(marker(7, COMMIT))
    assert log.offsets.last_stable_offset == log.offsets.high_watermark == 6
    assert committed(log) == [0, 1, 2, 3, 4]
    assert aborted(log) == []


def test_an_aborted_transaction_is_indexed_with_the_stable_offset_of_its_time(log: PartitionLog) -> None:
    send(log, 7, 0)
    send(log, 8, 0)
    send(log, 9, 0)
    log.appends.append_marker(marker(8, ABORT))
    log.appends.append_marker(marker(7, ABORT))
    assert log.offsets.last_stable_offset == 2
    log.appends.append_marker(marker(9, ABORT))
    assert aborted(log) == [
        AbortedTransaction(8, 1, 3, 0),
        AbortedTransaction(7, 0, 4, 2),
        AbortedTransaction(9, 2, 5, 6),
    ]
    assert committed(log) == []


def test_markers_of_one_write_are_indexed_as_if_they_were_written_one_by_one(log: PartitionLog) -> None:
    guard = log.producers.guards.open(7)
    planned = [
        log.appends.plan(transactional(7, 0), guard=guard),
        log.appends.plan(transactional(8, 0), guard=log.producers.guards.open(8)),
        log.appends.plan_marker(marker(7, ABORT)),
        log.appends.plan_marker(marker(8, ABORT)),
    ]
    log.appends.write(planned)
    log.appends.commit(planned)
    assert aborted(log) == [AbortedTransaction(7, 0, 2, 1), AbortedTransaction(8, 1, 3, 4)]
    assert log.offsets.last_stable_offset == 4


def test_a_marker_without_a_transaction_is_appended_and_remembers_the_epochs(log: PartitionLog) -> None:
    assert log.appends.append_marker(marker(7, ABORT, epoch=2, coordinator_epoch=5)).base_offset == 0
    state = log.producers.get(7)
    assert state is not None
    assert (state.epoch, state.coordinator_epoch, state.transaction_first_offset) == (2, 5, -1)
    assert log.offsets.last_stable_offset == 1
    assert aborted(log) == []
    with pytest.raises(InvalidProducerEpochError):
        send(log, 7, 0, epoch=1)


def test_a_client_begins_a_transaction_only_with_a_guard_that_no_marker_has_ended(log: PartitionLog) -> None:
    with pytest.raises(InvalidTransactionStateError):
        log.appends.append(transactional(7, 0))
    guard = log.producers.guards.open(7)
    log.appends.append_marker(marker(7, ABORT))
    with pytest.raises(InvalidTransactionStateError):
        log.appends.append(transactional(7, 0), guard=guard)
    log.appends.append(transactional(7, 0), guard=log.producers.guards.open(7))
    log.appends.append(transactional(7, 1))  # goes on without one
    log.appends.append_marker(marker(7, COMMIT))
    with pytest.raises(InvalidTransactionStateError):
        log.appends.append(transactional(7, 2), guard=guard)
    assert log.appends.append(transactional(7, 1)).is_duplicate  # of a committed transaction, sent again


def test_a_guard_is_good_for_one_transaction(log: PartitionLog) -> None:
    guard = log.producers.guards.open(7)
    log.appends.append(transactional(7, 0), guard=guard)
    log.appends.append_marker(marker(7, COMMIT))
    with pytest.raises(InvalidTransactionStateError):
        log.appends.append(transactional(7, 1), guard=guard)


def test_the_batch_after_a_rejected_first_one_waits_for_it(log: PartitionLog) -> None:
    guards = log.producers.guards
    guards.open(7, 0, 0)  # the coordinator rejects the batch
    with pytest.raises(OutOfOrderSequenceError):
        log.appends.append(transactional(7, 5), guard=guards.open(7, 0, 5))
    log.appends.append(transactional(7, 0, 5), guard=guards.open(7, 0, 0))
    log.appends.append(transactional(7, 5))


def test_a_rejected_batch_of_an_earlier_epoch_does_not_matter(log: PartitionLog) -> None:
    guards = log.producers.guards
    guards.open(7, 0, 0)
    log.appends.append(transactional(7, 5, epoch=1), guard=guards.open(7, 1, 5))


def test_a_known_producer_waits_for_its_rejected_batch_too(log: PartitionLog) -> None:
    guards = log.producers.guards
    log.appends.append(transactional(7, 0), guard=guards.open(7, 0, 0))
    log.appends.append_marker(marker(7, COMMIT))
    guards.open(7, 0, 0)  # sent again, and rejected
    with pytest.raises(OutOfOrderSequenceError):
        log.appends.append(transactional(7, 1), guard=guards.open(7, 0, 1))
    log.appends.append_marker(marker(7, ABORT))
    log.appends.append(transactional(7, 1), guard=guards.open(7, 0, 1))


def test_a_producer_whose_transactions_begin_with_sequence_0_is_held_to_it(log: PartitionLog) -> None:
    guards = log.producers.guards
    with pytest.raises(OutOfOrderSequenceError):
        log.appends.append(transactional(7, 1), guard=guards.open(7, 0, 1, restarts=True))
    log.appends.append(transactional(7, 0), guard=guards.open(7, 0, 0, restarts=True))
    log.appends.append(transactional(8, 1), guard=guards.open(8, 0, 1))


def test_a_batch_of_a_lower_epoch_waits_for_a_rejected_one_too(log: PartitionLog) -> None:
    guards = log.producers.guards
    guards.open(7, 1, 0)
    with pytest.raises(OutOfOrderSequenceError):
        log.appends.append(transactional(7, 2), guard=guards.open(7, 0, 2))


def test_a_coordinator_begins_a_transaction_only_with_a_guard_either(log: PartitionLog) -> None:
    with pytest.raises(InvalidTransactionStateError):
        log.appends.append(transactional(7, 0), origin=Origin.COORDINATOR)
    guard = log.producers.guards.open(7)
    log.appends.append_marker(marker(7, ABORT))
    with pytest.raises(InvalidTransactionStateError):
        log.appends.append(transactional(7, 0), origin=Origin.COORDINATOR, guard=guard)
    assert log.offsets.last_stable_offset == log.offsets.log_end_offset == 1


def test_a_coordinator_appends_without_sequences(log: PartitionLog) -> None:
    guard = log.producers.guards.open(7)
    for _ in range(2):
        log.appends.append(transactional(7, 0), origin=Origin.COORDINATOR, guard=guard)
    assert (log.offsets.log_end_offset, log.offsets.last_stable_offset) == (2, 0)
    with pytest.raises(InvalidProducerEpochError):
        log.appends.append_marker(marker(7, COMMIT, epoch=-1))


@pytest.mark.parametrize("origin", list(Origin))
def test_control_batches_have_one_way_in(log: PartitionLog, origin: Origin) -> None:
    with pytest.raises(InvalidRecordError):
        log.appends.append(marker_batch(7, 0, EndMarker(COMMIT, 0, NOW_MS)), origin=origin)


def test_a_batch_outside_the_open_transaction_is_refused(log: PartitionLog) -> None:
    send(log, 7, 0)
    with pytest.raises(InvalidTransactionStateError):
        log.appends.append(build_batch([(NOW_MS, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=1))


def test_a_marker_of_an_older_epoch_is_refused(log: PartitionLog) -> None:
    send(log, 7, 0, epoch=3)
    with pytest.raises(InvalidProducerEpochError):
        log.appends.append_marker(marker(7, ABORT, epoch=2))
    log.appends.append_marker(marker(7, ABORT, epoch=4))
    assert log.offsets.last_stable_offset == 2


def test_a_marker_of_version_2_has_a_higher_epoch_unless_it_is_repeated(log: PartitionLog) -> None:
    send(log, 7, 0)
    with pytest.raises(InvalidProducerEpochError):
        log.appends.append_marker(marker(7, COMMIT, raises_epoch=True))
    for _ in range(2):
        log.appends.append_marker(marker(7, COMMIT, epoch=1, raises_epoch=True))
    send(log, 7, 0, epoch=1)  # sequences begin anew
    with pytest.raises(InvalidProducerEpochError):
        log.appends.append_marker(marker(7, COMMIT, epoch=1, raises_epoch=True))


def test_a_coordinator_that_was_replaced_is_fenced(log: PartitionLog) -> None:
    log.appends.append_marker(marker(7, COMMIT, coordinator_epoch=4))
    send(log, 7, 0)
    with pytest.raises(TransactionCoordinatorFencedError):
        log.appends.append_marker(marker(7, COMMIT, coordinator_epoch=3))
    assert log.offsets.last_stable_offset == 1
    log.appends.append_marker(marker(7, COMMIT, coordinator_epoch=4))


def test_plans_that_are_abandoned_leave_no_transaction(log: PartitionLog) -> None:
    log.appends.plan(transactional(7, 0), guard=log.producers.guards.open(7))
    log.appends.plan_marker(marker(7, ABORT))
    log.appends.abandon()
    log.appends.append(build_batch([(NOW_MS, None, b"v", ())]))
    assert log.offsets.last_stable_offset == 1
    assert aborted(log) == []


def test_a_marker_is_stable_only_below_the_high_watermark(tmp_path: Path) -> None:
    log = opened(tmp_path / "words-0", LogConfig(flush_messages=1))
    log.appends.append(build_batch([(NOW_MS, None, b"v", ())]))
    send(log, 7, 0)
    log.durability.flush()
    plan = log.durability.begin_flush()
    log.appends.append_marker(marker(7, COMMIT))
    assert (log.offsets.last_stable_offset, log.offsets.high_watermark) == (1, 2)
    plan.sync()
    log.durability.finish_flush(plan)
    assert (log.offsets.last_stable_offset, log.offsets.high_watermark) == (1, 2)
    log.durability.flush()
    assert (log.offsets.last_stable_offset, log.offsets.high_watermark) == (3, 3)


def test_deleting_records_of_an_open_transaction_moves_the_last_stable_offset(log: PartitionLog) -> None:
    send(log, 7, 0, 4)
    assert log.offsets.last_stable_offset == 0
    log.truncation.advance_start(3)
    assert (log.offsets.last_stable_offset, log.offsets.log_start_offset) == (3, 3)
    log.appends.append_marker(marker(7, ABORT))
    assert log.offsets.last_stable_offset == 5
    assert committed(log) == []


def test_the_directory_is_synced_after_its_first_aborted_transaction(log: PartitionLog) -> None:
    log.durability.flush()
    assert log.durability.begin_flush().directory is None
    send(log, 7, 0)
    plan = log.durability.begin_flush()
    assert plan.directory is None
    log.appends.append_marker(marker(7, ABORT))
    plan.sync()
    log.durability.finish_flush(plan)
    assert log.durability.begin_flush().directory is not None
    log.durability.flush()
    send(log, 7, 1)
    log.appends.append_marker(marker(7, ABORT))
    assert log.durability.begin_flush().directory is None


def test_an_index_file_left_by_another_segment_is_replaced(tmp_path: Path) -> None:
    log = opened(tmp_path / "words-0", CONFIG)
    send(log, 7, 0)
    log.rolls.roll()
    (log.directory / f"{1:020}.txnindex").write_bytes(bytes(50))
    log.appends.append_marker(marker(7, ABORT))
    assert aborted(log) == [AbortedTransaction(7, 0, 1, 2)]
    assert committed(log) == []


def test_compaction_stops_at_a_transaction_whose_marker_is_not_flushed(tmp_path: Path) -> None:
    """A power cut can take the marker: the transaction is open again, and compaction must not have changed it."""
    log = opened(tmp_path, CONFIG)
    for producer_id in (7, 8):
        send(log, producer_id, 0)
    log.appends.append_marker(marker(7, Outcome.ABORT))
    log.durability.flush()
    log.appends.append_marker(marker(8, Outcome.COMMIT))
    assert (log.offsets.last_stable_offset, log._view().bounds.cleanable_end) == (4, 1)
    log.close(clean=False)
    log = opened(tmp_path, CONFIG, clean=False, recovery_point=3)
    assert (log.offsets.last_stable_offset, log._view().bounds.cleanable_end) == (4, 0)
    log.durability.flush()
    assert log._view().bounds.cleanable_end == 4
    log.truncation.truncate_to(3)
    assert log._view().bounds.cleanable_end == 1
    log.appends.append_marker(marker(8, Outcome.COMMIT))
    assert (log.offsets.last_stable_offset, log._view().bounds.cleanable_end) == (4, 1)
    log.close()
    log = opened(tmp_path, CONFIG, recovery_point=4)
    assert log._view().bounds.cleanable_end == 4
    log.close()
