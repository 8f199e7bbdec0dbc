"""The members of one group: who they are, what they can work with, which of them leads.

Owns: `Member` and the set of them, with what is counted over it (votes, common protocols, who has joined). Must not
know: the group's state, when anything is due, or what metadata and assignments mean.

Invariants:
1. A static member's instance id names at most one member id.
2. There is a leader if and only if there is a member, and it is one of them.
3. A protocol can be chosen only if every member supports it.

Source: org.apache.kafka.coordinator.group.classic.ClassicGroup, ClassicGroupMember.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from protocol.groups import GroupProtocol

Waiter: TypeAlias = object  # who waits for an answer: an identity, nothing else
GONE: Final[Waiter] = object()  # stands for a waiter whose client went away: it still counts as having asked


class Wishes(Protocol):
    """What a member says when it joins; a JoinGroupRequest says it, and what was stored of a member."""

    @property
    def protocols(self) -> tuple[GroupProtocol, ...]:
        """In the order of its liking."""

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long it may take to join again."""

    @property
    def session_timeout_ms(self) -> int:
        """How long it may be silent."""


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One member. `protocols` in the order of its liking; times in ms, `deadline_s` by the loop's clock."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False  # it has not been told its generation yet
    join_waiter: Waiter | None = None
    sync_waiter: Waiter | None = None
    deadline_s: float = 0.0  # without a sign of life until then it is expelled

    @property
    def awaits_join(self) -> bool:
        """Whether it has joined the rebalance under way."""
        return self.join_waiter is not None

    @property
    def is_excused(self) -> bool:
        """Whether it waits for us, so that its silence means nothing. A new member is not: it could wait for ever."""
        waits = self.sync_waiter is not None or self.join_waiter not in {None, GONE}
        return waits and not self.is_new

    def metadata(self, protocol: str | None) -> bytes:
        """What it says to this protocol; nothing where it does not know it."""
        return next((known.metadata for known in self.protocols if known.name == protocol), b"")


class Members:
    """A group's members by id, in the order in which they came."""

    __slots__ = ("_by_id", "_static", "_supporters", "leader")

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # instance id to member id
        self._supporters: Counter[str] = Counter()  # how many members know a protocol
        self.leader: str | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._by_id.values()))

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> Member | None:
        """The member, or None."""
        return self._by_id.get(member_id)

    def static_id(self, instance_id: str) -> str | None:
        """The member id that a static member has now, or None."""
        return self._static.get(instance_id)

    def add(self, member: Member) -> None:
        """Take a member; the first one leads."""
        assert member.member_id not in self._by_id, "a member is added once"
        if member.instance_id is not None:
            assert member.instance_id not in self._static, "an instance id is one member's"
            self._static[member.instance_id] = member.member_id
        self._by_id[member.member_id] = member
        self._supporters.update(_names(member.protocols))
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Let a member go; another one leads then, if this one did."""
        member = self._by_id.pop(member_id, None)
        if member is not None:
            self._supporters.subtract(_names(member.protocols))
            if member.instance_id is not None:
                del self._static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._by_id), None)
        return member

    def update(self, member: Member, wishes: "Wishes") -> None:
        """Take what a member says when it joins again."""
        self._supporters.subtract(_names(member.protocols))
        self._supporters += Counter(_names(wishes.protocols))  # drops what nobody knows any more
        member.protocols = wishes.protocols
        member.rebalance_timeout_ms = wishes.rebalance_timeout_ms
        member.session_timeout_ms = wishes.session_timeout_ms

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member, started anew, the id of its new life. It keeps its place, lead and assignment."""
        assert member.instance_id is not None, "only static members have more than one life"
        old_id = member.member_id
        self._by_id = {(member_id if key == old_id else key): value for key, value in self._by_id.items()}
        member.member_id = self._static[member.instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id

    def elect_joined(self) -> bool:
        """See to it that one who has joined leads; False if nobody has."""
        leader = self._by_id.get(self.leader or "")
        if leader is not None and leader.awaits_join:
            return True
        joined = next((member for member in self._by_id.values() if member.awaits_join), None)
        if joined is not None:
            self.leader = joined.member_id
        return joined is not None

    @property
    def joined_count(self) -> int:
        """How many have joined the rebalance under way."""
        return sum(member.awaits_join for member in self._by_id.values())

    @property
    def all_joined(self) -> bool:
        """Whether all have."""
        return all(member.awaits_join for member in self._by_id.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest of them may take to join again; 0 where there is none."""
        return max((member.rebalance_timeout_ms for member in self._by_id.values()), default=0)

    def supports_any(self, protocols: tuple[GroupProtocol, ...]) -> bool:
        """Whether one of these protocols is known to every member."""
        return any(self._supporters[name] == len(self._by_id) for name in _names(protocols))

    def choose_protocol(self) -> str:
        """Each member votes for the first one of its list that all know; the first one of those with most votes."""
        votes = Counter(
            next(protocol.name for protocol in member.protocols if self._supporters[protocol.name] == len(self._by_id))
            for member in self._by_id.values()
        )
        return votes.most_common(1)[0][0]


def _names(protocols: tuple[GroupProtocol, ...]) -> set[str]:
    """A protocol that is named twice counts once."""
    return {protocol.name for protocol in protocols}
