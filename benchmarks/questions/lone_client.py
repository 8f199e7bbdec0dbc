"""`python -m benchmarks.questions.lone_client`: measure where the time of a lone small request goes.

One client has one request in flight: a Produce, version 11, of one record of 100 bytes. Servers that do a little more
each answer it: an echo in C, the same with an append to a file, an echo in Python, one on trio, and warmlog. The client
and the request are the same for all, so the difference between two lines is what the server does in addition. The
servers alternate in each round, after a round that is not counted. Needs a C compiler.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.load.generator import LENGTH, ROOT
from benchmarks.load.kafka_wire import KafkaWire
from benchmarks.load.native import Address
from benchmarks.load.processor_time import ProcessorMeter
from benchmarks.servers.contestants import ENVIRONMENT
from benchmarks.servers.kafka import start_warmlog_for_kafka
from benchmarks.serving.loads import produce

BLOCK = 5_000  # requests to a server in a round
SETTLE = 500  # requests before it that are not counted
VERSION = 11  # of Produce
ECHO = ROOT / "benchmarks" / "servers" / "echo.c"
MODULE = "benchmarks.servers.echo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server, and the connection of its client."""

    name: str
    pid: int
    client: socket.socket
    request: bytes

    def block(self, count: int) -> list[float]:
        """Send requests one by one; return the seconds until each had its whole reply."""
        client, request, times = self.client, self.request, []
        for _ in range(count):
            began_at = perf_counter()
            client.sendall(request)
            reply = client.recv(1 << 16)
            times.append(perf_counter() - began_at)
            if len(reply) != LENGTH.size + LENGTH.unpack_from(reply)[0]:
                raise ConnectionError(f"{self.name}: not a whole reply: {reply[:64]!r}")
        return times


@dataclass(frozen=True, slots=True)
class Round:
    """Microseconds of one block: median latency, and processor time of the server per request."""

    p50_us: float
    cpu_us: float


def main() -> int:
    """Measure the rounds, and print a table of them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.questions.lone_client", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=9, help="rounds that are counted (9)")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where files are written (/var/tmp)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.directory) as directory, ExitStack() as stack:
        servers = [stack.enter_context(server) for server in contestants(Path(directory))]
        rounds = [{server.name: measured(server) for server in servers} for _ in range(chosen.rounds + 1)][1:]
    print(table(rounds))
    return 0


def contestants(directory: Path) -> Iterator[AbstractContextManager[Server]]:
    """Yield context managers that start the servers, in the order of their work per request."""
    program = directory / "echo"
    subprocess.run(["cc", "-O2", "-o", program, ECHO], check=True)
    yield echo("echo in C", [str(program)])
    yield echo("the same, and an append to a file", [str(program), str(directory / "appended")])
    yield echo("echo in Python, one epoll loop", [sys.executable, "-m", MODULE, "turns"])
    yield echo("echo on trio", [sys.executable, "-m", MODULE])
    yield warmlog(directory)


@contextmanager
def echo(name: str, command: Sequence[str]) -> Iterator[Server]:
    """Start an echo server, and connect to it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        host, _, port = process.stdout.readline().rpartition("=")[2].strip().rpartition(":")
        try:
            with connected((host, int(port))) as client:
                yield Server(name=name, pid=process.pid, client=client, request=produce("lone", [0], VERSION))
        finally:
            process.terminate()


@contextmanager
def warmlog(directory: Path) -> Iterator[Server]:
    """Start a broker with a topic, and connect to it."""
    home = directory / "warmlog"
    home.mkdir()
    with start_warmlog_for_kafka(home) as running, connected(running.address) as client:
        topic = KafkaWire().new_topic(running.address, 1)
        yield Server(name="warmlog", pid=running.pid, client=client, request=produce(topic, [0], VERSION))


@contextmanager
def connected(address: Address) -> Iterator[socket.socket]:
    """Open a connection that sends at once."""
    with socket.create_connection(address) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client


def measured(server: Server) -> Round:
    """Send a block of requests to a server."""
    server.block(SETTLE)
    meter = ProcessorMeter((server.pid,))
    times = server.block(BLOCK)
    return Round(median(times) * 1e6, meter.us_per(BLOCK))


def table(rounds: Sequence[dict[str, Round]]) -> str:
    """Return a table of the servers: medians of the rounds with their spread, and the step from the line before."""
    lines = ["| server | p50, us | min to max | step | processor time, us | step |", "|---|---|---|---|---|---|"]
    last = Round(0.0, 0.0)
    for name in rounds[0]:
        latencies = [each[name].p50_us for each in rounds]
        here = Round(median(latencies), median(each[name].cpu_us for each in rounds))
        spread = f"{min(latencies):.1f} to {max(latencies):.1f}"
        steps = f"{here.p50_us - last.p50_us:+.1f}", f"{here.cpu_us - last.cpu_us:+.1f}"
        lines.append(f"| {name} | {here.p50_us:.1f} | {spread} | {steps[0]} | {here.cpu_us:.1f} | {steps[1]} |")
        last = here
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
