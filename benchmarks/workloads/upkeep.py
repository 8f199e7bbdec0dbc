"""Workloads: a live producer during compaction and retention, warmlog only, with targets.

On a busy machine, the p99 of a second or two easily differs by a factor of two, so run many rounds.
"""

from typing import Any

from benchmarks.harness import Conditions, Figures, Target, Workload
from benchmarks.load.kafka_wire import KafkaWire
from benchmarks.load.paced import Pace
from benchmarks.questions.upkeep import COMPACTION, RETENTION, Upkeep, Work, start_eager
from benchmarks.servers.contestants import Broker
from benchmarks.workloads.kafka import SMALL_PER_S
from benchmarks.workloads.native import BASE_TIMESTAMP_MS, SMALL

EAGER = Broker(name="warmlog", start=start_eager, wire=KafkaWire())


def beside(name: str, title: str, work: Work) -> Workload[Any]:
    """Return a workload of a live producer during the broker's own work."""
    upkeep = Upkeep(work=work, live=Pace(per_s=SMALL_PER_S, batch=SMALL), timestamp_ms=BASE_TIMESTAMP_MS)

    def measure(contestant: Broker, conditions: Conditions) -> Figures:
        return upkeep.measure(contestant, conditions)

    return Workload(
        name=name,
        title=title,
        figures=("quiet_p99_ms", "during_p99_ms", "during_max_ms", "p99_times", "cpu_us_mb"),
        contestants=(EAGER,),
        measure=measure,
        targets=(Target(figure="p99_times", at_most=2),),
    )


UPKEEP_WORKLOADS: tuple[Workload[Any], ...] = (
    beside("live-compaction", "a producer of 500 small requests/s while 2 GB are compacted", COMPACTION),
    beside("live-retention", "the same while 2 GB are removed by retention", RETENTION),
)
