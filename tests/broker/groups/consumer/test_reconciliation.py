"""One step of a member towards its target, as a table (source: Kafka's CurrentAssignmentBuilderTest, 4.4)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from tests.broker.groups.consumer.driver import partitions
from warmlog.broker.groups.consumer.members.reconciliation import Goal, reconcile
from warmlog.broker.groups.consumer.stored.holding import (
    Current,
    Holding,
    MemberState,
    held_partitions,
    owns_any,
    owns_only,
)
from warmlog.protocol.kafka.consumer_group_records import CurrentAssignment

A, B = b"a".ljust(16, b"\0"), b"b".ljust(16, b"\0")
STABLE, UNREVOKED, UNRELEASED = MemberState


def member(state: int, epoch: int, assigned: Holding, to_revoke: Holding | None = None, previous: int = -1) -> Current:
    return Current.of(
        CurrentAssignment(
            epoch=epoch,
            previous_epoch=previous,
            state=int(state),
            assigned=held_partitions(assigned),
            to_revoke=held_partitions(to_revoke or {}),
        )
    )


class Case(NamedTuple):
    """`target`, `taken` (what others have) and `topics` (subscribed to) are what the group knows in epoch 11."""

    name: str
    before: Current
    target: Mapping[bytes, set[int]]
    after: Current
    owned: Any = None
    taken: frozenset[tuple[bytes, int]] = frozenset()
    topics: tuple[bytes, ...] = (A, B)
    changed: bool = False


HELD = {A: {1: 9, 2: 9, 3: 9}}
CASES = [
    Case(
        "a stable member without changes moves to the target's epoch",
        member(STABLE, 10, HELD),
        {A: {1, 2, 3}},
        member(STABLE, 11, HELD, previous=10),
    ),
    Case(
        "a stable member gets what is free",
        member(STABLE, 10, HELD),
        {A: {1, 2, 3, 4}, B: {7}},
        member(STABLE, 11, {A: {1: 9, 2: 9, 3: 9, 4: 11}, B: {7: 11}}, previous=10),
    ),
    Case(
        "a stable member keeps its epoch while it has to give up partitions",
        member(STABLE, 10, HELD),
        {A: {2, 3, 4}},
        member(UNREVOKED, 10, {A: {2: 9, 3: 9}}, {A: {1: 9}}, previous=10),
    ),
    Case(
        "partitions that it reports no longer are given up immediately",
        member(STABLE, 10, HELD),
        {A: {2, 3, 4}},
        member(STABLE, 11, {A: {2: 9, 3: 9, 4: 11}}, previous=10),
        owned=partitions(a=[2, 3]),
    ),
    Case(
        "a stable member waits for what others have",
        member(STABLE, 10, HELD),
        {A: {1, 2, 3, 4}},
        member(UNRELEASED, 11, HELD, previous=10),
        taken=frozenset({(A, 4)}),
    ),
    Case(
        "a member that waits gets what is free already",
        member(STABLE, 10, HELD),
        {A: {1, 2, 3, 4, 5}},
        member(UNRELEASED, 11, {A: {1: 9, 2: 9, 3: 9, 5: 11}}, previous=10),
        taken=frozenset({(A, 4)}),
    ),
    Case(
        "a member that has partitions to give up and does not report stays as it is",
        member(UNREVOKED, 10, {A: {2: 9}}, {A: {1: 9}}),
        {A: {2, 3}},
        member(UNREVOKED, 10, {A: {2: 9}}, {A: {1: 9}}),
    ),
    Case(
        "a member that still owns what it has to give up stays as it is",
        member(UNREVOKED, 10, {A: {2: 9}}, {A: {1: 9}}),
        {A: {2, 3}},
        member(UNREVOKED, 10, {A: {2: 9}}, {A: {1: 9}}),
        owned=partitions(a=[1, 2]),
    ),
    Case(
        "a member that has given up its partitions moves to the target's epoch",
        member(UNREVOKED, 10, {A: {2: 9}}, {A: {1: 9}}),
        {A: {2, 3}},
        member(STABLE, 11, {A: {2: 9, 3: 11}}, previous=10),
        owned=partitions(a=[2]),
    ),
    Case(
        "a member that has given up its partitions may have to give up more",
        member(UNREVOKED, 10, {A: {2: 9, 3: 9}}, {A: {1: 9}}),
        {A: {3}},
        member(UNREVOKED, 10, {A: {3: 9}}, {A: {2: 9}}, previous=10),
        owned=partitions(a=[2, 3]),
    ),
    Case(
        "a member gets back what it has given up",
        member(UNREVOKED, 10, {A: {2: 9}}, {A: {1: 9}}),
        {A: {1, 2}},
        member(STABLE, 11, {A: {1: 11, 2: 9}}, previous=10),
        owned=partitions(a=[2]),
    ),
    Case(
        "a member that waits keeps waiting",
        member(UNRELEASED, 11, {A: {2: 9}}, previous=11),
        {A: {2, 3}},
        member(UNRELEASED, 11, {A: {2: 9}}, previous=11),
        taken=frozenset({(A, 3)}),
    ),
    Case(
        "a member that waited gets what others have given up",
        member(UNRELEASED, 11, {A: {2: 9}}, previous=11),
        {A: {2, 3}},
        member(STABLE, 11, {A: {2: 9, 3: 11}}, previous=11),
    ),
    Case(
        "a member that waits may have to give up partitions of a newer target",
        member(UNRELEASED, 10, {A: {2: 9}}),
        {A: {3}},
        member(UNREVOKED, 10, {}, {A: {2: 9}}, previous=10),
        taken=frozenset({(A, 3)}),
    ),
    Case(
        "topics that a stable member no longer subscribes to are taken away before the next target",
        member(STABLE, 11, {A: {1: 9}, B: {2: 9}}),
        {A: {1}, B: {2}},
        member(UNREVOKED, 11, {A: {1: 9}}, {B: {2: 9}}, previous=11),
        topics=(A,),
        changed=True,
    ),
    Case(
        "topics that a member no longer subscribes to and has given up are gone",
        member(STABLE, 11, {A: {1: 9}, B: {2: 9}}),
        {A: {1}, B: {2}},
        member(STABLE, 11, {A: {1: 9}}, previous=11),
        owned=partitions(a=[1]),
        topics=(A,),
        changed=True,
    ),
    Case(
        "a member that gives up partitions has to give up more if it unsubscribes",
        member(UNREVOKED, 10, {A: {2: 9}, B: {5: 9}}, {A: {1: 9}, B: {4: 8}}),
        {A: {2}, B: {5}},
        member(UNREVOKED, 10, {A: {2: 9}}, {A: {1: 9}, B: {4: 8, 5: 9}}, previous=10),
        topics=(A,),
        changed=True,
    ),
    Case(
        "the target's topics do not count if the member does not subscribe to them",
        member(STABLE, 10, {A: {1: 9}}),
        {A: {1}, B: {2}},
        member(STABLE, 11, {A: {1: 9}}, previous=10),
        topics=(A,),
        changed=True,
    ),
    Case(
        "a change of the subscription that takes nothing away changes nothing",
        member(STABLE, 11, {A: {1: 9}}, previous=10),
        {A: {1}},
        member(STABLE, 11, {A: {1: 9}}, previous=10),
        changed=True,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name.replace(" ", "_") for case in CASES])
def test_a_step_of_a_member(case: Case) -> None:
    goal = Goal(
        epoch=11,
        target={topic_id: frozenset(numbers) for topic_id, numbers in case.target.items()},
        subscribes=case.topics.__contains__,
        is_free=lambda topic_id, partition: (topic_id, partition) not in case.taken,
    )
    after = reconcile(case.before, goal, case.owned, subscription_changed=case.changed)
    assert after == case.after
    assert (after is case.before) == (case.before.value == case.after.value)


def test_partitions_without_epochs_are_those_of_the_members_epoch() -> None:
    value = member(STABLE, 10, HELD).value
    parts = tuple([type(each)(topic_id=each.topic_id, partitions=each.partitions) for each in value.assigned])
    old = Current.of(CurrentAssignment(epoch=10, previous_epoch=9, state=1, assigned=parts))
    assert old.assigned == {A: {1: 10, 2: 10, 3: 10}}


@pytest.mark.parametrize(
    ("owned", "any_", "only"),
    [
        (None, True, False),
        ((), False, True),
        (partitions(a=[1]), True, True),
        (partitions(a=[1, 4]), True, False),
        (partitions(a=[4]), False, False),
        (partitions(b=[1]), False, False),
    ],
)
def test_what_a_member_reports(owned: Any, *, any_: bool, only: bool) -> None:
    assert owns_any(owned, HELD) is any_
    assert owns_only(owned, HELD) is only
