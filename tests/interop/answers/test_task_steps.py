"""Members of streams groups moved towards their targets by this broker and by Kafka's own rules, from the same states.

A state is consistent: an active task has one owner, and a process has a task once.
"""

import json
from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

import pytest

from interop.kafka_node import PROJECT, WIRE_VERSION, java
from warmlog.broker.groups.streams.holding import (
    CurrentTasks,
    Holding,
    StreamsMemberState,
    current_assignment,
    target_of,
)
from warmlog.broker.groups.streams.reconciliation import goal_of, reconcile
from warmlog.broker.groups.streams.stored import StoredStreamsGroup
from warmlog.broker.groups.streams.tasks import Tasks, task_map
from warmlog.protocol.kafka.consumer_group_records import TargetEpoch
from warmlog.protocol.kafka.streams_group_records import (
    StreamsCurrentKey,
    StreamsMemberKey,
    StreamsMemberMetadata,
    StreamsTargetEpochKey,
    StreamsTargetKey,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PROGRAM = PROJECT / "src" / "latest" / "java" / "warmlog" / "interop" / "TaskSteps.java"
CASES = 3000
EPOCH, TARGET_EPOCH = 5, 9
TASKS = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
KINDS = ("active", "standby", "warmup")
MEMBERS = {"m": "p", "n": "p", "o": "q"}


class Case(NamedTuple):
    """A group, and the tasks that its member `m` reports."""

    group: StoredStreamsGroup
    owned: Tasks | None


def random_case(seed: int) -> Case:
    """Return a group whose members have tasks, and a target that has others for one of them."""
    random = Random(seed)
    held: dict[str, list[tuple[str, tuple[str, int]]]] = {member_id: [] for member_id in MEMBERS}
    for task in TASKS:
        owners = ["p", "q"]
        random.shuffle(owners)
        is_active = random.random() < 0.8
        for process in owners[: random.randint(0, 2)]:
            member_id = random.choice([each for each, at in MEMBERS.items() if at == process])
            held[member_id].append(("active" if is_active else random.choice(KINDS[1:]), task))
            is_active = False
    group = StoredStreamsGroup("g")
    for member_id, process in MEMBERS.items():
        metadata = StreamsMemberMetadata(client_id="c", client_host="/h", topology_epoch=0, process_id=process)
        group.apply(StreamsMemberKey("g", member_id), metadata)
        state = random.choice(list(StreamsMemberState))
        is_revoking = state is StreamsMemberState.UNREVOKED_TASKS
        given_up = {each for each in held[member_id] if is_revoking and random.random() < 0.5}
        kept = [each for each in held[member_id] if each not in given_up]
        value = current_assignment(EPOCH, EPOCH, int(state), _holding(random, kept), _holding(random, given_up))
        group.apply(StreamsCurrentKey("g", member_id), value)
    target = Tasks(*[task_map(random.sample(TASKS, random.randint(0, 4))) for _ in range(1)], *_replicas(random))
    target = _once(target)
    group.apply(StreamsTargetKey("g", "m"), target_of(target))
    group.apply(StreamsTargetEpochKey("g"), TargetEpoch(epoch=random.choice([EPOCH, TARGET_EPOCH, TARGET_EPOCH])))
    owned = None
    if random.random() < 0.7:
        reported = [each for each in held["m"] if random.random() < 0.6]
        owned = Tasks(*[task_map(task for kind, task in reported if kind == wanted) for wanted in KINDS])
    return Case(group, owned)


def _holding(random: Random, held: Any) -> Holding:
    tasks = {kind: task_map(task for each, task in held if each == kind) for kind in KINDS}
    active = {each: {number: random.randint(1, EPOCH) for number in tasks["active"][each]} for each in tasks["active"]}
    standby, warmup = ({each: frozenset(numbers) for each, numbers in tasks[kind].items()} for kind in KINDS[1:])
    return Holding(active, standby, warmup)


def _replicas(random: Random) -> tuple[Mapping[str, tuple[int, ...]], Mapping[str, tuple[int, ...]]]:
    return task_map(random.sample(TASKS, random.randint(0, 3))), task_map(random.sample(TASKS, random.randint(0, 2)))


def _once(target: Tasks) -> Tasks:
    """Return a target that has each task once."""
    pairs = {kind: {(each, n) for each, ns in getattr(target, kind).items() for n in ns} for kind in KINDS}
    standby = pairs["standby"] - pairs["active"]
    return Tasks(target.active, task_map(standby), task_map(pairs["warmup"] - standby - pairs["active"]))


def line(case: Case) -> str:
    group = case.group
    current = group.current("m")
    owners: dict[str, Any] = {}
    for kind, find in (("standby", group.standby_owners), ("warmup", group.warmup_owners)):
        owners[kind] = {
            each: {
                str(n): sorted({MEMBERS[member] for member in find(each).get(n, ())})
                for name, n in TASKS
                if name == each
            }
            for each in ("a", "b")
        }
    active: dict[str, dict[str, str]] = {}
    for each, number in TASKS:
        owner = group.owners(each).get(number)
        if owner is not None:
            active.setdefault(each, {})[str(number)] = MEMBERS[owner]
    owned = None if case.owned is None else {kind: dict(getattr(case.owned, kind)) for kind in KINDS}
    target = group.target("m").tasks
    fields = {
        "epoch": current.epoch,
        "state": current.value.state,
        "process": MEMBERS["m"],
        "assigned": printed(current.assigned),
        "to_revoke": printed(current.to_revoke),
        "target_epoch": group.target_epoch.epoch,
        "target": {kind: dict(getattr(target, kind)) for kind in KINDS},
        "owned": owned,
        "active": active,
        **owners,
    }
    return json.dumps(fields) + "\n"


def printed(holding: Holding) -> dict[str, Any]:
    active = {each: {str(n): epoch for n, epoch in epochs.items()} for each, epochs in holding.active.items()}
    standby, warmup = ({each: sorted(ns) for each, ns in kind.items()} for kind in (holding.standby, holding.warmup))
    return {"active": active, "standby": standby, "warmup": warmup}


def stepped(case: Case) -> dict[str, Any]:
    after: CurrentTasks = reconcile(case.group.current("m"), goal_of(case.group, "m"), case.owned)
    return {
        "epoch": after.epoch,
        "previous": after.value.previous_epoch,
        "state": after.value.state,
        "assigned": printed(after.assigned),
        "to_revoke": printed(after.to_revoke),
    }


def test_members_move_as_kafka_moves_them() -> None:
    cases = [random_case(seed) for seed in range(CASES)]
    answers = java(str(PROGRAM), text="".join(map(line, cases)), version=WIRE_VERSION).splitlines()
    for seed, (case, answer) in enumerate(zip(cases, answers, strict=True)):
        assert stepped(case) == json.loads(answer), (seed, line(case))
