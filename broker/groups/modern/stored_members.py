"""The members of one group as its records describe them, and indexes of them.

Records may come in the order in which compaction leaves them: parts of a member are kept before its declaration is
known.
"""

from abc import ABC, abstractmethod
from collections import Counter
from typing import Generic, TypeVar

from warmlog.broker.groups.modern.member_memory import MemberMemory

M = TypeVar("M")  # what a member declares
C = TypeVar("C")  # what a member has
T = TypeVar("T")  # what a member is to have


class StoredMembers(ABC, Generic[M, C, T]):
    """Members by id. Subclasses read records and say what a member's size and state are."""

    def __init__(self, group_id: str, joined: C, no_target: T) -> None:
        """Begin without members. `joined`: what a member without a record has; `no_target`: what it is to have."""
        self.group_id = group_id
        self.metadata: dict[str, M] = {}  # by member id, in the order in which they joined
        self.currents: dict[str, C] = {}
        self.targets: dict[str, T] = {}
        self.static: dict[str, str] = {}  # instance id to member id
        self.memory = MemberMemory()
        self._joined = joined
        self._no_target = no_target
        self._stable: Counter[int] = Counter()  # members that have what they are to have, by epoch

    @abstractmethod
    def _size(self, member_id: str, metadata: M) -> int:
        """Return about how many bytes a member holds."""

    @abstractmethod
    def _host(self, metadata: M) -> str:
        """Return the address of a member."""

    @abstractmethod
    def _instance(self, metadata: M) -> str | None:
        """Return the instance id of a static member."""

    @abstractmethod
    def _stable_epoch(self, current: C) -> int | None:
        """Return the epoch in which a member has all that it is to have, None if it does not."""

    def current(self, member_id: str) -> C:
        """Return what a member has; nothing, in epoch 0, if there is no record."""
        return self.currents.get(member_id, self._joined)

    def target(self, member_id: str) -> T:
        """Return what a member is to have."""
        return self.targets.get(member_id, self._no_target)

    def is_stable(self, epoch: int) -> bool:
        """Return whether all members have what they are to have in this epoch."""
        return self._stable[epoch] == len(self.metadata)

    def orphans(self) -> list[str]:
        """Return the members of which there are parts, but no declaration.

        Logs have such members if they end between a removal that was undone and its correction.
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
        """Index static members again: records of changes that were undone may have contradicted each other."""
        self.static = {instance: each for each, data in self.metadata.items() if (instance := self._instance(data))}

    def _leave(self, member_id: str) -> None:
        """Take a member that is about to change out of the indexes."""
        self._count(member_id, -1)

    def _enter(self, member_id: str) -> None:
        """Put a member that has changed into the indexes."""
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
