"""One step of a member towards its target, as a table (source: Kafka's CurrentAssignmentBuilderTest, 4.4)."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import pytest

from warmlog.broker.groups.streams.holding import CurrentTasks, Holding, StreamsMemberState, current_assignment
from warmlog.broker.groups.streams.reconciliation import TaskGoal, reconcile
from warmlog.broker.groups.streams.tasks import Tasks

STABLE, UNREVOKED, UNRELEASED = StreamsMemberState
MINE, OTHER = "mine", "other"  # processes
Numbers = Collection[int]
NONE: Numbers = frozenset()


def holding(active: Mapping[int, int] | None = None, standby: Numbers = NONE, warmup: Numbers = NONE) -> Holding:
    """Return tasks of the only subtopology: the epochs of active ones, and replicas."""
    return Holding(
        {"0": active} if active else {},
        {"0": frozenset(standby)} if standby else {},
        {"0": frozenset(warmup)} if warmup else {},
    )


def tasks(active: Numbers = NONE, standby: Numbers = NONE, warmup: Numbers = NONE) -> Tasks:
    return Tasks(*[{"0": tuple(sorted(numbers))} if numbers else {} for numbers in (active, standby, warmup)])


def member(
    state: int, epoch: int, assigned: Holding, to_revoke: Holding | None = None, previous: int = 0
) -> CurrentTasks:
    return CurrentTasks.of(current_assignment(epoch, previous, int(state), assigned, to_revoke or Holding()))


class Case(NamedTuple):
    """`active`, `standby`, `warmup`: the processes of other members that have a task. The target is of epoch 11."""

    name: str
    before: CurrentTasks
    target: Tasks
    after: CurrentTasks
    owned: Tasks | None = None
    active: Mapping[int, str] = {}
    standby: Mapping[int, str] = {}
    warmup: Mapping[int, str] = {}


HELD = holding({1: 9, 2: 9}, {3})
CASES = [
    Case(
        "a stable member without changes moves to the target's epoch",
        member(STABLE, 10, HELD),
        tasks({1, 2}, {3}),
        member(STABLE, 11, HELD, previous=10),
    ),
    Case(
        "a stable member in the target's epoch stays as it is",
        member(STABLE, 11, HELD),
        tasks({1}),
        member(STABLE, 11, HELD),
    ),
    Case(
        "a stable member gets what is free, with the target's epoch",
        member(STABLE, 10, HELD),
        tasks({1, 2, 4}, {3, 5}, {6}),
        member(STABLE, 11, holding({1: 9, 2: 9, 4: 11}, {3, 5}, {6}), previous=10),
    ),
    Case(
        "a stable member keeps its epoch while it has to give up tasks",
        member(STABLE, 10, HELD),
        tasks({2, 4}),
        member(UNREVOKED, 10, holding({2: 9}), holding({1: 9}, {3}), previous=10),
    ),
    Case(
        "tasks that it reports no longer are given up immediately",
        member(STABLE, 10, HELD),
        tasks({2, 4}),
        member(STABLE, 11, holding({2: 9, 4: 11}), previous=10),
        owned=tasks({2}),
    ),
    Case(
        "a member waits for an active task that any other member has",
        member(STABLE, 10, HELD),
        tasks({1, 2, 4}, {3}),
        member(UNRELEASED, 11, HELD, previous=10),
        active={4: OTHER},
    ),
    Case(
        "a member waits for a replica that its process has",
        member(STABLE, 10, HELD),
        tasks({1, 2}, {3, 4}, {5}),
        member(UNRELEASED, 11, HELD, previous=10),
        standby={4: MINE},
        warmup={5: MINE},
    ),
    Case(
        "a replica of another process does not matter",
        member(STABLE, 10, HELD),
        tasks({1, 2, 4}, {3, 5}),
        member(STABLE, 11, holding({1: 9, 2: 9, 4: 11}, {3, 5}), previous=10),
        active={5: OTHER},
        standby={4: OTHER, 5: OTHER},
    ),
    Case(
        "a member waits for an active task of which its process has a replica",
        member(STABLE, 10, HELD),
        tasks({1, 2, 4}, {3}),
        member(UNRELEASED, 11, HELD, previous=10),
        warmup={4: MINE},
    ),
    Case(
        "a member that has tasks to give up and does not report stays as it is",
        member(UNREVOKED, 10, holding({2: 9}), holding({1: 9})),
        tasks({2, 3}),
        member(UNREVOKED, 10, holding({2: 9}), holding({1: 9})),
    ),
    Case(
        "a member that has given up its tasks moves to the target's epoch",
        member(UNREVOKED, 10, holding({2: 9}), holding({1: 9})),
        tasks({2, 3}),
        member(STABLE, 11, holding({2: 9, 3: 11}), previous=10),
        owned=tasks({2}),
    ),
    Case(
        "a member that has given up its tasks may have to give up more",
        member(UNREVOKED, 8, holding({2: 7, 3: 7}), holding({1: 7})),
        tasks({3}),
        member(UNREVOKED, 9, holding({3: 7}), holding({2: 7}), previous=8),
        owned=tasks({2, 3}),
    ),
    Case(
        "a member that waits gets what has become free",
        member(UNRELEASED, 11, holding({1: 9})),
        tasks({1, 2}),
        member(STABLE, 11, holding({1: 9, 2: 11}), previous=11),
    ),
    Case(
        "a member that waits may have to give up tasks first",
        member(UNRELEASED, 10, holding({1: 9, 2: 9})),
        tasks({2, 3}),
        member(UNREVOKED, 10, holding({2: 9}), holding({1: 9}), previous=10),
    ),
    Case(
        "an active task becomes a standby task while it is given up",
        member(STABLE, 10, holding({1: 9, 2: 9})),
        tasks({2}, {1}),
        member(UNREVOKED, 10, holding({2: 9}, {1}), holding({1: 9}), previous=10),
    ),
    Case(
        "a standby task becomes active in one step",
        member(STABLE, 10, holding({1: 9}, {2})),
        tasks({1, 2}),
        member(STABLE, 11, holding({1: 9, 2: 11}), previous=10),
    ),
    Case(
        "a standby task that is to become active is kept until its owner gives it up",
        member(STABLE, 10, holding({1: 9}, {2})),
        tasks({1, 2}),
        member(UNRELEASED, 11, holding({1: 9}, {2}), previous=10),
        active={2: OTHER},
    ),
    Case(
        "replicas change their kind without being given up",
        member(STABLE, 10, holding({}, {1}, {2})),
        tasks(set(), {2}, {1}),
        member(STABLE, 11, holding({}, {2}, {1}), previous=10),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_member_takes_one_step(case: Case) -> None:
    mine = case.before
    held = [("active", mine.assigned.active), ("active", mine.to_revoke.active)]
    active = {n: "m" for _, each in held for n in each.get("0", {})} | {n: f"{at}-1" for n, at in case.active.items()}
    standby = {n: {f"{at}-1"} for n, at in case.standby.items()}
    warmup = {n: {f"{at}-1"} for n, at in case.warmup.items()}
    for owners, parts in (
        (standby, (mine.assigned.standby, mine.to_revoke.standby)),
        (warmup, (mine.assigned.warmup, mine.to_revoke.warmup)),
    ):
        for part in parts:
            for number in part.get("0", ()):
                owners.setdefault(number, set()).add("m")
    goal = TaskGoal(
        epoch=11,
        target=case.target,
        process_id=MINE,
        owners=lambda _: active,
        standby_owners=lambda _: standby,
        warmup_owners=lambda _: warmup,
        process_of=lambda each: MINE if each == "m" else each.removesuffix("-1"),
    )
    after = reconcile(case.before, goal, case.owned)
    assert after == case.after
    if case.after.value == case.before.value:
        assert after is case.before
