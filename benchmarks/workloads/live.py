"""Workloads: a live client while readers replay old data, with targets.

Both servers are measured over Kafka's protocol, and warmlog also over its native one. Kafka is warmed up, as in the
other comparisons. Nothing is fsynced.
"""

from dataclasses import replace
from typing import Any

from benchmarks.harness import Conditions, Figures, Target, Workload
from benchmarks.load.native import NativeWire
from benchmarks.load.paced import Pace
from benchmarks.questions.live_reader import Replay
from benchmarks.servers.contestants import start_warmlog
from benchmarks.servers.kafka import KAFKA, WARMLOG_KAFKA, KafkaBroker, Standing
from benchmarks.workloads.kafka import SMALL_PER_S, warm
from benchmarks.workloads.native import LARGE, SMALL

LARGE_RECORDS = 1_000
_native = Standing("warmlog-native", start_warmlog, is_warm=True)  # not a JVM
WARMLOG_NATIVE = KafkaBroker(name="warmlog, native", start=_native.start, wire=NativeWire(), standing=_native)
STANDING = (WARMLOG_KAFKA.standing, KAFKA.standing, _native)
CONTESTANTS = (WARMLOG_KAFKA, KAFKA, WARMLOG_NATIVE)
SHOWN = (
    "quiet_p50_ms",
    "during_p50_ms",
    "quiet_p99_ms",
    "during_p99_ms",
    "during_max_ms",
    "p50_times",
    "p99_times",
    "p99_of_allowed",
    "disk_share",
    "cpu_us_mb",
)
CPU_WANTED = Target(figure="cpu_us_mb", against=KAFKA.name, at_most=1)
WANTED = (
    CPU_WANTED,
    Target(figure="p50_times", at_most=1.5, every_round=True),
    Target(figure="p99_of_allowed", at_most=1, every_round=True),
    Target(figure="disk_share", at_least=0.9, every_round=True),
)
WANTED_OF_A_CONSUMER = (
    CPU_WANTED,
    Target(figure="p99_times", at_most=4, every_round=True),
    Target(figure="disk_share", at_least=0.9, every_round=True),
)
BESIDE_EIGHT = Replay(
    readers=8, live=Pace(per_s=SMALL_PER_S, batch=SMALL), is_followed=False, batch=LARGE, records=LARGE_RECORDS
)


def replaying(name: str, title: str, replay: Replay) -> Workload[Any]:
    """Return a workload of a live client beside readers."""

    def measure(contestant: KafkaBroker, conditions: Conditions) -> Figures:
        return replay.measure(contestant, conditions)

    return Workload(
        name=name,
        title=title,
        figures=SHOWN,
        contestants=CONTESTANTS,
        measure=warm(measure),
        targets=WANTED_OF_A_CONSUMER if replay.is_followed else WANTED,
    )


LIVE_WORKLOADS: tuple[Workload[Any], ...] = (
    replaying(
        "live-reader-8",
        "a producer of 500 small requests/s while 8 readers replay 2 GB from a disk of 20 MB/s",
        BESIDE_EIGHT,
    ),
    replaying("live-reader-64", "the same beside 64 readers", replace(BESIDE_EIGHT, readers=64)),
    replaying(
        "live-consumer-8",
        "from the producer's schedule to a consumer, beside 8 readers",
        replace(BESIDE_EIGHT, is_followed=True),
    ),
    replaying(
        "live-consumer-64",
        "from the producer's schedule to a consumer, beside 64 readers",
        replace(BESIDE_EIGHT, is_followed=True, readers=64),
    ),
)
