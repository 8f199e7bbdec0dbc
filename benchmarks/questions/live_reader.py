"""A live client while readers replay old data: the effect of a slow disk on a client that does not read from it.

    disk, 20 MB/s   |== 2 GB of a topic, evicted           ==|
    readers            >      >      >      >                   1 MiB per fetch, each from its own offset on
    live            . . . . . . . . . . . . . . . . . . . .     500 small requests/s to another topic, open loop

A measurement ends before the readers reach the end, which takes two minutes at 20 MB/s. Until then, each reads data
that has not been read since it was evicted.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from benchmarks.harness import Conditions, Figures
from benchmarks.load.generator import Flow
from benchmarks.load.paced import Pace, PaceResult
from benchmarks.servers.contestants import Running, costs
from benchmarks.servers.kafka import KafkaBroker
from benchmarks.servers.limits import SLICE_BYTES
from benchmarks.servers.throttle import throttled

COLD = "cold"
COLD_BYTES = 2_000_000_000
DISK_BYTES_PER_S = 20_000_000
QUIET_S, DURING_S = 5.0, 11.0  # at least; the first WARM_UP_S do not count
WARM_UP_S = 2.0  # every reader has had its first reply by then
ALLOWED_MS = 10.0  # a p99 below this is good enough, whatever it was before
_names = (f"live-{number}" for number in count())


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Readers of old records beside a live producer, which a consumer may follow.

    `batch` holds `records`; the cold topic consists of copies of it.
    """

    readers: int
    live: Pace
    is_followed: bool
    batch: bytes
    records: int

    def measure(self, broker: KafkaBroker, conditions: Conditions) -> Figures:
        """Measure latencies before and during the replay, and the readers' rate. Raises ThrottleError, LoadError.

        The server's processor time is related to what the readers receive.
        """
        with broker.start(conditions.directory) as server:
            home = broker.standing.home
            assert home is not None, "it is started"
            batches = -(-conditions.scaled(COLD_BYTES) // len(self.batch))
            self._fill(broker, server, home, batches, conditions)
            evict(cold_files(home))
            with throttled(server.pid, home, DISK_BYTES_PER_S) as disk, ThreadPoolExecutor(1) as other:
                quiet = self._live(broker, server, max(conditions.seconds, QUIET_S * conditions.scale))
                seconds = max(conditions.seconds, DURING_S * conditions.scale)
                began_with = disk.read_bytes()
                load = replace(conditions, seconds=seconds - _skip_s(seconds), warmup_s=_skip_s(seconds))
                replaying = other.submit(broker.drive, server, self._readers(broker, batches), load)
                during = self._live(broker, server, seconds)
                replayed = replaying.result()
                from_disk = (disk.read_bytes() - began_with) / seconds
        read = replayed.received_bytes / len(self.batch) * self.records
        return {
            **figures(quiet, during),
            **costs(replayed.server_cpu_s, records=read, requests=replayed.replies, size=replayed.received_bytes),
            "readers_mb_per_s": replayed.received_bytes / replayed.elapsed_s / 1e6,
            "disk_share": replayed.received_bytes / replayed.elapsed_s / DISK_BYTES_PER_S,
            "disk_read_share": from_disk / DISK_BYTES_PER_S,
        }

    def _fill(self, broker: KafkaBroker, server: Running, home: Path, batches: int, conditions: Conditions) -> None:
        """Create the cold topic, once per server."""
        if not cold_files(home):
            broker.wire.create_topic(server.address, COLD, 1, {"segment.bytes": str(1 << 28)})
            broker.fill(server, COLD, self.batch, batches, conditions)
            broker.wire.check_count(server.address, COLD, batches * self.records)

    def _live(self, broker: KafkaBroker, server: Running, seconds: float) -> PaceResult:
        """Measure the live client for a time, on its own topic."""
        topic, wire = next(_names), broker.wire
        wire.create_topic(server.address, topic, 1, {})
        skip_s = _skip_s(seconds)
        if self.is_followed:
            return self.live.followed(server.address, wire, topic, seconds=seconds, skip_s=skip_s)
        request = wire.produce(topic, 0, self.live.batch)
        return self.live.keep(server.address, wire, request, seconds=seconds, skip_s=skip_s)

    def _readers(self, broker: KafkaBroker, batches: int) -> list[Flow]:
        """Return readers spread evenly over the topic; each reads from its position to the end, then from the start."""
        asked = [broker.wire.fetch(COLD, 0, number * self.records, SLICE_BYTES) for number in range(batches)]
        starts = [number * batches // self.readers for number in range(self.readers)]
        return [Flow(requests=(*asked[start:], *asked[:start])) for start in starts]


def figures(quiet: PaceResult, during: PaceResult) -> dict[str, float]:
    """Return p50 and p99 of both, and ratios; `p99_of_allowed`: relative to four times the former p99 or ALLOWED_MS."""
    found = {"quiet_p50_ms": _ms(quiet, 0.5), "quiet_p99_ms": _ms(quiet, 0.99)}
    found |= {f"during_{name}_ms": _ms(during, share) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1))}
    return found | {
        "p50_times": found["during_p50_ms"] / found["quiet_p50_ms"],
        "p99_times": found["during_p99_ms"] / found["quiet_p99_ms"],
        "p99_of_allowed": found["during_p99_ms"] / max(4 * found["quiet_p99_ms"], ALLOWED_MS),
    }


def cold_files(home: Path) -> list[Path]:
    """Return the logs of the cold topic in a server's directory."""
    return sorted(home.rglob(f"{COLD}-0/*.log"))


def evict(paths: list[Path]) -> None:
    """Evict files from the page cache, after an fsync."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _skip_s(seconds: float) -> float:
    return min(WARM_UP_S, seconds / 3)


def _ms(result: PaceResult, share: float) -> float:
    return result.quantile_s(share) * 1e3
