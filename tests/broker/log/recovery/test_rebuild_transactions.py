"""Transaction indexes of logs that are cut, or that lost theirs; the logs are Kafka's."""

import random
import shutil
from pathlib import Path

import pytest

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.index.transaction import AbortedTransaction, cut_aborted, encode_aborted, read_aborted
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog

LAST = 152  # the base offset of a segment in which one transaction was aborted


@pytest.fixture
def directory(kafka_fixtures: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kafka_fixtures / "clean" / "transactional-0", tmp_path / "transactional-0"))


def opened(directory: Path) -> PartitionLog:
    return PartitionLog.open(
        directory,
        topic="transactional",
        partition=0,
        config=LogConfig(index_interval_bytes=512, segment_index_bytes=4096),
        files=OpenFiles(),
        clock=lambda: 0,
        random=random.Random(1),
        clean=False,
    )


def aborted(directory: Path, base: int) -> list[AbortedTransaction]:
    return read_aborted(Disk(), str(directory / f"{base:020}.txnindex"), base)


def test_recovery_keeps_the_entries_of_a_sound_log(directory: Path) -> None:
    before = {path.name: path.read_bytes() for path in directory.glob("*.txnindex")}
    opened(directory).close()
    assert {path.name: path.read_bytes() for path in directory.glob("*.txnindex")} == before


@pytest.mark.parametrize("extra", [b"", b"torn"])
def test_recovery_drops_entries_past_the_end_of_what_is_left(directory: Path, extra: bytes) -> None:
    """Of a transaction whose marker was cut: its producer may write there again, and that must not be void."""
    (entry,) = aborted(directory, LAST)
    log = directory / f"{LAST:020}.log"
    log.write_bytes(log.read_bytes()[:100])
    index = directory / f"{LAST:020}.txnindex"
    index.write_bytes(index.read_bytes() + extra)
    opening = opened(directory)
    assert opening.offsets.log_end_offset <= entry.last_offset
    opening.close()
    assert aborted(directory, LAST) == []
    assert len(aborted(directory, 107)) == 3


def test_truncation_drops_entries_past_the_end(directory: Path) -> None:
    log = opened(directory)
    log.truncation.truncate_to(136)
    log.close()
    assert [entry.last_offset for entry in aborted(directory, 107)] == [107, 135]


def test_entries_are_cut_at_an_offset(tmp_path: Path) -> None:
    path = str(tmp_path / "x.txnindex")
    entries = [AbortedTransaction(1, 0, 5, 6), AbortedTransaction(1, 7, 9, 10)]
    Path(path).write_bytes(encode_aborted(entries))
    for end, left in ((10, 2), (9, 1), (5, 0)):
        cut_aborted(Disk(), path, end)
        assert read_aborted(Disk(), path, 0) == entries[:left]
    cut_aborted(Disk(), str(tmp_path / "missing"), 0)
    assert not (tmp_path / "missing").exists()
