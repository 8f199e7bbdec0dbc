"""What the state machines of all groups with a target assignment have in common.

A kind of group adds what its members send and what its topics mean.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from warmlog.broker.groups.automaton import Instant, Waiter
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.progress import ModernProgress
from warmlog.broker.groups.modern.refusals import RefusedError
from warmlog.broker.groups.modern.stored_members import Declared, StoredMembers
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import GroupType
from warmlog.protocol.kafka.group_records import NO_TIME

MAX_LOGGED = 200  # characters of a group's name

L = TypeVar("L")  # the settings of a group
S = TypeVar("S")  # its state
M = TypeVar("M", bound=Declared)
E = TypeVar("E")  # an effect


class ModernGroup(ABC, Generic[L, S, M, E]):
    """One group. Not thread-safe: all calls come from the event loop."""

    type: ClassVar[GroupType]  # as ListGroups reports it
    protocol_type: ClassVar[str]  # of its members' protocols
    may_lose_offsets: ClassVar[bool] = True  # whether offsets of topics without a subscription may be deleted
    has_pending_members: ClassVar[bool] = False  # whether an assigned member id was not used yet: it joins immediately
    offsets_expire_since_ms: ClassVar[int] = NO_TIME  # the offsets' retention starts at the time of each commit

    def __init__(self, group: StoredMembers[M, Any, Any, Any], progress: ModernProgress[Any, Any, S, L]) -> None:
        """Create a group from its parts."""
        self.group_id = group.group_id
        self.owner = ""  # the holder that its memory counts for (`Holdings`)
        self.counted: Mapping[str, int] = {}  # bytes counted by `Holdings`, by holder
        self.replaced: list[tuple[bytes, None]] = []  # tombstones of another kind of group, for the next record
        self._group = group
        self._progress = progress
        self._journal = progress.journal

    @staticmethod
    @abstractmethod
    def encode_key(key: Any) -> bytes:
        """Return the encoded key of a record."""

    def __str__(self) -> str:
        return f"group {self.group_id[:MAX_LOGGED]!r}"

    def take_effects(self) -> list[E]:
        """Return the effects since the last call, in the order in which to carry them out."""
        return self._journal.take()

    @property
    def limits(self) -> L:
        """The settings of the group."""
        return self._progress.limits

    @limits.setter
    def limits(self, limits: L) -> None:
        self._progress.limits = limits

    @property
    def state(self) -> S:
        """The state, as Kafka's tools report it."""
        return self._progress.state

    @property
    def state_since_ms(self) -> int:
        """When the state was entered, in ms since the epoch."""
        return self._progress.state_since_ms

    @property
    def epoch(self) -> int:
        """The group's epoch, which rises when what its assignment is computed from changes."""
        epoch: int = self._group.epoch.epoch
        return epoch

    @property
    def assignment_epoch(self) -> int:
        """The epoch for which the target assignment was computed."""
        return self._group.target_epoch.epoch

    @property
    def members(self) -> Mapping[str, M]:
        """The members by id, in the order of joining."""
        return self._group.metadata

    @property
    def is_stored(self) -> bool:
        """Whether a record of the group is stored or being stored."""
        return self._group.is_stored

    @property
    def held(self) -> Counter[str]:
        """The bytes of members, by holder."""
        return self._group.memory.held

    @property
    def wake_at_s(self) -> float:
        """The latest time to call `expire`, on the event loop's clock."""
        return self._progress.wake_at_s

    @property
    def is_empty(self) -> bool:
        """Whether it is served and has no members."""
        return not self._group.metadata and not self.is_dead

    @property
    def is_dead(self) -> bool:
        """Whether the group is no longer served."""
        return self._progress.is_dead

    def rows(self) -> list[tuple[Any, Any]]:
        """Return the records that describe the group."""
        return list(self._group.rows())

    def tombstones(self) -> list[tuple[bytes, None]]:
        """Return the encoded records that delete the group."""
        return [(self.encode_key(key), None) for key in self._group.record_keys()]

    def _check_served(self) -> None:
        """Refuse a request to a group that is not served. Raises RefusedError."""
        if self.is_dead:
            raise RefusedError(ErrorCode.NOT_COORDINATOR, "The group is not served here any more.")

    def expire(self, now: Instant) -> None:
        """Remove members whose session has ended, or that did not give up partitions or tasks in time."""
        self._progress.expire(now)

    # -- outcomes of effects --

    def apply(self, key: Any, value: Any) -> None:
        """Apply a loaded record. Raises TypeError if the value is not of the key's type."""
        self._group.apply(key, value)

    def loaded(self, topics: Topics, now: Instant) -> None:
        """Begin to serve a group whose records were applied: each member has a session timeout to send a heartbeat."""
        self._progress.loaded(topics, now)

    def stored(self, ticket: int, error: ErrorCode, now: Instant) -> None:
        """Handle the outcome of a `StoreRows`: answer waiting requests, or undo its changes and all later ones."""
        self._progress.stored(ticket, error, now)

    def assigned(self, epoch: int, assignments: Mapping[str, Any] | None, now: Instant) -> Generator[None, None, None]:
        """Store the target assignment computed for an epoch; None if that failed.

        Yields between pieces of at most 100 records, so that effects are taken and other tasks run.
        """
        return self._progress.assigned(epoch, assignments, now)

    # -- waiting clients --

    def forget_waiter(self, waiter: Waiter, now: Instant) -> None:  # noqa: ARG002
        """Drop the pending answer to a client that has disconnected. Its member stays."""
        self._progress.forget_waiter(waiter)

    def close(self, error: ErrorCode, now: Instant) -> None:
        """Stop: answer all waiting clients with an error."""
        self._progress.close(error, now)
