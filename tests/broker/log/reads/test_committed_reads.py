"""Reads of committed records: a golden log of Kafka's with aborted and open transactions."""

import json
import random
import shutil
from pathlib import Path

import pytest

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.descriptions import LogRead
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.committed import AbortedFilter
from warmlog.protocol.records.reader import decode_batch
from warmlog.protocol.response import AbortedTransaction

TOPIC = "transactional"
END = 219
LAST_MARKER = 218
CONFIG = LogConfig(index_interval_bytes=512, segment_index_bytes=4096)


@pytest.fixture
def directory(kafka_fixtures: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kafka_fixtures / "clean" / f"{TOPIC}-0", tmp_path / f"{TOPIC}-0"))


def opened(directory: Path, *, clean: bool = True, end: int = END, config: LogConfig = CONFIG) -> PartitionLog:
    return PartitionLog.open(
        directory,
        topic=TOPIC,
        partition=0,
        config=config,
        files=OpenFiles(),
        clock=lambda: 0,
        random=random.Random(1),
        recovery_point=end if clean else 0,
        clean=clean,
    )


def seen(kafka_fixtures: Path) -> list[int]:
    found = json.loads((kafka_fixtures / "seen" / "read_committed" / f"{TOPIC}-0.json").read_text())
    return [record["offset"] for record in found["records"]]


def read(log: PartitionLog, offset: int, max_bytes: int) -> LogRead:
    return log.reads.read(
        offset, max_bytes, isolation_end=log.offsets.last_stable_offset, min_one_batch=True, with_aborted=True
    )


def committed(log: PartitionLog, max_bytes: int, offset: int = 0) -> list[int]:
    """The offsets of what a consumer of committed records keeps."""
    found: list[int] = []
    while (part := read(log, offset, max_bytes)).slice is not None:
        data = part.slice.read_all()
        aborted = AbortedFilter(
            AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in part.aborted
        )
        for position, header in headers(data):
            if not aborted.discards(header):
                found += [record.offset for record in decode_batch(data, position, header) if record.offset >= offset]
            offset = header.next_offset
    return found


def cut_last_marker(directory: Path) -> int:
    """Remove the last marker; return the first offset of the transaction that is open then."""
    batches = [header for log in sorted(directory.glob("*.log")) for _, header in headers(log.read_bytes())]
    marker = batches[-1]
    assert marker.is_control
    assert marker.base_offset == LAST_MARKER
    last = directory / f"{LAST_MARKER:020}.log"
    last.write_bytes(last.read_bytes()[: -marker.size])
    own = [header for header in batches if header.producer_id == marker.producer_id and header is not marker]
    ended = max(header.base_offset for header in own if header.is_control)
    return min(header.base_offset for header in own if header.base_offset > ended)


@pytest.mark.parametrize("max_bytes", [1, 500, 1000, 3000, 1 << 20])
@pytest.mark.parametrize("clean", [True, False])
def test_committed_records_are_those_that_kafkas_consumer_sees(
    kafka_fixtures: Path, directory: Path, max_bytes: int, clean: bool
) -> None:
    log = opened(directory, clean=clean)
    assert log.offsets.last_stable_offset == log.offsets.high_watermark == END
    assert committed(log, max_bytes) == seen(kafka_fixtures)
    log.close()


def test_committed_records_can_be_read_from_any_offset(kafka_fixtures: Path, directory: Path) -> None:
    log = opened(directory)
    for offset in range(END):
        assert committed(log, 700, offset) == [one for one in seen(kafka_fixtures) if one >= offset]
    log.close()


def test_a_read_names_only_the_transactions_that_overlap_it(directory: Path) -> None:
    log = opened(directory)
    whole = [one for offset in (0, 8, 52, 68, 107, 152, 199, 218) for one in read(log, offset, 1 << 20).aborted]
    assert len(whole) >= 7
    for offset in range(END):
        part = read(log, offset, 300)
        assert part.slice is not None
        last = max((header.last_offset for _, header in headers(part.slice.read_all())), default=offset)
        needed = [one for one in whole if one.last_offset >= offset and one.first_offset <= last]
        assert set(needed) <= set(part.aborted)
        assert all(one.last_offset >= offset for one in part.aborted)
    log.close()


def test_readers_of_everything_get_no_aborted_transactions(directory: Path) -> None:
    log = opened(directory)
    assert log.reads.read(8, 1 << 20, isolation_end=log.offsets.high_watermark).aborted == ()
    log.close()


@pytest.mark.parametrize("clean", [True, False])
def test_an_open_transaction_bounds_reads_of_committed_records(
    kafka_fixtures: Path, directory: Path, clean: bool
) -> None:
    first_open = cut_last_marker(directory)
    if clean:
        (directory / f"{END:020}.snapshot").unlink()
    log = opened(directory, clean=clean, end=LAST_MARKER)
    assert log.offsets.high_watermark == LAST_MARKER
    assert log.offsets.last_stable_offset == first_open
    assert committed(log, 1000) == [offset for offset in seen(kafka_fixtures) if offset < first_open]
    assert read(log, LAST_MARKER - 1, 1000).slice is None
    log.close()


def test_the_last_stable_offset_is_not_below_the_log_start(directory: Path) -> None:
    first_open = cut_last_marker(directory)
    log = opened(directory, clean=False)
    log.truncation.advance_start(first_open + 1)
    assert log.offsets.last_stable_offset == first_open + 1
    log.truncation.advance_start(log.offsets.high_watermark)
    assert log.offsets.last_stable_offset == log.offsets.high_watermark
    log.close()


def test_truncation_reopens_a_transaction_whose_marker_is_cut(kafka_fixtures: Path, directory: Path) -> None:
    log = opened(directory)
    log.truncation.truncate_to(107)  # the abort marker of a transaction that began before
    assert log.offsets.last_stable_offset < log.offsets.high_watermark == 107
    assert committed(log, 1000) == [
        offset for offset in seen(kafka_fixtures) if offset < log.offsets.last_stable_offset
    ]
    log.close()


def test_compaction_stops_at_an_open_transaction(directory: Path) -> None:
    first_open = cut_last_marker(directory)
    log = opened(directory, clean=False, config=LogConfig(cleanup_policy="compact"))
    log.durability.flush()
    assert log._view().bounds.cleanable_end == first_open
    log.close()


@pytest.mark.parametrize("content", [b"torn", b"\0\1" + bytes(32)])
def test_a_damaged_transaction_index_is_made_anew(kafka_fixtures: Path, directory: Path, content: bytes) -> None:
    (directory / f"{107:020}.txnindex").write_bytes(content)
    log = opened(directory)
    log.reads.rebuild_indexes(107)
    assert committed(log, 1000) == seen(kafka_fixtures)
    log.close()
