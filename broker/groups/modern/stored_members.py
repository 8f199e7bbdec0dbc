"""The stored state of one group, with indexes. Only records change it, so loading and deciding agree.

Records may come in the order in which compaction leaves them: records of a member are kept before its declaration is
known.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from warmlog.broker.groups.modern.member_memory import MemberMemory
from warmlog.broker.groups.modern.target import FIRST_TARGET
from warmlog.protocol.kafka.consumer_group_records import GroupEpoch, TargetEpoch
from warmlog.protocol.kafka.streams_group_records import StreamsGroupEpoch


class Declared(Protocol):
    """A member's declaration."""

    @property
    def client_host(self) -> str:
        """The address of the member."""


class Recorded(Protocol):
    """What was read from a record."""

    @property
    def value(self) -> Any:
        """The record's value."""


class KeyKinds(NamedTuple):
    """The keys of the records that all kinds of groups have, of the group's or of a member's id."""

    epoch: Callable[[str], Any]
    target_epoch: Callable[[str], Any]
    member: Callable[[str, str], Any]
    target: Callable[[str, str], Any]
    current: Callable[[str, str], Any]


M = TypeVar("M", bound=Declared)
C = TypeVar("C", bound=Recorded)  # a member's current assignment
T = TypeVar("T", bound=Recorded)  # a member's target
E = TypeVar("E", bound=GroupEpoch | StreamsGroupEpoch)  # the group's epoch, and what it stands for


class StoredMembers(ABC, Generic[M, C, T, E]):
    """The epochs and members. Subclasses read records, and define a member's size and state."""

    keys: ClassVar[KeyKinds]

    def __init__(self, group_id: str, first: E, joined: C, no_target: T) -> None:
        """Begin without records. `first`, `joined`, `no_target`: epoch, current assignment and target without them."""
        self.group_id = group_id
        self.metadata: dict[str, M] = {}  # by member id, in the order of joining
        self.currents: dict[str, C] = {}
        self.targets: dict[str, T] = {}
        self.static: dict[str, str] = {}  # instance id to member id
        self.memory = MemberMemory()
        self._first = first
        self._joined = joined
        self._no_target = no_target
        self._epoch: E | None = None
        self._target_epoch: TargetEpoch | None = None
        self._stable: Counter[int] = Counter()  # number of members that have their targets, by epoch

    @abstractmethod
    def apply(self, key: Any, value: Any) -> Any:
        """Set, or with None delete, the value of a key. Returns the previous value.

        Raises TypeError if the value is not of the key's type.
        """

    @abstractmethod
    def _last_keys(self) -> Iterable[Any]:
        """Return the keys of further records and of the epoch, in an order in which Kafka can read their tombstones."""

    @abstractmethod
    def _size(self, member_id: str, metadata: M) -> int:
        """Estimate the bytes that a member holds."""

    def _stable_epoch(self, current: C) -> int | None:  # noqa: ARG002
        """Return the epoch in which a member has its whole target; None if it does not have it, or by default."""
        return None

    def _instance(self, metadata: M) -> str | None:  # noqa: ARG002
        """Return the instance id of a static member, which a kind of group may not have."""
        return None

    def _first_rows(self) -> Iterable[tuple[Any, Any]]:
        """Return further records that come before those of members."""
        return ()

    def _last_rows(self) -> Iterable[tuple[Any, Any]]:
        """Return further records that come after those of members."""
        return ()

    @property
    def epoch(self) -> E:
        """The group's epoch, and the metadata that it stands for."""
        return self._epoch or self._first

    @property
    def is_stored(self) -> bool:
        """Whether the group exists by a stored record."""
        return self._epoch is not None

    @property
    def target_epoch(self) -> TargetEpoch:
        """The epoch of the target assignment, and the time of its computation."""
        return self._target_epoch or FIRST_TARGET

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

    def rows(self) -> Iterator[tuple[Any, Any]]:
        """Yield the records that describe the group."""
        group, keys = self.group_id, self.keys
        if self._epoch is not None:
            yield keys.epoch(group), self._epoch
        yield from self._first_rows()
        for member_id, metadata in self.metadata.items():
            yield keys.member(group, member_id), metadata
        if self._target_epoch is not None:
            yield keys.target_epoch(group), self._target_epoch
        for member_id, target in self.targets.items():
            yield keys.target(group, member_id), target.value
        for member_id, current in self.currents.items():
            yield keys.current(group, member_id), current.value
        yield from self._last_rows()

    def record_keys(self) -> list[Any]:
        """Return the keys of all records that may exist, in an order in which Kafka can read their tombstones."""
        group, keys = self.group_id, self.keys
        return [
            *[keys.current(group, member_id) for member_id in {**self.metadata, **self.currents}],
            *[keys.target(group, member_id) for member_id in {**self.metadata, **self.targets}],
            keys.target_epoch(group),
            *[keys.member(group, member_id) for member_id in self.metadata],
            *self._last_keys(),
        ]

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
        self.memory.add(member_id, metadata.client_host, change * self._size(member_id, metadata))
        epoch = self._stable_epoch(self.current(member_id)) if member_id in self.currents else None
        if epoch is not None:
            self._stable[epoch] += change
            if not self._stable[epoch]:
                del self._stable[epoch]
