"""The values that go into a group's state machine beside requests, and the effects that come out of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from warmlog.broker.groups.classic.members import JoinParameters, Member, Waiter
from warmlog.protocol.groups import GroupProtocol, JoinGroupRequest, JoinGroupResponse, SyncGroupResponse
from warmlog.protocol.kafka.group_records import StoredGroup

NEVER: Final = math.inf  # a deadline that does not exist


class Instant(NamedTuple):
    """The current time: seconds on the event loop's clock for deadlines, ms since the epoch for records."""

    loop_s: float
    wall_ms: int

    def after_ms(self, delay_ms: float) -> float:
        """Return the time on the event loop's clock after a delay."""
        return self.loop_s + delay_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings that a group depends on."""

    max_size: int  # members (group.max.size)
    initial_rebalance_delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A joining client, as its connection knows it.

    `holder`: whose share its memory counts in (`Holdings`). `new_id`: a unique suffix for the id of a new member.
    """

    client_id: str
    host: str
    holder: str
    new_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedParameters:
    """A copy of a member's join parameters, to undo a restart that could not be stored."""

    protocols: tuple[GroupProtocol, ...]
    rebalance_timeout_ms: int
    session_timeout_ms: int

    @classmethod
    def of(cls, parameters: JoinParameters) -> "SavedParameters":
        """Copy the parameters of a member or a request."""
        return cls(
            protocols=parameters.protocols,
            rebalance_timeout_ms=parameters.rebalance_timeout_ms,
            session_timeout_ms=parameters.session_timeout_ms,
        )


class Answer(NamedTuple):
    """Effect: send a response to a waiting client."""

    waiter: Waiter
    response: JoinGroupResponse | SyncGroupResponse


class Assigned(NamedTuple):
    """Purpose of a `Store`: the leader's assignment for a generation, by member id."""

    generation: int
    assignments: Mapping[str, bytes]


class Restarted(NamedTuple):
    """Purpose of a `Store`: the new id of a static member that restarted while the group is stable."""

    request: JoinGroupRequest
    member: Member
    old_id: str
    new_id: str
    old_leader: str | None
    before: SavedParameters


class Emptied(NamedTuple):
    """Purpose of a `Store`: a generation without members."""


Purpose: TypeAlias = Assigned | Restarted | Emptied


class Store(NamedTuple):
    """Effect: write a record of the group, then call `Group.stored` with the purpose."""

    value: StoredGroup
    purpose: Purpose


Effect: TypeAlias = Answer | Store
