"""The contestants: brokers and references to compare them with.

To add a broker, add a `Broker`: its name, a function that starts it in a directory and waits until it is ready, and its
wire (`native.NativeWire` is an example).
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from benchmarks.harness import Conditions, Figures
from benchmarks.load.generator import ROOT, Flow, Load, LoadResult, drive
from benchmarks.load.native import Address, EchoWire, NativeWire, Wire
from benchmarks.load.processor_time import ProcessorMeter
from benchmarks.servers.limits import SLICE_BYTES
from warmlog.protocol.records.layout import RECORD_COUNT_POSITION

STOP_S = 60.0  # a broker may have to flush a thousand logs
SLICES = 256  # size of the fetched log: 256 MiB, larger than any processor cache, smaller than any memory
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("WARMLOG_")}


class StartError(Exception):
    """A contestant exited before it was ready."""


class Running(NamedTuple):
    """A running server: its address and its process. `others`: further processes of a server that has several."""

    address: Address
    pid: int
    others: tuple[int, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        """All its processes."""
        return (self.pid, *self.others)


Start = Callable[[Path], AbstractContextManager[Running]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce:
    """Connections that each append the same batch repeatedly to their own partition."""

    connections: int
    depth: int
    batch: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Connections that each read one partition in slices of SLICE_BYTES from the page cache.

    The partition consists of copies of `batch`, which has `records` records. There is one receiving process per core,
    because a single one would be the bottleneck.
    """

    connections: int
    depth: int
    batch: bytes
    records: int

    @property
    def processes(self) -> int:
        """Return the number of receiving processes."""
        return min(self.connections, len(os.sched_getaffinity(0)))

    def figures(self, result: LoadResult) -> dict[str, float]:
        """Return `figures_of` a load whose replies consist of the batches."""
        size = result.received_bytes
        return figures_of(result, records=size / len(self.batch) * self.records, size=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A server that speaks `wire`; a new one, in an empty directory, for each measurement."""

    name: str
    start: Start
    wire: Wire

    def produce(self, produce: Produce, conditions: Conditions) -> Figures:
        """Measure requests/s and MB/s of appended batches; latencies if one request is in flight."""
        with self.serving(conditions, produce.connections) as (server, topic):
            result = self.drive(server, self.producers(topic, produce), conditions)
            self.wire.check_count(server.address, topic, result.replies)
        return appended(produce.batch, result)

    def producers(self, topic: str, produce: Produce) -> list[Flow]:
        """Return connections that each append to their own partition."""
        return [
            Flow(requests=(self.wire.produce(topic, partition, produce.batch),), depth=produce.depth)
            for partition in range(produce.connections)
        ]

    @contextmanager
    def serving(self, conditions: Conditions, partitions: int) -> Iterator[tuple[Running, str]]:
        """Start a server and create a topic on it."""
        with self.start(conditions.directory) as server:
            topic = self.wire.new_topic(server.address, partitions)
            yield server, topic
            self.wire.drop_topic(server.address, topic)

    def fetch(self, fetch: Fetch, conditions: Conditions) -> Figures:
        """Measure MB/s received."""
        with self.serving(conditions, 1) as (server, topic):
            flows = self._fill_and_fetch(server, topic, fetch, conditions)
            result = self.drive(server, flows, conditions, processes=fetch.processes)
        return fetch.figures(result)

    def _fill_and_fetch(self, server: Running, topic: str, fetch: Fetch, conditions: Conditions) -> list[Flow]:
        """Fill a partition and read it in a loop, with connections that start far apart."""
        slices = conditions.scaled(SLICES)
        batches = -(-slices * SLICE_BYTES // len(fetch.batch)) + 1
        request = self.wire.produce(topic, 0, fetch.batch)
        self.drive(server, [Flow(requests=(request,), depth=16, total=batches)], conditions)
        per_slice = SLICE_BYTES // len(fetch.batch) * fetch.records
        requests = [self.wire.fetch(topic, 0, number * per_slice, SLICE_BYTES) for number in range(slices)]
        starts = (number * slices // fetch.connections for number in range(fetch.connections))
        return [Flow(requests=(*requests[s:], *requests[:s]), depth=fetch.depth) for s in starts]

    def first_appends(self, partitions: int, connections: int, batch: bytes, conditions: Conditions) -> Figures:
        """Measure requests/s of the first append to each of many partitions that have not been written to."""
        with self.serving(conditions, partitions) as (server, topic):
            result = self.drive(server, self.each_partition(topic, partitions, connections, (batch,)), conditions)
            self.wire.check_count(server.address, topic, result.replies)
        return appended(batch, result)

    def each_partition(self, topic: str, partitions: int, connections: int, batches: Sequence[bytes]) -> list[Flow]:
        """Append all batches to each partition, with the partitions distributed over the connections."""
        shares = [range(number, partitions, connections) for number in range(min(connections, partitions))]
        asked = (tuple(self.wire.produce(topic, p, batch) for p in share for batch in batches) for share in shares)
        return [Flow(requests=requests, total=len(requests)) for requests in asked]

    def drive(
        self, server: Running, flows: Sequence[Flow], conditions: Conditions, *, processes: int = 1
    ) -> LoadResult:
        """Run a load against a running server. Raises LoadError."""
        greeted = tuple(replace(flow, greeting=self.wire.greeting) for flow in flows)
        return _drive(server, greeted, conditions, good=self.wire.good, processes=processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedProducers:
    """A broker that fsyncs every append before it replies, and producers with one request in flight each.

    All append to one partition, so requests that wait at the same time share an fsync. With a single producer, each
    request has its own.
    """

    name: str
    broker: Broker
    producers: int

    def produce(self, batch: bytes, conditions: Conditions) -> Figures:
        """Measure requests/s and latencies."""
        wire, topic = self.broker.wire, "synced"
        with self.broker.start(conditions.directory) as server:
            wire.create_topic(server.address, topic, 1, {"flush.messages": "1"})
            flow = Flow(requests=(wire.produce(topic, 0, batch),))
            return appended(batch, self.broker.drive(server, [flow] * self.producers, conditions))


@dataclass(frozen=True, slots=True)
class SyncLoop:
    """A loop that appends to a file and fsyncs it, without requests."""

    name: str = "sync loop"

    def produce(self, batch: bytes, conditions: Conditions) -> Figures:
        """Measure appends/s, each with its own fsync."""
        path = conditions.directory / "synced"
        command = ["sync", str(path), str(conditions.seconds), str(conditions.warmup_s)]
        printed = subprocess.check_output(_module("benchmarks.servers.limits", *command), input=batch, cwd=ROOT)
        return _looped(batch, printed)


@dataclass(frozen=True, slots=True)
class AppendLoop:
    """A loop that appends to a file, without requests."""

    name: str = "append loop"

    def produce(self, produce: Produce, conditions: Conditions) -> Figures:
        """Measure MB/s of the batch appended to one file."""
        path = conditions.directory / "appended"
        command = ["append", str(path), str(conditions.seconds), str(conditions.warmup_s)]
        printed = subprocess.check_output(_module("benchmarks.servers.limits", *command), input=produce.batch, cwd=ROOT)
        return _looped(produce.batch, printed)


@dataclass(frozen=True, slots=True)
class SendfileLoop:
    """A loop per connection that sends a file, without requests."""

    name: str = "sendfile loop"

    def fetch(self, fetch: Fetch, conditions: Conditions) -> Figures:
        """Measure MB/s received. Each slice of the file begins with a length, as a reply for the load generator."""
        path = conditions.directory / "sent"
        one = (SLICE_BYTES - 4).to_bytes(4) + bytes(SLICE_BYTES - 4)
        path.write_bytes(one * conditions.scaled(SLICES))
        with serving(_module("benchmarks.servers.limits", "sendfile", str(path))) as server:
            flows = (Flow(requests=()),) * fetch.connections
            result = _drive(server, flows, conditions, processes=fetch.processes)
        return fetch.figures(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonClient:
    """A client library in its own process, with a new broker for each measurement.

    `command` prints seconds; its arguments are produce or consume, HOST:PORT, topic, number of records, their size.
    """

    name: str
    broker: Broker
    command: Sequence[str]

    def produce(self, records: int, size: int, conditions: Conditions) -> Figures:
        """Measure records/s produced, from the first record to the last acknowledgement."""
        with self.broker.serving(conditions, 1) as (server, topic):
            return self._run(server, topic, "produce", records, size)

    def consume(self, batch: bytes, batch_records: int, records: int, size: int, conditions: Conditions) -> Figures:
        """Measure records/s consumed from the page cache, from batches like this one."""
        batches = records // batch_records
        with self.broker.serving(conditions, 1) as (server, topic):
            request = self.broker.wire.produce(topic, 0, batch)
            self.broker.drive(server, [Flow(requests=(request,), depth=16, total=batches)], conditions)
            return self._run(server, topic, "consume", batches * batch_records, size)

    def _run(self, server: Running, topic: str, verb: str, records: int, size: int) -> Figures:
        host, port = server.address
        command = [*self.command, verb, f"{host}:{port}", topic, str(records), str(size)]
        meter = ProcessorMeter(server.pids)
        seconds = float(subprocess.check_output(command, cwd=ROOT))
        return {"records_per_s": records / seconds, "cpu_us_record": meter.us_per(records)}


@contextmanager
def serving(command: Sequence[str], listener: str = "native") -> Iterator[Running]:
    """Start a process that prints `ready ... native=HOST:PORT ...` when it is ready; at the end, kill it and wait.

    Raises StartError.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT) as process:
        try:
            assert process.stdout is not None
            ready = next((line for line in process.stdout if line.startswith("ready ")), None)
            if ready is None:
                raise StartError(f"{' '.join(command)}: ended with status {process.wait()}")
            host, _, port = _fields(ready)[listener].rpartition(":")
            yield Running((host, int(port)), process.pid)
        finally:
            _end(process)


def _fields(ready: str) -> Mapping[str, str]:
    return dict(field.split("=", 1) for field in ready.split()[1:])


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def start_warmlog(
    directory: Path, listener: str = "native", settings: Sequence[str] = ()
) -> AbstractContextManager[Running]:
    """Start warmlog as a user does, on free ports, and use the address of this listener."""
    listen = ["--kafka", "127.0.0.1:0", "--native", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "warning"]
    options = [option for setting in settings for option in ("--set", setting)]
    return serving(_module("warmlog", "serve", "--data-dir", str(directory), *listen, *options), listener)


def start_echo(directory: Path) -> AbstractContextManager[Running]:
    """Start the echo server with a task per connection."""
    del directory
    return serving(_module("benchmarks.servers.echo"))


def start_echo_by_turns(directory: Path) -> AbstractContextManager[Running]:
    """Start the echo server that serves every ready socket in one loop."""
    del directory
    return serving(_module("benchmarks.servers.echo", "turns"))


def _drive(
    server: Running, flows: tuple[Flow, ...], conditions: Conditions, *, good: bytes = b"", processes: int = 1
) -> LoadResult:
    return drive(
        Load(
            address=server.address,
            flows=flows,
            seconds=conditions.seconds,
            warmup_s=conditions.warmup_s,
            pids=server.pids,
            good=good,
            processes=processes,
        )
    )


def _module(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def figures_of(result: LoadResult, *, records: float, size: float) -> dict[str, float]:
    """Return rates, processor time of the server, latencies if measured, and how busy both sides were.

    `records` and `size`: the records and bytes of all requests together. Processor time is in microseconds for each
    record (`cpu_us_record`), request (`cpu_us`) and MB (`cpu_us_mb`).
    """
    figures = {"requests_per_s": result.replies / result.elapsed_s, "mb_per_s": size / 1e6 / result.elapsed_s}
    figures |= costs(result.server_cpu_s, records=records, requests=result.replies, size=size)
    if len(result.latencies_s) > 1:
        figures["p50_ms"] = median(result.latencies_s) * 1e3
        figures["p99_ms"] = quantiles(result.latencies_s, n=100)[-1] * 1e3
    return figures | {
        "server_busy": result.server_cpu_s / result.elapsed_s,
        "load_busy": result.load_cpu_s / result.elapsed_s,
    }


def costs(cpu_s: float, *, records: float, requests: float, size: float) -> dict[str, float]:
    """Return the microseconds of processor time for each record, request and MB, as if there was at least one byte."""
    cpu_us = cpu_s * 1e6
    return {
        "cpu_us_record": cpu_us / max(1, records),
        "cpu_us": cpu_us / max(1, requests),
        "cpu_us_mb": cpu_us / (max(1, size) / 1e6),
    }


def appended(batch: bytes, result: LoadResult) -> dict[str, float]:
    """Return `figures_of` a load whose requests each append a batch."""
    return figures_of(result, records=result.replies * records_in(batch), size=result.replies * len(batch))


def records_in(batch: bytes) -> int:
    """Return the number of records in a batch, as its header has it."""
    return int.from_bytes(batch[RECORD_COUNT_POSITION : RECORD_COUNT_POSITION + 4])


def _looped(batch: bytes, printed: bytes) -> dict[str, float]:
    """Return the figures of a loop of appends, which has printed bytes, seconds and seconds of processor time."""
    size, seconds, cpu_s = map(float, printed.split())
    appends = size / len(batch)
    return {
        "requests_per_s": appends / seconds,
        "mb_per_s": size / seconds / 1e6,
        **costs(cpu_s, records=appends * records_in(batch), requests=appends, size=size),
    }


WARMLOG = Broker(name="warmlog", start=start_warmlog, wire=NativeWire())
ECHO = Broker(name="trio echo", start=start_echo, wire=EchoWire())
ECHO_BY_TURNS = Broker(name="echo by turns", start=start_echo_by_turns, wire=EchoWire())
CLIENTS = tuple(
    PythonClient(name=f"client on {loop}", broker=WARMLOG, command=_module("benchmarks.load.client", loop))
    for loop in ("asyncio", "trio")
)
