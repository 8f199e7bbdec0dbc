"""The stored members of one group, with indexes.

Records may come in the order in which compaction leaves them: records of a member are kept before its declaration is
known.
"""

from abc import ABC, abstractmethod
from collections import Counter
from typing import Generic, TypeVar

from warmlog.broker.groups.modern.member_memory import MemberMemory

M = TypeVar("M")  # a member's declaration
C = TypeVar("C")  # a member's current assignment
T = TypeVar("T")  # a member's target


class StoredMembers(ABC, Generic[M, C, T]):
    """Members by id. Subclasses read records, and define a member's size and state."""

    def __init__(self, group_id: str, joined: C, no_target: T) -> None:
        """Begin without members. `joined`, `no_target`: current assignment and target of a member without records."""
        self.group_id = group_id
        self.metadata: dict[str, M] = {}  # by member id, in the order of joining
        self.currents: dict[str, C] = {}
        self.targets: dict[str, T] = {}
        self.static: dict[str, str] = {}  # instance id to member id
        self.memory = MemberMemory()
        self._joined = joined
        self._no_target = no_target
        self._stable: Counter[int] = Counter()  # number of members that have their targets, by epoch

    @abstractmethod
    def _size(self, member_id: str, metadata: M) -> int:
        """Estimate the bytes that a member holds."""

    @abstractmethod
    def _host(self, metadata: M) -> str:
        """Return the address of a member."""

    @abstractmethod
    def _instance(self, metadata: M) -> str | None:
        """Return the instance id of a static member."""

    @abstractmethod
    def _stable_epoch(self, current: C) -> int | None:
        """Return the epoch in which a member has its whole target; None if it does not have it."""

    def current(self, member_id: str) -> C:
        """Return a member's current assignment; an empty one in epoch 0 if there is no record."""
        return self.currents.get(member_id, self._joined)

    def target(self, member_id: str) -> T:
        """Return a member's target."""
        return self.targets.get(member_id, self._no_target)

    def is_stable(self, epoch: int) -> bool:
        """Return whether all members have their targets in this epoch."""
        return self._stable[epoch] == len(self.metadata)

    def orphans(self) -> list[str]:
        """Return members that have records but no declaration.

        A log has such members if it ends between an undone removal and its correction.
        """
        return [member_id for member_id in {**self.currents, **self.targets} if member_id not in self.metadata]

    def set_holder(self, member_id: str, holder: str) -> None:
        """Count a member's memory for this holder from now on."""
        if self.memory.holder(member_id) != holder:
            self._leave(member_id)
            self.memory.set_holder(member_id, holder)
            self._enter(member_id)

    def _set_metadata(self, member_id: str, value: M | None) -> M | None:
        before = self.metadata.get(member_id)
        self._leave(member_id)
        if before is not None and (instance := self._instance(before)) and self.static.get(instance) == member_id:
            del self.static[instance]
        if value is None:
            self.metadata.pop(member_id, None)
            self.memory.forget_holder(member_id)
        else:
            self.metadata[member_id] = value
            if instance := self._instance(value):
                self.static[instance] = member_id
        self._enter(member_id)
        return before

    def _set_current(self, member_id: str, value: C | None) -> C | None:
        self._leave(member_id)
        before = self.currents.pop(member_id, None) if value is None else self.currents.get(member_id)
        if value is not None:
            self.currents[member_id] = value
        self._enter(member_id)
        return before

    def _set_target(self, member_id: str, value: T | None) -> T | None:
        self._leave(member_id)
        before = self.targets.pop(member_id, None) if value is None else self.targets.get(member_id)
        if value is not None:
            self.targets[member_id] = value
        self._enter(member_id)
        return before

    def _index_static(self) -> None:
        """Rebuild the index of static members: records of undone changes may have contradicted each other."""
        self.static = {instance: each for each, data in self.metadata.items() if (instance := self._instance(data))}

    def _leave(self, member_id: str) -> None:
        """Remove a member that is about to change from the indexes."""
        self._count(member_id, -1)

    def _enter(self, member_id: str) -> None:
        """Add a changed member to the indexes."""
        self._count(member_id, 1)

    def _count(self, member_id: str, change: int) -> None:
        metadata = self.metadata.get(member_id)
        if metadata is None:
            return
        self.memory.add(member_id, self._host(metadata), change * self._size(member_id, metadata))
        epoch = self._stable_epoch(self.current(member_id)) if member_id in self.currents else None
        if epoch is not None:
            self._stable[epoch] += change
            if not self._stable[epoch]:
                del self._stable[epoch]
