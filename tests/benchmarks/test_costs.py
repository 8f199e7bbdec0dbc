"""What switched measuring costs: the blocks, the statistics, and what the switch turns."""

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness import Conditions, Workload
from benchmarks.questions.costs import Median, median_of
from benchmarks.servers.switched import LOUD, SILENT, become
from benchmarks.workloads.cost import COST_WORKLOADS
from warmlog.broker.log.io.page_faults import PageFaults
from warmlog.broker.metrics.families import SeriesCounter, SeriesHistogram
from warmlog.broker.metrics.registry import Metrics


@given(st.lists(st.floats(-1, 1), min_size=1))
def test_the_interval_holds_the_median(values: list[float]) -> None:
    found = median_of(values)
    assert found.low <= found.value == median(values) <= found.high


def test_the_interval_of_a_hundred_is_that_of_the_40th_to_the_60th() -> None:
    assert median_of([float(number) for number in range(100)]) == Median(49.5, 40.0, 59.0)


def test_what_is_silent_counts_nothing_and_counts_again_when_it_is_not() -> None:
    metrics, faults = Metrics(), PageFaults()
    requests, counter, histogram = metrics.requests("fetch", "kafka"), metrics.bytes_in, metrics.lookup_seconds
    objects = [requests, counter, histogram, faults]
    assert become(SILENT, objects) == 4
    counter.add(5)
    histogram.observe(1.0)
    faults.begin()
    faults.end("append")
    assert counter.value == histogram.total == 0
    assert become(LOUD, objects) == 4
    counter.add(5)
    histogram.observe(1.0)
    assert (counter.value, histogram.total) == (5, 1.0)
    assert (type(counter), type(histogram)) == (SeriesCounter, SeriesHistogram)


@pytest.mark.parametrize("workload", COST_WORKLOADS, ids=lambda workload: workload.name)
def test_a_small_run_compares_both_sides_in_one_process(workload: Workload[Any], tmp_path: Path) -> None:
    (comparison,) = workload.contestants
    conditions = Conditions(seconds=0.1, warmup_s=0, scale=0.02, directory=tmp_path, kept=tmp_path)
    found = comparison.measure(conditions)
    assert found["requests_a_side"] == 400
    assert found["on_us"] > 0 < found["off_us"]
    assert found["cost_low"] <= found["cost"] <= found["cost_high"]
