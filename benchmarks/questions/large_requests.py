"""The effect of one large request on other clients, on warmlog and on Kafka.

    python -m benchmarks.questions.large_requests [PATTERN ...] [--kafka] [--rounds N] [--scale S]

Each request is valid and large: it has thousands of entries, or requests everything. While it is served, a second
client produces and fetches one small record after the other. For each request, the report has the time to its whole
reply, the second client's longest wait for a reply, the longest time for which a single step held the event loop, and
the size of the reply. New topics are measured until each partition answers, the end of a transaction until its markers
are written. With --kafka, the report also has the first two for Kafka 4.3.1, and the ratios.

A step is measured in CPU time, which does not depend on other processes, but grows when the hypervisor takes the
processor away. A step that is genuinely long is long in every round: compare `held`, the median of the rounds' longest
steps, with `most`, the longest of all, and with the share of the processors' time stolen during the rounds.
"""

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.load.generator import ROOT
from benchmarks.load.native import Address
from benchmarks.load.stolen_time import stolen_seconds
from benchmarks.questions.large_frames import (
    BATCH,
    KAFKA,
    LENGTH_BYTES,
    TOPICS,
    WIDE,
    LargeRequest,
    commit_fields,
    fetch_fields,
    kafka_frame,
    many,
    request_bytes,
)
from benchmarks.servers.kafka import start_kafka
from interop.kafka_node import MissingToolError
from tests.broker.kafka_client import BY_NAME
from tests.protocol.kafka.messages import parsed, reply_body

ANSWER_S = 180.0


class Asker:
    """One connection that sends a frame and waits for the whole reply."""

    def __init__(self, address: Address) -> None:
        self.sock = socket.create_connection(address, ANSWER_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> bytes:
        """Return the reply without its length."""
        self.sock.sendall(request)
        return self._received(int.from_bytes(self._received(LENGTH_BYTES)))

    def parsed(self, name: str, version: int, /, **fields: Any) -> dict[str, Any]:
        """Send a request and return the reply, both as mappings by field names."""
        reply = self.ask(kafka_frame(name, version, **fields))
        api = BY_NAME[name]
        return parsed(f"{name}Response", api, version, reply_body(api, version, [len(reply).to_bytes(4), reply]))

    def _received(self, size: int) -> bytes:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            count = self.sock.recv_into(view)
            if not count:
                raise ConnectionError("the broker closed the connection")
            view = view[count:]
        return bytes(buffer)


def prepare(address: Address) -> None:
    """Create the entities named in the requests: topics, a record in each partition, a group with offsets."""
    asker = Asker(address)
    new = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in many(TOPICS)]
    new.append({"name": "wide", "num_partitions": WIDE, "replication_factor": 1})
    new.append({"name": "small", "num_partitions": 1, "replication_factor": 1})
    topics = [{"assignments": (), "configs": (), **topic} for topic in new]
    reply = asker.parsed("CreateTopics", 5, topics=topics, timeout_ms=120_000)
    assert not any(topic["error_code"] for topic in reply["topics"]), reply["topics"]
    while any(asker.parsed("FindCoordinator", 4, key_type=0, coordinator_keys=["committed"])["coordinators"][0][key]
              for key in ("error_code",)):  # fmt: skip
        pass
    while True:
        reply = asker.parsed("OffsetCommit", 8, **commit_fields("wide", WIDE))
        if not any(one["error_code"] for one in reply["topics"][0]["partitions"]):
            break
    asker.sock.close()


def watch(address: Address, pipe: Connection) -> None:
    """Produce and fetch one small record after the other; send the longest wait for each query on the pipe."""
    asker = Asker(address)
    produce = kafka_frame("Produce", 9, acks=1, timeout_ms=30_000, topic_data=[
        {"name": "small", "partition_data": [{"index": 0, "records": BATCH}]}])  # fmt: skip
    fetched = [{"topic": "small", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}]}]
    fetch = kafka_frame("Fetch", 12, **fetch_fields(fetched))
    longest_s = 0.0
    while True:
        if pipe.poll():
            if pipe.recv() is None:
                return
            pipe.send(longest_s)
            longest_s = 0.0
        for request in (produce, fetch):
            began_at = perf_counter()
            asker.ask(request)
            longest_s = max(longest_s, perf_counter() - began_at)


@contextmanager
def watching(address: Address) -> Iterator[Callable[[], float]]:
    """Start a second client in its own process; yield a function that returns its longest wait since the last call."""
    ours, theirs = Pipe()
    process = Process(target=watch, args=(address, theirs), daemon=True)
    process.start()

    def longest_s() -> float:
        ours.send("longest?")
        found: float = ours.recv()
        return found

    longest_s()
    yield longest_s
    ours.send(None)
    process.join()


@dataclass(frozen=True, slots=True)
class Held:
    """The longest step of a task on the event loop."""

    cpu_ms: float
    wall_ms: float
    task: str


@contextmanager
def start_held(directory: Path) -> Iterator[tuple[Address, Callable[[], Held]]]:
    """Start warmlog in a process that reports its loop's longest step since the last call."""
    command = [sys.executable, "-m", "benchmarks.servers.held", str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout
        fields = dict(field.split("=", 1) for field in answers.readline().split()[1:])
        host, _, port = fields["kafka"].rpartition(":")

        def held() -> Held:
            requests.write("\n")
            requests.flush()
            cpu_ms, wall_ms, task = answers.readline().split(maxsplit=2)
            return Held(float(cpu_ms), float(wall_ms), task.strip())

        try:
            yield (host, int(port)), held
        finally:
            process.terminate()


@contextmanager
def start_comparison(directory: Path) -> Iterator[tuple[Address, Callable[[], Held]]]:
    """Start Kafka, whose threads are not observed."""
    with start_kafka(directory) as running:
        yield running.address, lambda: Held(0.0, 0.0, "")


@dataclass(frozen=True, slots=True)
class Round:
    """One reply: seconds until it is complete, the second client's longest wait, the longest step, seconds stolen."""

    seconds: float
    others_s: float
    held: Held
    stolen_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The rounds of one request, and the bytes of its reply."""

    rounds: Sequence[Round]
    size: int

    @property
    def seconds(self) -> float:
        """Return the median time to the whole reply."""
        return median(each.seconds for each in self.rounds)

    @property
    def others_s(self) -> float:
        """Return the median of the second client's longest waits."""
        return median(each.others_s for each in self.rounds)

    @property
    def held_ms(self) -> float:
        """Return the median CPU time of the rounds' longest steps."""
        return median(each.held.cpu_ms for each in self.rounds)

    @property
    def longest(self) -> Held:
        """Return the longest step of all rounds."""
        return max((each.held for each in self.rounds), key=lambda held: held.cpu_ms)

    @property
    def stolen_share(self) -> float:
        """Return the share of the processors' time during the rounds that was stolen."""
        seconds = sum(each.seconds for each in self.rounds)
        return sum(each.stolen_s for each in self.rounds) / (seconds * (os.cpu_count() or 1))

    def line(self, name: str) -> str:
        """Return a line of the report."""
        return (
            f"{name:36} {self.seconds * 1e3:9.1f} ms  others {self.others_s * 1e3:7.1f} ms"
            f"  held {self.held_ms:6.1f} most {self.longest.cpu_ms:6.1f} ms  stolen {self.stolen_share:4.0%}"
            f"  {self.size:>9} bytes  {self.longest.task.rpartition('.')[2]}"
        )


def measure(
    address: Address, held: Callable[[], Held], requests: list[LargeRequest], rounds: int, scale: float
) -> dict[str, Outcome]:
    """Measure every request `rounds` times, beside a second client."""
    outcomes = {}
    with watching(address) as longest_s:
        for request in requests:
            entries = max(1, int(request.size * scale))
            measured, size = [], 0
            for _ in range(rounds):
                asker = Asker(address)
                frame_bytes = request_bytes(request, entries, request.before(asker.parsed, entries))
                longest_s()
                held()
                stolen_before_s, began_at = stolen_seconds(), perf_counter()
                try:
                    size = len(asker.ask(frame_bytes))
                    request.after(asker.parsed, entries)
                except (OSError, ConnectionError) as error:
                    print(f"{request.name}: {error}", file=sys.stderr)
                seconds, stolen_s = perf_counter() - began_at, stolen_seconds() - stolen_before_s
                measured.append(Round(seconds, longest_s(), held(), stolen_s))
                asker.sock.close()
            outcome = outcomes[request.name] = Outcome(measured, size)
            print(outcome.line(request.name), flush=True)
    return outcomes


def main() -> int:
    """Print a table; return 1 if Kafka was requested but is not available."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions.large_requests", description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"], help="requests to measure: names or patterns (all)")
    parser.add_argument("--kafka", action="store_true", help="measure Kafka in the same run, and print ratios")
    parser.add_argument("--rounds", type=int, default=5, help="how often each request is sent (5)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the size of each request (1)")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="directory for the data (/var/tmp)")
    chosen = parser.parse_args()
    requests = [one for one in KAFKA if any(fnmatchcase(one.name, pattern) for pattern in chosen.patterns)]
    outcomes: dict[str, dict[str, Outcome]] = {}
    starts: dict[str, Any] = {"warmlog": start_held}
    if chosen.kafka:
        starts["Kafka"] = start_comparison
    for name, start in starts.items():
        print(f"-- {name}", flush=True)
        with TemporaryDirectory(dir=chosen.directory) as directory:
            try:
                with start(Path(directory)) as (address, held):
                    prepare(address)
                    if name == "Kafka":
                        measure(address, held, requests, 3, 0.1)  # a JVM is slow before it is warm
                    outcomes[name] = measure(address, held, requests, chosen.rounds, chosen.scale)
            except (MissingToolError, subprocess.SubprocessError) as error:
                print(error, file=sys.stderr)
                return 1
    if chosen.kafka:
        print(f"{'ratio to Kafka':36} {'time':>9} {'others':>9}")
        for request in requests:
            ours, theirs = outcomes["warmlog"][request.name], outcomes["Kafka"][request.name]
            times, waits = ours.seconds / theirs.seconds, ours.others_s / theirs.others_s
            print(f"{request.name:36} {times:9.2f} {waits:9.2f}")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
