"""The tests of client libraries in the suite, run against real Kafka: what they ask of us is what Kafka does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from interop.kafka_node import SETTINGS as KAFKA_SETTINGS
from interop.kafka_node import KafkaNode
from tests.interop.clients.conftest import SETTINGS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def test_what_the_suite_asks_of_us_kafka_does(java_tools: None, tmp_path: Path) -> None:
    """On a Kafka of its own: the topics and groups that it leaves would stand in what tools list of the other one."""
    tests = Path(__file__).parents[2] / "clients"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", str(tests)]
    with KafkaNode(tmp_path / "data", settings={**KAFKA_SETTINGS, **SETTINGS}) as kafka:
        done = subprocess.run(
            command,
            env={**os.environ, "WARMLOG_CLIENTS_BOOTSTRAP": kafka.bootstrap},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-5000:]
