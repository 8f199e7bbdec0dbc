"""Java's members of a share group, while they and brokers are killed: see `tests.cluster.share_kills`."""

from pathlib import Path

import pytest

from tests.cluster.share_kills import run

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

KINDS = ["members", "share coordinator", "leader", "members", "group coordinator", "recovering broker", "all brokers"]


@pytest.mark.parametrize(("brokers", "members"), [(1, 5), (3, 1)])
def test_nothing_acknowledged_is_delivered_again_and_nothing_is_lost(
    tmp_path: Path, java_tools: None, brokers: int, members: int
) -> None:
    kills = len(KINDS) + brokers  # the recovering broker has been killed before, and all are several
    report = run(tmp_path, brokers=brokers, processes=2, members=members, kills=kills, seconds=90, seed=1, kinds=KINDS)
    assert report["wrong"] == []
    assert set(report["kills"]) >= set(KINDS), report
    assert report["events"]["accepted"] >= report["produced"] * 0.9, report
