"""Compressed blocks that Kafka stores and producers here may not send, and blocks that nobody reads, in stored logs."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.broker.log.compaction.compacting import START_MS, compact, contents
from tests.protocol.records.frames import COUNT, frames
from tests.protocol.records.handmade import batch, record
from warmlog.broker.log.errors import UnknownTimestampError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.copies import largest_timestamps
from warmlog.inspect.checks.directories import CheckOptions, check_directories
from warmlog.inspect.findings import Tally
from warmlog.protocol.errors import CorruptBatchError
from warmlog.protocol.records.layout import HEADER_SIZE, Codec

Bench = Any

FRAMES = {(frame.codec.name.lower(), frame.name): frame for frame in frames()}
READABLE = [
    ("gzip", "30 zeros after it"),
    ("gzip", "garbage after it"),
    ("gzip", "reserved flag 7"),
    ("snappy", "3 zeros after it"),
    ("lz4", "content size of 91"),
    ("lz4", "wrong content checksum"),
    ("lz4", "linked blocks"),
    ("lz4", "dictionary id"),
    ("zstd", "half of it again"),
]
UNREADABLE = [
    ("gzip", "wrong checksum"),
    ("snappy", "a negative chunk"),
    ("lz4", "no end"),
    ("zstd", "no magic number"),
]
UNKNOWN_CODEC = 6


def stored(block: bytes, codec: int, base_offset: int, *, max_timestamp: int = START_MS + COUNT - 1) -> bytes:
    return batch(
        block,
        attributes=codec,
        base_offset=base_offset,
        leader_epoch=0,
        record_count=COUNT,
        base_timestamp=START_MS,
        max_timestamp=max_timestamp,
    )


def keyed(key: bytes, base_offset: int, timestamp: int) -> bytes:
    return batch(
        record(key=key),
        base_offset=base_offset,
        leader_epoch=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
    )


def filled(bench: Bench, block: bytes, codec: int, **configs: Any) -> PartitionLog:
    """A log with a batch before and two after the odd one, which is at offset 1; the first keys are superseded."""
    log: PartitionLog = bench.open(cleanup_policy="compact", **configs)
    log.appends.append_copy(keyed(b"k0", 0, START_MS - 10) + stored(block, codec, 1))
    log.appends.append_copy(keyed(b"k0", 4, START_MS + 10))
    log.rolls.roll()
    log.appends.append_copy(keyed(b"k2", 5, START_MS + 20))
    return log


def answer(found: Any) -> tuple[int, int] | None:
    return None if found is None else (found.timestamp, found.offset)


@pytest.mark.parametrize("name", READABLE, ids=" ".join)
class TestReadable:
    def test_times_inside_the_block_are_found(self, bench: Bench, name: tuple[str, str]) -> None:
        log = filled(bench, FRAMES[name].block, FRAMES[name].codec)
        assert answer(log.reads.offset_for_time(START_MS + 1)) == (START_MS + 1, 2)
        assert answer(log.reads.largest_timestamp()) == (START_MS + 20, 5)

    def test_it_is_compacted(self, bench: Bench, name: tuple[str, str]) -> None:
        log = filled(bench, FRAMES[name].block, FRAMES[name].codec)
        summary = compact(log)
        assert summary is not None
        assert summary.unreadable == ()
        assert [(offset, key) for offset, key, _ in contents(log)] == [(2, "k1"), (3, "k2"), (4, "k0"), (5, "k2")]

    def test_it_is_no_finding_of_a_check(self, bench: Bench, name: tuple[str, str]) -> None:
        log = filled(bench, FRAMES[name].block, FRAMES[name].codec)
        log.close()
        assert faults(bench.directory) == []

    def test_its_largest_timestamp_is_found_if_the_header_lacks_it(self, bench: Bench, name: tuple[str, str]) -> None:
        log = bench.open()
        data = stored(FRAMES[name].block, FRAMES[name].codec, 0, max_timestamp=-1)
        with pytest.raises(UnknownTimestampError):
            log.appends.plan_copy(data)
        log.appends.plan_copy(data, None, largest_timestamps(data))
        log.appends.abandon()
        log.appends.append_copy(data)
        assert answer(log.reads.largest_timestamp()) == (START_MS + COUNT - 1, COUNT - 1)
        log = bench.reopen(log)
        assert answer(log.reads.offset_for_time(START_MS + 2)) == (START_MS + 2, 2)


ODD_BLOCKS = [
    *(pytest.param(FRAMES[name].block, FRAMES[name].codec, id=" ".join(name)) for name in UNREADABLE),
    pytest.param(b"whatever", UNKNOWN_CODEC, id="unknown codec"),
    pytest.param(record() + b"x", Codec.NONE, id="wrong records"),
]


@pytest.mark.parametrize(("block", "codec"), ODD_BLOCKS)
class TestUnreadable:
    def test_a_time_in_it_is_found_at_its_first_offset(
        self, bench: Bench, block: bytes, codec: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = filled(bench, block, codec)
        for _ in range(3):
            assert answer(log.reads.offset_for_time(START_MS + 1)) == (START_MS + 2, 1)
        assert answer(log.reads.offset_for_time(START_MS + 3)) == (START_MS + 10, 4)
        assert answer(log.reads.largest_timestamp()) == (START_MS + 20, 5)
        assert dict(log._state.context.files.unreadable.rows())[("time_lookup",)] == 3
        warnings = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert (
            "cannot read the records of the batch at offset 1, finding it by the timestamps of its header"
            in warnings[0]
        )

    def test_it_can_have_the_largest_time(self, bench: Bench, block: bytes, codec: int) -> None:
        log = bench.open()
        log.appends.append_copy(keyed(b"k", 0, START_MS - 10) + stored(block, codec, 1))
        assert answer(log.reads.largest_timestamp()) == (START_MS + 2, 1)

    def test_compaction_keeps_it_as_it_is_and_reports_it(self, bench: Bench, block: bytes, codec: int) -> None:
        log = filled(bench, block, codec)
        summary = compact(log)
        assert summary is not None
        ((offset, reason),) = [(each.base_offset, each.reason) for each in summary.unreadable]
        assert offset == 1
        assert reason
        assert summary.clean_offset == 5
        data = bench.path(0, ".log").read_bytes()
        assert data == stored(block, codec, 1) + keyed(b"k0", 4, START_MS + 10)

    def test_recovery_accepts_it(self, bench: Bench, block: bytes, codec: int) -> None:
        log = filled(bench, block, codec)
        log.close(clean=False)
        log = bench.open(clean=False, cleanup_policy="compact")
        assert (log.offsets.log_end_offset, log.recovery.truncated_bytes if log.recovery else 0) == (6, 0)

    def test_a_check_reports_it(self, bench: Bench, block: bytes, codec: int) -> None:
        log = filled(bench, block, codec)
        log.close()
        (fault,) = faults(bench.directory)
        assert ".log" in fault


def test_a_damaged_block_is_told_apart_from_one_that_was_sent_so(bench: Bench) -> None:
    log = filled(bench, FRAMES["gzip", "usual"].block, Codec.GZIP)
    log.durability.flush()
    path = bench.path(0, ".log")
    data = bytearray(path.read_bytes())
    data[len(keyed(b"k0", 0, 0)) + HEADER_SIZE + 20] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptBatchError, match="the CRC of the batch"):
        log.reads.offset_for_time(START_MS + 1)
    with pytest.raises(CorruptBatchError, match="CRC"):
        compact(log)


def faults(directory: Path) -> list[str]:
    """Findings in log files."""
    found = check_directories([directory.parent], CheckOptions(index_interval_bytes=4096), Tally())
    return [f"{each.path}: {each.what}" for each in found if each.path.suffix == ".log"]
