"""`python -m benchmarks.questions.spark`: compare the pipeline with Spark's Kafka connector, on the same records.

Kafka has the records. The pipeline reads Kafka's directory, and, over the network, a warmlog broker that serves a copy
of it. All contestants are measured one after the other in every round, in one session of two cores, so that other load
affects all of them; only ratios within a round are meaningful.

    python -m benchmarks.questions.spark --data DIR --prepare             once: Kafka writes the records, 1 GB
    python -m benchmarks.questions.spark --data DIR --only reads          a round, added to DIR/rounds.jsonl
    python -m benchmarks.questions.spark --data DIR --report              the table of all rounds so far

Needs Java, Maven and the extra `spark`. Each group of contestants (`--only`) takes about a minute.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.load.generator import ROOT
from benchmarks.servers.kafka import JVM_OPTIONS, SETTINGS
from interop.kafka_node import KafkaNode, build
from interop.spark_connector import connector_jars

RECORDS = 4_000_000
RECORD_BYTES = 100
PARTITIONS = 4
SPREAD, BIG = "spread", "big"  # topics: of four partitions, and of one
CONNECTOR = "4.2.0"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
ROUNDS_FILE = "rounds.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The data and servers that the contestants use."""

    spark: Any
    kafka: KafkaNode
    native: str
    data: Path
    scratch: Path


Contestant = Callable[[Bench], object]


def main() -> int:
    """Prepare, measure a round, or report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.questions.spark", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="directory of the records")
    parser.add_argument("--prepare", action="store_true", help="let Kafka write the records")
    parser.add_argument("--only", choices=GROUPS, action="append", help="which contestants (all)")
    parser.add_argument("--rounds", type=int, default=1, help="number of rounds (1)")
    parser.add_argument("--report", action="store_true", help="print the table of all rounds so far")
    chosen = parser.parse_args()
    if chosen.prepare:
        prepare(chosen.data)
    elif chosen.report:
        print(table([json.loads(line) for line in (chosen.data / ROUNDS_FILE).read_text().splitlines()]))
    else:
        with bench(chosen.data) as made:
            for group in chosen.only or GROUPS:
                for _ in range(chosen.rounds):
                    measure(made, group)
    return 0


# -- the records --


def prepare(data: Path) -> None:
    """Fill Kafka's directory, and copy its partitions for a warmlog broker."""
    from warmlog.client.blocking import Client
    from warmlog.testing import Broker

    data.mkdir(parents=True)
    with KafkaNode(data / "kafka", jvm_options=JVM_OPTIONS, settings=SETTINGS) as node:
        for topic, partitions in ((SPREAD, PARTITIONS), (BIG, 1)):
            fill(node, topic, partitions)
    with Broker(data_dir=data / "warmlog") as broker, Client(broker.native) as client:
        for topic, partitions in ((SPREAD, PARTITIONS), (BIG, 1)):
            client.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})
    for directory in (*(data / "kafka").glob(f"{SPREAD}-*"), *(data / "kafka").glob(f"{BIG}-*")):
        for file in directory.iterdir():
            if file.name != "partition.metadata":
                shutil.copy(file, data / "warmlog" / directory.name / file.name)


def fill(node: KafkaNode, topic: str, partitions: int) -> None:
    """Produce the records with Kafka's own tool."""
    classes = build()
    create = [
        "kafka-topics",
        "--create",
        "--topic",
        topic,
        "--partitions",
        str(partitions),
        "--replication-factor",
        "1",
    ]
    run_tool("org.apache.kafka.tools.TopicCommand", classes, *create[1:], "--bootstrap-server", node.bootstrap)
    settings = (f"bootstrap.servers={node.bootstrap}", "acks=1", "batch.size=65536", "linger.ms=20")
    size = ("--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES), "--throughput", "-1")
    run_tool(PERFORMANCE, classes, "--topic", topic, *size, "--producer-props", *settings)


def run_tool(main_class: str, classes: str, *arguments: str) -> None:
    """Run a tool of Kafka to completion."""
    command = ["java", "-Xmx512m", "-cp", classes, main_class, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


# -- the environment of the contestants --


@contextmanager
def bench(data: Path) -> Iterator[Bench]:
    """Start both brokers and a warmed-up session."""
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaNode(data / "kafka", jvm_options=JVM_OPTIONS, settings=SETTINGS))
        native = stack.enter_context(serving(data / "warmlog"))
        scratch = data / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        spark = session(scratch)
        stack.callback(spark.stop)
        yield Bench(spark=spark, kafka=kafka, native=native, data=data, scratch=scratch)


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Start a warmlog broker in its own process; yield its native address."""
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(directory)]
    addresses = ("--kafka", "none", "--http", "none", "--native", "127.0.0.1:0")
    with subprocess.Popen([*command, *addresses], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        ready = next(line for line in process.stdout if line.startswith("ready "))
        yield dict(part.split("=") for part in ready.split()[1:])["native"]
        process.terminate()


def session(scratch: Path) -> Any:
    """Start Spark on two cores with the connector and the pipeline."""
    from pyspark.sql import SparkSession

    from warmlog.pipeline import register

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)  # workers also run this checkout
    builder = SparkSession.builder.master("local[2]").config("spark.jars", connector_jars(CONNECTOR))
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(scratch),
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    register(made)
    made.dataSource.register(ceiling_source())
    return made


def ceiling_source() -> type:
    """Return a source of prepared Arrow batches with the same number of rows: the limit of any Python source."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from warmlog.pipeline.data_source import SPARK_TYPES
    from warmlog.pipeline.source.arrow import arrow_schema
    from warmlog.pipeline.source.options import COLUMNS

    rows = 1 << 14

    class CeilingReader(DataSourceReader):
        def __init__(self, tasks: int) -> None:
            self._tasks = tasks

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(at) for at in range(self._tasks)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            values = [bytes(RECORD_BYTES)] * rows
            columns: dict[str, list[Any]] = {
                "key": [None] * rows,
                "value": values,
                "topic": [SPREAD] * rows,
                "partition": [partition.value] * rows,
                "offset": list(range(rows)),
                "timestamp": [0] * rows,
                "timestampType": [0] * rows,
            }
            batch = pa.RecordBatch.from_pydict(columns, schema=arrow_schema(COLUMNS[:-1]))
            left = RECORDS // self._tasks
            while left:
                yield batch.slice(0, min(left, rows))
                left -= min(left, rows)

    class Ceiling(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ceiling"

        def schema(self) -> str:
            return ", ".join(f"{name} {SPARK_TYPES[name].simpleString()}" for name in COLUMNS[:-1])

        def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
            return CeilingReader(int(self.options["tasks"]))

    return Ceiling


# -- the contestants --


def connector(made: Bench, topic: str = SPREAD) -> Any:
    """Return the frame of a Kafka topic, read by Spark's connector."""
    reader = made.spark.read.format("kafka").option("kafka.bootstrap.servers", made.kafka.bootstrap)
    return reader.option("subscribe", topic).load()


def pipeline(made: Bench, topic: str = SPREAD, **options: object) -> Any:
    """Return the frame of Kafka's directory, read by the pipeline."""
    asked = {"path": made.data / "kafka", "topic": topic, **options}
    return made.spark.read.format("warmlog").options(**{name: str(value) for name, value in asked.items()}).load()


def wire(made: Bench) -> Any:
    """Return the frame of a warmlog broker's topic, read by the pipeline."""
    return made.spark.read.format("warmlog").options(bootstrap=made.native, topic=SPREAD).load()


def ceiling(made: Bench, tasks: int) -> Any:
    """Return a frame of prepared data from this many tasks."""
    return made.spark.read.format("ceiling").option("tasks", tasks).load()


def nowhere(frame: Any) -> None:
    """Write all rows to Spark's noop sink."""
    frame.write.format("noop").mode("overwrite").save()


def parquet(made: Bench, frame: Any) -> None:
    """Write all rows with Spark's Parquet writer."""
    frame.write.mode("overwrite").parquet(str(made.scratch / "table"))


def copied_table(made: Bench) -> None:
    """Run the job of `warmlog pipeline table` in this session."""
    from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
    from warmlog.pipeline.lakehouse.target import open_table
    from warmlog.pipeline.runner import SparkRunner
    from warmlog.pipeline.source.options import read_options

    shutil.rmtree(made.scratch / "lake", ignore_errors=True)
    options = read_options({"path": str(made.data / "kafka"), "topic": SPREAD})
    settings = TableSettings(compression="snappy")  # as in Spark's writer
    job = TableJob(options, open_table(str(made.scratch / "lake"), options.columns), settings)
    job.create_table()
    rows = sum(receipt.rows for receipt in job.run_until_end(SparkRunner(made.spark)))
    assert rows == RECORDS, rows


def count(made: Bench) -> None:
    """Run the job of `warmlog pipeline count` in this session."""
    from warmlog.pipeline.job_stats import Reporter
    from warmlog.pipeline.jobs.count import count_records
    from warmlog.pipeline.runner import SparkRunner
    from warmlog.pipeline.source.options import read_options

    options = read_options({"path": str(made.data / "kafka"), "topic": SPREAD})
    found = count_records(SparkRunner(made.spark), options, Reporter("count"))
    assert sum(each.records for each in found) == RECORDS


def connector_count(made: Bench) -> None:
    """Count with the connector, which has to fetch everything."""
    assert connector(made).count() == RECORDS


GROUPS: Mapping[str, Mapping[str, Contestant]] = {
    "reads": {
        "connector to no-op": lambda made: nowhere(connector(made)),
        "directories to no-op": lambda made: nowhere(pipeline(made)),
        "ready-made Arrow to no-op": lambda made: nowhere(ceiling(made, PARTITIONS)),
        "wire to no-op": lambda made: nowhere(wire(made)),
    },
    "parquet": {
        "connector to Parquet": lambda made: parquet(made, connector(made)),
        "directories to Parquet": lambda made: parquet(made, pipeline(made)),
        "table": copied_table,
    },
    "count": {"connector count": connector_count, "pipeline count": count},
    "splits": {
        "one partition, 1 split": lambda made: nowhere(pipeline(made, BIG, maxSplitBytes=1 << 40)),
        "one partition, 8 splits": lambda made: nowhere(pipeline(made, BIG, maxSplitBytes=1 << 40, minPartitions=8)),
        "ready-made Arrow, 1 task": lambda made: nowhere(ceiling(made, 1)),
        "ready-made Arrow, 8 tasks": lambda made: nowhere(ceiling(made, 8)),
    },
}
# (contestant, against, at least)
TARGETS = (
    ("directories to no-op", "connector to no-op", 1.8),
    ("directories to no-op", "ready-made Arrow to no-op", 0.8),
    ("wire to no-op", "connector to no-op", 1.5),
    ("directories to Parquet", "connector to Parquet", 1.2),
    ("table", "connector to Parquet", 2.0),
    ("pipeline count", "connector count", 20.0),
    ("one partition, 8 splits", "one partition, 1 split", 1.7),
)


def measure(made: Bench, group: str) -> None:
    """Measure a round of a group after a warm-up of each, and append it to the file of rounds."""
    contestants = GROUPS[group]
    for run in contestants.values():
        run(made)
    seconds = {}
    for name, run in contestants.items():
        began_at = perf_counter()
        run(made)
        seconds[name] = perf_counter() - began_at
    line = {"group": group, "seconds": seconds, "worker_mb": largest_worker_mb()}
    print(json.dumps(line), file=sys.stderr)
    with (made.data / ROUNDS_FILE).open("a") as file:
        file.write(json.dumps(line) + "\n")


def largest_worker_mb() -> float:
    """Return the peak resident memory of the largest Python worker.

    Spark keeps workers running, so it is enough to check at the end, which does not disturb the measurement.
    """
    largest_kb = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            if b"pyspark.daemon" in (status.parent / "cmdline").read_bytes():
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
                largest_kb = max(largest_kb, int(fields["VmHWM"].split()[0]))
    return largest_kb * 1024 / 1e6


# -- the table --


def table(rounds: list[dict[str, Any]]) -> str:
    """Return a table: rows/s of each contestant, and the ratios with targets."""
    lines = ["| | rows/s, median | min to max | rounds |", "|---|---|---|---|"]
    for group, contestants in GROUPS.items():
        for name in contestants:
            speeds = [RECORDS / one["seconds"][name] for one in rounds if one["group"] == group]
            if speeds:
                spread = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
                lines.append(f"| {name} | {median(speeds):,.0f} | {spread} | {len(speeds)} |")
    lines += ["", "| ratio | median | min to max | wanted |", "|---|---|---|---|"]
    for name, against, least in TARGETS:
        found = [one["seconds"] for one in rounds if name in one["seconds"] and against in one["seconds"]]
        ratios = [seconds[against] / seconds[name] for seconds in found]
        if ratios:
            verdict = "yes" if median(ratios) >= least else "NO"
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            lines.append(f"| {name} / {against} | {median(ratios):.2f} | {spread} | ≥ {least:g}: {verdict} |")
    largest = max((one["worker_mb"] for one in rounds), default=0.0)
    return "\n".join([*lines, "", f"The largest worker had {largest:,.0f} MB resident at its peak."])


if __name__ == "__main__":
    sys.exit(main())
