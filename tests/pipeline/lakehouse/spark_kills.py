"""Kill writers of a table that run on Spark, then see that each record is in the table once.

    python -m tests.pipeline.lakehouse.spark_kills --kills 30 --seed 7 [--kind delta|iceberg] [--writer job|stream]

A writer is the job `warmlog pipeline table --engine spark`, or a stream of Spark with a `TableSink`. Each round appends
records, starts a writer, waits for its first new file, and after a random time kills with kill -9 its driver with all
of its processes, its JVM, or the Python workers, whose tasks Spark then repeats.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

from tests.pipeline.lakehouse.kills import PARTITIONS, RECORDS, audit, finish, rows_in
from tests.pipeline.lakehouse.tables import KINDS, Kind, arguments_of, catalog_of
from warmlog.client.blocking import Client
from warmlog.testing import Broker

Writer: TypeAlias = Literal["job", "stream"]
Victim: TypeAlias = Literal["driver", "jvm", "workers"]
WRITERS: tuple[Writer, ...] = ("job", "stream")
VICTIMS: tuple[Victim, ...] = ("driver", "jvm", "workers")

MASTER = "local[2,4]"  # a task may fail three times
SMALL = {"maxOffsetsPerTrigger": "2000", "maxSplitBytes": "5000"}
FIRST_FILE_S = 120.0
LONGEST_S = 3.0

STREAM = """
import sys
from pyspark.sql import SparkSession
from warmlog.pipeline import register
from warmlog.pipeline.lakehouse.stream import TableSink

master, path, checkpoint, target, catalog, warehouse, *options = sys.argv[1:]
spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
register(spark)
records = spark.readStream.format("warmlog").option("path", path).option("topic", "orders")
for option in options:
    records = records.option(*option.split("="))
sink = TableSink(target, catalog=catalog or None, warehouse=warehouse or None)
records = records.options(startingOffsets="earliest", includeHeaders="true", isolationLevel="read_committed").load()
records.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).start().awaitTermination()
"""


def start(broker: Broker, directory: Path, kind: Kind, writer: Writer, *more: str) -> subprocess.Popen[bytes]:
    """Start a writer that makes commits of few rows, in a session of its own. `more`: options of a job."""
    options = [f"{name}={value}" for name, value in SMALL.items()]
    if writer == "job":
        command = ["-m", "warmlog", "pipeline", "table", "orders", *arguments_of(directory, kind)]
        command += ["--path", str(broker.data_dir), "--every", "20ms", "--engine", "spark", "--master", MASTER, *more]
        command += [part for option in options for part in ("-o", option)]
    else:
        where = catalog_of(directory) if kind == "iceberg" else {"catalog": "", "warehouse": ""}
        target = arguments_of(directory, kind)[0]
        command = ["-c", STREAM, MASTER, str(broker.data_dir), str(directory / "checkpoint"), target]
        command += [where["catalog"], where["warehouse"], *options]
    return subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def processes(writer: subprocess.Popen[bytes]) -> dict[int, Victim]:
    """Return the processes of a writer's session by what they are."""
    kinds: dict[int, Victim] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            if os.getsid(pid) == writer.pid:
                line = entry.joinpath("cmdline").read_bytes()
                kinds[pid] = "workers" if b"pyspark.daemon" in line else "jvm" if b"java" in line else "driver"
    return kinds


def kill(writer: subprocess.Popen[bytes], victim: Victim) -> None:
    """Kill what is named; with the driver, all processes of its session."""
    for pid, kind in processes(writer).items():
        if victim in ("driver", kind):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_for_file(directory: Path, before: int, writer: subprocess.Popen[bytes]) -> None:
    """Return when there are more data files than before."""
    end = time.monotonic() + FIRST_FILE_S
    while len(list(directory.rglob("*.parquet"))) <= before:
        assert writer.poll() is None, "the writer has ended"
        assert time.monotonic() < end, "the writer has written nothing"
        time.sleep(0.05)


def rounds(
    broker: Broker, directory: Path, kind: Kind, writer: Writer, kills: int, chance: random.Random
) -> Iterator[tuple[Victim, int]]:
    """Run and kill writers; yield what was killed and the number of rows in the table after each round."""
    with Client(broker.native) as client:
        client.create_topic("orders", partitions=PARTITIONS, configs={"segment.bytes": "1048576"})
        for _ in range(kills):
            for partition in range(PARTITIONS):
                client.produce_many("orders", [b"%d" % at for at in range(RECORDS)], partition=partition)
            before = len(list(directory.rglob("*.parquet")))
            running = start(broker, directory, kind, writer)
            victim = chance.choice(VICTIMS)
            try:
                wait_for_file(directory, before, running)
                time.sleep(chance.uniform(0.0, LONGEST_S))
                kill(running, victim)
                time.sleep(chance.uniform(0.0, LONGEST_S) if victim == "workers" else 0.0)
            finally:
                kill(running, "driver")
                running.wait()
            yield victim, rows_in(directory, kind)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; 1 if a record is missing or doubled, or the audit says so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kind", choices=KINDS, default=None)
    parser.add_argument("--writer", choices=WRITERS, default=None)
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}")
    wrong = 0
    pairs = [
        (kind, writer)
        for kind in KINDS
        for writer in WRITERS
        if given.kind in (None, kind) and given.writer in (None, writer)
    ]
    for kind, writer in pairs:
        with tempfile.TemporaryDirectory() as name, Broker(data_dir=Path(name, "data")) as broker:
            chance = random.Random(seed)
            for victim, rows in rounds(broker, Path(name), kind, writer, given.kills // len(pairs), chance):
                print(f"{kind}, {writer}: killed {victim}, {rows:,} rows", flush=True)
            faults = finish(broker, Path(name), kind)
            wrong += audit(broker, Path(name), kind) + len(faults)
            print(f"{kind}, {writer}: {rows_in(Path(name), kind):,} rows, missing or doubled: {faults[:10] or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
