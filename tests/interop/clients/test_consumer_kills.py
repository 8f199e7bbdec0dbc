"""Java's members of a consumer group, while they and brokers are killed: see `tests.cluster.consumer_kills`."""

from pathlib import Path

import pytest

from tests.cluster.consumer_kills import run

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

KINDS = ["members", "group coordinator", "leader", "recovering broker", "all brokers"]


@pytest.mark.parametrize(("brokers", "members"), [(1, 2), (3, 1)])
def test_no_record_is_lost_and_no_partition_has_two_members(
    tmp_path: Path, java_tools: None, brokers: int, members: int
) -> None:
    kills = len(KINDS) + brokers  # the recovering broker has been killed before, and all are several
    report = run(tmp_path, brokers=brokers, processes=2, members=members, kills=kills, seconds=90, seed=1, kinds=KINDS)
    assert report["wrong"] == []
    assert set(report["kills"]) >= set(KINDS), report
