"""A cluster whose leader's host is unplugged: `tests.cluster.faults` in a network namespace of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.switch import NO_NETWORK
from tests.requires import lacks


@pytest.mark.interop  # takes many seconds
def test_an_unplugged_leader_is_replaced_once_its_lease_has_ended(tmp_path: Path) -> None:
    unshare = shutil.which("unshare") or lacks("not installed: unshare (Debian: util-linux)")
    if "ETCD" not in os.environ and shutil.which("etcd") is None:
        lacks("etcd is not installed: apt-get install etcd-server")
    report = tmp_path / "report"
    script = [sys.executable, "-m", "tests.cluster.faults", "--rounds", "1", "--fault", "unplugged"]
    command = [unshare, "--net", "--mount", *script, "--directory", str(tmp_path), "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == NO_NETWORK or "unshare failed" in done.stderr:
        pytest.skip(f"network namespaces may not be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    judged = json.loads(report.read_text())
    assert judged["gaps_s"]["unplugged"]  # the leader led something
    assert judged["records"] > 0
