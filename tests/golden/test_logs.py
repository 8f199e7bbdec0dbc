"""Logs that Kafka wrote, opened, repaired and rewritten by us: the same records, the same files."""

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden.partitions import FIXTURES, GoldenPartition, consumed_partitions, partitions, read_seen
from tests.protocol.records.handmade import batch
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.protocol.records.batch import headers, stamp
from warmlog.protocol.records.layout import CODEC_MASK, HEADER_SIZE
from warmlog.protocol.records.reader import records_in
from warmlog.protocol.records.record import Record

#: As the golden topics were made, see their README.
SMALL = LogConfig(segment_bytes=4096, index_interval_bytes=512, segment_index_bytes=4096)
CONFIGS = {
    "plain": replace(SMALL, segment_bytes=8192),
    "sparse-index": replace(SMALL, index_interval_bytes=4096, segment_bytes=16384),
    "index-full": replace(SMALL, segment_index_bytes=96, segment_bytes=1 << 20),
    "aged": replace(SMALL, segment_ms=60_000, segment_bytes=1 << 20),
    "append-time": replace(SMALL, message_timestamp_type="LogAppendTime"),
}
#: What only a producer can have sent: no control batches, no time of the broker's, no offsets that were compacted away.
APPENDABLE = ["plain", "gzip", "snappy", "lz4", "zstd", "sparse-index", "index-full", "aged", "idempotent"]


def open_log(
    directory: Path, *, clean: bool, log_start_offset: int = 0, clock: Callable[[], int] = lambda: 0
) -> PartitionLog:
    topic, _, partition = directory.name.rpartition("-")
    log = PartitionLog.open(
        directory,
        topic=topic,
        partition=int(partition),
        config=CONFIGS.get(topic, SMALL),
        files=OpenFiles(),
        clock=clock,
        random=random.Random(0),
        log_start_offset=log_start_offset,
        clean=clean,
    )
    assign_epoch(log, records_lost=not clean)
    return log


def contents(directory: Path, pattern: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob(pattern))}


def read_everything(log: PartitionLog) -> list[Record]:
    """Fetch from start to end, a slice at a time, as a consumer would."""
    offset = log.offsets.log_start_offset
    found = []
    while offset < log.offsets.log_end_offset:
        read = log.reads.read(offset, 1500, isolation_end=None, min_one_batch=True)
        assert read.slice is not None
        data = read.slice.read_all()
        found += records_in(data, from_offset=offset)
        offset = [header for _, header in headers(data)][-1].next_offset
    return found


@pytest.mark.parametrize("name", consumed_partitions())
def test_a_log_of_kafkas_is_read_as_its_consumer_saw_it(name: str, tmp_path: Path) -> None:
    golden, seen = GoldenPartition.named(name), read_seen(name)
    directory = shutil.copytree(golden.directory, tmp_path / golden.directory.name)
    log = open_log(directory, clean=True, log_start_offset=seen.log_start_offset)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (seen.log_start_offset, seen.end_offset)
    assert read_everything(log) == [
        Record(each.offset, each.timestamp, each.key, each.value, each.headers) for each in seen.records
    ]
    log.close()


@pytest.mark.parametrize("name", partitions())
def test_opened_and_closed_a_log_of_kafkas_is_as_it_was(name: str, tmp_path: Path) -> None:
    golden = GoldenPartition.named(name)
    directory = shutil.copytree(golden.directory, tmp_path / golden.directory.name)
    open_log(directory, clean=True).close()
    assert contents(directory, "*") == contents(golden.directory, "*")


@pytest.mark.parametrize("topic", ["killed", "killed-lz4"])
def test_what_a_kill_left_is_repaired_as_kafka_repairs_it(topic: str, tmp_path: Path) -> None:
    directory = shutil.copytree(FIXTURES / "killed" / f"{topic}-0", tmp_path / f"{topic}-0")
    kafkas = FIXTURES / "recovered" / f"{topic}-0"
    log = open_log(directory, clean=False)
    assert log.recovery is not None
    assert log.recovery.truncated_bytes == 75
    assert log.offsets.log_end_offset == read_seen(f"recovered/{topic}-0").end_offset
    log.close()
    assert contents(directory, "*.log") == contents(kafkas, "*.log")
    assert contents(directory, "*index") == contents(kafkas, "*index")


@pytest.mark.parametrize("name", [name for name in consumed_partitions() if name.startswith("clean/")])
def test_indexes_made_anew_from_kafkas_log_are_kafkas_indexes(name: str, tmp_path: Path) -> None:
    golden = GoldenPartition.named(name)
    directory = shutil.copytree(golden.directory, tmp_path / golden.directory.name)
    for index in (*directory.glob("*.index"), *directory.glob("*.timeindex")):
        index.unlink()
    open_log(directory, clean=False).close()
    assert contents(directory, "*index") == contents(golden.directory, "*index")


@pytest.mark.parametrize("topic", APPENDABLE)
def test_appending_what_kafka_was_sent_makes_the_files_that_kafka_made(topic: str, tmp_path: Path) -> None:
    golden = GoldenPartition.named(f"clean/{topic}-0")
    directory = tmp_path / f"{topic}-0"
    log = open_log(directory, clean=True)
    for content, position, header in golden.batches():
        sent = bytearray(content[position : position + header.size])
        stamp(sent, base_offset=0, leader_epoch=-1)
        log.appends.append(sent)
    log.close()
    assert contents(directory, "*.log") == contents(golden.directory, "*.log")
    assert contents(directory, "*index") == contents(golden.directory, "*index")


def test_appending_at_the_same_times_makes_the_files_that_kafka_made_with_its_own_times(tmp_path: Path) -> None:
    golden = GoldenPartition.named("clean/append-time-0")
    directory = tmp_path / "append-time-0"
    now_ms = 0
    log = open_log(directory, clean=True, clock=lambda: now_ms)
    for content, position, header in golden.batches():
        now_ms = header.max_timestamp
        sent = batch(
            content[position + HEADER_SIZE : position + header.size],
            attributes=header.attributes & CODEC_MASK,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.base_timestamp,
            record_count=header.record_count,
        )
        assert log.appends.append(sent).log_append_time == now_ms
    log.close()
    assert contents(directory, "*.log") == contents(golden.directory, "*.log")
    assert contents(directory, "*index") == contents(golden.directory, "*index")
