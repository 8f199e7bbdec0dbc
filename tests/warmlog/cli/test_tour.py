"""`warmlog tour`: the topic is made again each time, and is not in memory."""

from pathlib import Path

from tests.broker.log.io.eviction import needs_eviction
from tests.warmlog.cli.conftest import Run
from warmlog.testing import Broker


def test_the_topic_is_made_again_and_evicted(run: Run, tmp_path: Path) -> None:
    needs_eviction(tmp_path)
    with Broker(data_dir=tmp_path / "data") as broker:
        for _ in range(2):
            printed = run("tour", "--data-dir", tmp_path / "data", "--native", broker.native).out
            assert printed.startswith(b"warmlog-tour: 60,000 records; 0 of ")
        assert run("log", "explain", "warmlog-tour", "0", "--offset", "30000", "--native", broker.native).out


def test_another_data_directory_is_refused(run: Run, tmp_path: Path) -> None:
    missing = run("tour", "--data-dir", tmp_path / "missing")
    assert missing.status == 2
    assert "no such directory" in missing.err
