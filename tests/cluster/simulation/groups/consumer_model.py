"""What must hold for the partitions of a consumer group (KIP-848), checked at each step of its members.

1. A partition has one owner at a time. A member owns what it was assigned until it gives it up, is fenced, or has not
   been answered for its session timeout, by its own clock.
2. A commit that was answered with success is there for all later fetches of committed offsets.
3. A commit of a member that does not own the partition any more is refused, once another owner has committed more.
4. At the end, each partition of all topics is owned by one member.

Answers of a coordinator that another one has followed, and that does not know of it yet, prolong no session here: it
can confirm, but it cannot change anything.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import trio

from tests.cluster.simulation.groups.member import SESSION_S
from warmlog.broker.coordinator.topic import partition_of

GROUP = "readers"
PartitionKey = tuple[bytes, int]


class Member(Protocol):
    """A member, as the model needs it. `answered_s`: when the latest heartbeat that was answered was sent."""

    id: str
    answered_s: float


class _Commit(NamedTuple):
    offset: int
    by: str


class ConsumerModel:
    """The owners of partitions, and their committed offsets."""

    def __init__(self, problem: Callable[[str], None], is_coordinator: Callable[[int], bool]) -> None:
        """`is_coordinator`: whether a broker leads the group's partition, according to the store."""
        self.is_calm = False
        self.owners: dict[PartitionKey, Member] = {}
        self.gains = 0
        self.commits = 0
        self.is_coordinator = is_coordinator
        self._problem = problem
        self._committed: dict[PartitionKey, _Commit] = {}

    @staticmethod
    def partition_of_group(count: int) -> int:
        """Return the partition of `__consumer_offsets` that has the group."""
        return partition_of(GROUP, count)

    # -- ownership --

    def gained(self, member: Member, key: PartitionKey) -> None:
        """Record that a member was assigned a partition."""
        self.gains += 1
        owner = self.owners.get(key)
        if owner is not None and owner is not member and trio.current_time() < owner.answered_s + SESSION_S:
            self._problem(f"{member.id} was assigned partition {key[1]}, which {owner.id} owns")
        self.owners[key] = member

    def given_up(self, member: Member, key: PartitionKey) -> None:
        """Record that a member does not own a partition any more."""
        if self.owners.get(key) is member:
            del self.owners[key]

    # -- offsets --

    def committed(self, key: PartitionKey) -> _Commit:
        """Return the largest offset whose commit was answered with success."""
        return self._committed.get(key, _Commit(-1, ""))

    def answered(self, member: Member, key: PartitionKey, offset: int, before: _Commit) -> None:
        """Record that a commit was answered with success; `before`: what was committed when it was sent."""
        self.commits += 1
        if before.offset > offset:
            what = f"{member.id} committed {offset} for {key[1]}"
            self._problem(f"{what} after {before.by} had committed {before.offset}")
        if offset > self.committed(key).offset:
            self._committed[key] = _Commit(offset, member.id)

    def fetched(self, member: Member, key: PartitionKey, offset: int, before: _Commit) -> None:
        """Check a committed offset; `before`: what was committed when it was requested."""
        if offset < before.offset:
            self._problem(
                f"{member.id} fetched {offset} as committed for {key[1]}; {before.by} had committed {before.offset}"
            )
