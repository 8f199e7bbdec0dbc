"""The effects of a classic group, and the settings that it depends on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from warmlog.broker.groups.automaton import Answer
from warmlog.broker.groups.classic.members import JoinParameters, Member
from warmlog.protocol.groups import GroupProtocol, JoinGroupRequest
from warmlog.protocol.kafka.group_records import StoredGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings that a group depends on."""

    max_size: int  # members (group.max.size)
    initial_rebalance_delay_ms: int


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
    """Effect: write a record of the group, then call `ClassicGroup.stored` with the purpose."""

    value: StoredGroup
    purpose: Purpose


Effect: TypeAlias = Answer | Store
