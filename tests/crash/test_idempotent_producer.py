"""An idempotent producer of another make, and a broker that is killed under it: each record once and in order.

Between the two stands a relay that loses answers: what was written when the broker is killed, and not acknowledged, the
producer sends again to the next one.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random

from confluent_kafka import KafkaError, Message, Producer

from warmlog.protocol.records.reader import records_in

SETTINGS = ("log.segment.bytes=200000", "log.index.interval.bytes=512", "num.partitions=2")
PARTITIONS = 2
LIMIT_S = 60


def spawn(data_dir: Path, relay: "Relay") -> subprocess.Popen[str]:
    """Start a broker that tells clients the address of the relay."""
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(data_dir), "--kafka", "127.0.0.1:0"]
    command += ["--native", "none", "--http", "none"]
    settings = (*SETTINGS, f"advertised.listeners=kafka://127.0.0.1:{relay.port}")
    command += [word for setting in settings for word in ("--set", setting)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "CI": ""})


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def broker_process(data_dir: Path, relay: "Relay") -> Iterator[None]:
    """A broker behind the relay; killed at the end."""
    process = spawn(data_dir, relay)
    try:
        assert process.stdout is not None
        ready = next(line for line in process.stdout if line.startswith("ready"))
        relay.serve(int(ready.split()[1].rpartition(":")[2]))
        yield
    finally:
        kill(process)
        relay.lead_nowhere()


class Relay:
    """An address that stays while brokers come and go. What they answer is lost while it is `deaf`: `lost` says so."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.deaf, self.lost = threading.Event(), threading.Event()
        self._broker_port = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def serve(self, broker_port: int) -> None:
        """Lead to another broker from now on."""
        self._broker_port = broker_port
        self.deaf.clear()
        self.lost.clear()

    def lead_nowhere(self) -> None:
        """Refuse to serve: the port of a broker that is gone may become that of another test's."""
        self._broker_port = 0

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_S)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._relay, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _relay(self, client: socket.socket) -> None:
        with closing(client), suppress(OSError), socket.create_connection(("127.0.0.1", self._broker_port)) as broker:
            back = threading.Thread(target=self._pump, args=(broker, client), kwargs={"answers": True})
            back.start()
            self._pump(client, broker, answers=False)
            back.join(LIMIT_S)

    def _pump(self, source: socket.socket, target: socket.socket, *, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self.deaf.is_set():
                    self.lost.set()
                else:
                    target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Sending:
    """A producer that numbers what it sends to each partition."""

    def __init__(self, port: int) -> None:
        self.failures: list[KafkaError] = []
        self.acknowledged = 0
        self.sent = [0] * PARTITIONS
        self._random = Random(1)
        self._producer = Producer({
            "bootstrap.servers": f"127.0.0.1:{port}",
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.size": 20_000,  # a segment takes several
            "log_level": 0,  # that a broker cannot be reached is the point here
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 5,
            "error_cb": self._failed,
        })  # fmt: skip

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self.failures.append(error)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.failures.append(error)
        self.acknowledged += 1

    def send(self) -> None:
        """Send one more, or wait a little if many are not acknowledged."""
        if sum(self.sent) - self.acknowledged >= 500:
            self._producer.poll(0.01)
            return
        partition = self._random.randrange(PARTITIONS)
        value = b"%d:" % self.sent[partition] + b"x" * self._random.choice([10, 500, 5000])
        self._producer.produce("orders", value, partition=partition, on_delivery=self._delivered)
        self.sent[partition] += 1
        self._producer.poll(0)

    def finish(self) -> None:
        assert self._producer.flush(LIMIT_S) == 0
        assert self.failures == []


def numbers_in(directory: Path) -> list[int]:
    """What the files of a partition hold, in their order."""
    logs = sorted(directory.glob("*.log"))
    return [int((record.value or b"").split(b":")[0]) for log in logs for record in records_in(log.read_bytes())]


def test_no_record_is_lost_doubled_or_out_of_order_where_the_broker_is_killed(tmp_path: Path) -> None:
    with closing(Relay()) as relay:
        sending = Sending(relay.port)
        for acknowledged in (1, 300, 700):
            with broker_process(tmp_path, relay):
                while sending.acknowledged < acknowledged:
                    sending.send()
                relay.deaf.set()
                while not relay.lost.is_set():
                    sending.send()
        with broker_process(tmp_path, relay):
            sending.finish()
    for partition, sent in enumerate(sending.sent):
        assert numbers_in(tmp_path / f"orders-{partition}") == list(range(sent))
