"""`python -m benchmarks.questions.clients.producer_waits`: find out what a producer at full speed waits for.

The same clients produce to one partition of warmlog and of Kafka in turn, after the warm-up of the other comparisons
and rounds that are not counted. Observed are:

- the threads of both sides: how long they run, and how long they are ready to run without a core (/proc);
- the client, by its own metrics: how long a record is in its queue, and how long a request takes;
- the broker, by its metrics: how long it has a request, and in which stage. Kafka's are left out: they count whole ms;
- the log: how many records are in a batch, which is a request here.

The time that a thread of the client neither runs nor is ready is the time it may wait for the broker. Needs Java 17,
Maven and Go, as far as the chosen clients do.
"""

import argparse
import mmap
import os
import random
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.harness import Conditions
from benchmarks.load.kafka_wire import KafkaWire
from benchmarks.load.native import Address
from benchmarks.load.processor_time import ProcessorMeter
from benchmarks.questions.clients.producers import CLIENTS, KINDS, Figures, Load
from benchmarks.questions.clients.thread_times import Observed, ThreadTime, since, thread_times
from benchmarks.servers.contestants import Running, serving
from benchmarks.servers.kafka import KafkaBroker, Standing, start_kafka
from benchmarks.workloads.kafka import WARM_UP
from interop.ports import free_ports
from warmlog.protocol.records.batch import headers

STAGES = {"queue": "broker: queue", "handle": "broker: handle", "wait": "broker: append", "send": "broker: reply"}
UNCOUNTED = 2  # rounds
METRIC = re.compile(r'warmlog_request(?:_stage)?_seconds_(sum|count)\{api="produce",[^}]*?(?:stage="(\w+)")?\} (\S+)')
TITLES = {
    "records_per_s": "records/s",
    "batch_records": "records in a request",
    "queue_ms": "ms in the client's queue",
    "socket_ms": "ms until the socket has the request",
    "request_ms": "ms from the request to its reply",
    "report_ms": "ms until the application has the report",
    "broker_ms": "ms at the broker",
    **{name: f"ms at the {title}" for name, title in STAGES.items()},
    "in_flight": "requests in flight",
    "application_run": "application's thread runs",
    "application_ready": "application's thread waits for a core",
    "application_blocked": "application's thread is blocked",
    "sender_run": "sending thread runs",
    "sender_ready": "sending thread waits for a core",
    "sender_blocked": "sending thread is blocked",
    "client_cores": "cores that the client uses",
    "client_ready": "threads of the client that wait for a core",
    "server_ready": "threads of the server that wait for a core",
    "client_cpu_us": "client, us of CPU a record",
    "server_cpu_us": "server, us of CPU a record",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server. `stages_s`: seconds of all Produce requests so far by stage, their sum, and `count`."""

    name: str
    pid: int
    address: Address
    directory: Path
    stages_s: Callable[[], Mapping[str, float]]

    @property
    def bootstrap(self) -> str:
        """The address as clients take it."""
        return "{}:{}".format(*self.address)

    def warm(self, directory: Path) -> None:
        """Produce and fetch for some seconds: a JVM is slow until it is warm."""
        running = Running(self.address, self.pid)
        standing = Standing(self.name, lambda _: nullcontext(running))
        broker = KafkaBroker(name=self.name, start=standing.start, wire=KafkaWire(), standing=standing)
        (directory / "warm-up").mkdir(exist_ok=True)
        conditions = Conditions(seconds=0, warmup_s=0, scale=1, directory=directory / "warm-up", kept=directory)
        broker.warm(WARM_UP, conditions)
        standing.close()

    def measure(self, load: Load, prefix: Sequence[str]) -> Figures:
        """Let a client produce to a new topic; return the figures of both sides. Raises ValueError."""
        topic = KafkaWire().new_topic(self.address, 1)
        meter, threads, stages, children_s = (
            ProcessorMeter((self.pid,)),
            thread_times(self.pid),
            self.stages_s(),
            _cpu_s(),
        )
        reported, observed = load.run(self.bootstrap, topic, prefix)
        client_s = _cpu_s() - children_s
        server_ready_s = sum((time.ready_s for time in since(threads, thread_times(self.pid)).values()), 0.0)
        at_broker = {name: value - stages.get(name, 0.0) for name, value in self.stages_s().items()}
        KafkaWire().check_count(self.address, topic, load.records)
        batches = self.batches(topic)
        cpu = {"client_cpu_us": client_s / load.records * 1e6, "server_cpu_us": meter.us_per(load.records)}
        KafkaWire().drop_topic(self.address, topic)
        return {
            **reported,
            "batch_records": load.records / batches,
            **broker_ms(at_broker),
            **in_flight(reported, load.records, batches),
            **shares(load, observed),
            "server_ready": server_ready_s / observed.seconds,
            **cpu,
        }

    def batches(self, topic: str) -> int:
        """Return the number of batches in the log of partition 0."""
        return sum(count_batches(path) for path in self.directory.rglob(f"{topic}-0/*.log"))


def count_batches(path: Path) -> int:
    """Return the number of batches in a segment."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            return sum(1 for _ in headers(view))


def broker_ms(spent_s: Mapping[str, float]) -> Figures:
    """Return the mean time of a request at the broker and in its stages."""
    if not spent_s.get("count"):
        return {}
    to_ms = 1e3 / spent_s["count"]
    return {"broker_ms": spent_s["sum"] * to_ms} | {stage: spent_s[stage] * to_ms for stage in STAGES}


def in_flight(reported: Figures, records: int, batches: int) -> Figures:
    """Return the mean number of requests in flight: their rate times their latency (Little's law)."""
    if "request_ms" not in reported:
        return {}
    return {"in_flight": batches / records * reported["records_per_s"] * reported["request_ms"] / 1e3}


def shares(load: Load, observed: Observed) -> Figures:
    """Return the shares of the time in which threads run, wait for a core and are blocked; for Go, of all together."""
    kind, all_threads = KINDS[load.client], observed.named("")
    figures = {
        "client_cores": all_threads.run_s / observed.seconds,
        "client_ready": all_threads.ready_s / observed.seconds,
    }
    if kind.sender:
        figures |= thread_shares("application", observed.named(kind.application), observed.seconds)
        figures |= thread_shares("sender", observed.named(kind.sender), observed.seconds)
    return figures


def thread_shares(name: str, time: ThreadTime, seconds: float) -> Figures:
    """Return the shares of one thread, which add up to 1."""
    run, ready = time.run_s / seconds, time.ready_s / seconds
    return {f"{name}_run": run, f"{name}_ready": ready, f"{name}_blocked": max(0.0, 1 - run - ready)}


def produce_seconds(text: str) -> dict[str, float]:
    """Return the seconds of Produce requests by stage, of all (`sum`), and their number, from warmlog's metrics."""
    found: dict[str, float] = {}
    for part, stage, value in METRIC.findall(text):
        if not stage or part == "sum":
            found[stage or part] = found.get(stage or part, 0.0) + float(value)
    return found


@contextmanager
def start_warmlog(name: str, directory: Path, settings: Sequence[str]) -> Iterator[Server]:
    """Start warmlog as a user does, with its HTTP listener on a known port."""
    [port] = free_ports(1)
    listeners = ["--kafka", "127.0.0.1:0", "--native", "127.0.0.1:0", "--http", f"127.0.0.1:{port}"]
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(directory), *listeners]
    options = [option for setting in settings for option in ("--set", setting)]

    def stages_s() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            return produce_seconds(reply.read().decode())

    with serving([*command, *options, "--log-level", "warning"], "kafka") as running:
        yield Server(name=name, pid=running.pid, address=running.address, directory=directory, stages_s=stages_s)


@contextmanager
def start_beside(directory: Path) -> Iterator[Server]:
    """Start Kafka."""
    with start_kafka(directory) as running:
        yield Server(name="Kafka", pid=running.pid, address=running.address, directory=directory, stages_s=dict)


def table(rounds: Sequence[Mapping[str, Figures]]) -> str:
    """Return a table of the figures that a server has: medians of the rounds and their spread."""
    names = list(rounds[0])
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for figure, title in TITLES.items():
        cells = []
        for name in names:
            values = [each[name][figure] for each in rounds if figure in each[name]]
            cells.append(f"{_text(median(values))} ({_text(min(values))} to {_text(max(values))})" if values else "")
        if any(cells):
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measured(servers: Sequence[Server], load: Load, rounds: int, prefix: Sequence[str]) -> list[dict[str, Figures]]:
    """Measure rounds, in each of which every server has its turn, in any order; the first ones are not returned."""
    figures = []
    for _ in range(UNCOUNTED + rounds):
        order = random.sample(servers, len(servers))
        turn = {server.name: server.measure(load, prefix) for server in order}
        figures.append({server.name: turn[server.name] for server in servers})
    return figures[UNCOUNTED:]


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.questions.clients.producer_waits", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS, help="which clients (all)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are counted (5)")
    parser.add_argument("--records", type=int, default=1_000_000, help="records of a round (1,000,000)")
    parser.add_argument("--size", type=int, default=100, help="bytes of a record (100)")
    parser.add_argument("--producer", nargs="+", default=[], metavar="NAME=VALUE", help="settings of java, confluent")
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="NAME=VALUE", help="a second warmlog has these settings"
    )
    parser.add_argument("--apart", action="store_true", help="the clients have one core, the servers the others")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where the logs are (/var/tmp)")
    return parser.parse_args(arguments)


def main() -> int:
    """Measure the rounds of each load, and print a table for each."""
    chosen = parsed(sys.argv[1:])
    settings = tuple(chosen.producer)
    loads = [
        Load(client=client, records=chosen.records, size=chosen.size, settings=settings) for client in chosen.clients
    ]
    try:
        report(chosen, loads)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def report(chosen: argparse.Namespace, loads: Sequence[Load]) -> None:
    """Start the servers, measure each load, and print its table. Raises ValueError, CalledProcessError."""
    with tempfile.TemporaryDirectory(dir=chosen.directory) as home, ExitStack() as stack:
        directory = Path(home)
        for name in ("warmlog", "also", "kafka"):
            (directory / name).mkdir()
        servers = [stack.enter_context(start_warmlog("warmlog", directory / "warmlog", ()))]
        if chosen.also:
            name = f"warmlog, {', '.join(chosen.also)}"
            servers.append(stack.enter_context(start_warmlog(name, directory / "also", chosen.also)))
        servers.append(stack.enter_context(start_beside(directory / "kafka")))
        for server in servers:
            server.warm(directory)
        prefix = separated(servers) if chosen.apart else ()
        for load in loads:
            print(f"{load.title}\n\n{table(measured(servers, load, chosen.rounds, prefix))}\n", flush=True)


def separated(servers: Sequence[Server]) -> tuple[str, ...]:
    """Move servers off the first core; return the command that runs a client on it. Raises ValueError."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        raise ValueError("--apart needs two cores")
    for server in servers:
        for task in Path(f"/proc/{server.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), others)
    return "taskset", "--cpu-list", str(first)


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _cpu_s() -> float:
    """Return the processor time of this program's children that have ended."""
    used = os.times()
    return used.children_user + used.children_system


if __name__ == "__main__":
    sys.exit(main())
