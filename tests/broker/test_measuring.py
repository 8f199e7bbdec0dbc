"""The compiled twin counts what the pure one counts: buckets, sums, stages, steps that took too long."""

import runpy
from mmap import mmap
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import measuring
from broker.log import page_faults
from broker.metrics import LATENCY_BOUNDS_S
from protocol.records import codec

Twin = SimpleNamespace


def pure(module: ModuleType) -> Twin:
    """What a module offers where nothing was built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "compiled", False)
        return SimpleNamespace(**runpy.run_path(str(module.__file__)))


PURE, CHOSEN = pure(measuring), SimpleNamespace(**vars(measuring))
SECONDS = st.one_of(st.sampled_from(LATENCY_BOUNDS_S), st.floats(-0.001, 20))


def shown(histogram: measuring.Histogram) -> object:
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
def test_a_counter_adds(twin: Twin) -> None:
    counter = twin.Counter()
    counter.add()
    counter.add(41)
    assert counter.value == 42


@pytest.mark.parametrize("twin", [PURE, CHOSEN], ids=["pure", "chosen"])
def test_a_step_over_the_limit_is_told_with_its_task_and_its_end(twin: Twin) -> None:
    told: list[tuple[str, bool]] = []
    steps = twin.Steps(0.0, lambda task, now: told.append((task, now >= steps.began_at)))
    steps.before_task_step("a")
    assert (steps.task, steps.doing, told) == ("a", "", [])
    steps.doing = "fetch"
    steps.before_task_step("b")
    assert steps.doing == ""
    steps.before_io_wait(1.0)
    assert steps.task is None
    steps.before_io_wait(1.0)
    assert told == [("a", True), ("b", True)]


@pytest.mark.parametrize("twin", [PURE, CHOSEN], ids=["pure", "chosen"])
def test_a_step_below_the_limit_is_not(twin: Twin) -> None:
    steps = twin.Steps(60.0, lambda task, now: pytest.fail(f"{task} {now}"))
    steps.before_task_step("a")
    steps.before_task_step("b")
    steps.before_io_wait(1.0)


def test_the_clock_is_the_one_that_the_guard_looks_at() -> None:
    twins = [PURE.Steps(1.0, print), CHOSEN.Steps(1.0, print), PURE.Steps(1.0, print)]
    for steps in twins:
        steps.before_task_step("a")
    first, between, last = (steps.began_at for steps in twins)
    assert first <= between <= last


def test_page_faults_come_in_the_same_shape() -> None:
    offered = [pure(page_faults).FaultCounts, page_faults.FaultCounts]
    made = [counts(page_faults.PLACES) for counts in offered]
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
