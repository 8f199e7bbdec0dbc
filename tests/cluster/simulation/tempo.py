"""How often something happens in a simulated cluster, and how long its members wait for each other.

`SHORT` has much happen within seconds. `LONG` is for hours that cost little processor time: Kafka's longest waits and
defaults, a fault every minute or so, and a few batches a minute.
"""

from dataclasses import dataclass

from interop.warmlog_nodes import RACK_AWARE

_COMMON = (
    "warmlog.stop.timeout.ms=10000",
    "auto.create.topics.enable=false",
    f"replica.selector.class={RACK_AWARE}",
    "log.segment.bytes=16384",
    "log.index.size.max.bytes=4096",
    "log.segment.delete.delay.ms=1000",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tempo:
    """Times in simulated seconds. `settings`: of the brokers."""

    faults_s: float  # during which faults begin, unless given
    pauses_s: tuple[float, ...]  # on average, between two faults; each seed has one of them
    durations_s: tuple[float, ...]  # of faults
    script_pace: float  # how many times longer the steps of scripts of faults take
    rate: float  # batches per second of a producer and partition
    retry_s: float  # of clients
    max_wait_s: float  # of their fetches
    peace_s: float  # within which all is well again after the last fault
    settings: tuple[str, ...]


SHORT = Tempo(
    faults_s=30.0,
    pauses_s=(0.2, 0.5, 1.0, 2.0),
    durations_s=(0.3, 2.0, 7.0),
    script_pace=1.0,
    rate=5.0,
    retry_s=0.1,
    max_wait_s=0.5,
    peace_s=300.0,
    settings=(
        *_COMMON,
        "warmlog.cluster.lease.ms=3000",
        "replica.lag.time.max.ms=3000",
        "replica.fetch.wait.max.ms=500",
        "leader.imbalance.check.interval.seconds=15",
        "log.flush.offset.checkpoint.interval.ms=5000",
        "log.retention.check.interval.ms=3000",
    ),
)
LONG = Tempo(
    faults_s=36_000.0,
    pauses_s=(30.0, 60.0, 120.0),
    durations_s=(1.0, 15.0, 60.0),
    script_pace=10.0,
    rate=1 / 40,
    retry_s=1.0,
    max_wait_s=10.0,
    peace_s=1200.0,
    settings=(
        *_COMMON,
        "warmlog.cluster.lease.ms=10000",
        "replica.lag.time.max.ms=30000",
        "replica.fetch.wait.max.ms=10000",
        "leader.imbalance.check.interval.seconds=300",
        "log.flush.offset.checkpoint.interval.ms=60000",
        "log.retention.check.interval.ms=300000",
    ),
)
