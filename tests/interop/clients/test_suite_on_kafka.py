"""The tests of client libraries in the suite, held against real Kafka: what they ask of us is what Kafka does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def test_what_the_suite_asks_of_us_kafka_does(kafka: str) -> None:
    tests = Path(__file__).parents[2] / "clients"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(
        command,
        env={**os.environ, "WARMLOG_CLIENTS_BOOTSTRAP": kafka},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
