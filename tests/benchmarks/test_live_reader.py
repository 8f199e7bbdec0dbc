"""The live client beside readers of history: the slow disk, the pace, and one small run of it all."""

import os
from pathlib import Path

import pytest

from benchmarks.harness import Conditions, Spread, Target
from benchmarks.load.paced import Pace, PaceResult
from benchmarks.questions.live_reader import ALLOWED_MS, Replay, evict, figures
from benchmarks.servers.throttle import ThrottleError, disk_of, throttled
from benchmarks.workloads.live import WARMLOG_NATIVE
from benchmarks.workloads.native import SMALL, batch_of
from tests.broker.log.io.eviction import needs_eviction
from warmlog.broker.log.io.page_cache import missing_by_mincore

RECORDS = 100


def test_a_process_is_held_to_its_rate_and_let_go_again(tmp_path: Path) -> None:
    needs_eviction(tmp_path)
    path = tmp_path / "cold"
    path.write_bytes(os.urandom(200_000))
    evict([path])
    before = Path("/proc/self/cgroup").read_text()
    try:
        with throttled(os.getpid(), tmp_path, 1_000_000) as disk:
            within = Path("/proc/self/cgroup").read_text()
            path.read_bytes()
            assert disk.read_bytes() >= 200_000
    except ThrottleError as error:
        pytest.skip(str(error))
    assert within != before == Path("/proc/self/cgroup").read_text()
    assert not disk.group.exists()


def test_what_cannot_be_throttled_is_told(tmp_path: Path) -> None:
    with pytest.raises(ThrottleError, match="/dev/shm is not on a block device"):
        disk_of(Path("/dev/shm"))
    if os.getuid():
        with (
            pytest.raises(ThrottleError, match="the disk cannot be throttled"),
            throttled(os.getpid(), tmp_path, 1_000_000),
        ):
            pass


def test_eviction_puts_files_out_of_memory(tmp_path: Path) -> None:
    needs_eviction(tmp_path)
    path = tmp_path / "a"
    path.write_bytes(bytes(40_960))
    evict([path])
    fd = os.open(path, os.O_RDWR)
    assert missing_by_mincore(fd, 40_960) == 10
    os.close(fd)


def test_a_tail_is_judged_by_four_times_the_quiet_one_or_ten_milliseconds() -> None:
    quiet = PaceResult([0.001] * 100)
    assert figures(quiet, PaceResult([0.002] * 98 + [0.009, 0.02]))["p99_of_allowed"] == pytest.approx(2)
    slow = PaceResult([0.005] * 100)
    found = figures(slow, PaceResult([0.006] * 100))
    assert found["p99_of_allowed"] == pytest.approx(0.006 / 0.02)
    assert found["p50_times"] == pytest.approx(1.2)
    assert ALLOWED_MS == 10


def test_a_promise_of_every_round_is_judged_by_the_worst() -> None:
    rounds = Spread(median=1.0, minimum=0.5, maximum=3.0)
    assert Target(figure="x", at_most=2).is_met_by(rounds)
    assert not Target(figure="x", at_most=2, every_round=True).is_met_by(rounds)
    assert not Target(figure="x", at_least=0.6, every_round=True).is_met_by(rounds)


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_small_run_measures_both_sides(is_followed: bool, tmp_path: Path) -> None:
    needs_eviction(tmp_path)
    large = batch_of(RECORDS, 1_000)
    replay = Replay(readers=2, live=Pace(per_s=200, batch=SMALL), is_followed=is_followed, batch=large, records=RECORDS)
    directory = tmp_path / "measured"
    directory.mkdir()
    conditions = Conditions(seconds=0.4, warmup_s=0.1, scale=0.002, directory=directory, kept=tmp_path)
    try:
        found = replay.measure(WARMLOG_NATIVE, conditions)
    except ThrottleError as error:
        pytest.skip(str(error))
    finally:
        WARMLOG_NATIVE.standing.close()
    assert 0 < found["quiet_p50_ms"] <= found["quiet_p99_ms"]
    assert 0 < found["during_p50_ms"] <= found["during_p99_ms"] <= found["during_max_ms"]
    assert found["disk_share"] > 0
