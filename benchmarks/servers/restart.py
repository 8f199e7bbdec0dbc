"""The startup time of a broker after a clean shutdown, and after a kill with records that were never fsynced.

The directory of the killed broker is the same in all rounds: nothing is appended, and the broker is killed again before
it writes a checkpoint. A CRC pass over the logs is the limit of the machine.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from crc32c import crc32c

from benchmarks.harness import Conditions, Figures
from benchmarks.load.processor_time import processor_seconds
from benchmarks.servers.contestants import Broker, Running

CONNECTIONS = 50
PIECE_BYTES = 1 << 18
TOPIC = "logs"


def restart(broker: Broker, conditions: Conditions, *, partitions: int, batch: bytes, batches: int) -> Figures:
    """Measure startup after a clean shutdown and after a kill, and a CRC pass over the same bytes, in seconds.

    `cpu_s` and `killed_cpu_s` are the server's processor time until its first reply.
    """
    clean, killed = conditions.kept / "clean", conditions.kept / "killed"
    figures = {}
    if not killed.exists():
        fill(broker, killed, conditions.scaled(partitions), [batch] * batches, conditions)
        subprocess.run(["cp", "-a", "--sparse=always", str(killed), str(clean)], check=True)  # indexes are mostly holes
        with broker.start(clean):
            pass
    began_at = perf_counter()
    with broker.start(clean) as server:
        broker.wire.first_question(server.address)
        figures["clean_s"], figures["cpu_s"] = perf_counter() - began_at, processor_seconds(server.pids)
        began_at = perf_counter()
    figures["stop_s"] = perf_counter() - began_at
    began_at = perf_counter()
    with killed_in_the_end(broker, killed) as server:
        broker.wire.first_question(server.address)
        figures["killed_s"], figures["killed_cpu_s"] = perf_counter() - began_at, processor_seconds(server.pids)
    size, seconds = crc_pass(killed)
    share = seconds / max(figures["killed_s"] - figures["clean_s"], seconds / 100)
    times = figures["killed_s"] / figures["clean_s"]
    return figures | {"killed_to_clean": times, "scanned_mb": size / 1e6, "crc_s": seconds, "share_of_crc_speed": share}


def restart_clean(broker: Broker, conditions: Conditions, *, partitions: int, batch: bytes, batches: int) -> Figures:
    """Return the seconds of a clean shutdown, and to the first reply after it, also of processor time."""
    directory = conditions.kept / broker.name.replace(" ", "-")
    if not directory.exists():
        directory.mkdir()
        with broker.start(directory) as server:
            append(broker, server, conditions.scaled(partitions), [batch] * batches, conditions)
    began_at = perf_counter()
    with broker.start(directory) as server:
        broker.wire.first_question(server.address)
        clean_s, cpu_s = perf_counter() - began_at, processor_seconds(server.pids)
        began_at = perf_counter()
    return {"clean_s": clean_s, "stop_s": perf_counter() - began_at, "cpu_s": cpu_s}


def fill(broker: Broker, directory: Path, partitions: int, batches: list[bytes], conditions: Conditions) -> None:
    """Append the same batches to all partitions of a topic, and kill the broker."""
    directory.mkdir()
    with killed_in_the_end(broker, directory) as server:
        append(broker, server, partitions, batches, conditions)


def append(broker: Broker, server: Running, partitions: int, batches: list[bytes], conditions: Conditions) -> None:
    """Append the same batches to all partitions of a new topic."""
    broker.wire.create_topic(server.address, TOPIC, partitions, {})
    broker.drive(server, broker.each_partition(TOPIC, partitions, CONNECTIONS, batches), conditions)


@contextmanager
def killed_in_the_end(broker: Broker, directory: Path) -> Iterator[Running]:
    """Kill the broker at the end of the block."""
    with broker.start(directory) as server:
        yield server
        os.kill(server.pid, signal.SIGKILL)


def crc_pass(directory: Path) -> tuple[int, float]:
    """Read every log of the topic and compute its CRC; return (bytes, seconds)."""
    size, began_at = 0, perf_counter()
    for path in directory.glob(f"{TOPIC}-*/*.log"):
        crc = 0
        with path.open("rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                crc = crc32c(piece, crc)
                size += len(piece)
    return size, perf_counter() - began_at
