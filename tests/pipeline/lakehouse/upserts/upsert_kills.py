"""Kill `warmlog pipeline table --upsert` at random moments while records arrive, then compare the table with a dict.

    python -m tests.pipeline.lakehouse.upserts.upsert_kills --kills 200 --seed 7 [--kind delta|iceberg] [--writers 2]
        [--maintained] [--arranged]

Each round starts the writers, kills them with kill -9 after a random time, and appends random updates and deletes. With
--maintained, `warmlog pipeline table maintain` runs beside them, and is killed, too. With --arranged, the table is
partitioned, and its files are sorted. DuckDB reads the files that the
libraries list. After each round no key has two rows; in the end the rows are those of a dict, and the audit has to
agree.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deltalake.exceptions import TableNotFoundError
from pyiceberg.exceptions import NoSuchTableError

from tests.pipeline.lakehouse import kills
from tests.pipeline.lakehouse.tables import KINDS, Kind
from tests.pipeline.lakehouse.upserts.upserted import Model, model_in
from warmlog.client import Message
from warmlog.client.blocking import Client
from warmlog.testing import Broker

PARTITIONS = 2
RECORDS = 6_000  # of each partition, a round
KEYS = 4_000
DELETES = 0.25
COMMIT = ("--every", "20ms", "-o", "maxOffsetsPerTrigger=1500", "-o", "maxSplitBytes=20000", "--file-mib", "1")


class Upserted(kills.Values):
    """Writers upsert."""

    def options(self, kind: Kind) -> list[str]:
        """The options of writers."""
        return ["--upsert", *super().options(kind)]


UPSERTED = Upserted()


@dataclass(slots=True)
class Producer:
    """Produces random updates and deletes. `model`: the rows that a table should have afterwards."""

    broker: Broker
    chance: random.Random
    model: Model = field(default_factory=dict)
    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)

    def produce(self) -> None:
        """Produce the records of a round."""
        with Client(self.broker.native) as client:
            for partition in range(PARTITIONS):
                records = [self._record(partition) for _ in range(RECORDS)]
                client.produce_many("orders", records, partition=partition)

    def _record(self, partition: int) -> Message:
        key, offset = b"key-%d" % self.chance.randrange(KEYS), self.ends[partition]
        self.ends[partition] += 1
        value = None if self.chance.random() < DELETES else b"value-%d" % self.chance.randrange(1_000_000)
        self.model.pop((partition, key), None)
        if value is not None:
            self.model[partition, key] = offset, value
        return Message(key=key, value=value)


def rounds(
    producer: Producer,
    directory: Path,
    kind: Kind,
    count: int,
    writers: int,
    *,
    values: Upserted = UPSERTED,
    maintained: bool = False,
) -> Iterator[int]:
    """Run and kill writers, and maintenance; yield the number of rows in the table after each round."""
    broker, chance, done = producer.broker, producer.chance, 0
    with Client(broker.native) as client:
        client.create_topic("orders", partitions=PARTITIONS, configs={"segment.bytes": "262144"})
    while done < count:
        running = [kills.start(broker, directory, kind, values, *COMMIT) for _ in range(writers)]
        running += [kills.start_maintenance(directory, kind)] if maintained and done else []
        producer.produce()
        longest_s = kills.MAINTAINED_S if maintained else kills.LONGEST_S
        for number, process in enumerate(chance.sample(running, len(running))):
            time.sleep(chance.uniform(0.0 if number else kills.START_S, longest_s))
            kills.kill(process)
            done += 1
        yield rows_in(directory, kind)


def rows_in(directory: Path, kind: Kind) -> int:
    """Return the number of rows, none of the same key; 0 if the writers were killed before there was a table."""
    try:
        return len(model_in(directory, kind))
    except (NoSuchTableError, TableNotFoundError):
        return 0


def finish(producer: Producer, directory: Path, kind: Kind) -> list[tuple[int, bytes]]:
    """Upsert the rest, and return what is wrong: partitions and keys whose rows are not those of the dict."""
    process = kills.start(producer.broker, directory, kind, UPSERTED, "--until-end")
    assert process.wait() == 0, "the last run failed"
    table, model = model_in(directory, kind), producer.model
    return sorted(key for key in table.keys() | model.keys() if table.get(key) != model.get(key))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; 1 if a row is wrong, or the audit says so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kind", choices=KINDS, default=None)
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--maintained", action="store_true")
    parser.add_argument("--arranged", action="store_true")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}")
    values, wrong = Upserted(arranged=given.arranged), 0
    for kind in [given.kind] if given.kind else KINDS:
        with tempfile.TemporaryDirectory() as name, Broker(data_dir=Path(name, "data")) as broker:
            producer = Producer(broker, random.Random(seed))
            count = given.kills if given.kind else given.kills // len(KINDS)
            how = {"values": values, "maintained": given.maintained}
            for rows in rounds(producer, Path(name), kind, count, given.writers, **how):
                print(f"{kind}: {rows:,} rows", flush=True)
            faults = finish(producer, Path(name), kind)
            wrong += len(faults) + kills.audit(broker, Path(name), kind)
            if given.maintained:
                kills.maintain(Path(name), kind)
                faults += finish(producer, Path(name), kind)
                wrong += len(faults) + kills.audit(broker, Path(name), kind)
            keys, records = len(producer.model), sum(producer.ends)
            print(f"{kind}: {keys:,} keys of {records:,} records, wrong: {faults[:10] or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
