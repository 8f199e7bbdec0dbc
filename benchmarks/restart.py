"""How soon a broker serves again: after a clean stop, and after it was killed with records that were never synced.

Owns: the two data directories, and the pass over the logs that stands for the machine's own limit. Must not know: what
is wanted of anyone.

A killed broker's directory stays as it is over all rounds: nothing is appended, and the broker is killed again before
it writes down how far it has synced.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from crc32c import crc32c

from benchmarks.contestants import Broker, Running
from benchmarks.harness import Conditions, Figures

CONNECTIONS = 50
PIECE_BYTES = 1 << 18
TOPIC = "logs"


def restart(broker: Broker, conditions: Conditions, *, partitions: int, batch: bytes, batches: int) -> Figures:
    """Seconds to the first reply after a clean stop and after a kill, and a CRC pass over the same bytes."""
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
        figures["clean_s"] = perf_counter() - began_at
        began_at = perf_counter()
    figures["stop_s"] = perf_counter() - began_at
    began_at = perf_counter()
    with killed_in_the_end(broker, killed) as server:
        broker.wire.first_question(server.address)
        figures["killed_s"] = perf_counter() - began_at
    size, seconds = crc_pass(killed)
    share = seconds / max(figures["killed_s"] - figures["clean_s"], seconds / 100)
    times = figures["killed_s"] / figures["clean_s"]
    return figures | {"killed_to_clean": times, "scanned_mb": size / 1e6, "crc_s": seconds, "share_of_crc_speed": share}


def restart_clean(broker: Broker, conditions: Conditions, *, partitions: int, batch: bytes, batches: int) -> Figures:
    """Seconds to the first reply after a clean stop, and those of the stop."""
    directory = conditions.kept / broker.name.replace(" ", "-")
    if not directory.exists():
        directory.mkdir()
        with broker.start(directory) as server:
            append(broker, server, conditions.scaled(partitions), [batch] * batches, conditions)
    began_at = perf_counter()
    with broker.start(directory) as server:
        broker.wire.first_question(server.address)
        clean_s = perf_counter() - began_at
        began_at = perf_counter()
    return {"clean_s": clean_s, "stop_s": perf_counter() - began_at}


def fill(broker: Broker, directory: Path, partitions: int, batches: list[bytes], conditions: Conditions) -> None:
    """Append the same batches to all partitions of a topic, and kill the broker."""
    directory.mkdir()
    with killed_in_the_end(broker, directory) as server:
        append(broker, server, partitions, batches, conditions)


def append(broker: Broker, server: Running, partitions: int, batches: list[bytes], conditions: Conditions) -> None:
    """The same batches to all partitions of a new topic."""
    broker.wire.create_topic(server.address, TOPIC, partitions, {})
    broker.drive(server, broker.each_partition(TOPIC, partitions, CONNECTIONS, batches), conditions)


@contextmanager
def killed_in_the_end(broker: Broker, directory: Path) -> Iterator[Running]:
    """A broker that gets no time to stop."""
    with broker.start(directory) as server:
        yield server
        os.kill(server.pid, signal.SIGKILL)


def crc_pass(directory: Path) -> tuple[int, float]:
    """(bytes, seconds) of reading every log of the topic in pieces and taking their CRC, one after the other."""
    size, began_at = 0, perf_counter()
    for path in directory.glob(f"{TOPIC}-*/*.log"):
        crc = 0
        with path.open("rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                crc = crc32c(piece, crc)
                size += len(piece)
    return size, perf_counter() - began_at
