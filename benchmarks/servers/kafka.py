"""Kafka, and warmlog over Kafka's protocol: servers that run for a whole session, and client programs as contestants.

A JVM is slow until it is warmed up. So unlike the contestants of the native protocol, these two servers are started
once, each gets the same `WARM_UP_S` of all kinds of load, and a measurement is a new topic on a running server.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from benchmarks.harness import Conditions, Figures
from benchmarks.load.generator import ROOT, Flow
from benchmarks.load.kafka_wire import KafkaWire
from benchmarks.load.paced import Pace, PaceResult
from benchmarks.load.processor_time import ProcessorMeter
from benchmarks.servers.contestants import Broker, Fetch, Produce, Running, appended, start_warmlog
from interop.kafka_node import KafkaNode, build

WARM_UP_S = 20.0
# The JVM options of Kafka's own start script.
JVM_OPTIONS = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
# Kafka's defaults, adapted to one node, and without waiting a minute before a deleted topic's files are removed.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "group.initial.rebalance.delay.ms": 0,
    "log.segment.delete.delay.ms": 1000,
}
JVM_OF_TOOLS = ("java", "-Xmx512m", "-Xshare:auto")


@dataclass(slots=True)
class Standing:
    """A server that is started at its first use, warmed up, and ended by `close`."""

    name: str
    launch: Callable[[Path], AbstractContextManager[Running]]
    _life: ExitStack = field(default_factory=ExitStack)
    _running: Running | None = None
    is_warm: bool = False
    home: Path | None = None  # its data directory, once it is started

    @contextmanager
    def start(self, directory: Path) -> Iterator[Running]:
        """Start the server. Its directory is next to the first measurement's, and is removed with the server."""
        if self._running is None:
            home = directory.parent / re.sub(r"\W+", "-", f"{directory.name}-{self.name}")  # log.dirs splits at commas
            home.mkdir()
            self.home = home
            self._life.callback(subprocess.run, ["rm", "-rf", str(home)], check=True)
            self._running = self._life.enter_context(self.launch(home))
        yield self._running

    def close(self) -> None:
        """End the server; the next use starts another one."""
        self._life.close()
        self._running = self.home = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaBroker(Broker):
    """A server used by Kafka's clients. `standing`: the server that `start` belongs to."""

    standing: Standing
    warm_up_s: float = WARM_UP_S

    def warm(self, loads: Sequence[Produce | Fetch], conditions: Conditions) -> None:
        """Warm up the server once with every kind of load."""
        if self.standing.is_warm:
            return
        self.standing.is_warm = True
        shorter = replace(conditions, seconds=self.warm_up_s * conditions.scale / len(loads), warmup_s=0)
        for load in loads:
            _ = self.produce(load, shorter) if isinstance(load, Produce) else self.fetch(load, shorter)

    def fill(self, server: Running, topic: str, batch: bytes, batches: int, conditions: Conditions) -> None:
        """Append `batches` copies of a batch to partition 0."""
        request = self.wire.produce(topic, 0, batch)
        self.drive(server, [Flow(requests=(request,), depth=16, total=batches)], conditions)

    def beside(self, small: Pace, large: Produce, conditions: Conditions) -> Figures:
        """Measure latencies of a small producer with a fixed rate while others append large batches.

        The server's processor time for both is related to what the others append.
        """
        with self.serving(conditions, large.connections + 1) as (server, topic), ThreadPoolExecutor(1) as other:
            pushing = other.submit(self.drive, server, self.producers(topic, large), conditions)
            request = self.wire.produce(topic, large.connections, small.batch)
            window_s = conditions.seconds + conditions.warmup_s
            result = small.keep(server.address, self.wire, request, seconds=window_s, skip_s=conditions.warmup_s)
            pushed = appended(large.batch, pushing.result())
        kept = {name: value for name, value in pushed.items() if name.startswith("cpu_") or name.endswith("_busy")}
        return {**kept, **_latencies(result), "large_mb_per_s": pushed["mb_per_s"]}

    def quiet(self, partitions: int, conditions: Conditions) -> Figures:
        """Measure the share of a core used for a consumer of quiet partitions."""
        with self.serving(conditions, partitions) as (server, topic):
            command = [
                sys.executable,
                "-m",
                "benchmarks.load.quiet_consumer",
                _bootstrap(server),
                topic,
                str(partitions),
            ]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as consumer:
                assert consumer.stdin is not None
                assert consumer.stdout is not None
                consumer.stdout.readline()  # it has all partitions and its session
                meter, began_at = ProcessorMeter(server.pids), perf_counter()
                try:
                    consumer.wait(max(conditions.seconds, 10 * conditions.scale))
                except subprocess.TimeoutExpired:
                    share = meter.used_s() / (perf_counter() - began_at)
                consumer.stdin.close()
        return {"server_share": share}


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaTools:
    """Kafka's own performance tools against a server, with topics of `partitions` partitions."""

    broker: KafkaBroker
    partitions: int = 1

    @property
    def name(self) -> str:
        """The server's name."""
        return self.broker.name

    def produce(self, records: int, size: int, acks: str, conditions: Conditions, rate: int = -1) -> Figures:
        """Run ProducerPerformance, at a rate in records/s; -1: as fast as possible, so records wait in its queue."""
        with self.broker.serving(conditions, self.partitions) as (server, topic):
            meter = ProcessorMeter(server.pids)
            said = _java(
                "org.apache.kafka.tools.ProducerPerformance",
                *(
                    "--topic",
                    topic,
                    "--num-records",
                    str(records),
                    "--record-size",
                    str(size),
                    "--throughput",
                    str(rate),
                ),
                *("--bootstrap-server", _bootstrap(server), "--command-property", f"acks={acks}"),
            )
            cpu_us_record = meter.us_per(records)
            self.broker.wire.check_count(server.address, topic, records)
        last = said.strip().splitlines()[-1]
        rate = re.search(r"([\d.]+) records/sec", last)
        tail = re.search(r"(\d+) ms 99th", last)
        assert rate is not None, said
        assert tail is not None, said
        return {"records_per_s": float(rate[1]), "p99_ms": float(tail[1]), "cpu_us_record": cpu_us_record}

    def consume(self, batch: bytes, batch_records: int, records: int, conditions: Conditions) -> Figures:
        """Run ConsumerPerformance over records in the page cache."""
        with self.broker.serving(conditions, 1) as (server, topic):
            self.broker.fill(server, topic, batch, records // batch_records, conditions)
            meter = ProcessorMeter(server.pids)
            said = _java(
                "org.apache.kafka.tools.ConsumerPerformance",
                *("--topic", topic, "--num-records", str(records), "--bootstrap-server", _bootstrap(server)),
            )
            cpu_us_record = meter.us_per(records)
        names, values = (line.split(", ") for line in said.strip().splitlines()[-2:])
        rate = float(dict(zip(names, values, strict=True))["fetch.nMsg.sec"])
        return {"records_per_s": rate, "cpu_us_record": cpu_us_record}

    def end_to_end(self, records: int, size: int, conditions: Conditions) -> Figures:
        """Run EndToEndLatency: one record after the other, from `send` with acks=all until a consumer has it."""
        with self.broker.serving(conditions, 1) as (server, topic):
            meter = ProcessorMeter(server.pids)
            said = _java(
                "org.apache.kafka.tools.EndToEndLatency",
                *("--bootstrap-server", _bootstrap(server), "--topic", topic, "--num-records", str(records)),
                *("--producer-acks", "all", "--record-size", str(size)),
            )
            cpu_us_record = meter.us_per(records)
        found = re.search(r"50th = (\d+), 99th = (\d+)", said)
        assert found is not None, said
        return {"p50_ms": float(found[1]), "p99_ms": float(found[2]), "cpu_us_record": cpu_us_record}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfluentClient:
    """confluent-kafka against a server, in its own process, with topics of `partitions` partitions."""

    broker: KafkaBroker
    partitions: int = 1

    @property
    def name(self) -> str:
        """The server's name."""
        return self.broker.name

    def produce(self, records: int, size: int, conditions: Conditions) -> Figures:
        """Measure records/s to the last acknowledgement, and latencies from `produce` to the delivery report."""
        with self.broker.serving(conditions, self.partitions) as (server, topic):
            return self._run("produce", server, topic, records, size, records=records)

    def consume(self, batch: bytes, batch_records: int, records: int, size: int, conditions: Conditions) -> Figures:
        """Measure records/s from the page cache."""
        with self.broker.serving(conditions, 1) as (server, topic):
            batches = records // batch_records
            self.broker.fill(server, topic, batch, batches, conditions)
            records = batches * batch_records
            return self._run("consume", server, topic, records, size, records=records)

    def take(self, records: int, members: int, conditions: Conditions) -> Figures:
        """Measure records/s that the members of a share group take and accept."""
        with self.broker.serving(conditions, self.partitions) as (server, topic):
            return self._run("take", server, topic, records, members, program="sharing", records=records)

    def redeliver(self, kills: int, conditions: Conditions) -> Figures:
        """Measure how long a record held by a killed member of a share group waits for another member."""
        with self.broker.serving(conditions, self.partitions) as (server, topic):
            return self._run("redeliver", server, topic, kills, program="sharing")

    def _run(
        self,
        verb: str,
        server: Running,
        topic: str,
        *numbers: int,
        program: str = "confluent",
        records: int | None = None,
    ) -> Figures:
        """Run a program; return its figures and the server's processor time, for each record if their number is given.

        Otherwise it is the share of a core, for a load whose rate does not depend on the server.
        """
        command = [sys.executable, "-m", f"benchmarks.load.{program}", verb, _bootstrap(server), topic]
        meter, began_at = ProcessorMeter(server.pids), perf_counter()
        output = subprocess.check_output([*command, *map(str, numbers)], cwd=ROOT, text=True)
        figures = {name: float(value) for name, value in (pair.split("=") for pair in output.split())}
        if records is None:
            return figures | {"server_share": meter.used_s() / (perf_counter() - began_at)}
        return figures | {"cpu_us_record": meter.us_per(records)}


@contextmanager
def start_kafka(directory: Path) -> Iterator[Running]:
    """Start the reference version of Kafka, with one node."""
    node = KafkaNode(directory / "data", jvm_options=JVM_OPTIONS, settings=SETTINGS)
    with node:
        host, port = node.bootstrap.split(":")
        yield Running((host, int(port)), node.pid)


@contextmanager
def start_warmlog_for_kafka(directory: Path) -> Iterator[Running]:
    """Start warmlog with all listeners enabled, for Kafka's clients."""
    with start_warmlog(directory, "kafka") as running:
        yield running


def _java(main: str, *arguments: str) -> str:
    command = [*JVM_OF_TOOLS, "-cp", build(), main, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _bootstrap(server: Running) -> str:
    host, port = server.address
    return f"{host}:{port}"


def _latencies(result: PaceResult) -> dict[str, float]:
    return {"p50_ms": result.quantile_s(0.5) * 1e3, "p99_ms": result.quantile_s(0.99) * 1e3}


def _contestant(name: str, launch: Callable[[Path], AbstractContextManager[Running]]) -> KafkaBroker:
    standing = Standing(name, launch)
    return KafkaBroker(name=name, start=standing.start, wire=KafkaWire(), standing=standing)


WARMLOG_KAFKA = _contestant("warmlog", start_warmlog_for_kafka)
KAFKA = _contestant("Kafka 4.3.1", start_kafka)
