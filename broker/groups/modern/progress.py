"""The path of a group's changes while its target assignment is computed in the background.

Heartbeats wait for the assignment, which is stored in pieces. The rules of a kind of group are in its subclass.

Source: Kafka's GroupMetadataManager (maybeUpdateTargetAssignment).
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from warmlog.broker.groups.automaton import Answer, Instant, Waiter
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.journal import Journal, Records
from warmlog.broker.groups.modern.pace import Pace
from warmlog.broker.groups.modern.refusals import RefusedError, unknown_member
from warmlog.broker.groups.modern.target import Computed, Epochs, TargetComputation
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.consumer_group_records import TargetEpoch

ROWS_PER_STORE = 100
UNITS_PER_STEP = 1000  # units of work on assignments between two yields
REMOVED_PER_STORE = 100  # members per step; each is three records


class Waiting(Protocol):
    """A heartbeat that waits for the target assignment."""

    @property
    def waiter(self) -> Waiter:
        """The request to answer."""

    @property
    def member_id(self) -> str:
        """The id of the member that sent it."""


class Group(Records[Any, Any], Epochs, Protocol):
    """The state of a group, described by its records."""

    @property
    def group_id(self) -> str:
        """The group's name."""


class Deadlines(Protocol):
    """The times at which members are removed."""

    wake_at_s: float

    def due(self, now: Instant) -> list[str]:
        """Remove and return members whose time has come."""

    def clear(self) -> None:
        """Drop all deadlines."""


A = TypeVar("A", bound=Computed)
H = TypeVar("H", bound=Waiting)
S = TypeVar("S")  # the state of a group
L = TypeVar("L")  # its settings


class ModernProgress(ABC, Generic[A, H, S, L]):
    """The unfinished changes of one group, and the heartbeats that wait for them."""

    def __init__(
        self,
        group: Group,
        deletion: Sequence[type[Any]],
        *,
        limits: L,
        sessions: Deadlines,
        initial: S,
        now: Instant,
    ) -> None:
        """Begin with a group without members, in its initial state. `deletion`: as for `Journal`."""
        self.limits = limits  # may be replaced
        self.sessions = sessions
        self.state_since_ms = now.wall_ms
        self.journal: Journal[Any, Any] = Journal(group, deletion)
        self.is_dead = False
        self.parked: deque[H] = deque()  # until the target has been computed
        self.target: TargetComputation[A] = TargetComputation(group)
        self._of = group
        self._last_state = initial

    @property
    @abstractmethod
    def state(self) -> S:
        """The state, as Kafka's tools report it."""

    @abstractmethod
    def _targets(self, running: A, assignments: Mapping[str, Any]) -> Iterator[tuple[Any, Any, int]]:
        """Yield the key of each member's target, its value (None if unchanged), and its units of work."""

    @abstractmethod
    def _target_epoch_key(self) -> Any:
        """Return the key of the epoch of the target assignment."""

    @abstractmethod
    def _respond(self, heartbeat: H, now: Instant) -> int:
        """Move a member towards its target, and answer its heartbeat once that is stored.

        Returns the units of work that this took, about 1 us each.
        """

    @abstractmethod
    def _refusal(self, heartbeat: H, refused: RefusedError) -> Answer:
        """Return the answer that refuses a heartbeat."""

    @abstractmethod
    def remove(self, member_ids: Collection[str], now: Instant, *answers: Answer) -> None:
        """Remove members, and answer once that is stored."""

    @abstractmethod
    def loaded(self, topics: Topics, now: Instant) -> None:
        """Begin to serve a group whose records were applied."""

    @abstractmethod
    def _match_sessions(self, now: Instant) -> None:
        """Set the deadlines of members that follow from the stored state."""

    def _reverted(self) -> None:  # not all kinds have more to do
        """Expect other topics, because changes were undone."""

    @property
    def wake_at_s(self) -> float:
        """The latest time to call `expire`, on the event loop's clock."""
        return self.sessions.wake_at_s

    def note_state(self, now: Instant) -> None:
        """Record since when the group has been in its state."""
        state = self.state
        if state is not self._last_state:
            self._last_state, self.state_since_ms = state, now.wall_ms

    def park(self, heartbeat: H, computed: A) -> None:
        """Park a heartbeat until the target assignment is computed."""
        self.journal.commit()
        self.parked.append(heartbeat)
        self.compute(computed)

    def compute(self, computed: A) -> None:
        """Begin to compute a target assignment."""
        self.target.begin(computed)
        self.journal.emit(computed)

    def expire(self, now: Instant) -> None:
        """Remove members whose time has come."""
        member_ids = [member_id for member_id in self.sessions.due(now) if member_id in self._of.metadata]
        for start in range(0, len(member_ids), REMOVED_PER_STORE):
            self.remove(member_ids[start : start + REMOVED_PER_STORE], now)

    def stored(self, ticket: int, error: ErrorCode, now: Instant) -> None:
        """Handle the outcome of a `StoreRows`: answer waiting requests, or undo its changes and all later ones."""
        if self.is_dead:
            return
        if self.journal.stored(ticket, error):
            self._reverted()
            if self.target.is_running:  # based on changes that could not be stored
                self.target.invalidate()
                self.fail_parked(error)
            self._match_sessions(now)
        self.note_state(now)

    def assigned(self, epoch: int, assignments: Mapping[str, Any] | None, now: Instant) -> Generator[None, None, None]:
        """Store the target assignment computed for an epoch; None if that failed.

        Yields between pieces of at most 100 records, and between answers to waiting heartbeats, so that effects are
        taken and other tasks run.
        """
        pace = Pace(UNITS_PER_STEP)
        if assignments is not None and self.target.is_expected(epoch):
            assert self.target.running is not None, "an outcome belongs to a computation"
            for key, value, units in self._targets(self.target.running, assignments):
                if value is not None:
                    self.journal.put(key, value)
                if pace.due(1 + units) or self.journal.row_count >= ROWS_PER_STORE:
                    self.journal.commit()
                    yield
                    if self.is_dead or not self.target.is_expected(epoch):
                        break
        is_expected = self.target.is_expected(epoch)
        if self.is_dead or not self.target.is_running:
            return
        if not is_expected or assignments is None:
            self.target.end()
            self.journal.commit()
            self.fail_parked(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self.journal.put(self._target_epoch_key(), TargetEpoch(epoch=epoch, timestamp_ms=now.wall_ms))
        yield from self._answer_parked(pace, now)
        self.target.end()
        self.journal.commit()
        self.note_state(now)

    def _answer_parked(self, pace: Pace, now: Instant) -> Generator[None, None, None]:
        """Answer parked heartbeats."""
        while self.parked:
            heartbeat = self.parked.popleft()
            if heartbeat.member_id not in self._of.metadata:
                refused = unknown_member(self._of.group_id, heartbeat.member_id)
                self.journal.emit(self._refusal(heartbeat, refused))
                continue
            if pace.due(1 + self._respond(heartbeat, now)):
                yield

    def forget_waiter(self, waiter: Waiter) -> None:
        """Drop the pending answer to a client that has disconnected. Its member stays."""
        self.journal.forget(waiter)
        self.parked = deque(heartbeat for heartbeat in self.parked if heartbeat.waiter is not waiter)

    def fail_parked(self, error: ErrorCode) -> None:
        """Answer parked heartbeats with an error."""
        parked, self.parked = self.parked, deque()
        for heartbeat in parked:
            refused = RefusedError(error, "The group has changed. Send the request again.")
            self.journal.emit(self._refusal(heartbeat, refused))

    def close(self, error: ErrorCode, now: Instant) -> None:
        """Stop: answer all waiting clients with an error."""
        self.is_dead = True
        self.journal.fail(error)
        self.fail_parked(error)
        self.sessions.clear()
        self.note_state(now)
