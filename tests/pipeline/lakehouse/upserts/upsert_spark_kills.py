"""Kill `warmlog pipeline table --upsert --engine spark` while its tasks run, then compare the table with a dict.

    python -m tests.pipeline.lakehouse.upserts.upsert_spark_kills --kills 30 --seed 7 [--kind delta|iceberg]

Each round appends random updates and deletes, starts a writer, waits for the first new file with changes, which is
there from a batch's first task to its commit, and after a random time kills with kill -9 its driver with all of its
processes, its JVM, or the Python workers, whose tasks Spark then repeats. In the end the rows are those of a dict, the
audit has to agree, and maintenance leaves no changes behind.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.pipeline.lakehouse import kills, spark_kills
from tests.pipeline.lakehouse.spark_kills import VICTIMS, Victim
from tests.pipeline.lakehouse.tables import KINDS, Kind, open_in
from tests.pipeline.lakehouse.upserts.upsert_kills import PARTITIONS, Producer, finish, rows_in
from warmlog.client.blocking import Client
from warmlog.testing import Broker

LONGEST_S = 1.0
POLL_S = 0.005


def changes_in(directory: Path) -> set[Path]:
    """Return the files with changes beside those of the table."""
    return set(directory.rglob("*.arrows"))


def wait_for_changes(directory: Path, before: set[Path], writer: subprocess.Popen[bytes]) -> None:
    """Return when there is another file with changes."""
    end = time.monotonic() + spark_kills.FIRST_FILE_S
    while changes_in(directory) <= before:
        assert writer.poll() is None, "the writer has ended"
        assert time.monotonic() < end, "the writer has written nothing"
        time.sleep(POLL_S)


def rounds(
    producer: Producer, directory: Path, kind: Kind, victims: Sequence[Victim], longest_s: float = LONGEST_S
) -> Iterator[int]:
    """Run and kill writers; yield the number of rows in the table after each round."""
    with Client(producer.broker.native) as client:
        client.create_topic("orders", partitions=PARTITIONS, configs={"segment.bytes": "262144"})
    for victim in victims:
        producer.produce()
        before = changes_in(directory)
        running = spark_kills.start(producer.broker, directory, kind, "job", "--upsert", "--file-mib", "1")
        try:
            wait_for_changes(directory, before, running)
            time.sleep(producer.chance.uniform(0.0, longest_s))
            spark_kills.kill(running, victim)
            time.sleep(producer.chance.uniform(0.0, spark_kills.LONGEST_S) if victim == "workers" else 0.0)
        finally:
            spark_kills.kill(running, "driver")
            running.wait()
        yield rows_in(directory, kind)


def age_changes(directory: Path) -> None:
    """Make files with changes older than any that maintenance retains."""
    for path in changes_in(directory):
        os.utime(path, (0, 0))


def faults_of(producer: Producer, directory: Path, kind: Kind) -> list[object]:
    """Upsert the rest in this process, and return what is wrong: keys, an audit that disagrees, changes left behind."""
    faults: list[object] = [*finish(producer, directory, kind)]
    age_changes(directory)
    kills.maintain(directory, kind)
    if kills.audit(producer.broker, directory, kind):
        faults.append("the audit")
    return [*faults, *changes_in(directory)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kind", choices=KINDS, default=None)
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}")
    wrong = 0
    kinds = [given.kind] if given.kind else KINDS
    for kind in kinds:
        with tempfile.TemporaryDirectory() as name, Broker(data_dir=Path(name, "data")) as broker:
            chance = random.Random(seed)
            producer = Producer(broker, chance)
            victims = [chance.choice(VICTIMS) for _ in range(given.kills // len(kinds))]
            for victim, rows in zip(victims, rounds(producer, Path(name), kind, victims), strict=True):
                print(f"{kind}: killed {victim}, {rows:,} rows", flush=True)
            faults = faults_of(producer, Path(name), kind)
            wrong += len(faults)
            keys, records = len(producer.model), sum(producer.ends)
            commits = sum(1 for _ in open_in(Path(name), kind).commits())
            print(f"{kind}: {keys:,} keys of {records:,} records, {commits} commits, wrong: {faults[:10] or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
