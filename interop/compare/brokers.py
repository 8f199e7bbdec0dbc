"""Start the two brokers with the same settings, ready for requests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interop.compare.session import Barrier
from interop.compare.wire import BY_NAME, Connection
from interop.kafka_node import SETTINGS, WIRE_VERSION, KafkaNode

START_LIMIT_S = 60
# Kafka's defaults, since `SETTINGS` are for tests that wait for the cleaner.
_KAFKA = {name: value for name, value in SETTINGS.items() if not name.startswith("log.")}
_WARMLOG = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}


@contextmanager
def kafka(directory: Path, version: str = WIRE_VERSION) -> Iterator[str]:
    """Run Kafka; yield its address."""
    with KafkaNode(directory / "kafka", settings=_KAFKA, version=version) as node:
        _warm_up(node.bootstrap)
        yield node.bootstrap


@contextmanager
def warmlog(directory: Path) -> Iterator[str]:
    """Run `warmlog serve` as a process; yield its address."""
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(directory / "warmlog")]
    command += ["--kafka", "127.0.0.1:0", "--native", "none", "--http", "none"]
    for name, value in _WARMLOG.items():
        command += ["--set", f"{name}={value}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert process.stdout is not None
        ready = next(line for line in process.stdout if line.startswith("ready"))
        address = next(word for word in ready.split() if word.startswith("kafka=")).removeprefix("kafka=")
        _warm_up(address)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_LIMIT_S)
        if process.stdout is not None:
            process.stdout.close()


def _warm_up(address: str) -> None:
    """Wait until coordinators and producer ids are available; a new Kafka first returns errors for them."""
    deadline = time.monotonic() + START_LIMIT_S
    with Connection(address) as connection:
        for api, version, fields in (
            ("FindCoordinator", 3, {"key": "compare-warm-up"}),
            ("OffsetFetch", 7, {"group_id": "compare-warm-up", "topics": None}),
            (
                "InitProducerId",
                4,
                {"transactional_id": None, "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1},
            ),
            ("FindCoordinator", 3, {"key": "compare-warm-up", "key_type": 1}),
            (
                "InitProducerId",
                4,
                {
                    "transactional_id": "compare-warm-up",
                    "transaction_timeout_ms": 1000,
                    "producer_id": -1,
                    "producer_epoch": -1,
                },
            ),
        ):
            while True:
                connection.send(BY_NAME[api], version, fields)
                if connection.receive()["error_code"] == 0:
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{api} fails")
                time.sleep(0.05)
        Barrier().prepare(connection)
