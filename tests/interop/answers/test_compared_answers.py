"""Requests of every kind are answered as Kafka answers them, but for the differences that are known."""

import subprocess
import sys

import pytest

from tests.documents import ROOT

pytestmark = pytest.mark.interop


@pytest.mark.timeout(900)  # 3,300 requests to each of two brokers, and the start of Kafka
def test_no_answer_differs_from_kafkas_that_is_not_known_to() -> None:
    command = [sys.executable, "-m", "interop.compare"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
