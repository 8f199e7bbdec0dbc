"""Measure the cost of transactions in a log for its readers and for a start after a kill.

    python -m benchmarks.questions.transactional_logs [--mb N] [--rounds N]

Two logs have the same size and the same values: one is written by an idempotent producer, the other half by it and half
in transactions, a tenth of which are aborted. For each round, the report has the broker's CPU time to fetch the log
with transactions in slices of 1 MiB with `read_committed`, divided by the time with `read_uncommitted`; and the time to
the first `ready` after a kill with all of it past the recovery point, divided by the time for the log without
transactions.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from confluent_kafka import Producer

from benchmarks.load.generator import ROOT
from benchmarks.load.native import Address
from benchmarks.questions.large_frames import kafka_frame
from benchmarks.questions.large_requests import Asker

TOPIC = "log"
VALUE_BYTES = 1000
VALUES_PER_TRANSACTION = 1000
SLICE_BYTES = 1 << 20
LIMIT_S = 60.0
READY = re.compile(r"\bready kafka=(\S+):(\d+)")
SETTINGS = ("log.segment.bytes=2147483647", "auto.create.topics.enable=true", "log.flush.interval.ms=3600000")


@contextmanager
def started(directory: Path) -> Iterator[tuple[Address, int, float]]:
    """Start warmlog, and kill it at the end; yield its address, process id and the seconds until it was ready."""
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(directory), "--kafka", "127.0.0.1:0"]
    command += ["--native", "none", "--http", "none", "--log-level", "error"]
    for setting in SETTINGS:
        command += ["--set", setting]
    began_at = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        ready = next(found for line in process.stdout if (found := READY.search(line)))
        seconds = perf_counter() - began_at
        try:
            yield (ready[1], int(ready[2])), process.pid, seconds
        finally:
            process.send_signal(signal.SIGKILL)


def fill(directory: Path, size: int, *, with_transactions: bool) -> None:
    """Write `size` bytes of values, half of them in transactions if requested."""
    with started(directory) as ((host, port), _, _):
        settings = {"bootstrap.servers": f"{host}:{port}", "linger.ms": 20, "batch.size": 100_000}
        plain = Producer(settings | {"enable.idempotence": True})
        written = Producer(settings | {"transactional.id": "writer"}) if with_transactions else plain
        if with_transactions:
            written.init_transactions(LIMIT_S)
        value = os.urandom(VALUE_BYTES)
        for number in range(size // VALUE_BYTES // VALUES_PER_TRANSACTION // 2):
            for producer in (plain, written):
                if producer is not plain:
                    producer.begin_transaction()
                for _ in range(VALUES_PER_TRANSACTION):
                    producer.produce(TOPIC, value, partition=0)
                if producer is plain:
                    assert producer.flush(LIMIT_S) == 0
                elif number % 10 == 0:
                    producer.flush(LIMIT_S)
                    producer.abort_transaction(LIMIT_S)
                else:
                    producer.commit_transaction(LIMIT_S)


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def fetched(address: Address, pid: int, *, committed: bool, times: int) -> float:
    """Fetch the log from its start to its end several times; return the broker's CPU seconds."""
    asker = Asker(address)
    before = cpu_s(pid)
    for _ in range(times):
        offset, end = 0, 1
        while offset < end:
            fields = {
                "partition": 0,
                "fetch_offset": offset,
                "partition_max_bytes": SLICE_BYTES,
                "log_start_offset": -1,
            }
            topics = [{"topic": TOPIC, "partitions": [{**fields, "current_leader_epoch": -1}]}]
            request = {"replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": SLICE_BYTES, "topics": topics}
            session = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
            reply = asker.ask(kafka_frame("Fetch", 11, isolation_level=int(committed), **request, **session))
            offset, end = next_offset(reply)
    asker.sock.close()
    return cpu_s(pid) - before


def next_offset(reply: bytes) -> tuple[int, int]:
    """Return the offset after the last whole batch of a Fetch 11 reply, and the high watermark."""
    at = 4 + 4 + 2 + 4 + 4 + 2 + len(TOPIC) + 4 + 4  # up to the partition's error
    assert reply[at : at + 2] == b"\0\0", reply[at : at + 2]
    high_watermark = int.from_bytes(reply[at + 2 : at + 10])
    at += 2 + 8 + 8 + 8
    aborted = int.from_bytes(reply[at : at + 4], signed=True)
    at += 4 + 16 * max(aborted, 0) + 4
    length = int.from_bytes(reply[at : at + 4])
    at += 4
    end, offset = at + length, 0
    while at + 61 <= end and at + 12 + int.from_bytes(reply[at + 8 : at + 12]) <= end:
        offset = int.from_bytes(reply[at : at + 8]) + int.from_bytes(reply[at + 23 : at + 27]) + 1
        at += 12 + int.from_bytes(reply[at + 8 : at + 12])
    return offset, high_watermark


def spread(name: str, values: list[float]) -> str:
    """Format the median and the range of ratios."""
    return f"{name}: {median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1000, help="size of each log (1000)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured (5)")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="directory for the data (/var/tmp)")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="warmlog-", dir=options.directory) as name:
        plain, mixed = Path(name) / "plain", Path(name) / "mixed"
        for directory, with_transactions in ((plain, False), (mixed, True)):
            directory.mkdir()
            fill(directory, options.mb * 1_000_000, with_transactions=with_transactions)
        starts: list[float] = []
        for _ in range(options.rounds):
            seconds = {}
            for directory in (plain, mixed):
                with started(directory) as (_, _, seconds[directory]):
                    pass
            print(f"start: {seconds[plain]:.2f} s, with transactions {seconds[mixed]:.2f} s", flush=True)
            starts.append(seconds[mixed] / seconds[plain])
        reads: list[float] = []
        with started(mixed) as (address, pid, _):
            for _ in range(options.rounds):
                cpu = [fetched(address, pid, committed=committed, times=3) for committed in (False, True)]
                print(f"fetch: {cpu[0]:.2f} s of CPU, committed {cpu[1]:.2f} s", flush=True)
                reads.append(cpu[1] / cpu[0])
        print(spread("start after a kill, transactions to none", starts))
        print(spread("CPU of a fetch, read_committed to read_uncommitted", reads))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
