"""The members of one group, their leader, and their common protocols.

Metadata and assignments are opaque bytes here.

Invariants:
1. An instance id maps to at most one member id.
2. The leader is a member, and a group with members has a leader.
3. A protocol can be chosen only if every member supports it.

Source: org.apache.kafka.coordinator.group.classic.ClassicGroup, ClassicGroupMember.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from warmlog.broker.groups.automaton import Waiter
from warmlog.protocol.groups import GroupProtocol

MEMBER_BYTES = 1_000  # bytes of a member in memory, without its declaration and assignment
# Characters of the client id or instance id used in a member id. Either may be as long as a Kafka string; a member id
# with all of it could be neither sent nor stored, and its group would rebalance forever.
MAX_ID_PREFIX = 249
DISCONNECTED: Final[Waiter] = object()  # replaces the waiter of a disconnected client: the member has still joined


class JoinParameters(Protocol):
    """A member's declaration: the part of a JoinGroupRequest that may change in a rejoin."""

    @property
    def protocols(self) -> tuple[GroupProtocol, ...]:
        """The protocols that it supports, in order of preference."""

    @property
    def rebalance_timeout_ms(self) -> int:
        """Maximum time to rejoin during a rebalance."""

    @property
    def session_timeout_ms(self) -> int:
        """Maximum time between two heartbeats."""


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One member. `protocols` are in order of preference; `deadline_s` is on the event loop's clock.

    `holder`: the holder whose share is charged for the member's memory. It is not stored; restored members count for
    their addresses until they rejoin.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    holder: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False  # it has not received its first JoinGroup response yet
    join_waiter: Waiter | None = None
    sync_waiter: Waiter | None = None
    deadline_s: float = 0.0  # end of its session

    @property
    def awaits_join(self) -> bool:
        """Whether it has joined the current rebalance."""
        return self.join_waiter is not None

    @property
    def is_session_suspended(self) -> bool:
        """Whether it waits for a response and so cannot send heartbeats.

        The session of a new member is never suspended: nothing else would limit its wait.
        """
        waits = self.sync_waiter is not None or self.join_waiter not in {None, DISCONNECTED}
        return waits and not self.is_new

    def metadata(self, protocol: str | None) -> bytes:
        """Return its metadata for a protocol, empty if it does not support it."""
        return next((known.metadata for known in self.protocols if known.name == protocol), b"")


class Members:
    """A group's members by id, in the order in which they joined."""

    __slots__ = ("_by_id", "_static", "_supporters", "held", "leader")

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # instance id to member id
        self._supporters: Counter[str] = Counter()  # members per supported protocol
        self.held: Counter[str] = Counter()  # bytes of members, by holder
        self.leader: str | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._by_id.values()))

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> Member | None:
        """Return a member, or None."""
        return self._by_id.get(member_id)

    def static_id(self, instance_id: str) -> str | None:
        """Return the current member id of a static member, or None."""
        return self._static.get(instance_id)

    def add(self, member: Member) -> None:
        """Add a member. The first one becomes the leader."""
        assert member.member_id not in self._by_id, "member ids are unique"
        if member.instance_id is not None:
            assert member.instance_id not in self._static, "instance ids are unique"
            self._static[member.instance_id] = member.member_id
        self._by_id[member.member_id] = member
        self._supporters.update(_names(member.protocols))
        self._count(member, _size(member))
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Remove and return a member. If it was the leader, the member that joined first becomes the leader."""
        member = self._by_id.pop(member_id, None)
        if member is not None:
            self._count(member, -_size(member))
            self._supporters.subtract(_names(member.protocols))
            if member.instance_id is not None:
                del self._static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._by_id), None)
        return member

    def update(self, member: Member, parameters: JoinParameters, holder: str | None = None) -> None:
        """Replace a member's declaration, and its holder if one is given."""
        self._count(member, -_size(member))
        self._supporters.subtract(_names(member.protocols))
        self._supporters += Counter(_names(parameters.protocols))  # also drops protocols that no member supports
        member.protocols = parameters.protocols
        member.rebalance_timeout_ms = parameters.rebalance_timeout_ms
        member.session_timeout_ms = parameters.session_timeout_ms
        member.holder = member.holder if holder is None else holder
        self._count(member, _size(member))

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Replace the assignments of all members, by member id."""
        for member in self._by_id.values():
            assignment = assignments.get(member.member_id, b"")
            self._count(member, len(assignment) - len(member.assignment))
            member.assignment = assignment

    def _count(self, member: Member, growth: int) -> None:
        self.held[member.holder] += growth
        if not self.held[member.holder]:
            del self.held[member.holder]

    def rename(self, member: Member, member_id: str) -> None:
        """Change the id of a restarted static member. It keeps its position, its assignment and the leadership."""
        assert member.instance_id is not None, "only static members are renamed"
        old_id = member.member_id
        self._by_id = {(member_id if key == old_id else key): value for key, value in self._by_id.items()}
        member.member_id = self._static[member.instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id

    def elect_joined(self) -> bool:
        """Ensure that the leader has joined the current rebalance; return False if no member has."""
        leader = self._by_id.get(self.leader or "")
        if leader is not None and leader.awaits_join:
            return True
        joined = next((member for member in self._by_id.values() if member.awaits_join), None)
        if joined is not None:
            self.leader = joined.member_id
        return joined is not None

    @property
    def joined_count(self) -> int:
        """Number of members that have joined the current rebalance."""
        return sum(member.awaits_join for member in self._by_id.values())

    @property
    def all_joined(self) -> bool:
        """Whether every member has joined the current rebalance."""
        return all(member.awaits_join for member in self._by_id.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member, 0 without members."""
        return max((member.rebalance_timeout_ms for member in self._by_id.values()), default=0)

    def supports_any(self, protocols: tuple[GroupProtocol, ...]) -> bool:
        """Return whether every member supports one of these protocols."""
        return any(self._supporters[name] == len(self._by_id) for name in _names(protocols))

    def choose_protocol(self) -> str:
        """Return the protocol with the most votes; the first of several.

        Each member votes for its most preferred protocol that every member supports.
        """
        votes = Counter(
            next(protocol.name for protocol in member.protocols if self._supporters[protocol.name] == len(self._by_id))
            for member in self._by_id.values()
        )
        return votes.most_common(1)[0][0]


def new_member_id(name: str, suffix: str) -> str:
    """Return the id of a member that joins without one. `name`: its instance id or client id."""
    return f"{name[:MAX_ID_PREFIX]}-{suffix}"


def _size(member: Member) -> int:
    return MEMBER_BYTES + size_of(member.protocols) + len(member.assignment)


def size_of(protocols: Iterable[GroupProtocol]) -> int:
    """Return the size of a member's declaration in bytes."""
    return sum([len(protocol.name) + len(protocol.metadata) for protocol in protocols])


def _names(protocols: tuple[GroupProtocol, ...]) -> set[str]:
    """Return the distinct names: a client may list a protocol twice."""
    return {protocol.name for protocol in protocols}
