"""Kill members, brokers and coordinators of a consumer group (KIP-848), and judge what Java's consumers saw.

    python -m tests.cluster.consumer_kills [--brokers N] [--processes P] [--members M] [--kills N] [--seed SEED]

One broker, or three on etcd, with a producer and processes of KafkaConsumers with `group.protocol=consumer`. Each kill
with SIGKILL hits a process of members, the leader of a partition, the group coordinator, all brokers, or a broker and
again while it recovers. The invariants are those of `consumer_history`. The exit status is 1 if anything is wrong.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from interop.nodes import Nodes
from interop.warmlog_nodes import WarmlogNode
from tests.cluster.broker_kills import LIMIT_S, BrokerKiller, running
from tests.cluster.consumer_history import Event, Record, anomalies, parse
from tests.cluster.group_clients import Members, Producing
from tests.cluster.report import conclude

TOPIC, GROUP = "orders", "readers"
PARTITIONS = 6
GROUP_KEYS = 0
#: What to kill, and how often in relation to each other.
WEIGHTS = {"members": 6, "leader": 3, "group coordinator": 4, "recovering broker": 1, "all brokers": 1}
SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 8000,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.heartbeat.interval.ms": 500,
}


class GroupMembers(Members):
    """A process of members of the consumer group."""

    def __init__(self, name: str, bootstrap: str, members: int) -> None:
        self.name = name
        self.events: list[Event] = []
        self.killed_us: int | None = None
        super().__init__("GroupMembers", bootstrap, GROUP, TOPIC, str(members))

    def _take(self, line: str) -> str:
        event = parse(line, self.name)
        if not isinstance(event, Event):
            return event or ""
        self.events.append(event)
        return ""

    def kill(self) -> None:
        """Kill the process, and return when its events are read."""
        self.killed_us = time.monotonic_ns() // 1000
        super().kill()


class Killer(BrokerKiller):
    """Kills processes of members and brokers, and starts them again."""

    def __init__(self, nodes: Nodes[WarmlogNode], processes: int, members: int, random: Random) -> None:
        super().__init__(nodes, random)
        self._members = members
        self.every: list[GroupMembers] = []
        self._running = [self._start() for _ in range(processes)]

    def _start(self) -> GroupMembers:
        started = GroupMembers(str(len(self.every)), self._nodes.bootstrap, self._members)
        self.every.append(started)
        return started

    def consumed(self) -> set[Record]:
        """Return the records that were consumed so far."""
        events = [event for members in self.every for event in list(members.events)]
        return {(event.partition, event.offset) for event in events if event.kind == "consumed"}

    def round(self, kind: str) -> None:
        """Kill something, and wait until records of all partitions are consumed again."""
        {
            "members": self._members_process,
            "leader": lambda: self.leader("leader", TOPIC),
            "group coordinator": lambda: self.coordinator("group coordinator", GROUP_KEYS, GROUP),
            "recovering broker": self.recovering,
            "all brokers": self.all,
        }[kind]()
        before = Counter(partition for partition, _ in self.consumed())
        ends_s = time.monotonic() + LIMIT_S
        while True:
            now = Counter(partition for partition, _ in self.consumed())
            if all(now[partition] > before[partition] for partition in range(PARTITIONS)):
                break
            if time.monotonic() > ends_s:
                raise TimeoutError(f"a partition was not consumed for {LIMIT_S:.0f} s after kills {dict(self.kills)}")
            time.sleep(0.1)

    def _members_process(self) -> None:
        """Kill a process of members, and start another one."""
        index = self._random.randrange(len(self._running))
        self.kills["members"] += 1
        self._running[index].kill()
        self._running[index] = self._start()

    def wait_for(self, produced: Sequence[Record]) -> None:
        """Wait until these records are consumed."""
        ends_s = time.monotonic() + LIMIT_S
        while not self.consumed().issuperset(produced) and time.monotonic() < ends_s:
            time.sleep(0.3)

    def stop(self) -> None:
        """Let all members leave."""
        for members in self._running:
            members.stop()
        self._running.clear()

    def kill(self) -> None:
        """Kill all members."""
        for members in self._running:
            members.kill()


def run(
    directory: Path,
    *,
    brokers: int,
    processes: int,
    members: int,
    kills: int,
    seconds: float,
    seed: int,
    kinds: Iterable[str] = (),
) -> dict[str, Any]:
    """Run until so many kills, or seconds, have passed; return the report. `kinds`: what to kill first."""
    wrong: list[str] = []
    with running(directory, brokers, SETTINGS) as nodes:
        admin = AdminClient({"bootstrap.servers": nodes.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, brokers)])[TOPIC].result(LIMIT_S)
        began_s = time.monotonic()
        killer = Killer(nodes, processes, members, Random(seed))
        first = iter(kinds)
        try:
            with Producing(nodes.bootstrap, TOPIC, PARTITIONS) as producing:
                while killer.kills.total() < kills and time.monotonic() < began_s + seconds:
                    killer.round(next(first, None) or killer.any_kind(WEIGHTS))
            killer.wait_for(producing.produced)
            killer.stop()
        except TimeoutError as error:
            wrong.append(str(error))
        finally:
            killer.kill()
    events = [event for each in killer.every for event in each.events]
    killed_us = {each.name: each.killed_us for each in killer.every if each.killed_us is not None}
    return {
        "seed": seed,
        "kills": dict(killer.kills),
        "seconds": round(time.monotonic() - began_s),
        "produced": len(producing.produced),
        "events": dict(Counter(event.kind for event in events)),
        "wrong": [*wrong, *anomalies(producing.produced, events, killed_us)],
        "failures": dict(sum((each.failures for each in killer.every), Counter[str]()).most_common(12)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.consumer_kills", description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--processes", type=int, default=3, help="of members")
    parser.add_argument("--members", type=int, default=1, help="in each process")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=240.0, help="no kill begins after that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="append the report to this file, one object per line")
    asked = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="consumer-kills-"))
    report = run(
        directory,
        brokers=asked.brokers,
        processes=asked.processes,
        members=asked.members,
        kills=asked.kills,
        seconds=asked.seconds,
        seed=asked.seed,
    )
    return conclude(report, directory, asked.json)


if __name__ == "__main__":
    sys.exit(main())
