"""The child process that compacts: its pace, and what it says over its pipes."""

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from warmlog.broker.log.compaction.child_process import (
    GO,
    PROGRESS_INTERVAL_S,
    Failure,
    Pace,
    Progress,
    decode_reply,
    encode_job,
    serve,
)
from warmlog.broker.log.compaction.run import CleanedGroup, CleanerLimits, CompactionJob, CompactionSummary
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.records.builder import build_batch

Bench = Any
Batch = Callable[..., bytes]
START_MS = 1_700_000_000_000


class Watch:
    """Seconds that pass when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def paced(rate: float) -> tuple[Pace, Watch, list[int]]:
    watch, told = Watch(), list[int]()
    return Pace(rate, told.append, clock=lambda: watch.now, sleep=watch.sleep), watch, told


def test_input_and_output_keep_to_the_rate() -> None:
    pace, watch, _ = paced(1000.0)
    for _ in range(10):
        pace(500)
    assert watch.now == pytest.approx(105.0)
    watch.now += 10
    pace(500)  # it was slower than it may be: no wait
    assert watch.now == pytest.approx(115.0)


def test_without_a_limit_nobody_waits() -> None:
    pace, watch, told = paced(sys.float_info.max)
    for _ in range(1000):
        pace(1 << 30)
    assert watch.slept == []
    assert told == []
    watch.now += PROGRESS_INTERVAL_S
    pace(5)
    assert told == [1000 * (1 << 30) + 5]


def test_a_long_wait_is_told_of() -> None:
    pace, _, told = paced(10.0)
    pace(55)
    assert told == [55] * 5


# -- the conversation --------------------------------------------------------------------------------------------------


def job(log: PartitionLog) -> CompactionJob:
    log.durability.flush()
    room = CleanerLimits(dedupe_buffer_bytes=1 << 20, load_factor=0.9, io_buffer_bytes=0, max_bytes_per_second=1e300)
    return log.cleaning.job(log.cleaning.find(None), log.producers.capture(), room)


@pytest.fixture
def log(bench: Bench) -> PartitionLog:
    log: PartitionLog = bench.open(segment_bytes=1000)
    for at in range(50):
        log.appends.append(build_batch([(START_MS, b"k%d" % (at % 3), b"v", ())]))
    return log


def conversation(*lines: bytes) -> list[Any]:
    said = io.BytesIO()
    serve(io.BytesIO(b"".join(lines)), said)
    return [decode_reply(line) for line in said.getvalue().splitlines()]


def test_a_job_is_answered_group_by_group_and_summed_up(log: PartitionLog) -> None:
    asked = encode_job(job(log)) + b"\n"
    *groups, summary = conversation(asked, *[GO] * (log.segment_count - 1))
    assert all(isinstance(group, CleanedGroup) for group in groups)
    assert isinstance(summary, CompactionSummary)
    assert [base for group in groups for base in group.sources] == [
        segment.base_offset for segment in log._state.segments.snapshot[:-1]
    ]
    assert summary.clean_offset == log._state.segments.active.base_offset


def test_damage_and_a_disk_that_fails_are_told_apart(bench: Bench, log: PartitionLog) -> None:
    asked = encode_job(job(log)) + b"\n"
    path = bench.path(0, ".log")
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" + whole[101:])
    assert [(reply.is_damage, type(reply)) for reply in conversation(asked, asked)] == [(True, Failure)] * 2
    path.unlink()
    (failure,) = conversation(asked)
    assert not failure.is_damage
    assert "No such file" in failure.message


def test_a_broker_that_has_gone_ends_it(log: PartitionLog, bench: Bench) -> None:
    with pytest.raises(BrokenPipeError):
        conversation(encode_job(job(log)) + b"\n")
    process = subprocess.run(
        [sys.executable, "-m", "warmlog.broker.log.compaction.child_process"],
        input=encode_job(job(log)) + b"\n", stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    assert process.returncode == 1
    assert isinstance(decode_reply(process.stdout.splitlines()[0]), CleanedGroup)


def test_what_it_says_is_read_back() -> None:
    for line in (b'{"type":"progress","moved_bytes":5}', b'{"type":"failure","message":"x","is_damage":true}'):
        assert decode_reply(line) in (Progress(moved_bytes=5), Failure(message="x", is_damage=True))
