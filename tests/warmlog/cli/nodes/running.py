"""Run `warmlog serve --nodes` as a user does, and use it with confluent-kafka."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer

FREE = ("--kafka", "127.0.0.1:0", "--native", "127.0.0.1:0", "--http", "127.0.0.1:0")
NODE = re.compile(r"node (\d+) kafka=(\S+) native=(\S+) http=(\S+)\n")
LIMIT_S = 60
RECORDS = 300


class Running:
    """A running `serve --nodes`, and the addresses of its nodes."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        assert process.stdout is not None
        self.process = process
        self.log = log
        self.lines = []
        for line in process.stdout:
            self.lines.append(line)
            if line.startswith("ready "):
                break
        found = [match for line in self.lines if (match := NODE.fullmatch(line))]
        self.kafka = [match[2] for match in found]
        self.native = [match[3] for match in found]
        self.shared = dict(re.findall(r"(\S+)=(\S+)", self.lines[-1]) if self.lines else ())  # by listener

    def node(self, number: int) -> int:
        """Return the process id of a node."""
        started_by = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        children = [child for path in started_by for child in path.read_text().split()]
        return next(int(one) for one in children if f"node.id={number}" in Path(f"/proc/{one}/cmdline").read_text())

    def stop(self) -> int:
        """Stop as an operator does, and return the exit status."""
        self.process.terminate()
        return self.process.wait(LIMIT_S)


@contextmanager
def nodes(directory: Path, count: int | str, *options: str, addresses: Sequence[str] = FREE) -> Iterator[Running]:
    """Run the real command; kill it at the end if it still runs."""
    command = [sys.executable, "-m", "warmlog", "serve", "--nodes", str(count), "--data-dir", str(directory)]
    log = directory.with_suffix(".log")
    with (
        log.open("a") as errors,
        tempfile.TemporaryDirectory() as temporary,  # for the socket of the store, which a kill leaves there
        subprocess.Popen(
            [*command, *addresses, *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "TMPDIR": temporary},
        ) as process,
    ):
        try:
            yield Running(process, log)
        finally:
            process.kill()


def produce(bootstrap: str, topic: str, first: int) -> None:
    failures = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for at in range(first, first + RECORDS):
        producer.produce(topic, value=b"%d" % at, on_delivery=lambda error, _: error and failures.append(error))
    assert producer.flush(LIMIT_S) == 0
    assert not failures


def consumed(bootstrap: str, topic: str, count: int) -> list[int]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    consumer.subscribe([topic])
    try:
        found = consumer.consume(count, LIMIT_S)
        assert not [message.error() for message in found if message.error()]
        return sorted(int(message.value() or b"") for message in found)
    finally:
        consumer.close()


def refused(directory: Path, *options: str, descriptors: Sequence[int] = ()) -> str:
    """Return what a `serve` writes that cannot start. It inherits `descriptors`."""
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(directory), *FREE, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, pass_fds=descriptors)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr
