from pathlib import Path

from tests.broker.log.producers.transactions import opened
from warmlog.broker.log.config import LogConfig
from warmlog.broker.partitions.epochs import assign_epoch


def test_a_log_keeps_its_epoch_unless_records_may_be_lost(tmp_path: Path) -> None:
    log = opened(tmp_path / "words-0", LogConfig())
    assign_epoch(log, records_lost=False)
    assign_epoch(log, records_lost=False)
    assert log.epochs.entries == ((0, 0),)
    assign_epoch(log, records_lost=True)
    assert (log.epochs.current, log.epochs.entries) == (1, ((1, 0),))
    log.close()


def test_an_epoch_without_records_holds_again_after_a_start(tmp_path: Path) -> None:
    log = opened(tmp_path / "words-0", LogConfig())
    log.epochs.assign(4, log.offsets.log_end_offset)
    log.close()
    log = opened(tmp_path / "words-0", LogConfig())
    assert (log.epochs.current, log.epochs.entries) == (4, ())
    assign_epoch(log, records_lost=False)
    assert log.epochs.entries == ((4, 0),)
    log.close()


def test_a_copy_gets_its_epochs_from_its_leader_even_if_it_has_lost_records(tmp_path: Path) -> None:
    log = opened(tmp_path / "words-0", LogConfig(), high_watermark=0)
    for records_lost in (False, True):
        assign_epoch(log, records_lost=records_lost)
        assert (log.epochs.current, log.epochs.entries) == (0, ())
    log.close()
