"""Run Kafka's task assignor: `python -m interop.kafka_task_assignor` compares it with this broker's.

It prints the number of moved active tasks and the time: for Kafka the minimum of five runs on a warm JVM, for this
broker the processor time of one run.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from interop.kafka_node import PROJECT, WIRE_VERSION, java
from tests.broker.groups.streams.assigning import Group, Size, moved
from warmlog.broker.groups.streams.assignor.sticky import TaskMember
from warmlog.broker.groups.streams.tasks import Tasks

PROGRAM = PROJECT / "src" / "latest" / "java" / "warmlog" / "interop" / "TaskAssignments.java"
TASKS = 10_000


class Answer(NamedTuple):
    """An assignment, and the time of the fastest run in nanoseconds."""

    assigned: dict[str, Tasks]
    ns: int


def ask(groups: Iterable[Group], times: int = 1) -> list[Answer]:
    """Run Kafka's assignor."""
    lines = "".join(_line(group, times) for group in groups)
    return [_answer(json.loads(line)) for line in java(str(PROGRAM), text=lines, version=WIRE_VERSION).splitlines()]


def _line(group: Group, times: int) -> str:
    members = {}
    for member_id in sorted(group.members):
        member = group.members[member_id]
        offsets: dict[str, dict[int, int]] = {}
        for (subtopology_id, partition), offset in member.offsets.items():
            offsets.setdefault(subtopology_id, {})[partition] = offset
        members[member_id] = {
            "process": member.process_id,
            "active": dict(member.tasks.active),
            "standby": dict(member.tasks.standby),
            "offsets": offsets,
        }
    subtopologies = {
        each: (group.subtopologies[each].number_of_tasks, group.subtopologies[each].is_stateful)
        for each in sorted(group.subtopologies)
    }
    fields = {"members": members, "subtopologies": subtopologies, "standby_replicas": group.standby_replicas}
    return json.dumps({**fields, "times": times}) + "\n"


def _answer(fields: Mapping[str, Mapping[str, Mapping[str, Mapping[str, list[int]]]]]) -> Answer:
    def in_order(tasks: Mapping[str, list[int]]) -> dict[str, tuple[int, ...]]:
        return {subtopology_id: tuple(tasks[subtopology_id]) for subtopology_id in sorted(tasks)}

    assigned = {
        member_id: Tasks(active=in_order(each["active"]), standby=in_order(each["standby"]))
        for member_id, each in fields["members"].items()
    }
    return Answer(assigned, int(str(fields["ns"])))


def _groups() -> Iterator[tuple[str, Group]]:
    """Return groups with 10,000 tasks, by kind of change of their processes."""
    for processes, threads, parts, replicas in ((1, 1, 1, 0), (100, 1, 10, 0), (100, 10, 10, 1), (1000, 1, 100, 1)):
        title = f"{processes} processes, {threads} threads, {parts} subtopologies, {replicas} standby"
        subtopologies = {f"{number:03}": Size(TASKS // parts, True) for number in range(parts)}
        members = {
            f"m{process:04}-{thread:02}": TaskMember(f"p{process:04}")
            for process in range(processes)
            for thread in range(threads)
        }
        group = Group(members, subtopologies, replicas)
        yield f"{title}: first", group
        full = group.assigned()
        if processes > 1:
            left = {each: member for each, member in full.members.items() if member.process_id != "p0001"}
            yield f"{title}: one leaves", full._replace(members=left)
        yield f"{title}: one comes", full._replace(members={**full.members, "new": TaskMember("new")})


def main() -> None:
    """Print the comparison as a table."""
    groups = dict(_groups())
    print(f"{'':68} {'moved':>6} {'Kafka':>6} {'ms':>6} {'Kafka':>6}")
    for (title, group), kafkas in zip(groups.items(), ask(groups.values(), 5), strict=True):
        begun = time.process_time()
        ours = group.assign()
        taken_ms = (time.process_time() - begun) * 1e3
        moves = [moved(group, assigned) for assigned in (ours, kafkas.assigned)]
        print(f"{title:68} {moves[0]:6} {moves[1]:6} {taken_ms:6.1f} {kafkas.ns / 1e6:6.1f}")


if __name__ == "__main__":
    main()
