"""What goes into a group's automaton beside requests, and what comes out of it: values only.

Owns: their shape. Must not know how a group comes to its decisions, or who carries them out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from broker.groups.members import Member, Waiter, Wishes
from protocol.groups import GroupProtocol, JoinGroupRequest, JoinGroupResponse, SyncGroupResponse
from protocol.kafka.group_records import StoredGroup


class Instant(NamedTuple):
    """Now: seconds by the loop's clock, for what is due, and ms since the epoch, for what is stored."""

    loop_s: float
    wall_ms: int

    def after_ms(self, delay_ms: float) -> float:
        """So many ms later, by the loop's clock."""
        return self.loop_s + delay_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the broker's settings say about groups."""

    max_size: int  # members (group.max.size)
    initial_rebalance_delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who joins: what its connection knows. `new_id` ends the id that a new member gets; it is unlike any other."""

    client_id: str
    host: str
    new_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a member said when it joined, to go back to."""

    protocols: tuple[GroupProtocol, ...]
    rebalance_timeout_ms: int
    session_timeout_ms: int

    @classmethod
    def of(cls, wishes: Wishes) -> "Kept":
        """A copy."""
        return cls(
            protocols=wishes.protocols,
            rebalance_timeout_ms=wishes.rebalance_timeout_ms,
            session_timeout_ms=wishes.session_timeout_ms,
        )


class Answer(NamedTuple):
    """Tell who waits."""

    waiter: Waiter
    response: JoinGroupResponse | SyncGroupResponse


class Assigned(NamedTuple):
    """Stored: the leader's assignment for a generation."""

    generation: int
    assignments: Mapping[str, bytes]


class Restarted(NamedTuple):
    """Stored: the new id of a static member that was started anew while the group is stable. `before`: what it was."""

    request: JoinGroupRequest
    member: Member
    old_id: str
    new_id: str
    old_leader: str | None
    before: Kept


class Emptied(NamedTuple):
    """Stored: a generation without members."""


Purpose: TypeAlias = Assigned | Restarted | Emptied


class Store(NamedTuple):
    """Keep this, then call `Group.stored` with the purpose."""

    value: StoredGroup
    purpose: Purpose


Effect: TypeAlias = Answer | Store
