"""Kill members, brokers and coordinators of a share group again and again, and judge what Java's members saw.

    python -m tests.cluster.share_kills [--brokers N] [--processes P] [--members M] [--kills N] [--seed SEED]

One broker, or three on etcd, with a producer and processes of KafkaShareConsumers, whose members accept, renew, release
and acknowledge implicitly. Each kill with SIGKILL hits a process of members, the leader of a partition, a share
coordinator, the group coordinator, all brokers, or a broker and again while it recovers; or members are frozen for
longer than their locks last. Afterwards each record must have ended, and nothing acknowledged may have been delivered
again (`share_history`). The exit status is 1 if anything is wrong.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from interop.compare.wire import BY_NAME, ClosedError, Connection
from interop.nodes import Nodes
from interop.warmlog_nodes import WarmlogNode
from tests.cluster.broker_kills import LIMIT_S, BrokerKiller, ask, coordinator, running
from tests.cluster.group_clients import Members, Producing
from tests.cluster.report import conclude
from tests.cluster.share_history import Event, anomalies, parse, stale
from warmlog.protocol.kafka.messages.common import topic_id_text

TOPIC, GROUP = "jobs", "workers"
PARTITIONS = 4
FROZEN_S = 6.0  # longer than locks and sessions last
QUIET_S = 3.0  # in which a last member must get nothing
MAX_DELIVERIES = 10
GROUP_KEYS, SHARE_KEYS = 0, 2
MODES = ("explicit", "renew", "implicit", "release", "poll")
#: What to kill, and how often in relation to each other.
WEIGHTS = {
    "members": 6,
    "leader": 3,
    "share coordinator": 3,
    "group coordinator": 2,
    "recovering broker": 1,
    "all brokers": 1,
    "frozen members": 1,
}
SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "share.coordinator.state.topic.num.partitions": 3,
    "share.coordinator.snapshot.update.records.per.snapshot": 50,
    "group.share.min.session.timeout.ms": 1000,
    "group.share.session.timeout.ms": 5000,
    "group.share.min.heartbeat.interval.ms": 500,
    "group.share.heartbeat.interval.ms": 1000,
    "group.share.min.record.lock.duration.ms": 1000,
    "group.share.record.lock.duration.ms": 5000,
    "group.share.delivery.count.limit": MAX_DELIVERIES,
    "group.share.initialize.retry.interval.ms": 2000,
}


class ShareMembers(Members):
    """A process of members of the share group."""

    def __init__(self, name: str, bootstrap: str, modes: Sequence[str]) -> None:
        self.events: list[Event] = []
        self._name, self._started_ms = name, int(time.time() * 1000)
        super().__init__("ShareMembers", bootstrap, GROUP, TOPIC, *modes)

    def _take(self, line: str) -> str:
        event = parse(line, self._name, self._started_ms)
        if not isinstance(event, Event):
            return event or ""
        self.events.append(event)
        return ""


class Killer(BrokerKiller):
    """Kills processes of members and brokers, and starts them again."""

    def __init__(self, nodes: Nodes[WarmlogNode], processes: int, members: int, random: Random) -> None:
        super().__init__(nodes, random)
        self.ended: list[ShareMembers] = []
        self._members = members
        self._started = 0
        self._running = [self._start() for _ in range(processes)]

    def _start(self) -> ShareMembers:
        first = self._started * self._members
        self._started += 1
        modes = [MODES[(first + number) % len(MODES)] for number in range(self._members)]
        return ShareMembers(str(self._started), self._nodes.bootstrap, modes)

    @property
    def every(self) -> Sequence[ShareMembers]:
        """All processes of members so far."""
        return [*self.ended, *self._running]

    def accepted(self) -> int:
        """Return the number of accepted records so far."""
        return sum(event.kind == "accepted" for members in self.every for event in list(members.events))

    def round(self, kind: str) -> None:
        """Kill something, and wait until records are accepted again."""
        before = self.accepted()
        {
            "members": self._members_process,
            "leader": lambda: self.leader("leader", TOPIC),
            "share coordinator": self._share_coordinator,
            "group coordinator": lambda: self.coordinator("group coordinator", GROUP_KEYS, GROUP),
            "recovering broker": self.recovering,
            "all brokers": self.all,
            "frozen members": self._freeze,
        }[kind]()
        ends_s = time.monotonic() + LIMIT_S
        while self.accepted() <= before:
            if time.monotonic() > ends_s:
                raise TimeoutError(f"no record was accepted in {LIMIT_S:.0f} s after kills {dict(self.kills)}")
            time.sleep(0.05)
        time.sleep(self._random.uniform(0.0, 1.0))

    def _members_process(self) -> None:
        """Kill a process of members, and start another one."""
        index = self._random.randrange(len(self._running))
        self.kills["members"] += 1
        self._running[index].kill()
        self.ended.append(self._running[index])
        self._running[index] = self._start()

    def _share_coordinator(self) -> None:
        """Kill the share coordinator of a partition."""
        metadata = ask(self._nodes, "Metadata", 12, {"topics": [{"topic_id": bytes(16), "name": TOPIC}]})
        topic_id = topic_id_text(metadata["topics"][0]["topic_id"])
        key = f"{GROUP}:{topic_id}:{self._random.randrange(PARTITIONS)}"
        self.coordinator("share coordinator", SHARE_KEYS, key)

    def _freeze(self) -> None:
        """Let members stand still until their locks have run out."""
        with self._random.choice(self._running).frozen():
            time.sleep(FROZEN_S)
        self.kills["frozen members"] += 1

    def wait_until_done(self) -> Mapping[int, tuple[int, int]]:
        """Wait until all records have ended; return start offset and lag of the partitions where they have not."""
        ends_s = time.monotonic() + LIMIT_S
        while (left := self._left()) and time.monotonic() < ends_s:
            time.sleep(0.3)
        return left

    def _left(self) -> Mapping[int, tuple[int, int]]:
        found = self._nodes.nodes.get(coordinator(self._nodes, GROUP_KEYS, GROUP))
        left = dict.fromkeys(range(PARTITIONS), (-1, -1))
        if found is None:
            return left
        with suppress(OSError, ClosedError), Connection(found.bootstrap) as connection:
            request = {"groups": [{"group_id": GROUP, "topics": None}]}
            connection.send(BY_NAME["DescribeShareGroupOffsets"], 1, request)
            for topic in connection.receive(LIMIT_S)["groups"][0]["topics"]:
                for partition in topic["partitions"]:
                    if not partition["error_code"]:
                        left[partition["partition_index"]] = (partition["start_offset"], partition["lag"])
        return {index: (start, lag) for index, (start, lag) in left.items() if lag}

    def stop(self) -> None:
        """Let all members leave."""
        for members in self._running:
            members.stop()
            self.ended.append(members)
        self._running.clear()

    def kill(self) -> None:
        """Kill all members."""
        for members in self._running:
            members.kill()

    def late(self) -> Sequence[Event]:
        """Return what a member gets that joins last."""
        last = self._start()
        self.ended.append(last)
        time.sleep(QUIET_S + 2.0)
        last.stop()
        return [event for event in last.events if event.kind == "delivered"]


def prepare(bootstrap: str, replicas: int) -> None:
    """Create the topic, and let the group begin at its first records."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, replicas)])[TOPIC].result(LIMIT_S)
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=[earliest])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(LIMIT_S)


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
        prepare(nodes.bootstrap, brokers)
        began_s = time.monotonic()
        killer = Killer(nodes, processes, members, Random(seed))
        first = iter(kinds)
        try:
            with Producing(nodes.bootstrap, TOPIC, PARTITIONS) as producing:
                while killer.kills.total() < kills and time.monotonic() < began_s + seconds:
                    killer.round(next(first, None) or killer.any_kind(WEIGHTS))
            wrong += [f"{index}: not done, start and lag {left}" for index, left in killer.wait_until_done().items()]
            killer.stop()
            wrong += [f"delivered to a last member: {event}" for event in killer.late()]
        except TimeoutError as error:
            wrong.append(str(error))
        finally:
            killer.kill()
    events = [event for each in killer.every for event in each.events]
    failures = sum((each.failures for each in killer.every), Counter[str]())
    return {
        "seed": seed,
        "kills": dict(killer.kills),
        "seconds": round(time.monotonic() - began_s),
        "produced": len(producing.produced),
        "events": dict(Counter(event.kind for event in events)),
        "largest_count": max((event.deliveries for event in events), default=0),
        "stale": stale(events),
        "wrong": [*wrong, *anomalies(producing.produced, events, MAX_DELIVERIES)],
        "failures": dict(failures.most_common(12)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.share_kills", description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--processes", type=int, default=2, help="of members")
    parser.add_argument("--members", type=int, default=1, help="in each process")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=240.0, help="no kill begins after that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="append the report to this file, one object per line")
    asked = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="share-kills-"))
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
