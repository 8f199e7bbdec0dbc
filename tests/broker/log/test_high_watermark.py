"""High watermarks of logs that follow replicas; those of other logs are in `test_flush` and `test_partition_log`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.broker.log.producers.transactions import marker, opened, send
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.log_state import HighWatermarkSource
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.records.markers import Outcome

Batch = Callable[..., bytes]
Bench = Any


@pytest.fixture
def log(bench: Bench, batch: Batch) -> PartitionLog:
    log: PartitionLog = bench.open()
    log.appends.append(batch(10))
    log.follow_replicas()
    return log


def test_appends_move_it_no_more(log: PartitionLog, batch: Batch) -> None:
    log.appends.append(batch(5))
    log.durability.flush()
    assert (log.offsets.high_watermark, log.offsets.last_stable_offset, log.offsets.log_end_offset) == (10, 10, 15)
    piece = log.reads.read(0, 1 << 20, isolation_end=log.offsets.high_watermark).slice
    assert piece is not None
    assert piece.read_all() == log.reads.read(0, 1 << 20).slice.read_all()[: len(piece)]  # type: ignore[union-attr]
    assert log.reads.read(10, 1 << 20, isolation_end=log.offsets.high_watermark, min_one_batch=True).slice is None


def test_it_advances_up_to_the_log_end_and_never_back(log: PartitionLog, batch: Batch) -> None:
    log.appends.append(batch(5))
    assert log.offsets.advance_high_watermark(12)
    assert log.offsets.high_watermark == 12
    assert not log.offsets.advance_high_watermark(12)
    assert not log.offsets.advance_high_watermark(3)
    assert log.offsets.advance_high_watermark(99)
    assert log.offsets.high_watermark == 15


def test_a_truncation_moves_it_back(log: PartitionLog, batch: Batch) -> None:
    log.appends.append(batch())
    log.truncation.truncate_to(10)
    assert log.offsets.high_watermark == 10
    log.truncation.truncate_to(0)
    assert log.offsets.high_watermark == 0


def test_settings_do_not_change_its_source(log: PartitionLog, batch: Batch) -> None:
    log.appends.append(batch())
    for flush_messages in (1, 1 << 40):
        log.reconfigure(LogConfig(flush_messages=flush_messages))
        log.durability.flush()
        assert (log.offsets.high_watermark, log.offsets.high_watermark_source) == (10, HighWatermarkSource.REPLICAS)


@pytest.mark.parametrize(("flush_messages", "shown"), [(1, 10), (1 << 40, 11)])
def test_a_log_that_leads_alone_shows_what_its_settings_say(
    bench: Bench, log: PartitionLog, batch: Batch, flush_messages: int, shown: int
) -> None:
    log.reconfigure(LogConfig(flush_messages=flush_messages))
    log.durability.flush()
    log.appends.append(batch())
    log.stop_following_replicas()
    assert log.offsets.high_watermark == shown
    log.durability.flush()
    assert log.offsets.high_watermark == 11


@pytest.mark.parametrize(("checkpointed", "shown"), [(0, 4), (7, 7), (99, 11)])
def test_a_start_takes_it_from_the_checkpoint(
    tmp_path: Path, log: PartitionLog, batch: Batch, checkpointed: int, shown: int
) -> None:
    log.appends.append(batch())
    log.truncation.advance_start(4)
    log.close()
    log = opened(tmp_path / "words-0", LogConfig(), log_start_offset=4, high_watermark=checkpointed)
    assert (log.offsets.high_watermark, log.offsets.high_watermark_source) == (shown, HighWatermarkSource.REPLICAS)
    assert log.durability.recovery_point == 11
    log.close()


def test_reopening_a_failed_log_leaves_it(bench: Bench, log: PartitionLog, batch: Batch) -> None:
    log.appends.append(batch())
    log.fail("for a test")
    log.stop_following_replicas()
    assert log.offsets.high_watermark == 10, "nobody can tell whether the rest is on the disk"
    log.follow_replicas()
    reopened = log.begin_reopening().make()
    log.finish_reopening(reopened)
    reopened.close_replaced()
    assert (log.offsets.high_watermark, log.offsets.log_end_offset) == (10, 11)


# -- transactions that end past it -------------------------------------------------------------------------------------


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """Transactions from offsets 0 and 1 on, with markers at 2 and 4."""
    log = opened(tmp_path / "words-0", LogConfig())
    send(log, 7, 0)
    send(log, 8, 0)
    log.appends.append_marker(marker(7, Outcome.COMMIT))
    send(log, 8, 1)
    log.appends.append_marker(marker(8, Outcome.ABORT))
    send(log, 9, 0)
    log.close()
    return tmp_path / "words-0"


@pytest.mark.parametrize(("high_watermark", "stable"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 5), (6, 5)])
def test_readers_of_committed_records_wait_for_markers_past_it(ended: Path, high_watermark: int, stable: int) -> None:
    log = opened(ended, LogConfig(), recovery_point=6, high_watermark=high_watermark)
    assert log.offsets.last_stable_offset == stable
    log.offsets.advance_high_watermark(6)
    assert log.offsets.last_stable_offset == 5
    log.close()


def test_they_wait_after_a_truncation_too(ended: Path) -> None:
    log = opened(ended, LogConfig(), recovery_point=6, high_watermark=2)
    log.truncation.truncate_to(5)
    assert log.offsets.last_stable_offset == 0
    log.truncation.truncate_to(4)
    assert log.offsets.last_stable_offset == 0
    log.offsets.advance_high_watermark(4)
    assert log.offsets.last_stable_offset == 1
    log.close()
