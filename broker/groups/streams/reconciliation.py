"""Move one member from its current tasks to its target tasks, one step per heartbeat.

    STABLE ──────────────► UNREVOKED_TASKS     the member still has tasks that the target gives to others
      ▲ ▲                    │
      │ └────────────────────┤  it no longer reports them
      │                      ▼
      └───────────────── UNRELEASED_TASKS      other members still have tasks of its target

A member in UNREVOKED_TASKS keeps its epoch and is fenced at its rebalance timeout. In the other two states it is in the
target's epoch.

A task is active at one member at most. All members of a process share its state directory, so a process has a task at
most once, whether active, standby or warm-up: a member waits for the others of its process. A member changes the kind
of its own task without giving it up first, except from active to another kind, where it keeps the state while it gives
up the task.

Source: Kafka's CurrentAssignmentBuilder (4.4).
"""

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from warmlog.broker.groups.streams.holding import (
    NONE_HELD,
    Active,
    CurrentTasks,
    Holding,
    Replicas,
    StreamsMemberState,
    current_assignment,
    owns_any,
)
from warmlog.broker.groups.streams.stored import StoredStreamsGroup
from warmlog.broker.groups.streams.tasks import TaskMap, Tasks

_NO_EPOCHS: Mapping[int, int] = {}
_NO_PARTITIONS: frozenset[int] = frozenset()


class TaskGoal(NamedTuple):
    """A member's target, and the tasks that other members leave to it.

    `epoch`: the target's epoch. `owners`, `standby_owners`, `warmup_owners`: the members that have tasks of a
    subtopology, or still have to give them up, by partition. `process_of`: the process of a member.
    """

    epoch: int
    target: Tasks
    process_id: str
    owners: Callable[[str], Mapping[int, str]]
    standby_owners: Callable[[str], Mapping[int, Collection[str]]]
    warmup_owners: Callable[[str], Mapping[int, Collection[str]]]
    process_of: Callable[[str], str | None]

    def running(self, subtopology_id: str, partitions: AbstractSet[int]) -> set[int]:
        """Return the partitions whose active task the member's process has."""
        owners, mine = self.owners(subtopology_id), self.process_id
        return {each for each in partitions & owners.keys() if self.process_of(owners[each]) == mine}

    def kept_here(self, owners: Mapping[int, Collection[str]], partitions: AbstractSet[int]) -> set[int]:
        """Return the partitions of which the member's process has a replica. `owners`: the owners of replicas."""
        return {
            each
            for each in partitions & owners.keys()
            if any(self.process_of(member_id) == self.process_id for member_id in owners[each])
        }


def goal_of(group: StoredStreamsGroup, member_id: str) -> TaskGoal:
    """Return a member's target."""
    return TaskGoal(
        epoch=group.target_epoch.epoch,
        target=group.target(member_id).tasks,
        process_id=group.metadata[member_id].process_id,
        owners=group.owners,
        standby_owners=group.standby_owners,
        warmup_owners=group.warmup_owners,
        process_of=group.process_of,
    )


def reconcile(current: CurrentTasks, goal: TaskGoal, owned: Tasks | None) -> CurrentTasks:
    """Return a member's next state, or `current` itself if there is nothing to change.

    `owned`: the tasks that the member reports; None (no report) counts as all of them.
    """
    state = current.value.state
    if state == StreamsMemberState.STABLE:
        return current if current.epoch == goal.epoch else _Step(current, goal).taken(current.epoch, owned)
    if state == StreamsMemberState.UNREVOKED_TASKS:
        return current if owns_any(owned, current.to_revoke) else _Step(current, goal).taken(current.epoch + 1, owned)
    if state == StreamsMemberState.UNRELEASED_TASKS:
        return _Step(current, goal).taken(current.epoch, owned)
    return _Step(current, goal).taken(goal.epoch, owned)  # of a later version; treated as having nothing


class _Replicas:
    """A member's standby or warm-up tasks: kept, to be given up, and to be assigned."""

    def __init__(self, held: Replicas, wanted: TaskMap, blocked: Callable[[str, AbstractSet[int]], set[int]]) -> None:
        self.held = held
        self.kept: dict[str, set[int]] = {}
        self.revoked: dict[str, set[int]] = {}
        self.granted: dict[str, set[int]] = {}
        self.has_unreleased = False
        for subtopology_id in wanted.keys() | held.keys():
            has = held.get(subtopology_id, _NO_PARTITIONS)
            wants = set(wanted.get(subtopology_id, ()))
            missing = wants - has
            granted = missing - blocked(subtopology_id, missing)
            self.has_unreleased |= len(granted) < len(missing)
            self.kept[subtopology_id] = wants & has
            self.revoked[subtopology_id] = set(has - wants)
            self.granted[subtopology_id] = granted

    def keep(self, subtopology_id: str, partition: int) -> None:
        """Let the member keep a task."""
        self.kept.setdefault(subtopology_id, set()).add(partition)

    def take(self, subtopology_id: str, partition: int) -> bool:
        """Assign a task to the member if possible now; return whether it was assigned."""
        granted = self.granted.get(subtopology_id, set())
        if partition not in granted:
            return False
        granted.discard(partition)
        self.keep(subtopology_id, partition)
        return True

    def promote(self, wanted: TaskMap) -> None:
        """Keep a task that is to become active."""
        for subtopology_id, revoked in self.revoked.items():
            revoked.difference_update(wanted.get(subtopology_id, ()))

    def assigned(self, *, grants: bool) -> Replicas:
        """Return the member's tasks after the step."""
        return _frozen(
            {
                each: self.kept.get(each, _NO_PARTITIONS)
                | (self.granted.get(each, _NO_PARTITIONS) if grants else _NO_PARTITIONS)
                for each in self.kept.keys() | self.granted.keys()
            }
        )


class _Step:
    """One step of a member towards its target."""

    def __init__(self, current: CurrentTasks, goal: TaskGoal) -> None:
        self._current = current
        self._goal = goal
        held, target = current.assigned, goal.target
        self._kept: dict[str, Mapping[int, int]] = {}
        self._revoked: dict[str, dict[int, int]] = {}
        self._granted: dict[str, set[int]] = {}
        self._has_unreleased = False
        self._divide_active(held.active, target.active)
        self._standby = _Replicas(held.standby, target.standby, self._blocked_standby)
        self._warmup = _Replicas(held.warmup, target.warmup, self._blocked_warmup)
        self._has_unreleased |= self._standby.has_unreleased or self._warmup.has_unreleased
        self._change_kinds()

    def _divide_active(self, active: Active, wanted: TaskMap) -> None:
        for subtopology_id in wanted.keys() | active.keys():
            held = active.get(subtopology_id, _NO_EPOCHS)
            wants = set(wanted.get(subtopology_id, ()))
            if held.keys() == wants:
                self._kept[subtopology_id] = held
                continue
            self._kept[subtopology_id] = {each: epoch for each, epoch in held.items() if each in wants}
            self._revoked[subtopology_id] = {each: epoch for each, epoch in held.items() if each not in wants}
            missing = wants - held.keys()
            granted = missing - self._blocked_active(subtopology_id, missing)
            self._has_unreleased |= len(granted) < len(missing)
            self._granted[subtopology_id] = granted

    # -- tasks of other members --

    def _blocked_active(self, subtopology_id: str, partitions: AbstractSet[int]) -> set[int]:
        blocked = set(partitions & self._goal.owners(subtopology_id).keys())
        return (
            blocked | self._other_standby(subtopology_id, partitions) | self._other_warmup(subtopology_id, partitions)
        )

    def _blocked_standby(self, subtopology_id: str, partitions: AbstractSet[int]) -> set[int]:
        goal, mine = self._goal, self._current.assigned.active.get(subtopology_id, _NO_EPOCHS)
        blocked = goal.running(subtopology_id, partitions - mine.keys())
        blocked |= goal.kept_here(goal.standby_owners(subtopology_id), partitions)
        return blocked | self._other_warmup(subtopology_id, partitions)

    def _blocked_warmup(self, subtopology_id: str, partitions: AbstractSet[int]) -> set[int]:
        goal = self._goal
        blocked = goal.running(subtopology_id, partitions)
        blocked |= goal.kept_here(goal.warmup_owners(subtopology_id), partitions)
        return blocked | self._other_standby(subtopology_id, partitions)

    def _other_standby(self, subtopology_id: str, partitions: AbstractSet[int]) -> set[int]:
        """Return the partitions of which another member of the process has a standby task."""
        mine = self._current.assigned.standby.get(subtopology_id, _NO_PARTITIONS)
        return self._goal.kept_here(self._goal.standby_owners(subtopology_id), partitions - mine)

    def _other_warmup(self, subtopology_id: str, partitions: AbstractSet[int]) -> set[int]:
        """Return the partitions of which another member of the process has a warm-up task."""
        mine = self._current.assigned.warmup.get(subtopology_id, _NO_PARTITIONS)
        return self._goal.kept_here(self._goal.warmup_owners(subtopology_id), partitions - mine)

    # -- tasks of another kind than before --

    def _change_kinds(self) -> None:
        """Keep the state of tasks that change their kind."""
        standby, warmup = self._standby, self._warmup
        for subtopology_id, partitions in self._current.assigned.active.items():
            for partition in partitions:
                standby.take(subtopology_id, partition)
        for former, following in ((standby, warmup), (warmup, standby)):
            for subtopology_id, numbers in former.held.items():
                for partition in numbers:
                    if following.take(subtopology_id, partition):
                        former.revoked[subtopology_id].discard(partition)
        for replicas in (standby, warmup):
            replicas.promote(self._goal.target.active)

    def _keep_until_granted(self, *, grants: bool) -> None:
        """Keep replicas that are to become active until the active task is assigned."""
        for replicas in (self._standby, self._warmup):
            for subtopology_id, partitions in replicas.held.items():
                wanted = partitions.intersection(self._goal.target.active.get(subtopology_id, ()))
                given = self._granted.get(subtopology_id, _NO_PARTITIONS) if grants else _NO_PARTITIONS
                for partition in wanted.difference(given):
                    replicas.keep(subtopology_id, partition)

    def taken(self, epoch: int, owned: Tasks | None) -> CurrentTasks:
        """Return the member after the step. `epoch`: its epoch if it first has to give up tasks."""
        to_revoke = Holding(
            {each: tasks for each, tasks in self._revoked.items() if tasks},
            _frozen(self._standby.revoked),
            _frozen(self._warmup.revoked),
        )
        must_revoke = bool(to_revoke) and owns_any(owned, to_revoke)
        self._keep_until_granted(grants=not must_revoke)
        active = {each: tasks for each, tasks in self._kept.items() if tasks}
        if must_revoke:
            state, to_revoke_now = StreamsMemberState.UNREVOKED_TASKS, to_revoke
        else:
            epoch = self._goal.epoch
            state = StreamsMemberState.UNRELEASED_TASKS if self._has_unreleased else StreamsMemberState.STABLE
            to_revoke_now = NONE_HELD
            for subtopology_id, granted in self._granted.items():
                if granted:
                    active[subtopology_id] = {**active.get(subtopology_id, _NO_EPOCHS), **dict.fromkeys(granted, epoch)}
        grants = not must_revoke
        assigned = Holding(active, self._standby.assigned(grants=grants), self._warmup.assigned(grants=grants))
        value = current_assignment(epoch, self._current.epoch, int(state), assigned, to_revoke_now)
        return self._current if value == self._current.value else CurrentTasks(value, assigned, to_revoke_now)


def _frozen(replicas: Mapping[str, Collection[int]]) -> Replicas:
    return {each: frozenset(partitions) for each, partitions in replicas.items() if partitions}
