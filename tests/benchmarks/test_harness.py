"""Rounds, medians, ratios, and the table they become."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import EVERY
from benchmarks.harness import Conditions, Figures, Outcome, Plan, Spread, Target, Workload, run
from benchmarks.load.generator import ROOT, LoadResult
from benchmarks.report.document import BEGIN_MARK, CPU, END_MARK, LABELS, document, put_figures, table
from benchmarks.servers.contestants import Fetch, appended, costs
from benchmarks.servers.kafka import KAFKA
from benchmarks.workloads.native import batch_of


@dataclass(frozen=True)
class Runner:
    name: str


CPU_FIGURES = {
    *CPU,
    *("produce_us", "produce_v7_us", "list_offsets_us", "offset_commit_us", "metadata_us"),
    *("fetch_us", "fetch_active_us", "session_us", "session_active_us"),
}
OURS, THEIRS = Runner("ours"), Runner("theirs")


def a_workload(*targets: Target) -> Workload[Runner]:
    return Workload(
        name="race",
        title="a race",
        figures=("mb_per_s",),
        contestants=(OURS, THEIRS),
        measure=lambda runner, conditions: {"requests_per_s": 1.0},
        targets=targets,
    )


def an_outcome(ours: list[Figures], theirs: list[Figures], *targets: Target) -> Outcome:
    return Outcome(a_workload(*targets), {"ours": ours, "theirs": theirs})


def a_plan(directory: Path, rounds: int = 3) -> Plan:
    return Plan(rounds=rounds, seconds=1.0, warmup_s=0.1, directory=directory)


def test_contestants_take_turns_in_every_round(tmp_path: Path) -> None:
    turns: list[str] = []

    def measure(runner: Runner, conditions: Conditions) -> Figures:
        turns.append(runner.name)
        return {"requests_per_s": 1.0}

    run(Workload(name="race", title="", figures=(), contestants=(OURS, THEIRS), measure=measure), a_plan(tmp_path))
    assert turns == ["ours", "theirs"] * 3


def test_each_measurement_finds_an_empty_directory_and_what_was_kept(tmp_path: Path) -> None:
    kept: list[int] = []

    def measure(runner: Runner, conditions: Conditions) -> Figures:
        assert list(conditions.directory.iterdir()) == []
        (conditions.directory / "data").touch()
        kept.append(len(list(conditions.kept.iterdir())))
        (conditions.kept / str(len(kept))).touch()
        return {"requests_per_s": 1.0}

    run(Workload(name="race", title="", figures=(), contestants=(OURS,), measure=measure), a_plan(tmp_path))
    assert kept == [0, 1, 2]
    assert list(tmp_path.iterdir()) == []


def test_a_failed_measurement_leaves_no_directory(tmp_path: Path) -> None:
    def measure(runner: Runner, conditions: Conditions) -> Figures:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        run(Workload(name="race", title="", figures=(), contestants=(OURS,), measure=measure), a_plan(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_spread_is_the_middle_and_the_ends() -> None:
    assert Spread.of([3.0, 9.0, 4.0]) == Spread(median=4.0, minimum=3.0, maximum=9.0)


def test_a_ratio_is_taken_within_rounds_so_that_a_slow_round_cancels_out() -> None:
    slow_second_round = [{"mb_per_s": 100.0}, {"mb_per_s": 10.0}, {"mb_per_s": 90.0}]
    outcome = an_outcome(slow_second_round, [{"mb_per_s": 200.0}, {"mb_per_s": 20.0}, {"mb_per_s": 200.0}])
    assert outcome.ratio("mb_per_s", "theirs") == Spread(median=0.5, minimum=0.45, maximum=0.5)


def test_there_is_no_ratio_of_what_only_one_has() -> None:
    outcome = an_outcome([{"requests_per_s": 1.0, "mb_per_s": 2.0}], [{"mb_per_s": 1.0}])
    assert outcome.ratio("requests_per_s", "theirs") is None


def test_a_contestant_that_did_nothing_has_no_ratio() -> None:
    assert an_outcome([{"mb_per_s": 1.0}], [{"mb_per_s": 0.0}]).ratio("mb_per_s", "theirs") is None


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target(figure="mb_per_s", against="theirs", at_least=0.5), True),
        (Target(figure="mb_per_s", against="theirs", at_least=0.6), False),
        (Target(figure="mb_per_s", against="theirs", at_most=0.5), True),
        (Target(figure="mb_per_s", at_least=101), False),
        (Target(figure="mb_per_s", at_most=100), True),
    ],
)
def test_a_target_is_judged_by_the_median(target: Target, met: bool) -> None:
    outcome = an_outcome([{"mb_per_s": 100.0}], [{"mb_per_s": 200.0}], target)
    assert outcome.judge(target) is met


def test_the_table_has_a_row_for_each_contestant_with_what_is_wanted() -> None:
    target = Target(figure="mb_per_s", against="theirs", at_least=0.6)
    busy = {"server_busy": 0.97, "load_busy": 0.5}
    outcome = an_outcome([{"mb_per_s": 100.0, **busy}], [{"mb_per_s": 200.0}], target)
    head, _, ours, theirs = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table([outcome]).splitlines())
    assert head[:4] == ["workload", "figure", "contestant", "median"]
    assert ours == ["a race", "MB/s", "ours", "100", "100 to 100", "", "", "", "", "server 97%!, load 50%"]
    assert theirs == ["", "", "theirs", "200", "200 to 200", "0.50", "0.50 to 0.50", "≥ 0.6: NO", "", ""]


def test_the_table_has_the_servers_processor_time_in_every_unit_that_was_measured() -> None:
    ours: list[Figures] = [{"mb_per_s": 1.0, "cpu_us_record": each, "cpu_us": 20 * each} for each in (0.5, 9.0, 0.75)]
    _, _, row, other = table([an_outcome(ours, [{"mb_per_s": 1.0, "cpu_us_mb": 1234.5}] * 3)]).splitlines()
    assert row.split("|")[9].strip() == "0.750 us/record, 15.0 us/request"
    assert other.split("|")[9].strip() == "1,234 us/MB"


def test_the_processor_time_of_a_megabyte_is_left_out_of_a_table_of_small_requests() -> None:
    workload = Workload(name="w", title="", figures=("requests_per_s",), contestants=(OURS,), measure=lambda *_: {})
    rounds: dict[str, list[Figures]] = {"ours": [{"requests_per_s": 1.0, "cpu_us": 2.0, "cpu_us_mb": 3.0}]}
    outcome = Outcome(workload, rounds)
    assert table([outcome]).splitlines()[2].split("|")[9].strip() == "2.0 us/request"
    (described,) = document([outcome], a_plan(Path()))["workloads"]
    assert described["contestants"]["ours"]["median"]["cpu_us_mb"] == 3.0


@pytest.mark.parametrize("workload", [each for each in EVERY if KAFKA.name in {its.name for its in each.contestants}])
def test_every_workload_beside_kafka_has_a_target_of_processor_time_for_each_unit(workload: Workload[Any]) -> None:
    bounds = [t.at_most for t in workload.targets if t.against == KAFKA.name and t.figure in CPU_FIGURES]
    assert bounds
    assert set(bounds) == {1}


def test_processor_time_is_divided_by_records_requests_and_bytes() -> None:
    found = costs(0.5, records=2_000, requests=100, size=4_000_000)
    assert found == {"cpu_us_record": 250.0, "cpu_us": 5_000.0, "cpu_us_mb": 125_000.0}


def test_processor_time_without_any_reply_is_not_divided_by_zero() -> None:
    assert costs(0.5, records=0, requests=0, size=0)["cpu_us"] == 500_000.0


def test_a_load_of_appends_counts_the_records_of_its_batches() -> None:
    result = LoadResult(replies=10, received_bytes=1, elapsed_s=2.0, server_cpu_s=1.0, load_cpu_s=0.5)
    found = appended(batch_of(1_000, 10), result)
    assert (found["requests_per_s"], found["cpu_us"], found["cpu_us_record"]) == (5.0, 100_000.0, 100.0)
    assert found["mb_per_s"] * 2.0 * found["cpu_us_mb"] == pytest.approx(1_000_000.0)
    assert (found["server_busy"], found["load_busy"]) == (0.5, 0.25)


def test_a_load_of_fetches_counts_the_records_of_the_batches_received() -> None:
    result = LoadResult(replies=4, received_bytes=1_000_000, elapsed_s=1.0, server_cpu_s=0.001, load_cpu_s=0.5)
    found = Fetch(connections=1, depth=1, batch=bytes(1_000), records=5).figures(result)
    assert (found["cpu_us_record"], found["cpu_us"], found["cpu_us_mb"]) == (0.2, 250.0, 1_000.0)


def test_every_figure_of_a_workload_has_a_label() -> None:
    named = {figure for workload in EVERY for figure in workload.figures}
    assert named - LABELS.keys() == set()


def test_figures_go_between_the_marks_of_a_page() -> None:
    page = f"# Title\n{BEGIN_MARK}\nold\n{END_MARK}\nend\n"
    once = put_figures(page, "new")
    assert once == f"# Title\n{BEGIN_MARK}\n\nnew\n\n{END_MARK}\nend\n"
    assert put_figures(once, "new") == once


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the figures"):
        put_figures("# Title\n", "new")


def test_the_page_of_the_figures_has_its_marks() -> None:
    assert "new" in put_figures((ROOT / "docs" / "performance.md").read_text(), "new")


def test_the_document_holds_every_round_and_the_verdicts(tmp_path: Path) -> None:
    target = Target(figure="mb_per_s", against="theirs", at_least=0.4)
    outcome = an_outcome([{"mb_per_s": 1.0}, {"mb_per_s": 3.0}], [{"mb_per_s": 2.0}, {"mb_per_s": 6.0}], target)
    (workload,) = document([outcome], a_plan(tmp_path))["workloads"]
    assert workload["contestants"]["ours"]["rounds"] == [{"mb_per_s": 1.0}, {"mb_per_s": 3.0}]
    assert workload["contestants"]["ours"]["median"] == {"mb_per_s": 2.0}
    assert workload["contestants"]["theirs"]["ratios"] == {"mb_per_s": 0.5}
    assert [target["met"] for target in workload["targets"]] == [True]


def test_an_outcome_meets_its_targets_only_if_it_meets_all_of_them() -> None:
    met = Target(figure="mb_per_s", against="theirs", at_least=2)
    missed = Target(figure="mb_per_s", at_most=1)
    rounds: tuple[list[Figures], list[Figures]] = ([{"mb_per_s": 4.0}], [{"mb_per_s": 2.0}])
    assert an_outcome(*rounds, met).meets_targets
    assert not an_outcome(*rounds, met, missed).meets_targets
