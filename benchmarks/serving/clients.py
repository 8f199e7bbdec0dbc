"""Clients of other languages with default settings, which run against each server alternately."""

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.harness import Conditions, Figures
from benchmarks.load.generator import ROOT
from benchmarks.load.processor_time import ProcessorMeter
from benchmarks.servers.contestants import Running
from benchmarks.servers.kafka import KafkaBroker

MODULE = ROOT / "interop" / "go"
GO_PATH = f"{os.environ['PATH']}:/usr/local/go/bin"  # the path used by Go's installer


@cache
def built() -> Path:
    """Build the Go programs; return their directory. Raises CalledProcessError."""
    target = MODULE / "target" / "load"
    command = ["go", "build", "-o", f"{target}/", "./load/franz", "./load/sarama"]
    subprocess.run(command, cwd=MODULE, check=True, env={**os.environ, "PATH": GO_PATH})
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class GoClient:
    """A Go client library against a server; `library` names its program."""

    broker: KafkaBroker
    library: str

    @property
    def name(self) -> str:
        """The server's name."""
        return self.broker.name

    def produce(self, records: int, size: int, conditions: Conditions) -> Figures:
        """Measure records/s from the first record to the last acknowledgement."""
        with self.broker.serving(conditions, 1) as (server, topic):
            rate = self._run("produce", server, topic, records, size)
            self.broker.wire.check_count(server.address, topic, records)
        return rate

    def consume(self, batch: bytes, batch_records: int, records: int, size: int, conditions: Conditions) -> Figures:
        """Measure records/s from the page cache."""
        batches = max(1, records // batch_records)
        with self.broker.serving(conditions, 1) as (server, topic):
            self.broker.fill(server, topic, batch, batches, conditions)
            return self._run("consume", server, topic, batches * batch_records, size)

    def _run(self, verb: str, server: Running, topic: str, records: int, size: int) -> Figures:
        host, port = server.address
        command = [built() / self.library, verb, f"{host}:{port}", topic, str(records), str(size)]
        meter = ProcessorMeter(server.pids)
        name, _, value = subprocess.check_output(command, text=True).strip().partition("=")
        return {name: float(value), "cpu_us_record": meter.us_per(records)}
