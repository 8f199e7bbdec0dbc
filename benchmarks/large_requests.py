"""The effect of one large request on other clients, on warmlog and on Kafka.

    python -m benchmarks.large_requests [PATTERN ...] [--kafka] [--rounds N] [--scale S]

Each request is valid and large: it has thousands of entries, or requests everything. While it is served, a second
client produces and fetches one small record after the other. For each request, the report has the time to its whole
reply, the second client's longest wait for a reply, the longest time for which a single step held the event loop (CPU
time, which does not depend on other processes), and the size of the reply. With --kafka, it also has the first two for
Kafka 4.3.1, and the ratios.
"""

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
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

from benchmarks.kafka import start_kafka
from benchmarks.load import ROOT
from benchmarks.native import Address
from interop.kafka_node import MissingToolError
from protocol.records.builder import build_batch
from tests.broker.kafka_client import BY_NAME
from tests.protocol.kafka.messages import TABLES, body, frame, parsed, reply_body, with_defaults

LENGTH_BYTES = 4
ANSWER_S = 180.0
TOPICS, WIDE = 1000, 2000
BATCH = build_batch([(1_700_000_000_000, None, b"v" * 100, ())])
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeRequest:
    """A request by the field names of Kafka's message definitions.

    `fields` gives the fields for a request of a size: how many things it names.
    """

    name: str
    api: str
    size: int
    fields: Callable[[int], Fields]
    version: int | None = None


def many(count: int) -> list[str]:
    """Names of topics that exist."""
    return [f"many-{number}" for number in range(min(count, TOPICS))]


def none(count: int) -> list[str]:
    """Names of topics that do not exist."""
    return [f"none-{number}" for number in range(count)]


def of_wide(count: int, key: str, **fields: Any) -> list[dict[str, Any]]:
    """Partitions of the topic that has many."""
    return [{key: number, **fields} for number in range(count)]


def _fetch(topics: list[dict[str, Any]], **fields: Any) -> Fields:
    return {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, "topics": topics, **fields}


def _fetched(count: int) -> list[dict[str, Any]]:
    return of_wide(count, "partition", fetch_offset=0, partition_max_bytes=1 << 20)


def _commit(topic: str, count: int) -> Fields:
    partitions = of_wide(count, "partition_index", committed_offset=1, committed_metadata="")
    return {"group_id": "committed", "member_id": "", "topics": [{"name": topic, "partitions": partitions}]}


def _resources(names: list[str], kind: int = 2) -> list[dict[str, Any]]:
    return [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for name in names]


def _altered(names: list[str]) -> list[dict[str, Any]]:
    configs = [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
    return [{"resource_type": 2, "resource_name": name, "configs": configs} for name in names]


def _new_topics(names: list[str], **fields: Any) -> Fields:
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": (), **fields}
        for name in names
    ]
    return {"topics": topics, "timeout_ms": 60_000, "validate_only": True}


KAFKA = (
    LargeRequest(
        name="produce-known", api="Produce", version=9, size=WIDE,
        fields=lambda n: {"acks": 1, "timeout_ms": 30_000, "topic_data": [
            {"name": "wide", "partition_data": of_wide(n, "index", records=BATCH)}]},
    ),
    LargeRequest(
        name="produce-unknown", api="Produce", version=9, size=20_000,
        fields=lambda n: {"acks": 1, "timeout_ms": 30_000, "topic_data": [
            {"name": "wide", "partition_data": [
                {"index": WIDE + number, "records": BATCH} for number in range(n)]}]},
    ),
    LargeRequest(
        name="fetch-known", api="Fetch", version=12, size=WIDE,
        fields=lambda n: _fetch([{"topic": "wide", "partitions": _fetched(n)}]),
    ),
    LargeRequest(
        name="fetch-unknown", api="Fetch", version=12, size=99_000,
        fields=lambda n: _fetch([{"topic": "none", "partitions": _fetched(n)}]),
    ),
    LargeRequest(
        name="fetch-session", api="Fetch", version=12, size=WIDE,
        fields=lambda n: _fetch([{"topic": "wide", "partitions": _fetched(n)}], session_epoch=0),
    ),
    LargeRequest(
        name="list-offsets-known", api="ListOffsets", version=7, size=WIDE,
        fields=lambda n: {"topics": [{"name": "wide", "partitions": of_wide(n, "partition_index", timestamp=-1)}]},
    ),
    LargeRequest(
        name="list-offsets-by-time", api="ListOffsets", version=7, size=WIDE,
        fields=lambda n: {"topics": [
            {"name": "wide", "partitions": of_wide(n, "partition_index", timestamp=1_600_000_000_000)}]},
    ),
    LargeRequest(
        name="list-offsets-unknown", api="ListOffsets", version=7, size=99_000,
        fields=lambda n: {"topics": [{"name": "none", "partitions": of_wide(n, "partition_index", timestamp=-1)}]},
    ),
    LargeRequest(name="metadata-all", api="Metadata", version=9, size=TOPICS, fields=lambda _: {"topics": None}),
    LargeRequest(
        name="metadata-named", api="Metadata", version=9, size=TOPICS,
        fields=lambda n: {"topics": [{"name": name} for name in many(n)], "allow_auto_topic_creation": False},
    ),
    LargeRequest(
        name="metadata-unknown", api="Metadata", version=9, size=99_000,
        fields=lambda n: {"topics": [{"name": name} for name in none(n)], "allow_auto_topic_creation": False},
    ),
    LargeRequest(
        name="metadata-by-id", api="Metadata", version=12, size=99_000,
        fields=lambda n: {"topics": [
            {"name": None, "topic_id": number.to_bytes(16)} for number in range(1000, n + 1000)],
            "allow_auto_topic_creation": False},
    ),
    LargeRequest(
        name="offset-commit", api="OffsetCommit", version=8, size=WIDE, fields=lambda n: _commit("wide", n)
    ),
    LargeRequest(
        name="offset-commit-unknown", api="OffsetCommit", version=8, size=99_000, fields=lambda n: _commit("none", n)
    ),
    LargeRequest(
        name="offset-fetch-one-group-often", api="OffsetFetch", version=8, size=1000,
        fields=lambda n: {"groups": [{"group_id": "committed", "topics": None}] * n},
    ),
    LargeRequest(
        name="offset-fetch-partitions", api="OffsetFetch", version=8, size=99_000,
        fields=lambda n: {"groups": [
            {"group_id": "committed", "topics": [{"name": "wide", "partition_indexes": range(n)}]}]},
    ),
    LargeRequest(
        name="offset-fetch-groups", api="OffsetFetch", version=8, size=99_000,
        fields=lambda n: {"groups": [{"group_id": name, "topics": None} for name in none(n)]},
    ),
    LargeRequest(
        name="find-coordinator", api="FindCoordinator", version=4, size=99_000,
        fields=lambda n: {"key_type": 0, "coordinator_keys": none(n)},
    ),
    LargeRequest(
        name="join-group-protocols", api="JoinGroup", version=5, size=99_000,
        fields=lambda n: {"group_id": "joined", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000,
                          "member_id": "", "protocol_type": "consumer",
                          "protocols": [{"name": name, "metadata": b""} for name in none(n)]},
    ),
    LargeRequest(
        name="sync-group-assignments", api="SyncGroup", version=4, size=99_000,
        fields=lambda n: {"group_id": "none", "generation_id": 1, "member_id": "m",
                          "assignments": [{"member_id": name, "assignment": b""} for name in none(n)]},
    ),
    LargeRequest(
        name="leave-group-members", api="LeaveGroup", version=4, size=99_000,
        fields=lambda n: {"group_id": "committed", "members": [{"member_id": name} for name in none(n)]},
    ),
    LargeRequest(
        name="describe-groups-one-often", api="DescribeGroups", version=5, size=99_000,
        fields=lambda n: {"groups": ["committed"] * n},
    ),
    LargeRequest(
        name="describe-groups", api="DescribeGroups", version=5, size=99_000, fields=lambda n: {"groups": none(n)}
    ),
    LargeRequest(name="list-groups", api="ListGroups", version=4, size=1, fields=lambda _: {}),
    LargeRequest(
        name="delete-groups", api="DeleteGroups", version=2, size=99_000, fields=lambda n: {"groups_names": none(n)}
    ),
    LargeRequest(
        name="create-topics-validated", api="CreateTopics", version=5, size=10_000,
        fields=lambda n: _new_topics(none(n)),
    ),
    LargeRequest(
        name="create-topics-invalid", api="CreateTopics", version=5, size=30_000,
        fields=lambda n: _new_topics([f"no topic {number}" for number in range(n)]),
    ),
    LargeRequest(
        name="create-topic-assigned", api="CreateTopics", version=5, size=49_000,
        fields=lambda n: _new_topics(
            ["assigned"], num_partitions=-1, replication_factor=-1,
            assignments=[{"partition_index": number, "broker_ids": (1,)} for number in range(n)]),
    ),
    LargeRequest(
        name="create-topic-configs", api="CreateTopics", version=5, size=99_000,
        fields=lambda n: _new_topics(
            ["configured"], configs=[{"name": f"no.config.{number}", "value": "1"} for number in range(n)]),
    ),
    LargeRequest(
        name="delete-topics-unknown", api="DeleteTopics", version=5, size=99_000,
        fields=lambda n: {"topic_names": none(n), "timeout_ms": 60_000},
    ),
    LargeRequest(
        name="delete-records", api="DeleteRecords", version=2, size=WIDE,
        fields=lambda n: {"topics": [{"name": "wide", "partitions": of_wide(n, "partition_index", offset=0)}],
                          "timeout_ms": 60_000},
    ),
    LargeRequest(
        name="delete-records-unknown", api="DeleteRecords", version=2, size=99_000,
        fields=lambda n: {"topics": [{"name": "none", "partitions": of_wide(n, "partition_index", offset=0)}],
                          "timeout_ms": 60_000},
    ),
    LargeRequest(
        name="leader-epochs", api="OffsetForLeaderEpoch", version=4, size=99_000,
        fields=lambda n: {"replica_id": -1, "topics": [
            {"topic": "wide", "partitions": of_wide(n, "partition", current_leader_epoch=-1, leader_epoch=0)}]},
    ),
    LargeRequest(
        name="describe-configs", api="DescribeConfigs", version=4, size=TOPICS,
        fields=lambda n: {"resources": _resources(many(n)), "include_synonyms": True},
    ),
    LargeRequest(
        name="describe-configs-one-often", api="DescribeConfigs", version=4, size=2000,
        fields=lambda n: {"resources": _resources(["many-0"] * n), "include_synonyms": True},
    ),
    LargeRequest(
        name="describe-configs-unknown", api="DescribeConfigs", version=4, size=99_000,
        fields=lambda n: {"resources": _resources(none(n))},
    ),
    LargeRequest(
        name="describe-configs-broker-often", api="DescribeConfigs", version=4, size=1000,
        fields=lambda n: {"resources": _resources(["1"] * n, 4), "include_synonyms": True},
    ),
    LargeRequest(
        name="describe-configs-keys", api="DescribeConfigs", version=4, size=99_000,
        fields=lambda n: {"resources": [
            {"resource_type": 2, "resource_name": "many-0", "configuration_keys": none(n)}]},
    ),
    LargeRequest(
        name="alter-configs-unknown", api="AlterConfigs", version=2, size=40_000,
        fields=lambda n: {"resources": _altered(none(n)), "validate_only": True},
    ),
    LargeRequest(
        name="incremental-alter-configs-unknown", api="IncrementalAlterConfigs", version=1, size=40_000,
        fields=lambda n: {"resources": _altered(none(n)), "validate_only": True},
    ),
    LargeRequest(
        name="incremental-alter-configs-changes", api="IncrementalAlterConfigs", version=1, size=99_000,
        fields=lambda n: {"resources": [{"resource_type": 2, "resource_name": "many-0", "configs": [
            {"name": f"no.config.{number}", "config_operation": 0, "value": "1"} for number in range(n)]}],
            "validate_only": True},
    ),
    LargeRequest(name="log-dirs-all", api="DescribeLogDirs", version=4, size=1, fields=lambda _: {"topics": None}),
    LargeRequest(
        name="log-dirs-named", api="DescribeLogDirs", version=4, size=99_000,
        fields=lambda n: {"topics": [{"topic": "wide", "partitions": range(n)}]},
    ),
    LargeRequest(
        name="create-partitions-unknown", api="CreatePartitions", version=3, size=99_000,
        fields=lambda n: {"topics": [{"name": name, "count": 3, "assignments": None} for name in none(n)],
                          "timeout_ms": 60_000, "validate_only": True},
    ),
    LargeRequest(
        name="offset-delete-unknown", api="OffsetDelete", version=0, size=99_000,
        fields=lambda n: {"group_id": "committed", "topics": [
            {"name": "none", "partitions": of_wide(n, "partition_index")}]},
    ),
    LargeRequest(
        name="describe-producers", api="DescribeProducers", version=0, size=99_000,
        fields=lambda n: {"topics": [{"name": "wide", "partition_indexes": range(n)}]},
    ),
    LargeRequest(
        name="describe-producers-often", api="DescribeProducers", version=0, size=99_000,
        fields=lambda n: {"topics": [{"name": "wide", "partition_indexes": [0] * n}]},
    ),
    LargeRequest(
        name="reassignments", api="ListPartitionReassignments", version=0, size=99_000,
        fields=lambda n: {"timeout_ms": 60_000, "topics": [{"name": "wide", "partition_indexes": range(n)}]},
    ),
)  # fmt: skip


def request_bytes(request: LargeRequest, scale: float = 1.0) -> bytes:
    """Return the frame, including its length."""
    fields = request.fields(max(1, int(request.size * scale)))
    return kafka_frame(request.api, request.version, **fields)


def kafka_frame(name: str, version: int | None, /, **fields: Any) -> bytes:
    """Return a request frame of the newest version or of the given one."""
    api = BY_NAME[name]
    chosen = api.last if version is None else version
    values = with_defaults(TABLES[f"{name}Request"], chosen, fields)
    data = frame(api, chosen, body(f"{name}Request", api, chosen, values))
    return len(data).to_bytes(LENGTH_BYTES) + bytes(data)


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
        """Ask by field names; the reply likewise."""
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
    """Create what the requests name: topics, a record in each partition, a group with offsets."""
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
        reply = asker.parsed("OffsetCommit", 8, **_commit("wide", WIDE))
        if not any(one["error_code"] for one in reply["topics"][0]["partitions"]):
            break
    asker.sock.close()


def watch(address: Address, pipe: Connection) -> None:
    """Produce and fetch one small record after the other; tell the longest waits between two questions of the pipe."""
    asker = Asker(address)
    produce = kafka_frame("Produce", 9, acks=1, timeout_ms=30_000, topic_data=[
        {"name": "small", "partition_data": [{"index": 0, "records": BATCH}]}])  # fmt: skip
    fetched = [{"topic": "small", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}]}]
    fetch = kafka_frame("Fetch", 12, **_fetch(fetched))
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
    """Warmlog in a process that reports its loop's longest step since the last call."""
    command = [sys.executable, "-m", "benchmarks.held", str(directory)]
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
    """Kafka, of whose threads nothing is known."""
    with start_kafka(directory) as running:
        yield running.address, lambda: Held(0.0, 0.0, "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Medians over the rounds: seconds to the whole reply, the second client's longest wait, bytes of the reply.

    `held_ms` is the largest of all rounds.
    """

    seconds: float
    others_s: float
    held_ms: float
    size: int


def measure(
    address: Address, held: Callable[[], Held], requests: list[LargeRequest], rounds: int, scale: float
) -> dict[str, Outcome]:
    """Every request so many times, beside a second client."""
    outcomes = {}
    with watching(address) as longest_s:
        for request in requests:
            frame_bytes = request_bytes(request, scale)
            times, waits, holds, size = [], [], [], 0
            for _ in range(rounds):
                asker = Asker(address)
                longest_s()
                held()
                began_at = perf_counter()
                try:
                    size = len(asker.ask(frame_bytes))
                except (OSError, ConnectionError) as error:
                    print(f"{request.name}: {error}", file=sys.stderr)
                times.append(perf_counter() - began_at)
                waits.append(longest_s())
                holds.append(held())
                asker.sock.close()
            longest = max(holds, key=lambda one: one.cpu_ms)
            outcome = Outcome(median(times), median(waits), longest.cpu_ms, size)
            outcomes[request.name] = outcome
            print(
                f"{request.name:36} {outcome.seconds * 1e3:9.1f} ms  others {outcome.others_s * 1e3:7.1f} ms"
                f"  held {outcome.held_ms:7.1f} ms  {size:>9} bytes  {longest.task.rpartition('.')[2]}",
                flush=True,
            )
    return outcomes


def main() -> int:
    """Print a table; exit status 1 where Kafka was asked for and is not there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_requests", description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"], help="which requests: names or patterns (all)")
    parser.add_argument("--kafka", action="store_true", help="measure Kafka in the same run, and print ratios")
    parser.add_argument("--rounds", type=int, default=3, help="how often each request is sent (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the size of each request (1)")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on the disk to use (/var/tmp)")
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
