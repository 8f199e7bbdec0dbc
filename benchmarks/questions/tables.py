"""`python -m benchmarks.questions.tables`: copy a topic to Delta and Iceberg tables, here and with Spark's connector.

One warmlog broker has the records. Each contestant copies all of them over the network to a new table: warmlog's job in
this process; the same job on Spark; a stream of Spark's Kafka connector into Delta (delta-spark) and Iceberg
(iceberg-spark-runtime), with `Trigger.AvailableNow` and a checkpoint, which is how the connector gets each record once.
Contestants take turns in each round, after one round that is not counted. Processor time is that of this process, the
JVM and Spark's workers, without the broker; bytes are those of keys and values.

Iceberg's runtime ends at Spark 4.1, so that comes first on the path, as for `make sparks`:

    pip install --no-deps --target build/spark-4.1.4 pyspark==4.1.4
    PYTHONPATH=build/spark-4.1.4 SPARK_HOME=build/spark-4.1.4/pyspark python -m benchmarks.questions.tables --rounds 5

Needs Java, Maven and the extras `spark` and `lakehouse`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.load.generator import ROOT
from interop.spark_connector import connector_jars

TOPIC = "orders"
PARTITIONS = 4
CONNECTOR = "4.1.3"
SPARK = "4.1"
BATCH = 10_000  # records produced at a time
VALUE = '{"id": %d, "customer": "customer-%d", "amount": %d, "state": "shipped", "note": "%s"}'
HADOOP_CATALOG = "hadoop"  # of Spark's Iceberg contestant


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The servers and directories that the contestants use. `spark`: a session of Spark."""

    spark: Any
    kafka: str
    native: str
    broker_pid: int
    scratch: Path
    records: int


Contestant = Callable[[Bench, Path], int]  # copies to a table in a directory, and returns its rows


def main() -> int:
    """Measure the rounds, and print a table of them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.questions.tables", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--records", type=int, default=2_000_000, help="records of the topic (2,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are counted (3)")
    parser.add_argument("--only", choices=CONTESTANTS, action="append", help="which contestants (all)")
    parser.add_argument("--directory", type=Path, help="where data and tables are written (a temporary one)")
    chosen = parser.parse_args()
    names = chosen.only or list(CONTESTANTS)
    with tempfile.TemporaryDirectory(dir=chosen.directory) as directory, ExitStack() as stack:
        kafka, native, pid = stack.enter_context(serving(Path(directory) / "data"))
        size = fill(native, chosen.records)
        spark = session(Path(directory))
        stack.callback(spark.stop)
        bench = Bench(
            spark=spark,
            kafka=kafka,
            native=native,
            broker_pid=pid,
            scratch=Path(directory) / "tables",
            records=chosen.records,
        )
        rounds = [measure(bench, names) for _ in range(chosen.rounds + 1)][1:]
    print(table(rounds, chosen.records, size))
    return 0


# -- the environment of the contestants --


@contextmanager
def serving(data: Path) -> Iterator[tuple[str, str, int]]:
    """Start a warmlog broker in its own process; yield its addresses (Kafka, native) and its pid."""
    addresses = ("--kafka", "127.0.0.1:0", "--http", "none", "--native", "127.0.0.1:0")
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(data), *addresses]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        ready = next(line for line in process.stdout if line.startswith("ready "))
        ports = dict(part.split("=") for part in ready.split()[1:])
        try:
            yield ports["kafka"], ports["native"], process.pid
        finally:
            process.terminate()


def fill(native: str, records: int) -> int:
    """Produce the records; return the bytes of their keys and values."""
    from warmlog.client.blocking import Client

    size = 0
    with Client(native) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS, configs={"retention.ms": "-1", "compression.type": "lz4"})
        for first in range(0, records, BATCH):
            numbers = range(first, min(first + BATCH, records))
            rows = [
                (b"customer-%d" % (at % 9973), (VALUE % (at, at % 9973, at * 7919 % 100_000, "x" * 60)).encode())
                for at in numbers
            ]
            size += sum(len(key) + len(value) for key, value in rows)
            client.produce_many(TOPIC, rows, partition=first // BATCH % PARTITIONS)
    return size


def session(scratch: Path) -> Any:
    """Start Spark on two cores with the connector, Delta and Iceberg. Exits if it is another version."""
    import pyspark
    from pyspark.sql import SparkSession

    from warmlog.pipeline import register

    if not pyspark.__version__.startswith(f"{SPARK}."):
        sys.exit(f"Iceberg's runtime needs Spark {SPARK}, and this is {pyspark.__version__}: see {__spec__.name}")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    extensions = "io.delta.sql.DeltaSparkSessionExtension", "org.apache.iceberg.spark.extensions"
    builder = SparkSession.builder.master("local[2]").config("spark.jars", connector_jars(CONNECTOR, with_tables=True))
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(scratch / "spark"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.log.level": "ERROR",
        "spark.sql.extensions": f"{extensions[0]},{extensions[1]}.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        f"spark.sql.catalog.{HADOOP_CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{HADOOP_CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{HADOOP_CATALOG}.warehouse": str(scratch / "iceberg"),
        # as warmlog writes them
        "spark.sql.parquet.compression.codec": "zstd",
    }.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    register(made)
    return made


# -- the contestants --


def job(bench: Bench, runner: Any, target: str, **where: str) -> int:
    """Run the job of `warmlog pipeline table`, and return the rows of the commits."""
    from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
    from warmlog.pipeline.lakehouse.target import open_table
    from warmlog.pipeline.source.options import read_options

    options = read_options({"bootstrap": bench.native, "topic": TOPIC})
    opened = open_table(target, options.columns, **where)
    opened.create()
    return sum(receipt.rows for receipt in TableJob(options, opened, TableSettings()).run_until_end(runner))


def iceberg(directory: Path) -> dict[str, str]:
    """Return the arguments of a table in an SQL catalog of its own."""
    directory.mkdir(parents=True)
    return {"catalog": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}


def here(bench: Bench, directory: Path, *, is_delta: bool) -> int:
    """Copy in this process."""
    from warmlog.pipeline.runner import LocalRunner

    where = {} if is_delta else iceberg(directory)
    return job(bench, LocalRunner(), str(directory) if is_delta else "db.orders", **where)


def on_spark(bench: Bench, directory: Path, *, is_delta: bool) -> int:
    """Copy with warmlog's tasks on Spark."""
    from warmlog.pipeline.runner import SparkRunner

    where = {} if is_delta else iceberg(directory)
    return job(bench, SparkRunner(bench.spark), str(directory) if is_delta else "db.orders", **where)


def connector(bench: Bench, directory: Path, *, is_delta: bool) -> int:
    """Copy with a stream of Spark's connector."""
    reader = bench.spark.readStream.format("kafka").option("kafka.bootstrap.servers", bench.kafka)
    frame = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
    writer = frame.writeStream.option("checkpointLocation", f"{directory}-checkpoint").trigger(availableNow=True)
    name = f"{HADOOP_CATALOG}.db.{directory.name.replace('-', '_')}"
    if is_delta:
        query = writer.format("delta").start(str(directory))
    else:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields)
        bench.spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg")
        query = writer.format("iceberg").toTable(name)
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


CONTESTANTS: dict[str, Contestant] = {
    f"{how} to {kind}": lambda bench, directory, copy=copy, is_delta=is_delta: copy(bench, directory, is_delta=is_delta)
    for kind, is_delta in (("Delta", True), ("Iceberg", False))
    for how, copy in (("warmlog", here), ("warmlog on Spark", on_spark), ("connector", connector))
}


# -- measuring --


def measure(bench: Bench, names: list[str]) -> dict[str, tuple[float, float]]:
    """Let each contestant copy once; return seconds and processor seconds by name."""
    found = {}
    for name in names:
        shutil.rmtree(bench.scratch, ignore_errors=True)
        bench.scratch.mkdir()
        directory = Path(tempfile.mkdtemp(prefix="table", dir=bench.scratch)) / f"t{os.urandom(6).hex()}"
        cpu_before, began_at = tree_seconds(bench.broker_pid), perf_counter()
        rows = CONTESTANTS[name](bench, directory)
        seconds = perf_counter() - began_at
        found[name] = seconds, tree_seconds(bench.broker_pid) - cpu_before
        assert rows == bench.records, (name, rows)
        print(json.dumps({"contestant": name, "seconds": found[name]}), file=sys.stderr)
    return found


def tree_seconds(without: int) -> float:
    """Return the processor time of this process and its descendants, ended ones included, but for one of them."""
    tick = os.sysconf("SC_CLK_TCK")
    parents, times = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], times[pid] = int(fields[1]), sum(map(int, fields[11:15])) / tick
    total, pending = 0.0, [os.getpid()]
    while pending:
        pid = pending.pop()
        if pid != without:
            total += times.get(pid, 0.0)
            pending += [child for child, parent in parents.items() if parent == pid]
    return total


def table(rounds: list[dict[str, tuple[float, float]]], records: int, size: int) -> str:
    """Return a table of the contestants: rows per second, and processor seconds per GB of keys and values."""
    lines = ["| | rows/s, median | min to max | processor s/GB, median |", "|---|---|---|---|"]
    for name in rounds[0] if rounds else ():
        speeds = [records / one[name][0] for one in rounds]
        costs = [one[name][1] / (size / 1e9) for one in rounds]
        spread = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
        lines.append(f"| {name} | {median(speeds):,.0f} | {spread} | {median(costs):.1f} |")
    return "\n".join([*lines, "", f"{records:,} records, {size / 1e6:,.0f} MB, {len(rounds)} rounds."])


if __name__ == "__main__":
    sys.exit(main())
