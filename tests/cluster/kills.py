"""Kill the processes of a cluster again and again under load, and judge what its clients saw.

    python -m tests.cluster.kills [--kills N] [--seconds S] [--seed SEED] [--json FILE]

Three brokers on etcd with two idempotent producers, a consumer, another one that reads from the broker in its rack,
and a consume-transform-produce loop. Each round kills with SIGKILL a leader, any broker, the controller, two brokers,
all of them, one that is just recovering, or etcd; then waits until records are acknowledged again. Afterwards nothing
acknowledged may be lost, doubled, skipped or reordered, and the transformed topic must have each record once. The exit
status is 1 if anything is wrong.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import quantiles

from confluent_kafka.admin import AdminClient, NewTopic

from interop.warmlog_nodes import WarmlogNode, WarmlogNodes
from tests.broker.cluster.etcd_process import EtcdProcess, etcd
from tests.cluster.load import Load
from tests.cluster.report import conclude
from tests.cluster.transform import Transform

PARTITIONS = 6
RATE = 150.0  # records per second of each producer
LIMIT_S = 60.0
LONG_S = 1.0  # a gap that is reported
SETTLED = 100  # acknowledged records after which a round is over
SETTINGS = {
    "warmlog.cluster.lease.ms": 3000,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


class Killer:
    """Kills, and notes how long the partitions of killed leaders took no records."""

    def __init__(self, nodes: WarmlogNodes, store: EtcdProcess, load: Load, random: Random) -> None:
        self.gaps_s: list[float] = []
        self.long_gaps: list[str] = []
        self.kills: Counter[str] = Counter()
        self._nodes, self._store, self._load, self._random = nodes, store, load, random
        self._admin = AdminClient({"bootstrap.servers": nodes.bootstrap, "log_level": 0})
        self._rounds: Sequence[tuple[int, Callable[[], None]]] = (
            (8, self.leader),
            (4, self.controller),
            (3, self.broker_twice),
            (2, self.two_brokers),
            (1, self.all_brokers),
            (2, self.etcd),
        )

    def round(self) -> None:
        """Kill something, and wait until the cluster has settled."""
        weights = [weight for weight, _ in self._rounds]
        (chosen,) = self._random.choices([kill for _, kill in self._rounds], weights)
        chosen()
        self._load.wait_for(SETTLED, limit_s=LIMIT_S)

    def leader(self) -> None:
        """Kill the leader of a partition, and measure the gap in each partition that it led."""
        leaders = self._leaders()
        killed = leaders[self._random.randrange(PARTITIONS)]
        if killed < 0:
            return
        controller = self._admin.describe_cluster(request_timeout=LIMIT_S).result(LIMIT_S).controller
        self._kill("leader", self._nodes[killed])
        at_s = time.monotonic()
        led = [index for index, leader in leaders.items() if leader == killed]
        away_s = self._random.uniform(0.0, 1.5)
        time.sleep(away_s)
        self._nodes[killed].start()
        acknowledged = self._load.wait_until_written(time.monotonic(), limit_s=LIMIT_S)
        for index in led:
            times_s = [one.at_s for one in acknowledged if one.partition == index and one.at_s > at_s - 1]
            gap_s = max((after - before for before, after in pairwise(times_s)), default=0.0)
            self.gaps_s.append(gap_s)
            if gap_s > LONG_S:
                what = "the controller" if controller is not None and controller.id == killed else "no controller"
                self.long_gaps.append(f"{gap_s:.2f} s: broker {killed}, {what}, started again after {away_s:.2f} s")

    def controller(self) -> None:
        """Kill the controller."""
        found = self._admin.describe_cluster(request_timeout=LIMIT_S).result(LIMIT_S).controller
        node = self._nodes[found.id] if found is not None and found.id > 0 else self._any()
        self._kill("controller", node)
        node.start()

    def broker_twice(self) -> None:
        """Kill a broker, and again while it recovers."""
        node = self._any()
        self._kill("broker", node)
        node.begin()
        time.sleep(self._random.uniform(0.1, 1.5))
        self._kill("recovering broker", node)
        node.start()

    def two_brokers(self) -> None:
        """Kill two brokers at once: with two in-sync replicas wanted, nothing is acknowledged until one is back."""
        chosen = self._random.sample(list(self._nodes), 2)
        for node in chosen:
            self._kill("one of two brokers", node)
        time.sleep(self._random.uniform(0.0, 1.0))
        self._start(chosen)

    def all_brokers(self) -> None:
        """Kill all brokers at once."""
        for node in self._nodes:
            self._kill("one of all brokers", node)
        self._start(list(self._nodes))

    def etcd(self) -> None:
        """Kill etcd, let leaders go on for a while, and start it again."""
        self._store.kill()
        self.kills["etcd"] += 1
        time.sleep(self._random.uniform(0.0, 3.0))
        self._store.start()

    def _any(self) -> WarmlogNode:
        return self._random.choice(list(self._nodes))

    def _kill(self, kind: str, node: WarmlogNode) -> None:
        node.kill()
        self.kills[kind] += 1

    @staticmethod
    def _start(nodes: Sequence[WarmlogNode]) -> None:
        for node in nodes:
            node.begin()
        for node in nodes:
            node.wait_until_ready()

    def _leaders(self) -> dict[int, int]:
        topic = self._admin.list_topics("t", timeout=LIMIT_S).topics["t"]
        return {index: partition.leader for index, partition in topic.partitions.items()}


def run(directory: Path, seed: int, kills: int, seconds: float) -> dict[str, object]:
    """Run a cluster until so many kills, or seconds, have passed; return the report."""
    ends_s = time.monotonic() + seconds
    with (
        etcd(directory / "etcd") as members,
        WarmlogNodes(directory, members[0].url, settings=SETTINGS, has_racks=True) as nodes,
    ):
        admin = AdminClient({"bootstrap.servers": nodes.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in ("t", "out")]).values():
            future.result(LIMIT_S)
        transform = Transform(nodes.bootstrap, "t", "out")
        with transform:
            with Load(nodes.bootstrap, "t", PARTITIONS, rate=RATE, racks=("", "rack-2")) as load:
                load.wait_for(SETTLED, limit_s=LIMIT_S)
                killer = Killer(nodes, members[0], load, Random(seed))
                while killer.kills.total() < kills and time.monotonic() < ends_s:
                    killer.round()
            histories = load.histories(nodes.bootstrap)
        values = {read.value for history in histories.values() for read in history.log}
        anomalies = {index: found for index, history in histories.items() if (found := history.anomalies())}
        wrong = [*map(str, load.failures), *transform.findings(values, PARTITIONS), *load.undelivered]
        wrong += [f"{index}: {anomaly}" for index, found in anomalies.items() for anomaly in found]
        return {
            "seed": seed,
            "kills": dict(killer.kills),
            "records": load.acknowledged,
            "transactions": transform.committed,
            "aborted": transform.aborted,
            "gaps_s": sorted(round(gap, 3) for gap in killer.gaps_s),
            "long_gaps": killer.long_gaps,
            "wrong": wrong,
            "problems": transform.problems[-20:],
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=240.0, help="no round begins after that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="append the report to this file, one object per line")
    asked = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="kills-"))
    report = run(directory, asked.seed, asked.kills, asked.seconds)
    gaps = report["gaps_s"]
    if isinstance(gaps, list) and len(gaps) > 1:
        cuts = quantiles(gaps, n=100, method="inclusive")
        print(
            f"gap of a partition whose leader was killed: p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s, {len(gaps)} gaps"
        )
    return conclude(report, directory, asked.json)


if __name__ == "__main__":
    sys.exit(main())
