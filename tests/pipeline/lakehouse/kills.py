"""Kill `warmlog pipeline table` at random moments while records arrive, then see that each is in the table once.

    python -m tests.pipeline.lakehouse.kills --kills 200 --seed 7 [--kind delta|iceberg] [--writers 2] [--maintained]
        [--decoded] [--arranged]

Each round starts the writers, kills them with kill -9 after a random time, and appends records. With --maintained,
`warmlog pipeline table maintain` runs beside them, and is killed, too. With --decoded, values have schemas of a
registry, and each round's schema has one more field. With --arranged, tables are partitioned, and their files sorted by
values. The last runs are left alone. DuckDB reads the files that the
libraries list; neither knows of receipts. The audit has to agree.
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
from dataclasses import dataclass
from pathlib import Path

from deltalake.exceptions import TableNotFoundError
from pyiceberg.exceptions import NoSuchTableError

from tests.pipeline.lakehouse.schemas.registries import RegistryServer, avro, serving
from tests.pipeline.lakehouse.tables import KINDS, Kind, arguments_of, offsets_in, query
from warmlog.client.blocking import Client
from warmlog.testing import Broker

PARTITIONS = 3
RECORDS = 20_000  # of each partition, a round
START_S = 0.8  # a process needs to import its libraries
LONGEST_S = 2.5
MAINTAINED_S = 6.0  # beside maintenance, which takes time itself


@dataclass(frozen=True, slots=True)
class Values:
    """The values of each round. `registry`: of their schemas; None for bytes that are not decoded.

    `arranged`: whether the table is partitioned, and sorted by them.
    """

    registry: RegistryServer | None = None
    arranged: bool = False

    def of_round(self, number: int) -> list[bytes]:
        """Return the values of a partition."""
        if self.registry is None:
            return [b"%d" % at for at in range(RECORDS)]
        names = [f"field{at}" for at in range(number + 1)]
        fields = [{"name": name, "type": ["null", "long"], "default": None} for name in names]
        schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, *fields]}
        return avro(self.registry.url, schema, [{"id": at, names[-1]: at} for at in range(RECORDS)])

    @property
    def sources(self) -> list[str]:
        """The options that say where schemas are."""
        return [] if self.registry is None else ["--schema-registry", self.registry.url]

    def options(self, kind: Kind) -> list[str]:
        """The options of writers."""
        formats = [*self.sources, "--value-format", "confluent"] if self.registry is not None else []
        return [*formats, *(ARRANGED[kind] if self.arranged else [])]


BYTES = Values()
ARRANGED: dict[Kind, list[str]] = {
    "delta": ["--partition-by", "partition,hour(timestamp)", "--sort-by", "value"],
    "iceberg": ["--partition-by", "bucket(4, value)", "--sort-by", "value"],
}


def start(broker: Broker, directory: Path, kind: Kind, values: Values, *more: str) -> subprocess.Popen[bytes]:
    """Start a writer; without more options, with commits of few rows."""
    source = ["--path", str(broker.data_dir), "--bootstrap", broker.native, "--every", "20ms"]
    how = list(more) if more else ["-o", "maxOffsetsPerTrigger=500", "-o", "maxSplitBytes=5000"]
    command = [sys.executable, "-m", "warmlog", "pipeline", "table", "orders", *arguments_of(directory, kind)]
    return subprocess.Popen(
        [*command, *source, *values.options(kind), *how],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def start_maintenance(directory: Path, kind: Kind) -> subprocess.Popen[bytes]:
    """Start maintenance that expires all versions but the newest."""
    command = [sys.executable, "-m", "warmlog", "pipeline", "table", "maintain", *arguments_of(directory, kind)]
    return subprocess.Popen(
        [*command, "--older-than", "1s"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def rounds(
    broker: Broker,
    directory: Path,
    kind: Kind,
    kills: int,
    writers: int,
    chance: random.Random,
    values: Values = BYTES,
    *,
    maintained: bool = False,
) -> Iterator[int]:
    """Run and kill writers, and maintenance; yield the number of rows in the table after each round."""
    with Client(broker.native) as client:
        client.create_topic("orders", partitions=PARTITIONS, configs={"segment.bytes": "1048576"})
        done = 0
        if maintained:
            grow(broker, directory, kind, values)
        while done < kills:
            content = values.of_round(done // writers)
            running = [start(broker, directory, kind, values) for _ in range(writers)]
            running += [start_maintenance(directory, kind)] if maintained else []
            for partition in range(PARTITIONS):
                client.produce_many("orders", content, partition=partition)
            longest_s = MAINTAINED_S if maintained else LONGEST_S
            for number, process in enumerate(chance.sample(running, len(running))):
                time.sleep(chance.uniform(0.0 if number else START_S, longest_s))
                kill(process)
                done += 1
            yield rows_in(directory, kind)


def grow(broker: Broker, directory: Path, kind: Kind, values: Values) -> None:
    """Give the table many small files, and versions."""
    with Client(broker.native) as client:
        for partition in range(PARTITIONS):
            client.produce_many("orders", values.of_round(0), partition=partition)
    process = start(broker, directory, kind, values, "--until-end", "-o", "maxOffsetsPerTrigger=2000")
    assert process.wait() == 0, "the first run failed"


def rows_in(directory: Path, kind: Kind) -> int:
    """Return the number of rows; 0 if the writers were killed before there was a table."""
    try:
        return len(offsets_in(directory, kind))
    except (NoSuchTableError, TableNotFoundError):
        return 0


def finish(broker: Broker, directory: Path, kind: Kind, values: Values = BYTES) -> list[tuple[int, int]]:
    """Copy the rest, and return what is wrong: (partition, offset) pairs that are missing or doubled."""
    process = start(broker, directory, kind, values, "--until-end")
    assert process.wait() == 0, "the last run failed"
    with Client(broker.native) as client:
        ends = client.offsets("orders", "end")
    expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(ends[partition])}
    found = offsets_in(directory, kind)
    doubled = query(
        directory, kind, 'SELECT "partition", "offset" FROM data GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL'
    )
    return sorted((expected ^ set(found)) | {(row[0], row[1]) for row in doubled})


def maintain(directory: Path, kind: Kind) -> None:
    """Run maintenance to its end."""
    assert start_maintenance(directory, kind).wait() == 0, "the last maintenance failed"


def audit(broker: Broker, directory: Path, kind: Kind, values: Values = BYTES) -> int:
    """Return 1 if the audit finds anything."""
    command = [sys.executable, "-m", "warmlog", "pipeline", "audit", "orders", *arguments_of(directory, kind)]
    done = subprocess.run([*command, *values.sources, "--path", str(broker.data_dir)], check=False)
    return int(done.returncode != 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; 1 if a record is missing or doubled, or the audit says so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kind", choices=KINDS, default=None)
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--maintained", action="store_true")
    parser.add_argument("--decoded", action="store_true")
    parser.add_argument("--arranged", action="store_true")
    given = parser.parse_args(arguments)
    if given.decoded and given.arranged:
        parser.error("--arranged sorts by values that are not decoded")
    seed = given.seed if given.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}")
    wrong = 0
    for kind in [given.kind] if given.kind else KINDS:
        with (
            tempfile.TemporaryDirectory() as name,
            Broker(data_dir=Path(name, "data")) as broker,
            serving() as registry,
        ):
            values = Values(registry if given.decoded else None, given.arranged)
            kills = given.kills if given.kind else given.kills // len(KINDS)
            chance = random.Random(seed)
            maintained = given.maintained
            for rows in rounds(broker, Path(name), kind, kills, given.writers, chance, values, maintained=maintained):
                print(f"{kind}: {rows:,} rows", flush=True)
            faults = finish(broker, Path(name), kind, values)
            wrong += audit(broker, Path(name), kind, values)
            if maintained:
                maintain(Path(name), kind)
                faults += finish(broker, Path(name), kind, values)
                wrong += audit(broker, Path(name), kind, values)
            print(f"{kind}: {len(offsets_in(Path(name), kind)):,} rows, missing or doubled: {faults[:10] or 'none'}")
            wrong += len(faults)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
