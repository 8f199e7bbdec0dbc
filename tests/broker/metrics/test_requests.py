"""Compiled measurements are those of the source: buckets, sums, stages, what held the loop."""

import runpy
from mmap import mmap
from time import time_ns
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uncompiled import uncompiled
from warmlog.broker.log.io import page_faults
from warmlog.broker.metrics import requests
from warmlog.broker.metrics.families import LATENCY_BOUNDS_S
from warmlog.protocol.records import codec

Twin = ModuleType


def pure(module: ModuleType) -> SimpleNamespace:
    """What a module offers where nothing was built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "compiled", False)
        return SimpleNamespace(**runpy.run_path(str(module.__file__)))


PURE, CHOSEN = uncompiled("warmlog.broker.metrics.requests"), requests
SECONDS = st.one_of(st.sampled_from(LATENCY_BOUNDS_S), st.floats(-0.001, 20))


def shown(histogram: requests.Histogram) -> object:
    return histogram.bounds, histogram.counts, histogram.total


@given(st.lists(SECONDS))
def test_observations_fall_into_the_same_buckets(observed: list[float]) -> None:
    twins = [twin.Histogram(LATENCY_BOUNDS_S) for twin in (PURE, CHOSEN)]
    for histogram in twins:
        for seconds in observed:
            histogram.observe(seconds)
    assert shown(twins[0]) == shown(twins[1])
    assert sum(twins[1].counts) == len(observed)


@given(st.lists(st.tuples(st.integers(1, 500), st.tuples(*[SECONDS] * 5))))
def test_stages_are_counted_alike(requests: list[tuple[int, tuple[float, ...]]]) -> None:
    seen = []
    for twin in (PURE, CHOSEN):
        histograms = [twin.Histogram(LATENCY_BOUNDS_S) for _ in range(5)]
        stages = twin.StageHistograms(*histograms)
        for count, (received_at, begun_at, handled_at, done_at, sent_at) in requests:
            staged = SimpleNamespace(count=count, received_at=received_at, begun_at=begun_at, handled_at=handled_at)
            stages.observe(staged, done_at, sent_at)
        seen.append([shown(histogram) for histogram in histograms])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("twin", [PURE, CHOSEN], ids=["pure", "chosen"])
def test_the_wall_clock_counts_milliseconds_since_the_epoch(twin: Twin) -> None:
    before_ns = time_ns()
    now_ms = twin.wall_clock_ms()
    assert before_ns // 1_000_000 <= now_ms <= time_ns() // 1_000_000


@pytest.mark.parametrize("twin", [PURE, CHOSEN], ids=["pure", "chosen"])
def test_a_counter_adds(twin: Twin) -> None:
    counter = twin.Counter()
    counter.add()
    counter.add(41)
    assert counter.value == 42


@pytest.mark.parametrize("twin", [PURE, CHOSEN], ids=["pure", "chosen"])
def test_the_clock_reports_the_bounds_and_the_cause_of_a_stall(twin: Twin) -> None:
    reported: list[tuple[float, float, str]] = []
    clock = twin.LoopClock(-1.0, lambda since, now: reported.append((since, now, clock.doing)))
    clock.start_clock()
    woken_at = clock.current_time()
    assert (clock.is_awake, clock.began_at, clock.doing, reported) == (True, woken_at, "", [])
    clock.begin("fetch")
    begun_at = clock.began_at
    read_at = clock.current_time()
    assert reported == [(woken_at, begun_at, ""), (begun_at, read_at, "fetch")]
    slept_s = clock.deadline_to_sleep_time(read_at + 60)
    assert reported[2:] == [(read_at, clock.began_at, "")]
    assert slept_s == pytest.approx(60, abs=30)
    assert not clock.is_awake
    clock.current_time()
    assert len(reported) == 3


@pytest.mark.parametrize("twin", [PURE, CHOSEN], ids=["pure", "chosen"])
def test_a_clock_that_is_read_in_time_says_nothing(twin: Twin) -> None:
    clock = twin.LoopClock(60.0, lambda since, now: pytest.fail(f"{since} {now}"))
    clock.current_time()
    clock.begin("fetch")
    clock.deadline_to_sleep_time(float("inf"))


def test_both_versions_read_the_same_clock() -> None:
    first, between, last = (twin.LoopClock(1.0, print).current_time() for twin in (PURE, CHOSEN, PURE))
    assert first <= between <= last


def test_page_faults_come_in_the_same_shape() -> None:
    offered = [pure(page_faults).FaultCounts, page_faults.FaultCounts]
    made = [counts(page_faults.SECTIONS) for counts in offered]
    written = bytes(1 << 20)
    for faults in made:
        with mmap(-1, len(written)) as pages:  # new to the process, whatever the allocator keeps
            faults.begin()
            pages.write(written)
            faults.end("append")
        faults.leave()
        faults.end("log_scan")
        assert faults.minor["append"] > 0
        assert faults.minor["log_scan"] == faults.minor["index_warm"] == 0
    assert made[0].minor.keys() == made[1].minor.keys() == made[0].major.keys() == made[1].major.keys()
