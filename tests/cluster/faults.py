"""Make faults in a cluster under load, one after the other, and judge what its clients saw.

    unshare --net --mount python -m tests.cluster.faults [--rounds N] [--seconds S] [--seed SEED] [--fault NAME]

Three brokers and three members of etcd, each in a network namespace of its own, brokers on small disks of their own;
two idempotent producers and a consumer in this namespace. Each round makes a fault at a leader, and keeps it until all
partitions have acknowledged records that were sent after its beginning. When it has ended, they have to do so again,
and to have all their replicas in sync. Afterwards nothing acknowledged may be lost, doubled, skipped or reordered. The
exit status is 1 if anything is wrong.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from interop.warmlog_nodes import WarmlogNodes
from tests.broker.cluster.etcd_process import etcd
from tests.cluster.fault_kinds import BROKERS, CLIENTS, STORE, STORE_BYTES, Faults, small_disks
from tests.cluster.load import Load
from tests.cluster.report import conclude
from tests.cluster.switch import NO_NETWORK, NetworkError, Switch
from tests.cluster.transform import Transform

PARTITIONS = 6
RATE = 100.0  # records per second of each producer
LIMIT_S = 100.0
LEASE_S = 6.0  # as by default
# A record that its producer gives up on may be stored twice: librdkafka sends it again with a new epoch.
PRODUCER = {"delivery.timeout.ms": 300_000}
QUOTA = ("--quota-backend-bytes", str(STORE_BYTES))
SETTINGS = {"offsets.topic.num.partitions": 4}


class Rounds:
    """Makes faults, and measures how long each partition took no records."""

    def __init__(self, faults: Faults, nodes: WarmlogNodes, load: Load, random: Random) -> None:
        self.gaps_s: dict[str, list[float]] = defaultdict(list)  # by fault, of the partitions that the broker led
        self.healed_s: dict[str, list[float]] = defaultdict(list)  # until all replicas were in sync again
        self._faults, self._load, self._random = faults, load, random
        self._admins = [AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0}) for node in nodes]

    def round(self, fault: str) -> None:
        """Make a fault at the leader of a partition, and heal it. Raises TimeoutError."""
        leaders = {index: partition.leader for index, partition in _partitions(self._admins[0]).items()}
        leader = leaders[self._random.randrange(PARTITIONS)]
        began_s = time.monotonic()
        kind = self._faults.kinds[fault]
        with kind.make(leader):
            time.sleep(kind.at_least_s)
            if kind.goes_on:
                self._load.wait_until_written(time.monotonic(), limit_s=LIMIT_S)
        healed_s = time.monotonic()
        acknowledged = self._load.wait_until_written(healed_s, limit_s=LIMIT_S)
        for index, led_by in leaders.items():
            if led_by == leader:
                times_s = [one.at_s for one in acknowledged if one.partition == index and one.at_s > began_s - 1]
                self.gaps_s[fault].append(max(after - before for before, after in pairwise(times_s)))
        self._wait_until_in_sync(fault)
        self.healed_s[fault].append(time.monotonic() - healed_s)

    def _wait_until_in_sync(self, fault: str) -> None:
        """Wait until every broker says so: one that was cut off may not know yet what happened meanwhile."""
        limit_s = time.monotonic() + LIMIT_S
        for admin in self._admins:
            while missing := [one for one in _partitions(admin).values() if len(one.isrs) < len(BROKERS)]:
                if time.monotonic() > limit_s:
                    places = ", ".join(f"{one.id}: {sorted(one.isrs)}" for one in missing)
                    raise TimeoutError(f"after {fault!r}, replicas are still out of sync: {places}")


def _partitions(admin: AdminClient) -> Mapping[int, PartitionMetadata]:
    found: Mapping[int, PartitionMetadata] = admin.list_topics("t", timeout=LIMIT_S).topics["t"].partitions
    return found


def run(
    directory: Path,
    seed: int,
    rounds: int,
    seconds: float,
    faults: Sequence[str],
    *,
    is_synced: bool = False,
    transforms: bool = False,
) -> dict[str, Any]:
    """Run a cluster through so many rounds, or seconds; return the report. Raises NetworkError."""
    random, ends_s = Random(seed), time.monotonic() + seconds
    switch = Switch(seed)
    try:
        switch.plug(CLIENTS)
        places, store_places = ([switch.plug(n, f"warmlog-{n}-{os.getpid()}") for n in ns] for ns in (BROKERS, STORE))
    except NetworkError:
        switch.remove()
        raise
    with (
        switch,
        small_disks([directory / f"node-{number}" for number in BROKERS]),
        etcd(directory / "etcd", places=store_places, options=QUOTA) as store,
        WarmlogNodes(
            directory, ",".join(member.url for member in store), settings=SETTINGS, places=places, has_racks=True
        ) as nodes,
    ):
        admin = AdminClient({"bootstrap.servers": nodes.bootstrap, "log_level": 0})
        configs = {"flush.messages": "1"} if is_synced else {}
        topics = [NewTopic(name, PARTITIONS, len(BROKERS), config=configs) for name in ("t", "out")]
        for future in admin.create_topics(topics).values():
            future.result(LIMIT_S)
        made_by = Faults(switch, nodes, store, random, LEASE_S)
        wrong, made = [], 0
        transform = Transform(nodes.bootstrap, "t", "out")
        with ExitStack() as until_copied:
            if transforms:
                until_copied.enter_context(transform)
            load = until_copied.enter_context(
                Load(
                    nodes.bootstrap,
                    "t",
                    PARTITIONS,
                    rate=RATE,
                    racks=("", "rack-2"),
                    producer_settings=PRODUCER,
                    keeps_watermarks=False,
                )
            )
            load.wait_for(100, limit_s=LIMIT_S)
            judged = Rounds(made_by, nodes, load, random)
            chosen = list(faults or made_by.kinds)
            try:
                while made < rounds and time.monotonic() < ends_s:
                    name = chosen[made] if made < len(chosen) else random.choice(chosen)
                    print(f"round {made + 1}: {name}", file=sys.stderr)
                    judged.round(name)
                    made += 1
            except TimeoutError as error:
                wrong.append(f"round {made}, {name}: {error}")
                switch.heal()
        histories = load.histories(nodes.bootstrap)
        wrong += [*map(str, load.failures), *load.undelivered]
        wrong += [f"{index}: {anomaly}" for index, history in histories.items() for anomaly in history.anomalies()]
        if transforms:
            values = {read.value for history in histories.values() for read in history.log}
            wrong += transform.findings(values, PARTITIONS)
        return {
            "seed": seed,
            "rounds": made,
            "records": load.acknowledged,
            "transactions": transform.committed,
            "aborted": transform.aborted,
            "problems": transform.problems[-20:],
            "gaps_s": {name: sorted(round(gap, 2) for gap in gaps) for name, gaps in judged.gaps_s.items()},
            "healed_s": {name: sorted(round(each, 2) for each in times) for name, times in judged.healed_s.items()},
            "wrong": wrong,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=240.0, help="no round begins after that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--json", type=Path, help="append the report to this file, one object per line")
    parser.add_argument("--synced", action="store_true", help="acknowledge what is on the disks of all replicas")
    parser.add_argument("--transform", action="store_true", help="copy all records to another topic in transactions")
    parser.add_argument("--directory", type=Path, help="for logs and data; by default a new one")
    asked = parser.parse_args(arguments)
    directory = asked.directory or Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        report = run(
            directory,
            asked.seed,
            asked.rounds,
            asked.seconds,
            asked.fault,
            is_synced=asked.synced,
            transforms=asked.transform,
        )
    except NetworkError as error:
        print(f"faults: {error}", file=sys.stderr)
        return NO_NETWORK
    return conclude(report, directory, asked.json)


if __name__ == "__main__":
    sys.exit(main())
