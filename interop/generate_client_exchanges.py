"""Regenerate tests/fixtures/kafka/clients: requests of real clients to Kafka, and its replies.

`python interop/generate_client_exchanges.py` (Java, Maven, Node, Go, kcat). Each client runs its part of the tests with
a recording proxy between it and Kafka. The shortest and the longest exchange of each API and version that a client uses
are kept, the latter up to a limit. A line is {"api": key, "version", "request", "reply"}: frames without their lengths,
in hexadecimal digits; the reply is empty if there was none.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.java_tools import run
from interop.kafka_node import SETTINGS, KafkaNode
from interop.recorder import Exchange, Recorder
from tests.interop.clients.programs import GO_DIRECTORY, program
from tests.interop.clients.test_java_tools import calls

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "tests" / "fixtures" / "kafka" / "clients"
#: Longer exchanges add no coverage.
MAX_BYTES = 1200
KAFKA = {
    **SETTINGS,
    "auto.create.topics.enable": "true",
    "group.min.session.timeout.ms": 100,
    "log.retention.ms": -1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client: the prefix of its client ids, and the command that runs it against an address."""

    name: str
    called: str
    talk: Callable[[str], object]


def ran(command: Sequence[str], directory: Path = ROOT, *, text: str = "", **environment: str) -> None:
    """Run a program to completion. Raises RuntimeError with its last output if it fails."""
    done = subprocess.run(
        command,
        cwd=directory,
        input=text,
        text=True,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stdout[-4000:]}")


def tests(*files: str) -> Callable[[str], object]:
    """Return the suite's own tests of a library."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(f"tests/clients/{name}" for name in files),
    ]

    def talk(address: str) -> None:
        ran(command, WARMLOG_CLIENTS_BOOTSTRAP=address)

    return talk


def go(name: str) -> Callable[[str], object]:
    """Run one of the Go programs."""

    def talk(address: str) -> None:
        compiler = program("go", "golang-go", also=GO_DIRECTORY)
        ran([compiler, "run", f"./{name}", address, name], ROOT / "interop" / "go")

    return talk


def kafkajs(address: str) -> None:
    """Run the kafkajs program, after `npm ci`."""
    project = ROOT / "interop" / "node"
    ran([program("npm", "npm"), "ci", "--ignore-scripts", "--silent"], project)
    ran([program("node", "nodejs"), "story.mjs", address, "kafkajs"], project)


def kcat(address: str) -> None:
    """Produce, consume with and without a group, list, query."""
    path = program("kcat", "kcat")

    def call(*options: str, text: str = "") -> None:
        ran([path, "-b", address, "-X", "auto.offset.reset=earliest", *options], text=text)

    call("-P", "-t", "kcat", "-p", "0", "-K", ":", "-X", "enable.idempotence=true", text="key:value\n")
    call("-C", "-t", "kcat", "-e", "-q", "-o", "beginning")
    call("-G", "kcat", "-q", "-c", "1", "kcat")
    call("-Q", "-t", "kcat:0:-1")
    call("-L", "-J")


def java_tools(address: str) -> None:
    """Run Kafka's own command line tools."""
    with tempfile.NamedTemporaryFile("w") as offsets:
        offsets.write('{"partitions": [{"topic": "verified", "partition": 0, "offset": 10}], "version": 1}')
        offsets.flush()
        run(address, calls(Path(offsets.name)))


#: Clients that leave many topics and groups come last, so that replies that list everything stay short for the others.
CLIENTS = (
    Client(name="kcat", called="rdkafka", talk=kcat),
    Client(name="franz-go", called="kgo", talk=go("franz")),
    Client(name="sarama", called="sarama", talk=go("sarama")),
    Client(name="kafka-go", called="kafka-go", talk=go("kafkago")),
    Client(name="kafkajs", called="kafkajs", talk=kafkajs),
    Client(name="java", called="", talk=java_tools),
    Client(name="aiokafka", called="aiokafka", talk=tests("test_aiokafka.py", "test_groups.py")),
    Client(name="kafka-python", called="kafka-python", talk=tests("test_kafka_python.py", "test_groups.py")),
    Client(
        name="confluent-kafka", called="rdkafka", talk=tests("test_confluent.py", "test_admin.py", "test_groups.py")
    ),
)


def main() -> None:
    """Record the clients one after the other; replace the files if all succeed."""
    recorded: dict[str, list[Exchange]] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        Recorder() as recorder,
        KafkaNode(Path(directory) / "data", settings=KAFKA, advertised=recorder.address) as node,
    ):
        recorder.aim(node.bootstrap)
        for client in CLIENTS:
            recorder.exchanges.clear()
            client.talk(recorder.address)
            said = [each for each in recorder.exchanges if client_id(each.request).startswith(client.called)]
            recorded[client.name] = chosen(said)
    TARGET.mkdir(exist_ok=True)
    for name, exchanges in recorded.items():
        lines = [json.dumps(line(each)) + "\n" for each in exchanges]
        (TARGET / f"{name}.jsonl").write_text("".join(lines), encoding="ascii")


def client_id(request: bytes) -> str:
    """Return the client id of a request; empty if it has none."""
    size = int.from_bytes(request[8:10], signed=True)
    return request[10 : 10 + max(size, 0)].decode()


def chosen(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Return the shortest and the longest exchange of each API and version, within the limit."""
    found: dict[tuple[int, int], list[Exchange]] = {}
    for each in sorted(exchanges, key=size):
        kept = found.setdefault((each.key, each.version), [])
        if not kept:
            kept.append(each)
        elif size(each) <= MAX_BYTES:
            kept[1:] = [each]
    return [each for _, kept in sorted(found.items()) for each in kept]


def size(exchange: Exchange) -> int:
    """Return the size of both frames in bytes."""
    return len(exchange.request) + len(exchange.reply)


def line(exchange: Exchange) -> dict[str, object]:
    """Return an exchange as a line of the file."""
    return {
        "api": exchange.key,
        "version": exchange.version,
        "request": exchange.request.hex(),
        "reply": exchange.reply.hex(),
    }


if __name__ == "__main__":
    main()
