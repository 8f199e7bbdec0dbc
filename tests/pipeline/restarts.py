"""Kill streams and start them again with other numbers: tasks, partitions, nodes, directories, versions of Spark.

    python -m tests.pipeline.restarts [--seed N] [--rounds N] [--spark DIR ...]

Each round copies a topic of a cluster (`serve --nodes`) to another topic, by either sink, or to a table of Parquet. The
driver is killed, with a broker now and then, when a random part has arrived, and started again until it ends with the
environment's Spark: before 4.2, a query ends after the micro-batch that it repeats. Then a plain consumer counts the
rows. A sink outside transactions may fail instead where its tasks have changed.

`--spark`: a directory with another version of pyspark (`pip install --target DIR pyspark==...`), to be used in turn.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.documents import ROOT
from tests.warmlog.cli.nodes.running import Running, nodes
from warmlog.client.blocking import Client

PROGRAM = Path(__file__).with_name("restart_stream.py")
KINDS = ("table", "sink", "transactional")
RECORDS = 3000
PARTITIONS = 3
BATCH = 1000  # maxOffsetsPerTrigger
MOST_RUNS = 6
LIMIT_S = 400.0
POLL_S = 0.02
SETTINGS = ("default.replication.factor=2", "offsets.topic.num.partitions=4", "transaction.state.log.num.partitions=4")
GIVEN = tuple(word for setting in SETTINGS for word in ("--set", setting))
NODES, MOST_NODES = 2, 4
MOST_PARTITIONS = 6
# Where the tasks of a sink outside transactions have changed, or may have.
CHANGED = ("match none of its rows now", "more than the")


@dataclass
class Round:
    """One query, from its first start to its end."""

    kind: str
    name: str
    directory: Path
    random: Random
    sparks: Sequence[Path | None]
    log: list[str] = field(default_factory=list)

    def play(self, data: Path) -> str | None:
        """Play the round over the data directory of a cluster; return what is wrong."""
        for run in range(1, MOST_RUNS + 1):
            count = len(list((data / "nodes").iterdir()))  # there may be more later, never fewer
            with nodes(data, min(count + self.random.randint(0, 1), MOST_NODES), *GIVEN) as cluster:
                try:
                    if (found := self._step(cluster, data, is_last=run == MOST_RUNS)) is not None:
                        return found or None
                finally:
                    cluster.stop()
        raise AssertionError("the last run is not killed")

    def _step(self, cluster: Running, data: Path, *, is_last: bool) -> str | None:
        """Run the stream once; return what is wrong, "" if all is right, None if it is to be started again."""
        spark = None if is_last else self.random.choice(self.sparks)
        with Client(cluster.native) as client:
            client.create_topic(self.name, partitions=PARTITIONS, if_not_exists=True)
            for topic in ("source", self.name):
                (described,) = client.describe_topics(topic)
                if self.log and len(described.partitions) < MOST_PARTITIONS and self.random.random() < 0.5:
                    client.alter_topic(topic, partitions=len(described.partitions) + 1)
                    self.log.append(f"a partition more of {topic}")
        status, output = self._run(cluster, data, spark, may_kill=not is_last)
        if status == 0 and spark is None:
            return self._judge(cluster)
        if status <= 0:
            return None
        is_allowed = self.kind == "sink" and any(text in output for text in CHANGED)
        return "" if is_allowed else f"failed: {output[-2000:]}"

    def _run(self, cluster: Running, data: Path, spark: Path | None, *, may_kill: bool) -> tuple[int, str]:
        """Start the stream, and kill it at a random moment or never; return its status and what it has printed."""
        stream = {"topic": "source", "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH)}
        stream["minPartitions"] = str(self.random.choice([1, 2, 3, 5, 9]))
        where = self.random.choice(["wire", "both"] if self.kind == "sink" else ["wire", "both", "directories"])
        addresses = list(cluster.native)
        self.random.shuffle(addresses)
        if where != "directories":
            stream["bootstrap"] = ",".join(addresses)
        if where != "wire":
            stream["path"] = self._path(data, is_whole=where == "directories")
        sink = {"bootstrap": ",".join(addresses), "topic": self.name, "batchBytes": "2000"}
        sink |= {"transactional": "true"} if self.kind == "transactional" else {}
        if self.kind == "table":
            sink = {"path": str(self.directory / "table")}
        settings = {
            "format": "parquet" if self.kind == "table" else "warmlog",
            "source": stream,
            "sink": sink,
            "directory": str(self.directory),
        }
        kill_at: int | None = self.random.randint(1, RECORDS)
        if not may_kill or (self.log and self.random.random() < 0.5):
            kill_at = None
        kills_node = kill_at is not None and len(cluster.native) > 1 and self.random.random() < 0.5
        tasks = stream["minPartitions"]
        paths = stream.get("path", "").count(",") + 1
        self.log.append(
            f"{where} ({paths} given), {tasks} tasks, {len(addresses)} nodes, {spark or 'Spark'}, killed at {kill_at}"
        )
        environment = {**os.environ, "PYTHONPATH": f"{spark}:{ROOT}" if spark else str(ROOT)}
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        if spark is not None:
            environment["SPARK_HOME"] = str(spark / "pyspark")
        with (self.directory / "output").open("w+") as output:
            command = [sys.executable, str(PROGRAM), json.dumps(settings)]
            with subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            ) as process:
                try:
                    while kill_at is not None and process.poll() is None and self._arrived(cluster) < kill_at:
                        with suppress(subprocess.TimeoutExpired):
                            process.wait(POLL_S)
                    if kill_at is not None and process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                    if kills_node:
                        os.kill(cluster.node(self.random.randint(1, len(addresses))), signal.SIGKILL)
                    process.wait(LIMIT_S)
                finally:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
            output.seek(0)
            return process.returncode, output.read()

    def _path(self, data: Path, *, is_whole: bool) -> str:
        """Return the store of all nodes or directories of nodes, all of them if `is_whole`."""
        directories = sorted(map(str, (data / "nodes").iterdir()))
        self.random.shuffle(directories)
        count = len(directories) if is_whole else self.random.randint(1, len(directories))
        return self.random.choice([str(data), ",".join(directories[:count])])

    def _arrived(self, cluster: Running) -> int:
        """Return about how many rows have been written."""
        if self.kind == "table":
            return BATCH * len(list((self.directory / "checkpoint" / "commits").glob("[0-9]*")))
        with Client(cluster.native) as client:
            return sum(client.offsets(self.name).values())

    def _judge(self, cluster: Running) -> str:
        found = self._table() if self.kind == "table" else consumed(cluster.kafka[0], self.name)
        wanted = Counter(range(RECORDS))
        return "" if found == wanted else f"{(wanted - found).total()} rows lost, {(found - wanted).total()} too many"

    def _table(self) -> Counter[int]:
        import pyarrow.parquet as pq

        table = self.directory / "table"
        logs = (table / "_spark_metadata").glob("[0-9]*")
        entries = [json.loads(line) for log in logs for line in log.read_text().splitlines()[1:]]
        files = {entry["path"].removeprefix("file://").removeprefix("file:") for entry in entries}
        return Counter(int(value.decode()) for file in files for value in pq.read_table(file)["value"].to_pylist())


def consumed(bootstrap: str, topic: str) -> Counter[int]:
    """Return what a plain consumer of committed records sees."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    partitions = consumer.list_topics(topic, LIMIT_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, at, 0) for at in partitions])
    found: Counter[int] = Counter()
    ended: set[int] = set()
    try:
        while len(ended) < len(partitions):
            for message in consumer.consume(1000, 1.0):
                error = message.error()
                if error is None:
                    found[int(message.value() or b"")] += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
        return found
    finally:
        consumer.close()


def play(seed: int, rounds: int, sparks: Sequence[Path | None], directory: Path) -> list[str]:
    """Play rounds, each kind in turn; return what is wrong."""
    random, wrong, data = Random(seed), [], directory / "data"
    with nodes(data, NODES, *GIVEN) as cluster, Client(cluster.native) as client:
        client.create_topic("source", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            rows = [(b"k%d" % (at % 7), b"%d" % at) for at in range(partition, RECORDS, PARTITIONS)]
            client.produce_many("source", rows, partition=partition)
        assert cluster.stop() == 0
    for number in range(rounds):
        kind = KINDS[number % len(KINDS)]
        name = f"{kind}-{number}"
        (directory / name).mkdir()
        one = Round(kind, name, directory / name, random, sparks)
        found = one.play(data)
        print(f"{name}: {found or 'right'} ({'; '.join(one.log)})", flush=True)
        if found is not None:
            wrong.append(f"{name}: {found} ({'; '.join(one.log)})")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=Random().randrange(1 << 30))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--spark", type=Path, action="append", default=[], help="may be repeated")
    given = parser.parse_args()
    sparks = [None, *(spark.resolve() for spark in given.spark)]
    print(f"seed {given.seed}")
    with TemporaryDirectory(prefix="restarts-") as directory:
        sys.exit(bool(play(given.seed, given.rounds, sparks, Path(directory))))


if __name__ == "__main__":
    main()
