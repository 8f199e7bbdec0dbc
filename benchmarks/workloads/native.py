"""The table of workloads, with their targets.

Small batches have one record of 100 bytes; large ones 1,000 records of 1,000 bytes, a little above 1 MB; stored ones
have 16 KB, as a Java producer with default settings sends. Only `produce-synced` uses fsync.
"""

from pathlib import Path
from time import perf_counter, sleep, time
from typing import Any

from benchmarks.harness import Conditions, Figures, Target, Workload
from benchmarks.load.processor_time import processor_seconds
from benchmarks.servers.contestants import (
    CLIENTS,
    ECHO,
    WARMLOG,
    AppendLoop,
    Broker,
    Fetch,
    Produce,
    SendfileLoop,
    SyncedProducers,
    SyncLoop,
)
from benchmarks.servers.restart import restart
from warmlog.protocol.records.builder import build_batch

PARTITIONS = 1_000
CONNECTIONS = 200
RECORDS = 1_000_000
SEGMENTS = 10
SEGMENT_MS = 1_000
BASE_TIMESTAMP_MS = int(time() * 1000) - 3_600_000  # brokers refuse the future and delete the distant past
ALONE = "a sync each"  # a single producer, whose requests cannot share an fsync
SETTLE_S = 1.0  # after its first reply, a broker may still have some work


def batch_of(records: int, size: int, timestamp_ms: int = BASE_TIMESTAMP_MS) -> bytes:
    """Return a batch of records without keys, with values of `size` bytes."""
    return build_batch([(timestamp_ms, None, b"x" * size, ())] * records)


SMALL = batch_of(1, 100)
LARGE = batch_of(1_000, 1_000)
STORED_RECORDS = 160
STORED = batch_of(STORED_RECORDS, 100)
RESTART_BATCHES = 57  # one megabyte


def producing(name: str, title: str, load: Produce, against: Any, target: Target, *figures: str) -> Workload[Any]:
    """Return a workload in which brokers and a reference append the same batch."""
    return Workload(
        name=name,
        title=title,
        figures=figures,
        contestants=(WARMLOG, against),
        measure=lambda contestant, conditions: contestant.produce(load, conditions),
        targets=(target,),
    )


def fetching(name: str, title: str, connections: int, target: Target) -> Workload[Any]:
    """Return a workload that reads slices from the page cache. The next request is always waiting."""
    load = Fetch(connections=connections, depth=2, batch=STORED, records=STORED_RECORDS)
    return Workload(
        name=name,
        title=title,
        figures=("mb_per_s",),
        contestants=(WARMLOG, SendfileLoop()),
        measure=lambda contestant, conditions: contestant.fetch(load, conditions),
        targets=(target,),
    )


def first_appends(broker: Broker, conditions: Conditions) -> Figures:
    """Measure the first append to each of 1,000 new partitions, with one in flight on each of 200 connections."""
    return broker.first_appends(conditions.scaled(PARTITIONS), CONNECTIONS, SMALL, conditions)


def start_up(broker: Broker, conditions: Conditions) -> Figures:
    """Measure seconds to the first reply, and resident memory then: empty, and with 1,000 partitions.

    `cpu_s` is the processor time until the first reply, with 1,000 partitions.
    """
    partitions = conditions.scaled(PARTITIONS)
    full = conditions.kept / "full"
    if not full.exists():
        full.mkdir()
        fill(broker, full, partitions, conditions)
    empty_s, _, empty_bytes = first_reply(broker, conditions.directory)
    full_s, full_cpu_s, full_bytes = first_reply(broker, full)
    return {
        "first_reply_s": empty_s,
        "first_reply_full_s": full_s,
        "cpu_s": full_cpu_s,
        "idle_mb": empty_bytes / 1e6,
        "partition_kb": (full_bytes - empty_bytes) / partitions / 1e3,
    }


def fill(broker: Broker, directory: Path, partitions: int, conditions: Conditions) -> None:
    """Create partitions of ten segments. The time of each batch is too late for the previous one's segment."""
    batches = [batch_of(1, 100, BASE_TIMESTAMP_MS + 10 * SEGMENT_MS * number) for number in range(SEGMENTS)]
    with broker.start(directory) as server:
        broker.wire.create_topic(server.address, "full", partitions, {"segment.ms": str(SEGMENT_MS)})
        broker.drive(server, broker.each_partition("full", partitions, CONNECTIONS, batches), conditions)


def first_reply(broker: Broker, directory: Path) -> tuple[float, float, int]:
    """Return seconds and seconds of processor time to the first reply of a start, and resident bytes a little later."""
    began_at = perf_counter()
    with broker.start(directory) as server:
        broker.wire.first_question(server.address)
        elapsed_s, cpu_s = perf_counter() - began_at, processor_seconds(server.pids)
        sleep(SETTLE_S)
        return elapsed_s, cpu_s, resident_bytes(server.pid)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, including shared memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(kib) << 10


WORKLOADS: tuple[Workload[Any], ...] = (
    producing(
        "produce-1x16",
        "small batches, 1 connection, 16 in flight",
        Produce(connections=1, depth=16, batch=SMALL),
        ECHO,
        Target(figure="requests_per_s", against=ECHO.name, at_least=0.25),
        "requests_per_s",
    ),
    producing(
        "produce-1x1",
        "small batches, 1 connection, 1 in flight",
        Produce(connections=1, depth=1, batch=SMALL),
        ECHO,
        Target(figure="p50_ms", against=ECHO.name, at_most=2.5),
        "requests_per_s",
        "p50_ms",
        "p99_ms",
    ),
    producing(
        "produce-32x4",
        "small batches, 32 connections, 4 in flight",
        Produce(connections=32, depth=4, batch=SMALL),
        ECHO,
        Target(figure="requests_per_s", against=ECHO.name, at_least=0.2),
        "requests_per_s",
    ),
    producing(
        "produce-large",
        "large batches, 4 connections, 4 in flight",
        Produce(connections=4, depth=4, batch=LARGE),
        AppendLoop(),
        Target(figure="mb_per_s", against=AppendLoop().name, at_least=0.75),
        "mb_per_s",
    ),
    Workload(
        name="produce-synced",
        title="small batches, 32 producers of one partition, each append synced before its reply",
        figures=("requests_per_s", "p50_ms", "p99_ms"),
        contestants=(
            SyncedProducers(name="warmlog", broker=WARMLOG, producers=32),
            SyncedProducers(name=ALONE, broker=WARMLOG, producers=1),
            SyncLoop(),
        ),
        measure=lambda contestant, conditions: contestant.produce(SMALL, conditions),
        targets=(Target(figure="requests_per_s", against=ALONE, at_least=5),),
    ),
    fetching(
        "fetch-1",
        "1 MiB slices from memory, 1 connection",
        1,
        Target(figure="mb_per_s", against=SendfileLoop().name, at_least=0.9),
    ),
    fetching(
        "fetch-4",
        "1 MiB slices from memory, 4 connections",
        4,
        Target(figure="mb_per_s", against=SendfileLoop().name, at_least=0.6),
    ),
    Workload(
        name="first-appends",
        title="first append to each of 1,000 fresh partitions, 200 connections",
        figures=("requests_per_s",),
        contestants=(WARMLOG,),
        measure=first_appends,
        targets=(Target(figure="requests_per_s", at_least=5_000),),
    ),
    Workload(
        name="client-produce",
        title="the Python client produces a million records of 100 bytes",
        figures=("records_per_s",),
        contestants=CLIENTS,
        measure=lambda client, conditions: client.produce(conditions.scaled(RECORDS), 100, conditions),
        targets=(Target(figure="records_per_s", at_least=300_000),),
    ),
    Workload(
        name="client-consume",
        title="the Python client consumes a million records of 100 bytes",
        figures=("records_per_s",),
        contestants=CLIENTS,
        measure=lambda client, conditions: client.consume(
            STORED, STORED_RECORDS, conditions.scaled(RECORDS), 100, conditions
        ),
        targets=(Target(figure="records_per_s", at_least=500_000),),
    ),
    Workload(
        name="start",
        title="start-up and memory; full: 1,000 partitions of 10 clean segments",
        figures=("first_reply_s", "first_reply_full_s", "idle_mb", "partition_kb"),
        contestants=(WARMLOG,),
        measure=start_up,
        targets=(
            Target(figure="first_reply_s", at_most=0.5),
            Target(figure="first_reply_full_s", at_most=1.5),
            Target(figure="idle_mb", at_most=60),
            Target(figure="partition_kb", at_most=60),
        ),
    ),
    Workload(
        name="restart",
        title="restart with 1,000 partitions of 1 MB: after a clean stop, and killed with nothing synced",
        figures=("clean_s", "stop_s", "killed_s", "killed_to_clean", "share_of_crc_speed"),
        contestants=(WARMLOG,),
        measure=lambda broker, conditions: restart(
            broker, conditions, partitions=PARTITIONS, batch=STORED, batches=RESTART_BATCHES
        ),
        targets=(Target(figure="killed_to_clean", at_most=3),),
    ),
)
