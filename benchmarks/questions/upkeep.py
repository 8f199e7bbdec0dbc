"""A live producer while the broker compacts 2 GB, or removes them by retention.

A change of the topic's settings starts the work together with the measurement. A round whose work is not done in time
is an error.
"""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import NamedTuple

from benchmarks.harness import Conditions, Figures
from benchmarks.load.generator import Flow, LoadError
from benchmarks.load.kafka_wire import KafkaWire
from benchmarks.load.paced import Pace, PaceResult
from benchmarks.load.processor_time import ProcessorMeter
from benchmarks.servers.contestants import Broker, Running, start_warmlog
from warmlog.protocol.records.builder import build_batch

WORKED_ON, LIVE = "worked-on", "live"
PARTITIONS = 4
WORK_BYTES = 2_000_000_000
SEGMENT_BYTES = 128 << 20
KEYS = 50_000  # distinct keys of two million records, so most repeat
VALUE_BYTES = 1_000
BATCH_RECORDS = 950  # one megabyte
BATCHES = 16  # different batches for each partition
QUIET_S, DURING_S = 6.0, 3.0  # during the work: about as long as it takes
WARM_UP_S = 0.3
DONE_S = 30.0  # a slow machine may take longer than the measurement
SOON = ("log.initial.task.delay.ms=0", "log.cleaner.backoff.ms=500", "log.retention.check.interval.ms=500")


class Work(NamedTuple):
    """The initial settings of a topic, with which the broker has no work, and the change that starts the work."""

    made_with: dict[str, str]
    begin: dict[str, str]


COMPACTION = Work(
    {"cleanup.policy": "compact", "min.compaction.lag.ms": "600000000", "min.cleanable.dirty.ratio": "0.01"},
    {"min.compaction.lag.ms": "0"},
)
RETENTION = Work({"retention.ms": "-1", "file.delete.delay.ms": "100"}, {"retention.bytes": "1000"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """The broker's work beside a live producer. `timestamp_ms`: timestamp of the records worked on."""

    work: Work
    live: Pace
    timestamp_ms: int

    def measure(self, broker: Broker, conditions: Conditions) -> Figures:
        """Measure latencies before and during the work. Raises LoadError, also if the work was not done.

        The broker's processor time until the work is done, its compaction process included, is related to the bytes
        worked on.
        """
        assert isinstance(broker.wire, KafkaWire), "the only one that changes settings"
        wire = broker.wire
        with broker.start(conditions.directory) as server:
            self._fill(broker, wire, server, conditions)
            os.sync()  # otherwise the kernel writes back all that data during a measurement
            full = _size(conditions.directory)
            quiet = self._keep(wire, server, QUIET_S * conditions.scale)
            meter = ProcessorMeter(server.pids)
            wire.alter_topic(server.address, WORKED_ON, self.work.begin)
            during = self._keep(wire, server, DURING_S * conditions.scale)
            _wait_until_small(conditions.directory, full // 4)
            cpu_us_mb = meter.us_per(full / 1e6)
        return {
            "cpu_us_mb": cpu_us_mb,
            "quiet_p99_ms": quiet.quantile_s(0.99) * 1e3,
            "during_p99_ms": during.quantile_s(0.99) * 1e3,
            "during_max_ms": during.quantile_s(1) * 1e3,
            "p99_times": during.quantile_s(0.99) / quiet.quantile_s(0.99),
        }

    def _fill(self, broker: Broker, wire: KafkaWire, server: Running, conditions: Conditions) -> None:
        settings = {"segment.bytes": str(conditions.scaled(SEGMENT_BYTES)), "max.message.bytes": "2000000"}
        wire.create_topic(server.address, WORKED_ON, PARTITIONS, settings | self.work.made_with)
        wire.create_topic(server.address, LIVE, 1, {})
        random = Random(1)
        flows = []
        for partition in range(PARTITIONS):
            batches = [_keyed_batch(random, conditions.scaled(KEYS), self.timestamp_ms) for _ in range(BATCHES)]
            requests = tuple(wire.produce(WORKED_ON, partition, batch) for batch in batches)
            total = conditions.scaled(WORK_BYTES) // PARTITIONS // len(batches[0]) + 1
            flows.append(Flow(requests=requests, depth=2, total=total))
        broker.drive(server, flows, conditions)

    def _keep(self, wire: KafkaWire, server: Running, seconds: float) -> PaceResult:
        request = wire.produce(LIVE, 0, self.live.batch)
        return self.live.keep(server.address, wire, request, seconds=seconds, skip_s=min(WARM_UP_S, seconds / 3))


def start_eager(directory: Path) -> AbstractContextManager[Running]:
    """Start a warmlog that checks for such work twice a second."""
    return start_warmlog(directory, "kafka", SOON)


def _keyed_batch(random: Random, keys: int, timestamp_ms: int) -> bytes:
    drawn = (b"k%07d" % random.randrange(keys) for _ in range(BATCH_RECORDS))
    return build_batch([(timestamp_ms, key, random.randbytes(VALUE_BYTES), ()) for key in drawn])


def _size(directory: Path) -> int:
    """Return the bytes of the logs worked on, without files being deleted."""
    return sum(path.stat().st_size for path in directory.glob(f"{WORKED_ON}-*/*.log"))


def _wait_until_small(directory: Path, most_bytes: int) -> None:
    until = monotonic() + DONE_S
    while _size(directory) > most_bytes:
        if monotonic() > until:
            raise LoadError(f"{_size(directory)} bytes are left after {DONE_S:g} s: the work was not done")
        sleep(0.1)
