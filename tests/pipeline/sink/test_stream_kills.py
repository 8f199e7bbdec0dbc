"""Real Spark streams into a real broker; tasks fail and the driver is killed: each record is stored once."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.session import program_environment, takes_limits
from tests.pipeline.sink.spark_reads import committed, values
from warmlog.client.blocking import Client
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, takes_limits]  # takes minutes

STREAM = Path(__file__).with_name("sink_stream.py")
STREAM_TIMEOUT_S = 300


def run_stream(broker: Broker, directory: Path, faults: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(STREAM), broker.native, str(directory), faults, *options]
    return subprocess.run(
        command, env=program_environment(), capture_output=True, text=True, timeout=STREAM_TIMEOUT_S, check=False
    )


def test_a_stream_whose_tasks_fail_and_whose_driver_is_killed_stores_each_record_once(
    spark: Any, broker: Broker, source: None, tmp_path: Path
) -> None:
    """A task dies after half of its rows and is tried again; the driver is killed between the write of a micro-batch
    and its commit; then the query goes on from its checkpoint."""
    killed = run_stream(broker, tmp_path, "fail kill")
    assert killed.returncode == -9, killed.stderr
    assert (tmp_path / "failed").exists()
    before = values(spark, broker, "copy")
    assert 400 <= before.total() < 600  # the second micro-batch is stored, and nothing says so
    went_on = run_stream(broker, tmp_path, "")
    assert went_on.returncode == 0, went_on.stderr
    assert values(spark, broker, "copy") == Counter(range(600))
    told = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    again = [one for one in told if one["batch_id"] == 1][-1]
    assert (again["rows"], again["stored_before"]) == (0, 200)


@pytest.mark.parametrize(("fault", "visible"), [("kill", 200), ("kill-ending", None), ("kill-ended", 400)])
def test_a_transactional_stream_shows_a_micro_batch_when_it_is_committed_wherever_it_is_killed(
    spark: Any, broker: Broker, client: Client, source: None, tmp_path: Path, fault: str, visible: int | None
) -> None:
    options = (f"topic={fault}", "transactional=true")
    killed = run_stream(broker, tmp_path, f"fail {fault}", *options)
    assert killed.returncode == -9, killed.stderr
    shown = committed(spark, broker, client, fault)
    if visible is None:
        assert 200 <= shown.total() < 400  # of the two tasks, one is committed
    else:
        assert shown == Counter(range(visible))
    went_on = run_stream(broker, tmp_path, "", *options)
    assert went_on.returncode == 0, went_on.stderr
    assert committed(spark, broker, client, fault) == Counter(range(600))
    assert {listed.state for listed in client.list_transactions()} <= {"CompleteCommit", "CompleteAbort", "Empty"}
