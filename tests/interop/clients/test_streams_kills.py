"""Instances of Kafka Streams, while they and brokers are killed: see `tests.cluster.streams_kills`."""

from pathlib import Path

import pytest

from tests.cluster.streams_kills import run

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KINDS = ["instance", "group coordinator", "leader", "transaction coordinator", "recovering broker", "all brokers"]


@pytest.mark.parametrize("brokers", [1, 3])
def test_every_word_is_counted_once(tmp_path: Path, java_tools: None, brokers: int) -> None:
    kills = len(KINDS) + brokers  # the recovering broker has been killed before, and all are several
    report = run(tmp_path, brokers=brokers, instances=2, kills=kills, seconds=120, seed=1, kinds=KINDS)
    assert report["wrong"] == []
    assert set(report["kills"]) >= set(KINDS), report
