"""The rate and the latency of small transactions, on warmlog and on Kafka.

    python -m benchmarks.questions.transactions [--kafka] [--producers N ...] [--records N ...] [--rounds N]

Each producer is a process with one connection and a transactional id of its own. Its transaction is one Produce to one
partition and one EndTxn, each answered before the next is sent, as clients of `transaction.version` 2 do (KIP-890). A
Produce refused because the previous transaction is still being completed is sent again immediately. The report has
transactions per second, the median and the 99th percentile of their times, and with --kafka the ratios to Kafka 4.3.1;
both servers run during the whole run and are measured in turn.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product, starmap
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from struct import Struct
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from benchmarks.load.native import Address
from benchmarks.questions.large_frames import kafka_frame
from benchmarks.questions.large_requests import Asker, start_held
from benchmarks.servers.kafka import start_kafka
from interop.kafka_node import MissingToolError
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT

PARTITIONS = 16
VALUE = b"v" * 100
TIMESTAMP_MS = 1_700_000_000_000
WARM_UP_S = 5.0
TOPIC = "tx"
CONCURRENT_TRANSACTIONS = 51
_PRODUCER = Struct(">qh?x")  # at the end of EndTxn 5: producer id, epoch, whether it commits, tags
_ENDED = Struct(">4xx4xhqh")  # EndTxn 5: after correlation id, tags and throttle time: error, producer id, epoch
_WRITTEN = Struct(f">4xxx{1 + len(TOPIC)}xx4xh")  # Produce 12: the error of the only partition


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer of the load: its transactional id, its partition and the records of each of its transactions."""

    name: str
    partition: int
    records: int


class Frames:
    """The requests of one producer; only the fields that change between transactions are encoded each time."""

    def __init__(self, producer: Producer) -> None:
        self._rows = [(TIMESTAMP_MS, None, VALUE, ())] * producer.records
        batch = self._batch(0, 0)
        partition = {"index": producer.partition, "records": batch}
        produce = kafka_frame(
            "Produce",
            12,
            transactional_id=producer.name,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[{"name": TOPIC, "partition_data": [partition]}],
        )
        self._before, self._after = produce.split(batch)
        fields = {"transactional_id": producer.name, "producer_id": 0, "producer_epoch": 0, "committed": True}
        self._end = bytearray(kafka_frame("EndTxn", 5, **fields))

    def produce(self, producer_id: int, epoch: int) -> bytes:
        """Return a Produce with the records of a transaction."""
        return self._before + self._batch(producer_id, epoch) + self._after

    def end(self, producer_id: int, epoch: int) -> bytes:
        """Return an EndTxn that commits."""
        _PRODUCER.pack_into(self._end, len(self._end) - _PRODUCER.size, producer_id, epoch, True)
        return bytes(self._end)

    def _batch(self, producer_id: int, epoch: int) -> bytes:
        return build_batch(
            self._rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=0, attributes=TRANSACTIONAL_BIT
        )


def run_producer(address: Address, producer: Producer, seconds: float) -> list[float]:
    """Return the seconds of each transaction."""
    asker, frames = Asker(address), Frames(producer)
    producer_id, epoch = first_epoch(asker, producer)
    times: list[float] = []
    end_at = perf_counter() + seconds
    while (began_at := perf_counter()) < end_at:
        produce = frames.produce(producer_id, epoch)
        while (error := _WRITTEN.unpack_from(asker.ask(produce))[0]) == CONCURRENT_TRANSACTIONS:
            pass  # the previous transaction is still being completed
        assert not error, f"Produce: error {error}"
        error, producer_id, epoch = _ENDED.unpack_from(asker.ask(frames.end(producer_id, epoch)))
        assert not error, f"EndTxn: error {error}"
        times.append(perf_counter() - began_at)
    return times


def first_epoch(asker: Asker, producer: Producer) -> tuple[int, int]:
    """Return the producer id and its epoch, once the coordinator is available."""
    while True:
        fields = {"transactional_id": producer.name, "transaction_timeout_ms": 60_000}
        known = asker.parsed("InitProducerId", 4, **fields, producer_id=-1, producer_epoch=-1)
        if not known["error_code"]:
            return known["producer_id"], known["producer_epoch"]


def prepare(address: Address) -> None:
    """Create the topic, and find the coordinator, which creates its own topic."""
    asker = Asker(address)
    new = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1, "assignments": (), "configs": ()}
    asker.parsed("CreateTopics", 5, topics=[new], timeout_ms=60_000)
    while asker.parsed("FindCoordinator", 4, key_type=1, coordinator_keys=["p"])["coordinators"][0]["error_code"]:
        pass


@dataclass(frozen=True, slots=True)
class Load:
    """A workload: the number of concurrent producers, and of records in each of their transactions."""

    producers: int
    records: int

    def run(self, address: Address, seconds: float) -> "Measured":
        """Run all producers against a server."""
        producers = [Producer(f"p{number}", number % PARTITIONS, self.records) for number in range(self.producers)]
        with get_context("spawn").Pool(self.producers) as pool:
            pool.map(abs, range(self.producers), chunksize=1)  # every process has started
            each = pool.starmap(run_producer, [(address, producer, seconds) for producer in producers], chunksize=1)
        times = sorted(time for of_one in each for time in of_one)
        return Measured(len(times) / seconds, median(times) * 1e3, times[len(times) * 99 // 100] * 1e3)


class Measured(NamedTuple):
    """Transactions per second, and the median and 99th percentile of their times in ms."""

    rate: float
    p50_ms: float
    p99_ms: float


def report(load: Load, rounds: Mapping[str, Sequence[Measured]]) -> None:
    """Print the medians with their spread, and the ratios of each round."""
    print(f"{load.producers} producers, {load.records} records a transaction")
    for name, measured in rounds.items():
        print(f"  {name:16} " + "  ".join(map(_spread, Measured._fields, zip(*measured, strict=True))))
    if len(rounds) > 1:
        ours, theirs = rounds.values()
        ratios = [[mine / their for mine, their in zip(*pair, strict=True)] for pair in zip(ours, theirs, strict=True)]
        print(f"  {'ratio':16} " + "  ".join(map(_spread, Measured._fields, zip(*ratios, strict=True))), flush=True)


def _spread(name: str, values: Sequence[float]) -> str:
    return f"{name} {median(values):8.2f} ({min(values):.2f} to {max(values):.2f})"


@contextmanager
def start_warmlog(directory: Path) -> Iterator[Address]:
    """Start warmlog in its own process."""
    with start_held(directory) as (address, _):
        yield address


@contextmanager
def start_comparison(directory: Path) -> Iterator[Address]:
    """Start Kafka."""
    with start_kafka(directory) as running:
        yield running.address


def main() -> int:
    """Print a report per load; return 1 if Kafka was requested but is not available."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions.transactions", description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="measure Kafka in the same run, and print ratios")
    parser.add_argument("--producers", type=int, nargs="+", default=[1, 16], help="numbers of producers (1 16)")
    parser.add_argument("--records", type=int, nargs="+", default=[1, 100], help="records a transaction (1 100)")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each load runs (5)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load runs (3)")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="directory for the data (/var/tmp)")
    chosen = parser.parse_args()
    starts = {"warmlog": start_warmlog, **({"Kafka": start_comparison} if chosen.kafka else {})}
    with TemporaryDirectory(dir=chosen.directory) as home, ExitStack() as running:
        servers: dict[str, Address] = {}
        for name, start in starts.items():
            (directory := Path(home, name)).mkdir()
            try:
                servers[name] = running.enter_context(start(directory))
            except (MissingToolError, subprocess.SubprocessError) as error:
                print(error, file=sys.stderr)
                return 1
        for address in servers.values():
            prepare(address)
            Load(4, 1).run(address, WARM_UP_S)
        for load in starmap(Load, product(chosen.producers, chosen.records)):
            rounds: dict[str, list[Measured]] = {name: [] for name in servers}
            for _ in range(chosen.rounds):
                for name, address in servers.items():
                    rounds[name].append(load.run(address, chosen.seconds))
            report(load, rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
