"""An idempotent producer of another make, and a broker that is killed under it: each record once and in order."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from confluent_kafka import KafkaError, Message, Producer

from protocol.records.reader import records_in

SETTINGS = ("log.segment.bytes=200000", "log.index.interval.bytes=512")
PARTITIONS = 2


@contextmanager
def broker_process(data_dir: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """A broker on a port that its clients know already; killed at the end."""
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(data_dir), "--kafka", f"127.0.0.1:{port}"]
    command += ["--native", "none", "--http", "none"]
    command += [word for setting in (*SETTINGS, f"num.partitions={PARTITIONS}") for word in ("--set", setting)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "CI": ""})
    try:
        assert process.stdout is not None
        assert any(line.startswith("ready") for line in process.stdout)
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Sending:
    """A producer that numbers what it sends to each partition."""

    def __init__(self, port: int, seed: int) -> None:
        self.failures: list[KafkaError] = []
        self.acknowledged = 0
        self.sent = [0] * PARTITIONS
        self._random = Random(seed)
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

    def send_until(self, acknowledged: int) -> None:
        """Keep sending until so many records are acknowledged."""
        while self.acknowledged < acknowledged:
            if sum(self.sent) - self.acknowledged < 200:
                partition = self._random.randrange(PARTITIONS)
                value = b"%d:" % self.sent[partition] + b"x" * self._random.choice([10, 500, 5000])
                self._producer.produce("orders", value, partition=partition, on_delivery=self._delivered)
                self.sent[partition] += 1
                self._producer.poll(0)
            else:
                self._producer.poll(0.01)

    def finish(self) -> None:
        assert self._producer.flush(60) == 0
        assert self.failures == []


def numbers_in(directory: Path) -> list[int]:
    """What the files of a partition hold, in their order."""
    logs = sorted(directory.glob("*.log"))
    return [int((record.value or b"").split(b":")[0]) for log in logs for record in records_in(log.read_bytes())]


def test_no_record_is_lost_doubled_or_out_of_order_where_the_broker_is_killed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sending = Sending(port, seed=1)
    for acknowledged in (1, 300, 700):
        with broker_process(tmp_path, port):
            sending.send_until(acknowledged)  # with some in flight when it is killed
    with broker_process(tmp_path, port):
        sending.finish()
    for partition, sent in enumerate(sending.sent):
        assert numbers_in(tmp_path / f"orders-{partition}") == list(range(sent))
