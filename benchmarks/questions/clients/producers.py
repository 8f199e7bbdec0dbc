"""Producers that send as fast as they can, and what they report of themselves.

| client | its program | what it reports |
|---|---|---|
| java | Kafka's ProducerPerformance | the producer's metrics |
| confluent | `benchmarks.load.confluent trace` | librdkafka's statistics |
| sarama, franz | the Go programs in interop/go/load | the rate alone |
"""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.load.generator import ROOT
from benchmarks.questions.clients.thread_times import Observed, Reading, observe
from benchmarks.servers.kafka import JVM_OF_TOOLS
from benchmarks.serving.clients import built
from interop.kafka_node import build

CLIENTS = ("confluent", "sarama", "franz", "java")
JAVA_METRIC = re.compile(r"producer-metrics:([\w-]+):\{client-id=[^}]*\}\s*: (-?[\d.]+(?:E-?\d+)?)")
JAVA_RATE = re.compile(r"([\d.]+) records/sec .* 99\.9th\.$", re.MULTILINE)
JAVA_TIMES = {"queue_ms": "record-queue-time-avg", "request_ms": "request-latency-avg"}

Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Records that a client produces to one partition. `settings`: NAME=VALUE of Java's producer or librdkafka's."""

    client: str
    records: int
    size: int = 100
    settings: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What the report calls it."""
        return ", ".join((self.client, f"{self.records:,} records of {self.size:,} B", *self.settings))

    def run(self, bootstrap: str, topic: str, prefix: Sequence[str] = ()) -> tuple[Figures, Observed]:
        """Produce; return what the client reports and what its threads did.

        `prefix`: a command that runs the client's, such as taskset. Raises CalledProcessError, ValueError.
        """
        kind = KINDS[self.client]
        command = [*prefix, *kind.command(self, bootstrap, topic)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            observed = observe(process, kind.is_working)
            assert process.stdout is not None
            printed = process.stdout.read()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, printed)
        return kind.figures(printed), observed


@dataclass(frozen=True, slots=True)
class Kind:
    """How to run a client and to read its output.

    `application` and `sender`: how the names of its threads begin, the one that calls `send` and the one that sends.
    Without a sender, the client has no fixed threads, and `application` stands for all of them.
    """

    command: Callable[[Load, str, str], Sequence[str]]
    figures: Callable[[str], Figures]
    application: str
    sender: str

    def is_working(self, threads: Reading) -> bool:
        """Return whether the client has begun: it has its sender."""
        return any(name.startswith(self.sender) for _, name in threads)


def java_command(load: Load, bootstrap: str, topic: str) -> list[str]:
    """Return the command of ProducerPerformance."""
    arguments = ["--topic", topic, "--num-records", str(load.records), "--record-size", str(load.size)]
    options = ["--throughput", "-1", "--print-metrics", "--bootstrap-server", bootstrap]
    settings = [part for setting in load.settings for part in ("--command-property", setting)]
    main = "org.apache.kafka.tools.ProducerPerformance"
    return [*JVM_OF_TOOLS, "-cp", build(), main, *arguments, *options, *settings]


def java_figures(printed: str) -> Figures:
    """Return the rate that ProducerPerformance has printed, and the mean times that it has. Raises ValueError.

    It has no time of requests without replies (acks=0).
    """
    rate, metrics = JAVA_RATE.search(printed), dict(JAVA_METRIC.findall(printed))
    if rate is None:
        raise ValueError(f"not the output of ProducerPerformance: {printed[-500:]!r}")
    times = {name: float(metrics[theirs]) for name, theirs in JAVA_TIMES.items() if theirs in metrics}
    return {"records_per_s": float(rate[1])} | times


def confluent_command(load: Load, bootstrap: str, topic: str) -> list[str]:
    """Return the command of confluent-kafka's producer."""
    numbers = [str(load.records), str(load.size)]
    return [sys.executable, "-m", "benchmarks.load.confluent", "trace", bootstrap, topic, *numbers, *load.settings]


def go_command(load: Load, bootstrap: str, topic: str) -> list[str]:
    """Return the command of a Go client. Raises ValueError for settings, which it does not take."""
    if load.settings:
        raise ValueError(f"{load.client} runs with its default settings only: remove {', '.join(load.settings)}")
    return [str(built() / load.client), "produce", bootstrap, topic, str(load.records), str(load.size)]


def pairs(printed: str) -> Figures:
    """Return figures that were printed as `name=value`."""
    return {name: float(value) for name, value in (pair.split("=") for pair in printed.split())}


def go_figures(printed: str) -> Figures:
    """Return the rate that a Go program has printed."""
    return {"records_per_s": pairs(printed)["records_per_s"]}


KINDS = {
    "confluent": Kind(confluent_command, pairs, "python", "rdk:broker"),
    "java": Kind(java_command, java_figures, "java", "kafka-producer"),
    "sarama": Kind(go_command, go_figures, "", ""),
    "franz": Kind(go_command, go_figures, "", ""),
}
