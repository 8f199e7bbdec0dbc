"""docs/pipeline/connect.md: its programs run as written on a server of Spark Connect, and say what is shown."""

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import deltalake
import pyspark
import pytest

from interop.ports import free_ports
from tests.pipeline.lakehouse.tables import KINDS, catalog_of
from tests.pipeline.lakehouse.upserts.test_upsert_audit import audit
from tests.pipeline.lakehouse.upserts.test_upserts import random_pairs
from tests.pipeline.lakehouse.upserts.test_upserts_elsewhere import changes_in
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, model_in
from tests.pipeline.recipes.pages import PATIENCE_S, block, changed, environment, run
from warmlog.client.blocking import Client
from warmlog.testing import Broker

pytestmark = pytest.mark.interop  # starts a Spark of its own

COUNT = 3000
REGISTERING = """
from pyspark.sql import SparkSession

from warmlog.pipeline import register

register(SparkSession.active())
"""
UPSERTS = """
import json
import sys

tables, source, checkpoints = map(json.loads, sys.argv[1:])
for name, arguments in tables.items():
    stream = spark.readStream.format("warmlog").options(**source).load()
    for _ in range(2):
        query = stream.writeStream.foreachBatch(TableSink(**arguments, upsert=True)).trigger(availableNow=True)
        query.start(checkpointLocation=f"{checkpoints}/{name}").awaitTermination()
    try:
        query = stream.writeStream.foreachBatch(TableSink(**arguments)).trigger(availableNow=True)
        query.start(checkpointLocation=f"{checkpoints}/appended-{name}").awaitTermination()
    except Exception as error:
        print(error)
"""
has_pipelines = pytest.mark.skipif(find_spec("pyspark.pipelines") is None, reason="spark-pipelines came with Spark 4.1")


class Server:
    """A broker with the topic of the pages, and a server of Spark Connect in another process."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self.directory = directory
        self.port = free_ports(1)[0]
        self.count = 0  # of readings

    def text(self, title: str) -> str:
        """A block of the page for this server and its directories."""
        addresses = {"127.0.0.1:9091": self.broker.native, "15002": str(self.port), "/srv": str(self.directory)}
        text = block("connect", title)
        return changed(text, {name: new for name, new in addresses.items() if name in text})

    def run(self, name: str, program: str, *arguments: str) -> str:
        """Run a Python program."""
        (self.directory / name).write_text(program)
        return run(["python", name, *arguments], self.directory)

    def produce(self, count: int) -> None:
        """Produce the next readings of three sensors, one to each partition in turn."""
        first = self.count + 1
        self.count += count
        rows = [(at % 3, b"sensor-%d" % (at % 3), b"%d" % (at * 7919 % 100)) for at in range(first, first + count)]
        with Client(self.broker.native) as client:
            for partition in range(3):
                client.produce_many("readings", [row[1:] for row in rows if row[0] == partition], partition=partition)


@pytest.fixture(scope="module")
def server(can_run_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("connect")
    with Broker(data_dir=directory / "data") as broker, (directory / "server.log").open("w") as log:
        with Client(broker.native) as client:
            client.create_topic("readings", partitions=3)
        made = Server(broker, directory)
        made.produce(COUNT)
        command = changed(made.text("sh server"), {"local[*]": "local[2]", "spark-submit ": "exec spark-submit "})
        process = subprocess.Popen(
            ["sh", "-c", command], env=environment(), cwd=directory, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield made
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)


def test_the_program_reads_streams_and_writes_as_shown(server: Server) -> None:
    shown = block("connect", "text").replace(str(COUNT), str(server.count))
    assert server.run("connect.py", server.text("python connect.py")) == shown
    assert deltalake.DeltaTable(server.directory / "lake" / "connect").to_pyarrow_table().num_rows == server.count


def test_errors_of_the_source_and_of_the_table_reach_the_client(server: Server) -> None:
    program = server.text("python connect.py")
    begin = program.split("print(")[0]
    wrong = f"{begin}try:\n    spark.read.format('warmlog').options(topix='t').load().count()\n"
    wrong += "except Exception as error:\n    print(error)\n"
    assert "PipelineError: no option 'topix' of a read; did you mean topic?" in server.run("options.py", wrong)
    stream = program.split("print(")[1].split("\n", 1)[1].split("broker = ")[0]
    priced = changed(stream, {".load()": ".load().selectExpr('*', '1 AS price')", "lake/connect": "lake/refused"})
    indented = "".join(f"    {line}\n" for line in priced.splitlines() if line)
    failing = f"{begin}try:\n{indented}except Exception as error:\n    print(error)\n"
    assert "columns that the source does not have: price" in server.run("refused.py", failing)


def test_the_library_of_clients_has_no_core_and_is_enough(server: Server) -> None:
    """As with pyspark-client, which has neither a JVM nor SparkContext."""
    read = server.text("python connect.py").split("\nstream = ")[0]
    program = f"import sys\n\nsys.modules['pyspark.core'] = None\n{read}\nprint(spark.version)\n"
    assert server.run("client.py", program).splitlines() == [f"files: {server.count}", pyspark.__version__]


def test_tables_have_the_newest_record_of_each_key_though_spark_repeats_a_micro_batch(server: Server) -> None:
    """Spark has not noted that the micro-batch was done, and the log has grown since."""
    directory, chance = server.directory / "upserts", random.Random(1)
    writer = KeyedWriter(directory / "data")
    tables = {
        "delta": {"target": f"{directory}/delta"},
        "iceberg": {"target": "db.orders", **catalog_of(directory)},
    }
    source = {"path": f"{directory}/data", "topic": "orders", "startingOffsets": "earliest", "includeHeaders": "true"}
    arguments = [json.dumps(each) for each in (tables, source, f"{directory}/checkpoints")]
    program = server.text("python connect.py").split("source = ")[0] + UPSERTS
    for _ in range(2):
        writer.add(*random_pairs(chance, 200, 60))
        refusals = server.run("upserts.py", program, *arguments)
        for kind in KINDS:
            reason = "has one row for each key: write to it with TableSink(..., upsert=True)"
            assert f"{tables[kind]['target']} {reason}" in refusals
            assert model_in(directory, kind) == writer.model
            assert audit(directory, kind, writer).findings == []
            for name in ("0", ".0.crc"):
                (directory / "checkpoints" / kind / "commits" / name).unlink()
    assert changes_in(directory) == []


@has_pipelines
def test_a_pipeline_reads_what_is_new_from_directories_and_then_from_the_broker(server: Server) -> None:
    directory = server.directory / "pipeline" / "definitions"
    directory.mkdir(parents=True)
    (directory.parent / "spark-pipeline.yml").write_text(server.text("yaml"))
    definitions = server.text("python readings.py")
    command = ["sh", "-euc", server.text("sh pipeline")]
    (directory / "readings.py").write_text(definitions)
    assert "Run is COMPLETED" in run(command, server.directory)
    server.produce(600)
    wire = {f'"path": "{server.directory}/data"': f'"bootstrap": "{server.broker.native}"'}
    (directory / "readings.py").write_text(changed(definitions, wire))
    assert "Run is COMPLETED" in run(command, server.directory)
    check_tables(server)


def check_tables(server: Server) -> None:
    """Compare the pipeline's tables and its topic with the readings."""
    count = server.count
    query = "for row in spark.sql('SELECT * FROM averages ORDER BY sensor').collect(): print(*row)\n"
    query += "print(spark.table('readings').select('partition', 'offset').distinct().count())\n"
    query += "print(spark.table('readings').count())\n"
    begin = server.text("python connect.py").split("register(spark)")[0]
    values = {sensor: [at * 7919 % 100 for at in range(1, count + 1) if at % 3 == sensor] for sensor in range(3)}
    averages = [f"sensor-{sensor} {sum(listed) / len(listed)}" for sensor, listed in values.items()]
    assert server.run("query.py", begin + query).splitlines() == [*averages, str(count), str(count)]
    with Client(server.broker.native) as client:
        records = client.consume("high", start="beginning", until_end=True)
        high = sorted(int(record.value or b"") for record in records)
    assert high == sorted(value for listed in values.values() for value in listed if value > 90)


@has_pipelines
def test_definitions_that_register_the_source_are_told_not_to(server: Server) -> None:
    directory = server.directory / "registering" / "definitions"
    directory.mkdir(parents=True)
    spec = changed(server.text("yaml"), {"lake/pipeline": "lake/registering"})
    (directory.parent / "spark-pipeline.yml").write_text(spec)
    (directory / "readings.py").write_text(REGISTERING)
    command = changed(server.text("sh pipeline"), {"--spec pipeline": "--spec registering"})
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=server.directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode != 0
    assert "PipelineError: a declarative pipeline ends with an error" in done.stdout
