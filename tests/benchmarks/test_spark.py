"""The table of the Spark figures: it compares contestants that there are, and takes ratios within a round."""

import pytest

pytest.importorskip("pyspark")

from benchmarks.questions.spark import GROUPS, RECORDS, TARGETS, table


def test_what_is_wanted_compares_contestants_of_one_group() -> None:
    for name, against, least in TARGETS:
        assert any({name, against} <= set(contestants) for contestants in GROUPS.values())
        assert least > 0


def test_ratios_are_the_median_of_the_rounds_own() -> None:
    rounds = [
        {"group": "count", "seconds": {"connector count": slow, "pipeline count": quick}, "worker_mb": memory}
        for slow, quick, memory in ((10.0, 0.5, 120.0), (40.0, 1.0, 130.0), (9.0, 0.3, 90.0))
    ]
    said = table(rounds)
    assert "| pipeline count / connector count | 30.00 | 20.00 to 40.00 | ≥ 20: yes |" in said
    assert f"| connector count | {RECORDS / 10:,.0f} | {RECORDS / 40:,.0f} to {RECORDS / 9:,.0f} | 3 |" in said
    assert "130 MB" in said
    assert "to no-op" not in said
